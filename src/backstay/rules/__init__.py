"""The rules: pure decisions. A view and an intention give a batch, or an error. No backend is known here.

Every sentence about sessions, branches, checkpoints, calls and leases that a caller may read is in `refusals`, once.
"""
