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
        explain,
        export,
        failures,
        front,
        launch,
        pareto,
        plot,
        predictions,
        report,
        resume,
        show,
        status,
        survey,
    )
    from frontrunner.calibration_api import calibrate, fit_campaign, fit_tables
    from frontrunner.doctor_api import call_ranks, doctor
    from frontrunner.dryrun_api import dryrun, plan_dryrun
    from frontrunner.import_api import TableForm, import_table
    from frontrunner.planning_api import advise, plan, scaling
    from frontrunner.profiling_api import plan_profile, profile
    from frontrunner.remote import connect
    from frontrunner.replay_api import plan_replay, replay
    from frontrunner.store_api import (
        archive,
        backup_store,
        check_store,
        copy_store,
        prunable,
        prune_store,
        unarchive,
        upgrade_store,
    )
    from frontrunner.travel_api import import_config, mirror

__version__ = "0.1.0"
__all__ = [
    "TableForm",
    "advise",
    "archive",
    "backup_store",
    "best",
    "calibrate",
    "call_ranks",
    "campaigns",
    "check_store",
    "connect",
    "copy_store",
    "dataframe",
    "doctor",
    "dryrun",
    "explain",
    "export",
    "failures",
    "fit_campaign",
    "fit_tables",
    "front",
    "import_config",
    "import_table",
    "launch",
    "mirror",
    "pareto",
    "plan",
    "plan_dryrun",
    "plan_profile",
    "plan_replay",
    "plot",
    "predictions",
    "profile",
    "prunable",
    "prune_store",
    "replay",
    "report",
    "resume",
    "scaling",
    "show",
    "status",
    "survey",
    "unarchive",
    "upgrade_store",
]
_ELSEWHERE = (
    dict.fromkeys(("calibrate", "fit_campaign", "fit_tables"), "frontrunner.calibration_api")
    | dict.fromkeys(("advise", "plan", "scaling"), "frontrunner.planning_api")
    | dict.fromkeys(("doctor", "call_ranks"), "frontrunner.doctor_api")
    | dict.fromkeys(("dryrun", "plan_dryrun"), "frontrunner.dryrun_api")
    | dict.fromkeys(("plan_profile", "profile"), "frontrunner.profiling_api")
    | dict.fromkeys(("plan_replay", "replay"), "frontrunner.replay_api")
    | dict.fromkeys(("import_config", "mirror"), "frontrunner.travel_api")
    | dict.fromkeys(("TableForm", "import_table"), "frontrunner.import_api")
    | dict.fromkeys(("archive", "backup_store", "check_store", "copy_store"), "frontrunner.store_api")
    | dict.fromkeys(("prunable", "prune_store", "unarchive", "upgrade_store"), "frontrunner.store_api")
    | {"connect": "frontrunner.remote"}
)
"""The module of what is not in `frontrunner.api`."""


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module(_ELSEWHERE.get(name, "frontrunner.api")), name)
    raise AttributeError(f"module 'frontrunner' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
