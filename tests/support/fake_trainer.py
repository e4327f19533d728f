"""A trainer of another kind, for tests of the command evaluator: it trains nothing and prints a log
as trainers do.

    fake_trainer.py BEHAVIOUR --micro-batch N --steps N

It prints a line a step, and what BEHAVIOUR says beside or instead.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

STEP_TIME_S = 0.02
FACTORS = {"mistakes-units": 1e3, "flatters-itself": 0.1, "takes-no-time": 0.0}
"""What some behaviours print instead of a step's time, as a factor."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("behaviour")
    parser.add_argument("--micro-batch", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    given = parser.parse_args()
    behave = given.behaviour
    print("variables " + " ".join(sorted(os.environ)))
    if behave == "refuses":
        raise AssertionError("heads are not divisible by 3")
    start_others(behave)
    if behave == "says-another-batch":
        print(f"configured micro batch {given.micro_batch + 3}")
    # After a pause more steps are needed to compare the log's times with the clock.
    steps = 3 * given.steps if behave == "floods" else given.steps
    for step in range(1, steps + 1):
        began_s = time.perf_counter()
        time.sleep(STEP_TIME_S)
        seconds = time.perf_counter() - began_s
        if behave == "ends-early" and step == 4:
            return
        fail(step, behave)
        report(step, seconds, behave)
        if behave == "ignores-signals" and step == 2:
            stand_still()
    if behave in ("goes-on", "floods"):
        time.sleep(600)


def start_others(behave: str) -> None:
    """Start processes beside the training."""
    if behave == "leaves-ranks":  # as torchrun does: ranks in sessions of their own
        rank = subprocess.Popen(
            [sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True
        )
        Path("rank.pid").write_text(str(rank.pid))
    if behave == "floods-stderr":
        flood = "import os\nwhile True: os.write(2, bytes(100_000))"
        subprocess.Popen([sys.executable, "-c", flood])


def fail(step: int, behave: str) -> None:
    """End with an error at the step at which this behavior has one."""
    if behave == "crashes" and step == 3:
        raise RuntimeError("a link has failed")


def report(step: int, seconds: float, behave: str) -> None:
    """Print the line of a step."""
    shown_s = seconds * FACTORS.get(behave, 1.0)
    rate = 8 * 32 / (seconds if behave == "mistakes-units" else shown_s or seconds)
    if behave == "boasts":
        rate = 999_999
    name = "stage" if behave == "says-nothing-known" else "step"
    print(
        f"{name} {step}: {shown_s:.6f} s loss {5 / step:.4f} rate {rate:.1f} peak 0.25 GiB",
        flush=True,
    )
    if behave == "floods" and step == 2:
        sys.stdout.write((999 * "x" + "\n") * 70_000)


def stand_still() -> None:
    """Do no further step, in a loop without an end that hears no signal that can be ignored."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        pass


if __name__ == "__main__":
    main()
