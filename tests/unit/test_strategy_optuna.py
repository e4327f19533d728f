"""What Optuna's strategies do to the library around them."""

from __future__ import annotations

import warnings

import optuna
import pytest

from frontrunner.search.strategies.optuna import gp, nsga2, tpe
from frontrunner.spaces.space import Space, Survey
from support.guided import PROBLEM


@pytest.fixture
def survey() -> Survey:
    return Space(tensor_parallel=(1, 2, 4, 8), micro_batch_seqs=(1, 2, 4)).survey(PROBLEM)


@pytest.mark.parametrize("make", [tpe, gp, nsga2])
@pytest.mark.parametrize("verbosity", [optuna.logging.DEBUG, optuna.logging.WARNING])
def test_the_users_verbosity_and_warnings_stay_theirs(make, verbosity, survey):
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(verbosity)
    try:
        strategy = make(survey, 0)
        strategy.ask(2)
        assert optuna.logging.get_verbosity() == verbosity
    finally:
        optuna.logging.set_verbosity(before)
    with pytest.warns(optuna.exceptions.ExperimentalWarning):
        warnings.warn("still heard", optuna.exceptions.ExperimentalWarning, stacklevel=1)
