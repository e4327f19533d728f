"""Search strategies: which recipe to try next."""
