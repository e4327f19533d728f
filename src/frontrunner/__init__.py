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
    from frontrunner.exchange import import_config, mirror
    from frontrunner.machine import calibrate, call_ranks, doctor, fit_campaign, fit_tables
    from frontrunner.maintenance import (
        archive,
        backup_store,
        check_store,
        copy_store,
        prunable,
        prune_store,
        unarchive,
        upgrade_store,
    )
    from frontrunner.planning import advise, plan, scaling
    from frontrunner.recipe_actions import dryrun, plan_dryrun, plan_profile, plan_replay, profile, replay
    from frontrunner.remote import connect
    from frontrunner.table_import import TableForm, import_table

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
_MODULES = {
    "exchange": ("import_config", "mirror"),
    "machine": ("calibrate", "call_ranks", "doctor", "fit_campaign", "fit_tables"),
    "maintenance": (
        *("archive", "backup_store", "check_store", "copy_store"),
        *("prunable", "prune_store", "unarchive", "upgrade_store"),
    ),
    "planning": ("advise", "plan", "scaling"),
    "recipe_actions": ("dryrun", "plan_dryrun", "plan_profile", "plan_replay", "profile", "replay"),
    "remote": ("connect",),
    "table_import": ("TableForm", "import_table"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}
"""Name -> module of what is not in `frontrunner.api`."""


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module(f"frontrunner.{_MODULE_OF.get(name, 'api')}"), name)
    raise AttributeError(f"module 'frontrunner' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
