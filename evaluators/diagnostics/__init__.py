"""Diagnostics: doctor, calibration, profile, dry run."""
