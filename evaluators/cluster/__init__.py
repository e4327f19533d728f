"""Probes on several nodes, within a job or in allocations of a batch system."""
