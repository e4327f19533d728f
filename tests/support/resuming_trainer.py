"""A trainer that stores a checkpoint every 4 steps and on SIGTERM, and goes on from it; its first
start may crash.

It trains nothing. Rank 0 prints a line a step and stores; others end at once on SIGTERM.
"""

import argparse
import os
import signal
import sys
import time
from pathlib import Path

STEP_TIME_S = 0.02


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--crash-at", type=int)
    parser.add_argument("--checkpoint", type=Path, default=Path("checkpoint"))
    parser.add_argument("--store-s", type=float, default=0.0, help="what storing takes on SIGTERM")
    parser.add_argument("--others")
    given = parser.parse_args()
    stops: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stops.append(number))
    done = int(given.checkpoint.read_text()) if given.checkpoint.exists() else 0
    for step in range(done + 1, given.steps + 1):
        began_s = time.perf_counter()
        time.sleep(STEP_TIME_S)
        if int(os.environ.get("RANK", "0")) > 0:
            if stops:
                sys.exit(3)
            continue
        print(f"step {step}: {time.perf_counter() - began_s:.6f} s loss {5 / step:.4f}", flush=True)
        if stops:
            time.sleep(given.store_s)
        if step % 4 == 0 or stops:
            given.checkpoint.write_text(str(step))
        if stops:
            sys.exit(3)
        if step == given.crash_at and os.environ["FRONTRUNNER_ATTEMPT"] == "1":
            raise RuntimeError("a link has failed")


if __name__ == "__main__":
    main()
