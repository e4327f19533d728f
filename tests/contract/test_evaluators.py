"""What every evaluator promises, for each of them."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from frontrunner.evaluators.analytic.estimates import estimate_many
from frontrunner.evaluators.analytic.simulated import simulate
from frontrunner.evaluators.nodes.settings import DispatchSettings
from frontrunner.evaluators.protocol import Evaluator, Finished, ProbeSetup
from frontrunner.evaluators.registry import EVALUATORS, make_evaluator
from frontrunner.evaluators.runs.run_folder import RunFolder
from frontrunner.results.outcome import Failure, FailureKind, Measurement
from frontrunner.results.pruning import names_itself
from frontrunner.spaces.errors import InvalidInput
from support.campaigns import is_alive, order, processes_of, setup_of, tiny_recipe, wait_for

RECIPES = (
    tiny_recipe(),
    tiny_recipe(pipeline_parallel=2, schedule="1f1b", accumulation=4),
    tiny_recipe(tensor_parallel=2, accumulation=4),
)

LIVE = [name for name in EVALUATORS if name not in ("table", "command")]
"""Those that answer for any recipe by themselves; the others are held to this in
test_table_lookup.py and test_command_probes.py.
"""

PARSL = pytest.param("parsl", marks=pytest.mark.system)
"""The training probe over Parsl, with this machine for its allocation."""


def made(name: str, setup: ProbeSetup) -> Evaluator:
    if name == "parsl":
        return make_evaluator(
            "probe", replace(setup, dispatch=DispatchSettings(backend="allocation"))
        )
    return make_evaluator(name, setup)


@pytest.fixture
def setup(tmp_path: Path) -> ProbeSetup:
    return setup_of(tmp_path)


@pytest.fixture(params=[*LIVE, PARSL])
def evaluator(request: pytest.FixtureRequest, setup: ProbeSetup) -> Iterator[Evaluator]:
    evaluator = made(request.param, setup)
    yield evaluator
    evaluator.close()


def collect(evaluator: Evaluator, count: int, timeout_s: float = 600.0) -> list[Finished]:
    found: list[Finished] = []

    def enough() -> bool:
        found.extend(evaluator.finished(0.25))
        return len(found) >= count

    wait_for(enough, timeout_s)
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


@pytest.mark.parametrize("name", [*LIVE, PARSL])
def test_a_failure_is_on_disk_too(name: str, tmp_path: Path) -> None:
    setup = setup_of(tmp_path, cluster={"memory_gib_per_device": 0.0005})
    evaluator = made(name, setup)
    one = order(setup, token=f"{name}.1")
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


def test_nothing_is_harvested_where_nothing_was_finished(
    evaluator: Evaluator, setup: ProbeSetup
) -> None:
    one = order(setup, token="never-started")
    assert evaluator.harvest(one) is None
    one.run_folder.mkdir(parents=True)
    (one.run_folder / "outcome.json").write_text('{"kind": "measurement", "outco')
    assert evaluator.harvest(one) is None


def test_a_harvest_removes_what_was_killed_in_writing(
    evaluator: Evaluator, setup: ProbeSetup
) -> None:
    one = order(setup)
    one.run_folder.mkdir(parents=True)
    for name in (".outcome.json.4711", ".job.json.12", ".of-a-trainer", "rank-0.log"):
        (one.run_folder / name).touch()
    assert evaluator.harvest(one) is None
    assert {path.name for path in one.run_folder.iterdir()} == {".of-a-trainer", "rank-0.log"}


def test_a_result_whose_driver_died_before_judging_it_is_harvested(setup: ProbeSetup) -> None:
    evaluator = make_evaluator("probe", setup)
    one = order(setup)
    evaluator.start(one)
    (finished,) = collect(evaluator, 1)
    (one.run_folder / "outcome.json").unlink()  # as if the driver had been killed a moment earlier
    assert names_itself(one.run_folder), "by the job alone, as that of a lost attempt"
    found = evaluator.harvest(one)
    evaluator.close()
    assert isinstance(found, Measurement)
    assert isinstance(finished.outcome, Measurement)
    assert found.step_times_s == finished.outcome.step_times_s
    assert sum(found.step_times_s) < found.node_seconds
    assert RunFolder(one.run_folder).outcome() == found


def test_closing_ends_running_probes_and_every_process(tmp_path: Path) -> None:
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    setup = setup_of(tmp_path, probe={"measured_steps": 100_000})
    evaluator = make_evaluator("probe", setup)
    evaluator.start(order(setup))

    def is_stepping() -> bool:
        assert evaluator.finished(0.05) == []
        progress = evaluator.progress("00001.1")
        return progress is not None and progress.phase == "stepping" and progress.steps_done > 0

    wait_for(is_stepping)
    started = [p for p in psutil.Process().children(recursive=True) if p.pid not in before]
    assert len(started) == 3, "the fork server and two ranks"
    evaluator.close()
    wait_for(lambda: not any(map(is_alive, started)))
    assert evaluator.progress("gone") is None
    assert not [p for p in processes_of(psutil.Process().pid) if p.pid not in before]


def test_closing_at_once_after_starting_leaves_nothing(tmp_path: Path) -> None:
    setup = setup_of(tmp_path)
    evaluator = make_evaluator("probe", setup)
    evaluator.start(order(setup))  # returns before the server has imported torch
    evaluator.close()
    wait_for(lambda: not processes_of(psutil.Process().pid))


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
