"""The levers of compilation and memory change how a step is run, never what it computes.

Each row is held against one process with a plain model, by SGD with momentum, as in
`test_numerics.py`.
"""

import os
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from frontrunner.evaluators.trainer.job import Job
from frontrunner.evaluators.trainer.model import Gpt
from frontrunner.evaluators.trainer.torch_engine import compiled
from support.trainer_runs import (
    CLIP_NORM,
    EXPERTS,
    assert_trains_as_one_process,
    look,
    prepare,
    reference_losses,
    run_job,
    small_job,
    small_model,
    small_recipe,
    training_job,
)

TOLERANCE = 1e-5
PIECES = {"loss_chunks": 4, "feed_forward_tiles": 2}
ZERO_3 = {"data_parallel": 2, "sharding": (2, 2, 2), "micro_batch_seqs": 1}
LEVELS = {"data_parallel": 4, "sharding": (2, 2, 4), "micro_batch_seqs": 1}
SEQUENCE_PARALLEL = {"tensor_parallel": 2, "sequence_parallel": True}
ONE_F_ONE_B = {"pipeline_parallel": 2, "schedule": "1f1b", "micro_batch_seqs": 1}
CONTEXT = {"context_parallel": 2}
TIED = {"positions": "learned", "activation": "gelu", "norm": "layernorm", "tied_embeddings": True}


def _looped(schedule: str) -> dict[str, Any]:
    return ONE_F_ONE_B | {"schedule": schedule, "virtual_stages": 2}


IN_PIECES = {
    "one-rank": {},
    "tp2": {"tensor_parallel": 2},
    "tp2-sp": SEQUENCE_PARALLEL,
    "dp2-ddp": {"data_parallel": 2, "replication": "ddp"},
    "dp2-zero3-full": ZERO_3 | {"recompute": "full"},
    "pp2-1f1b": ONE_F_ONE_B,
    "pp2-zbv": _looped("zbv"),
}
MORE_IN_PIECES = {
    "pp2-interleaved": _looped("interleaved-1f1b"),
    "pp2-interleaved-zero-bubble": _looped("interleaved-zero-bubble"),
    "pp2-dualpipev-full": _looped("dualpipev") | {"recompute": "full"},
    "tp2-sp-cp2": SEQUENCE_PARALLEL | CONTEXT,
    "cp2-pp2-1f1b": CONTEXT | ONE_F_ONE_B,
    "tp2-sp-pp2-dp2-zero3": SEQUENCE_PARALLEL | ONE_F_ONE_B | ZERO_3,
}


def _training(
    folder: Path, recipe: dict[str, Any], *, model: Any = None, clip_norm: float | None = None
) -> Job:
    job = small_job(
        folder / "run", recipe=small_recipe(**recipe), model=small_model(**(model or {}))
    )
    return training_job(job, clip_norm=clip_norm)


def _rows(by_day: dict[str, dict[str, Any]], nightly: dict[str, dict[str, Any]]) -> list[Any]:
    return [
        *(pytest.param(recipe, id=name) for name, recipe in by_day.items()),
        *(
            pytest.param(recipe, id=name, marks=pytest.mark.nightly)
            for name, recipe in nightly.items()
        ),
    ]


@pytest.mark.parametrize("recipe", _rows(IN_PIECES, MORE_IN_PIECES))
def test_pieces_change_no_number(recipe: dict[str, Any], tmp_path: Path) -> None:
    assert_trains_as_one_process(_training(tmp_path, recipe | PIECES))


def test_pieces_of_a_tied_head_change_no_number(tmp_path: Path) -> None:
    assert_trains_as_one_process(_training(tmp_path, SEQUENCE_PARALLEL | PIECES, model=TIED))


@pytest.mark.parametrize(
    ("lever", "model", "pieces_bytes"),
    [
        # 8 sequences of 128 tokens: logits in fp32, and as much again for their gradient at the
        # least. With fewer words the peak of a process is another's, at its start.
        pytest.param(
            "loss_chunks",
            {"vocabulary": 131072},
            2 * 8 * 128 * 131072 * 4,
            id="loss_chunks",
            marks=pytest.mark.nightly,
        ),
        # gate, up, the gate's SiLU and the product, of each of the layers.
        pytest.param(
            "feed_forward_tiles",
            {"ffn_hidden": 8192},
            4 * 4 * 8 * 128 * 8192 * 4,
            id="feed_forward_tiles",
        ),
    ],
)
def test_pieces_take_less_memory(
    lever: str, model: dict[str, Any], pieces_bytes: int, tmp_path: Path
) -> None:
    """Eight pieces must save at least half of what the whole would hold."""
    peaks = {}
    for pieces in (1, 8):
        shape = small_model(**model)
        job = small_job(tmp_path / str(pieces), recipe=small_recipe(**{lever: pieces}), model=shape)
        job = replace(job, sequence_length=128, probe=replace(job.probe, measured_steps=1))  # type: ignore[type-var]
        (peaks[pieces],) = run_job(job)["peak_memory_bytes"]

    assert peaks[1] - peaks[8] > pieces_bytes / 2


REPLICAS = {"data_parallel": 2, "micro_batch_seqs": 1}
HYBRID = {"data_parallel": 4, "sharding": (2, 2, 2), "micro_batch_seqs": 1}
OFFLOADED = {"offload": "optimizer+parameters"}
ON_HOST = {"activation_offload": True}
EACH = {"gradient_sync": "each"}
# On a CPU the moves are copies within one memory: they show that the right values come back.
HOST_AND_EACH = {
    "host-activations": ON_HOST,
    "host-activations-dp4-levels": ON_HOST | LEVELS,
    "host-activations-dp2-zero3-full-pieces": ON_HOST | ZERO_3 | PIECES | {"recompute": "full"},
    "host-activations-pp2-zbv": ON_HOST | _looped("zbv"),
    "offload": OFFLOADED,
    "offload-dp2-zero3": OFFLOADED | ZERO_3,
    "each-pp2-1f1b-dp2": EACH | REPLICAS | ONE_F_ONE_B,
    "each-dp2-ddp": EACH | REPLICAS | {"replication": "ddp"},
    "each-dp4-hybrid": EACH | HYBRID,
}
MORE_HOST_AND_EACH = {
    "host-activations-tp2-sp-zero3": ON_HOST | ZERO_3 | SEQUENCE_PARALLEL,
    "host-activations-pp2-1f1b-selective": ON_HOST | ONE_F_ONE_B | {"recompute": "selective"},
    "offload-dp4-hybrid": OFFLOADED | HYBRID,
    "offload-pp2-dp2-zero3": OFFLOADED | ZERO_3 | ONE_F_ONE_B,
    "offload-tp2-dp2-zero3": OFFLOADED | ZERO_3 | {"tensor_parallel": 2},
    "each-tp2-dp2": EACH | REPLICAS | {"tensor_parallel": 2},
    "each-cp2": EACH | CONTEXT | {"micro_batch_seqs": 2},
    "host-activations-cp2-full-pieces": ON_HOST | CONTEXT | PIECES | {"recompute": "full"},
    "host-activations-cp2-pp2-zbv": ON_HOST | CONTEXT | _looped("zbv"),
    "offload-cp2-zero3": OFFLOADED | CONTEXT | {"sharding": (2, 2, 2)},
}


@pytest.mark.parametrize("recipe", _rows(HOST_AND_EACH, MORE_HOST_AND_EACH))
def test_where_things_lie_and_when_gradients_meet_change_no_number(
    recipe: dict[str, Any], tmp_path: Path
) -> None:
    assert_trains_as_one_process(_training(tmp_path, recipe, clip_norm=CLIP_NORM))


@pytest.mark.parametrize(
    "recipe",
    _rows(
        {"dp2-zero3-ep2-selective": ZERO_3 | {"expert_parallel": 2, "recompute": "selective"}},
        {
            "dp2-zero3-ep2": ZERO_3 | {"expert_parallel": 2},
            "tp2-sp-etp2-selective": SEQUENCE_PARALLEL
            | {"expert_tensor_parallel": 2, "recompute": "selective"},
        },
    ),
)
def test_activations_of_experts_in_the_hosts_memory_change_no_number(
    recipe: dict[str, Any], tmp_path: Path
) -> None:
    assert_trains_as_one_process(_training(tmp_path, ON_HOST | recipe, model=EXPERTS))


@pytest.mark.parametrize(
    "recipe",
    _rows(
        {"one-rank": {}, "dp2-zero3": ZERO_3, "dp4-levels": LEVELS},
        {"tp2-sp": SEQUENCE_PARALLEL, "cp2": CONTEXT},
    ),
)
def test_states_in_bf16_follow_those_in_fp32(recipe: dict[str, Any], tmp_path: Path) -> None:
    """A momentum of 8 bits of mantissa moves losses near 5 by about 1e-3, and by more than rounding
    in fp32 does.
    """
    job = small_job(tmp_path / "run", recipe=small_recipe(**recipe, optimizer_state="bf16"))

    losses = run_job(job)["losses"]

    reference = reference_losses(job)
    assert losses == pytest.approx(reference, abs=0.005)
    assert losses != pytest.approx(reference, abs=TOLERANCE)


FULL_PIECES = {"recompute": "full", "micro_batch_seqs": 1} | PIECES
# A block that was compiled before is not compiled again: those of the cases of full pieces are
# alike.
COMPILED = {
    "dp2-zero3-full-pieces": ZERO_3 | FULL_PIECES,
}
MORE_COMPILED = {
    "dp4-levels-full-pieces": LEVELS | FULL_PIECES,
    "one-rank-full-pieces": FULL_PIECES,
    "dp2-ddp": {"data_parallel": 2, "replication": "ddp"},
    "tp2-sp-cp2": SEQUENCE_PARALLEL | CONTEXT,
    "tp2-sp-selective": SEQUENCE_PARALLEL | {"recompute": "selective"},
    "tp2-sp-pp2-interleaved-pieces": SEQUENCE_PARALLEL | _looped("interleaved-1f1b") | PIECES,
    "dp2-zero3-selective": ZERO_3 | {"recompute": "selective"},
}


@pytest.mark.parametrize("recipe", _rows(COMPILED, MORE_COMPILED))
def test_compiled_blocks_train_as_one_process(recipe: dict[str, Any], tmp_path: Path) -> None:
    job = _training(tmp_path, recipe | {"compile": True}, model={"kv_heads": 2})
    assert_trains_as_one_process(replace(job, collective_timeout_s=500.0))


@pytest.mark.parametrize(
    "recipe",
    _rows(
        {},
        {
            "dp2-zero3-ep2-tiles": ZERO_3 | {"expert_parallel": 2, "feed_forward_tiles": 2},
            "tp2-sp-etp2": SEQUENCE_PARALLEL | {"expert_tensor_parallel": 2},
        },
    ),
)
def test_layers_with_experts_are_compiled_in_part(recipe: dict[str, Any], tmp_path: Path) -> None:
    job = _training(tmp_path, recipe | {"compile": True}, model=EXPERTS)
    assert_trains_as_one_process(replace(job, collective_timeout_s=500.0))


@pytest.mark.parametrize("recipe", _rows({}, COMPILED | MORE_COMPILED))
def test_blocks_compile_before_the_measurement(recipe: dict[str, Any], tmp_path: Path) -> None:
    model = small_model(kv_heads=2)
    job = small_job(
        tmp_path / "run",
        recipe=small_recipe(**recipe, compile=True),
        model=model,
        collective_timeout_s=500.0,
    )

    result = run_job(job)

    assert result["losses"] == pytest.approx(reference_losses(job), abs=TOLERANCE)
    assert result["compiled_steps"] == [1]
    assert 0 < result["compile_time_s"] <= result["first_step_time_s"]
    assert len(result["step_times_s"]) == 4


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own
@pytest.mark.nightly
def test_a_compiled_layer_keeps_what_selective_recompute_says() -> None:
    """The input and the outputs of products and attention, but for the last product's, which no
    gradient needs.
    """
    shape, kept = small_model(kv_heads=2), {}
    model = Gpt(
        shape, sequence_length=32, layers=range(1), recipe=small_recipe(recompute="selective")
    )
    model.compile_blocks(partial(compiled, device_type="cpu"), torch.device("cpu"))
    weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    x = torch.randn(2, 32, shape.hidden, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        y = model.blocks["0"](x)

    found = sorted(size for place, size in kept.items() if place not in weights)
    width = 2 * 32 * 4  # bytes of one value per token; attention keeps a number per head besides
    expected = [32 * width, 32 * width, *[64 * width] * 4, 128 * width, 128 * width]
    assert [size for size in found if size > 4 * width] == expected
    assert y.requires_grad


def test_a_step_that_compiles_is_not_measured(tmp_path: Path) -> None:
    recipe = small_recipe(**FULL_PIECES, compile=True)
    job = small_job(
        tmp_path / "run", recipe=recipe, model=small_model(kv_heads=2), collective_timeout_s=500.0
    )
    assert job.probe is not None
    result = run_job(replace(job, probe=replace(job.probe, warm_up_steps=0)))

    assert result["compiled_steps"] == [1]
    assert len(result["step_times_s"]) == 3


def test_compiling_without_a_compiler_is_refused_while_starting(tmp_path: Path) -> None:
    job = small_job(tmp_path / "run", recipe=small_recipe(compile=True))
    command = [sys.executable, "-P", "-m", "frontrunner.evaluators.trainer", str(prepare(job))]

    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "CXX": "no-such-compiler"}
    done = subprocess.run(
        command, check=False, timeout=600, env=environment, capture_output=True, text=True
    )

    assert done.returncode == 1
    error = (Path(job.run_folder) / "rank-0.error.json").read_text()
    assert "compile needs a C++ compiler on a CPU" in error
    assert '"phase": "starting"' in error
    assert '"type": "ValueError"' in error


@pytest.mark.parametrize("micro_batch", [1, 2])
def test_torch_finds_what_async_tensor_parallelism_overlaps(
    micro_batch: int, tmp_path: Path
) -> None:
    """Two gathers, for query, key and value, and for gate and up; two sums, of output and of
    down.
    """
    job = small_job(
        tmp_path / "run",
        recipe=small_recipe(**SEQUENCE_PARALLEL | {"micro_batch_seqs": micro_batch}),
    )

    for found in look(job, "overlap"):
        assert found == {"gathers": [3, 2], "sums": [1, 1]}
