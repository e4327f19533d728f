"""Charts of what speed depends on: the importance of knobs by PED-ANOVA and fANOVA, and SHAP values of a forest.

PED-ANOVA (arXiv 2304.10255) and fANOVA (Hutter et al. 2014) are Optuna's; SHAP values are as in the Frontier study
(arXiv 2312.12705).
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from frontrunner.results.ranking import RankedRecipe
from frontrunner.text import percent
from frontrunner.views.charts.data import Chart, Collected, Json, Knob, Missing, knobs, shown, table
from frontrunner.views.charts.marks import BLUE, ORANGE, name, number, palette, recipe_fields, tooltip, values

if TYPE_CHECKING:
    from optuna.importance import BaseImportanceEvaluator

FEWEST_RECIPES = 20
"""Assumed: PED-ANOVA wants five recipes among the best (its documentation), a quarter of these."""
BEST_AT_LEAST, BEST_SHARE = 5, 0.1
"""PED-ANOVA looks at the best tenth, or at the best five if a tenth is fewer."""
TREES, FOLDS = 100, 5
MOST_WEIGHED = 400
"""Of more recipes an even selection from the ranking is weighed: trees over all of 1,200 took half a minute."""
SEED = 0
"""Of the forests: the same campaign always gives the same numbers."""
LOW, MIDDLE, HIGH = "#2c7fb8", "#a7a3ad", "#e0533d"
"""Colors of a knob's first to last value."""
GOLDEN_RATIO = 0.618034
Matrix = npt.NDArray[np.float64]


def importance(collected: Collected) -> Chart | Missing:
    """Draw a group of bars per knob, one bar per method, over the measured recipes."""
    varied = _varied(collected)
    if isinstance(varied, Missing):
        return varied
    ranking = _weighed(collected)
    best_share = max(BEST_SHARE, BEST_AT_LEAST / len(ranking))
    methods = shares(varied, ranking, best_share)
    top = varied[int(np.argmax(methods["PED-ANOVA"]))].label
    rows = [
        {"knob": knob.label, "method": method, "share": 100 * share}
        for method, found in methods.items()
        for knob, share in zip(varied, found, strict=True)
    ]
    return Chart(
        reading=(
            f"PED-ANOVA ranks knobs by how far the best {percent(best_share, 0)} of {len(ranking)} measured recipes "
            f"agree on them ({top} first of all); fANOVA by how much of the variance of tokens/s a knob alone "
            "explains. Where they differ, a knob that moves the average does not decide which recipe is best."
        ),
        spec={
            "data": values(rows),
            "height": 58 * len(varied),
            "mark": {"type": "bar"},
            "encoding": {
                "y": name("knob", axis={"grid": False, "labelFontSize": 12.5}, scale={"paddingInner": 0.35}),
                "yOffset": name("method"),
                "x": number("share", "share, %"),
                "color": palette("method", {"PED-ANOVA": BLUE, "fANOVA": ORANGE}, methods),
                "tooltip": tooltip("knob", "method", numbers={"share": "share, %"}),
            },
        },
        table=table(
            range(len(varied)),
            ("knob", lambda place: varied[place].label),
            *((method, lambda place, found=found: percent(found[place])) for method, found in methods.items()),
        ),
    )


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
        offsets = (ranks * GOLDEN_RATIO) % 1.0 * 2 - 1  # neighbors are spread apart, always in the same way
        rows += [
            {
                **recipe_fields(row),
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
            "Each point is a recipe: right of zero, its value of the knob makes it faster than the average recipe, "
            "left slower. Red points have the knob's last value, blue its first. The forest explains "
            f"{percent(explained, 0)} of the variance of recipes held back{weak}"
        ),
        spec={
            "data": values(rows),
            "height": 44 * len(varied),
            "mark": {"type": "point", "filled": True, "size": 32, "opacity": 0.85},
            "encoding": {
                "y": name("knob", axis={"labelFontSize": 12.5}),
                "yOffset": {"field": "offset", "type": "quantitative", "scale": {"domain": [-1.4, 1.4]}},
                "x": number("effect", "effect on tokens/s, %"),
                "color": number("shade", None, scale={"range": [LOW, MIDDLE, HIGH]}, legend=None),
                "tooltip": tooltip("knob", "value", "recipe", "choices", numbers={"effect": "effect, %"}),
            },
        },
        table=table(
            order,
            ("knob", lambda column: varied[column].label),
            ("values, first to last", lambda column: ", ".join(map(shown, varied[column].values))),
            ("mean effect on tokens/s", lambda column: percent(float(means[column]))),
        ),
    )


def _weighed(collected: Collected) -> Sequence[RankedRecipe]:
    """Return the measured recipes, or an even selection from the ranking of more than `MOST_WEIGHED`."""
    return collected.ranking[:: -(-len(collected.ranking) // MOST_WEIGHED)]


def _varied(collected: Collected) -> tuple[Knob, ...] | Missing:
    """Return the knobs to weigh, or why they cannot be: too few measurements, or nothing varies."""
    measured = len(collected.ranking)
    if measured < FEWEST_RECIPES:
        return Missing(reason=f"Importance needs at least {FEWEST_RECIPES} measured recipes; there are {measured}.")
    if collected.ranking[0].standing.tokens_per_s == collected.ranking[-1].standing.tokens_per_s:
        return Missing(reason="Every measured recipe has the same speed: there is nothing to explain.")
    found = knobs(collected.survey, [row.recipe for row in collected.ranking])
    return found or Missing(reason="The measured recipes differ in no knob of the space.")


def shares(varied: Sequence[Knob], ranking: Sequence[RankedRecipe], best_share: float) -> dict[str, tuple[float, ...]]:
    """Return each method's share of 1 for each knob, in their order."""
    import optuna
    from optuna.distributions import BaseDistribution, CategoricalDistribution
    from optuna.importance import FanovaImportanceEvaluator, PedAnovaImportanceEvaluator, get_param_importances

    evaluators: dict[str, BaseImportanceEvaluator] = {
        "PED-ANOVA": PedAnovaImportanceEvaluator(target_quantile=best_share),
        "fANOVA": FanovaImportanceEvaluator(seed=SEED),
    }
    choices: dict[str, BaseDistribution] = {
        knob.name: CategoricalDistribution([shown(value) for value in knob.values]) for knob in varied
    }
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize")
    optuna.logging.set_verbosity(before)
    for row in ranking:
        params = {knob.name: knob.word(row.recipe) for knob in varied}
        speed = row.standing.tokens_per_s
        study.add_trial(optuna.trial.create_trial(params=params, distributions=choices, value=speed))
    found = {method: get_param_importances(study, evaluator=one) for method, one in evaluators.items()}
    return {method: tuple(float(by_name[knob.name]) for knob in varied) for method, by_name in found.items()}


def shap_effects(varied: Sequence[Knob], ranking: Sequence[RankedRecipe]) -> tuple[Matrix, float]:
    """Return what each knob's value adds to each recipe's speed, and how far to trust it.

    A row per recipe and a column per knob: the factor on tokens/s, less 1. The forest predicts the logarithm of
    tokens/s, in which knobs add up. The second value is the share of its variance that forests explain of recipes held
    back (R2 over `FOLDS` folds).
    """
    from sklearn.ensemble import RandomForestRegressor
    from sklearn.model_selection import KFold, cross_val_predict

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # importing shap warns of optional parts that it lacks
        import shap as library

    places = np.array([[knob.place(row.recipe) for knob in varied] for row in ranking], dtype=np.float64)
    speeds = np.log([row.standing.tokens_per_s for row in ranking])
    forest = RandomForestRegressor(n_estimators=TREES, min_samples_leaf=2, random_state=SEED)
    effects = library.TreeExplainer(forest.fit(places, speeds)).shap_values(places)
    guessed = cross_val_predict(forest, places, speeds, cv=KFold(FOLDS, shuffle=True, random_state=SEED))
    explained = 1.0 - float(np.sum((guessed - speeds) ** 2) / np.sum((speeds - speeds.mean()) ** 2))
    return np.expm1(np.asarray(effects, dtype=np.float64)), explained
