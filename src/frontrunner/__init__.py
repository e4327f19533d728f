"""frontrunner finds the fastest way to train a given transformer on given machines.

The functions below mirror the commands. They are loaded when first used: ranks of probes import
this package too. The views are loaded when a notebook first shows a value.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from frontrunner.spaces.display import register_loader
from frontrunner.version import __version__ as __version__

# `__all__` has the public names. For type checkers these modules are enough.
if TYPE_CHECKING:
    from frontrunner.api import *  # noqa: F403
    from frontrunner.evaluators.tables.reading import TableForm as TableForm
    from frontrunner.exchange import *  # noqa: F403
    from frontrunner.machine import *  # noqa: F403
    from frontrunner.planning import *  # noqa: F403
    from frontrunner.recipe_actions import *  # noqa: F403
    from frontrunner.remote import *  # noqa: F403
    from frontrunner.sweeps import scale as scale
    from frontrunner.sweeps import sweep as sweep

_MODULES = {
    "api": (
        "backup_store best campaigns change_budget check_log check_store copy_store dataframe"
        " delete explain export failures front history import_archive label launch measure pareto"
        " plot prunable prune_store recover_store rename report resume running show status step"
        " survey upgrade_store"
    ),
    "exchange": "TableForm import_config import_table mirror",
    "machine": "calibrate call_ranks doctor fit_campaign fit_tables",
    "planning": "advise plan plan_clusters scaling",
    "recipe_actions": "dryrun plan_dryrun plan_profile plan_replay profile replay",
    "remote": "connect",
    "sweeps": "scale sweep",
}
__all__ = sorted(" ".join(_MODULES.values()).split())  # noqa: PLE0605


register_loader(lambda: import_module("frontrunner.views.notebook"))


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names.split():
            found = getattr(import_module(f"frontrunner.{module}"), name)
            return found if isinstance(found, type) else _with_checked_types(name, found)
    raise AttributeError(f"module 'frontrunner' has no attribute {name!r}")


def _with_checked_types(name: str, function: Any) -> Any:
    """Return a public function that refuses arguments of wrong types; keep it for later calls."""
    from frontrunner.argument_types import checks_types

    checked = globals()[name] = checks_types(function)
    return checked


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
