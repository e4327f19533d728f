"""Classes of tests under the names by which the program finds its evaluators and strategies."""

import sys
from types import ModuleType
from typing import Any

import pytest


def register(
    monkeypatch: pytest.MonkeyPatch, registry: dict[str, str], name: str, make: Any
) -> None:
    """Have the registry's `name` mean `make`, in a module that was never a file, until the test is
    over.
    """
    module = ModuleType(f"doubles_of_{name}")
    vars(module)["make"] = make
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(registry, name, f"{module.__name__}:make")


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
