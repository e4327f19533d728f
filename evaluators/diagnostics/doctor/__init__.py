"""Checks of a machine, a job and an installation, each with a remedy: the parts of `frontrunner
doctor`.
"""
