"""Charts that use the analytic model: predicted against measured, and sensitivity around the best recipe."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from frontrunner.evaluators.analytic.accuracy_bounds import trust_in
from frontrunner.evaluators.analytic.estimates import Estimate, estimate_many, not_modelled
from frontrunner.results.outcome import FailureKind
from frontrunner.results.ranking import RankedRecipe
from frontrunner.spaces.legality import Reason, why_illegal
from frontrunner.spaces.recipe import DIMENSIONS, Choice, Recipe
from frontrunner.spaces.space import recipe_at
from frontrunner.text import gib, percent, thousands
from frontrunner.views.charts.data import (
    GIB,
    NOTHING_MEASURED,
    Chart,
    Collected,
    Json,
    Missing,
    shown,
    table,
)
from frontrunner.views.charts.marks import (
    BAR,
    BLUE,
    CROSS,
    GRAY,
    ORANGE,
    RED,
    STAR,
    layer,
    name,
    number,
    recipe_fields,
    tooltip,
    values,
)

FEWEST_FOR_ORDER = 5
"""Assumed: with fewer recipes the agreement of two orders says nothing."""


def estimates(recipes: Sequence[Recipe], collected: Collected) -> dict[Recipe, Estimate]:
    """Return the estimates of those recipes that the formulas know."""
    known = [recipe for recipe in recipes if not_modelled(recipe) is None]
    return dict(zip(known, estimate_many(known, collected.problem), strict=True)) if known else {}


@dataclass(frozen=True, kw_only=True)
class Compared:
    """One measured recipe with its estimate; errors are predicted over measured, less 1."""

    measured: RankedRecipe
    predicted: Estimate

    @property
    def speed_error(self) -> float:
        """Error of tokens/s: above 0 the model is too hopeful."""
        return self.predicted.tokens_per_s / self.measured.standing.tokens_per_s - 1.0

    @property
    def memory_error(self) -> float:
        """Error of the peak memory of the fullest rank."""
        return self.predicted.peak_memory_bytes / self.measured.standing.peak_memory_bytes_max_rank - 1.0


def predicted(collected: Collected) -> Chart | Missing:
    """Draw the model's speed and memory over the measured ones, with the line of a perfect model."""
    if not collected.ranking:
        return NOTHING_MEASURED
    found = estimates([row.recipe for row in collected.ranking], collected)
    if not found:
        return Missing(reason="The formulas know none of the measured recipes.")
    compared = [Compared(measured=row, predicted=found[row.recipe]) for row in collected.ranking if row.recipe in found]
    trust = trust_in(list(found), collected.problem)
    speed, memory = (
        statistics.fmean(map(abs, errors))
        for errors in ([row.speed_error for row in compared], [row.memory_error for row in compared])
    )
    order = order_agreement(compared)
    agreement = "" if order is None else f" The order agrees with a rank correlation of {order:.2f}."
    return Chart(
        reading=(
            f"Over {len(compared)} measured recipes the model's tokens/s are off by {percent(speed, 0)} on average "
            f"(it says to expect {percent(trust.expected_error, 0)}), its peak memory by {percent(memory, 0)}."
            f"{agreement}"
        ),
        remarks=(
            *(f"{remark[:1].upper()}{remark[1:]}." for remark in trust.remarks),
            *_out_of_memory_remark(collected, compared),
            *_unknown_remark(len(collected.ranking) - len(compared)),
        ),
        spec=_predicted_spec(compared),
        table=table(
            compared,
            ("recipe", lambda row: row.measured.recipe_id),
            ("choices", lambda row: row.measured.recipe.describe()),
            ("tokens/s", lambda row: thousands(row.measured.standing.tokens_per_s)),
            ("predicted", lambda row: thousands(row.predicted.tokens_per_s)),
            ("error", lambda row: f"{100 * row.speed_error:+.0f} %"),
            ("peak GiB", lambda row: gib(row.measured.standing.peak_memory_bytes_max_rank)),
            ("predicted", lambda row: gib(row.predicted.peak_memory_bytes)),
            ("error", lambda row: f"{100 * row.memory_error:+.0f} %"),
        ),
    )


def order_agreement(compared: Sequence[Compared]) -> float | None:
    """Return Spearman's rank correlation of predicted and measured speed.

    None for fewer than `FEWEST_FOR_ORDER` recipes, and where one of the two does not vary.
    """
    guessed = [row.predicted.tokens_per_s for row in compared]
    found = [row.measured.standing.tokens_per_s for row in compared]
    if len(compared) < FEWEST_FOR_ORDER or len(set(guessed)) == 1 or len(set(found)) == 1:
        return None
    from scipy.stats import rankdata

    return statistics.correlation(rankdata(guessed).tolist(), rankdata(found).tolist())


def _out_of_memory_remark(collected: Collected, compared: Sequence[Compared]) -> Iterator[str]:
    """State how the memory estimates judged the recipes that ran, and those that ran out of memory."""
    failed = [
        recipe for recipe, failure in collected.final_failures.items() if failure.kind is FailureKind.OUT_OF_MEMORY
    ]
    judged = estimates(failed, collected).values()
    if judged:
        yield (
            f"Of {len(judged)} recipes that ran out of memory the model had called "
            f"{sum(not found.fits for found in judged)} too large; of {len(compared)} that ran, "
            f"{sum(not row.predicted.fits for row in compared)}."
        )


def _unknown_remark(unknown: int) -> Iterator[str]:
    if unknown:
        yield f"{unknown} measured recipes are unknown to the formulas and left out."


def _predicted_spec(compared: Sequence[Compared]) -> Json:
    rows = [
        {
            **recipe_fields(row.measured),
            "tokens/s": row.measured.standing.tokens_per_s,
            "predicted tokens/s": row.predicted.tokens_per_s,
            "GiB": row.measured.standing.peak_memory_bytes_max_rank / GIB,
            "predicted GiB": row.predicted.peak_memory_bytes / GIB,
        }
        for row in compared
    ]
    return {
        "data": values(rows),
        "hconcat": [_against("tokens/s", "tokens/s", rows), _against("peak memory, GiB", "GiB", rows)],
        "usermeta": {"least": 420, "margin": 85},
    }


def _against(title: str, unit: str, rows: Sequence[Json]) -> Json:
    end = max(max(row[unit], row[f"predicted {unit}"]) for row in rows)
    hints = tooltip("recipe", "choices", numbers={unit: unit, f"predicted {unit}": f"predicted {unit}"})
    ends = [{unit: at, f"predicted {unit}": at} for at in (0, end)]
    return {
        "title": title,
        "encoding": {"x": number(unit, "measured"), "y": number(f"predicted {unit}", "predicted")},
        "layer": [
            layer("line", {}, rows=ends, strokeDash=[4, 4], strokeWidth=1.5, color=GRAY),
            layer("point", {"tooltip": hints}, filled=True, size=55, color=BLUE),
        ],
    }


FIRST = ("tensor_parallel", "pipeline_parallel", "micro_batch_seqs", "accumulation")
"""The knobs that the Frontier study varies (arXiv 2312.12705), in its order; the space's others follow."""
FAILED, ILLEGAL, TOO_LARGE, UNKNOWN = "failed", "no legal recipe", "estimated not to fit", "unknown to the model"
SOURCES: dict[str, tuple[str, str, bool]] = {
    "measured": (BLUE, "circle", True),
    "the best": (ORANGE, STAR, True),
    "estimated": (BLUE, "circle", False),
    TOO_LARGE: (RED, "circle", False),
    FAILED: (RED, CROSS, True),
    UNKNOWN: (GRAY, "diamond", False),
    ILLEGAL: (GRAY, BAR, True),
}
"""What a point of a curve rests on: its color, its symbol, and whether that is filled."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """The best recipe with one knob at `value`.

    `source` is one of `SOURCES`. `tokens_per_s` is None for what failed, is illegal, or is unknown to the formulas;
    `note` then names the reason. An estimate is the model's ratio to its own estimate of the best recipe, times the
    measured speed of that: the ratio cancels an error of the model that all recipes share.
    """

    value: Choice
    source: str
    tokens_per_s: float | None = None
    note: str = ""


def sensitivity(collected: Collected) -> Chart | Missing:
    """Draw a panel per knob: tokens/s of the best recipe with that knob at each of its values.

    The other knobs stay as the best recipe has them, and what follows from them moves along: data parallelism follows
    from the devices, and accumulation from the global batch if that is fixed.
    """
    if not collected.ranking:
        return NOTHING_MEASURED
    dimensions = collected.survey.dimensions
    varied = [name for name, choices in dimensions.items() if len(choices) > 1]
    if not varied:
        return Missing(reason="The space has one value for each knob: there is nothing to vary.")
    ordered = [name for name in FIRST if name in varied] + [name for name in varied if name not in FIRST]
    curves = {knob: tuple(curve(knob, collected)) for knob in ordered}
    movable = {knob: points for knob, points in curves.items() if _can_move(points)}
    if not movable:
        return Missing(reason="No knob can be moved alone: with one value changed, no recipe is legal.")
    fixed = ", ".join(DIMENSIONS[knob].label for knob in curves if knob not in movable)
    best = collected.ranking[0]
    follows = (
        "" if "accumulation" in dimensions else " Accumulation follows from the fixed global batch and the micro-batch."
    )
    return Chart(
        reading=(
            f"One knob at a time around {best.recipe_id} ({best.recipe.describe()}), which reaches "
            f"{thousands(best.standing.tokens_per_s)} tokens/s. Filled points were measured; hollow ones are the "
            f"model's ratio to the best, times what that reached.{follows}"
        ),
        remarks=(f"Not drawn, since no other value is legal while the rest stays: {fixed}.",) if fixed else (),
        spec=_sensitivity_spec(movable),
        table=table(
            _sensitivity_rows({knob: curves[knob] for knob in sorted(curves, key=lambda knob: knob not in movable)}),
            *(("knob", "knob"), ("value", "value"), ("rests on", "source")),
            *(("tokens/s", "tokens_per_s"), ("note", "note")),
        ),
    )


def _can_move(points: Sequence[Point]) -> bool:
    return any(point.source not in (ILLEGAL, "the best") for point in points)


def curve(knob: str, collected: Collected) -> Iterator[Point]:
    """Return a point for each value of the space, in their order; numbers ascend."""
    best = collected.ranking[0]
    variants = dict(_variants(knob, collected))
    known = estimates([best.recipe, *(found for found in variants.values() if isinstance(found, Recipe))], collected)
    measured = {row.recipe: row.standing.tokens_per_s for row in collected.ranking}
    failures = collected.final_failures
    for value, found in variants.items():
        if isinstance(found, Reason):
            yield Point(value=value, source=ILLEGAL, note=found.text)
        elif found in measured:
            source = "the best" if found == best.recipe else "measured"
            yield Point(value=value, source=source, tokens_per_s=measured[found])
        elif found in failures:
            yield Point(value=value, source=FAILED, note=failures[found].kind.value)
        elif found in known and best.recipe in known:
            ratio = known[found].tokens_per_s / known[best.recipe].tokens_per_s
            source = "estimated" if known[found].fits else TOO_LARGE
            yield Point(value=value, source=source, tokens_per_s=best.standing.tokens_per_s * ratio)
        else:
            yield Point(value=value, source=UNKNOWN)


def _variants(knob: str, collected: Collected) -> Iterator[tuple[Choice, Recipe | Reason]]:
    """Return the best recipe with each value of the space, or why it is illegal; skip values that change nothing."""
    best, dimensions = collected.ranking[0].recipe, collected.survey.dimensions
    own = DIMENSIONS[knob].of(best)
    choices = list(dimensions[knob]) if isinstance(own, str) else sorted(dimensions[knob])
    for value in choices:
        choice = {name: DIMENSIONS[name].of(best) for name in dimensions} | {knob: value}
        if choice["schedule"] == "none":
            choice["schedule"] = dimensions["schedule"][0]
        found = recipe_at(choice, collected.problem)
        if isinstance(found, Recipe):
            found = why_illegal(found, collected.problem) or found
        if value == own or found != best:
            yield value, found


def _sensitivity_rows(curves: dict[str, tuple[Point, ...]]) -> list[Json]:
    return [
        {
            "knob": DIMENSIONS[knob].label,
            "value": shown(point.value),
            "place": place,
            "tokens_per_s": point.tokens_per_s,
            "drawn": point.tokens_per_s or 0,
            "source": point.source,
            "note": point.note,
        }
        for knob, points in curves.items()
        for place, point in enumerate(points)
    ]


def _sensitivity_spec(curves: dict[str, tuple[Point, ...]]) -> Json:
    rows = _sensitivity_rows(curves)
    used = [source for source in SOURCES if any(row["source"] == source for row in rows)]
    colors, shapes, _ = zip(*(SOURCES[source] for source in used), strict=True)
    fills = [SOURCES[source][0] if SOURCES[source][2] else "transparent" for source in used]
    look: Json = {
        channel: name("source", scale={"domain": used, "range": list(found)})
        for channel, found in {"stroke": colors, "shape": shapes, "fill": fills}.items()
    }
    look["tooltip"] = tooltip("knob", "value", "source", "note", numbers={"tokens_per_s": "tokens/s"})
    axis = {"labelAngle": 0, "labelOverlap": True, "grid": False}
    labels = [DIMENSIONS[knob].label for knob in curves]
    return {
        "data": values(rows),
        "facet": name("knob", sort=labels, header={"title": None, "labelFontWeight": "bold", "labelFontSize": 12.5}),
        "columns": 4,
        "resolve": {"scale": {"x": "independent"}},
        "usermeta": {"panels": len(labels), "least": 230, "margin": 52},
        "spec": {
            "height": 170,
            "encoding": {"x": name("value", sort={"field": "place"}, axis=axis), "y": number("drawn", "tokens/s")},
            "layer": [
                layer("line", {}, where="isValid(datum.tokens_per_s)", strokeDash=[3, 3], strokeWidth=1.5, color=GRAY),
                layer("point", look, size=75, strokeWidth=1.5),
            ],
        },
    }
