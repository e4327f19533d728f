"""The strategy `deephyper`: centralized Bayesian optimization over a forest of random trees.

DeepHyper takes its candidates from a sampling function, which here gives it the open recipes only:
every point that it ranks is legal and untried. The search keeps no files; telling the stored
outcomes again rebuilds it.
"""

from __future__ import annotations

import math
from functools import cached_property
from pathlib import Path

import numpy as np
from deephyper.hpo import CBO, HpProblem

from frontrunner.results.outcome import Failure, Measurement
from frontrunner.search.spec import SURROGATES, DeepHyperSettings
from frontrunner.search.strategies.candidates import Learner
from frontrunner.spaces.recipe import Choice
from frontrunner.spaces.space import Survey

ACQUISITION = {
    "max_total_failures": -1,  # else the 100th failure raises
    "filter_duplicated": False,  # the samples differ, and a forgotten recipe may come again
    "outliers_iqr_factor": math.inf,  # clipping also logs, and sets up the root logger
}

UNUSED = Path(__file__).parent
"""DeepHyper needs an existing folder, and writes nothing to it for ask and tell."""

Configuration = dict[str, Choice]


class DeepHyperStrategy(Learner):
    """Chooses by a model of the logarithm of tokens/s; fitted once per ask."""

    def __init__(
        self, survey: Survey, seed: int, settings: DeepHyperSettings | None = None
    ) -> None:
        super().__init__(survey, seed)
        self._seed, self._settings = seed, settings or DeepHyperSettings()
        self._shuffle = np.random.default_rng(seed)
        self._untold: list[tuple[Configuration, float | str]] = []

    def _choose(self, count: int) -> list[int]:
        if self._untold:
            self._search.tell(self._untold)
            self._untold = []
        configurations = self._search.ask(count)
        return list(
            dict.fromkeys(map(self._open_row, configurations))
        )  # the batch may repeat itself

    def _open_row(self, configuration: Configuration) -> int:
        """Return the row of a proposal, or the nearest open one: without news DeepHyper repeats its
        last proposal.
        """
        codes = self._candidates.codes_of(configuration)
        row = self._candidates.open_row_at(codes)
        return self._candidates.nearest_open(codes) if row is None else row

    @cached_property
    def _search(self) -> CBO:
        problem = HpProblem(seed=self._seed)
        for dimension in self._candidates.dimensions:
            values = range(len(dimension.values)) if dimension.is_ordered else dimension.values
            problem.add(list(values), dimension.name)  # numbers are taken as ordered, words are not

        # A function, since DeepHyper copies the problem in depth: a bound method with all that it
        # is bound to.
        def sample(size: int) -> list[Configuration]:
            # In random order: DeepHyper's first proposals are the first of these.
            rows = self._shuffle.permutation(self._candidates.open_rows())[:size]
            return [self._candidates.parameters(row) for row in rows]

        problem.set_sampling_fn(sample)
        own = self._settings
        is_bound = own.acquisition.startswith("UCB")
        return CBO(
            problem,
            random_state=self._seed,
            log_dir=str(UNUSED),
            checkpoint_history_to_csv=False,
            surrogate_model=SURROGATES[own.surrogate],
            acq_func=own.acquisition,
            acq_func_kwargs={"kappa": own.kappa, "xi": own.xi},
            n_initial_points=own.initial_measurements,
            acq_optimizer="sampling",
            acq_optimizer_kwargs={**ACQUISITION, "filter_failures": own.failures},
            multi_point_strategy=f"q{own.acquisition}" if is_bound else "cl_max",
        )

    def _learn_measurement(self, row: int, measurement: Measurement) -> None:
        self._untold.append((self._candidates.parameters(row), math.log(measurement.tokens_per_s)))

    def _learn_failure(self, row: int, failure: Failure) -> None:
        self._untold.append((self._candidates.parameters(row), f"F_{failure.kind}"))
