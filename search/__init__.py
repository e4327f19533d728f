"""What to try next: strategies, budgets, and the driver that runs a campaign."""
