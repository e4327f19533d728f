"""How many steps an adaptive probe takes, and how right it is, for steps whose true time is known.

    python benchmarks/simulated_probes.py

Each probe begins with a step of four and one of one and a half times the true one; the others vary
normally around it, and where it says so one in ten is interrupted for half to twice a step. Told
are, for the default settings and no best to be slower than: steps in all, the share of intervals
that hold the truth, the error of the median that 19 of 20 probes stay below, and how the probes
ended.
"""

from __future__ import annotations

import random
import statistics
from collections import Counter
from dataclasses import dataclass

from frontrunner.evaluators.probe import ProbeSettings
from frontrunner.evaluators.trainer.step_time_stats import ending, interval, settled

PROBES = 2000
VARIATIONS = (0.005, 0.01, 0.02, 0.04, 0.08, 0.16)
SETTINGS = ProbeSettings()


@dataclass(frozen=True, kw_only=True)
class Simulated:
    """One probe of a true step time of 1."""

    steps: int
    error: float
    is_covered: bool
    ended: str


def step(draw: random.Random, variation: float, *, interrupted: bool) -> float:
    """One step's time."""
    seconds = max(0.1, draw.gauss(1.0, variation))
    return seconds + draw.uniform(0.5, 2.0) if interrupted and draw.random() < 0.1 else seconds


def probe(draw: random.Random, variation: float, *, interrupted: bool) -> Simulated:
    """A probe as `evaluators/trainer/probe_run.py` runs it."""
    times = [4.0, 1.5]
    most_dropped = SETTINGS.max_steps // 2 - SETTINGS.warm_up_steps
    while True:
        kept = settled(
            times[SETTINGS.warm_up_steps :],
            most_dropped=most_dropped,
            tolerance=SETTINGS.precision / 2,
        )
        most = SETTINGS.max_steps - SETTINGS.warm_up_steps
        found = None
        if len(kept) >= SETTINGS.min_measured_steps:
            found = ending(kept, precision=SETTINGS.precision, best_step_time_s=None, most=most)
        if found is not None or len(times) == SETTINGS.max_steps:
            break
        times.append(step(draw, variation, interrupted=interrupted))
    low, high = interval(kept)
    error = abs(statistics.median(kept) - 1.0)
    return Simulated(
        steps=len(times), error=error, is_covered=low <= 1.0 <= high, ended=found or "limit"
    )


def main() -> None:
    draw = random.Random(1)
    for interrupted in (False, True):
        print("with interruptions" if interrupted else "undisturbed")
        for variation in VARIATIONS:
            found = [probe(draw, variation, interrupted=interrupted) for _ in range(PROBES)]
            endings = Counter(one.ended for one in found)
            print(
                f"  steps vary by {100 * variation:4.1f} %:"
                f" {statistics.fmean(one.steps for one in found):4.1f} steps,"
                f" {100 * statistics.fmean(one.is_covered for one in found):.0f} % of intervals"
                " hold the truth, 19 of 20 medians within"
                f" {100 * sorted(one.error for one in found)[int(0.95 * PROBES)]:.1f} %; "
                + ", ".join(
                    f"{100 * count / PROBES:.0f} % {name}" for name, count in endings.most_common()
                )
            )


if __name__ == "__main__":
    main()
