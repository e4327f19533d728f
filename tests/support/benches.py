"""Real probes by one warm evaluator, which tests start, disturb and end."""

from __future__ import annotations

from pathlib import Path

from frontrunner.evaluators.protocol import ProbeOrder, ProbeSetup
from frontrunner.evaluators.registry import training_probe
from frontrunner.results.outcome import Failure, Measurement
from support.campaigns import setup_of, tiny_recipe, wait_for

ENDLESS = {"measured_steps": 1_000_000}


class Bench:
    """One evaluator whose settings a test may change between probes, so that torch is imported
    once.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.evaluator = training_probe(setup_of(folder))
        self._count = 0

    def use(self, setup: ProbeSetup) -> None:
        self.evaluator.program.setup = setup

    def start(self, setup: ProbeSetup, *, runs: Path | None = None, **recipe: object) -> ProbeOrder:
        """A probe of the tiny recipe with these changes, in a new folder under `runs`."""
        self.use(setup)
        self._count += 1
        token = f"{self._count:05d}.1"
        one = ProbeOrder(
            token=token, recipe=tiny_recipe(**recipe), run_folder=(runs or self.folder) / token
        )
        self.evaluator.start(one)
        return one

    def stepping(self, *, runs: Path | None = None, **problem: object) -> ProbeOrder:
        """A probe that has begun to step and does so without an end."""
        one = self.start(setup_of(self.folder, probe=ENDLESS, problem=problem), runs=runs)
        wait_for(lambda: self.is_stepping(one))
        return one

    def outcome(self, timeout_s: float = 40.0) -> Failure | Measurement:
        (finished,) = wait_for(lambda: self.evaluator.finished(0.2), timeout_s)
        found: Failure | Measurement = finished.outcome
        return found

    def failure(self) -> Failure:
        found = self.outcome()
        assert isinstance(found, Failure)
        return found

    def is_stepping(self, one: ProbeOrder) -> bool:
        assert self.evaluator.finished(0.02) == []
        progress = self.evaluator.progress(one.token)
        return progress is not None and progress.steps_done >= 2
