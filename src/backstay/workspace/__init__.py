"""The folder an agent works in: what is read of it for a checkpoint, and how files are put back."""
