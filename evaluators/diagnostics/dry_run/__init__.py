"""Dry runs: the memory and the FLOPs of a recipe's real training step, traced without a device."""
