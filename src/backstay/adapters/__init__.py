"""Adapters: other people's frameworks over a Store, one module each, each with its own extra. Nothing imports them."""
