"""Measured tables of others: import, lookup, survey."""
