"""frontrunner finds the fastest way to train a given transformer on given machines.

The functions below mirror the commands. They are loaded when first used: ranks of probes import this package too.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from frontrunner.api import archive as archive
    from frontrunner.api import backup_store as backup_store
    from frontrunner.api import best as best
    from frontrunner.api import campaigns as campaigns
    from frontrunner.api import check_store as check_store
    from frontrunner.api import copy_store as copy_store
    from frontrunner.api import dataframe as dataframe
    from frontrunner.api import delete as delete
    from frontrunner.api import explain as explain
    from frontrunner.api import export as export
    from frontrunner.api import failures as failures
    from frontrunner.api import front as front
    from frontrunner.api import launch as launch
    from frontrunner.api import pareto as pareto
    from frontrunner.api import plot as plot
    from frontrunner.api import predictions as predictions
    from frontrunner.api import prunable as prunable
    from frontrunner.api import prune_store as prune_store
    from frontrunner.api import rename as rename
    from frontrunner.api import report as report
    from frontrunner.api import resume as resume
    from frontrunner.api import show as show
    from frontrunner.api import status as status
    from frontrunner.api import survey as survey
    from frontrunner.api import unarchive as unarchive
    from frontrunner.api import upgrade_store as upgrade_store
    from frontrunner.evaluators.tables.reading import TableForm as TableForm
    from frontrunner.exchange import import_config as import_config
    from frontrunner.exchange import import_table as import_table
    from frontrunner.exchange import mirror as mirror
    from frontrunner.machine import calibrate as calibrate
    from frontrunner.machine import call_ranks as call_ranks
    from frontrunner.machine import doctor as doctor
    from frontrunner.machine import fit_campaign as fit_campaign
    from frontrunner.machine import fit_tables as fit_tables
    from frontrunner.planning import advise as advise
    from frontrunner.planning import plan as plan
    from frontrunner.planning import scaling as scaling
    from frontrunner.recipe_actions import dryrun as dryrun
    from frontrunner.recipe_actions import plan_dryrun as plan_dryrun
    from frontrunner.recipe_actions import plan_profile as plan_profile
    from frontrunner.recipe_actions import plan_replay as plan_replay
    from frontrunner.recipe_actions import profile as profile
    from frontrunner.recipe_actions import replay as replay
    from frontrunner.remote import connect as connect

__version__ = "0.1.0"
_MODULES = {
    "api": (
        "archive backup_store best campaigns check_store copy_store dataframe delete explain export failures front "
        "launch pareto plot predictions prunable prune_store rename report resume show status survey unarchive "
        "upgrade_store"
    ),
    "exchange": "TableForm import_config import_table mirror",
    "machine": "calibrate call_ranks doctor fit_campaign fit_tables",
    "planning": "advise plan scaling",
    "recipe_actions": "dryrun plan_dryrun plan_profile plan_replay profile replay",
    "remote": "connect",
}
__all__ = sorted(" ".join(_MODULES.values()).split())  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names.split():
            return getattr(import_module(f"frontrunner.{module}"), name)
    raise AttributeError(f"module 'frontrunner' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
