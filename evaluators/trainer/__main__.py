"""`python -P -m frontrunner.evaluators.trainer JOB.json`: one rank, under torchrun or alone."""

import os
import sys
from pathlib import Path

from frontrunner.evaluators.trainer.entry import run_rank
from frontrunner.evaluators.trainer.job import Job


def main() -> None:
    """Run the job file named on the command line; rank and world size come from torchrun's environment."""
    if len(sys.argv) != 2:
        sys.exit("usage: python -P -m frontrunner.evaluators.trainer JOB.json")
    try:
        job = Job.read(Path(sys.argv[1]))
    except (OSError, ValueError) as error:
        sys.exit(f"{sys.argv[1]}: {error}")
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    rendezvous = Path(job.run_folder) / f"rendezvous-{os.getpid()}"
    run_rank(
        job,
        rank=int(os.environ.get("RANK", "0")),
        world_size=world_size,
        init_method="env://" if "MASTER_ADDR" in os.environ else f"file://{rendezvous}",
        local_rank=int(os.environ.get("LOCAL_RANK", "0")),
    )
    # The run is complete and on disk. An orderly exit would tear down the interpreter under threads of torch's
    # own, which at times ends a finished rank with an abort.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
