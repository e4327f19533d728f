"""What Optuna's strategies do to the library around them."""

from __future__ import annotations

import warnings

import optuna
import pytest

from frontrunner.search.strategies.optuna import gp, nsga2, tpe
from frontrunner.spaces.cluster import Cluster
from frontrunner.spaces.model import Model
from frontrunner.spaces.problem import GlobalBatch, Problem
from frontrunner.spaces.space import Space, Survey


@pytest.fixture
def survey() -> Survey:
    model = Model(name="toy", layers=4, hidden=64, heads=8, kv_heads=8, ffn_hidden=256, vocabulary=512)
    cluster = Cluster(name="toy", device="gpu", backend="cuda", nodes=1, devices_per_node=8, memory_gib_per_device=16)
    batch = GlobalBatch(minimum=32, maximum=32)
    problem = Problem(model=model, cluster=cluster, sequence_length=128, global_batch=batch)
    return Space(tensor_parallel=(1, 2, 4, 8), micro_batch_seqs=(1, 2, 4)).survey(problem)


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
