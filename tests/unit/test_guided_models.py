"""The parts of the guided search against independent references."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import multivariate_normal
from scipy.stats import t as student_t

from frontrunner.evaluators.analytic.estimates import estimate_many
from frontrunner.evaluators.analytic.machine import FITTED
from frontrunner.evaluators.analytic.priors import LEARNED
from frontrunner.search.guided.acquisition import expected_improvement, mean_loss
from frontrunner.search.guided.feasibility import FeasibilityModel, Trial
from frontrunner.search.guided.prior import (
    NAMES,
    CandidateTable,
    Rows,
    features,
    needs_as_much,
    prior_of,
)
from frontrunner.search.guided.speed import FREEDOM, LONE, Fit, Observation, SpeedModel, _told
from frontrunner.spaces.problem import Problem, SoftwareSettings
from frontrunner.spaces.recipe import RANK_ORDERS, Recipe
from support.guided import CLUSTER, PROBLEM, SPACE, reversed_prior

RECIPES = SPACE.survey(PROBLEM).recipes
PRIOR = prior_of(RECIPES, PROBLEM)
FIELD = CandidateTable.of(RECIPES, PRIOR)
EVERY = np.arange(len(RECIPES))


def test_the_prior_is_the_analytic_model_row_by_row() -> None:
    for row in (0, 57, len(RECIPES) - 1):
        (one,) = estimate_many([RECIPES[row]], PROBLEM)
        assert PRIOR.log_speed[row] == pytest.approx(math.log(one.tokens_per_s))
        assert PRIOR.log_fill[row] == pytest.approx(
            math.log(one.peak_memory_bytes / CLUSTER.memory_bytes_per_device), abs=1e-6
        )


def test_recipes_that_the_formulas_do_not_know_get_the_others_median() -> None:
    unknown = replace(RECIPES[0], engine="deepspeed", offload="nvme")
    prior = prior_of([*RECIPES[:5], unknown], PROBLEM)
    assert np.isfinite(prior.log_speed).all()
    assert prior.log_speed[:5].min() < prior.log_speed[5] < prior.log_speed[:5].max() + 0.5
    assert np.isfinite(prior_of([unknown], PROBLEM).log_speed).all()


def test_a_reversed_prior_holds_the_same_speeds_in_the_opposite_order() -> None:
    turned = reversed_prior(PRIOR).log_speed
    assert sorted(turned) == sorted(PRIOR.log_speed)
    assert np.argmax(turned) == np.argmin(PRIOR.log_speed)


def test_expected_improvement_is_the_mean_of_draws() -> None:
    draws = np.random.default_rng(0).standard_normal(400_000)
    for mean, deviation in ((0.1, 0.2), (-0.2, 0.3), (-0.05, 0.02)):
        drawn = np.maximum(np.exp(mean + deviation * draws) - 1, 0).mean()
        found = expected_improvement(np.array([7 + mean]), np.array([deviation]), 7.0)[0]
        assert found == pytest.approx(drawn, abs=3e-3 * max(drawn, 0.05))
    assert expected_improvement(np.array([0.3]), np.array([0.0]), 0.0)[0] == pytest.approx(
        math.expm1(0.3)
    )
    assert expected_improvement(np.array([-0.3]), np.array([0.0]), 0.0)[0] == 0


def test_the_mean_loss_of_a_choice_is_that_of_draws() -> None:
    draws = 0.02 + 0.05 * np.random.default_rng(0).standard_normal(400_000)
    assert mean_loss(0.02, 0.05) == pytest.approx(np.maximum(-draws, 0).mean(), rel=0.02)
    assert mean_loss(0.02, 0.0) == 0


def test_the_evidence_is_that_of_the_student_t_density_and_a_contradicting_row_counts_little() -> (
    None
):
    """Laplace's approximation against a sum over a grid of the two rows' true values."""
    covariance, ratios, variances = (
        np.array([[0.04, 0.03], [0.03, 0.05]]),
        np.array([0.2, -0.1]),
        np.array([0.01, 0.02]),
    )
    axis = np.linspace(-2, 2, 801)
    true = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
    density = multivariate_normal(np.zeros(2), covariance).pdf(true)
    for column in range(2):
        density = density * student_t.pdf(
            ratios[column], FREEDOM, true[:, column], math.sqrt(variances[column])
        )
    t_at_0 = sum(student_t.logpdf(0, FREEDOM) for _ in ratios)  # the constant that is left out
    found = Fit.of(covariance, ratios, variances).log_evidence + t_at_0
    assert found == pytest.approx(math.log(density.sum() * (axis[1] - axis[0]) ** 2), abs=0.5)
    one_off = Fit.of(np.full((4, 4), 0.25), np.array([0.1, 0.1, 0.1, -1.5]), np.full(4, 0.001))
    assert 0.25 * one_off.solution.sum() == pytest.approx(0.1, abs=0.03)


def test_without_observations_the_speeds_are_the_prior_s() -> None:
    model = SpeedModel(FIELD)
    assert (model.predict(EVERY)[0] == PRIOR.log_speed).all()
    model.learn([])
    assert (model.linear_mean() == PRIOR.log_speed).all()


def test_a_part_that_the_formulas_underrate_is_learned() -> None:
    """Where links between nodes reach half of what is stated, two dozen measurements tell it of the
    others.
    """
    slower = replace(
        CLUSTER,
        efficiencies={"network_links": FITTED.network_links / 2, "memory": FITTED.memory / 1.3},
    )
    truth = prior_of(RECIPES, replace(PROBLEM, cluster=slower)).log_speed
    left, near = [], []
    for seed in range(4):
        rows = np.random.default_rng(seed).permutation(EVERY)
        model = SpeedModel(FIELD)
        model.learn(
            [Observation(row=int(r), log_ratio=truth[r] - PRIOR.log_speed[r]) for r in rows[:24]]
        )
        mean, deviation = model.predict(rows[24:])
        before, after = (
            np.std(values - truth[rows[24:]]) for values in (PRIOR.log_speed[rows[24:]], mean)
        )
        left.append(after / before)
        near.append((np.abs(mean - truth[rows[24:]]) < 4 * deviation + 0.02).mean())
    assert np.mean(left) < 0.55
    assert np.mean(near) > 0.9


def test_one_surprising_row_moves_the_others_little_and_several_that_agree_move_all() -> None:
    """A first row that took six times as long as predicted, then others as predicted, or as
    slow.
    """
    model = SpeedModel(FIELD)
    for ratio, least, most in ((0.05, 0.0, 0.15), (-1.8, 1.5, 2.0)):
        seen = [Observation(row=3, log_ratio=-1.8)]
        seen += [Observation(row=row, log_ratio=ratio) for row in (20, 60, 90)]
        model.learn(seen)
        moved = np.abs(np.median(model.predict(EVERY)[0] - PRIOR.log_speed))
        assert least <= moved <= most


def test_slow_collectives_say_nothing_of_how_long_stages_exchange() -> None:
    """A code of which both are known to be uncertain: rows without a pipeline are slow, by the
    network.
    """
    software = SoftwareSettings(code="nanotron")
    problem = replace(PROBLEM, software=software, cluster=replace(CLUSTER, nodes=2))
    recipes = SPACE.survey(problem).recipes
    slopes = dict(zip(LEARNED, prior_of(recipes, problem).slopes.T, strict=True))
    stages = np.array([recipe.pipeline_parallel for recipe in recipes])
    assert (slopes["exchange_s"][stages == 1] == 0).all()
    assert slopes["exchange_s"][stages > 1].max() > 0.1
    assert slopes["network_links"][stages == 1].min() < -0.1


def test_a_row_far_from_all_others_is_noise_by_the_excess_until_another_confirms_it() -> None:
    def spreads(*ratios: float) -> list[float]:
        return _told([Observation(row=row, log_ratio=ratio) for row, ratio in enumerate(ratios)])[
            1
        ].tolist()

    assert spreads(-2.0, 0.1, 0.0) == pytest.approx([2.0 - LONE, 0, 0])
    assert spreads(1.0) == pytest.approx([1.0 - LONE])
    assert spreads(-2.0, -1.9, -1.7) == [0, 0, 0]


def test_rows_of_another_model_tell_what_the_cluster_s_constants_are() -> None:
    slower = {"matmul": FITTED.matmul / 1.25, "network_links": FITTED.network_links / 2}
    other = replace(PROBLEM, model=PROBLEM.model.with_keys(hidden=4096, ffn_hidden=16384))
    recipes = SPACE.survey(other).recipes[::20]

    def speeds(problem: Problem, of: Sequence[Recipe]) -> Rows:
        return prior_of(
            of, replace(problem, cluster=replace(CLUSTER, efficiencies=slower))
        ).log_speed

    table = FIELD.with_rows(recipes, other, 1)
    ratios = speeds(other, recipes) - table.log_speed[len(FIELD) :]
    model, truth = SpeedModel(table), speeds(PROBLEM, RECIPES)
    model.learn(
        [
            Observation(row=len(FIELD) + place, log_ratio=float(ratio))
            for place, ratio in enumerate(ratios)
        ]
    )
    cold, warm = (
        np.abs(found - truth).mean() for found in (PRIOR.log_speed, model.predict(EVERY)[0])
    )
    assert warm < 0.6 * cold


def test_the_linear_part_leaves_out_only_what_is_local() -> None:
    model = SpeedModel(FIELD)
    model.learn([Observation(row=row, log_ratio=-0.2) for row in range(0, 60, 3)])
    linear, whole = model.linear_mean(), model.predict(EVERY)[0]
    assert np.abs(linear - whole).max() < 0.1
    assert np.corrcoef(linear, whole)[0, 1] > 0.99


def test_many_remembered_observations_do_not_push_out_the_campaign_s_own() -> None:
    faster = replace(PROBLEM, cluster=replace(CLUSTER, nodes=8))
    others = SPACE.survey(faster).recipes
    model = SpeedModel(FIELD.with_rows(others, faster, 1))
    own = [Observation(row=row, log_ratio=-1.0) for row in range(0, 100, 10)]
    remembered = [
        Observation(row=len(FIELD) + row, log_ratio=0.5, spread=0.1)
        for row in range(min(len(others), 400))
    ]
    assert len(remembered) > 250
    model.learn([*remembered, *own])
    rows = np.array([seen.row for seen in own])
    assert model.predict(rows)[0] - PRIOR.log_speed[rows] == pytest.approx(-1.0, abs=0.1)


def test_noise_is_learned_from_repeats_that_disagree() -> None:
    model, generator = SpeedModel(FIELD), np.random.default_rng(4)
    quiet = [
        Observation(row=row, log_ratio=0.001 * z)
        for row, z in zip([3, 50, 90] * 6, generator.standard_normal(18), strict=True)
    ]
    loud = [replace(one, log_ratio=300 * one.log_ratio) for one in quiet]
    model.learn(quiet)
    of_quiet = model.noise
    model.learn(loud)
    assert of_quiet <= 0.03
    assert model.noise >= 0.1


def test_a_refusal_of_the_formulas_is_never_sure_and_undone_by_a_run() -> None:
    """One recipe that runs where the formulas refuse it lifts those like it."""
    model = FeasibilityModel(FIELD)
    over = int(np.argmin(np.abs(PRIOR.log_fill - math.log(1.3))))
    before = model.fits(EVERY)
    assert 0.01 < before[over] < 0.5
    assert before.min() >= 0
    model.learn([Trial(row=over, ran=True)])
    assert model.fits(EVERY)[over] > 0.5
    near = np.abs(PRIOR.log_fill - PRIOR.log_fill[over]) < 0.1
    assert (model.fits(EVERY)[near] > before[near]).all()


@pytest.mark.parametrize("ran", [True, False])
def test_outcomes_that_the_formulas_find_impossible_are_learned_from(*, ran: bool) -> None:
    """What needs twenty times the memory that there is runs, or nothing runs of what needs a
    twentieth.
    """
    field = replace(FIELD, log_fill=FIELD.log_fill - FIELD.log_fill.mean() + (3.0 if ran else -3.0))
    model = FeasibilityModel(field)
    before = model.fits(EVERY).mean()
    model.learn([Trial(row=row, ran=ran, lacked_memory=not ran) for row in range(0, 200, 10)])
    assert (before < 0.5) == ran
    assert (model.fits(EVERY).mean() > 0.5) == ran


def test_measured_peaks_tell_by_how_much_the_formulas_err() -> None:
    """Peaks of twice what is predicted, of recipes that all fit, forbid what was predicted to fill
    two thirds.
    """
    model = FeasibilityModel(FIELD)
    small = np.flatnonzero(PRIOR.log_fill < math.log(0.45))[:12]
    model.learn(
        [Trial(row=int(r), ran=True, log_peak=PRIOR.log_allocated[r] + math.log(2)) for r in small]
    )
    chance = model.fits(EVERY)
    assert chance[(PRIOR.log_fill > math.log(0.62)) & (PRIOR.log_fill < math.log(0.9))].max() < 0.3
    assert chance[PRIOR.log_fill < math.log(0.35)].min() > 0.7


def test_a_single_peak_that_is_far_off_teaches_little() -> None:
    """Eight peaks as predicted, and one three times as large, of which the others get at most a
    twentieth.
    """
    model, rows = FeasibilityModel(FIELD), EVERY[::40]
    model.learn(
        [
            Trial(row=int(r), ran=True, log_peak=PRIOR.log_allocated[r] + math.log(3) * (r == 80))
            for r in rows
        ]
    )
    others = np.delete(rows, 2)
    assert np.abs(model.log_need(others) - PRIOR.log_allocated[others]).max() < math.log(3) / 20


def test_an_unknown_code_s_memory_is_less_sure_and_learned_to_be_like_a_known_one_s() -> None:
    """Three peaks of a code that gathers the whole vocabulary's logits, which no part or degree
    alone explains.
    """
    unknown, like = (
        prior_of(RECIPES, replace(PROBLEM, software=SoftwareSettings(code=code)))
        for code in ("unknown", "aleph-alpha-scaling")
    )
    model = FeasibilityModel(CandidateTable.of(RECIPES, unknown))
    full = np.abs(unknown.log_fill) < 0.2
    known = FeasibilityModel(
        replace(CandidateTable.of(RECIPES, unknown), memory_of_codes=0 * unknown.memory_of_codes)
    )
    assert (
        np.abs(model.fits(EVERY[full]) - 0.5).mean() < np.abs(known.fits(EVERY[full]) - 0.5).mean()
    )

    model.learn(
        [Trial(row=row, ran=True, log_peak=like.log_allocated[row]) for row in (3, 90, 200)]
    )
    before, after = (
        np.abs(told - like.log_allocated).mean()
        for told in (unknown.log_allocated, model.log_need(EVERY))
    )
    assert after < before / 2


def test_what_needs_more_than_a_failure_is_left_for_last_and_other_failures_warn_nearby_only() -> (
    None
):
    row = next(
        place
        for place, recipe in enumerate(RECIPES)
        if recipe.describe() == "tp2 pp1 dp8 mb2 x4 zero-1"
    )
    larger = next(
        place
        for place, recipe in enumerate(RECIPES)
        if recipe.describe() == "tp2 pp1 dp8 mb4 x2 zero-1"
    )
    far = next(
        place
        for place, recipe in enumerate(RECIPES)
        if recipe.describe().startswith("tp8 pp2 dp1 1f1b mb1")
    )
    model = FeasibilityModel(FIELD)
    before = model.chance(EVERY)
    model.learn([Trial(row=row, ran=False, lacked_memory=True)])
    assert model.chance(EVERY)[larger] < 0.01
    model.learn([Trial(row=row, ran=False)])
    chance = model.chance(EVERY)
    assert chance[larger] < 0.9 * before[larger]
    assert chance[far] > 0.95 * before[far]


def test_a_failure_of_another_known_cause_warns_nearby_and_says_nothing_of_memory() -> None:
    model, row = FeasibilityModel(FIELD), int(np.argmin(np.abs(PRIOR.log_fill)))
    fits, chance = model.fits(EVERY), model.chance(EVERY)
    model.learn([Trial(row=row, ran=False, lacked_memory=False)])
    assert (model.fits(EVERY) == fits).all()
    assert model.chance(EVERY)[row] == pytest.approx(chance[row] / 2)


def test_dominated_recipes_need_no_less_memory_by_the_formulas() -> None:
    memory = estimate_many(RECIPES, PROBLEM).peak_memory_bytes
    rows = features(RECIPES)
    pairs = 0
    for place in range(0, len(RECIPES), 7):
        dominated = needs_as_much(rows, rows[place])
        assert dominated[place]
        assert (
            memory[dominated] >= 0.97 * memory[place]
        ).all()  # recompute keeps a little more than it saves at times
        pairs += int(dominated.sum()) - 1
    assert pairs > 50


def test_recipes_that_differ_in_the_order_of_ranks_are_told_apart_and_need_the_same_memory() -> (
    None
):
    recipes = replace(SPACE, rank_order=RANK_ORDERS).survey(PROBLEM).recipes
    rows = features(recipes)
    assert len(np.unique(rows, axis=0)) == len(recipes) > len(RECIPES)
    alike = [
        place
        for place, one in enumerate(recipes)
        if replace(one, rank_order="tp-dp-pp") == RECIPES[-1]
    ]
    assert len(alike) > 1
    assert needs_as_much(rows, rows[alike[0]])[alike].all()


def test_features_count_doublings() -> None:
    tensor = features(RECIPES)[:, NAMES.index("tensor_parallel")]
    assert (tensor == [math.log2(recipe.tensor_parallel) for recipe in RECIPES]).all()
