"""The DeepSpeed engine where deepspeed itself is not needed: its checks, its configuration, its
absence.
"""

import importlib.util
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from frontrunner.evaluators.programs import preflight
from frontrunner.evaluators.trainer import deepspeed_disk
from frontrunner.evaluators.trainer.deepspeed_engine import (
    _set_places,
    configuration,
    zero_stage,
)
from frontrunner.evaluators.trainer.device_checks import check_job
from frontrunner.evaluators.trainer.job import Disk, Job
from frontrunner.spaces.errors import InvalidInput, installing
from support.trainer_runs import small_job, small_model, small_recipe

needs_deepspeed = pytest.mark.skipif(
    importlib.util.find_spec("deepspeed") is None, reason="deepspeed is an extra"
)
PIPELINE = {"pipeline_parallel": 2, "schedule": "1f1b"}


def job(precision: str = "fp32", model: dict[str, Any] | None = None, **recipe: Any) -> Job:
    chosen = small_recipe(**({"engine": "deepspeed"} | recipe))
    return small_job(
        Path("unused"), recipe=chosen, precision=precision, model=small_model(**(model or {}))
    )


@needs_deepspeed
@pytest.mark.parametrize(
    ("recipe", "stage"),
    [
        ({"data_parallel": 2}, 0),
        ({"data_parallel": 2, "sharding": (1, 1, 2)}, 1),
        ({"data_parallel": 2, "sharding": (1, 2, 2)}, 2),
        ({"data_parallel": 2, "sharding": (2, 2, 2)}, 3),
        ({}, 0),
        ({"precision": "bf16"}, 1),
        ({"offload": "optimizer"}, 1),
        ({"offload": "optimizer+parameters"}, 3),
        ({"offload": "nvme"}, 3),
    ],
)
def test_the_zero_stage_of_a_job(recipe: dict[str, Any], stage: int) -> None:
    assert zero_stage(job(**recipe)) == stage


@pytest.mark.parametrize(
    ("device", "number"), [(torch.device("cuda", 0), "0"), (torch.device("cpu"), "5")]
)
def test_deepspeed_is_told_the_number_of_the_device_that_the_rank_sees(
    device: torch.device, number: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sixth rank of a node, to which its launcher shows one device."""
    for name in ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "RANK", "WORLD_SIZE"):
        monkeypatch.setenv(name, "5")
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 13)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 16)

    _set_places(device)

    assert os.environ["LOCAL_RANK"] == os.environ["OMPI_COMM_WORLD_LOCAL_RANK"] == number


def test_zero_3_shards_every_matrix_of_a_small_model() -> None:
    """DeepSpeed's defaults would keep a model of this size whole."""
    settings = configuration(job(data_parallel=2, sharding=(2, 2, 2)), parameters=200_000)[
        "zero_optimization"
    ]

    smallest_matrix = small_model().hidden * small_model().hidden
    assert settings["stage3_param_persistence_threshold"] < smallest_matrix
    assert settings["stage3_max_reuse_distance"] == 0
    assert settings["reduce_bucket_size"] == 200_000 // len(small_model().layers)


def test_quantized_messages_are_asked_for_and_gradients_travel_as_the_kernels_read_them() -> None:
    zero_3 = {"data_parallel": 2, "sharding": (2, 2, 2), "precision": "bf16"}
    chosen = zero_3 | {"quantized_weights": True, "quantized_gradients": True}
    plain, asked = (configuration(job(**one), parameters=200_000) for one in (zero_3, chosen))

    keys = {"zero_quantized_weights": True, "zero_quantized_gradients": True}
    assert asked["zero_optimization"] == plain["zero_optimization"] | keys
    assert (plain["communication_data_type"], asked["communication_data_type"]) == ("fp32", "fp16")


def _on_disk(folder: Path, *, needed_bytes: int = 1, **recipe: Any) -> Job:
    chosen = {"data_parallel": 2, "sharding": (2, 2, 2), "offload": "nvme"} | recipe
    return replace(job(**chosen), disk=Disk(folder=str(folder), needed_bytes=needed_bytes))


def test_the_disk_holds_all_parameters_and_a_layer_of_the_optimizer_is_in_memory(
    tmp_path: Path,
) -> None:
    """DeepSpeed's defaults would keep 1e9 elements of either in memory."""
    large = {"hidden": 4096, "ffn_hidden": 16384, "heads": 32, "kv_heads": 32}
    tried = replace(_on_disk(tmp_path), model=small_model(**large))
    settings = configuration(tried, parameters=10**9)["zero_optimization"]

    assert settings["sub_group_size"] == (4 * 4096 * 4096 + 3 * 4096 * 16384) // 2
    assert settings["offload_param"]["max_in_cpu"] == 0
    assert (
        settings["offload_param"]["buffer_size"] == 4096 * 16384 // 2
    )  # the largest parameter's half
    for part in ("offload_optimizer", "offload_param"):
        assert (settings[part]["device"], settings[part]["nvme_path"]) == ("nvme", str(tmp_path))


@needs_deepspeed
def test_a_disk_without_the_operator_is_refused_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(
        ValueError, match=r"not built here; it is compiled when .* takes libaio-dev and g"
    ):
        check_job(_on_disk(tmp_path / "disk"), world_size=2)


@needs_deepspeed
def test_a_disk_needs_room_and_memory_to_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name in deepspeed_disk.OPERATORS:
        built = deepspeed_disk.built_folder("cpu") / name / f"{name}.so"
        built.parent.mkdir(parents=True)
        built.touch()
    monkeypatch.setattr(deepspeed_disk, "_lockable_bytes", lambda: 2**20)

    with pytest.raises(
        ValueError, match=rf"needs 1073741824\.00 GiB on {tmp_path}, which has .* GiB free"
    ):
        check_job(_on_disk(tmp_path / "disk", needed_bytes=2**60), world_size=2)
    # 4 buffers of a group of 2**20 elements, and two of a group of whole parameters, in fp32.
    with pytest.raises(
        ValueError, match=r"locks 0\.02 GiB of memory a rank, and the limit is 0\.00 GiB: raise"
    ):
        check_job(_on_disk(tmp_path / "disk"), world_size=2)


def test_the_torch_engine_does_not_import_deepspeed() -> None:
    program = (
        "import sys; from frontrunner.evaluators.trainer.entry import preload; preload(); "
        "sys.exit('deepspeed' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-P", "-c", program], check=False).returncode == 0


def test_an_engine_that_is_not_installed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    preflight._refuse_missing(("torch",), ("none",))
    monkeypatch.setattr(preflight, "find_spec", lambda name: None)
    preflight._refuse_missing(("torch",), ("none",))
    with pytest.raises(InvalidInput) as caught:
        preflight._refuse_missing(("torch", "deepspeed"), ("none",))
    assert (
        caught.value.message == 'space.engine = "deepspeed": expected an engine that is installed'
    )
    assert caught.value.hint == f"run: {installing('deepspeed')}"
