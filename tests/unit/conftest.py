"""What tests of drivers in their own process share: a store, campaigns in it, and an evaluator with
a script.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from frontrunner.evaluators.registry import EVALUATORS
from frontrunner.results.outcome import Outcome
from frontrunner.results.store import Store
from frontrunner.spaces.recipe import Recipe
from support.doubles import as_evaluator, register
from support.drivers import Campaigns, Scripted


@pytest.fixture
def campaigns(store: Store, tmp_path: Path) -> Campaigns:
    return Campaigns(store, tmp_path / "runs")


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Callable[..., type[Scripted]]:
    """Register an evaluator named `scripted` that follows a script."""

    def follow(
        script: Callable[[Recipe, int], Outcome | None],
        base: type[Scripted] = Scripted,
        **attributes: Any,
    ) -> type[Scripted]:
        made = type("Mine", (base,), {"script": staticmethod(script), **attributes})
        register(monkeypatch, EVALUATORS, "scripted", made, as_evaluator)
        return made

    return follow
