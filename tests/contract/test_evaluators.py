"""What evaluators that compute their outcomes promise. Those that run programs are held to the same
in test_runs.py, and those that look outcomes up in tests/unit/test_table_lookup.py.
"""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from frontrunner.evaluators.analytic.estimates import estimate_many
from frontrunner.evaluators.analytic.simulated import simulate
from frontrunner.evaluators.protocol import Evaluator, Finished, ProbeSetup
from frontrunner.evaluators.registry import make_evaluator
from frontrunner.evaluators.runs.run_folder import RunFolder
from frontrunner.results.outcome import Failure, FailureKind, Measurement
from frontrunner.results.pruning import names_itself
from frontrunner.spaces.errors import InvalidInput
from support.campaigns import order, setup_of, tiny_recipe, wait_for

RECIPES = (
    tiny_recipe(),
    tiny_recipe(pipeline_parallel=2, schedule="1f1b", accumulation=4),
    tiny_recipe(tensor_parallel=2, accumulation=4),
)


@pytest.fixture
def setup(tmp_path: Path) -> ProbeSetup:
    return setup_of(tmp_path)


@pytest.fixture
def evaluator(setup: ProbeSetup) -> Iterator[Evaluator]:
    evaluator = make_evaluator("simulated", setup)
    yield evaluator
    evaluator.close()


def collect(evaluator: Evaluator, count: int) -> list[Finished]:
    found: list[Finished] = []
    wait_for(lambda: found.extend(evaluator.finished(0.25)) or len(found) >= count)
    return found


def test_every_order_ends_in_one_outcome_that_is_on_disk(
    evaluator: Evaluator, setup: ProbeSetup
) -> None:
    orders = [order(setup, recipe, f"{number:05d}.1") for number, recipe in enumerate(RECIPES)]
    for one in orders:  # all at a time
        evaluator.start(one)
    waiting = {one.token: one for one in orders}
    while waiting:
        for finished in collect(evaluator, 1):
            ended = waiting.pop(finished.token)  # a KeyError would be a second outcome
            stored = json.loads((ended.run_folder / "outcome.json").read_text())
            assert stored["kind"] == "measurement"
            assert names_itself(ended.run_folder), "or it could not be pruned"
            assert isinstance(finished.outcome, Measurement)
            assert RunFolder(ended.run_folder).outcome() == finished.outcome
            assert len(finished.outcome.step_times_s) == setup.probe.measured_steps
            peaks = finished.outcome.peak_memory_bytes
            assert len(peaks) in (1, ended.recipe.pipeline_parallel), "one in all, or of each stage"
            assert finished.outcome.tokens_per_step == 8 * 32
    assert evaluator.finished(0.0) == []
    assert evaluator.progress(orders[0].token) is None


def test_a_failure_is_on_disk_too(tmp_path: Path) -> None:
    setup = setup_of(tmp_path, cluster={"memory_gib_per_device": 0.0005})
    evaluator = make_evaluator("simulated", setup)
    one = order(setup)
    evaluator.start(one)
    (finished,) = collect(evaluator, 1)
    evaluator.close()
    assert isinstance(finished.outcome, Failure)
    assert finished.outcome.kind is FailureKind.OUT_OF_MEMORY
    assert RunFolder(one.run_folder).outcome() == finished.outcome


def test_an_outcome_is_harvested_as_it_was_returned_and_for_its_order_alone(
    evaluator: Evaluator, setup: ProbeSetup
) -> None:
    one, other = order(setup), order(setup, token="00002.1")
    evaluator.start(one)
    (finished,) = collect(evaluator, 1)
    assert evaluator.harvest(one) == finished.outcome
    other.run_folder.mkdir(parents=True)
    shutil.copy(one.run_folder / "outcome.json", other.run_folder)
    assert evaluator.harvest(other) is None


def test_an_unknown_evaluator_is_named() -> None:
    with pytest.raises(InvalidInput, match="evaluator"):
        make_evaluator("prob", setup_of(Path()))


def test_simulated_steps_lie_evenly_within_a_hundredth_of_what_its_formula_gives(
    setup: ProbeSetup,
) -> None:
    """The step of the formula is the first one's; the noise is the recipe's and the seed's own."""
    five = replace(setup, probe=replace(setup.probe, measured_steps=5))
    noises = set()
    for seed in range(20):
        found = simulate(RECIPES[0], replace(five, seed=seed))
        assert isinstance(found, Measurement)
        off = [time_s / found.first_step_time_s - 1 for time_s in found.step_times_s]
        assert len(off) == 5
        assert sorted(off)[2] == 0
        assert sum(off) == pytest.approx(0, abs=1e-12)
        assert max(off) == pytest.approx(-min(off))
        assert max(off) > 0
        noises.add(max(off))
    assert len(noises) == 20
    assert 0.008 < max(noises) <= 0.01


def test_simulated_memory_is_the_formulas_peak(setup: ProbeSetup) -> None:
    """Of every recipe, since pictures show both beside each other."""
    for recipe, estimate in zip(RECIPES, estimate_many(RECIPES, setup.problem), strict=True):
        found = simulate(recipe, setup)
        assert isinstance(found, Measurement)
        assert set(found.peak_memory_bytes) == {estimate.peak_memory_bytes}
