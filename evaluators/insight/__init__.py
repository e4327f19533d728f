"""What a campaign's outcomes tell: the figures of reports as plain values, computed once and drawn by others."""
