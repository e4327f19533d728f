"""Charts of why recipes are fast: the analytic model against measurements, one knob at a time, and
SHAP values of a forest, as in the Frontier study (arXiv 2312.12705).
"""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec

import numpy as np
import numpy.typing as npt

from frontrunner.evaluators.analytic.accuracy_bounds import trust_in
from frontrunner.evaluators.analytic.estimates import Estimate, estimate_many, not_modelled
from frontrunner.evaluators.analytic.variations import (
    measured_scaling,
    variations,
    varied_dimensions,
)
from frontrunner.results.outcome import FailureKind
from frontrunner.results.ranking import RankedRecipe
from frontrunner.spaces.recipe import Recipe
from frontrunner.text import counted, gib, percent, thousands
from frontrunner.views.charts import marks as vl
from frontrunner.views.charts.marks import (
    Chart,
    Collected,
    Json,
    Knob,
    Missing,
    knobs,
    shown,
    table,
)

FEWEST_FOR_ORDER = 5
"""Assumed: with fewer recipes the agreement of two orders says nothing."""


def _estimates(recipes: Sequence[Recipe], collected: Collected) -> dict[Recipe, Estimate]:
    known = [recipe for recipe in recipes if not_modelled(recipe) is None]
    return dict(zip(known, estimate_many(known, collected.problem), strict=True)) if known else {}


def predicted(collected: Collected) -> Chart | Missing:
    """Draw the model's speed and memory over the measured ones, with the line of a perfect model.

    Where the device's peak is not given, memory alone.
    """
    if not collected.ranking:
        return vl.NOTHING_MEASURED
    ranking = _even(collected)
    found = _estimates([row.recipe for row in ranking], collected)
    if not found:
        return Missing(reason="The formulas know none of the measured recipes.")
    rows: list[Json] = [
        {
            **vl.recipe_fields(row),
            "tokens/s": row.standing.tokens_per_s,
            "predicted tokens/s": found[row.recipe].tokens_per_s,
            "95 %": found[row.recipe].tokens_per_s_bounds,
            "GiB": (
                None if (peak := row.standing.peak_memory_bytes_max_rank) is None else peak / vl.GIB
            ),
            "predicted GiB": found[row.recipe].peak_memory_bytes / vl.GIB,
        }
        for row in ranking
        if row.recipe in found
    ]
    timed = [row for row in rows if row["predicted tokens/s"] is not None]
    order = order_agreement(
        *([row[key] for row in timed] for key in ("predicted tokens/s", "tokens/s"))
    )
    with_peak = [row for row in rows if row["GiB"] is not None]
    trust = trust_in(list(found), collected.problem, [one.expected_error for one in found.values()])
    if not timed and not with_peak:
        return Missing(reason=_sentence(trust.in_words()))
    off = {"tokens/s": _mean_error(timed, "tokens/s"), "GiB": _mean_error(with_peak, "GiB")}
    reading = (
        f"Over {len(timed)} measured recipes the model's tokens/s are off by {off['tokens/s']} on"
        " average"
    )
    if not timed:
        reading = (
            f"{_sentence(trust.in_words())} The model's peak memory is off by {off['GiB']} on"
            " average"
        )
    elif with_peak:
        reading += f", its peak memory by {off['GiB']}"
    if with_peak and len(with_peak) < len(rows):
        reading += f" over the {len(with_peak)} whose peak is known"
    unknown = len(ranking) - len(rows)
    failed = [
        ended for ended in collected.final_failures if ended.kind is FailureKind.OUT_OF_MEMORY
    ]
    judged = _estimates([ended.recipe for ended in vl.evenly(failed)], collected).values()
    too_large, of_those = (sum(not one.fits for one in some) for some in (judged, found.values()))
    out_of_memory = (
        f"Of {len(judged)} recipes that ran out of memory the model had called {too_large} too"
        f" large; of {len(found)} that ran, {of_those}."
    )
    bounds = [(row["tokens/s"], ends) for row in rows if (ends := row["95 %"]) is not None]
    inside = sum(low <= measured <= high for measured, (low, high) in bounds)
    within = (
        f" {inside} of {len(bounds)} are in the 95 % intervals that it states." if bounds else ""
    )
    return Chart(
        reading=(
            f"{reading}.{within}"
            + (
                ""
                if order is None
                else f" The order agrees with a rank correlation of {order:.2f}."
            )
        ),
        remarks=(
            *map(_sentence, trust.remarks),
            *([out_of_memory] if judged else ()),
            *vl.selected(
                len(ranking), collected.ranked, "measured recipes are looked at: an even selection"
            ),
            *(
                [f"{unknown} measured recipes are unknown to the formulas and left out."]
                if unknown
                else ()
            ),
        ),
        spec={
            "data": {"values": rows},
            "hconcat": [
                *([_against("tokens/s", "tokens/s", timed)] if timed else []),
                *([_against("peak memory, GiB", "GiB", with_peak)] if with_peak else []),
            ],
            "usermeta": {"least": 420, "margin": 85},
        },
        table=table(
            rows,
            *(("recipe", "recipe"), ("choices", "choices"), ("tokens/s", "tokens/s")),
            *(("predicted", "predicted tokens/s"), ("error", partial(_off, unit="tokens/s"))),
            ("peak GiB", lambda row: "-" if row["GiB"] is None else gib(row["GiB"] * vl.GIB)),
            ("predicted", lambda row: gib(row["predicted GiB"] * vl.GIB)),
            ("error", partial(_off, unit="GiB")),
        ),
    )


def _error(row: Json, unit: str) -> float:
    """Predicted over measured, less 1."""
    return float(row[f"predicted {unit}"] / row[unit] - 1)


def _off(row: Json, unit: str) -> str:
    return (
        "-"
        if None in (row[unit], row[f"predicted {unit}"])
        else f"{100 * _error(row, unit):+.0f} %"
    )


def _mean_error(rows: Sequence[Json], unit: str) -> str:
    return percent(statistics.fmean(abs(_error(row, unit)) for row in rows) if rows else None, 0)


def _sentence(words: str) -> str:
    return f"{words[:1].upper()}{words[1:]}."


def order_agreement(guessed: Sequence[float], found: Sequence[float]) -> float | None:
    """Return Spearman's rank correlation, None for fewer than `FEWEST_FOR_ORDER` recipes or
    constant values.
    """
    if len(found) < FEWEST_FOR_ORDER or len(set(guessed)) == 1 or len(set(found)) == 1:
        return None
    from scipy.stats import spearmanr

    return float(spearmanr(guessed, found).statistic)


def _against(title: str, unit: str, rows: Sequence[Json]) -> Json:
    end = max(max(row[unit], row[f"predicted {unit}"]) for row in rows)
    hints = vl.tooltip(
        "recipe", "choices", numbers={unit: unit, f"predicted {unit}": f"predicted {unit}"}
    )
    ends = [{unit: at, f"predicted {unit}": at} for at in (0, end)]
    return {
        "title": title,
        "encoding": {
            "x": vl.number(unit, "measured"),
            "y": vl.number(f"predicted {unit}", "predicted"),
        },
        "layer": [
            vl.layer("line", {}, rows=ends, strokeDash=[4, 4], strokeWidth=1.5, color=vl.GRAY),
            vl.layer("point", {"tooltip": hints}, filled=True, size=55, color=vl.BLUE),
        ],
    }


FIRST = ("tensor_parallel", "pipeline_parallel", "micro_batch_seqs", "accumulation")
"""The knobs that the Frontier study varies (arXiv 2312.12705), in its order; the space's others
follow.
"""
CENTER, ILLEGAL = "the recipe itself", "no legal recipe"
HOLLOW = "transparent"
SOURCES: dict[str, tuple[str, str, str]] = {
    "measured": (vl.BLUE, "circle", vl.BLUE),
    CENTER: (vl.ORANGE, vl.STAR, vl.ORANGE),
    "estimated": (vl.BLUE, "circle", HOLLOW),
    "estimated not to fit": (vl.RED, "circle", HOLLOW),
    "failed": (vl.RED, vl.CROSS, vl.RED),
    "unknown to the model": (vl.GRAY, "diamond", HOLLOW),
    ILLEGAL: (vl.GRAY, vl.BAR, vl.GRAY),
}


def sensitivity(collected: Collected) -> Chart | Missing:
    """Draw a panel per knob: tokens/s of the best recipe with that knob at each of its values."""
    if not collected.ranking:
        return vl.NOTHING_MEASURED
    dimensions = collected.survey.dimensions
    varied = varied_dimensions(collected.survey)
    if not varied:
        return Missing(reason="The space has one value for each knob: there is nothing to vary.")
    ordered = [name for name in FIRST if name in varied] + [
        name for name in varied if name not in FIRST
    ]
    center = collected.center
    if isinstance(center, Missing):
        return center
    curves = {
        collected.survey.dimension(knob).label: list(curve(knob, collected, center.recipe))
        for knob in ordered
    }
    drawn = {
        label: points
        for label, points in curves.items()
        if any(point["source"] not in (ILLEGAL, CENTER) for point in points)
    }
    if not drawn:
        return Missing(
            reason="No knob can be moved alone: with one value changed, no recipe is legal."
        )
    fixed = {label: points for label, points in curves.items() if label not in drawn}
    points = [point for found in drawn.values() for point in found]
    look = vl.looks(
        "source", SOURCES, (point["source"] for point in points), "stroke", "shape", "fill"
    )
    look["tooltip"] = vl.tooltip(
        "knob", "value", "source", "note", numbers={"tokens_per_s": collected.unit}
    )
    axis = {"labelAngle": 0, "labelOverlap": True, "grid": False}
    place = {
        "x": vl.name("value", sort={"field": "place"}, axis=axis),
        "y": vl.number("drawn", collected.unit),
    }
    header = {"title": None, "labelFontWeight": "bold", "labelFontSize": 12.5}
    is_known = "isValid(datum.tokens_per_s)"
    line = vl.layer("line", {}, where=is_known, strokeDash=[3, 3], strokeWidth=1.5, color=vl.GRAY)
    expected = {
        "y": vl.number("expected", collected.unit),
        "tooltip": vl.tooltip(numbers={"expected": "estimated"}),
    }
    reached = thousands(collected.rate(center.standing.tokens_per_s, center.recipe))
    follows = ""
    if "accumulation" not in dimensions:
        follows = " Accumulation follows from the fixed global batch and the micro-batch."
    return Chart(
        reading=(
            f"One knob at a time around {center.recipe_id} ({center.recipe.describe()}), which"
            f" reaches {reached} {collected.unit}. Filled points were measured; hollow ones are the"
            " model's ratio to that recipe, times what it reached, and so are the bars beside what"
            f" was measured.{follows}"
        ),
        remarks=(
            (f"Not drawn, since no other value is legal while the rest stays: {', '.join(fixed)}.",)
            if fixed
            else ()
        ),
        spec={
            "data": {"values": points},
            "facet": vl.name("knob", sort=list(drawn), header=header),
            "columns": 4,
            "resolve": {"scale": {"x": "independent"}},
            "usermeta": {"panels": len(drawn), "least": 230, "margin": 52},
            "spec": {
                "height": 170,
                "encoding": place,
                "layer": [
                    line,
                    vl.layer(
                        "tick",
                        expected,
                        where="isValid(datum.expected)",
                        thickness=2,
                        size=22,
                        color=vl.BLUE,
                    ),
                    vl.layer("point", look, size=75, strokeWidth=1.5),
                ],
            },
        },
        table=table(
            [point for points in (drawn | fixed).values() for point in points],
            *(("knob", "knob"), ("value", "value"), ("rests on", "source")),
            *((collected.unit, "tokens_per_s"), ("estimated", "expected"), ("note", "note")),
        ),
    )


def curve(knob: str, collected: Collected, center: Recipe) -> Iterator[Json]:
    """Yield a point for each value of the space; `note` is why there is no speed, or if it fits.

    An estimate is the model's ratio to its own estimate of the center, times the measured speed of
    that: the ratio cancels an error of the model that all recipes share.
    """
    label = collected.survey.dimension(knob).label
    for place, row in enumerate(
        variations(center, knob, collected.survey, collected.tried).variations
    ):
        found = row.found
        source, speed, note = "unknown to the model", row.expected_tokens_per_s, ""
        if found.illegal is not None:
            source, note = ILLEGAL, found.illegal
        elif found.tokens_per_s is not None:
            source, speed = CENTER if row.is_own else "measured", found.tokens_per_s
        elif found.outcome is not None:
            source, speed, note = "failed", None, found.outcome
        elif found.estimate is not None and not found.estimate.tokens_per_s:
            note = "no time is estimated: the device's peak is not given"
        elif found.estimate is not None:
            source, note = (
                "estimated" if found.estimate.fits else "estimated not to fit",
                found.estimate.fit,
            )
        expected = row.expected_tokens_per_s if source == "measured" else None
        if found.recipe is not None:
            speed, expected = (
                one and collected.rate(one, found.recipe) for one in (speed, expected)
            )
        point = {"knob": label, "value": shown(row.value), "place": place, "tokens_per_s": speed}
        yield point | {
            "drawn": speed or 0,
            "source": source,
            "note": note,
            "expected": expected,
        }


ON_NODES: dict[str, tuple[str, str, str]] = {
    "measured": (vl.BLUE, "circle", vl.BLUE),
    "estimated": (vl.GRAY, "circle", HOLLOW),
    "failed": (vl.RED, vl.CROSS, vl.RED),
}


def scaling(collected: Collected) -> Chart | Missing:
    """Draw tokens/s per device of one recipe over numbers of nodes, measured and estimated."""
    center = collected.around
    if center is None or len(collected.survey.dimensions["devices"]) < 2:
        why = "No recipe was scaled over nodes here: frontrunner scale RECIPE --nodes N,N does."
        return Missing(reason=why, applies=False)
    found = measured_scaling(center, collected.survey, collected.tried)
    rows: list[Json] = []
    for mode, counts in vars(found).items():
        for row in counts:
            words = {"scaling": mode, "nodes": row.nodes, "recipe": row.found.recipe_id}
            rates = {"estimated": (row.found.estimated_tokens_per_s, row.estimated_efficiency)}
            if row.found.outcome is not None:
                is_measured = row.found.tokens_per_s is not None
                rates["measured" if is_measured else "failed"] = (
                    row.found.tokens_per_s or 0.0,
                    row.efficiency,
                )
            rows += [
                words
                | {
                    "source": source,
                    "rate": rate / row.devices,
                    "tokens_per_s": rate,
                    "efficiency": efficiency,
                }
                for source, (rate, efficiency) in rates.items()
                if rate is not None
            ]
    if all(row["source"] == "estimated" for row in rows):
        return vl.NOTHING_MEASURED
    ends = [
        f"{mode} scaling keeps {percent(known[-1].efficiency, 0)} on"
        f" {counted(known[-1].nodes, 'node')}"
        for mode, counts in vars(found).items()
        if (known := [row for row in counts if row.efficiency is not None])
    ]
    fewest = next((row.nodes for row in found.strong if row.efficiency is not None), None)
    kept = (
        f" Of the tokens/s per device on {counted(fewest, 'node')}, {' and '.join(ends)}."
        if fewest
        else ""
    )
    look = vl.looks("source", ON_NODES, (row["source"] for row in rows), "stroke", "shape", "fill")
    look["tooltip"] = vl.tooltip(
        "scaling",
        "nodes",
        "source",
        "recipe",
        numbers={"tokens_per_s": "tokens/s", "efficiency": "efficiency"},
    )
    header = {
        "title": None,
        "labelFontWeight": "bold",
        "labelFontSize": 12.5,
        "labelExpr": "datum.value + ' scaling'",
    }
    place = {
        "x": vl.name("nodes", "nodes", axis={"labelAngle": 0, "grid": False}),
        "y": vl.number("rate", "tokens/s per device"),
    }
    is_blue = {
        "condition": {"test": "datum.source == 'measured'", "value": vl.BLUE},
        "value": vl.GRAY,
    }
    lines = {"detail": {"field": "source"}, "color": is_blue}
    return Chart(
        reading=(
            f"{center.describe()} with other numbers of replicas: strong scaling keeps the global"
            f" batch, weak scaling that of each replica.{kept}"
        ),
        spec={
            "data": {"values": rows},
            "facet": vl.name("scaling", header=header),
            "columns": 2,
            "usermeta": {"panels": 2, "least": 300, "margin": 60},
            "spec": {
                "height": 240,
                "encoding": place,
                "layer": [
                    vl.layer(
                        "line",
                        lines,
                        where="datum.source != 'failed'",
                        strokeWidth=1.5,
                        opacity=0.6,
                    ),
                    vl.layer("point", look, size=75, strokeWidth=1.5),
                ],
            },
        },
        table=table(
            rows,
            *(
                ("scaling", "scaling"),
                ("nodes", "nodes"),
                ("rests on", "source"),
                ("tokens/s", "tokens_per_s"),
            ),
            *(
                ("per device", "rate"),
                ("efficiency", lambda row: percent(row["efficiency"])),
                ("recipe", "recipe"),
            ),
        ),
    )


FEWEST_RECIPES = 20
"""Assumed: a forest of fewer recipes explains nothing of others."""
TREES, FOLDS = 100, 5
MOST_WEIGHED = 400
"""Of more recipes an even selection from the ranking is weighed: trees over all of 1,200 took half
a minute.
"""
SEED = 0
"""Of the forest: the same campaign always gives the same numbers."""
LOW, MIDDLE, HIGH = "#2c7fb8", "#a7a3ad", "#e0533d"
GOLDEN_RATIO = 0.618034
Matrix = npt.NDArray[np.float64]


def shap(collected: Collected) -> Chart | Missing:
    """Draw a point per recipe and knob: what the knob's value adds to the recipe's speed."""
    varied = _varied(collected)
    if isinstance(varied, Missing):
        return varied
    if find_spec("shap") is None:
        return Missing(reason="SHAP values need shap: pip install 'frontrunner[report]'.")
    ranking = _weighed(collected)
    effects, explained = shap_effects(varied, ranking)
    means = np.abs(effects).mean(axis=0)
    order = [int(place) for place in np.argsort(-means, kind="stable")]
    rows: list[Json] = []
    for knob, effect in ((varied[column], effects[:, column]) for column in order):
        ranks = np.argsort(np.argsort(effect, kind="stable"), kind="stable")
        offsets = (
            ranks * GOLDEN_RATIO
        ) % 1.0 * 2 - 1  # neighbors are spread apart, always in the same way
        rows += [
            {
                **vl.recipe_fields(row),
                "knob": knob.label,
                "value": knob.word(row.recipe),
                "effect": 100 * float(found),
                "offset": float(offset),
                "shade": knob.place(row.recipe) / (len(knob.values) - 1),
            }
            for row, found, offset in zip(ranking, effect, offsets, strict=True)
        ]
    weak = ": too little to trust these values." if explained < 0.5 else "."
    return Chart(
        reading=(
            "Each point is a recipe: right of zero, its value of the knob makes it faster than the"
            " average recipe, left slower. Red points have the knob's last value, blue its first."
            f" The forest explains {percent(explained, 0)} of the variance of recipes held"
            f" back{weak}"
        ),
        spec={
            "data": {"values": rows},
            "height": 44 * len(varied),
            "mark": {"type": "point", "filled": True, "size": 32, "opacity": 0.85},
            "encoding": {
                "y": vl.name("knob", axis={"labelFontSize": 12.5}),
                "yOffset": {
                    "field": "offset",
                    "type": "quantitative",
                    "scale": {"domain": [-1.4, 1.4]},
                },
                "x": vl.number("effect", f"effect on {collected.unit}, %"),
                "color": vl.number(
                    "shade", None, scale={"range": [LOW, MIDDLE, HIGH]}, legend=None
                ),
                "tooltip": vl.tooltip(
                    "knob", "value", "recipe", "choices", numbers={"effect": "effect, %"}
                ),
            },
        },
        table=table(
            order,
            ("knob", lambda column: varied[column].label),
            ("values, first to last", lambda column: ", ".join(map(shown, varied[column].values))),
            (f"mean effect on {collected.unit}", lambda column: percent(float(means[column]))),
        ),
    )


def _even(collected: Collected) -> list[RankedRecipe]:
    return [row for row in collected.ranking if row.recipe_id in collected.even]


def _weighed(collected: Collected) -> Sequence[RankedRecipe]:
    """Return the rows that are weighed, with what the campaign seeks in place of tokens/s."""
    rows = vl.evenly(_even(collected), MOST_WEIGHED)
    rates = [collected.rate(row.standing.tokens_per_s, row.recipe) for row in rows]
    pairs = zip(rows, rates, strict=True)
    return [replace(row, standing=replace(row.standing, tokens_per_s=rate)) for row, rate in pairs]


def _varied(collected: Collected) -> tuple[Knob, ...] | Missing:
    measured = len(collected.ranking)
    if measured < FEWEST_RECIPES:
        return Missing(
            reason=(
                f"SHAP values need at least {FEWEST_RECIPES} measured recipes; there are"
                f" {measured}."
            )
        )
    if collected.ranking[0].standing.tokens_per_s == collected.ranking[-1].standing.tokens_per_s:
        return Missing(
            reason="Every measured recipe has the same speed: there is nothing to explain."
        )
    found = knobs(collected.survey, [row.recipe for row in collected.ranking])
    return found or Missing(reason="The measured recipes differ in no knob of the space.")


def shap_effects(varied: Sequence[Knob], ranking: Sequence[RankedRecipe]) -> tuple[Matrix, float]:
    """Return the factor on tokens/s, less 1, of each recipe's value of each knob, and the R2 on
    recipes held back.

    The forest predicts the logarithm of tokens/s, in which knobs add up.
    """
    from sklearn.ensemble import RandomForestRegressor
    from sklearn.model_selection import KFold, cross_val_predict

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # importing shap warns of optional parts that it lacks
        import shap as library

    places = np.array(
        [[knob.place(row.recipe) for knob in varied] for row in ranking], dtype=np.float64
    )
    speeds = np.log([row.standing.tokens_per_s for row in ranking])
    forest = RandomForestRegressor(n_estimators=TREES, min_samples_leaf=2, random_state=SEED)
    effects = library.TreeExplainer(forest.fit(places, speeds)).shap_values(places)
    guessed = cross_val_predict(
        forest, places, speeds, cv=KFold(FOLDS, shuffle=True, random_state=SEED)
    )
    explained = 1.0 - float(np.sum((guessed - speeds) ** 2) / np.sum((speeds - speeds.mean()) ** 2))
    return np.expm1(np.asarray(effects, dtype=np.float64)), explained
