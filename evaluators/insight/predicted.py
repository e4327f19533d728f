"""The analytic model's estimates beside what was measured: speed, memory, and who it thought would not fit."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.stats import rankdata

from frontrunner.evaluators.analytic.accuracy_bounds import trust_in
from frontrunner.evaluators.analytic.estimates import Estimate, estimate_many, not_modelled
from frontrunner.evaluators.insight.collected import Collected, Missing
from frontrunner.evaluators.insight.landscape import NOTHING_MEASURED
from frontrunner.results.outcome import FailureKind
from frontrunner.results.ranking import RankedRecipe
from frontrunner.spaces.recipe import Recipe

FEWEST_FOR_ORDER = 5
"""Assumed: with fewer recipes than this the agreement of two orders says nothing."""


@dataclass(frozen=True, kw_only=True)
class Compared:
    """One measured recipe beside its estimate; figures are tokens/s and bytes of the rank that needs most."""

    measured: RankedRecipe
    predicted_tokens_per_s: float
    predicted_memory_bytes: int

    @property
    def speed_error(self) -> float:
        """Predicted over measured tokens/s, less 1: above 0 the model is too hopeful."""
        return self.predicted_tokens_per_s / self.measured.standing.tokens_per_s - 1.0

    @property
    def memory_error(self) -> float:
        """Predicted over measured peak memory, less 1."""
        return self.predicted_memory_bytes / self.measured.standing.peak_memory_bytes_max_rank - 1.0


@dataclass(frozen=True, kw_only=True)
class Fits:
    """How the memory estimates told what fits: counts of recipes by what was predicted and what happened."""

    fits_and_ran: int
    fits_and_out_of_memory: int
    too_large_and_ran: int
    too_large_and_out_of_memory: int


@dataclass(frozen=True, kw_only=True)
class Predicted:
    """The comparison. `expected_error` and `remarks` are what the model says of itself.

    `not_modelled` counts the measured recipes that the formulas do not know.
    """

    recipes: tuple[Compared, ...]
    fits: Fits
    expected_error: float
    remarks: tuple[str, ...]
    not_modelled: int

    @property
    def mean_speed_error(self) -> float:
        """Mean of the absolute values of `speed_error`."""
        return statistics.fmean(abs(row.speed_error) for row in self.recipes)

    @property
    def mean_memory_error(self) -> float:
        """Mean of the absolute values of `memory_error`."""
        return statistics.fmean(abs(row.memory_error) for row in self.recipes)

    @property
    def order_agreement(self) -> float | None:
        """Spearman's rank correlation of predicted and measured speed.

        None for fewer than `FEWEST_FOR_ORDER` recipes, and where one of the two does not vary.
        """
        if len(self.recipes) < FEWEST_FOR_ORDER:
            return None
        guessed = [row.predicted_tokens_per_s for row in self.recipes]
        found = [row.measured.standing.tokens_per_s for row in self.recipes]
        if len(set(guessed)) == 1 or len(set(found)) == 1:
            return None
        return statistics.correlation(rankdata(guessed).tolist(), rankdata(found).tolist())


def predicted(collected: Collected) -> Predicted | Missing:
    """Every measured recipe that the formulas know beside its estimate."""
    known = [row for row in collected.ranking if not_modelled(row.recipe) is None]
    if not collected.ranking:
        return NOTHING_MEASURED
    if not known:
        return Missing(reason="The formulas know none of the measured recipes.")
    out_of_memory = [
        recipe
        for recipe, failure in collected.final_failures.items()
        if failure.kind is FailureKind.OUT_OF_MEMORY and not_modelled(recipe) is None
    ]
    recipes = [row.recipe for row in known]
    ran = estimate_many(recipes, collected.problem)
    compared = [
        Compared(
            measured=row, predicted_tokens_per_s=found.tokens_per_s, predicted_memory_bytes=found.peak_memory_bytes
        )
        for row, found in zip(known, ran, strict=True)
    ]
    trust = trust_in(recipes, collected.problem)
    return Predicted(
        recipes=tuple(compared),
        fits=_fits(ran, estimate_many(out_of_memory, collected.problem) if out_of_memory else []),
        expected_error=trust.expected_error,
        remarks=trust.remarks,
        not_modelled=len(collected.ranking) - len(known),
    )


def predicted_speeds(recipes: Sequence[Recipe], collected: Collected) -> dict[Recipe, Estimate]:
    """The estimates of those of the recipes that the formulas know."""
    known = [recipe for recipe in recipes if not_modelled(recipe) is None]
    return dict(zip(known, estimate_many(known, collected.problem), strict=True)) if known else {}


def _fits(ran: Sequence[Estimate], out_of_memory: Sequence[Estimate]) -> Fits:
    return Fits(
        fits_and_ran=sum(found.fits for found in ran),
        fits_and_out_of_memory=sum(found.fits for found in out_of_memory),
        too_large_and_ran=sum(not found.fits for found in ran),
        too_large_and_out_of_memory=sum(not found.fits for found in out_of_memory),
    )
