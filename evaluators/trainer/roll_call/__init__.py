"""Ranks that are called to be examined: all-reduces over all of them, and who keeps the others waiting."""
