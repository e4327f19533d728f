"""A search for several objectives: what a front is worth, what a probe adds, and that the front
found is better.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from frontrunner import fronts
from frontrunner.evaluators.runs.measure import nodes_used
from frontrunner.results.outcome import Failure, FailureKind, Measurement, Outcome
from frontrunner.search.guided.acquisition import REFERENCE, Allowances, Front
from frontrunner.search.guided.prior import prior_of
from frontrunner.search.guided.strategy import Guided
from frontrunner.search.spec import SearchSettings
from frontrunner.search.strategy import (
    OBJECTIVES,
    SEEK_MORE,
    STRATEGIES,
    Strategy,
    Told,
    make_strategy,
)
from frontrunner.spaces.errors import InvalidInput
from frontrunner.spaces.recipe import Recipe
from support.guided import PROBLEM, SPACE

Rows = npt.NDArray[np.float64]

SURVEY = replace(SPACE, devices=(8, 16), schedule=("1f1b",)).survey(PROBLEM)
PRIOR = prior_of(SURVEY.recipes, PROBLEM)
ROW = {recipe: row for row, recipe in enumerate(SURVEY.recipes)}
NODES = np.array([nodes_used(recipe, PROBLEM) for recipe in SURVEY.recipes], dtype=np.float64)
LIMIT = PROBLEM.cluster.memory_bytes_per_device
SPEED = np.exp(
    PRIOR.log_speed - 0.5 * np.array([recipe.tensor_parallel == 1 for recipe in SURVEY.recipes])
)
MORE = np.array([1.15 if recipe.recompute == "none" else 0.95 for recipe in SURVEY.recipes])
FILL, HELD = np.exp(PRIOR.log_fill) * MORE, np.exp(PRIOR.log_allocated) * MORE
"""A machine that differs from the formulas: one rank a layer is slower, and what is kept takes
more. Peaks are measured as what tensors hold.
"""


def probe(recipe: Recipe) -> Outcome:
    row = ROW[recipe]
    if FILL[row] > 1:
        return Failure(kind=FailureKind.OUT_OF_MEMORY, message="no")
    tokens, speed = 64 * 2048, float(SPEED[row])
    return Measurement(
        step_times_s=(tokens / speed,) * 3, tokens_per_step=tokens, tokens_per_s=speed,
        model_tflops_per_device=1.0,
        hardware_tflops_per_device=1.0, mfu=None, peak_memory_bytes=(int(HELD[row] * LIMIT),),
        losses=(),
        node_seconds=1.0, build_time_s=0.0, first_step_time_s=1.0,
    )  # fmt: skip


def searched(strategy: Strategy, probes: int) -> list[int]:
    """The rows that ran among so many probes."""
    found = []
    for _ in range(probes):
        (recipe,) = strategy.ask(1)
        outcome = probe(recipe)
        strategy.tell(Told(recipe=recipe, outcome=outcome))
        found += [ROW[recipe]] if isinstance(outcome, Measurement) else []
    return found


def covered(rows: list[int], objectives: tuple[str, ...], grid: int = 400) -> float:
    """The mean best speed within each allowance of a fine grid of memory, up to a device's, and
    nodes: brute force.
    """
    memory = HELD[rows] if "memory" in objectives else np.zeros(len(rows))
    total = []
    for nodes in (1, 2) if "nodes" in objectives else (2,):
        for allowed in (np.arange(grid) + 0.5) / grid:
            speeds = SPEED[rows][(memory <= allowed) & (NODES[rows] <= nodes)]
            total.append(float(speeds.max(initial=0.0)))
    return sum(total) / len(total)


def made_up(rows: int, seed: int) -> tuple[Rows, Rows, Rows]:
    """Logarithms of speed and of memory's share, and nodes."""
    random = np.random.default_rng(seed)
    return (
        random.normal(3, 0.5, rows),
        np.log(random.uniform(0.1, 1, rows)),
        random.choice([1.0, 2.0, 4.0], rows),
    )


def by_grid(
    log_speeds: Rows, log_fill: Rows, nodes: Rows, levels: tuple[float, ...], grid: int = 4000
) -> float:
    allowed = (np.arange(grid) + 0.5) / grid * REFERENCE
    within = (np.exp(log_fill)[:, None, None] <= allowed) & (
        nodes[:, None, None] <= np.array(levels)[:, None]
    )
    return float(np.where(within, np.exp(log_speeds)[:, None, None], 0.0).max(axis=0).mean())


def test_the_words_are_those_of_the_question_about_fronts() -> None:
    assert set(OBJECTIVES) == set(fronts.OBJECTIVE_VALUES)
    assert set(SEEK_MORE) <= set(STRATEGIES)


@pytest.mark.parametrize("seed", range(3))
def test_the_worth_of_a_front_and_what_a_probe_adds_are_those_of_a_fine_grid(seed: int) -> None:
    speeds, fill, nodes = made_up(12, seed)
    allowances = Allowances(OBJECTIVES, np.array([1.0, 2.0, 4.0]))
    front = Front(allowances, speeds[:8], allowances.demands(fill[:8], nodes[:8]))
    worth = by_grid(speeds[:8], fill[:8], nodes[:8], (1, 2, 4))
    assert math.exp(front.log_worth) == pytest.approx(worth, rel=2e-3)
    sure = front.gain(speeds[8:], np.zeros(4), allowances.demands(fill[8:], nodes[8:]))
    for row in range(8, 12):
        kept = [*range(8), row]
        more = by_grid(speeds[kept], fill[kept], nodes[kept], (1, 2, 4))
        assert sure[row - 8] == pytest.approx(more / worth - 1, abs=2e-3)


def test_the_expected_gain_is_the_mean_of_the_gains_of_draws() -> None:
    speeds, fill, nodes = made_up(9, 5)
    allowances = Allowances(OBJECTIVES, np.array([1.0, 2.0, 4.0]))
    front = Front(allowances, speeds[:8], allowances.demands(fill[:8], nodes[:8]))
    demands = allowances.demands(np.repeat(fill[8:], 4000), np.repeat(nodes[8:], 4000))
    draws = speeds[8] + 0.4 * np.random.default_rng(0).standard_normal(4000)
    expected = front.gain(speeds[8:], np.array([0.4]), demands[np.array([0])])[0]
    assert expected == pytest.approx(front.gain(draws, np.zeros(4000), demands).mean(), rel=0.05)


def test_with_tokens_alone_the_worth_is_the_best_speed_and_nothing_else_counts() -> None:
    speeds, fill, nodes = made_up(9, 6)
    allowances = Allowances(("tokens",), nodes)
    demands = allowances.demands(fill, nodes)
    front = Front(allowances, speeds[:8], demands[np.arange(8)])
    assert front.log_worth == speeds[:8].max()
    best = np.zeros((1, 2))
    assert front.gain(np.array([front.log_worth + 0.1]), np.zeros(1), best)[0] == pytest.approx(
        math.expm1(0.1)
    )
    assert (allowances.reach(demands) == 1).all()


@pytest.mark.parametrize(
    "objectives", [("tokens", "memory"), ("tokens", "nodes"), ("tokens", "memory", "nodes")]
)
def test_a_search_for_a_front_covers_more_than_one_for_speed(objectives: tuple[str, ...]) -> None:
    runs = np.flatnonzero(FILL <= 1)
    whole = covered(runs.tolist(), objectives)
    shares = {
        sought: np.mean(
            [
                covered(searched(make_strategy("guided", SURVEY, seed, sought), 12), objectives)
                / whole
                for seed in range(2)
            ]
        )
        for sought in (("tokens",), objectives)
    }
    assert shares[objectives] > shares["tokens",] + 0.01
    assert shares[objectives] > 0.8


def test_a_space_that_is_not_looked_at_whole_is_searched_along_the_front(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("frontrunner.search.guided.strategy.LOOKED_AT", len(SURVEY.recipes) // 10)
    rows = searched(Guided(SURVEY, 0, objectives=OBJECTIVES), 24)
    whole = covered(np.flatnonzero(FILL <= 1).tolist(), OBJECTIVES)
    assert covered(rows, OBJECTIVES) > 0.85 * whole


def test_parallel_probes_fill_different_places_of_the_front() -> None:
    strategy = Guided(SURVEY, 0, objectives=OBJECTIVES)
    searched(strategy, 1)
    together = [ROW[recipe] for recipe in strategy.ask(5)]
    assert len({(NODES[row], round(float(FILL[row]), 1)) for row in together}) >= 4


def test_each_node_count_is_tried_although_the_formulas_find_that_more_nodes_gain_nothing() -> None:
    wrong = replace(PRIOR, log_speed=PRIOR.log_speed - 1.5 * (NODES == 2))
    strategy = Guided(SURVEY, 0, wrong, OBJECTIVES)
    rows: list[int] = []
    while len(set(NODES[rows])) < 2:
        assert strategy.outlook() is None
        rows += searched(strategy, 1)
    assert len(rows) <= 4
    assert strategy.outlook() is not None


def test_the_outlook_is_of_the_front_and_nothing_is_repeated() -> None:
    strategy = Guided(SURVEY, 0, objectives=OBJECTIVES)
    rows = searched(strategy, 4)
    early = strategy.outlook()
    rows += searched(strategy, 30)
    late = strategy.outlook()
    assert early is not None
    assert late is not None
    assert early.of_front
    assert late.expected_improvement < 0.02 < early.expected_improvement
    assert 0 <= late.gap <= late.gap_at_most
    whole = covered(np.flatnonzero(FILL <= 1).tolist(), OBJECTIVES)
    assert whole / covered(rows, OBJECTIVES) - 1 <= late.gap_at_most + 0.03
    assert strategy.worth_repeating() is None


@pytest.mark.parametrize("name", [name for name in STRATEGIES if name not in SEEK_MORE])
def test_a_strategy_that_seeks_speed_alone_refuses_more(name: str) -> None:
    with pytest.raises(
        InvalidInput, match=r'search\.objectives = \["tokens", "memory"\]: expected what'
    ) as refusal:
        SearchSettings(strategy=name, objectives=("tokens", "memory"))
    assert refusal.value.hint == "search.strategy = guided or optuna-nsga2 searches for these"
    with pytest.raises(InvalidInput, match=r"search\.objectives"):
        make_strategy(name, SURVEY, 0, ("tokens", "memory"))


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        (("tokens", "memroy"), "did you mean 'memory'?"),
        (("memory", "nodes"), 'the default is ["tokens"]'),
        (("tokens", "tokens"), 'the default is ["tokens"]'),
        ((), 'the default is ["tokens"]'),
    ],
)
def test_objectives_that_cannot_be_sought_are_named(given: tuple[str, ...], hint: str) -> None:
    with pytest.raises(InvalidInput, match=r"search\.objectives = \[") as refusal:
        SearchSettings(objectives=given)
    assert refusal.value.hint == hint


def test_nsga2_seeks_speed_and_memory() -> None:
    rows = searched(make_strategy("optuna-nsga2", SURVEY, 0, ("tokens", "memory")), 8)
    assert len(set(rows)) == len(rows) >= 4


def test_nsga2_seeks_no_nodes() -> None:
    with pytest.raises(
        InvalidInput, match=r'expected what search\.strategy = "optuna-nsga2"'
    ) as refusal:
        SearchSettings(strategy="optuna-nsga2", objectives=OBJECTIVES)
    assert refusal.value.hint == "search.strategy = guided searches for these"
