"""From result.json to a measurement: rates recomputed by hand, and numbers that cannot be true."""

from dataclasses import replace
from typing import Any

import pytest

from frontrunner.evaluators.runs.measure import measurement, nodes_used, rates
from frontrunner.results.outcome import Failure, FailureKind, Measurement, Telemetry
from frontrunner.spaces.problem import Problem
from support.campaigns import spec_of, tiny, tiny_recipe

RECIPE = tiny_recipe()


def problem(peak_tflops: float | None = 0.1) -> Problem:
    cluster = {"peak_tflops": {"fp32": peak_tflops}} if peak_tflops else {}
    return spec_of(tiny(cluster=cluster)).problem


def result(**changes: Any) -> dict[str, Any]:
    return {
        "status": "measured",
        "step_times_s": [0.5, 0.25, 0.2],
        "losses": [5.5, 5.4, 5.3, 5.2],
        "peak_memory_bytes": [300_000_000, 310_000_000],
        "build_time_s": 0.7,
        "first_step_time_s": 0.9,
        **changes,
    }


def test_rates_follow_from_the_median_step() -> None:
    found = measurement(result(), RECIPE, problem(), node_seconds=3.0)
    assert isinstance(found, Measurement)
    assert found.tokens_per_step == 8 * 32
    assert found.tokens_per_s == pytest.approx(8 * 32 / 0.25)
    # The shape by hand: 2 layers of width 64, 4 heads, GELU MLP of 256, sequence 32, vocabulary as
    # it is padded.
    model = problem().model
    matrices = 4 * 64 * 64 + (3 if model.feed_forward.activation == "swiglu" else 2) * 64 * 256
    forward = 2 * (2 * matrices + 4 * 32 * 64) + 2 * 64 * model.embedding.padded_vocabulary
    assert found.model_tflops_per_device == pytest.approx(3 * forward * 1024 / 2 / 1e12)
    scores_again = 2 * 2 * 32 * 64
    assert found.hardware_tflops_per_device == pytest.approx(
        (3 * forward + scores_again) * 1024 / 2 / 1e12
    )
    assert found.mfu == pytest.approx(found.model_tflops_per_device / 0.1)
    assert found.node_seconds == 3.0
    assert found.peak_memory_bytes_max_rank == 310_000_000


def test_full_recompute_counts_for_the_hardware_only() -> None:
    plain = measurement(result(), RECIPE, problem(), 0.0)
    again = measurement(result(), replace(RECIPE, recompute="full"), problem(), 0.0)
    assert isinstance(plain, Measurement)
    assert isinstance(again, Measurement)
    assert again.model_tflops_per_device == plain.model_tflops_per_device
    assert 1 < again.hardware_tflops_per_device / plain.hardware_tflops_per_device < 4 / 3


def test_ranks_that_share_sequences_add_no_tokens() -> None:
    shared = rates(tiny_recipe(context_parallel=2, accumulation=4), problem(), 0.25)
    assert shared["tokens_per_s"] == 8 * 32 / 0.25


def test_chunks_and_tiles_count_for_the_hardware_only() -> None:
    def teraflops_more(**choices: Any) -> float:
        plain, changed = (
            rates(RECIPE, problem(), 0.25),
            rates(replace(RECIPE, **choices), problem(), 0.25),
        )
        assert changed["model_tflops_per_device"] == plain["model_tflops_per_device"]
        return changed["hardware_tflops_per_device"] - plain["hardware_tflops_per_device"]

    model = problem().model
    head = 2 * 64 * model.embedding.padded_vocabulary
    assert teraflops_more(loss_chunks=2) == pytest.approx(head * 1024 / 2 / 1e12)
    not_last = 2 * 2 * (model.feed_forward.matrices - 1) * 64 * model.feed_forward.ffn_hidden
    assert teraflops_more(feed_forward_tiles=2) == pytest.approx(not_last * 1024 / 2 / 1e12)


def test_use_of_8_bits_is_measured_against_their_own_peak() -> None:
    cluster = {"peak_tflops": {"fp32": 0.1, "fp8": 0.4}}
    both = spec_of(tiny(cluster=cluster)).problem
    mfu = {fp8: rates(replace(RECIPE, fp8=fp8), both, 0.25)["mfu"] for fp8 in ("none", "rowwise")}
    assert mfu["rowwise"] == pytest.approx(mfu["none"] / 4)
    fast = result(step_times_s=[0.0004])
    assert isinstance(measurement(fast, RECIPE, both, 0.0), Failure)
    assert isinstance(measurement(fast, replace(RECIPE, fp8="rowwise"), both, 0.0), Measurement)


def test_without_a_stated_peak_there_is_no_mfu() -> None:
    found = measurement(result(), RECIPE, problem(None), 0.0)
    assert isinstance(found, Measurement)
    assert found.mfu is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"step_times_s": [1e-9, 1e-9]}, "above the device's peak"),
        ({"step_times_s": [0.0, 0.0]}, "median step"),
        ({"step_times_s": [float("nan")]}, "median step"),
        ({"step_times_s": [-1.0, 0.5, 0.5]}, "not all positive"),
        ({"peak_memory_bytes": [0, 5]}, "not positive"),
    ],
)
def test_numbers_that_cannot_be_true_are_no_measurement(
    changes: dict[str, Any], words: str
) -> None:
    found = measurement(result(**changes), RECIPE, problem(), node_seconds=2.0)
    assert isinstance(found, Failure)
    assert found.kind is FailureKind.IMPLAUSIBLE
    assert words in found.message
    assert found.node_seconds == 2.0


def test_what_the_ranks_recorded_is_kept() -> None:
    found = measurement(
        result(peak_memory_bytes=[300, 500], telemetry={"idle_memory_bytes": [250, 220]}),
        RECIPE,
        problem(),
        0.0,
    )
    assert isinstance(found, Measurement)
    assert found.memory_above_idle_bytes_max_rank == 280
    before = measurement(result(), RECIPE, problem(), 0.0)
    assert isinstance(before, Measurement)
    assert before.memory_above_idle_bytes_max_rank is None, (
        "unknown, of a trainer that records none"
    )


@pytest.mark.parametrize("rank_order", ["tp-dp-pp", "tp-pp-dp"])
def test_peaks_are_kept_by_pipeline_stage(rank_order: str) -> None:
    """What is shown of a pipeline of uneven stages follows from all ranks, as it did before."""
    recipe = tiny_recipe(devices=8, pipeline_parallel=2, tensor_parallel=2, rank_order=rank_order)
    first_stage = {"tp-dp-pp": (0, 1, 2, 3), "tp-pp-dp": (0, 1, 4, 5)}[rank_order]
    peaks = [900 + rank if rank in first_stage else 400 + rank for rank in range(8)]
    idle = [300 if rank in first_stage else 10 for rank in range(8)]
    recorded = {"idle_memory_bytes": idle}
    found = measurement(result(peak_memory_bytes=peaks, telemetry=recorded), recipe, problem(), 0.0)
    assert isinstance(found, Measurement)
    last_stage = [rank for rank in range(8) if rank not in first_stage]
    assert found.peak_memory_bytes == (900 + first_stage[-1], 400 + last_stage[-1])
    by_rank = replace(found, peak_memory_bytes=tuple(peaks), telemetry=Telemetry(**recorded))
    for shown in ("peak_memory_bytes_max_rank", "memory_above_idle_bytes_max_rank"):
        assert getattr(found, shown) == getattr(by_rank, shown)
    assert found.memory_above_idle_bytes_max_rank == max(
        peak - base for peak, base in zip(peaks, idle, strict=True)
    )


def test_a_single_peak_is_that_of_the_whole_recipe() -> None:
    found = measurement(
        result(peak_memory_bytes=[700]), tiny_recipe(pipeline_parallel=2), problem(), 0.0
    )
    assert isinstance(found, Measurement)
    assert found.peak_memory_bytes == (700,)


def test_a_loss_that_was_not_finite() -> None:
    found = measurement(
        result(status="not-finite", losses=[5.5, None], step_times_s=[]), RECIPE, problem(), 1.0
    )
    assert isinstance(found, Failure)
    assert (found.kind, found.message) == (
        FailureKind.NOT_FINITE,
        "the loss was not finite at step 2",
    )


@pytest.mark.parametrize(
    "broken", [{}, {"status": "measured"}, result(step_times_s=None), result(losses=[None])]
)
def test_a_file_that_is_no_result_raises(broken: dict[str, Any]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        measurement(broken, RECIPE, problem(), 0.0)


@pytest.mark.parametrize(("devices", "nodes"), [(1, 1), (2, 1), (3, 2), (4, 2)])
def test_whole_nodes_are_charged(devices: int, nodes: int) -> None:
    recipe = tiny_recipe(devices=devices)
    assert nodes_used(recipe, problem()) == nodes
