"""Probes on more than one machine: which probe runs on which nodes."""
