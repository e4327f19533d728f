"""Exports are read by the tools' own parsers, where these are installed, to the recipe's
numbers.
"""

from __future__ import annotations

import argparse
import importlib.abc
import importlib.machinery
import json
import math
import shlex
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import pytest
import yaml
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from frontrunner.config.campaign import preset_model
from frontrunner.evaluators.export import accelerate
from frontrunner.evaluators.export.megatron import FSDP
from frontrunner.evaluators.export.reading import Given
from frontrunner.evaluators.export.tools import TOOLS
from frontrunner.spaces.cluster import ByPrecision
from frontrunner.spaces.model.attention import LatentAttention
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import Recipe
from frontrunner.spaces.sharding import SHARDING_NAMES, Sharding
from support.formats import deepseek, gpt_oss, problem, recipes

PROBLEM = problem()
EXPERTS = problem(experts=8, experts_per_token=2)
DEEPSEEK = deepseek()
GPT_OSS = gpt_oss()
UNSCALED = problem(experts=8, experts_per_token=2, renormalized_experts=False)
WITH_FP8 = replace(
    PROBLEM, tolerance="quantized",
    cluster=replace(PROBLEM.cluster, peak_tflops=ByPrecision(bf16=2250, fp8=4500), mxfp8=True),
)  # fmt: skip
GENERATED = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


@st.composite
def expressed(draw: Any, name: str) -> tuple[Problem, Recipe]:
    """A problem, with experts or without, and a recipe of it that the tool can express."""
    of = draw(st.sampled_from([PROBLEM, WITH_FP8, EXPERTS, UNSCALED, DEEPSEEK, GPT_OSS]))
    recipe = draw(recipes(of))
    assume(TOOLS[name].why_not(of, recipe) is None)
    return of, recipe


class _Anything(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything(name, (), {})


class _StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Modules that have whatever is asked of them, for packages that need a GPU to be installed."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names

    def find_spec(
        self, name: str, path: Any, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        is_ours = name.partition(".")[0] in self.names
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if is_ours else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = types.ModuleType(spec.name)
        module.__dict__.update(
            __version__="2.0", __getattr__=lambda name: _Anything.__getattr__(_Anything, name)
        )
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        pass


@contextmanager
def stand_ins(*names: str) -> Iterator[None]:
    found = _StandIns(names)
    sys.meta_path.append(found)
    try:
        yield
    finally:
        sys.meta_path.remove(found)


def imported(name: str, *needs_a_gpu: str) -> Any:
    """The tool's module, with stand-ins for packages that need a GPU; skips where the tool is not
    installed.
    """
    with stand_ins(*needs_a_gpu):
        return pytest.importorskip(name, exc_type=ImportError)


@pytest.mark.filterwarnings("ignore")  # those of deepspeed's own modules as they are imported
@GENERATED
@given(data=expressed("deepspeed"))
def test_deepspeed_reads_its_configuration_as_the_recipe(data: tuple[Problem, Recipe]) -> None:
    pytest.importorskip("deepspeed")
    from deepspeed.module_inject.auto_ep_config import validate_autoep_config
    from deepspeed.runtime.config import DeepSpeedConfig

    of, recipe = data
    written = json.loads(TOOLS["deepspeed"].render(of, recipe, ("provenance",)))
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
    experts = read.expert_parallel_config
    assert experts.enabled == (recipe.expert_parallel > 1)
    assert experts.autoep_size == recipe.expert_parallel
    validate_autoep_config(
        experts, recipe.devices, 1, recipe.tensor_parallel, 1, zero_stage=int(zero.stage)
    )


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


def megatron_words(parser: argparse.ArgumentParser, read: argparse.Namespace) -> Iterator[str]:
    """What was parsed, as arguments of all that is not as by default."""
    for action in parser._actions:
        value = getattr(read, action.dest, action.default)
        if not action.option_strings or value == action.default:
            continue
        of_no = [
            name for name in action.option_strings if isinstance(action, argparse._StoreFalseAction)
        ]
        yield (of_no or [max(action.option_strings, key=len)])[0]
        if action.nargs != 0:
            values = value if action.nargs in ("*", "+") and isinstance(value, list) else [value]
            yield from (shlex.quote(str(one).replace(", ", ",")) for one in values)


@pytest.mark.filterwarnings("ignore")
@GENERATED
@given(data=expressed("megatron-lm"))
def test_megatron_lm_reads_and_validates_its_arguments_as_the_recipe(
    data: tuple[Problem, Recipe],
) -> None:
    """Needs Megatron-LM's source tree on the path: its package has no `megatron.training`."""
    theirs = imported("megatron.training.arguments", "transformer_engine")
    of, recipe = data
    parser = argparse.ArgumentParser(allow_abbrev=False)
    theirs.add_megatron_arguments(parser)
    read = parser.parse_args(
        [*TOOLS["megatron-lm"].export(of, recipe).arguments, "--lr", "1e-4", "--train-iters", "9",
            "--mock-data",
         "--tokenizer-type", "NullTokenizer", "--vocab-size", str(of.model.embedding.vocabulary)]
    )  # fmt: skip
    again = Given(
        text=" ".join(megatron_words(parser, read)),
        stated={"engine": "torch", "devices": recipe.devices},
    )
    script = TOOLS["megatron-lm"].render(of, recipe, ())
    assert TOOLS["megatron-lm"].read(of, again) == TOOLS["megatron-lm"].read(
        of, replace(again, text=script, tables=[])
    )
    read.rank, read.world_size = 0, recipe.devices
    gpu = Mock(major=9, minor=0)
    with (
        patch("torch.cuda.get_device_capability", return_value=(9, 0)),
        patch("torch.cuda.get_device_properties", return_value=gpu),
        patch.dict(
            "os.environ", CUDA_DEVICE_MAX_CONNECTIONS="8" if recipe.sharding_name in FSDP else "1"
        ),
    ):
        read = theirs.validate_args(read)
    assert read.data_parallel_size == recipe.data_parallel
    assert read.transformer_pipeline_model_parallel_size == recipe.pipeline_parallel
    assert (read.virtual_pipeline_model_parallel_size or 1) == recipe.virtual_stages
    assert read.sequence_parallel == recipe.sequence_parallel
    assert read.expert_model_parallel_size == recipe.expert_parallel
    scaling = {
        "none": (None, "delayed"),
        "tensorwise": ("hybrid", "tensorwise"),
        "mxfp8": ("e4m3", "mxfp8"),
    }
    assert (read.fp8, read.fp8_recipe) == scaling[recipe.fp8]
    model = theirs.core_transformer_config_from_args(read)
    if isinstance(of.model.attention, LatentAttention):
        assert model.qk_head_dim + model.qk_pos_emb_head_dim == of.model.attention.head_dim
        scores = 0.1 * model.mscale_all_dim * math.log(model.rotary_scaling_factor) + 1
        assert scores**2 == pytest.approx(of.model.rotary.scaling.score_factor, rel=1e-6)
    assert (model.num_moe_experts or 0) == (of.model.mixture.experts if of.model.mixture else 0)
    if of is GPT_OSS:
        assert (model.window_size, model.window_attn_skip_freq, model.softmax_type) == (
            (127, 0),
            2,
            "learnable",
        )
        assert (model.activation_func.__name__, model.gated_linear_unit) == ("quick_gelu", True)
        assert (model.glu_linear_offset, model.activation_func_clamp_value) == (1.0, 7.0)
        assert model.add_bias_linear
        assert not model.bias_dropout_fusion
    if of.model.mixture:
        assert model.moe_router_topk == of.model.mixture.experts_per_token
        assert model.moe_router_pre_softmax == (not of.model.mixture.renormalized_experts)
        assert model.moe_ffn_hidden_size == of.model.feed_forward.ffn_hidden
        assert model.expert_tensor_parallel_size == recipe.expert_tensor_parallel
        kinds = [0] * of.model.dense_layers + [1] * (len(of.model.layers) - of.model.dense_layers)
        assert model.moe_layer_freq in (1, kinds)
        assert model.moe_router_enable_expert_bias == (of.model.mixture.balancing == "bias")
        assert model.moe_token_dispatcher_type == "alltoall"


@pytest.mark.filterwarnings("ignore")
@GENERATED
@given(data=expressed("nemo"))
def test_megatron_bridge_reads_its_yaml_and_its_overrides_as_the_recipe(
    data: tuple[Problem, Recipe], tmp_path_factory: pytest.TempPathFactory
) -> None:
    imported("megatron.bridge.training.config", "transformer_engine")
    from megatron.bridge.models import GPTModelProvider
    from megatron.bridge.training import config as theirs
    from megatron.bridge.training.mixed_precision import get_mixed_precision_config
    from megatron.bridge.training.utils.omegaconf_utils import process_config_with_overrides

    of, recipe = data
    path = tmp_path_factory.mktemp("bridge") / "recipe.yaml"
    path.write_text(TOOLS["nemo"].render(of, recipe, ()))
    for source in (
        {"config_filepath": str(path)},
        {"cli_overrides": list(TOOLS["nemo"].export(of, recipe).arguments)},
    ):
        container = theirs.ConfigContainer(
            train=theirs.TrainingConfig(train_iters=9),
            model=GPTModelProvider(
                num_layers=len(of.model.layers),
                hidden_size=256,
                num_attention_heads=8,
                num_moe_experts=8,
            ),
            optimizer=theirs.OptimizerConfig(),
            scheduler=theirs.SchedulerConfig(),
            dataset=theirs.MockGPTDatasetConfig(
                seq_length=256,
                random_seed=1,
                reset_position_ids=False,
                reset_attention_mask=False,
                eod_mask_loss=False,
            ),
            logger=theirs.LoggerConfig(),
            tokenizer=theirs.TokenizerConfig(),
            checkpoint=theirs.CheckpointConfig(),
        )
        read = process_config_with_overrides(container, **source)
        written = yaml.safe_load(path.read_text())
        mixed = written.pop("mixed_precision", None)
        assert read.mixed_precision == mixed
        if mixed is not None:
            mixed = get_mixed_precision_config(mixed)
            scaling = {"tensorwise": ("hybrid", "tensorwise"), "mxfp8": ("e4m3", "mxfp8")}[
                recipe.fp8
            ]
            assert (mixed.bf16, mixed.fp8, mixed.fp8_recipe) == (True, *scaling)
        for section, settings_of in written.items():
            for key, value in settings_of.items():
                assert getattr(getattr(read, section), key) == value, (section, key)
        assert read.get_data_parallel_size(recipe.devices) == recipe.data_parallel


def titan_words(read: Any) -> Iterator[str]:
    """What torchtitan's parser holds of parallelism, training, compiling and recompute, as
    arguments again.
    """
    for section in ("parallelism", "training", "compile"):
        for one in fields(part := getattr(read, section)):
            value, name = getattr(part, one.name), f"--{section}.{one.name}"
            if isinstance(value, bool):
                yield name if value else f"--{section}.no-{one.name}"
            elif isinstance(value, str | int | float):
                yield f"{name} {shlex.quote(str(value))}"
    recompute = type(read.activation_checkpoint).__qualname__.lower()
    kind = next((word for word in ("full", "selective") if word in recompute), "none")
    yield f"activation-checkpoint:{kind}"


@pytest.mark.filterwarnings("ignore")
@GENERATED
@given(data=expressed("torchtitan"))
def test_torchtitan_reads_its_arguments_as_the_recipe(data: tuple[Problem, Recipe]) -> None:
    config = imported("torchtitan.config")
    imported("torchtitan.models.qwen3.config_registry")
    of, recipe = data
    named = (
        "--module",
        "qwen3",
        "--config",
        "qwen3_moe_debug" if of.model.mixture else "qwen3_debugmodel",
    )
    read = config.ConfigManager().parse_args(
        [*named, *TOOLS["torchtitan"].export(of, recipe).arguments]
    )
    mesh = read.parallelism
    assert mesh.tensor_parallel_degree == recipe.tensor_parallel
    assert mesh.pipeline_parallel_degree == recipe.pipeline_parallel
    assert mesh.context_parallel_degree == recipe.context_parallel
    assert mesh.expert_parallel_degree == recipe.expert_parallel
    assert (
        mesh.data_parallel_replicate_degree * mesh.data_parallel_shard_degree
        == recipe.data_parallel
    )
    assert read.training.global_batch_size == recipe.global_batch_seqs
    assert (
        read.activation_checkpoint is None
        or recipe.recompute in type(read.activation_checkpoint).__qualname__.lower()
    )
    again = Given(
        text=" ".join(titan_words(read)), stated={"engine": "torch", "devices": recipe.devices}
    )
    script = TOOLS["torchtitan"].render(of, recipe, ())
    assert TOOLS["torchtitan"].read(of, again) == TOOLS["torchtitan"].read(
        of, replace(again, text=script, tables=[])
    )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("fp8", ["rowwise", "mxfp8"])
@pytest.mark.parametrize(
    ("preset", "converted"),
    [("llama-3.1-8b", ["wqkv", "wo", "w1", "w2", "w3"]), ("qwen3-30b-a3b", ["wqkv", "wo"])],
)
def test_torchtitan_converts_the_layers_that_the_probed_recipe_has_in_8_bits(
    preset: str, converted: list[str], fp8: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = imported("torchtitan.config")
    linear = imported("torchtitan.models.common.linear")
    of = replace(WITH_FP8, model=preset_model(preset), sequence_length=4096)
    recipe = Recipe(
        devices=16,
        micro_batch_seqs=1,
        accumulation=1,
        sharding=Sharding.named("zero-3", 16),
        fp8=fp8,
    )
    export = TOOLS["torchtitan"].export(of, recipe)
    ((name, text),) = export.files.items()
    (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, name.removesuffix(".py"), raising=False)
    for one in ("float8", "mx"):
        monkeypatch.setattr(
            f"torchtitan.components.quantization.{one}.has_cuda_capability", lambda *_: True
        )
    read = config.ConfigManager().parse_args(list(export.arguments))
    layers = list(read.model_spec.model.traverse(linear.Linear.Config))
    changed = {
        fqn.split(".", 2)[2] for fqn, one, *_ in layers if type(one) is not linear.Linear.Config
    }
    assert {fqn.rpartition(".")[2] for fqn in changed} == {*converted}
    assert sum(type(one) is not linear.Linear.Config for _, one, *_ in layers) == len(
        converted
    ) * len(of.model.layers)


@pytest.mark.filterwarnings("ignore")
@GENERATED
@given(data=expressed("nanotron"))
def test_nanotron_reads_its_configuration_as_the_recipe(
    data: tuple[Problem, Recipe], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Needs nanotron's source tree on the path: its release 0.4 has neither recompute of layers nor
    experts.
    """
    imported("nanotron.config", "flash_attn", "grouped_gemm")
    from nanotron.config import get_config_from_file
    from nanotron.config.models_config import LlamaConfig, Qwen2Config

    of, recipe = data
    path = tmp_path_factory.mktemp("nanotron") / "nanotron.yaml"
    path.write_text(TOOLS["nanotron"].render(of, recipe, ()))
    read = get_config_from_file(str(path), model_config_class=None)
    read.save_as_yaml(str(path.with_name("again.yaml")))
    script, again = (
        Given(text=one.read_text(), stated={"engine": "torch", "devices": recipe.devices})
        for one in (path, path.with_name("again.yaml"))
    )
    assert TOOLS["nanotron"].read(of, again) == TOOLS["nanotron"].read(of, script)
    mesh, model = read.parallelism, read.model.model_config
    assert isinstance(model, Qwen2Config if of.model.mixture else LlamaConfig)
    assert (mesh.dp, mesh.pp, mesh.tp) == (
        recipe.data_parallel,
        recipe.pipeline_parallel,
        recipe.tensor_parallel,
    )
    assert mesh.recompute_layer == (recipe.recompute == "full")
    assert read.tokens.micro_batch_size == recipe.micro_batch_seqs
    if of.model.mixture:
        assert (model.moe_config.num_experts, model.moe_config.top_k) == (8, 2)
        assert model.moe_config.moe_intermediate_size == of.model.feed_forward.ffn_hidden
        assert model.moe_config.layers == list(range(len(of.model.layers)))
