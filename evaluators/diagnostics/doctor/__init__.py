"""What a machine, a job and an installation are like, as checks with a remedy: the parts of `frontrunner doctor`."""
