"""Columns of tables of recipes, declared once for the terminal, the pages, notebooks and
reports.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from frontrunner.results.outcome import (
    STABLE_SPREAD,
    Failure,
    Measurement,
    Outcome,
    ProbeEnding,
    RecipeStats,
)
from frontrunner.results.ranking import RankedRecipe
from frontrunner.results.records import IMPORTED, CampaignSummary
from frontrunner.results.states import TrialState
from frontrunner.spaces.recipe import DIMENSIONS, Recipe
from frontrunner.text import gib, mib, minute, node_time, percent, plain, seconds, thousands

if TYPE_CHECKING:
    from frontrunner.evaluators.analytic.estimates import Estimate
    from frontrunner.results.pages import TrialOutcome
    from frontrunner.results.status import Appearance, ExplainedAttempt, Neighbor

SCALINGS = (
    "strong scaling: the same global batch on all",
    "weak scaling: the global batch grows with the nodes",
)
IMPORTANT = 1
"""`Column.drop` of what a table has to show at 80 characters, too: what tells recipes apart, how
sure an estimate is, and the MFU.
"""
JOINED_WIDTH = 24
"""The width to which columns that were joined may be wrapped."""
Row = TypeVar("Row")
Other = TypeVar("Other")

ORIGINS = {
    "simulated": "Simulated: these figures come from rough formulas; nothing was trained.",
    "imported": (
        "Imported: these figures come from a table of others' training; nothing was trained here."
    ),
}
ENDINGS = {
    ProbeEnding.KNOWN: "ended when its step time was known well enough",
    ProbeEnding.SLOWER: "ended early, clearly slower than the best: its figures are rough",
    ProbeEnding.NOISY: "ended because its step times vary too much for more steps to help",
    ProbeEnding.LIMIT: "ended at its limit of steps or time",
    ProbeEnding.FIXED: "ended after the requested number of steps",
}


@dataclass(frozen=True)
class Column(Generic[Row]):
    """A column: its key, its title, and how a row's value (None: a dash) becomes text.

    A narrow terminal keeps columns with a `drop` of 0 and fits in the others, the lowest first.
    Columns with a `drop` of `IMPORTANT` are worth joining others for: where they do not fit, those
    of one `whole` become one column of that title. `least` is the width to which one may be
    wrapped. `label` names a figure that stands alone,
    `brief` is its form in a line of them.
    """

    key: str
    title: str
    value: Callable[[Row], Any]
    text: Callable[[Any], str] = str
    drop: int = 0
    is_number: bool = True
    least: int | None = None
    whole: str = ""
    label: str = ""
    brief: str = ""
    about: str = ""
    is_doubtful: Callable[[Row], bool] = lambda _: False

    def cell(self, row: Row) -> str:
        """Return the text of a row's value, a dash for None."""
        value = self.value(row)
        return "-" if value is None else plain(self.text(value))

    def of(self, part: Callable[[Other], Row | None]) -> Column[Other]:
        """Return the column for rows that hold its own kind of row as a part, or None."""

        def value(row: Other) -> Any:
            found = part(row)
            return None if found is None else self.value(found)

        def is_doubtful(row: Other) -> bool:
            found = part(row)
            return found is not None and self.is_doubtful(found)

        return replace(self, value=value, is_doubtful=is_doubtful)  # type: ignore[return-value, arg-type]


def _figure(*names: str) -> Callable[[Any], Any]:
    return lambda figures: next(
        (getattr(figures, name) for name in names if hasattr(figures, name)), None
    )


def _spread(figures: Any) -> float | None:
    """Return the spread of steps, None where a single one is known, as in most tables of others."""
    return getattr(figures, "step_time_spread", None) or None


def words(
    key: str, title: str, value: Callable[[Any], Any], text: Callable[[Any], str] = str, **more: Any
) -> Any:
    """Return a column of words, which are aligned to the left."""
    return Column(key, title, value, text, is_number=False, **more)


CHOICES: tuple[Column[Recipe], ...] = (
    words("layout", "layout", Recipe.layout, drop=IMPORTANT, whole="choices",
        about="tensor, pipeline, data and context parallel degrees"),
    words("batch", "batch", "{0.micro_batch_seqs} x {0.accumulation}".format,
        drop=IMPORTANT, whole="choices", about="micro-batch in sequences x accumulation"),
    words("sharding", "sharding",
        lambda recipe: recipe.sharding_name if recipe.copies > 1 else None,
        drop=IMPORTANT, whole="choices"),
    words("options", "options", lambda recipe: ", ".join(recipe.options()) or None,
        drop=IMPORTANT, whole="choices", least=19),
)  # fmt: skip


def _training(name: str) -> Callable[[Any], Any]:
    return lambda row: None if row.training is None else getattr(row.training, name)


TRAINING: tuple[Column[Any], ...] = (
    Column("training_days", "days", _training("days"), thousands, drop=4,
        about="of the whole training"),
    Column("training_node_hours", "node-hours", _training("node_hours"), thousands, drop=5,
           about="of the whole training"),
    Column("training_price", "price", _training("price"), thousands, drop=4,
        about="of the whole training"),
)  # fmt: skip
"""What the tokens that a campaign states take at a recipe's rate."""
ABOVE_IDLE: Column[Any] = Column(
    "memory_above_idle_bytes_max_rank", "needs MiB", _figure("memory_above_idle_bytes_max_rank"),
    mib, drop=3,
    label="MiB above an idle rank",
    about="of the peak, what a rank on a CPU needs above an idle one",
)  # fmt: skip
FIGURES: tuple[Column[Any], ...] = (
    Column("tokens_per_s", "tokens/s", _figure("tokens_per_s"), thousands, brief="{} tok/s",
           is_doubtful=lambda figures: bool(getattr(figures, "doubts", ()))),
    Column("step_time_s_median", "step", _figure("step_time_s_median", "step_time_s"), seconds,
        drop=2,
           brief="{}/step"),
    Column("step_time_spread", "spread", _spread, lambda share: percent(share, 0), brief="± {}",
           about="standard deviation of the steps over their median",
           is_doubtful=lambda figures: getattr(figures, "step_time_spread", 0.0) > STABLE_SPREAD),
    Column("model_tflops_per_device", "TFLOPS/device", _figure("model_tflops_per_device"),
        thousands, drop=6,
           about="of the model's own work, without recomputation"),
    Column("mfu", "MFU", _figure("mfu"), percent, drop=IMPORTANT,
           about="model FLOPs over the device's peak, with attention whole as if nothing were "
                 "masked"),
    Column("peak_memory_bytes_max_rank", "peak GiB",
        _figure("peak_memory_bytes_max_rank", "peak_memory_bytes"), gib,
           label="GiB at the peak", brief="{} GiB",
           about="memory of the fullest rank; marked where it may not fit",
           drop=2, is_doubtful=lambda figures: getattr(figures, "fit", "fits") not in ("fits",
               "does not fit")),
    ABOVE_IDLE,
    Column("repeats", "n", _figure("repeats"), drop=7, label="measurements", about="measurements"),
)  # fmt: skip
"""Figures of a `RecipeStats`, a `Measurement` or an estimate."""

RECIPE_ID: Column[Any] = words("recipe_id", "recipe", attrgetter("recipe_id"))
RECIPE: tuple[Column[Any], ...] = (
    RECIPE_ID,
    *(column.of(attrgetter("recipe")) for column in CHOICES),
)
"""Columns of whatever has a `recipe_id` and a `recipe`."""

_MEASURED: tuple[Column[RankedRecipe], ...] = tuple(
    column.of(attrgetter("standing")) for column in FIGURES
)
COLUMNS: tuple[Column[RankedRecipe], ...] = (
    Column("rank", "#", attrgetter("rank")),
    *RECIPE,
    replace(_MEASURED[0], is_doubtful=lambda row: bool(row.doubts)),
    Column(
        "gap_percent",
        "gap",
        attrgetter("gap_percent"),
        "{:.1f} %".format,
        drop=4,
        about="to the first",
    ),
    *(ABOVE_IDLE if column.key == ABOVE_IDLE.key else column for column in _MEASURED[1:]),
    *TRAINING,
)


PARTS = {
    **{
        part: part.replace("_", " ")
        for part in ("compute", "recompute", "bubble", "host_transfer", "optimizer", "memory")
    },
    **{
        name: f"{one.label} traffic"
        for name, one in DIMENSIONS.items()
        if one.label in ("TP", "CP")
    },
    "data_parallel": "DP traffic",
    "expert_parallel": "EP traffic",
    "pipeline_transfer": "PP transfer",
    "host_transfer": "host transfer",
}


def limited_by(estimate: Estimate) -> str | None:
    """Return what limits a recipe, with its share of the step; None where that is unknown."""
    if estimate.limit is None:
        return None
    part_s, word = estimate.step_parts_s.get(estimate.limit), PARTS[estimate.limit]
    return (
        word
        if part_s is None or not estimate.step_time_s
        else f"{word} {percent(part_s / estimate.step_time_s, 0)}"
    )


STEP_BOUNDS: Column[Any] = Column(
    "step_time_bounds_s", "95 %", _figure("step_time_bounds_s"),
    lambda ends: " to ".join(map(seconds, ends)),
    drop=IMPORTANT, about="where the measured step time should lie in 95 of 100 cases",
)  # fmt: skip
STEP_P90: Column[Any] = Column(
    "step_time_p90_s", "p90", _figure("step_time_p90_s"), seconds,
    drop=2, about="cautious: 90 of 100 measured steps should be at most this long",
)  # fmt: skip
RATE_BOUNDS: Column[Any] = Column(
    "tokens_per_s_bounds", "95 %", _figure("tokens_per_s_bounds"),
    lambda ends: " to ".join(map(thousands, ends)),
    drop=4, about="where the measured rate should lie in 95 of 100 cases",
)  # fmt: skip
MEMORY_BOUNDS: Column[Any] = Column(
    "peak_memory_bounds_bytes", "95 %", _figure("peak_memory_bounds_bytes"),
    lambda ends: " to ".join(map(gib, ends)),
    drop=7, about="where the peak should lie in 95 of 100 cases",
)  # fmt: skip
_BESIDE: Mapping[str, tuple[Column[Any], ...]] = {
    "step_time_s_median": (STEP_P90, STEP_BOUNDS),
    "peak_memory_bytes_max_rank": (MEMORY_BOUNDS,),
}
ESTIMATED: tuple[Column[Any], ...] = tuple(
    column for figure in FIGURES for column in (figure, *_BESIDE.get(figure.key, ()))
)
"""Figures with the intervals of those that are estimates."""
LIMIT: Column[Estimate] = words("limit", "limited by", limited_by, drop=2)

ESTIMATES: tuple[Column[Any], ...] = (
    Column("rank", "#", itemgetter(0), drop=5),
    *(column.of(itemgetter(1)) for column in (*RECIPE, *ESTIMATED, *TRAINING, LIMIT)),
)


def used(columns: Sequence[Column[Row]], rows: Sequence[Row]) -> list[Column[Row]]:
    """Return the columns that have a value in some row."""
    return [
        column
        for column in columns
        if not rows or any(column.value(row) is not None for row in rows)
    ]


def joined(columns: Sequence[Column[Row]]) -> list[Column[Row]]:
    """Return the columns with those of one `whole` as one column, in the place of the first."""
    found: dict[str, Column[Row]] = {}
    for column in columns:
        parts = [other for other in columns if column.whole and other.whole == column.whole]
        if len(parts) > 1:
            found.setdefault(column.whole, _as_one(parts))
        else:
            found[column.key] = column
    return list(found.values())


def _as_one(parts: Sequence[Column[Row]]) -> Column[Row]:
    def value(row: Row) -> str | None:
        cells = (part.cell(row) for part in parts if part.value(row) is not None)
        return ", ".join(cells) or None

    title = parts[0].whole
    column: Column[Row] = words(title, title, value, least=JOINED_WIDTH)
    return column


def figures_in_words(standing: RecipeStats, device_memory_bytes: int) -> list[tuple[str, str]]:
    """Return (figure, what it is) of each known figure, for a summary that states the number of
    measurements itself.
    """
    notes = {
        "step_time_s_median": f", ± {percent(spread, 0)}" if (spread := _spread(standing)) else "",
        "peak_memory_bytes_max_rank": f", of {gib(device_memory_bytes)}",
    }
    return [
        (column.cell(standing), (column.label or column.title) + notes.get(column.key, ""))
        for column in FIGURES
        if column.value(standing) is not None and column.key not in ("step_time_spread", "repeats")
    ]


def briefly(figures: object, *, aligned: bool = False) -> str:
    """Return the main figures in a line: `11,474 tok/s, 1.25 s/step, ± 2 %, 40.12 GiB`."""
    parts = [
        (
            column,
            column.brief.format(column.cell(figures)) if column.value(figures) is not None else "",
        )
        for column in FIGURES
        if column.brief
    ]
    if aligned:
        return " ".join(text.rjust(len(column.brief) + 5) for column, text in parts)
    return ", ".join(text for _, text in parts if text)


def against(neighbor: Neighbor, place: str) -> str:
    """Return how much faster or slower the recipe ranked next `above` or `below` is."""
    doubt = (
        ", within the spread: another measurement could reverse the order"
        if neighbor.within_spread
        else ""
    )
    return f"{neighbor.gap_percent:.1f} % {'faster' if place == 'above' else 'slower'}{doubt}"


def _machine(row: CampaignSummary) -> str | None:
    """Return a campaign's cluster with its number of devices."""
    stated = [row.problem_summary.get(key) for key in ("cluster", "devices", "device")]
    return None if None in stated else "{}, {:,} x {}".format(*stated)


CAMPAIGNS: tuple[Column[CampaignSummary], ...] = (
    words("name", "campaign", attrgetter("name")),
    words("state", "state", attrgetter("state_in_words")),
    words("model", "model", lambda row: row.problem_summary.get("model"), drop=2),
    words("machine", "machine", _machine, drop=3),
    Column("best_tokens_per_s", "best tokens/s", attrgetter("best_tokens_per_s"), thousands),
    Column("best_mfu", "MFU", attrgetter("best_mfu"), percent, drop=3, about="of the best"),
    Column(
        "measured", "measured", lambda row: row.probes[TrialState.MEASURED], "{:,}".format, drop=1
    ),
    Column("failed", "failed", lambda row: row.probes[TrialState.FAILED], "{:,}".format, drop=2),
    Column("legal_recipes", "legal recipes", attrgetter("legal_recipes"), "{:,}".format, drop=6),
    Column(
        "node_seconds_spent",
        "spent",
        lambda row: None if row.figures == IMPORTED else row.node_seconds_spent,
        node_time,
        drop=4,
    ),
    words("strategy", "strategy", attrgetter("strategy"), drop=5),
    words("figures", "figures", attrgetter("figures"), drop=1, about="where the figures come from"),
    words("created_at", "created, UTC", attrgetter("created_at"), minute, drop=3),
    words("tags", "tags", lambda row: ", ".join(row.labels.tags) or None, drop=2),
)


def why(outcome: Outcome | None) -> str | None:
    """Return why an attempt ended as it did; None while it runs, and where that is unknown."""
    if isinstance(outcome, Failure):
        return outcome.message
    if outcome is None:
        return None
    return (
        "; ".join([*([] if outcome.ended is None else [ENDINGS[outcome.ended]]), *outcome.doubts])
        or None
    )


def expert_balance(outcome: Outcome | None) -> str | None:
    """Return how full the fullest expert, and the fullest rank, were; None where no probe recorded
    it.
    """
    recorded = outcome.telemetry if isinstance(outcome, Measurement) else None
    if recorded is None or recorded.expert_imbalance is None or recorded.rank_imbalance is None:
        return None
    of_experts, of_ranks = map(
        statistics.median, (recorded.expert_imbalance, recorded.rank_imbalance)
    )
    by = "dealt in turn" if recorded.routing == "uniform" else "by the router"
    return (
        f"tokens {by}: fullest expert {of_experts:.2f}, fullest rank {of_ranks:.2f} times the mean"
    )


def _why_and_balance(outcome: Outcome | None) -> str | None:
    return "; ".join(filter(None, (why(outcome), expert_balance(outcome)))) or None


def _measurement(outcome: Outcome | None) -> Measurement | None:
    return outcome if isinstance(outcome, Measurement) else None


def _ending(outcome: Outcome | None, state: str) -> str:
    return outcome.kind.value if isinstance(outcome, Failure) else state


TRIALS: tuple[Column[TrialOutcome], ...] = (
    Column("number", "trial", attrgetter("trial.number")),
    RECIPE_ID.of(attrgetter("trial")),
    words("describe", "choices", lambda row: row.trial.recipe.describe()),
    words("ended", "outcome", lambda row: _ending(row.outcome, row.trial.state.value)),
    *(
        column.of(
            lambda row: (
                _measurement(row.outcome) if row.trial.state == TrialState.MEASURED else None
            )
        )
        for column in FIGURES
        if column.key in ("tokens_per_s", "peak_memory_bytes_max_rank")
    ),
    Column("attempts", "tries", attrgetter("attempts")),
    words("why", "why", lambda row: why(row.outcome)),
)

ATTEMPTS: tuple[Column[tuple[Appearance, ExplainedAttempt]], ...] = (
    words("campaign", "campaign", lambda row: row[0].campaign.name),
    Column("number", "attempt", lambda row: f"{row[0].trial.number}.{row[1].attempt.number}"),
    words("ended", "outcome", lambda row: _ending(row[1].outcome, row[1].attempt.state.value)),
    *(
        column.of(lambda row: _measurement(row[1].outcome))
        for column in FIGURES
        if column.key != "repeats"
    ),
    words("why", "why", lambda row: _why_and_balance(row[1].outcome)),
    words("host", "on", lambda row: row[1].provenance and row[1].provenance.host),
)
