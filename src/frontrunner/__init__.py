"""frontrunner finds the fastest way to train a given transformer on given machines.

The functions below mirror the commands; they are loaded when first used, so that a rank of a probe, which
imports this package on its way to the trainer, loads nothing else.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from frontrunner.api import (
        best,
        campaigns,
        dataframe,
        dryrun,
        failures,
        launch,
        pareto,
        plan_dryrun,
        plan_profile,
        plan_replay,
        profile,
        replay,
        resume,
        show,
        status,
        survey,
    )
    from frontrunner.planning_api import advise, explain, plan, scaling

__version__ = "0.1.0"
__all__ = [
    "advise",
    "best",
    "campaigns",
    "dataframe",
    "dryrun",
    "explain",
    "failures",
    "launch",
    "pareto",
    "plan",
    "plan_dryrun",
    "plan_profile",
    "plan_replay",
    "profile",
    "replay",
    "resume",
    "scaling",
    "show",
    "status",
    "survey",
]
_PLANNING = ("advise", "explain", "plan", "scaling")


def __getattr__(name: str) -> Any:
    if name in __all__:
        module = "frontrunner.planning_api" if name in _PLANNING else "frontrunner.api"
        return getattr(import_module(module), name)
    raise AttributeError(f"module 'frontrunner' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
