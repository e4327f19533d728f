"""Nodes that programs run on: this machine, and those of a batch system or of Ray."""
