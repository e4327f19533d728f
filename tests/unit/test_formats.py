"""Recipes in other tools' words: what is written is read back to the same recipe, and nothing is
dropped.
"""

from __future__ import annotations

import math
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import frontrunner
from frontrunner.cli.main import frontrunner as command
from frontrunner.config.campaign import read_campaign_file
from frontrunner.evaluators.export.batch import SCHEDULERS
from frontrunner.evaluators.export.megatron import _leading_dense, layers_of_layout, layout
from frontrunner.evaluators.export.reading import (
    Given,
    is_harmless,
    refuse_not_understood,
    split_files,
)
from frontrunner.evaluators.export.shell import read_script
from frontrunner.evaluators.export.tools import TOOLS
from frontrunner.evaluators.nodes.settings import DispatchSettings
from frontrunner.evaluators.runs.settings import DataSettings
from frontrunner.exchange import import_config
from frontrunner.spaces.cluster import ByPrecision
from frontrunner.spaces.document import read_plain, recipe_id
from frontrunner.spaces.errors import InvalidInput
from frontrunner.spaces.model.model import KEYS, Model
from frontrunner.spaces.model.positions import RotaryScaling
from frontrunner.spaces.presets import model_preset
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import Recipe
from frontrunner.spaces.sharding import Sharding
from support import charted
from support.campaigns import spec_of, tiny, tiny_recipe, write_toml
from support.formats import deepseek, gpt_oss, problem, recipes

PROBLEM = problem()
EXPERTS = problem(experts=8, experts_per_token=2)
WITH_FP8 = replace(
    PROBLEM,
    tolerance="quantized",
    cluster=replace(PROBLEM.cluster, peak_tflops=ByPrecision(bf16=989, fp8=1979), mxfp8=True),
)
DEEPSEEK = deepseek()
GPT_OSS_LIKE = gpt_oss()
UNSCALED = problem(experts=8, experts_per_token=2, renormalized_experts=False)
HEADER = ("a recipe of 'x' $(y) `z`", "line\nbreak")
GENERATED = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


def as_read(recipe: Recipe) -> Recipe:
    """What never travels, at its default."""
    return replace(recipe, engine="torch", replication="replicate")


@pytest.mark.parametrize("name", TOOLS)
@settings(GENERATED, max_examples=120)
@given(data=st.data())
def test_what_can_be_said_is_read_back_to_the_same_recipe(name: str, data: st.DataObject) -> None:
    of = data.draw(st.sampled_from([PROBLEM, WITH_FP8, EXPERTS, UNSCALED, DEEPSEEK, GPT_OSS_LIKE]))
    recipe = data.draw(recipes(of))
    reason = TOOLS[name].why_not(of, recipe)
    if reason is not None:
        with pytest.raises(InvalidInput, match="does not take this recipe"):
            TOOLS[name].export(of, recipe)
        return
    text = TOOLS[name].render(of, recipe, HEADER)
    stated = {"engine": "torch"} | ({"devices": recipe.devices} if name == "nemo" else {})
    given = Given(text=text, stated=stated)
    assert TOOLS[name].read(of, given) == as_read(recipe)
    assert TOOLS[name].ignored(of, given, as_read(recipe)) == ()


@pytest.mark.parametrize(
    ("name", "fp8", "said"),
    [
        ("megatron-lm", "tensorwise", "--fp8-format hybrid"),
        ("nemo", "tensorwise", "mixed_precision: bf16_with_fp8_current_scaling_mixed"),
        ("megatron-lm", "mxfp8", "--fp8-format e4m3"),
        ("nemo", "mxfp8", "mixed_precision: bf16_with_mxfp8_mixed"),
        ("megatron-lm", "rowwise", "scales by tensors and blocks, not by rows"),
        ("torchtitan", "tensorwise", "by rows and blocks, not by tensors: fp8 rowwise and mxfp8"),
        ("torchtitan", "mxfp8", "converts to 8 bits a configuration of its own"),
        ("nanotron", "tensorwise", "no setting for fp8"),
        ("accelerate", "tensorwise", "no setting for fp8"),
        ("megatron-deepspeed", "tensorwise", "no setting for fp8"),
    ],
)
def test_products_in_8_bits_are_said_or_refused_by_name(name: str, fp8: str, said: str) -> None:
    sharding = Sharding.named("zero-3" if name == "accelerate" else "zero-1", 8)
    recipe, tool = replace(PLAIN, fp8=fp8, sharding=sharding), TOOLS[name]
    if reason := tool.why_not(WITH_FP8, recipe):
        assert said in reason.text
        return
    text = tool.render(WITH_FP8, recipe, HEADER)
    assert said in text
    assert (
        tool.read(WITH_FP8, Given(text=text, stated={"engine": "torch", "devices": 16})) == recipe
    )


@pytest.mark.parametrize(
    ("fp8", "model", "config", "registry"),
    [
        ("rowwise", "llama-3.1-8b", "llama3_8b", "llama3"),
        ("mxfp8", "llama-3.1-8b", "llama3_8b", "llama3"),
        ("rowwise", "deepseek-v3", "deepseek_v3_671b", "deepseek_v3"),
        ("mxfp8", "gpt-oss-20b", "gpt_oss_20b", "gpt_oss"),
    ],
)
def test_torchtitan_converts_its_own_model_by_a_module_that_the_script_writes(
    fp8: str, model: str, config: str, registry: str
) -> None:
    of, tool = replace(WITH_FP8, model=of_preset(model).model), TOOLS["torchtitan"]
    recipe = replace(PLAIN, fp8=fp8, compile=True)
    if model == "gpt-oss-20b":  # whose biases only one rank of a tensor-parallel group may add
        assert "add it on each" in str(tool.why_not(of, recipe))
        recipe = replace(
            recipe, tensor_parallel=1, accumulation=4, sharding=Sharding.named("zero-3", 16)
        )
    text = tool.render(of, recipe, HEADER)
    assert "--module frontrunner_fp8" in text
    assert f"--config {config}" in text
    assert f"from torchtitan.models.{registry} import config_registry" in text
    stated = {"engine": "torch"}
    assert tool.read(of, Given(text=text, stated=stated)) == recipe
    lines, files = split_files(text)
    (name, module), apart = (
        *files.items(),
        Given(text="\n".join(lines), stated=stated, beside=files.get),
    )
    assert tool.read(of, apart) == recipe
    for changed in (
        module.replace("fqns=[", 'fqns=["layers.1.", '),
        module.replace("CONVERTER = ", "CONVERTER = ("),
    ):
        with pytest.raises(InvalidInput, match=name):
            tool.read(of, replace(apart, beside={name: changed}.get, tables=[]))


PLAIN = Recipe(
    devices=16,
    tensor_parallel=2,
    micro_batch_seqs=2,
    accumulation=8,
    sharding=Sharding.named("zero-3", 8),
)
PIPELINED = Recipe(
    devices=16,
    tensor_parallel=2,
    pipeline_parallel=2,
    schedule="1f1b",
    micro_batch_seqs=2,
    accumulation=8,
    sharding=Sharding.named("zero-1", 4),
    recompute="full",
    sequence_parallel=True,
)
INTERLEAVED = replace(
    PIPELINED,
    virtual_stages=2,
    schedule="interleaved-1f1b",
    layers_per_stage=(4, 3, 3, 2),
    rank_order="tp-pp-dp",
)


@pytest.mark.parametrize(
    ("name", "recipe"),
    [
        ("megatron-lm", INTERLEAVED),
        ("megatron-deepspeed", PIPELINED),
        ("torchtitan", PLAIN),
        ("accelerate", PLAIN),
    ],
)
def test_a_script_is_bash_that_sets_the_arguments_and_writes_the_files(
    name: str, recipe: Recipe, tmp_path: Path
) -> None:
    exported = TOOLS[name].export(PROBLEM, recipe)
    (tmp_path / "recipe.sh").write_text(TOOLS[name].render(PROBLEM, recipe, HEADER))
    shell = 'source ./recipe.sh; printf "%s\\n" "${RECIPE_ARGS[@]}"'
    done = subprocess.run(
        ["bash", "-euc", shell], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == list(exported.arguments)
    assert done.stderr == ""
    written = {
        path.name: path.read_text() for path in tmp_path.iterdir() if path.name != "recipe.sh"
    }
    assert written == exported.files


REFUSALS = {
    "megatron-lm": ({"schedule": "gpipe"}, "Megatron-LM runs 1f1b and interleaved-1f1b, not gpipe"),
    "megatron-deepspeed": (
        {"rank_order": "tp-pp-dp"},
        'Megatron-DeepSpeed has no setting for rank_order = "tp-pp-dp"',
    ),
    "deepspeed": ({}, "does not say the stages of a pipeline: the training script does"),
    "nemo": ({"compile": True}, "Megatron-Bridge has no setting for compile = true"),
    "torchtitan": ({}, "torchtitan has zero-2, zero-3 and hybrid-K, not zero-1"),
    "nanotron": ({"recompute": "selective"}, "nanotron recomputes whole layers or none"),
    "accelerate": ({}, "Accelerate runs pipelines only by Megatron-LM"),
}


@pytest.mark.parametrize("name", TOOLS)
def test_a_refusal_says_what_the_tool_cannot_be_told(name: str) -> None:
    changes, reason = REFUSALS[name]
    with pytest.raises(InvalidInput, match=re.escape(reason)):
        TOOLS[name].export(PROBLEM, replace(PIPELINED, **changes))


MODELS = [
    (
        "megatron-lm",
        "gpt2-small",
        "--norm-epsilon 1e-05",
        "--disable-bias-linear|--no-bias-gelu-fusion|--rotary-base",
    ),
    (
        "megatron-lm",
        "llama-3-8b",
        "--rotary-base 500000 --norm-epsilon 1e-05 --disable-bias-linear",
        "rope-scaling",
    ),
    ("megatron-lm", "llama-3.2-1b", "--use-rope-scaling --rope-scaling-factor 32.0", "--untie"),
    ("megatron-lm", "qwen2.5-7b", "--add-qkv-bias", "--qk-layernorm|--kv-channels"),
    ("megatron-lm", "qwen3-0.6b", "--qk-layernorm", "--add-qkv-bias"),
    ("megatron-lm", "qwen3-0.6b", "--num-attention-heads 16 --kv-channels 128", "--untie"),
    (
        "megatron-deepspeed",
        "frontier-22b",
        "--layernorm-epsilon 1e-05",
        "--disable-bias-linear|--no-bias-gelu-fusion",
    ),
    (
        "megatron-deepspeed",
        "llama-3-8b",
        "--rotary-position-embeddings-theta 500000",
        "--norm-epsilon",
    ),
    ("nemo", "qwen3-8b", "model.sequence_parallel=true", "refused"),
    ("torchtitan", "deepseek-v3", "--module deepseek_v3 --config deepseek_v3_671b", "refused"),
    ("torchtitan", "deepseek-v2-lite", "--module deepseek_v3 --config deepseek_v3_16b", "refused"),
    ("torchtitan", "gpt-oss-20b", "--module gpt_oss --config gpt_oss_20b", "epsilon"),
    ("torchtitan", "gpt-oss-120b", "--module gpt_oss --config gpt_oss_120b", "epsilon"),
    ("torchtitan", "llama-3.1-8b", "--module llama3 --config llama3_8b", "refused"),
    ("torchtitan", "llama-3-8b", "--training.seq_len", "--config"),
]


GPT_OSS = {
    "rotary_theta": 150_000.0, "rotary_scaling": None, "vocabulary_multiple": 128,
    "max_positions": 131_072,
}  # fmt: skip


def test_megatron_is_told_gpt_oss_but_for_its_rotary_scaling() -> None:
    of = of_preset("gpt-oss-120b")
    of = replace(of, model=of.model.with_keys(**GPT_OSS), sequence_length=4096)
    chosen = {"expert_parallel": 4, "sequence_parallel": True}
    recipe = replace(PLAIN, sharding=Sharding.named("zero-1", 8), **chosen)
    text = TOOLS["megatron-lm"].render(of, recipe, HEADER)
    for said in (
        "--window-size '(127,0)'", "--window-attn-skip-freq 2", "--softmax-type learnable",
        "--quick-geglu",
        "--glu-linear-offset 1.0", "--activation-func-clamp-value 7.0", "--attention-backend fused",
        "--no-bias-dropout-fusion",
    ):  # fmt: skip
        assert said in text
    given = Given(text=text, stated={"engine": "torch"})
    read = TOOLS["megatron-lm"].read(of, given)
    assert read == replace(recipe, expert_tensor_parallel=1)
    for old, new, error in (
        ("'(127,0)'", "'(128,0)'", "--window-size"),
        ("learnable", "off-by-one", "--softmax-type"),
        ("value 7.0", "value 5.0", "--activation-func-clamp-value"),
        ("--softmax-type learnable", "", "--softmax-type"),
    ):
        with pytest.raises(InvalidInput, match=error):
            TOOLS["megatron-lm"].read(of, replace(given, text=text.replace(old, new), tables=[]))
    short = replace(of, sequence_length=128)
    assert "window" not in " ".join(TOOLS["megatron-lm"].export(short, recipe).arguments)


def test_megatron_s_scripts_of_gpt2_are_read_as_they_are_written() -> None:
    of, recipe = of_preset("gpt2-small"), replace(PLAIN, sharding=Sharding.named("zero-1", 8))
    given = Given(text=TOOLS["megatron-lm"].render(of, recipe, HEADER), stated={"engine": "torch"})
    assert TOOLS["megatron-lm"].read(of, given) == recipe


@pytest.mark.parametrize(("name", "preset", "said", "unsaid"), MODELS)
def test_the_arguments_say_the_model(name: str, preset: str, said: str, unsaid: str) -> None:
    recipe = PLAIN if name == "torchtitan" else PIPELINED
    arguments = " ".join(TOOLS[name].export(of_preset(preset), recipe).arguments)
    assert said in arguments
    assert re.search(unsaid, arguments) is None


@pytest.mark.parametrize(
    ("name", "preset", "noted"),
    [
        ("nemo", "qwen3-8b", "into Megatron-Bridge's qwen3_8b_pretrain_config"),
        ("nemo", "deepseek-v3", "into Megatron-Bridge's deepseek_v3_pretrain_config"),
        ("nemo", "mixtral-8x7b", "Megatron-Bridge 0.3.1 has no recipe of this model"),
        ("nemo", "gpt-neox-20b", "Megatron-Bridge 0.3.1 has no recipe of this model"),
        ("torchtitan", "deepseek-v3", "deepseek_v3_671b norms have epsilon 1e-05"),
    ],
)
def test_a_note_names_the_tool_s_own_configuration_of_the_model(
    name: str, preset: str, noted: str
) -> None:
    recipe = PLAIN if name == "torchtitan" else PIPELINED
    assert noted in " ".join(TOOLS[name].export(of_preset(preset), recipe).notes)


@pytest.mark.parametrize(
    ("name", "preset", "changes", "reason"),
    [
        (
            "megatron-lm",
            "gpt2-small",
            {"biases": "none"},
            "activation gelu_tanh only with biases all, not none",
        ),
        (
            "megatron-lm",
            "llama-3-8b",
            {"rotary_theta": 1e4 / 3},
            "a whole number for rotary_theta, not 3333.3",
        ),
        (
            "megatron-lm",
            "llama-3-8b",
            {"rotary_scaling": RotaryScaling(factor=2.0, original_positions=4096)},
            "has Llama",
        ),
        (
            "megatron-deepspeed",
            "llama-3.1-8b",
            {},
            "Megatron-DeepSpeed has no setting for model.rotary_scaling = ",
        ),
        (
            "megatron-lm",
            "gpt-oss-120b",
            {},
            "Megatron-LM has Llama 3.1's frequency factors and positions, not",
        ),
        (
            "megatron-lm",
            "gpt-oss-120b",
            {"rotary_scaling": None, "activation": "geglu"},
            "the sigmoid form of GELU",
        ),
        (
            "megatron-lm",
            "mistral-7b",
            {"post_norms": True, "scaled_embedding": True, "logits_softcap": 30.0},
            "model.post_norms = true, model.scaled_embedding = true, model.logits_softcap = 30",
        ),
        ("megatron-lm", "gpt-neox-20b", {}, "has no setting for model.parallel_residual = true"),
        (
            "megatron-deepspeed",
            "llama-3-8b",
            {"activation": "swiglu_clamped"},
            "no activation swiglu_clamped",
        ),
        ("megatron-deepspeed", "qwen2.5-7b", {}, "biases all or none, not qkv"),
        ("megatron-deepspeed", "qwen3-8b", {}, "has no setting for model.qk_norm = true"),
        ("nanotron", "qwen3-0.6b", {}, "nanotron has no setting for model.head_width = 128"),
        ("nanotron", "llama-3.1-8b", {}, "nanotron has no setting for model.rotary_scaling"),
    ],
)
def test_a_model_that_the_tool_does_not_have_is_refused(
    name: str, preset: str, changes: dict[str, Any], reason: str
) -> None:
    problem = of_preset(preset)
    found = TOOLS[name].why_not(
        replace(problem, model=problem.model.with_keys(**changes)), PIPELINED
    )
    assert found is not None
    assert reason in found.text


STATES_THE_MODEL = {"megatron-lm": EXPERTS, "megatron-deepspeed": EXPERTS, "nanotron": UNSCALED}
OTHERS_OF = {"rotary_scaling": [RotaryScaling(factor=2.0)]}
NOT_TRAINED = (
    "name",
    "routing",
    "attention_window",
)  # a sequence fits in the window, which changes nothing then
LATENT = {"kv_heads": 8, "rotary_width": 16, "key_value_rank": 64}
DENSE = {"dense_layers": 1, "dense_ffn_hidden": 1024}
GROUPS = {"router_groups": 4, "router_groups_kept": 2}
WINDOW = {"attention_window": 64}  # of sequences that are longer
WITH: dict[str, Any] = {
    **dict.fromkeys(("full_attention_every", "window_rotary_theta"), WINDOW),
    **dict.fromkeys(("rotary_width", "key_value_rank", "query_rank", "value_width"), LATENT),
    **dict.fromkeys(DENSE, DENSE),
    **dict.fromkeys(GROUPS, GROUPS),
    "balancing_weight": {"router": "sigmoid", "balancing": "bias"},
}
VALUES = (
    True,
    False,
    2,
    3,
    4,
    16,
    64,
    512,
    2000,
    8192,
    0.5,
    2.0,
    *(word for one in KEYS.values() for word in one.words),
)


@pytest.mark.parametrize("name", STATES_THE_MODEL)
@pytest.mark.parametrize("field", [name for name in KEYS if name not in NOT_TRAINED])
def test_a_field_of_the_model_is_stated_or_refused(name: str, field: str) -> None:
    tool, of = TOOLS[name], STATES_THE_MODEL[name]
    of = replace(of, model=of.model.with_keys(max_positions=4096, **WITH.get(field, {})))
    recipe, before = (
        replace(PIPELINED, devices=8, tensor_parallel=1, sequence_parallel=False),
        of.model.keys()[field],
    )
    kind = int if before is None else type(before)

    def is_noticed(value: object) -> bool:
        try:
            other = replace(of, model=of.model.with_keys(**{field: value}))
        except InvalidInput:
            return False
        if (reason := tool.why_not(other, recipe)) is not None:
            return reason.code == "model-unsaid"
        return tool.render(other, recipe, ()) != tool.render(of, recipe, ())

    assert any(
        map(
            is_noticed, OTHERS_OF.get(field, [v for v in VALUES if type(v) is kind and v != before])
        )
    )


def test_nanotron_s_file_has_the_rotary_theta_and_epsilon() -> None:
    text = TOOLS["nanotron"].render(of_preset("llama-3-8b"), PIPELINED, ())
    assert all(
        line in text
        for line in ("rope_theta: 500000.0", "rms_norm_eps: 1.0e-05", "rope_interleaved: false")
    )


def of_preset(name: str) -> Problem:
    table = model_preset(name)
    model = read_plain(
        Model, {"kv_heads": table["heads"], "ffn_hidden": 4 * table["hidden"]} | table, "model"
    )
    return replace(PROBLEM, model=model)


def test_a_layout_is_read_with_the_repetitions_of_megatron_core() -> None:
    assert layers_of_layout("Ettt|(tt|)*3tL", "layout") == (3, 2, 2, 2, 1)
    assert layers_of_layout("E,t*4|t*2,L", "layout") == (4, 2)
    assert layout((2, 1, 1)) == "Ett|t|tL"
    assert layers_of_layout(layout((2, 1), 1), "layout", 1) == (2, 1)
    for text in (
        "tt|tL",
        "Et|t",
        "Et||tL",
        "Em|tL",
        "E(t|)*99999(t)*99999L",
        "E" + "((t|)*9999)*9999" + "L",
    ):
        with pytest.raises(InvalidInput, match="layout"):
            layers_of_layout(text, "layout")


LAUNCH_SCRIPT = """#!/bin/bash
# The 12-layer model on 4 nodes, as a person would write it.
export GPUS_PER_NODE=4
NNODES=${SLURM_NNODES:-4}
TP=2; PP=2
TP=2
PP="2"
DISTRIBUTED_ARGS="--nproc_per_node $GPUS_PER_NODE --nnodes ${NNODES} --master_addr $MASTER_ADDR"
GPT_ARGS="
    --tensor-model-parallel-size ${TP} --pipeline-model-parallel-size $PP \\
    --sequence-parallel --num-layers 12 --hidden-size=256 --seq-length 256 # the model
    --ffn-hidden-size 512 --swiglu --num-attention-heads 8 --group-query-attention --num-query-groups 4
    --micro-batch-size 2 --global-batch-size 64 --use-distributed-optimizer --bf16
    --lr 3e-4 --train-iters 100 --recompute-granularity full --recompute-method uniform --recompute-num-layers 1
"
torchrun $DISTRIBUTED_ARGS pretrain_gpt.py $GPT_ARGS --data-path "$DATA"
"""  # noqa: E501


def test_variables_that_grow_without_end_are_not_followed() -> None:
    lines = ["A=" + "x" * 100, *(f"A=$A$A{n}" for n in range(200)), "--bf16 --micro-batch-size $A"]
    with pytest.raises(InvalidInput, match="--micro-batch-size"):
        TOOLS["megatron-lm"].read(PROBLEM, Given(text="\n".join(lines)))


def test_options_in_quotes_over_lines_are_read() -> None:
    text = (
        'A="--tensor-model-parallel-size 2\n --micro-batch-size 4\n --global-batch-size'
        ' 32"\nB="--bf16"\nrun $A $B\n'
    )
    read = TOOLS["megatron-lm"].read(PROBLEM, Given(text=text))
    assert (read.tensor_parallel, read.micro_batch_seqs, read.accumulation) == (2, 4, 1)


def test_a_launch_script_of_another_hand_is_read_without_running_it() -> None:
    assert TOOLS["megatron-lm"].read(PROBLEM, Given(text=LAUNCH_SCRIPT)) == PIPELINED


IGNORED = {
    "megatron-lm": (
        (
            "--bf16",
            (
                "--bf16 --grad-reduce-in-bf16 --overlap-grad-reduce --log-interval 1"
                " --no-masked-softmax-fusion"
            ),
        ),
        ("--grad-reduce-in-bf16", "--no-masked-softmax-fusion"),
        ("--log-interval",),
    ),
    "megatron-deepspeed": (
        ('"stage": 1', '"stage": 1, "overlap_comm": true}, "steps_per_print": 5, "more": {"a": 1'),
        ("zero_optimization.overlap_comm", "more.a"),
        ("steps_per_print",),
    ),
    "nemo": (
        ("model:", "logger:\n  log_interval: 5\nmodel:\n  cuda_graphs: true"),
        ("model.cuda_graphs",),
        ("logger.log_interval",),
    ),
    "torchtitan": (
        (
            "--training.seq_len",
            "--training.steps 9 --parallelism.enable_async_tensor_parallel --training.seq_len",
        ),
        ("--parallelism.enable-async-tensor-parallel",),
        ("--training.steps",),
    ),
    "nanotron": (
        ("train_steps: 100", "train_steps: 7\n  limit_val_batches: 3"),
        ("tokens.limit_val_batches",),
        ("tokens.train_steps",),
    ),
    "accelerate": (
        ("use_cpu:", "downcast_bf16: true\nmain_process_port: 1\nuse_cpu:"),
        ("downcast_bf16",),
        ("main_process_port",),
    ),
}


@pytest.mark.parametrize("name", IGNORED)
def test_settings_that_a_recipe_does_not_have_are_listed_in_two_groups(name: str) -> None:
    recipe = replace(
        PLAIN,
        sharding=Sharding.named(
            "zero-1" if name in ("nanotron", "megatron-deepspeed") else "zero-2", 8
        ),
    )
    (old, new), costly, harmless = IGNORED[name]
    text = TOOLS[name].render(PROBLEM, recipe, ())
    assert old in text
    given = Given(text=text.replace(old, new, 1), stated={"devices": 16, "engine": "torch"})
    found = TOOLS[name].ignored(PROBLEM, given, TOOLS[name].read(PROBLEM, given))
    assert tuple(key for key in found if not is_harmless(key)) == costly
    assert tuple(filter(is_harmless, found)) == harmless


def test_the_hint_names_the_baseline_from_the_campaign_file_s_folder(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    file = write_toml(tmp_path / "c" / "tiny.toml", tiny())
    (tmp_path / "ds.json").write_text(
        '{"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2, "zero_force": 1,'
        ' "seed": 3}'
    )
    arguments = [
        "import-config",
        str(tmp_path / "ds.json"),
        "--from",
        "deepspeed",
        "--campaign",
        str(file),
    ]
    found = CliRunner().invoke(
        command,
        [*arguments, "--set", "engine=torch", "--out", str(tmp_path / "today.json")],
        catch_exceptions=False,
    )
    assert f'baseline = "../today.json" in {file}' in found.output
    assert "may change speed or memory: zero_force\n" in found.output
    assert "assumed harmless: seed\n" in found.output
    write_toml(file, tiny(search={"baseline": "../today.json"}))
    assert read_campaign_file(file).spec.search.baseline is not None


@pytest.mark.parametrize(("kv_heads", "engines"), [(1, ()), (4, ("torch",))])
def test_other_engine_is_proposed_only_where_the_tool_runs_the_recipe(
    kv_heads: int, engines: tuple[str, ...], tmp_path: Path
) -> None:
    llama = {"kv_heads": kv_heads, "activation": "swiglu", "norm": "rmsnorm"}
    table = tiny(model=llama)
    recipe = tiny_recipe(sharding=Sharding.named("zero-1", 2))
    text = TOOLS["nanotron"].render(spec_of(table).problem, recipe, ())
    for old, new in (("dp: 2", "dp: 1"), ("tp: 1", "tp: 2"), ("ALL_REDUCE", "REDUCE_SCATTER")):
        assert old in text
        text = text.replace(old, new)
    (tmp_path / "nanotron.yaml").write_text(text.replace("replica: 2", "replica: 4"))
    found = import_config(
        tmp_path / "nanotron.yaml",
        tool="nanotron",
        campaign=write_toml(tmp_path / "tiny.toml", table),
        stated={"engine": "deepspeed"},
    )
    assert "no sequence parallelism" in (found.illegal_here or "")
    assert found.legal_engines == engines


MISTAKES = {
    "a variable from elsewhere": (
        ("size $PP", "size $STAGES"),
        r"--pipeline-model-parallel-size = .*STAGES.*: expected a whole number",
    ),
    "another model": (
        ("--num-layers 12", "--num-layers 48"),
        r"--num-layers = 48: the campaign file's problem has 12",
    ),
    "experts": (
        ("--bf16", "--bf16 --num-experts 8"),
        "--num-experts = 8: the campaign file's problem has 0",
    ),
    "a batch that does not divide": (
        ("size 64", "size 63"),
        "global batch = 63: expected a multiple",
    ),
    "a part of the layers": (("uniform", "block"), "expected uniform 1: every layer on its own"),
    "no micro-batch": (("--micro-batch-size 2", ""), "does not say micro_batch_seqs"),
    "devices that do not fit": (
        ("GPUS_PER_NODE=4", "GPUS_PER_NODE=3"),
        r"recipe.devices = 12|multiple",
    ),
    "another precision": (("--bf16", "--fp16"), 'the campaign file\'s problem has "bf16"'),
    "no precision": (
        ("--bf16", ""),
        'neither --bf16 nor --fp16 is there, .* "fp32": .* has "bf16"',
    ),
    "other kv heads": (
        ("groups 4", "groups 2"),
        "--num-query-groups = 2: the campaign file's problem has 4",
    ),
    "kv heads that are not used": (
        ("--group-query-attention", ""),
        "--group-query-attention is not there, which means 8: .* has 4",
    ),
    "another activation": (
        ("--swiglu", ""),
        '--swiglu is not there, which means "gelu": .* has "swiglu"',
    ),
    "another width by default": (
        ("--ffn-hidden-size 512", ""),
        "--ffn-hidden-size is not there, which means 640: .* has 512",
    ),
    "another vocabulary": (
        ("--bf16", "--bf16 --vocab-size 1100"),
        "--vocab-size = 1100: .* has 1000",
    ),
    "an older name": (("--bf16", "--bf16 --use-custom-fsdp"), "give --use-megatron-fsdp"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_what_is_no_recipe_is_refused_by_name(case: str) -> None:
    (old, new), message = MISTAKES[case]
    with pytest.raises(InvalidInput, match=message):
        TOOLS["megatron-lm"].read(PROBLEM, Given(text=LAUNCH_SCRIPT.replace(old, new)))


OTHERS = {
    "deepspeed": (
        ('"bf16": {', '"bf": {', "neither bf16.enabled nor fp16.enabled"),
        ('"bf16": {', '"torch_autocast": {', "torch_autocast"),
        ('"stage": 2', '"stage": 2, "mics_shard_size": 4', "no recipe of ours has MiCS"),
    ),
    "megatron-deepspeed": (
        ("--bf16", "", "neither --bf16 nor"),
        ("--num-key-value-heads 4", "", "--num-key-value-heads is not there"),
        ('"bf16": {', '"fp16": {', "fp16.enabled"),
    ),
    "nanotron": (
        ("bfloat16", "float32", 'model.dtype = "float32"'),
        ("vocab_size: 1024", "vocab_size: 99", "vocab_size = 99"),
        ("intermediate_size: 512", "intermediate_size: 7", "intermediate_size = 7"),
        ("num_key_value_heads: 4", "num_key_value_heads: null", "num_key_value_heads = 8"),
    ),
    "nemo": (
        ("model:", "mixed_precision: fp16_mixed\nmodel:", 'mixed_precision = "fp16"'),
        (
            "model:",
            "mixed_precision: bf16_with_fp8_mixed\nmodel:",
            (
                "expected one of bf16_mixed, fp16_mixed, bf16_with_fp8_current_scaling_mixed,"
                " bf16_with_mxfp8_mixed"
            ),
        ),
        ("model:", "mixed_precision:\n  fp8: hybrid\nmodel:", "mixed_precision.fp8"),
        ("model:", "model:\n  num_attention_heads: 16", "num_attention_heads = 16"),
        ("model:", "model:\n  vocab_size: 99", "vocab_size = 99"),
    ),
    "torchtitan": (
        (
            "mixed_precision_param bfloat16",
            "mixed_precision_param float32",
            "mixed_precision_param",
        ),
        (
            "local_batch_size 2",
            "local_batch_size 512",
            "local_batch_size = 512: expected at most 128 sequences",
        ),
        (
            "--training.seq_len 256",
            "--training.seq_len 256 --training.dtype bfloat16",
            "--training.dtype",
        ),
        (
            "--training.seq_len 256",
            "--training.seq_len 256 --quantize.linear.float8.enable",
            "has no such argument",
        ),
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_configuration_of_another_model_or_precision_is_refused(name: str) -> None:
    recipe = replace(
        PLAIN, sharding=Sharding.named("zero-1" if name == "nanotron" else "zero-2", 8)
    )
    text = TOOLS[name].render(PROBLEM, recipe, ())
    for old, new, message in OTHERS[name]:
        assert old in text
        with pytest.raises(InvalidInput, match=re.escape(message)):
            TOOLS[name].read(PROBLEM, Given(text=text.replace(old, new, 1)))


def test_a_precision_that_deepspeed_s_file_leaves_open_is_the_script_s() -> None:
    text = TOOLS["deepspeed"].render(PROBLEM, PLAIN, ()).replace("true", '"auto"')
    assert TOOLS["deepspeed"].read(PROBLEM, Given(text=text)) == replace(PLAIN, engine="deepspeed")


def test_accelerate_shards_over_all_devices_where_its_file_says_no_number() -> None:
    recipe = replace(PLAIN, sharding=Sharding.named("zero-3", 8))
    text = TOOLS["accelerate"].render(PROBLEM, recipe, ())
    lines = [line for line in text.splitlines() if "processes" not in line and "shard_" not in line]
    assert TOOLS["accelerate"].read(PROBLEM, Given(text="\n".join(lines))) == recipe


@pytest.mark.parametrize("recompute", ["none", "selective"])
def test_megatron_notes_that_selective_recompute_is_its_own(recompute: str) -> None:
    notes = TOOLS["megatron-lm"].export(PROBLEM, replace(PLAIN, recompute=recompute)).notes
    assert any("recompute selective" in note for note in notes) == (recompute == "selective")


@pytest.mark.parametrize("off", ["float8.no-enable", "float8.enable false"])
def test_torchtitan_may_be_told_not_to_quantize(off: str) -> None:
    text = TOOLS["torchtitan"].render(PROBLEM, PLAIN, ()) + f" --quantize.linear.{off}"
    assert TOOLS["torchtitan"].read(PROBLEM, Given(text=text)) == PLAIN


def test_torchtitan_is_told_the_precision() -> None:
    whole = problem(precision="fp32")
    text = TOOLS["torchtitan"].render(whole, PLAIN, ())
    assert "--training.mixed_precision_param float32" in text
    assert TOOLS["torchtitan"].read(whole, Given(text=text)) == PLAIN
    with pytest.raises(InvalidInput, match="torchtitan trains in bf16 and fp32, not fp16"):
        TOOLS["torchtitan"].export(problem(precision="fp16"), PLAIN)


def test_sources_that_disagree_are_refused() -> None:
    script = TOOLS["megatron-deepspeed"].render(PROBLEM, PIPELINED, ())
    slips = {
        "micro_batch_seqs is 1 in the arguments and 2": (
            "--micro-batch-size 2",
            "--micro-batch-size 1",
        ),
        "--zero-stage 2: DeepSpeed's configuration has stage 1": (
            "--zero-stage 1",
            "--zero-stage 2",
        ),
        "no such file beside": ("--deepspeed_config ds_config", "--deepspeed_config other"),
    }
    for message, (old, new) in slips.items():
        with pytest.raises(InvalidInput, match=re.escape(message)):
            TOOLS["megatron-deepspeed"].read(PROBLEM, Given(text=script.replace(old, new)))
    with pytest.raises(
        InvalidInput, match="micro_batch_seqs = 4 was given, but the configuration says 2"
    ):
        TOOLS["megatron-deepspeed"].read(
            PROBLEM, Given(text=script, stated={"micro_batch_seqs": 4})
        )


@pytest.mark.parametrize("name", TOOLS)
@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[" * 100_000,
        "a: [b",
        "{}",
        "x" * 1000,
        '{"a": 1, "a": 2}',
        "!!python/name:os.system",
    ],
)
def test_a_text_that_is_no_configuration_is_refused(name: str, text: str) -> None:
    with pytest.raises(InvalidInput):
        TOOLS[name].read(PROBLEM, Given(text=text))


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_a_batch_script_prepares_its_node_and_is_refused_for_data_that_nobody_recorded(
    scheduler: str, tmp_path: Path
) -> None:
    plain = charted.spec()
    [best, *_] = plain.space.survey(plain.problem).recipes
    own = {
        "setup": replace(plain, dispatch=DispatchSettings(worker_init=("module load rocm",))),
        "data": replace(plain, data=DataSettings(path="/d/t.bin")),
    }
    for name, spec in own.items():
        charted.recorded(tmp_path / f"{name}.db", spec, [(best, [charted.measured(100.0, 0.5)])])
    identity = recipe_id(plain.problem, best)
    script = frontrunner.export(identity, to=scheduler, store=str(tmp_path / "setup.db"))
    assert script.index("module load rocm") < script.index("set -euo pipefail")
    assert 'STEPS="${STEPS:-1000}"' in script
    with pytest.raises(
        InvalidInput, match=f"what data recipe {identity} was trained on is not recorded"
    ):
        frontrunner.export(identity, to=scheduler, store=str(tmp_path / "data.db"))


DIRECTIVES = {"slurm": "#SBATCH", "pbs": "#PBS"}
REQUESTED = {
    "slurm": (
        "--account=proj",
        "--partition=batch",
        "--time=02:30:00",
        "--qos=debug",
        "--constraint=a100",
    ),
    "pbs": ("-A proj", "-q batch", "-l walltime=02:30:00"),
}


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_a_batch_script_requests_what_the_campaign_did_for_the_steps_of_the_whole_training(
    scheduler: str, tmp_path: Path
) -> None:
    asked = {"account": "proj", "queue": "batch", "walltime": "02:30:00"}
    asked |= {"qos": "debug", "constraint": "a100"} if scheduler == "slurm" else {}
    option = f"{DIRECTIVES[scheduler]} --site-option"
    plain = charted.spec()
    [best, *_] = plain.space.survey(plain.problem).recipes
    spec = replace(
        plain,
        dispatch=DispatchSettings(
            backend="parsl", scheduler=scheduler, scheduler_options=(option,), **asked
        ),
        problem=replace(plain.problem, billion_tokens=0.5),
    )
    charted.recorded(tmp_path / "s.db", spec, [(best, [charted.measured(100.0, 0.5)])])
    for to in SCHEDULERS:
        script = frontrunner.export(
            recipe_id(plain.problem, best), to=to, store=str(tmp_path / "s.db")
        )
        lines = script[: script.index("set -euo pipefail")].splitlines()
        wanted = [*(f"{DIRECTIVES[to]} {words}" for words in REQUESTED[to]), option]
        assert {words in lines for words in wanted} == {to == scheduler}
        steps = math.ceil(0.5e9 / (best.global_batch_seqs * plain.problem.sequence_length))
        assert f'STEPS="${{STEPS:-{steps}}}"' in script


def script_reads(body: str) -> dict[str, object]:
    return dict(read_script(body).options)


@pytest.mark.parametrize(
    ("body", "value"),
    [
        ("SIZE=8b\nif [ $SIZE = 8b ]; then TP=1; elif [ $SIZE = 70b ]; then TP=8; fi", "1"),
        ('SIZE=70b\ncase "$SIZE" in\n 8b) TP=1 ;;\n 70b|405b) TP=8 ;;\nesac', "8"),
        ('TP=1\nif false; then TP=2; fi\n[[ "$TP" == 2 ]] && TP=4', "1"),
        ("TP=1\nif (( TP > 1 )); then TP=2; else TP=3; fi", "3"),
        ("set_tp() { TP=$1; }\nset_tp 2", "2"),
        ("if [ -n $UNKNOWN ]; then TP=2; else TP=2; fi", "2"),
        ("A=x\n[[ $A == x ]] || [[ -f file ]] || exit 1\nTP=2", "2"),
        ("for TP in 4; do :; done", "4"),
        ("TP=${TP:-2}", "2"),
    ],
)
def test_script_follows_the_branch_that_is_run(body: str, value: str) -> None:
    found = script_reads(f"{body}\nARGS=(--tp $TP\n --flag)\ntorchrun train.py ${{ARGS[@]}} 2>&1")
    assert found == {"--tp": value, "--flag": True}


@pytest.mark.parametrize(
    ("body", "test"),
    [
        (
            '[ -n "$DEBUG" ] && ARGS="$ARGS --recompute-activations"',
            r'\[ -n "\$DEBUG" \] \(line 2\)',
        ),
        ("if [ $1 = a ]; then ARGS+=' --recompute-activations'; fi", r"\$1 = a"),
        ("case $MODE in a) ARGS+=' --recompute-activations' ;; esac", r"case \$MODE"),
        ("while [ -f x ]; do ARGS+=' --recompute-activations'; done", "-f x"),
        ('for a in --a --recompute-activations; do ARGS+=" $a"; done', "for a"),
        ("f() { ARGS+=' --recompute-activations'; }\ngrep -q x y && f", "grep"),
    ],
)
def test_option_of_a_branch_that_is_not_known_is_refused_by_name(body: str, test: str) -> None:
    text = f"ARGS='--bf16 --micro-batch-size 2 --global-batch-size 32'\n{body}\ntorchrun t.py $ARGS"
    with pytest.raises(InvalidInput, match=f"--recompute-activations depends on .*{test}"):
        TOOLS["megatron-lm"].read(PROBLEM, Given(text=text))


def test_no_word_of_the_shell_becomes_a_value() -> None:
    script = (
        'A=()\nif [ $X ]; then\n A+=(\n "--fp8-param-gather"\n )\nfi\nrun ${A[@]} x.py | tee log\n'
    )
    assert script_reads(script.replace("$X", "yes")) == {"--fp8-param-gather": True}
    with pytest.raises(InvalidInput, match='line 1 cannot be read as bash: "fi" is not expected'):
        read_script("run --bf16; fi")


TITAN = """
[training]
{batch} = 1
seq_len = 256
{compile}
[{degrees}]
pipeline_parallel_degree = 1
[activation_checkpoint]
mode = 'full'
[float8]
filter_fqns = ["output"]
"""


@pytest.mark.parametrize("year", [2024, 2026])
def test_torchtitan_s_toml_is_read_by_the_names_of_its_time(year: int) -> None:
    old = "compile = true\ntensor_parallel_degree = 2\ndata_parallel_degree = -1"
    new = "[compile]\nenable = true\n[parallelism]\ntensor_parallel_degree = 2"
    text = TITAN.format(
        batch="batch_size" if year == 2024 else "local_batch_size",
        compile=old if year == 2024 else new,
        degrees="experimental",
    )
    read = TOOLS["torchtitan"].read(PROBLEM, Given(text=text, stated={"devices": 8}))
    assert (read.tensor_parallel, read.data_parallel, read.micro_batch_seqs) == (2, 4, 1)
    assert (read.accumulation, read.compile, read.recompute) == (1, True, "full")
    assert read.sharding_name == "zero-3"
    for stated, message in {
        "mode = 'selective'": r'selective_ac_option = "2"',
        "mode = 'memory_budget'": r"memory_budget",
    }.items():
        with pytest.raises(InvalidInput, match=message):
            TOOLS["torchtitan"].read(PROBLEM, Given(text=text.replace("mode = 'full'", stated)))


@pytest.mark.parametrize("name", TOOLS)
def test_text_without_a_known_setting_is_refused(name: str) -> None:
    stated = {"micro_batch_seqs": 1, "accumulation": 1}
    for text in ("hello world", "--hello world", "hello: world", '{"hello": 1}', "[hello]\na = 1"):
        with pytest.raises(InvalidInput):
            TOOLS[name].read(PROBLEM, Given(text=text, stated=stated))


@pytest.mark.parametrize(
    ("name", "value", "is_refused"),
    [
        ("--recompute-modules", "mlp", True),
        ("zero_optimization.zero_hpz_partition_size_sharding", 8, True),
        ("--main-grads-dtype", "bf16", True),
        ("--parallelism.expert-parallel-degree", 2, True),
        ("--parallelism.expert-parallel-degree", 1, False),
        ("--training.enable-cpu-offload", "false", False),
        ("--moe-router-dtype", "fp32", False),
        ("zero_optimization.offload_optimizer.pin_memory", True, False),
        ("--grad-reduce-in-bf16", True, False),
        ("model.model_config.hidden_act", "relu", True),
        ("model.mlp_hidden_act", "relu2", True),
        ("--model.activation-fn", "gelu", True),
        ("model.activation", "none", False),
        ("--use-te-activation-func", True, False),
    ],
)
def test_setting_of_another_recipe_is_an_error_unless_it_is_off(
    name: str, value: object, is_refused: bool
) -> None:
    if is_refused:
        with pytest.raises(InvalidInput, match="is not understood, and changes speed or memory"):
            refuse_not_understood({name: value})
    else:
        refuse_not_understood({name: value})


@pytest.mark.parametrize(
    ("said", "dense"),
    [("[1]*48", 0), ("'([1]*48)'", 0), ("1", 0), ("[0]*3+[1]*45", 3), ("([0]+[1]*2)+[1]*45", 1)],
)
def test_moe_layer_freq_is_evaluated_as_megatron_does(said: str, dense: int) -> None:
    assert _leading_dense(said, "--moe-layer-freq", 48) == dense
    for wrong in ("[1]*47", "[1]*24+[0]*24", "2", "[1]*99999999", "f()", "[1]*9**9"):
        with pytest.raises(InvalidInput, match="--moe-layer-freq"):
            _leading_dense(wrong, "--moe-layer-freq", 48)


def test_squared_relu_is_said_where_the_tool_has_it_and_relu_is_refused() -> None:
    squared = problem(activation="relu2")
    text = TOOLS["megatron-lm"].render(squared, PLAIN, ())
    assert "--squared-relu" in text
    assert TOOLS["megatron-lm"].read(squared, Given(text=text)) == PLAIN
    with pytest.raises(InvalidInput, match=r'--squared-relu is there, .* "relu2": .* has "swiglu"'):
        TOOLS["megatron-lm"].read(PROBLEM, Given(text=text))
    with pytest.raises(InvalidInput, match="has no option for activation relu"):
        TOOLS["megatron-lm"].export(problem(activation="relu"), PLAIN)


def test_heads_are_cut_over_context_ranks_only_by_all_to_all() -> None:
    text = "--bf16 --micro-batch-size 1 --global-batch-size 32 --context-parallel-size 16"
    assert TOOLS["megatron-lm"].read(PROBLEM, Given(text=text)).context_parallel == 16
    with pytest.raises(InvalidInput, match='--cp-comm-type = "a2a": expected p2p'):
        TOOLS["megatron-lm"].read(PROBLEM, Given(text=f"{text} --cp-comm-type a2a"))


MEGATRON = "--bf16 --micro-batch-size 1 --global-batch-size 32"


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ("--no-rope-freq 0", None),
        ("--no-rope-freq '([0]*12)'", None),
        ("--no-rope-freq 1", "no rotary positions to 12 of 12 layers"),
        ("--no-rope-freq 4", "no rotary positions to 3 of 12 layers"),
        ("--no-rope-freq '([0]*3+[1]*1)*3'", "no rotary positions to 3 of 12 layers"),
        ("--no-rope-freq 24", "24: expected a divisor of the 12 layers"),
        ("--no-rope-freq [0]*11", "one 0 or 1 for each of the 12 layers"),
        ("--no-rope-freq $FREQ", "a number, or a list of 0 and 1"),
        ("--linear-attention-freq 1", None),
        ("--linear-attention-freq [0]*12", None),
        ("--linear-attention-freq 4", "linear attention to 9 of 12 layers"),
        ("--linear-attention-freq '([1]*3+[0])*3'", "linear attention to 9 of 12 layers"),
        ("--linear-attention-freq 0", "at least 1"),
        ("--linear-attention-freq", "a number, or a list of 0 and 1"),
        ("--moe-layer-freq [[1]*12]", "one 0 or 1 for each of the 12 layers"),
        ("--experimental-attention-variant gdn", "no recipe of ours has linear or sparse"),
        ("--hybrid-layer-pattern M*M*", "no recipe of ours has layers of several kinds"),
        ("--heterogeneous-layers-config-path x.json", "layers of several shapes"),
    ],
)
def test_megatron_s_layer_patterns_are_refused_if_layers_differ(
    said: str, message: str | None
) -> None:
    given = Given(text=f"{MEGATRON} {said}")
    if message is None:
        recipe = TOOLS["megatron-lm"].read(PROBLEM, given)
        assert TOOLS["megatron-lm"].ignored(PROBLEM, given, recipe) == ()
        return
    with pytest.raises(InvalidInput, match=message):
        TOOLS["megatron-lm"].read(PROBLEM, given)


def test_layer_patterns_of_bridge_are_lists() -> None:
    text = TOOLS["nemo"].render(PROBLEM, PLAIN, ())
    same = text.replace("model:\n", f"model:\n  no_rope_freq: {[0] * 12}\n")
    assert TOOLS["nemo"].read(PROBLEM, Given(text=same)) == PLAIN
    for wrong, message in (
        (f"no_rope_freq: {[0, 1] * 6}", "model.no_rope_freq = .* to 6 of 12 layers"),
        ("linear_attention_freq: 3", "model.linear_attention_freq = 3 .* to 8 of 12 layers"),
        ("linear_attention_freq: true", "a number, or a list of 0 and 1"),
    ):
        given = Given(text=text.replace("model:\n", f"model:\n  {wrong}\n"))
        with pytest.raises(InvalidInput, match=message):
            TOOLS["nemo"].read(PROBLEM, given)
    windowed = problem(attention_window=128, full_attention_every=2)
    text = TOOLS["nemo"].render(windowed, PLAIN, ())
    same = text.replace("model:\n", f"model:\n  window_attn_skip_freq: {[1, 0] * 6}\n")
    assert TOOLS["nemo"].read(windowed, Given(text=same)) == PLAIN


def test_options_of_several_words_are_read_whole() -> None:
    text = f"{MEGATRON} --context-parallel-size 16 --cp-comm-type p2p a2a\ntorchrun x.py"
    with pytest.raises(InvalidInput, match='--cp-comm-type = "p2p a2a": expected p2p'):
        TOOLS["megatron-lm"].read(PROBLEM, Given(text=text))
    assert script_reads("run --num-experts 4 8 --tp=2 train") == {
        "--num-experts": "4 8",
        "--tp": "2",
    }


@pytest.mark.parametrize(
    ("said", "activation", "message"),
    [
        ("--swiglu", "swiglu", None),
        ("--squared-relu", "relu2", None),
        ("--openai-gelu", "gelu_tanh", None),
        ("--openai-gelu", "gelu", None),
        ("--hidden-size 256 --no-bias-gelu-fusion", "gelu", None),
        ("--squared-relu", "swiglu", '--squared-relu is there, which means "relu2"'),
        ("--openai-gelu", "swiglu", '--openai-gelu is there, which means "gelu"'),
        ("--swiglu", "geglu", '--swiglu is there, which means "swiglu"'),
        ("--swiglu", "relu2", '--swiglu is there, which means "swiglu"'),
        ("--hidden-size 256", "relu", '--swiglu is not there, which means "gelu"'),
        ("--swiglu --squared-relu", "swiglu", "--swiglu and --squared-relu are both there"),
        (
            "--swiglu --activation-func-clamp-value 10",
            "swiglu",
            '--activation-func-clamp-value = "10": expected 0 without --quick-geglu',
        ),
        ("--quick-geglu", "geglu", "--glu-linear-offset .* expected 1 with --quick-geglu"),
        (
            "--quick-geglu --glu-linear-offset 1.0 --activation-func-clamp-value 7.0",
            "swiglu",
            '--quick-geglu is there, which means "swiglu_clamped"',
        ),
    ],
)
def test_megatron_s_activation_is_the_model_s_or_refused(
    said: str, activation: str, message: str | None
) -> None:
    of = problem(activation=activation)
    given = Given(text=f"{MEGATRON} {said} --ffn-hidden-size 512 --group-query-attention")
    if message is None:
        assert TOOLS["megatron-lm"].read(of, given).micro_batch_seqs == 1
        return
    with pytest.raises(InvalidInput, match=message):
        TOOLS["megatron-lm"].read(of, given)


@pytest.mark.parametrize(
    ("said", "activation", "message"),
    [
        ("activation_func: silu\n  gated_linear_unit: true", "swiglu", None),
        ("activation_func: {_target_: torch.nn.functional.silu, _call_: false}", "swiglu", None),
        ("activation_func: megatron.core.activations.squared_relu", "relu2", None),
        ("activation: fast-swiglu", "swiglu", None),
        ("activation_func: gelu", "gelu_tanh", None),
        ("activation_func: squared_relu", "swiglu", "expected one of silu, quick_gelu, fast_gelu"),
        ("activation_func: silu", "relu2", "expected one of gelu, .* without gated_linear"),
        ("activation_func: silu", "geglu", 'silu as model.activation_func, which means "swiglu"'),
        ("gated_linear_unit: true", "relu2", "model.gated_linear_unit = true"),
        ("activation: squared-relu", "swiglu", 'squared-relu as model.activation, .* "relu2"'),
        ("activation: reglu", "swiglu", "model.activation = .*reglu.* expected one of swiglu"),
        ("glu_linear_offset: 1.0", "swiglu", "model.glu_linear_offset = 1.0: expected 0 with"),
        ("activation_func_clamp_value: 9.0", "swiglu_clamped", "9.0: expected 7 with"),
    ],
)
def test_bridge_s_activation_is_the_model_s_or_refused(
    said: str, activation: str, message: str | None
) -> None:
    of = problem(activation=activation)
    text = TOOLS["nemo"].render(of, PLAIN, ()).replace("model:\n", f"model:\n  {said}\n")
    if message is None:
        assert TOOLS["nemo"].read(of, Given(text=text)) == PLAIN
        return
    with pytest.raises(InvalidInput, match=message):
        TOOLS["nemo"].read(of, Given(text=text))


def test_nanotron_s_activation_is_swiglu_or_refused() -> None:
    plain = replace(PLAIN, sharding=Sharding.named("none", 8))
    text = TOOLS["nanotron"].render(PROBLEM, plain, ())
    assert "hidden_act: silu" in text
    for word in ("gelu", "relu2"):
        given = Given(text=text.replace("hidden_act: silu", f"hidden_act: {word}"))
        with pytest.raises(InvalidInput, match=f'hidden_act = "{word}": expected silu'):
            TOOLS["nanotron"].read(PROBLEM, given)
    with pytest.raises(InvalidInput, match=r'hidden_act, which means "swiglu": .* has "relu2"'):
        TOOLS["nanotron"].read(problem(activation="relu2"), Given(text=text))


def test_squared_relu_turns_megatron_s_fused_gelu_off() -> None:
    of = problem(activation="relu2", biases="all")
    for name in ("megatron-lm", "megatron-deepspeed"):
        text = TOOLS[name].render(of, PLAIN, ())
        assert "--squared-relu" in text
        assert "--no-bias-gelu-fusion" in text
        read = TOOLS[name].read(of, Given(text=text, stated={"devices": PLAIN.devices}))
        assert read.tensor_parallel == PLAIN.tensor_parallel
