"""Exports are read by the tools' own parsers, where these are installed, to the recipe's numbers."""

from __future__ import annotations

import json
from unittest.mock import Mock, patch

import pytest
from hypothesis import HealthCheck, assume, given, settings

from frontrunner.evaluators.export import accelerate
from frontrunner.evaluators.export.tools import TOOLS
from frontrunner.spaces.recipe import Recipe
from frontrunner.spaces.sharding import SHARDING_NAMES
from support.formats import problem, recipes

PROBLEM = problem()
GENERATED = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.system
@pytest.mark.filterwarnings("ignore")  # those of deepspeed's own modules as they are imported
@GENERATED
@given(recipe=recipes(PROBLEM))
def test_deepspeed_reads_its_configuration_as_the_recipe(recipe: Recipe) -> None:
    pytest.importorskip("deepspeed")
    from deepspeed.runtime.config import DeepSpeedConfig

    assume(TOOLS["deepspeed"].why_not(PROBLEM, recipe) is None)
    written = json.loads(TOOLS["deepspeed"].render(PROBLEM, recipe, ("provenance",)))
    replicas = Mock(get_data_parallel_world_size=lambda: recipe.data_parallel)
    with patch("deepspeed.runtime.config.dist.get_rank", return_value=0):  # there are no ranks here
        read = DeepSpeedConfig(written, mpu=replicas)
    assert read.train_batch_size == recipe.global_batch_seqs
    assert read.train_micro_batch_size_per_gpu == recipe.micro_batch_seqs
    assert read.gradient_accumulation_steps == recipe.accumulation
    assert max(1, read.tensor_parallel_config.autotp_size) == recipe.tensor_parallel
    zero = read.zero_config
    if recipe.data_parallel > 1:
        assert int(zero.stage) == SHARDING_NAMES.index(recipe.sharding_name)
    assert zero.zero_hpz_partition_size == recipe.secondary_partition
    assert zero.zero_quantized_weights == recipe.quantized_weights
    assert zero.zero_quantized_gradients == recipe.quantized_gradients
    offloaded = {"none": 0, "optimizer": 1}.get(recipe.offload, 2)
    assert (zero.offload_optimizer is not None) + (zero.offload_param is not None) == offloaded


@pytest.mark.system
@pytest.mark.filterwarnings("ignore")
@GENERATED
@given(recipe=recipes(PROBLEM))
def test_accelerate_reads_its_configuration_as_the_recipe(
    recipe: Recipe, tmp_path_factory: pytest.TempPathFactory
) -> None:
    pytest.importorskip("accelerate")
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser

    assume(TOOLS["accelerate"].why_not(PROBLEM, recipe) is None)
    path = tmp_path_factory.mktemp("accelerate") / accelerate.FILE
    path.write_text(TOOLS["accelerate"].export(PROBLEM, recipe).files[accelerate.FILE])
    given_arguments = ["--config_file", str(path), "--machine_rank", "0", "train.py"]
    arguments, _, _ = _validate_launch_command(launch_command_parser().parse_args(given_arguments))
    assert arguments.num_processes == recipe.devices
    if recipe.sharding.optimizer == 1 and recipe.tensor_parallel == 1 and recipe.offload == "none":
        assert not arguments.use_fsdp
        assert not arguments.use_deepspeed
    elif recipe.sharding_name == "zero-1":
        assert arguments.use_deepspeed
        assert arguments.zero_stage == 1
        assert arguments.gradient_accumulation_steps == recipe.accumulation
    else:
        assert arguments.use_fsdp
        assert arguments.use_parallelism_config
        assert arguments.parallelism_config_tp_size == recipe.tensor_parallel
        assert arguments.parallelism_config_cp_size == recipe.context_parallel
        shards = arguments.parallelism_config_dp_shard_size
        assert shards * recipe.context_parallel == recipe.sharding.optimizer
        assert shards * arguments.parallelism_config_dp_replicate_size == recipe.data_parallel
