"""One module or folder for each place that keeps bytes. None knows another; only `opening` knows them by name."""
