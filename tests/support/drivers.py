"""Drivers in the test's own process: campaigns in one store, a scripted evaluator, a listener that
records.
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from frontrunner.evaluators.analytic.simulated import Simulated, simulate
from frontrunner.evaluators.protocol import Finished, ProbeOrder, ProbeSetup
from frontrunner.evaluators.runs.run_folder import RunFolder
from frontrunner.results.outcome import Failure, FailureKind, Outcome
from frontrunner.results.records import Campaign
from frontrunner.results.store import Store
from frontrunner.search.campaign_setup import problem_summary
from frontrunner.search.driver import Driver
from frontrunner.search.listener import Ended, Listener, View
from frontrunner.search.spec import CampaignSpec
from frontrunner.spaces.recipe import Recipe
from frontrunner.spaces.validation import dump_json
from support.campaigns import Table, spec_of, tiny

LEGAL = 9
"""The legal recipes of `tiny`."""


class Campaigns:
    """Makes campaigns and drivers in one store."""

    def __init__(self, store: Store, folder: Path) -> None:
        self.store = store
        self.folder = folder

    def create(
        self, evaluator: str = "simulated", **sections: Table
    ) -> tuple[Campaign, CampaignSpec]:
        spec = spec_of(tiny(evaluator=evaluator, **sections), self.folder)
        record = self.store.create_campaign(
            name=spec.name,
            spec_json=dump_json(spec),
            legal_recipes=LEGAL,
            problem_summary=problem_summary(spec),
        )
        return record, spec

    def driver(
        self,
        record: Campaign,
        spec: CampaignSpec,
        listener: Any = None,
        asked: Sequence[Recipe] = (),
    ) -> Driver:
        current = self.store.campaign(record.name)
        return Driver(store=self.store, campaign=current, spec=spec, listener=listener, asked=asked)

    def stopped_after_a_probe(self, record: Campaign, spec: CampaignSpec) -> None:
        driver = self.driver(record, spec, Recorder(lambda view, ended: driver.stop()))
        driver.run()

    def stopped_at_once(self, record: Campaign, spec: CampaignSpec) -> None:
        driver = self.driver(record, spec)
        driver.kill()
        driver.run()

    def states(self, record: Campaign) -> Counter[str]:
        return Counter(trial.state for trial in self.store.trials(record.id))


class Scripted(Simulated):
    """Simulated, except where the script has a failure for a recipe's next attempt."""

    script: Callable[[Recipe, int], Outcome | None]
    seconds = 0.0
    attempts: Counter[Recipe]
    most_at_a_time = 0

    def __init__(self, setup: ProbeSetup) -> None:
        super().__init__(setup)
        self._running: list[tuple[float, ProbeOrder]] = []
        type(self).attempts = Counter()
        type(self).most_at_a_time = 0

    def start(self, order: ProbeOrder) -> None:
        self._running.append((time.monotonic() + self.seconds, order))
        type(self).most_at_a_time = max(self.most_at_a_time, len(self._running))

    def finished(self, timeout_s: float) -> list[Finished]:
        time.sleep(min(timeout_s, 0.002))
        done = [order for due, order in self._running if due <= time.monotonic()]
        self._running = [(due, order) for due, order in self._running if order not in done]
        return [self._scripted(order) for order in done]

    def _scripted(self, order: ProbeOrder) -> Finished:
        self.attempts[order.recipe] += 1
        outcome = type(self).script(order.recipe, self.attempts[order.recipe])
        found = outcome or simulate(order.recipe, self._setup)
        RunFolder(order.run_folder).write_outcome(found)
        return Finished(token=order.token, outcome=found)


def failure(kind: FailureKind, node_seconds: float = 1.0) -> Failure:
    return Failure(
        kind=kind,
        message=f"scripted {kind}",
        log_tail="the tail",
        log_path="a.log",
        node_seconds=node_seconds,
    )


class Recorder(Listener):
    """Remembers what it heard, and may act on it."""

    def __init__(self, on_ended: Callable[[View, Ended], None] | None = None) -> None:
        self.endings: list[Ended] = []
        self.probes_seen: list[float] = []
        self.notices: list[str] = []
        self.on_ended = on_ended

    def probe_ended(self, view: View, ended: Ended) -> None:
        self.endings.append(ended)
        self.probes_seen.append(view.limits[0].used if view.limits else -1)
        if self.on_ended:
            self.on_ended(view, ended)

    def noticed(self, view: View, kind: str, data: Any) -> None:
        self.notices.append(kind)
