"""Profiles: where a step's time goes, from the traces that the ranks of a probe leave."""
