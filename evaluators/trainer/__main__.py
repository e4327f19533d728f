"""`python -P -m frontrunner.evaluators.trainer JOB.json`: one rank, under torchrun or alone."""

from frontrunner.evaluators.trainer.entry import main

if __name__ == "__main__":
    main()
