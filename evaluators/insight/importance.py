"""Which knobs the measured speed depends on, by three methods over the same recipes.

PED-ANOVA (arXiv 2304.10255) and fANOVA (Hutter et al. 2014) as Optuna computes them, and SHAP values of a forest of
trees, as in the Frontier study (arXiv 2312.12705).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from frontrunner.evaluators.insight.collected import Collected, Missing
from frontrunner.evaluators.insight.knobs import Knob, knobs, shown
from frontrunner.results.ranking import RankedRecipe

if TYPE_CHECKING:
    from optuna.importance import BaseImportanceEvaluator
    from sklearn.ensemble import RandomForestRegressor

FEWEST_RECIPES = 20
"""Assumed: PED-ANOVA wants five recipes among the best (its documentation), a quarter of these."""
BEST_AT_LEAST = 5
BEST_SHARE = 0.1
"""PED-ANOVA asks what the best tenth has in common, or the best five where a tenth is fewer."""
TREES = 100
MOST_WEIGHED = 400
"""Of more recipes an even selection from the ranking is weighed: trees over all of 1,200 took half a minute."""
FOLDS = 5
SEED = 0
"""Of the forests: the same campaign always gives the same figures."""
Matrix = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Importance:
    """Shares of 1 by method and knob. `methods` maps a method's name to a share for each knob, in their order."""

    knobs: tuple[Knob, ...]
    methods: Mapping[str, tuple[float, ...]]
    recipes: int
    best_share: float


@dataclass(frozen=True, kw_only=True)
class ShapValues:
    """What each knob's value adds to a recipe's speed, in the forest's eyes.

    `effects` has a row for each recipe, fastest first, and a column for each knob: the factor on tokens/s, less 1.
    `explained` is the share of variance of log tokens/s that forests explain of recipes held back (R2 over `FOLDS`
    folds); the values say nothing where it is not well above 0.
    """

    knobs: tuple[Knob, ...]
    recipes: tuple[RankedRecipe, ...]
    effects: tuple[tuple[float, ...], ...]
    explained: float

    @property
    def mean_effects(self) -> tuple[float, ...]:
        """Mean absolute effect of each knob."""
        return tuple(float(value) for value in np.abs(np.array(self.effects)).mean(axis=0))


def importance(collected: Collected) -> Importance | Missing:
    """Optuna's two methods over the measured recipes."""
    found = _varied(collected)
    if isinstance(found, Missing):
        return found
    ranking = _weighed(collected)
    best_share = max(BEST_SHARE, BEST_AT_LEAST / len(ranking))
    methods = {"PED-ANOVA": _ped_anova(found, ranking, best_share)}
    if find_spec("sklearn") is not None:
        methods["fANOVA"] = _fanova(found, ranking)
    return Importance(knobs=found, methods=methods, recipes=len(ranking), best_share=best_share)


def shap_values(collected: Collected) -> ShapValues | Missing:
    """SHAP values of a forest over the measured recipes."""
    found = _varied(collected)
    if isinstance(found, Missing):
        return found
    absent = [name for name, module in {"shap": "shap", "scikit-learn": "sklearn"}.items() if find_spec(module) is None]
    if absent:
        return Missing(reason=f"SHAP values need {' and '.join(absent)}: pip install 'frontrunner[report]'.")
    ranking = _weighed(collected)
    places = np.array([[knob.place(row.recipe) for knob in found] for row in ranking], dtype=np.float64)
    speeds = np.log([row.standing.tokens_per_s for row in ranking])
    effects = _shap(places, speeds)
    return ShapValues(
        knobs=found,
        recipes=tuple(ranking),
        effects=tuple(tuple(row) for row in np.expm1(effects).tolist()),
        explained=_explained(places, speeds),
    )


def _weighed(collected: Collected) -> Sequence[RankedRecipe]:
    """The measured recipes, or an even selection from the ranking where there are more than `MOST_WEIGHED`."""
    return collected.ranking[:: -(-len(collected.ranking) // MOST_WEIGHED)]


def _varied(collected: Collected) -> tuple[Knob, ...] | Missing:
    """The knobs to weigh; why not, where there are too few measurements or nothing varies."""
    measured = len(collected.ranking)
    if measured < FEWEST_RECIPES:
        return Missing(reason=f"Importance needs at least {FEWEST_RECIPES} measured recipes; there are {measured}.")
    if collected.ranking[0].standing.tokens_per_s == collected.ranking[-1].standing.tokens_per_s:
        return Missing(reason="Every measured recipe has the same speed: there is nothing to explain.")
    found = knobs(collected.survey, [row.recipe for row in collected.ranking])
    return found or Missing(reason="The measured recipes differ in no knob of the space.")


def _ped_anova(varied: Sequence[Knob], ranking: Sequence[RankedRecipe], best_share: float) -> tuple[float, ...]:
    from optuna.importance import PedAnovaImportanceEvaluator

    return _by_optuna(varied, ranking, PedAnovaImportanceEvaluator(target_quantile=best_share))


def _fanova(varied: Sequence[Knob], ranking: Sequence[RankedRecipe]) -> tuple[float, ...]:
    from optuna.importance import FanovaImportanceEvaluator

    return _by_optuna(varied, ranking, FanovaImportanceEvaluator(seed=SEED))


def _by_optuna(
    varied: Sequence[Knob], ranking: Sequence[RankedRecipe], evaluator: BaseImportanceEvaluator
) -> tuple[float, ...]:
    import optuna
    from optuna.distributions import BaseDistribution, CategoricalDistribution

    choices: dict[str, BaseDistribution] = {
        knob.name: CategoricalDistribution([shown(value) for value in knob.values]) for knob in varied
    }
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize")
    optuna.logging.set_verbosity(before)
    for row in ranking:
        params = {knob.name: shown(knob.values[knob.place(row.recipe)]) for knob in varied}
        speed = row.standing.tokens_per_s
        study.add_trial(optuna.trial.create_trial(params=params, distributions=choices, value=speed))
    shares = optuna.importance.get_param_importances(study, evaluator=evaluator)
    return tuple(float(shares[knob.name]) for knob in varied)


def _forest() -> RandomForestRegressor:
    from sklearn.ensemble import RandomForestRegressor

    return RandomForestRegressor(n_estimators=TREES, min_samples_leaf=2, random_state=SEED)


def _shap(places: Matrix, speeds: Matrix) -> Matrix:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # importing shap warns of optional parts that it lacks
        import shap

    explained = shap.TreeExplainer(_forest().fit(places, speeds)).shap_values(places)
    return np.asarray(explained, dtype=np.float64)


def _explained(places: Matrix, speeds: Matrix) -> float:
    """1 - squared error of held-back recipes over the variance of all."""
    from sklearn.model_selection import KFold, cross_val_predict

    folds = KFold(FOLDS, shuffle=True, random_state=SEED)
    guessed = cross_val_predict(_forest(), places, speeds, cv=folds)
    return 1.0 - float(np.sum((guessed - speeds) ** 2) / np.sum((speeds - speeds.mean()) ** 2))
