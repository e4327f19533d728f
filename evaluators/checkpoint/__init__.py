"""Checkpoints of replays: read by one process, written as published models are, and looked at."""
