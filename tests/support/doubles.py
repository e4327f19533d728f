"""Classes of tests under the names by which the program finds its evaluators and strategies."""

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from frontrunner.evaluators.registry import EvaluatorKind


def register(
    monkeypatch: pytest.MonkeyPatch,
    registry: dict[str, Any],
    name: str,
    make: Any,
    entry: Callable[[str], Any] = str,
) -> None:
    """Have the registry's `name` mean `make`, in a module that was never a file, until the test is
    over; `entry` makes the registry's value of its path.
    """
    module = ModuleType(f"doubles_of_{name}")
    vars(module)["make"] = make
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(registry, name, entry(f"{module.__name__}:make"))


def as_evaluator(path: str) -> EvaluatorKind:
    """Return the registry's entry of an evaluator that uses neither nodes nor data."""
    return EvaluatorKind(factory=path)


class Clock:
    """A clock in the place of the module `time`: it stands still but for what a test adds."""

    def __init__(self, *, step_s: float = 0.0) -> None:
        """Let each reading take `step_s` seconds."""
        self.now_s = 1000.0
        self._step_s = step_s

    def monotonic(self) -> float:
        """Return the seconds so far."""
        self.now_s += self._step_s
        return self.now_s
