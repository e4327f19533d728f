"""What users see: terminal tables, charts, reports."""
