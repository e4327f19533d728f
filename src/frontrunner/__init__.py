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
    from frontrunner.calibration_api import calibrate, fit_campaign, fit_tables
    from frontrunner.import_api import TableForm, import_table
    from frontrunner.planning_api import advise, explain, plan, scaling
    from frontrunner.reporting_api import front, plot, report
    from frontrunner.service.client import connect

__version__ = "0.1.0"
__all__ = [
    "TableForm",
    "advise",
    "best",
    "calibrate",
    "campaigns",
    "connect",
    "dataframe",
    "dryrun",
    "explain",
    "failures",
    "fit_campaign",
    "fit_tables",
    "front",
    "import_table",
    "launch",
    "pareto",
    "plan",
    "plan_dryrun",
    "plan_profile",
    "plan_replay",
    "plot",
    "profile",
    "replay",
    "report",
    "resume",
    "scaling",
    "show",
    "status",
    "survey",
]
_ELSEWHERE = (
    dict.fromkeys(("calibrate", "fit_campaign", "fit_tables"), "frontrunner.calibration_api")
    | dict.fromkeys(("advise", "explain", "plan", "scaling"), "frontrunner.planning_api")
    | dict.fromkeys(("front", "plot", "report"), "frontrunner.reporting_api")
    | dict.fromkeys(("TableForm", "import_table"), "frontrunner.import_api")
    | {"connect": "frontrunner.service.client"}
)
"""The module of what is not in `frontrunner.api`."""


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module(_ELSEWHERE.get(name, "frontrunner.api")), name)
    raise AttributeError(f"module 'frontrunner' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
