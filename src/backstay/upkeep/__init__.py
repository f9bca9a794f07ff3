"""Upkeep: what is done to a store now and then, and never inside a commit: pruning, moving sessions in and out."""
