"""Runs: one program on nodes, as a probe with a deadline or as a training with restarts."""
