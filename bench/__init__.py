"""Measures Backstay against the bare cost of SQLite and against a peer.

`python -m bench` from the root of the repository. Nothing here is imported by
the library, and nothing here is a test: a figure that misses its mark is
printed as missed. Every number shown comes from a measurement in that run.
"""
