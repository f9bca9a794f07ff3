"""The views, each a module with a function `show`: what it reads, and the data of its template."""
