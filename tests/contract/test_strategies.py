"""Every strategy of the registry keeps the contract of `Strategy`, and the ones that learn do
learn.
"""

from __future__ import annotations

import logging
import os
import statistics
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterable
from pathlib import Path

import pytest

from frontrunner.results.outcome import Failure, FailureKind, Measurement
from frontrunner.search.spec import ACQUISITIONS, SURROGATES, DeepHyperSettings
from frontrunner.search.strategy import STRATEGIES, Strategy, Told, make_strategy
from frontrunner.spaces.custom import CustomKnob
from frontrunner.spaces.errors import InvalidInput
from frontrunner.spaces.legality import why_illegal
from frontrunner.spaces.space import Space
from frontrunner.spaces.variants import AROUND

UNSEEDED = ("exhaustive", "guided", *AROUND)
GUIDED = ("guided", "optuna-tpe", "optuna-gp", "deephyper")


def by_name(names: Iterable[str]) -> pytest.MarkDecorator:
    """Run a test once per strategy; with `optuna-gp`, many times as slow as others, in `make
    nightly` alone.
    """
    nightly = {"optuna-gp": pytest.mark.nightly}
    cases = [pytest.param(name, marks=nightly.get(name, ())) for name in dict.fromkeys(names)]
    return pytest.mark.parametrize("name", cases)


every_strategy = by_name(STRATEGIES)


def run(strategy: Strategy, machine, trials: int) -> list[Told]:
    """Ask, probe and tell, one recipe at a time; ends early when nothing is left."""
    history: list[Told] = []
    while len(history) < trials and (asked := strategy.ask(1)):
        told = Told(recipe=asked[0], outcome=machine.probe(asked[0]))
        strategy.tell(told)
        history.append(told)
    return history


def measured(history: list[Told]) -> list[Measurement]:
    return [told.outcome for told in history if isinstance(told.outcome, Measurement)]


@every_strategy
def test_every_legal_recipe_is_proposed_once_and_then_none(name, small, machine):
    history = run(make_strategy(name, small, seed=1), machine, trials=1000)
    assert 15 <= len(small.recipes) <= 30
    assert len(history) == len(small.recipes)
    assert {told.recipe for told in history} == set(small.recipes)


@every_strategy
def test_knobs_of_the_user_s_own_are_a_dimension_like_others(name, small, machine):
    custom = {
        "channels": CustomKnob(values=(2, 4, 8.5), env="NCCL_MIN_NCHANNELS"),
        "algorithm": CustomKnob(values=("ring", "tree"), flag="--algorithm {value}"),
        "overlap": CustomKnob(values=(False, True), flag="--overlap", default=False),
    }
    space = Space(tensor_parallel=(8, 4), micro_batch_seqs=(1, 2), custom=custom)
    survey = space.survey(small.problem)
    assert len(survey.recipes) == 12 * len(
        space.with_choices(custom={}).survey(small.problem).recipes
    )
    history = run(make_strategy(name, survey, seed=1), machine, trials=1000)
    assert len(history) == len(survey.recipes)
    assert {told.recipe for told in history} == set(survey.recipes)


@every_strategy
def test_batches_are_of_different_recipes_and_only_the_last_is_short(name, small, machine):
    strategy, seen, left = make_strategy(name, small, seed=2), set(), len(small.recipes)
    while batch := strategy.ask(4):
        assert len(set(batch)) == len(batch) == min(4, left)
        assert seen.isdisjoint(batch)
        seen.update(batch)
        left -= len(batch)
        for recipe in batch[1:]:  # the first of each batch stays without an outcome
            strategy.tell(Told(recipe=recipe, outcome=machine.probe(recipe)))
    assert seen == set(small.recipes)
    assert strategy.ask(4) == []


@every_strategy
def test_proposals_without_any_news_differ(name, landscape, machine):
    strategy = make_strategy(name, landscape, seed=3)
    run(strategy, machine, trials=16)
    alone, together = [strategy.ask(1)[0] for _ in range(4)], strategy.ask(4)
    assert len({*alone, *together}) == 8


@every_strategy
def test_proposals_are_legal_and_of_the_space(name, landscape, machine):
    for told in run(make_strategy(name, landscape, seed=4), machine, trials=25):
        assert why_illegal(told.recipe, landscape.problem) is None
        assert told.recipe in landscape.recipes


@every_strategy
def test_the_same_seed_and_outcomes_give_the_same_proposals(name, landscape, machine):
    one, other = (run(make_strategy(name, landscape, seed=5), machine, trials=18) for _ in range(2))
    assert one == other


# The seed of guided orders only what its predictions cannot tell apart;
# tests/unit/test_guided_strategy.py has that.
@pytest.mark.parametrize("name", [name for name in STRATEGIES if name not in UNSEEDED])
def test_another_seed_gives_other_proposals(name, landscape, machine):
    one, other = (
        run(make_strategy(name, landscape, seed=seed), machine, trials=5) for seed in (6, 7)
    )
    assert one != other


@pytest.mark.nightly
def test_proposals_do_not_hang_on_the_order_of_hashes():
    program = Path(__file__).parent / "proposals.py"
    answers = []
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [sys.executable, "-P", program],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        answers.append(done.stdout.splitlines())
    assert len(answers[0]) == 14 * len(STRATEGIES)
    assert answers[0] == answers[1]


@every_strategy
def test_a_rebuilt_strategy_goes_on_without_repeating(name, small, machine):
    before = run(make_strategy(name, small, seed=8), machine, trials=13)
    rebuilt = make_strategy(name, small, seed=8)
    for told in before:
        rebuilt.tell(told)
    after = run(rebuilt, machine, trials=1000)
    recipes = [told.recipe for told in before + after]
    assert len(recipes) == len(small.recipes)
    assert set(recipes) == set(small.recipes)


@every_strategy
def test_strategies_rebuilt_alike_propose_alike(name, landscape, machine):
    history = run(make_strategy(name, landscape, seed=9), machine, trials=15)
    proposals = []
    for _ in range(2):
        rebuilt = make_strategy(name, landscape, seed=9)
        for told in history:
            rebuilt.tell(told)
        proposals.append(rebuilt.ask(3))
    assert proposals[0] == proposals[1]


@every_strategy
def test_a_recipe_told_by_others_is_not_proposed(name, small, machine, stranger):
    strategy = make_strategy(name, small, seed=12)
    for recipe in (small.recipes[0], small.recipes[7], stranger):
        strategy.tell(Told(recipe=recipe, outcome=machine.probe(recipe)))
    proposed = {told.recipe for told in run(strategy, machine, trials=1000)}
    assert proposed == set(small.recipes) - {small.recipes[0], small.recipes[7]}


@every_strategy
def test_a_second_outcome_of_a_recipe_is_taken(name, landscape, machine):
    strategy = make_strategy(name, landscape, seed=13)
    for told in run(strategy, machine, trials=12):
        strategy.tell(told)
    assert len(run(strategy, machine, trials=3)) == 3


@every_strategy
@pytest.mark.parametrize("kind", [FailureKind.CRASHED, FailureKind.LOST])
def test_a_machine_on_which_all_fails_ends_no_search(name, kind, small):
    strategy = make_strategy(name, small, seed=14)
    for _ in small.recipes:
        (recipe,) = strategy.ask(1)
        strategy.tell(Told(recipe=recipe, outcome=Failure(kind=kind, message="no")))
    assert strategy.ask(1) == []


@every_strategy
def test_equal_outcomes_end_no_search(name, small, flat):
    assert len(run(make_strategy(name, small, seed=15), flat, trials=1000)) == len(small.recipes)


@every_strategy
def test_a_single_legal_recipe_is_proposed(name, single):
    strategy = make_strategy(name, single, seed=16)
    assert strategy.ask(1) == list(single.recipes)
    assert len(single.recipes) == 1
    assert strategy.ask(1) == []


@every_strategy
def test_nothing_legal_gives_no_proposal(name, barren):
    assert barren.recipes == ()
    assert make_strategy(name, barren, seed=17).ask(2) == []


@every_strategy
def test_a_strategy_leaves_the_process_as_it_was(
    name, landscape, machine, capfd, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    handlers, filters = list(logging.getLogger().handlers), list(warnings.filters)
    threads = set(threading.enumerate())
    run(make_strategy(name, landscape, seed=18), machine, trials=14)
    assert capfd.readouterr() == ("", "")
    assert list(tmp_path.iterdir()) == []
    assert logging.getLogger().handlers == handlers
    assert warnings.filters == filters
    assert set(threading.enumerate()) <= threads


def best_of(history: list[Told]) -> float:
    return max(measurement.tokens_per_s for measurement in measured(history))


LEARN_FAILURES = ("guided", "optuna-gp", "optuna-nsga2", "deephyper")


@by_name((*GUIDED, *LEARN_FAILURES))
def test_searches_find_faster_recipes_than_chance_and_fail_less(name, landscape, machine):
    """Two runs serve both questions: those of Gaussian processes take most of this file's time."""
    histories = [run(make_strategy(name, landscape, seed), machine, trials=30) for seed in range(2)]
    if name in GUIDED:
        by_chance = [
            run(make_strategy("random", landscape, seed), machine, trials=30) for seed in range(200)
        ]
        assert statistics.fmean(map(best_of, histories)) >= statistics.fmean(
            map(best_of, by_chance)
        )
    if name in LEARN_FAILURES:
        failing = sum(isinstance(machine.probe(recipe), Failure) for recipe in landscape.recipes)
        failing /= len(landscape.recipes)
        assert 0.25 <= failing <= 0.4
        last = [told.outcome for history in histories for told in history[-12:]]
        assert sum(isinstance(outcome, Failure) for outcome in last) / len(last) < 0.8 * failing


def dominated_area(history: list[Told], machine) -> float:
    """The area, in TFLOPS x GiB, below the front and left of the machine's memory limit."""
    front = sorted(
        (m.peak_memory_bytes_max_rank / 2**30, m.model_tflops_per_device) for m in measured(history)
    )
    edges = [memory for memory, _ in front[1:]] + [machine.memory_gib]
    area, best = 0.0, 0.0
    for (memory, tflops), edge in zip(front, edges, strict=True):
        best = max(best, tflops)
        area += best * (edge - memory)
    return area


@pytest.mark.system
def test_nsga2_finds_a_better_front_of_speed_and_memory_than_chance(landscape, machine):
    areas = {
        name: statistics.fmean(
            dominated_area(run(make_strategy(name, landscape, seed), machine, trials=60), machine)
            for seed in range(12)
        )
        for name in ("optuna-nsga2", "random")
    }
    assert areas["optuna-nsga2"] > 1.03 * areas["random"]


def test_an_unknown_strategy_is_refused_with_the_nearest_name(single):
    with pytest.raises(InvalidInput, match="dephyper") as refusal:
        make_strategy("dephyper", single, seed=0)
    assert "deephyper" in (refusal.value.hint or "")


@pytest.mark.parametrize("surrogate", SURROGATES)
@pytest.mark.parametrize("acquisition", ACQUISITIONS)
def test_deephyper_searches_by_each_surrogate_and_acquisition(
    surrogate, acquisition, small, machine
):
    if surrogate == "gaussian-process" and acquisition.endswith("d"):
        with pytest.raises(
            InvalidInput, match=rf"search\.deephyper\.acquisition = \"{acquisition}\": expected"
        ):
            DeepHyperSettings(surrogate=surrogate, acquisition=acquisition)
        return
    settings = DeepHyperSettings(
        surrogate=surrogate, acquisition=acquisition, initial_measurements=3
    )
    strategy = make_strategy("deephyper", small, seed=1, settings=settings)
    assert len({told.recipe for told in run(strategy, machine, trials=9)}) == 9
