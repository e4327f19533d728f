"""Measurements that are faster than the formulas can explain, and those that the formulas must
leave alone.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from frontrunner.config.campaign import parse_campaign
from frontrunner.evaluators.analytic.accuracy_bounds import at_best, trust_in, why_too_fast
from frontrunner.evaluators.analytic.estimates import estimate_many
from frontrunner.evaluators.analytic.step import step_time
from frontrunner.evaluators.runs.measure import measurement
from frontrunner.results.outcome import Failure, FailureKind, Measurement
from frontrunner.spaces.cluster import ByPrecision
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import Recipe
from frontrunner.spaces.sharding import Sharding
from support.analytic import A100, PROBLEM, machine, problem_with, recipe, with_code, work

LOGGED_S = (224.6266, 196.4964, 196.6811, 280.2356, 195.0818)
"""The five iterations of a log of the Frontier study (arXiv 2312.12705,
gpt175b_megatron_16N_newcomm-405287).
"""


@pytest.fixture(scope="module")
def frontier(tmp_path_factory: pytest.TempPathFactory) -> Problem:
    table = {
        "model": {"preset": "frontier-175b"},
        "cluster": {"preset": "frontier", "nodes": 16},
        "problem": {"sequence_length": 2048, "global_batch": 1280, "precision": "fp16"},
        "space": {},
    }
    return parse_campaign(table, default_name="log", base=Path()).spec.problem


def logged() -> Recipe:
    """What the log's command line says: 640 micro-batches of one sequence. DeepSpeed's settings
    said four sequences.
    """
    plan = Recipe(
        devices=128, tensor_parallel=4, pipeline_parallel=16, schedule="1f1b", micro_batch_seqs=1,
        accumulation=640,
        recompute="full",
    )  # fmt: skip
    return replace(plan, sharding=Sharding.named("zero-1", plan.copies))


def result(step_times_s: tuple[float, ...]) -> dict[str, Any]:
    return {
        "status": "measured",
        "step_times_s": list(step_times_s),
        "losses": [11.0] * len(step_times_s),
        "peak_memory_bytes": [33 * 2**30],
        "build_time_s": 60.0,
        "first_step_time_s": 300.0,
    }


def test_measurement_of_a_log_whose_settings_disagree_is_implausible(
    frontier: Problem,
) -> None:
    """No rate in it is above the device's peak; it claims four times the micro-batches that ran."""
    found = measurement(result(LOGGED_S), logged(), frontier, node_seconds=0.0)

    assert isinstance(found, Failure)
    assert found.kind is FailureKind.IMPLAUSIBLE
    assert "the formulas give it at least" in found.message


def test_measurement_of_that_log_as_it_ran_is_plausible(
    frontier: Problem,
) -> None:
    ran = tuple(4 * seconds for seconds in LOGGED_S)

    assert isinstance(measurement(result(ran), logged(), frontier, node_seconds=0.0), Measurement)


def test_why_too_fast_believes_a_step_as_estimated_and_a_slow_one() -> None:
    plans = [
        recipe(),
        recipe(
            tensor_parallel=1,
            micro_batch_seqs=1,
            accumulation=1,
            sharding=Sharding.named("zero-3", 64),
        ),
        recipe(
            pipeline_parallel=8,
            micro_batch_seqs=1,
            accumulation=64,
            schedule="1f1b",
            recompute="full",
        ),
    ]

    for told in estimate_many(plans, PROBLEM):
        for factor in (1 / 1.15, 1.0, 100.0):
            assert why_too_fast(told.recipe, PROBLEM, factor * told.step_time_s) is None
        assert why_too_fast(told.recipe, PROBLEM, told.step_time_s / 4) is not None


@pytest.mark.parametrize(
    ("problem", "change"),
    [
        (replace(PROBLEM, cluster=replace(A100, backend="cpu")), {}),
        (replace(PROBLEM, precision="fp32"), {}),
        (replace(PROBLEM, cluster=replace(A100, matmul_share=None)), {}),
        (PROBLEM, {"compile": True}),
        (PROBLEM, {"context_parallel": 2}),
        (PROBLEM, {"engine": "deepspeed"}),
    ],
    ids=["cpu", "fp32", "unknown device", "compile", "context parallel", "deepspeed"],
)
def test_why_too_fast_doubts_nothing_where_the_formulas_are_no_judge(
    problem: Problem, change: dict[str, Any]
) -> None:
    assert why_too_fast(recipe(), PROBLEM, 1e-3) is not None
    assert why_too_fast(recipe(**change), problem, 1e-3) is None


def test_measurement_is_judged_by_its_median() -> None:
    told = estimate_many([recipe()], PROBLEM)[0].step_time_s
    one_short = tuple(np.array([1.0, 0.1, 1.02, 0.98, 1.01]) * told)

    assert isinstance(
        measurement(result(one_short), recipe(), PROBLEM, node_seconds=0.0), Measurement
    )


def test_at_best_attention_is_no_slower_than_the_device_s_own() -> None:
    own = machine(replace(A100, device="b200-180gb"))
    assert at_best(own).attention_scale == own.attention_scale > 1


@pytest.mark.parametrize(
    "trait",
    [
        "products__fuses_accumulation",
        "experts__dispatches_once",
        "experts__overlaps_dispatch",
        "gradients__overlaps_unsharded",
    ],
)
def test_at_best_has_each_trait_that_saves_time(trait: str) -> None:
    problem = problem_with(experts=16, experts_per_token=4, biases="none", ffn_hidden=4096)
    plans = (
        recipe(sequence_parallel=True),
        recipe(tensor_parallel=1, expert_parallel=16, micro_batch_seqs=1, accumulation=4),
    )
    rows = work(*plans, problem=problem)
    best = at_best(machine())

    least, more = (
        step_time(base, rows).total for base in (best, with_code(best, **{trait: False}))
    )

    assert (more >= least).all()
    assert (more > 1.0001 * least).any()


def test_trust_says_why_some_recipes_have_no_time_beside_the_error_of_the_others() -> None:
    unknown = replace(PROBLEM, cluster=replace(A100, device="x", peak_tflops=ByPrecision()))

    some, none, every = (
        trust_in([recipe()], unknown, errors) for errors in ([0.1, None, 0.3], [], [0.1, 0.3])
    )

    assert some.in_words().startswith("where there is a time, not compared with any measurement")
    assert none.in_words() == none.why_no_times
    for found in (some, none):
        assert found.why_no_times is not None
        assert "peak_tflops" in found.why_no_times
    assert every.why_no_times is None
