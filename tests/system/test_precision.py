"""bf16 and fp16 follow fp32 within their rounding; fp16's scaled loss skips what overflows, on all
ranks alike.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from frontrunner.evaluators.trainer.job import Job
from support.trainer_runs import (
    EXPERTS,
    look,
    read_progress,
    reference_losses,
    run_job,
    small_job,
    small_model,
    small_recipe,
)

ZERO_3 = {"data_parallel": 2, "sharding": (2, 2, 2), "micro_batch_seqs": 1}
SEQUENCE_PARALLEL = {"tensor_parallel": 2, "sequence_parallel": True}
LEVELS = {"data_parallel": 4, "sharding": (2, 2, 4), "micro_batch_seqs": 1}
CONTEXT = {"context_parallel": 2, "sharding": (2, 2, 2), "micro_batch_seqs": 2}
PIPELINE = {"pipeline_parallel": 2, "schedule": "1f1b", "micro_batch_seqs": 1}
# Losses near 6. bf16 keeps 8 bits of the mantissa, fp16 11.
TOLERANCES = {"bf16": 0.02, "fp16": 0.002}
FP32_TOLERANCE = 1e-5


def _job(folder: Path, recipe: dict[str, Any], precision: Any = "fp16", **optimizer: Any) -> Job:
    job = replace(small_job(folder, recipe=small_recipe(**recipe)), precision=precision)
    return replace(job, optimizer=replace(job.optimizer, **optimizer))


@pytest.mark.parametrize("precision", TOLERANCES)
@pytest.mark.parametrize(
    "recipe",
    [
        pytest.param({}, id="one-rank"),
        pytest.param(ZERO_3, id="dp2-zero3"),
        pytest.param(SEQUENCE_PARALLEL, id="tp2-sp", marks=pytest.mark.nightly),
        pytest.param(PIPELINE, id="pp2-1f1b"),
        pytest.param(LEVELS, id="dp4-levels", marks=pytest.mark.nightly),
        pytest.param(CONTEXT, id="cp2-zero3"),
    ],
)
def test_losses_follow_fp32(recipe: dict[str, Any], precision: Any, tmp_path: Path) -> None:
    job = _job(
        tmp_path / "run", recipe, precision, learning_rate=0.03
    )  # at 0.1 some steps overflow

    result = run_job(job)

    reference = reference_losses(job)
    assert result["overflowed_steps"] == []
    assert result["losses"] == pytest.approx(reference, abs=TOLERANCES[precision])
    assert result["losses"] != pytest.approx(reference, abs=FP32_TOLERANCE)


# Factors of products keep 4 bits of the mantissa: the sums lose as little as those in bf16.
EIGHT_BITS_TOLERANCE = 0.02
EXPERTS_SHARED = {"data_parallel": 2, "expert_parallel": 2, "micro_batch_seqs": 1}


@pytest.mark.parametrize(
    ("recipe", "changes"),
    [
        pytest.param(ZERO_3 | {"fp8": "rowwise"}, {}, id="dp2-zero3"),
        pytest.param(
            SEQUENCE_PARALLEL | {"fp8": "rowwise"},
            {"biases": "all"},
            id="tp2-sp",
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            {"tensor_parallel": 2, "fp8": "tensorwise"},
            {"kv_heads": 1},
            id="tp2-heads-held-twice",
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            PIPELINE | {"recompute": "selective", "fp8": "tensorwise"},
            {},
            id="pp2-selective",
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            LEVELS | {"recompute": "full", "fp8": "tensorwise"},
            {},
            id="dp4-levels-full",
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            EXPERTS_SHARED | {"fp8": "tensorwise"}, EXPERTS | {"routing": "uniform"}, id="ep2"
        ),
        pytest.param(
            ZERO_3 | {"fp8": "mxfp8"},
            {"biases": "all"},
            id="dp2-zero3-blocks",
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            SEQUENCE_PARALLEL | {"fp8": "mxfp8", "recompute": "full"}, {}, id="tp2-sp-full-blocks"
        ),
    ],
)
def test_losses_in_8_bits_follow_bf16(
    recipe: dict[str, Any], changes: dict[str, Any], tmp_path: Path
) -> None:
    """With torchao's emulation, since no device here multiplies in 8 bits.

    Experts get the tokens dealt evenly: a router that chooses another expert for one token, after
    another rounding, changes the loss by more than the tolerance.
    """
    pytest.importorskip("torchao")
    job = replace(_job(tmp_path / "run", recipe, "bf16"), model=small_model(**changes))

    (losses, *_) = look(job, "8-bit-losses")
    (as_is, *_) = look(replace(job, recipe=replace(job.recipe, fp8="none")), "8-bit-losses")

    assert losses == pytest.approx(reference_losses(job), abs=EIGHT_BITS_TOLERANCE)
    assert losses != as_is


@pytest.mark.parametrize(
    "recipe", [pytest.param(ZERO_3, id="dp2-zero3"), pytest.param(LEVELS, id="dp4-levels")]
)
def test_clipping_sees_gradients_without_the_scale(recipe: dict[str, Any], tmp_path: Path) -> None:
    job = _job(tmp_path / "run", recipe, gradient_clip_norm=0.2)

    losses = run_job(job)["losses"]

    assert losses == pytest.approx(reference_losses(job), abs=TOLERANCES["fp16"])


def test_a_probe_whose_every_measured_step_overflows_is_no_measurement(tmp_path: Path) -> None:
    """After a first step with a rate of 300 gradients pass fp16's range while losses stay
    finite.
    """
    job = _job(tmp_path / "run", PIPELINE, learning_rate=300.0)

    result = run_job(job)

    assert result["status"] == "not-finite"
    assert (result["overflowed_steps"], result["step_times_s"]) == ([2, 3, 4, 5], [])
    assert None not in result["losses"]
    assert [event["loss_scale"] for event in read_progress(job)[1:]] == [
        2.0**power for power in (16, 15, 14, 13, 12)
    ]


def test_a_step_that_overflows_is_counted_and_not_measured(tmp_path: Path) -> None:
    """A rate of 100 lets the seventh step pass, once the factor has been halved five times."""
    job = _job(tmp_path / "run", PIPELINE, learning_rate=100.0)

    result = run_job(replace(job, probe=replace(job.probe, measured_steps=6)))

    assert result["status"] == "measured"
    assert result["overflowed_steps"] == [2, 3, 4, 5, 6]
    assert len(result["step_times_s"]) == 1
