"""`python -P -m frontrunner.evaluators.trainer.dry_run RANK MICRO_BATCHES`: a job on stdin, the trace on stdout."""

import json
import sys

import torch

from frontrunner.evaluators.trainer.dry_run.trace import trace
from frontrunner.evaluators.trainer.job import Job


def main() -> None:
    """Trace one rank and print the result as one line of JSON."""
    rank, micro_batches = (int(argument) for argument in sys.argv[1:])
    torch.set_num_threads(1)
    seen = trace(Job.from_json(sys.stdin.read()), rank=rank, micro_batches=micro_batches)
    sys.stdout.write(json.dumps(seen) + "\n")


if __name__ == "__main__":
    main()
