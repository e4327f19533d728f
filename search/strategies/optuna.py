"""Strategies with Optuna's samplers: TPE, a Gaussian process, and NSGA-II.

The study is in memory and rebuilt by telling. A sampler does not know which points are illegal or
taken: it draws again, and after some draws the nearest open recipe is used. Points drawn in vain
are marked as failed, which samplers ignore.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.samplers import BaseSampler, GPSampler, NSGAIISampler, TPESampler
from optuna.trial import TrialState, create_trial

from frontrunner.results.outcome import Failure, Measurement
from frontrunner.search.strategies.candidates import Learner
from frontrunner.search.strategy import TOKENS_ALONE
from frontrunner.spaces.space import Survey

POPULATION = 5
"""NSGA-II's generation. Optuna's default of 50 would make most campaigns a random search."""

_CONSTRAINT = "fails"

Direction = Literal["maximize", "minimize"]
Scores = Callable[[Measurement], tuple[float, ...]]


class OptunaStrategy(Learner):
    """Chooses by one of Optuna's samplers."""

    def __init__(
        self,
        survey: Survey,
        seed: int,
        sampler: BaseSampler,
        scores: Scores,
        directions: tuple[Direction, ...] = ("maximize",),
        draws: int = 8,
    ) -> None:
        """`scores` has one per Optuna `directions`; `draws` are those before the nearest open
        recipe is used.
        """
        super().__init__(survey, seed)
        self._scores, self._directions, self._draws = scores, directions, draws
        self._distributions: dict[str, BaseDistribution] = {
            one.name: IntDistribution(0, len(one.values) - 1)
            if one.is_ordered
            else CategoricalDistribution(one.values)
            for one in self._candidates.dimensions
        }
        self._running: dict[int, int] = {}  # row -> number of its running trial
        self._worst: tuple[float, ...] = ()
        self._lessons = 0
        with _quiet():
            self._study = optuna.create_study(directions=directions, sampler=sampler)

    def _choose(self, count: int) -> list[int]:  # noqa: ARG002 - the next draw has to see this one as running
        with _quiet():
            for _ in range(self._draws):
                trial = self._study.ask(self._distributions)
                self._study.tell(trial, state=TrialState.FAIL)
                codes = self._candidates.codes_of(trial.params)
                if (row := self._candidates.open_row_at(codes)) is not None:
                    return [row]
        return [self._candidates.nearest_open(codes)]

    def _learn_measurement(self, row: int, measurement: Measurement) -> None:
        scores = self._scores(measurement)
        worse = (min if direction == "maximize" else max for direction in self._directions)
        pairs = zip(worse, scores, self._worst or scores, strict=True)
        self._worst = tuple(choose(one, other) for choose, one, other in pairs)
        self._learn(row, scores, violation=-1.0)

    def _learn_failure(self, row: int, failure: Failure) -> None:  # noqa: ARG002 - every kind is as bad
        # Complete, with a broken constraint and the worst scores: TPE and GP ignore failed trials.
        self._learn(row, self._worst, violation=1.0)

    def _learn(self, row: int, scores: tuple[float, ...], violation: float) -> None:
        # Trials that are added rather than run have no generation, and NSGA-II would never breed
        # from them.
        generation = {NSGAIISampler._get_generation_key(): self._lessons // POPULATION}
        self._lessons += 1
        with _quiet():
            trial = create_trial(
                values=scores,
                params=self._candidates.parameters(row),
                distributions=self._distributions,
                constraints={_CONSTRAINT: violation},  # on every trial, or GP raises
                system_attrs=generation,
            )
            self._study.add_trial(trial)

    def _proposed(self, row: int) -> None:
        self._running[row] = len(self._study.get_trials(deepcopy=False))
        with _quiet():
            parameters = self._candidates.parameters(row)
            running = create_trial(
                state=TrialState.RUNNING, params=parameters, distributions=self._distributions
            )
            self._study.add_trial(running)

    def _no_longer_proposed(self, row: int) -> None:
        with _quiet():
            self._study.tell(self._running.pop(row), state=TrialState.FAIL)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence Optuna's log lines and its remarks that constraints are experimental, inside the
    block only.
    """
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(verbosity)


def _log_tokens_per_s(measurement: Measurement) -> tuple[float, ...]:
    """Return the logarithm, since what a choice does to speed is a factor: it adds up for the
    Gaussian process.
    """
    return (math.log(measurement.tokens_per_s),)


def tpe(survey: Survey, seed: int) -> OptunaStrategy:
    """Tree-structured Parzen estimators (multivariate), for the highest tokens/s."""
    return OptunaStrategy(survey, seed, TPESampler(seed=seed), _log_tokens_per_s)


def gp(survey: Survey, seed: int) -> OptunaStrategy:
    """A Gaussian process with expected improvement, for the highest tokens/s."""
    # A second draw from the same process costs as much as the first and mostly gives the same
    # point.
    sampler = GPSampler(seed=seed, warn_independent_sampling=False)
    return OptunaStrategy(survey, seed, sampler, _log_tokens_per_s, draws=1)


def nsga2(survey: Survey, seed: int, objectives: Sequence[str] = TOKENS_ALONE) -> OptunaStrategy:
    """NSGA-II, for the front of low peak memory and high model TFLOPS per device, or the rate that
    is sought.
    """
    rate = "model_tflops_per_device" if objectives == TOKENS_ALONE else "tokens_per_s"

    def scores(measured: Measurement) -> tuple[float, ...]:
        # A table that is looked up need not state the peak; the recipe ran, so it is at most the
        # device's memory.
        peak = measured.peak_memory_bytes_max_rank or survey.problem.cluster.memory_bytes_per_device
        return getattr(measured, rate), float(peak)

    sampler = NSGAIISampler(seed=seed, population_size=POPULATION)
    return OptunaStrategy(survey, seed, sampler, scores, ("maximize", "minimize"))
