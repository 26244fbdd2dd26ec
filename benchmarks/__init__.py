"""Measurements against peers: the same work, side by side, alternating, in one run."""
