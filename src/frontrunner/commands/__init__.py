"""The commands of `frontrunner`, a module for each group of the help page."""
