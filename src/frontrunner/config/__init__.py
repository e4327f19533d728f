"""Campaign, cluster and recipe files."""
