"""Drives a campaign of a store with a forecaster that wants one repeat, and dies of SIGKILL while
that repeat runs.

Usage: killed_in_a_repeat.py STORE CAMPAIGN
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from types import ModuleType

sys.path.insert(0, str(Path(__file__).parent.parent))

from frontrunner.evaluators.analytic.simulated import Simulated
from frontrunner.evaluators.protocol import ProbeOrder
from frontrunner.evaluators.registry import EVALUATORS, EvaluatorKind
from frontrunner.results.store import open_store
from frontrunner.search.campaign_setup import stored_spec
from frontrunner.search.driver import Driver
from frontrunner.search.strategy import STRATEGIES
from support.forecasters import Forecaster, measured_twice


class DiesInARepeat(Simulated):
    """The simulated evaluator, until a recipe is ordered for the second time."""

    ordered: set[str] = set()  # noqa: RUF012 - of this process

    def start(self, order: ProbeOrder) -> None:
        if repr(order.recipe) in self.ordered:
            os.kill(os.getpid(), signal.SIGKILL)
        self.ordered.add(repr(order.recipe))
        super().start(order)


def main(url: str, name: str) -> None:
    module = ModuleType("test_doubles")
    vars(module)["strategy"] = lambda survey, _: Forecaster(
        survey.recipes, wish=measured_twice(survey.recipes[0])
    )
    vars(module)["evaluator"] = DiesInARepeat
    sys.modules[module.__name__] = module
    STRATEGIES["exhaustive"] = "test_doubles:strategy"
    EVALUATORS["simulated"] = EvaluatorKind(factory="test_doubles:evaluator", simulates=True)
    with open_store(url) as store:
        campaign = store.campaign(name)
        Driver(store=store, campaign=campaign, spec=stored_spec(campaign)).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
