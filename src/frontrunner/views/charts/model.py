"""Charts that lean on the analytic model: predicted against measured, and sensitivity around the best recipe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from frontrunner.evaluators.insight.predicted import Compared, Predicted
from frontrunner.evaluators.insight.sensitivity import Curve, Point, Sensitivity, Source
from frontrunner.text import gib, percent, thousands
from frontrunner.views.charts.chart import BLUE, GREY, ORANGE, RED, Axis, Chart, Panel, Series, Table, even_columns
from frontrunner.views.charts.landscape import GIB, hover

MOST_COLUMNS = 4
"""Knobs beside one another."""


@dataclass(frozen=True, kw_only=True)
class Mark:
    """How one kind of point of a sensitivity curve looks."""

    colour: str
    symbol: str
    size: float = 9.0
    hollow: bool = False


def predicted_chart(found: Predicted) -> Chart:
    """Speed and memory: the model's figure over the measured one, with the line of a perfect model."""
    order = found.order_agreement
    fits = found.fits
    said = (
        f"Over {len(found.recipes)} measured recipes the model's tokens/s are off by "
        f"{percent(found.mean_speed_error, 0)} on average (it says to expect "
        f"{percent(found.expected_error, 0)}), its peak memory by {percent(found.mean_memory_error, 0)}."
    )
    if order is not None:
        said += f" The order agrees with a rank correlation of {order:.2f}."
    failed = fits.fits_and_out_of_memory + fits.too_large_and_out_of_memory
    remarks = [f"{remark[:1].upper()}{remark[1:]}." for remark in found.remarks]
    if failed:
        remarks.append(
            f"Of {failed} recipes that ran out of memory the model had called {fits.too_large_and_out_of_memory} too "
            f"large; of {len(found.recipes)} that ran, {fits.too_large_and_ran}."
        )
    if found.not_modelled:
        remarks.append(f"{found.not_modelled} measured recipes are unknown to the formulas and left out.")
    return Chart(
        reading=said,
        remarks=tuple(remarks),
        panels=(
            _against("tokens/s", found.recipes, *_speeds(found.recipes)),
            _against("peak memory, GiB", found.recipes, *_sizes(found.recipes)),
        ),
        columns=2,
        table=Table(
            header=("recipe", "choices", "tokens/s", "predicted", "error", "peak GiB", "predicted", "error"),
            rows=tuple(_compared(row) for row in found.recipes),
        ),
    )


def _speeds(rows: Sequence[Compared]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    return tuple(row.measured.standing.tokens_per_s for row in rows), tuple(row.predicted_tokens_per_s for row in rows)


def _sizes(rows: Sequence[Compared]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    return (
        tuple(row.measured.standing.peak_memory_bytes_max_rank / GIB for row in rows),
        tuple(row.predicted_memory_bytes / GIB for row in rows),
    )


def _against(what: str, rows: Sequence[Compared], measured: tuple[float, ...], predicted: tuple[float, ...]) -> Panel:
    end = max(*measured, *predicted)
    return Panel(
        title=what,
        x=Axis(label="measured", from_zero=True),
        y=Axis(label="predicted", from_zero=True),
        series=(
            Series(kind="line", x=(0.0, end), y=(0.0, end), name="equal", colour=GREY, dashed=True),
            Series(
                kind="points",
                x=measured,
                y=predicted,
                name="recipe",
                hover=tuple(hover(row.measured) for row in rows),
            ),
        ),
    )


def _compared(row: Compared) -> tuple[str, ...]:
    standing = row.measured.standing
    return (
        row.measured.recipe_id,
        row.measured.recipe.describe(),
        thousands(standing.tokens_per_s),
        thousands(row.predicted_tokens_per_s),
        f"{100 * row.speed_error:+.0f} %",
        gib(standing.peak_memory_bytes_max_rank),
        gib(row.predicted_memory_bytes),
        f"{100 * row.memory_error:+.0f} %",
    )


def sensitivity_chart(found: Sensitivity) -> Chart:
    """A panel a knob: tokens/s of the best recipe with the knob at each of its values."""
    follows = (
        " Accumulation follows from the fixed global batch and the micro-batch." if found.accumulation_follows else ""
    )
    return Chart(
        reading=(
            f"One knob at a time around {found.best_id} ({found.best.describe()}), which reaches "
            f"{thousands(found.best_tokens_per_s)} tokens/s. Filled points were measured; hollow ones are the model's "
            f"ratio to the best, times what that reached.{follows}"
        ),
        remarks=_alone(found),
        panels=tuple(_curve(curve) for curve in found.curves),
        columns=even_columns(len(found.curves), at_most=MOST_COLUMNS),
        table=Table(
            header=("knob", "value", "rests on", "tokens/s", "note"),
            rows=tuple(
                (curve.label, *_point(point)) for curve in (*found.curves, *found.fixed) for point in curve.points
            ),
        ),
    )


def _alone(found: Sensitivity) -> tuple[str, ...]:
    """Which knobs cannot be moved alone."""
    names = ", ".join(curve.label for curve in found.fixed)
    return (f"Not drawn, since no other value is legal while the rest stays: {names}.",) if names else ()


def _point(point: Point) -> tuple[str, ...]:
    speed = "-" if point.tokens_per_s is None else thousands(point.tokens_per_s)
    note = "the best" if point.is_best else point.note
    return point.label, point.source.value, speed, note


MARKS: dict[str, Mark] = {
    "measured": Mark(colour=BLUE, symbol="circle"),
    "the best": Mark(colour=ORANGE, symbol="star", size=13.0),
    "estimated": Mark(colour=BLUE, symbol="circle", hollow=True),
    "estimated not to fit": Mark(colour=RED, symbol="circle", hollow=True),
    "failed": Mark(colour=RED, symbol="x"),
    "unknown to the model": Mark(colour=GREY, symbol="diamond", hollow=True),
    "no legal recipe": Mark(colour=GREY, symbol="cross"),
}


def _mark_name(point: Point) -> str:
    """Which of `MARKS` a point has."""
    if point.is_best:
        return "the best"
    if point.source is Source.ESTIMATED and point.note:
        return "estimated not to fit"
    words = {Source.ILLEGAL: "no legal recipe", Source.UNKNOWN: "unknown to the model"}
    return words.get(point.source, point.source.value)


def _curve(curve: Curve) -> Panel:
    places = list(enumerate(curve.points))
    known = [(x, point.tokens_per_s) for x, point in places if point.tokens_per_s is not None]
    joined = Series(kind="line", x=tuple(x for x, _ in known), y=tuple(y for _, y in known), colour=GREY, dashed=True)
    series = [joined]
    for name, mark in MARKS.items():
        marked = [(x, point) for x, point in places if _mark_name(point) == name]
        if marked:
            series.append(
                Series(
                    kind="points",
                    x=tuple(float(x) for x, _ in marked),
                    y=tuple(point.tokens_per_s or 0.0 for _, point in marked),
                    name=name,
                    colour=mark.colour,
                    symbol=mark.symbol,
                    size=mark.size,
                    hollow=mark.hollow,
                    hover=tuple(f"{curve.label} = {point.label}<br>{point.note or name}" for _, point in marked),
                )
            )
    return Panel(
        title=curve.label,
        x=Axis(label="", categories=tuple(point.label for point in curve.points)),
        y=Axis(label="tokens/s", from_zero=True),
        series=tuple(series),
    )
