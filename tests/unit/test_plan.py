"""Plans: every legal recipe estimated and ranked, from Python and from the command line."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import frontrunner
from frontrunner.cli.main import frontrunner as cli
from frontrunner.config.campaign import read_campaign_file
from frontrunner.evaluators.analytic.accuracy_bounds import (
    HOST_ASSUMED,
    OTHER_HARDWARE,
    mean_error,
    prior_deviations,
)
from frontrunner.evaluators.analytic.compared import compared_steps, family
from frontrunner.evaluators.analytic.estimates import (
    Estimate,
    Plan,
    estimate_many,
    not_modelled,
    plan,
)
from frontrunner.evaluators.analytic.memory import verdict
from frontrunner.evaluators.analytic.priors import NORMAL_95
from frontrunner.evaluators.analytic.timeline import step_timeline
from frontrunner.evaluators.runs.measure import hardware_flops_per_token, tokens_per_step
from frontrunner.search.campaign_setup import runnable
from frontrunner.spaces.cluster import ByPrecision, Cluster
from frontrunner.spaces.errors import InvalidInput
from frontrunner.spaces.problem import SoftwareSettings
from frontrunner.spaces.recipe import Recipe
from frontrunner.spaces.sharding import Sharding
from frontrunner.text import to_json
from frontrunner.views.columns import FIGURES, used
from support.analytic import A100, PROBLEM, recipe
from support.campaigns import command, environment, tiny, write_toml

EXAMPLE = Path(__file__).parents[2] / "examples" / "frontier-22b.toml"
STUDIES = [EXAMPLE.parent / f"frontier-study-{size}.toml" for size in ("22b", "175b", "1t")]


@pytest.fixture(scope="module")
def example() -> Plan:
    return frontrunner.plan(EXAMPLE)


def fitting(found: Plan) -> tuple[Estimate, ...]:
    return found.fastest(len(found.table))


def told(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments), cwd=cwd, env=environment(), capture_output=True, text=True, check=False
    )


@pytest.mark.system
def test_every_legal_recipe_is_judged_and_ordered(example: Plan) -> None:
    spec = read_campaign_file(EXAMPLE).spec
    legal = spec.space.survey(spec.problem).recipes
    limit = spec.problem.cluster.memory_bytes_per_device

    assert (
        example.legal == len(legal) == len(example.estimates) + sum(example.not_modelled.values())
    )
    assert {found.recipe for found in example.estimates} <= set(legal)
    assert all((found.peak_memory_bytes <= limit) == found.fits for found in example.estimates)
    is_tight = [0.95 * limit < found.peak_memory_bytes <= limit for found in fitting(example)]
    order = list(
        zip(is_tight, (-(found.tokens_per_s or 0) for found in fitting(example)), strict=True)
    )
    assert order == sorted(order)
    assert sum(is_tight) == example.shown(1).tight > 0
    assert 0 < len(fitting(example)) < len(example.estimates)


def test_a_verdict_that_the_interval_leaves_open_is_no_verdict(example: Plan) -> None:
    limit = read_campaign_file(EXAMPLE).spec.problem.cluster.memory_bytes_per_device
    ends: dict[str, list[tuple[int, int, int]]] = {}
    for found in example.estimates:
        ends.setdefault(found.fit, []).append(
            (*found.peak_memory_bounds_bytes, found.peak_memory_bytes)
        )

    assert all(high <= limit for _, high, _ in ends.pop("fits"))
    assert all(peak <= limit < high for _, high, peak in ends.pop("may not fit"))
    assert all(low <= limit < peak for low, _, peak in ends.pop("unlikely to fit"))
    assert all(low > limit for low, _, _ in ends.pop("does not fit"))
    assert not ends
    assert (verdict(96, 100), verdict(94, 100)) == (
        "tight",
        "fits",
    ), "a traced peak has no interval"


def test_parts_add_up_and_nothing_beats_the_peak(example: Plan) -> None:
    for found in example.estimates[::50]:
        assert sum(found.step_parts_s.values()) == pytest.approx(found.step_time_s)
        assert sum(found.memory_parts_bytes.values()) == pytest.approx(
            found.peak_memory_bytes, abs=1
        )
        assert found.mfu is not None
        assert 0 < found.mfu < 1


def test_the_front_holds_what_nothing_beats(example: Plan) -> None:
    front = example.front
    assert front[0] == max(fitting(example), key=lambda found: found.tokens_per_s)
    for found in fitting(example):
        better = [f for f in front if f.tokens_per_s >= found.tokens_per_s]
        assert any(f.peak_memory_bytes <= found.peak_memory_bytes for f in better)
    assert len({f.recipe_id for f in front}) == len(front) > 2


def test_recompute_trades_time_for_memory(example: Plan) -> None:
    by_recipe = {found.recipe: found for found in example.estimates}
    pairs = 0
    for found in example.estimates:
        full = by_recipe.get(replace(found.recipe, recompute="full"))
        if found.recipe.recompute == "none" and full is not None:
            pairs += 1
            assert full.step_time_s > found.step_time_s
            assert full.peak_memory_bytes < found.peak_memory_bytes * 1.02
    assert pairs > 100


def test_what_limits_a_recipe_is_named() -> None:
    deep, wide = estimate_many(
        [
            recipe(
                pipeline_parallel=8,
                tensor_parallel=1,
                accumulation=8,
                micro_batch_seqs=1,
                schedule="1f1b",
            ),
            recipe(tensor_parallel=64, devices=64, micro_batch_seqs=8, accumulation=8),
        ],
        PROBLEM,
    )

    assert deep.step_parts_s["bubble"] == max(
        seconds for name, seconds in deep.step_parts_s.items() if name != "compute"
    )
    assert deep.limit in ("bubble", "memory")
    assert wide.limit == "tensor_parallel"


def test_what_the_formulas_do_not_know_is_left_out_and_said() -> None:
    known = recipe()

    found = plan([known, replace(known, offload="nvme")], PROBLEM)

    assert [estimate.recipe for estimate in found.estimates] == [known]
    assert found.not_modelled == {"offload to NVMe": 1}
    assert found.legal == 2


@pytest.mark.parametrize(
    ("choice", "change"),
    [
        ("compile", {"compile": True}),
        ("context_parallel", {"context_parallel": 2}),
        ("activation_offload", {"activation_offload": True}),
        ("offload", {"offload": "optimizer"}),
        ("engine", {"engine": "deepspeed"}),
    ],
)
def test_what_no_measurement_has_judged_gets_a_wide_error(
    choice: str, change: dict[str, Any]
) -> None:
    known = recipe()

    found = plan([known, replace(known, **change)], PROBLEM)

    errors = {
        estimate.recipe: (estimate.unjudged, estimate.expected_error)
        for estimate in found.estimates
    }
    (no_choice, error), (unjudged, wide) = errors[known], errors[replace(known, **change)]
    assert (no_choice, unjudged) == ((), (choice,))
    assert error is not None
    assert wide is not None
    least, most = (
        (error, 0.2) if choice == "compile" else (0.2, 0.6)
    )  # what compiling gains at most is known
    assert 0.05 < error <= least < wide < most
    remarks = found.trust.remarks
    assert any(
        choice in remark and remark.startswith("1 estimate is less certain") for remark in remarks
    )
    assert (HOST_ASSUMED in remarks) == ("offload" in choice)


def test_mixtures_are_compared_and_what_is_not_stays_less_certain() -> None:
    mixture = replace(PROBLEM, model=PROBLEM.model.with_keys(experts=4, experts_per_token=2))
    shared = replace(recipe(), expert_parallel=2)
    remarks = plan([shared], mixture).trust.remarks
    assert not any("less certain" in remark for remark in remarks)
    remarks = plan([shared, replace(recipe(), expert_tensor_parallel=2)], mixture).trust.remarks
    assert (
        "1 estimate is less certain: no measurement has validated expert_tensor_parallel" in remarks
    )


def test_every_field_of_a_recipe_counts_or_is_left_out() -> None:
    """A choice that changed neither time nor memory, nor was left out, would be one that the
    formulas overlook.
    """
    base = recipe(pipeline_parallel=2, accumulation=4, schedule="1f1b", micro_batch_seqs=4)
    zero_3 = replace(base, sharding=Sharding.named("zero-3", base.copies))
    changes: list[dict[str, Any]] = [
        {"engine": "deepspeed"},
        {"tensor_parallel": 4},
        {"context_parallel": 2},
        {"schedule": "gpipe"},
        {"schedule": "interleaved-1f1b", "virtual_stages": 2},
        {"micro_batch_seqs": 2, "accumulation": 8},
        {"sharding": replace(base.sharding, optimizer=4)},
        {"recompute": "selective"},
        {"sequence_parallel": True},
        {"compile": True},
        {"loss_chunks": 2},
        {"feed_forward_tiles": 2},
        {"optimizer_state": "bf16"},
        {"activation_offload": True},
        {"offload": "optimizer"},
        {"gradient_sync": "each"},
        {"secondary_partition": 2},
        {"quantized_weights": True},
        {"quantized_gradients": True},
        {"async_tensor_parallel": True},
        {"rank_order": "dp-pp-tp"},
        {"layers_per_stage": (25, 23)},
        {"fp8": "tensorwise"},
    ]
    named = {name for change in changes for name in change}
    # The problem's; in the base; runs the same collectives; of a mixture of experts (test_experts).
    same = {
        "devices",
        "pipeline_parallel",
        "replication",
        "expert_parallel",
        "expert_tensor_parallel",
    }
    own = {
        "custom",
    }  # no formula knows anything of the one, and the other names the machine
    assert named | same | own == set(Recipe.__dataclass_fields__)
    of_zero_3 = {"secondary_partition", "quantized_weights", "quantized_gradients"}
    for change in changes:
        unchanged = base if of_zero_3.isdisjoint(change) else zero_3
        changed = replace(unchanged, **change)
        if not_modelled(changed) is None:
            before, after = estimate_many([unchanged, changed], PROBLEM)
            moved = (
                after.step_time_s != before.step_time_s
                or after.peak_memory_bytes != before.peak_memory_bytes
            )
            assert moved, change


def test_the_example_of_zero_plus_plus_compares_it_with_zero_3_and_three_levels() -> None:
    found = frontrunner.plan(EXAMPLE.with_name("frontier-20b-zero.toml"))

    parts = (
        "sharding_name",
        "secondary_partition",
        "quantized_weights",
        "quantized_gradients",
        "micro_batch_seqs",
    )
    speed = {
        tuple(getattr(one.recipe, part) for part in parts): one.tokens_per_s or 0.0
        for one in found.estimates
    }
    ratios = []
    for micro_batch in (1, 2, 4):
        plain, plus = (
            speed["zero-3", 1, False, False, micro_batch],
            speed["zero-3", 8, True, True, micro_batch],
        )
        ratios += [plus / plain, speed["3-level-2/8/384", 1, False, False, micro_batch] / plus]
    assert ratios == pytest.approx([1.66, 2.27, 1.51, 1.56, 1.34, 1.17], abs=0.03), (
        "what the example's comment states"
    )
    assert all(one.fits for one in found.estimates)
    told = {one.recipe: one.unjudged for one in found.estimates if one.recipe.quantized_gradients}
    assert all("quantized_gradients" in unjudged for unjudged in told.values())


@pytest.mark.parametrize(
    ("device", "code", "precision", "expected"),
    [
        ("h100-80gb", "nanotron", "bf16", r"625 published steps .* Hopper under nanotron were"),
        (
            "h200-141gb",
            None,
            "bf16",
            r"\d+ published steps .* under other training codes",
        ),
        ("h100-80gb", "unknown", "bf16", r"on Hopper under other training codes \(.*nanotron"),
        ("gaudi-3", None, "bf16", "not compared with any measurement of dense models on gaudi-3"),
        ("a100-80gb", None, "fp32", "not compared .* of dense models on A100 in fp32"),
    ],
)
def test_accuracy_is_that_of_the_nearest_measured_steps(
    device: str, code: str | None, precision: Any, expected: str
) -> None:
    cluster = replace(A100, device=device, peak_tflops=ByPrecision(bf16=312, fp32=19.5))
    problem = replace(
        PROBLEM, cluster=cluster, precision=precision, software=SoftwareSettings(code=code)
    )
    trust = plan([recipe()], problem).trust
    assert re.search(expected, trust.in_words())
    errors = [
        one.error
        for one in compared_steps()
        if (one.devices, one.model) == (family(device), "dense")
        and code in (None, "unknown", one.code)
    ]
    measured = errors if precision != "fp32" else []
    assert trust.expected_error == (pytest.approx(np.mean(measured)) if measured else None)


def test_no_interval_implies_more_than_matrix_products_reach() -> None:
    """Recomputed products count; the pipeline's bubble makes the lowest end longer still."""
    cluster = replace(A100, matmul_share=0.73, memory_gb_per_s=None)
    recipes = [recipe(), recipe(recompute="full"), recipe(tensor_parallel=4, pipeline_parallel=2)]
    problem = replace(PROBLEM, cluster=cluster)
    for found in plan(recipes, problem).estimates:
        assert found.step_time_bounds_s is not None
        assert found.step_time_s is not None
        low_s, _ = found.step_time_bounds_s
        per_token = hardware_flops_per_token(found.recipe, problem, causal=True)
        tokens_per_s = tokens_per_step(found.recipe, problem) / low_s
        peak = found.recipe.devices * 312e12
        assert tokens_per_s * per_token / peak <= 1.1 * 0.73 + 1e-9
        assert low_s < found.step_time_s


def test_order_is_undecided_only_by_errors_that_recipes_do_not_share() -> None:
    first = recipe(tensor_parallel=4, pipeline_parallel=2, micro_batch_seqs=1, accumulation=8,
                   recompute="full")  # fmt: skip
    near, far = (
        recipe(micro_batch_seqs=size, accumulation=8 // size, recompute="full") for size in (4, 1)
    )
    cluster = replace(A100, matmul_share=None)  # which is as uncertain for all of them
    found = plan([first, near, far], replace(PROBLEM, cluster=cluster))
    assert [one.recipe for one in found.at_hand] == [first, near, far]
    assert found.undecided == found.shown(3).undecided == 1
    best, _, last = (one.step_time_bounds_s or (0.0, 0.0) for one in found.at_hand)
    assert last[0] < best[1], "the intervals overlap all the same"
    expected_s, cautious_s = found.at_hand[0].step_time_s, found.at_hand[0].step_time_p90_s
    assert (expected_s or 0) < (cautious_s or 0) < best[1]


def test_unknown_hardware_gets_a_wide_error() -> None:
    bare = replace(A100, matmul_share=None, links=replace(A100.links, nic_gb_per_s=None))

    known, unknown = (
        plan([recipe()], replace(PROBLEM, cluster=cluster)) for cluster in (A100, bare)
    )

    assert error_of(unknown) > 2 * error_of(known)
    assert known.trust.assumed == ()
    assert unknown.trust.assumed == ("matmul_share", "links.nic_gb_per_s")


def error_of(found: Plan) -> float:
    """The mean error that the interval of a plan's first estimate implies."""
    error = found.estimates[0].expected_error
    assert error is not None
    return error


def slow_end(found: Plan) -> float:
    """How far the interval of a plan's first estimate goes above it, as a share."""
    low_high = found.estimates[0].step_time_bounds_s
    assert low_high is not None
    return low_high[1] / (found.estimates[0].step_time_s or math.nan) - 1


def ends(cluster: Cluster, **changes: Any) -> tuple[float, float]:
    """How far a recipe's interval goes below and above its estimate, as shares."""
    (found,) = plan([recipe(**changes)], replace(PROBLEM, cluster=cluster)).estimates
    assert found.step_time_bounds_s is not None
    low, high = found.step_time_bounds_s
    return 1 - low / found.step_time_s, high / found.step_time_s - 1


def test_an_interval_is_wider_where_less_is_known() -> None:
    (below, above), of_my_own = ends(A100), replace(A100, device="of-my-own")
    assert 0.1 < below < above < 0.8
    assert min(np.subtract(ends(replace(A100, memory_gb_per_s=None)), (below, above))) > 0
    assert min(np.divide(ends(of_my_own), (below, above))) > 1.1
    assert above < ends(A100, compile=True)[1] < 0.9 < ends(A100, activation_offload=True)[1]
    assert max(ends(replace(of_my_own, expected_error=ByPrecision(fp16=0.02)))) < above
    blind = plan([recipe()], replace(PROBLEM, cluster=replace(A100, peak_tflops=ByPrecision())))
    assert blind.estimates[0].step_time_bounds_s is None


def test_a_network_that_nobody_measured_may_be_far_slower_and_hardly_faster() -> None:
    """Pipelines hide behind nothing: 2 micro-batches on 8 nodes send activations, and 64 replicas
    whole gradients.
    """
    unseen = replace(A100, device="of-my-own", nodes=64)
    (inside, far), (less, more) = (
        ends(unseen, devices=devices, accumulation=2, tensor_parallel=8) for devices in (8, 512)
    )

    assert more > 3 * far
    assert less < 1.2 * inside
    assert (
        ends(replace(A100, nodes=64), devices=512, accumulation=2, tensor_parallel=8)[1] < more / 3
    )


def test_the_mean_error_follows_from_the_bounds() -> None:
    drawn = np.random.default_rng(0).standard_normal(400_000)
    for below, above in ((0.1, 0.1), (0.3, 2.5)):
        ratio = np.exp(np.where(drawn < 0, below, above) / NORMAL_95 * drawn)
        assert mean_error(below, above) == pytest.approx(np.abs(ratio - 1).mean(), rel=0.02)


def test_times_without_a_peak_are_no_estimates() -> None:
    large = replace(A100, peak_tflops=ByPrecision(), memory_gib_per_device=800)
    found = plan([recipe()], replace(PROBLEM, cluster=large))
    blind, key = found.trust, f"cluster.peak_tflops.{PROBLEM.precision}"
    assert blind.expected_error is None
    assert blind.in_words().startswith("no time or rate here is an estimate")
    assert f"{key} is not given (assumed: 100)" in blind.in_words()
    assert blind.assumed_in_words() == f"{key} = 100"
    assert not any("%" in remark for remark in blind.remarks)
    known = {column.key for column in used(FIGURES, found.estimates)}
    assert known == {"peak_memory_bytes_max_rank"}
    shown = json.loads(to_json(found.shown(1)))
    assert shown["why_no_times"] == blind.in_words()
    of_time = (
        "step_time_s",
        "tokens_per_s",
        "model_tflops_per_device",
        "mfu",
        "limit",
        "tokens_per_s_bounds",
    )
    assert {shown["estimates"][0][name] for name in of_time} == {None}
    frame = found.to_frame()
    assert frame[list(of_time)].isna().all(axis=None)
    assert frame.attrs["why_no_times"] == blind.in_words()


def test_no_command_prints_a_time_without_a_peak(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "blind.toml"
    text = (
        EXAMPLE.read_text()
        .replace('preset = "frontier"', 'preset = "dgx-1-v100"')
        .replace("nodes = 16", "nodes = 64")
    )
    file.write_text(text)
    best = frontrunner.plan(file).fastest(1)[0]
    assert best.recipe.pipeline_parallel > 1, "whose step would be drawn"
    for words in (["plan", "FILE"], ["plan", "FILE", "--nodes", "32,64"], ["advise", "FILE"],
                  ["explain", "--campaign", "FILE", best.recipe_id, "--svg",
                      str(tmp_path / "x.svg")]):  # fmt: skip
        cli([str(file) if word == "FILE" else word for word in words], standalone_mode=False)
        printed = capsys.readouterr().out
        assert "no time or rate here is an estimate" in printed
        assert not re.search(
            r"\d (s|ms|min|tokens/s)\b|faster|longer[^ ]|TFLOPS|MFU|bubble", printed
        ), words[0]
    assert "seconds per step" not in (tmp_path / "x.svg").read_text()
    with pytest.raises(InvalidInput, match=r"cluster\.peak_tflops\.bf16 is not given"):
        step_timeline(best.recipe, read_campaign_file(file).spec.problem)


def test_no_command_offers_what_the_trainer_refuses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Multi-token prediction is estimated, and neither trained nor traced."""
    offered = {}
    for layers in (0, 1):
        file = tmp_path / f"{layers}.toml"
        file.write_text(EXAMPLE.read_text().replace("[model]", f"[model]\nmtp_layers = {layers}"))
        best = frontrunner.plan(file).fastest(1)[0]
        for words in (
            ["plan", "FILE"],
            ["advise", "FILE"],
            ["explain", "--campaign", "FILE", best.recipe_id],
        ):
            cli([str(file) if word == "FILE" else word for word in words], standalone_mode=False)
        printed = capsys.readouterr().out
        offered[layers] = [f"frontrunner {name} " in printed for name in ("launch", "dryrun")]
        assert ("no multi-token prediction (model.mtp_layers)" in printed) is bool(layers)
    assert offered == {0: [True, True], 1: [False, False]}


def test_hardware_that_the_formulas_were_not_judged_on_gets_a_wide_error() -> None:
    other = plan([recipe()], replace(PROBLEM, cluster=replace(A100, device="h100-80gb")))
    in_fp32 = plan(
        [recipe()],
        replace(
            PROBLEM, precision="fp32", cluster=replace(A100, peak_tflops=ByPrecision(fp32=19.5))
        ),
    )

    for found in (other, in_fp32):
        assert (found.trust.assumed, found.trust.remarks) == ((), (OTHER_HARDWARE,))
        problem = found.table.problem
        wide = prior_deviations(problem.cluster, problem.precision)
        assert wide["matmul"] > 1.3 * prior_deviations(A100, "fp16")["matmul"]
    assert slow_end(other) > 1.3 * slow_end(plan([recipe()], PROBLEM))


def test_the_command_prints_a_table_and_how_far_to_trust_it(tmp_path: Path) -> None:
    done = told("plan", str(EXAMPLE), "--top", "3", cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    assert {"p90", "95 %", "MFU", "options"} <= set(re.split(r"\s{2,}", done.stdout))
    assert "5,706 legal recipes" in done.stdout
    assert "not compared with any measurement of dense models on MI200" in done.stdout
    assert OTHER_HARDWARE in done.stdout.replace("\n", " ")
    assert list(tmp_path.iterdir()) == []


def test_a_plan_is_short_in_a_shell_and_a_table_in_a_notebook(example: Plan) -> None:
    assert len(repr(example)) < 500
    assert len(repr(frontrunner.advise(EXAMPLE))) < 200
    html = example._repr_html_()
    assert html.count(example.estimates[0].recipe_id) > 0
    assert "frontrunner explain" not in html


def test_the_command_answers_programs(tmp_path: Path, example: Plan) -> None:
    done = told("plan", str(EXAMPLE), "--top", "2", "--json", cwd=tmp_path)

    answer = json.loads(done.stdout)
    assert [found["recipe_id"] for found in answer["estimates"]] == [
        f.recipe_id for f in fitting(example)[:2]
    ]
    assert answer["fitting"] == len(fitting(example))
    assert answer["expected_error"] == example.trust.expected_error


def test_nothing_that_fits_ends_with_its_own_exit_code(tmp_path: Path) -> None:
    table = tiny(cluster={"memory_gib_per_device": 0.01})

    done = told("plan", str(write_toml(tmp_path / "tiny.toml", table)), cwd=tmp_path)

    assert done.returncode == 7
    assert "0 are estimated to fit in 0.01 GiB per device" in done.stdout
    assert "hint: " in done.stderr


def test_a_file_that_is_not_there_is_a_mistake(tmp_path: Path) -> None:
    done = told("plan", "none.toml", cwd=tmp_path)

    assert done.returncode == 2
    assert "none.toml" in done.stderr


def test_planning_imports_nothing_heavy() -> None:
    program = f"""
import sys, frontrunner
frontrunner.plan({str(EXAMPLE)!r})
print(sorted({{"torch", "deepspeed", "optuna", "deephyper", "pandas", "sqlalchemy"}} & set(sys.modules)))
"""  # noqa: E501
    done = subprocess.run(
        [sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True
    )

    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_each_study_of_frontier_can_be_rehearsed_here_and_has_recipes_that_fit(path: Path) -> None:
    spec = read_campaign_file(path, {"evaluator": "simulated"}).spec
    found = plan(runnable(spec).recipes, spec.problem)
    assert 0 < found.table.fitting < len(found.table.recipes)
