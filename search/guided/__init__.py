"""The guided search: the analytic model as prior, corrected by each outcome."""
