"""Calibration: measuring a machine into a cluster file, and fitting the formulas to measured step times."""
