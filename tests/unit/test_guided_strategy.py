"""What the guided search does with what it is told: it starts at the model's best, overrules it,
forecasts, repeats.
"""

from __future__ import annotations

import math
import random
import statistics
from dataclasses import replace

import numpy as np
import pytest

from frontrunner.evaluators.analytic.codes import FRONTRUNNER
from frontrunner.evaluators.analytic.estimates import estimate_many
from frontrunner.evaluators.analytic.machine import FITTED
from frontrunner.evaluators.analytic.priors import DEVIATIONS, LEARNED
from frontrunner.results.outcome import Failure, FailureKind, Measurement, Outcome
from frontrunner.search.guided.prior import Prior, prior_of
from frontrunner.search.guided.strategy import Guided, Observations
from frontrunner.search.strategy import Evidence, Forecaster, Told
from frontrunner.spaces.cluster import ByPrecision, FittedCode, FittedConstant
from frontrunner.spaces.problem import Problem, SoftwareSettings
from frontrunner.spaces.recipe import Recipe
from frontrunner.spaces.space import Space
from support.guided import PROBLEM, SPACE, reversed_prior

SURVEY = SPACE.survey(PROBLEM)
PRIOR = prior_of(SURVEY.recipes, PROBLEM)
ROW = {recipe: row for row, recipe in enumerate(SURVEY.recipes)}
RUNS = PRIOR.log_fill < math.log(0.9)
TRUTH = PRIOR.log_speed - 0.7 * np.array([recipe.tensor_parallel == 1 for recipe in SURVEY.recipes])
"""A machine on which one rank a layer is half as fast as predicted: the model's first choices among
them.
"""
BEST = float(TRUTH[RUNS].max())


def measured(speed: float, spread: float = 0.0) -> Measurement:
    tokens = 64 * 2048
    times = tuple(tokens / speed * (1 + spread * sign) for sign in (-1, -0.5, 0, 0.5, 1))
    return Measurement(
        step_times_s=times, tokens_per_step=tokens, tokens_per_s=speed, model_tflops_per_device=1.0,
        hardware_tflops_per_device=1.0, mfu=None, peak_memory_bytes=(0,), losses=(),
        node_seconds=1.0,
        build_time_s=0.0, first_step_time_s=1.0,
    )  # fmt: skip


def probe(recipe: Recipe) -> Outcome:
    row = ROW[recipe]
    if not RUNS[row]:
        return Failure(kind=FailureKind.OUT_OF_MEMORY, message="no")
    return measured(math.exp(TRUTH[row]))


def probes_to_best(strategy: Guided, limit: int = 60) -> int:
    """Probes until one is within 5 % of the best."""
    for count in range(1, limit + 1):
        (recipe,) = strategy.ask(1)
        outcome = probe(recipe)
        strategy.tell(Told(recipe=recipe, outcome=outcome))
        if isinstance(outcome, Measurement) and outcome.tokens_per_s * 1.05 >= math.exp(BEST):
            return count
    return limit + 1


def by_chance(seeds: int = 200) -> float:
    """The mean of the probes that random order needs."""
    good = [row for row in range(len(TRUTH)) if RUNS[row] and TRUTH[row] >= BEST - math.log(1.05)]
    order = list(range(len(TRUTH)))
    found = []
    for seed in range(seeds):
        random.Random(seed).shuffle(order)
        found.append(1 + min(order.index(row) for row in good))
    return statistics.fmean(found)


def test_the_first_probe_is_the_model_s_choice_and_a_wrong_one_is_soon_overruled() -> None:
    (first,) = Guided(SURVEY, 0).ask(1)
    speeds = np.where(RUNS, PRIOR.log_speed, -np.inf)
    assert PRIOR.log_speed[ROW[first]] > speeds.max() - 0.2
    assert probes_to_best(Guided(SURVEY, 0)) <= 8 < by_chance()


def test_a_model_that_orders_backwards_costs_no_more_than_chance() -> None:
    counts = [probes_to_best(Guided(SURVEY, seed, reversed_prior(PRIOR))) for seed in range(3)]
    assert statistics.fmean(counts) <= by_chance()


def test_memory_that_the_model_refuses_is_doubted_when_the_rest_disappoints() -> None:
    """The formulas find that everything needs 1.5 times too much; the best recipe is among those
    that they refuse.
    """
    wrong = replace(PRIOR, log_fill=PRIOR.log_fill + math.log(1.5))
    assert (wrong.log_fill > 0)[np.argmax(np.where(RUNS, TRUTH, -np.inf))]
    assert probes_to_best(Guided(SURVEY, 0, wrong)) <= 15


def test_what_peaks_of_others_code_have_in_common_says_less_of_what_fits() -> None:
    """All peaks are a tenth above what tensors should hold: of our code they are, of others' they
    may count a cache.
    """
    others = replace(SURVEY, problem=replace(PROBLEM, software=SoftwareSettings(code="unknown")))
    close = [recipe for recipe in SURVEY.recipes if PRIOR.log_fill[ROW[recipe]] > math.log(0.75)]
    told = [recipe for recipe in SURVEY.recipes if PRIOR.log_fill[ROW[recipe]] < math.log(0.6)][::8]
    chances, peaks = [], []
    for survey in (SURVEY, others):
        strategy = Guided(survey, 0, PRIOR)
        for recipe in told:
            held = PROBLEM.cluster.memory_bytes_per_device * math.exp(
                PRIOR.log_allocated[ROW[recipe]]
            )
            outcome = replace(
                measured(math.exp(PRIOR.log_speed[ROW[recipe]])),
                peak_memory_bytes=(int(1.1 * held),),
            )
            strategy.tell(Told(recipe=recipe, outcome=outcome))
        found = strategy.forecasts()
        chances.append(statistics.fmean(found[recipe].chance for recipe in close))
        peaks.append(strategy.peak_memory_bytes()[told[-1]] / held)
    assert peaks == pytest.approx([1.1, 1.1], abs=0.01), "learned as they are measured"
    assert 1 - chances[1] < 0.9 * (1 - chances[0])


def test_a_space_of_which_the_formulas_know_nothing_is_searched_to_its_end() -> None:
    space = Space(
        tensor_parallel=(1, 2),
        micro_batch_seqs=(1, 2),
        sharding=("zero-3",),
        engine=("deepspeed",),
        offload=("nvme",),
    )
    cluster = replace(PROBLEM.cluster, nvme_path="/nvme")
    survey = space.survey(replace(PROBLEM, cluster=cluster))
    assert survey.recipes
    strategy = Guided(survey, 0)
    for recipe in (asked := strategy.ask(100)):
        strategy.tell(Told(recipe=recipe, outcome=measured(1000.0)))
    assert set(asked) == set(survey.recipes)


def test_the_outlook_shrinks_as_the_best_is_found_and_covers_the_true_gap() -> None:
    strategy = Guided(SURVEY, 0)
    assert isinstance(strategy, Forecaster)
    assert strategy.outlook() is None
    best, seen = 0.0, []
    for _ in range(25):
        (recipe,) = strategy.ask(1)
        outcome = probe(recipe)
        strategy.tell(Told(recipe=recipe, outcome=outcome))
        best = max(best, outcome.tokens_per_s if isinstance(outcome, Measurement) else 0.0)
        outlook = strategy.outlook()
        if outlook is not None:
            seen.append((outlook, math.exp(BEST) / best - 1))
    assert all(0 <= outlook.gap <= outlook.gap_at_most for outlook, _ in seen)
    assert sum(true <= outlook.gap_at_most + 0.01 for outlook, true in seen) >= 0.8 * len(seen)
    assert seen[-1][0].expected_improvement < 0.01 < seen[0][0].expected_improvement


def test_noise_hides_which_is_best_even_where_all_were_measured() -> None:
    ran = [(row, recipe) for row, recipe in enumerate(SURVEY.recipes) if RUNS[row]]
    two = SURVEY.keep(np.array([row for row, _ in ran[:2]]))

    def bound(spread: float) -> float:
        strategy = Guided(two, 0)
        for recipe in strategy.ask(2):
            strategy.tell(
                Told(recipe=recipe, outcome=measured(math.exp(TRUTH[ROW[recipe]]), spread))
            )
        outlook = strategy.outlook()
        assert outlook is not None
        return outlook.gap_at_most

    assert bound(0.0) == 0.0
    assert bound(0.9) > 0.1


@pytest.mark.parametrize("repeated", [False, True])
def test_a_best_that_is_known_badly_is_not_close_to_the_best_of_the_space(
    *, repeated: bool
) -> None:
    """Its own probe says so, or another recipe's repeats; the formulas, which find it best too, may
    be wrong.
    """

    def gap(noise: float) -> float:
        kept = SURVEY.keep(np.array(RUNS, dtype=bool))
        strategy, ran = Guided(kept, 0), list(kept.recipes)
        top = max(ran, key=lambda recipe: PRIOR.log_speed[ROW[recipe]])
        for recipe in ran:
            speed, spread = (
                math.exp(PRIOR.log_speed[ROW[recipe]]),
                noise * (recipe == top and not repeated),
            )
            strategy.tell(
                Told(
                    recipe=recipe, outcome=measured(speed * (1.3 if recipe == top else 1.0), spread)
                )
            )
        slowest = min(ran, key=lambda recipe: PRIOR.log_speed[ROW[recipe]])
        if repeated:
            speed = math.exp(PRIOR.log_speed[ROW[slowest]] - noise)
            strategy.tell(Told(recipe=slowest, outcome=measured(speed)))
        outlook = strategy.outlook()
        assert outlook is not None
        return outlook.gap

    assert gap(0.0) == 0.0
    assert gap(2.0) > 0.1


def test_remembered_outcomes_of_a_smaller_cluster_move_the_first_probe() -> None:
    small = replace(PROBLEM, cluster=replace(PROBLEM.cluster, nodes=1))
    space = replace(SPACE, micro_batch_seqs=(1, 2))
    known = space.survey(small)
    prior = prior_of(known.recipes, small)
    evidence = [
        Evidence(
            problem=small,
            recipe=recipe,
            outcome=measured(
                math.exp(prior.log_speed[row] - (0.7 if recipe.tensor_parallel == 1 else 0.0))
            ),
            origin="another campaign",
        )
        for row, recipe in enumerate(known.recipes)
    ]
    strategy = Guided(SURVEY, 0)
    alone = Guided(SURVEY, 0).ask(1)[0]
    strategy.remember(evidence)
    assert alone.tensor_parallel == 1
    assert strategy.ask(1)[0].tensor_parallel > 1


def test_what_a_search_learns_of_fitted_constants_is_what_their_fit_left_unknown() -> None:
    before = prior_of(SURVEY.recipes[:50], PROBLEM)
    after = prior_of(SURVEY.recipes[:50], fitted("elementwise", FRONTRUNNER.name, rows=50))
    place = list(LEARNED).index("elementwise")
    narrower = np.where(np.arange(len(LEARNED)) == place, 0.1, 1.0)
    assert before.slopes[:, place].min() > 0
    np.testing.assert_allclose(after.slopes, before.slopes * narrower, rtol=0.02, atol=1e-6)


def fitted(name: str, code: str, rows: int) -> Problem:
    """The problem on a cluster whose file has a fit of a constant to what it is, ten times as sure
    as before.
    """
    constant = FittedConstant(
        name=name, value=getattr(FITTED, name), deviation=DEVIATIONS[name] / 10
    )
    error = ByPrecision(**{PROBLEM.precision: 0.05})
    fit = FittedCode(code=code, rows=rows, problems=5, nodes=1, error=error, constants=(constant,))
    return replace(PROBLEM, cluster=replace(PROBLEM.cluster, fitted=(fit,)))


def test_a_fit_of_a_cluster_file_gives_way_to_more_outcomes_alone() -> None:
    other = replace(PROBLEM, model=PROBLEM.model.with_keys(hidden=4096, ffn_hidden=16384))
    recipes = SPACE.survey(other).recipes[::9]
    speeds = prior_of(recipes, other).log_speed - 0.3
    known = [
        Evidence(problem=other, recipe=one, outcome=measured(math.exp(speed)), origin="c")
        for one, speed in zip(recipes, speeds, strict=True)
    ]

    def fastest(problem: Problem) -> float:
        strategy = Guided(SPACE.survey(problem), 0)
        strategy.remember(known)
        return max(expected.tokens_per_s for expected in strategy.forecasts().values())

    refitted = fastest(PROBLEM)
    fewer, as_many = (
        fitted("elementwise", FRONTRUNNER.name, len(recipes) - less) for less in (1, 0)
    )
    assert fastest(fewer) == pytest.approx(refitted)
    assert fastest(as_many) != pytest.approx(refitted, rel=1e-3)


def test_outcomes_of_another_model_move_the_constants_and_another_code_s_do_not() -> None:
    """A cluster with slower links and memory than stated: what is told of one model predicts
    another, unprobed.
    """
    other = replace(PROBLEM, model=PROBLEM.model.with_keys(hidden=4096, ffn_hidden=16384))
    slower = replace(
        PROBLEM.cluster, efficiencies={"memory": 0.6, "node_links": 0.45, "network_links": 0.35}
    )
    recipes, truth = SPACE.survey(other).recipes[::9], {}
    for problem in (PROBLEM, other):
        survey = SPACE.survey(problem)
        speeds = prior_of(survey.recipes, replace(problem, cluster=slower)).log_speed
        truth[problem.model.hidden] = dict(zip(survey.recipes, speeds.tolist(), strict=True))

    def error(code: str, *, linear: bool = False) -> float:
        there = replace(other, software=replace(other.software, code=code))
        known = [
            Evidence(
                problem=there, recipe=one, outcome=measured(math.exp(truth[4096][one])), origin="c"
            )
            for one in recipes
        ]
        strategy = Guided(
            SPACE.survey(PROBLEM),
            0,
            prior_of(SPACE.survey(PROBLEM).recipes, PROBLEM) if linear else None,
        )
        strategy.remember(known)
        found = {recipe: one.tokens_per_s for recipe, one in strategy.forecasts().items()}
        return float(
            np.mean(
                [
                    abs(math.log(speed) - truth[PROBLEM.model.hidden][one])
                    for one, speed in found.items()
                ]
            )
        )

    own = error(PROBLEM.software.code)
    assert own < 0.8 * error(PROBLEM.software.code, linear=True)
    assert own < 0.8 * error("megatron-lm")


def test_a_remembered_failure_of_the_same_problem_is_not_run_into_again() -> None:
    first = Guided(SURVEY, 0).ask(1)[0]
    strategy = Guided(SURVEY, 0)
    failure = Failure(kind=FailureKind.OUT_OF_MEMORY, message="no")
    strategy.remember(
        [Evidence(problem=PROBLEM, recipe=first, outcome=failure, origin="sweep.csv")]
    )
    assert first not in strategy.ask(5)


def test_a_remembered_measurement_that_is_told_as_an_answer_counts_once() -> None:
    rng = random.Random(1)
    known = [
        (SURVEY.recipes[row], measured(math.exp(TRUTH[row] + rng.gauss(0, 0.06))))
        for row in range(0, 60, 3)
    ]
    elsewhere = replace(PROBLEM, cluster=replace(PROBLEM.cluster, name="as it was called then"))
    cold, warm, renamed = Guided(SURVEY, 0), Guided(SURVEY, 0), Guided(SURVEY, 0)
    warm.remember(
        [
            Evidence(problem=PROBLEM, recipe=one, outcome=outcome, origin="c")
            for one, outcome in known
        ]
    )
    renamed.remember(
        [
            Evidence(problem=elsewhere, recipe=one, outcome=outcome, origin="c")
            for one, outcome in known
        ]
    )
    for strategy in (cold, warm, renamed):
        for one, outcome in known:
            strategy.tell(Told(recipe=one, outcome=outcome))
    gains = [
        found.expected_improvement
        for one in (cold, warm, renamed)
        if (found := one.outlook()) is not None
    ]
    assert gains == [pytest.approx(gains[0], rel=1e-3)] * 3


@pytest.mark.parametrize(("spread", "repeats"), [(0.08, True), (0.0, False)])
def test_the_two_best_are_measured_again_where_noise_hides_their_order(
    spread: float, *, repeats: bool
) -> None:
    survey = SURVEY.keep(np.arange(3))
    strategy = Guided(survey, 0)
    for recipe, speed in zip(strategy.ask(3), (1000.0, 995.0, 700.0), strict=True):
        strategy.tell(Told(recipe=recipe, outcome=measured(speed, spread)))
    recipe = strategy.worth_repeating()
    assert (recipe is not None) == repeats
    count = 0
    while recipe is not None:
        assert recipe != survey.recipes[-1] or count == 0
        strategy.tell(Told(recipe=recipe, outcome=measured(1000.0, spread)))
        recipe, count = strategy.worth_repeating(), count + 1
        assert count <= 4


def test_a_recipe_that_failed_when_repeated_is_neither_the_best_nor_wished_for() -> None:
    strategy = Guided(SURVEY, 0)
    first, second, third = strategy.ask(3)
    for recipe, speed in ((first, 1000.0), (second, 995.0), (third, 990.0)):
        strategy.tell(Told(recipe=recipe, outcome=measured(speed, 0.3)))
    strategy.tell(Told(recipe=first, outcome=Failure(kind=FailureKind.OUT_OF_MEMORY, message="no")))
    assert strategy.worth_repeating() in (second, third)


def test_parallel_probes_spread_over_the_space() -> None:
    strategy = Guided(SURVEY, 0)
    (first,) = strategy.ask(1)
    strategy.tell(Told(recipe=first, outcome=probe(first)))
    together = strategy.ask(6)
    assert (
        len(
            {(one.tensor_parallel, one.pipeline_parallel, one.micro_batch_seqs) for one in together}
        )
        >= 3
    )


def test_priors_are_used_as_given() -> None:
    prior: Prior = replace(
        PRIOR,
        log_speed=np.where(np.arange(len(TRUTH)) == 7, 30.0, 5.0),
        log_fill=PRIOR.log_fill - 9,
    )
    assert Guided(SURVEY, 0, prior).ask(1) == [SURVEY.recipes[7]]


def test_the_seed_orders_what_the_predictions_cannot_tell_apart() -> None:
    rows = np.ones(len(SURVEY.recipes))
    alike = replace(PRIOR, log_speed=rows, log_fill=-rows, step_time_s=rows)
    firsts = {Guided(SURVEY, seed, alike).ask(1)[0] for seed in range(6)}
    assert len(firsts) > 1
    assert Guided(SURVEY, 3, alike).ask(1) == Guided(SURVEY, 3, alike).ask(1)


def test_of_a_large_space_the_best_and_an_even_selection_come_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Half of the candidates are those of the highest estimates; the rest comes when the candidates
    are used up.
    """
    monkeypatch.setattr("frontrunner.search.guided.strategy.MOST_ROWS", few := 10)
    strategy = Guided(SURVEY, 0)
    asked = strategy.ask(len(SURVEY.recipes))
    assert sorted(map(ROW.get, asked)) == list(range(len(SURVEY.recipes)))
    assert strategy.ask(1) == []
    table = estimate_many(SURVEY.recipes, PROBLEM)
    best = {SURVEY.recipes[row] for row in table.order[: few // 2].tolist()}
    assert best <= set(asked[:few])


@pytest.mark.parametrize("kind", [kind for kind in FailureKind if kind is not FailureKind.LOST])
def test_only_failures_that_may_be_a_want_of_memory_teach_it(kind: FailureKind) -> None:
    strategy, recipe = Guided(SURVEY, 0), SURVEY.recipes[int(np.argmin(np.abs(PRIOR.log_fill)))]
    before = strategy.peak_memory_bytes()[recipe]
    strategy.tell(Told(recipe=recipe, outcome=Failure(kind=kind, message="no")))
    may_be = kind in (FailureKind.OUT_OF_MEMORY, FailureKind.CRASHED, FailureKind.HUNG)
    assert (strategy.peak_memory_bytes()[recipe] > before) == may_be


def test_noise_is_of_repeats_or_else_of_each_probe() -> None:
    seen = Observations(memory_bytes=1.0)
    assert seen.noise() == 0.0
    seen.log_speeds, seen.spreads = {0: [5.0], 1: [0.0]}, {0: [0.03], 1: [0.04]}
    assert seen.noise() == pytest.approx(0.035)
    assert seen.deviations() == pytest.approx([0.03, 0.04])
    seen.log_speeds |= {1: [0.0, 0.2], 2: [0.0, 0.3, 0.6]}
    seen.spreads |= {1: [0.03, 0.04], 2: [0.0, 0.0, 0.0]}
    pooled = math.sqrt((0.02 + 0.18) / 3)
    assert seen.noise() == pytest.approx(pooled)
    own = [0.03**2 + pooled**2, (0.05**2 + 2 * pooled**2) / 4, pooled**2 / 3]
    assert seen.deviations() == pytest.approx(np.sqrt(own))
