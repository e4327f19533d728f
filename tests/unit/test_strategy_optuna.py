"""What Optuna's strategies do to the library around them."""

from __future__ import annotations

import warnings
from pathlib import Path

import optuna
import pytest

from frontrunner.results.store import open_store
from frontrunner.search.optuna_export import mirror_campaign
from frontrunner.search.strategies.optuna import gp, nsga2, tpe
from frontrunner.spaces.space import Space, Survey
from support.campaigns import spec_of, tiny
from support.guided import PROBLEM
from support.services import filled


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


def test_a_study_holds_the_figures_of_each_measured_recipe(tmp_path: Path) -> None:
    """8,192 tokens in 0.525 s, the middle of 0.5 and 0.55."""
    spec = spec_of(tiny())
    storage = f"sqlite:///{tmp_path / 'study.db'}"
    with open_store(str(filled(tmp_path))) as store:
        mirror_campaign(store, store.campaign("first"), spec, storage)

    trials = optuna.load_study(study_name="first", storage=storage).trials

    found = {trial.user_attrs["recipe_id"]: trial.user_attrs for trial in trials}
    of_best = found[f"{2:012x}"]
    assert of_best["step_time_s_median"] == pytest.approx(0.525)
    assert of_best["tokens_per_s"] == pytest.approx(8192 / 0.525)
    assert of_best["model_tflops_per_device"] == pytest.approx(3 / 0.525)
    assert of_best["mfu"] == pytest.approx(0.2 / 0.525)
    assert of_best["peak_memory_bytes_max_rank"] == 8_000
    assert found[f"{9:012x}"]["failure_kind"] == "crashed"
    assert "tokens_per_s" not in found[f"{9:012x}"]
