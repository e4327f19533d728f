"""A trainer that stores a checkpoint every 4 steps and on SIGTERM, and goes on from it; its first
start may crash.

It trains nothing. Rank 0 prints a line a step and stores; others end at once on SIGTERM. Without
ranks the first node does so. With `--helper` it starts a process in a session of its own, as
launchers do, which no signal to a process group reaches.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

STEP_TIME_S = 0.02
HELPER = "import time; time.sleep(600)"
BEHAVIORS = ("well", "no-memory", "diverges", "forgets")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--crash-at", type=int)
    parser.add_argument("--checkpoint", type=Path, default=Path("checkpoint"))
    parser.add_argument("--store-s", type=float, default=0.0, help="what storing takes on SIGTERM")
    parser.add_argument("--others")
    parser.add_argument("--behave", choices=BEHAVIORS, default="well")
    parser.add_argument("--helper", action="store_true")
    given = parser.parse_args()
    if given.behave == "no-memory":
        raise RuntimeError("HIP out of memory. Tried to allocate 2.00 GiB")
    if given.helper:
        subprocess.Popen(
            [sys.executable, "-S", "-c", HELPER, str(given.checkpoint)], start_new_session=True
        )
    train(given)


def train(given: argparse.Namespace) -> None:
    """Go on from the checkpoint to the last step."""
    stops: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stops.append(number))
    rank = int(os.environ.get("RANK", os.environ.get("NODE_RANK", "0")))
    done = int(given.checkpoint.read_text()) if given.checkpoint.exists() else 0
    for step in range(done + 1, given.steps + 1):
        began_s = time.perf_counter()
        time.sleep(STEP_TIME_S)
        if rank > 0:
            if stops:
                sys.exit(3)
            continue
        loss = "nan" if given.behave == "diverges" and step == 3 else f"{5 / step:.4f}"
        print(f"step {step}: {time.perf_counter() - began_s:.6f} s loss {loss}", flush=True)
        if stops:
            time.sleep(given.store_s)
        if given.behave != "forgets" and (step % 4 == 0 or stops):
            store(given.checkpoint, step)
        if stops:
            sys.exit(3)
        if step == given.crash_at and os.environ["FRONTRUNNER_ATTEMPT"] == "1":
            raise RuntimeError("a link has failed")


def store(checkpoint: Path, step: int) -> None:
    """Replace the checkpoint, which a kill may not leave half written."""
    partial = checkpoint.with_name(f"{checkpoint.name}.{os.getpid()}")
    partial.write_text(str(step))
    partial.replace(checkpoint)


if __name__ == "__main__":
    main()
