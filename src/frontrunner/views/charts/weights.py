"""Charts of what speed depends on: the importance of knobs, and what their values add."""

from __future__ import annotations

from collections.abc import Sequence

from frontrunner.evaluators.insight.importance import Importance, ShapValues
from frontrunner.evaluators.insight.knobs import shown
from frontrunner.text import percent
from frontrunner.views.charts.chart import BLUE, ORANGE, Axis, Chart, Panel, Series, Table, shades
from frontrunner.views.charts.landscape import hover

COLOURS = (BLUE, ORANGE, "#59a14f")
JITTER = 0.32
"""Points of one knob spread over this share of a row's height on each side."""


def importance_chart(found: Importance) -> Chart:
    """A group of bars for each knob, a bar a method."""
    count = len(found.methods)
    width = 0.8 / count
    series = [
        Series(
            kind="bars",
            x=tuple(place + (number - (count - 1) / 2) * width for place in range(len(found.knobs))),
            y=tuple(100 * share for share in shares),
            size=width,
            name=method,
            colour=COLOURS[number],
        )
        for number, (method, shares) in enumerate(found.methods.items())
    ]
    top = max(zip(next(iter(found.methods.values())), found.knobs, strict=True), key=lambda pair: pair[0])[1]
    remarks = () if "fANOVA" in found.methods else ("fANOVA needs scikit-learn: pip install 'frontrunner[report]'.",)
    return Chart(
        reading=(
            f"PED-ANOVA asks which knobs the best {percent(found.best_share, 0)} of {found.recipes} measured recipes "
            f"agree on ({top.label} first of all); fANOVA how much of the variance of tokens/s a knob alone explains. "
            "Where they differ, a knob that moves the average does not decide who is best."
        ),
        remarks=remarks,
        panels=(
            Panel(
                x=Axis(label="", categories=tuple(knob.label for knob in found.knobs)),
                y=Axis(label="share, %", from_zero=True),
                series=tuple(series),
            ),
        ),
        table=Table(
            header=("knob", *found.methods),
            rows=tuple(
                (knob.label, *(percent(shares[place]) for shares in found.methods.values()))
                for place, knob in enumerate(found.knobs)
            ),
        ),
    )


def shap_chart(found: ShapValues) -> Chart:
    """A point for each recipe and knob: what the knob's value adds to the recipe's speed."""
    order = sorted(range(len(found.knobs)), key=lambda place: found.mean_effects[place])
    series = []
    for height, column in enumerate(order):
        knob = found.knobs[column]
        effects = [100 * row[column] for row in found.effects]
        places = [float(knob.place(row.recipe)) for row in found.recipes]
        series.append(
            Series(
                kind="points",
                x=tuple(effects),
                y=tuple(height + JITTER * offset for offset in _spread(effects)),
                size=7.0,
                shades=shades(places),
                hover=tuple(
                    f"{knob.label} = {shown(knob.values[int(place)])}<br>{hover(row)}"
                    for place, row in zip(places, found.recipes, strict=True)
                ),
            )
        )
    trust = f"The forest explains {percent(found.explained, 0)} of the variance of recipes held back"
    weak = ": too little to trust these values." if found.explained < 0.5 else "."
    return Chart(
        reading=(
            "Each point is a recipe: right of zero, its value of the knob makes it faster than the average recipe, "
            "left slower. Red points have the knob's last value, blue its first. " + trust + weak
        ),
        panels=(
            Panel(
                x=Axis(label="effect on tokens/s, %"),
                y=Axis(label="", categories=tuple(found.knobs[column].label for column in order)),
                series=tuple(series),
            ),
        ),
        table=Table(
            header=("knob", "values, first to last", "mean effect on tokens/s"),
            rows=tuple(
                (
                    found.knobs[column].label,
                    ", ".join(map(shown, found.knobs[column].values)),
                    percent(found.mean_effects[column]),
                )
                for column in reversed(order)
            ),
        ),
    )


def _spread(values: Sequence[float]) -> list[float]:
    """An offset from -1 to 1 for each value, such that neighbors on the axis stand apart; always the same."""
    ordered = sorted(range(len(values)), key=lambda place: values[place])
    offsets = [0.0] * len(values)
    for rank, place in enumerate(ordered):
        offsets[place] = ((rank * 0.618034) % 1.0) * 2 - 1  # the golden ratio spreads any run of ranks evenly
    return offsets
