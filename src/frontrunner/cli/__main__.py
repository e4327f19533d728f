"""Entry point of `python -m frontrunner.cli`."""

from frontrunner.cli.main import main

main()
