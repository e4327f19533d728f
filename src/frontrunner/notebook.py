"""Display of values in notebooks and interpreters."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

PRINTERS = {
    "Advice": "plan.print_advice",
    "Breakdown": "plan.print_breakdown",
    "Campaign": "results.print_campaign",
    "CampaignList": "results.print_campaigns",
    "Check": "results.print_check",
    "Conclusion": "results.print_conclusion",
    "Deleted": "results.print_deleted",
    "Explanation": "results.print_explanation",
    "Film": "film.print_film",
    "FailureList": "results.print_failures",
    "Front": "results.print_front",
    "Labels": "results.print_labels",
    "MeasuredScaling": "around.print_measured_scaling",
    "Plan": "plan.print_plan",
    "RankedRecipe": "results.print_ranking",
    "Ranking": "results.print_ranking",
    "Recipe": "results.print_recipe",
    "Running": "results.print_running",
    "ClusterRanking": "plan.print_clusters",
    "Scaling": "plan.print_scaling",
    "ShownPlan": "plan.print_plan",
    "Status": "results.print_status",
    "StepTimeline": "timeline.print_timeline",
    "Survey": "results.print_survey",
    "Sweep": "around.print_sweep",
}
"""The function of `frontrunner.views` that prints a value, by its class; of others the fields are
displayed.
"""


MOST_CHARACTERS = 400
_WORDS = reprlib.Repr()
_WORDS.maxlevel, _WORDS.maxstring, _WORDS.maxother = 2, 60, 120
_WORDS.maxtuple = _WORDS.maxlist = _WORDS.maxdict = 3


def in_short(value: Any) -> dict[str, str]:
    """Return the fields of a dataclass as short texts."""
    return {one.name: _WORDS.repr(getattr(value, one.name)) for one in fields(value) if one.repr}


def _in_short(value: Any) -> str:
    name = type(value).__name__
    if is_dataclass(value):
        parts = (f"{name}={text}" for name, text in in_short(value).items())
        text = f"{name}({', '.join(parts)})"
    else:
        text = (
            f"<{name} of {len(value)}:"
            f" {', '.join(map(_WORDS.repr, value[:1]))}{', ...' if len(value) > 1 else ''}>"
        )
    return text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}..."


class Displayed:
    """A value that a notebook displays as the terminal prints it, with a short `repr`."""

    def __init_subclass__(cls, **options: Any) -> None:
        """Give the class the short `repr`, which a dataclass would replace by one of all that it
        holds.
        """
        super().__init_subclass__(**options)
        if "__repr__" not in vars(cls):
            setattr(cls, "__repr__", _in_short)  # noqa: B010 - which mypy takes for a method's replacement

    def _repr_html_(self) -> str:
        from frontrunner.views.terminal import (
            recorded,
        )  # the views import the modules of all values

        module, function = PRINTERS.get(type(self).__name__, "terminal.print_fields").split(".")
        with recorded() as html:
            getattr(import_module(f"frontrunner.views.{module}"), function)(self)
            return html()


class DisplayedRows(Displayed):
    """A list of values that is displayed as a table."""

    def to_frame(self) -> pd.DataFrame:
        """Return the rows as a data frame; a value within a value is a column such as
        `recipe.tensor_parallel`.
        """
        return frame_of(list(self))  # type: ignore[call-overload]


def frame_of(rows: Iterable[Any]) -> pd.DataFrame:
    """Return the rows of `DisplayedRows.to_frame`."""
    import pandas as pd

    from frontrunner.text import as_plain

    return pd.json_normalize(as_plain(list(rows)))
