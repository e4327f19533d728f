"""Entry point of `python -m frontrunner`."""

from frontrunner.cli.main import main

main()
