"""Recipes as Megatron-LM's arguments, and those of the trainers built from it.

Megatron-LM: names and checks of `megatron/training/arguments.py` (NVIDIA/Megatron-LM, commit
000c4ac2, core 0.16), layouts of uneven stages of megatron-core 0.16.1. The distributed optimizer is
ZeRO-1 over replicas and context ranks; ZeRO-2 and 3 are Megatron FSDP's. Ranks are numbered
tp-cp-dp-pp, with --use-tp-pp-dp-mapping tp-cp-pp-dp.

Megatron-DeepSpeed, the trainer of the Frontier study (arXiv 2312.12705): names of
`megatron/arguments.py` (deepspeedai/Megatron-DeepSpeed, commit 207b2d5a), with the DeepSpeed
configuration that they name; ZeRO stage and batch are in both. Its pipeline is DeepSpeed's: 1F1B,
whole gradients, equally many layers per stage.

NeMo's Megatron-Bridge: YAML for --config-file, or overrides such as `train.micro_batch_size=2`,
with the names of `ConfigContainer` of megatron-bridge 0.3.1. Model, sequence length and precision
are those of the Bridge recipe.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from frontrunner.evaluators.export import deepspeed, reading
from frontrunner.evaluators.export.base import (
    Export,
    Refusal,
    Tool,
    comments,
    is_preset,
    nested,
    words,
    yaml_text,
)
from frontrunner.evaluators.export.reading import Given, Options, Table
from frontrunner.spaces.errors import InvalidInput, bad_value, shown, shown_key
from frontrunner.spaces.model.attention import GroupedAttention, LatentAttention
from frontrunner.spaces.model.feed_forward import MixtureOfExperts
from frontrunner.spaces.model.model import Model
from frontrunner.spaces.model.positions import RotaryScaling
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import Recipe
from frontrunner.spaces.sharding import SHARDING_NAMES
from frontrunner.spaces.stages import even_layers, layers_of_stages

OPTIONS = {
    "tensor_parallel": "--tensor-model-parallel-size",
    "pipeline_parallel": "--pipeline-model-parallel-size",
    "context_parallel": "--context-parallel-size",
    "micro_batch_seqs": "--micro-batch-size",
    "global_batch_seqs": "--global-batch-size",
    "expert_parallel": "--expert-model-parallel-size",
    "expert_tensor_parallel": "--expert-tensor-parallel-size",
}
DEEPSPEED_OPTIONS = {
    name: OPTIONS[name]
    for name in OPTIONS
    if name not in ("context_parallel", "expert_tensor_parallel")
}
DEEPSPEED_OPTIONS["expert_parallel"] = "--moe-expert-parallel-size"
MODEL_FIELDS = frozenset({
    "layers", "hidden", "heads", "kv_heads", "ffn_hidden", "vocabulary", "vocabulary_multiple",
    "positions",
    "max_positions", "rotary_theta", "rotary_scaling", "activation", "norm", "norm_epsilon",
    "biases", "head_width",
    "qk_norm", "tied_embeddings", "experts", "experts_per_token", "renormalized_experts",
    "attention",
})  # fmt: skip
"""Fields of a model that both trainers with a command line have options for."""
CORE_MODEL_FIELDS = MODEL_FIELDS | {
    "shared_experts", "dense_layers", "dense_ffn_hidden", "router", "router_groups",
    "router_groups_kept",
    "routed_scale", "balancing", "balancing_weight", "key_value_rank", "query_rank", "rotary_width",
    "value_width",
    "attention_window", "full_attention_every", "attention_sinks", "mtp_layers",
}  # fmt: skip
CLAMPED_BY = {"glu-linear-offset": 1.0, "activation-func-clamp-value": 7.0}
CLAMPED = {"--quick-geglu": True, **{f"--{name}": value for name, value in CLAMPED_BY.items()}}
"""gpt-oss's activation: `quick_gelu(x) = x sigmoid(1.702 x)` of one product, times the other and 1,
both clamped.
"""
ACTIVATION_OF = {
    "--swiglu": "swiglu",
    "--squared-relu": "relu2",
    "--quick-geglu": "swiglu_clamped",
    "--openai-gelu": "gelu",
}
"""Options that choose the activation -> ours. Without one of them it is GELU."""
GELUS = ("gelu", "gelu_tanh")
"""Forms of GELU, which cost the same: a configuration of one is read for a model of the other."""
FUNCTIONS = {
    ("silu", True): ("swiglu",),
    ("quick_gelu", True): ("swiglu_clamped",),
    ("fast_gelu", True): ("geglu",),
    ("gelu", False): GELUS,
    ("fast_gelu", False): GELUS,
    ("squared_relu", False): ("relu2",),
    ("relu", False): ("relu",),
}
"""Megatron-Bridge's `activation_func`, and whether it gates -> ours
(megatron/bridge/utils/activation_map.py at 067f987d).
"""
FUNCTION_NAMES = {
    "relu2": "squared_relu",
    "gelu_pytorch_tanh": "fast_gelu",
    "openai_gelu": "fast_gelu",
}
"""Other names of these functions."""
NEMO_1_ACTIVATIONS = {
    "swiglu": ("swiglu",),
    "fast-swiglu": ("swiglu",),
    "squared-relu": ("relu2",),
    "gelu": GELUS,
}
"""`model.activation` of NeMo 1 -> ours."""
PART_DEFAULTS = {
    "softmax-type": "vanilla",
    "rotary-percent": 1.0,
    "moe-router-topk": 2,
    "moe-router-score-function": "softmax",
    "kv-lora-rank": 32,
    "qk-head-dim": 128,
    "qk-pos-emb-head-dim": 64,
    "v-head-dim": 128,
}
"""What Megatron-LM's options of experts and latent attention mean where they are missing."""
MAX_STAGES = 100_000
LAYOUT = "pipeline-model-parallel-layout"
LAYERS_PER_STAGE = "num-layers-per-virtual-pipeline-stage"
STRATEGY = "data-parallel-sharding-strategy"
BRIDGE_SECTIONS = {
    "micro-batch-size": "train",
    "global-batch-size": "train",
    "use-distributed-optimizer": "ddp",
    "use-megatron-fsdp": "ddp",
    STRATEGY: "ddp",
    "use-tp-pp-dp-mapping": "dist",
}
"""Of Megatron-LM's options that Megatron-Bridge has outside of its section `model`."""
FP8 = {
    "tensorwise": {"--fp8-format": "hybrid", "--fp8-recipe": "tensorwise"},
    "mxfp8": {"--fp8-format": "e4m3", "--fp8-recipe": "mxfp8"},
}
"""As torchao scales: gradients by tensors in E5M2, what else is multiplied in E4M3."""
BRIDGE_FP8 = {"tensorwise": "bf16_with_fp8_current_scaling_mixed", "mxfp8": "bf16_with_mxfp8_mixed"}
FSDP = {"zero-2": "optim_grads", "zero-3": "optim_grads_params"}
SHARDING_OF_STRATEGY = {"no_shard": "none", "optim": "zero-1"} | {
    theirs: ours for ours, theirs in FSDP.items()
}
REFUSED_EXPERTS = {
    "moe-expert-capacity-factor": "experts of a capacity, which drop tokens",
    "moe-shared-expert-gate": "a gate of shared experts",
    "moe-latent-size": "experts of a narrower input",
}
REFUSED_LAYERS = {
    "experimental-attention-variant": "linear or sparse attention",
    **dict.fromkeys(
        ("hybrid-layer-pattern", "hybrid-override-pattern", "is-hybrid-model"),
        "layers of several kinds",
    ),
    **dict.fromkeys(
        ("heterogeneous-layers-config-path", "heterogeneous-layers-config-encoded-json"),
        "layers of several shapes",
    ),
}
REFUSED = {
    **{f"--{name}": what for name, what in (REFUSED_EXPERTS | REFUSED_LAYERS).items()},
    "--use-torch-fsdp2": "Megatron-LM's wrapper of FSDP2: give --use-megatron-fsdp",
    "--use-custom-fsdp": "this older name: give --use-megatron-fsdp",
    **dict.fromkeys(("--fp8-hybrid", "--fp8-e4m3"), "this older name: give --fp8-format"),
    "--fp8-param-gather": "parameters kept in 8 bits",
    "--fp4-format": "4-bit arithmetic",
    "--cpu-offloading": "activations offloaded by whole layers",
    "--optimizer-cpu-offload": "a part of the optimizer offloaded",
    "--num-distributed-optimizer-instances": "optimizer states sharded over a part of the replicas",
    "--rampup-batch-size": "a batch that grows",
    **{
        f"--decoder-{end}-pipeline-num-layers": f"this option: give --{LAYOUT}"
        for end in ("first", "last")
    },
    **{
        f"--account-for-{what}-in-pipeline-split": f"this option: give --{LAYOUT}"
        for what in ("embedding", "loss")
    },
    "--microbatch-group-size-per-virtual-pipeline-stage": "groups of micro-batches",
}
REFUSED_WITH_DEEPSPEED = {
    "--ds-sequence-parallel-size": "DeepSpeed's sequence parallelism over ranks of their own",
    "--context-parallel-size": "context parallelism of this trainer",
    "--enable-expert-tensor-parallelism": "experts cut by tensor parallelism",
    "--num-experts-switch": "this older form of experts: give --num-experts",
    "--enable-zbh1-pipeline": "this zero-bubble schedule",
    **dict.fromkeys(("--fp8-e4m3", "--fp8-hybrid"), "8-bit arithmetic"),
    "--rampup-batch-size": "a batch that grows",
    "--checkpoint-in-cpu": "checkpointed activations in the host's memory",
    "--partition-activations": "checkpointed activations sharded over ranks",
    "--memory-centric-tiled-linear": "tiled products",
}
REFUSED_BY_BRIDGE = {
    **{
        f"model.{name.replace('-', '_')}": what
        for name, what in (REFUSED_EXPERTS | REFUSED_LAYERS).items()
    },
    "model.cpu_offloading": "activations offloaded by whole layers",
}
BRIDGE_RECIPES = {
    "llama-2-7b": "llama2_7b",
    "llama-3-8b": "llama3_8b",
    "llama-3-70b": "llama3_70b",
    "llama-3.1-8b": "llama31_8b",
    "llama-3.1-70b": "llama31_70b",
    "llama-3.1-405b": "llama31_405b",
    "llama-3.2-1b": "llama32_1b",
    "qwen2.5-7b": "qwen25_7b",
    "qwen3-0.6b": "qwen3_600m",
    "qwen3-8b": "qwen3_8b",
    "qwen3-32b": "qwen3_32b",
    "qwen3-30b-a3b": "qwen3_30b_a3b",
    "qwen3-235b-a22b": "qwen3_235b_a22b",
    "gpt-oss-20b": "gpt_oss_20b",
    "gpt-oss-120b": "gpt_oss_120b",
    "gemma-2-9b": "gemma2_9b",
    "gemma-2-27b": "gemma2_27b",
    "deepseek-v2-lite": "deepseek_v2_lite",
    "deepseek-v3": "deepseek_v3",
}
"""The recipes of `megatron.bridge.recipes` in Megatron-Bridge 0.3.1, without `_pretrain_config`, by
our presets.
"""
_PATTERN = re.compile(r"[\[\]()0-9,+* ]{1,20000}")
_REPEATED_GROUP = re.compile(r"\(([^()]*)\)\*([0-9]{1,5})")
_REPEATED = re.compile(r"(.)\*([0-9]{1,5})")


def _bridge_key(option: str) -> str:
    name = {"num-experts": "num-moe-experts"}.get(name := option.removeprefix("--"), name)
    return f"{BRIDGE_SECTIONS.get(name, 'model')}.{name.replace('-', '_')}"


BRIDGE_KEYS = {number: _bridge_key(option) for number, option in OPTIONS.items()}
BRIDGE_KEYS["virtual_stages"] = "model.virtual_pipeline_model_parallel_size"


class MegatronLM(Tool):
    """Megatron-LM: a bash file of arguments for pretrain_gpt.py."""

    name = "megatron-lm"
    title = "Megatron-LM"
    usage = 'torchrun "${TORCHRUN_ARGS[@]}" pretrain_gpt.py "${RECIPE_ARGS[@]}" and your data'
    names = OPTIONS
    kv_heads = "num-query-groups"
    has_kv_heads = "--group-query-attention"
    theta = "--rotary-base"
    epsilon = "--norm-epsilon"
    model_fields: ClassVar[frozenset[str] | None] = CORE_MODEL_FIELDS
    lacks: ClassVar[tuple[str, ...]] = ("relu",)
    """Activations without an option; `relu2` is --squared-relu."""
    expressed = frozenset({
        "virtual_stages", "schedule", "sharding", "recompute", "sequence_parallel",
        "optimizer_state",
        "layers_per_stage", "rank_order", "fp8",
    })  # fmt: skip

    def refusals(self, problem: Problem, recipe: Recipe) -> Iterable[Refusal]:
        """Return what Megatron core does not have.

        It shards by its distributed optimizer (ZeRO-1, alone with bf16 states) or Megatron FSDP,
        and puts context ranks before stages.
        """
        tool, name, schedule, order = (
            self.title,
            recipe.sharding_name,
            recipe.schedule,
            recipe.rank_order,
        )
        tp, pp, cp = recipe.tensor_parallel, recipe.pipeline_parallel, recipe.context_parallel
        is_plain = name == "none" and recipe.copies > 1
        ep = recipe.expert_ranks if problem.model.mixture else tp
        return (
            *self._model_refusals(problem.model),
            (schedule not in ("none", "1f1b", "interleaved-1f1b"), "schedule-unsaid",
             f"{tool} runs 1f1b and interleaved-1f1b, not {schedule}"),
            (name not in SHARDING_OF_STRATEGY.values(), "sharding-unsaid",
             f"{tool} shards over all copies of the model, not as {name}"),
            (name in FSDP and pp > 1, "sharding-pipeline",
             f"{name} is Megatron FSDP's, which is not exported together with pipelines"),
            (recipe.optimizer_state == "bf16" and is_plain, "states-sharding",
             f"{tool} keeps bf16 optimizer states only in its distributed optimizer"),
            (order not in ("tp-dp-pp", "tp-pp-dp"), "rank-order-unsaid",
             f"{tool} numbers ranks as tp-dp-pp or tp-pp-dp, not {order}"),
            (order == "tp-pp-dp" and min(cp, pp) > 1, "rank-order-context",
             f"{tool}'s tp-pp-dp has context ranks before stages; ours come after them"),
            (order == "tp-pp-dp" and pp > 1 and ep != tp, "rank-order-experts",
             f"{tool}'s tp-pp-dp needs as many copies of experts as of the rest: shared by {tp} "
             f"ranks, not {ep}"),
            (cp > 1 and _window(problem), "window-context",
             f"no attention_window is exported for {tool} with context_parallel {cp}, which "
             f"Transformer Engine "
             "combines in some ways of communication alone"),
            (recipe.fp8 == "rowwise", "fp8-unsaid",
             f"{tool} scales by tensors and blocks, not by rows: fp8 {' and '.join(FP8)} have "
             f"settings"),
        )  # fmt: skip

    def _model_refusals(self, model: Model) -> tuple[Refusal, ...]:
        """Return what of a model has no option; of the scaling of rotary frequencies only the
        factor has one.
        """
        tool, attention, rotary = self.title, model.attention, model.rotary
        scaling = rotary.scaling if rotary else None
        is_latent = isinstance(attention, LatentAttention)
        if is_latent:
            other = scaling is not None and scaling != _yarn(scaling)
            stated = "YaRN's frequencies over 4096 positions for latent attention"
        else:
            other = scaling is not None and scaling != RotaryScaling(factor=scaling.factor)
            stated = "Llama 3.1's frequency factors and positions"
        activation, width = model.feed_forward.activation, rotary.width if rotary else 0
        is_cut = not is_latent and int(attention.head_dim * _rotary_percent(model)) != width
        return (
            (activation == "gelu_tanh" and attention.biases != "all", "model-unsaid",
             f"{tool} computes activation gelu_tanh only with biases all, not {attention.biases}"),
            (activation in self.lacks, "model-unsaid",
             f"{tool} has no option for activation {activation}"),
            (activation == "geglu", "model-unsaid",
             f"{tool} gates by the sigmoid form of GELU (--quick-geglu), not by the tanh form "
             f"of activation geglu"),
            (rotary and rotary.theta % 1, "model-unsaid",
             f"{tool} takes a whole number for rotary_theta, not {rotary and rotary.theta}"),
            (other, "model-unsaid", f"{tool} has {stated}, not {scaling}"),
            (is_cut, "model-unsaid",
             f"{tool} has no --rotary-percent that rotates {width} of {attention.head_dim}"),
            *(self._mixture_refusals(model.mixture) if model.mixture else ()),
        )  # fmt: skip

    def _mixture_refusals(self, mixture: MixtureOfExperts) -> tuple[Refusal, ...]:
        """Return what of a mixture of experts has no option."""
        tool, is_sigmoid = self.title, mixture.router == "sigmoid"
        is_renormalized, several = mixture.renormalized_experts, mixture.experts_per_token > 1
        summed = mixture.experts_per_token // mixture.router_groups_kept
        return (
            (is_sigmoid and several and not is_renormalized, "model-unsaid",
             f"{tool} renormalizes the probabilities of a sigmoid router"),
            (mixture.balancing == "bias" and not is_sigmoid, "model-unsaid",
             f"{tool} balances by a bias only with a sigmoid router"),
            (mixture.router_groups > 1 and summed != (2 if is_sigmoid else 1), "model-unsaid",
             f"{tool} ranks a group of experts by the sum of its {summed} highest "
             f"(experts_per_token over "
             "router_groups_kept), ours by 2 of a sigmoid router and 1 of a softmax"),
            (is_renormalized and not several, "model-unsaid",
             f"{tool} multiplies a single expert by its probability: renormalized_experts is "
             f"false there"),
        )  # fmt: skip

    def key(self, name: str) -> str:
        """Return the whole name of what Megatron-LM calls `--name`."""
        return f"--{name}"

    def arguments_and_files(self, problem: Problem, recipe: Recipe) -> Export:
        """Return what follows pretrain_gpt.py, except data, steps and learning rate."""
        model, layers = problem.model, layers_of_stages(recipe, len(problem.model.layers))
        has_gqa, is_even = model.attention.kv_heads != model.attention.heads, len(set(layers)) == 1
        fsdp, bf16_states = FSDP.get(recipe.sharding_name), recipe.optimizer_state == "bf16"
        settings = self._common(problem, recipe) | {
            # Of Transformer Engine's fused kernels only cuDNN's have sinks.
            "--attention-backend": {
                "flash": "fused" if model.attention.sinks else "flash",
                "math": "unfused",
            }[model.attention.kernel],
            self.has_kv_heads: has_gqa,
            f"--{self.kv_heads}": model.attention.kv_heads if has_gqa else None,
            "--position-embedding-type": {"rotary": "rope", "learned": "learned_absolute"}[
                model.embedding.positions
            ],
            **_rotary_scaling(model),
            **{
                f"--{k}": value
                for k, value in _attention(problem).items()
                if value != PART_DEFAULTS.get(k)
            },
            **(CLAMPED if model.feed_forward.activation == "swiglu_clamped" else {}),
            "--normalization": {"layernorm": "LayerNorm", "rmsnorm": "RMSNorm"}[model.norm.kind],
            "--add-qkv-bias": model.attention.biases == "qkv",
            "--qk-layernorm": (
                model.attention.qk_norm or isinstance(model.attention, LatentAttention)
            ),  # of latent attention its two norms
            **self._experts(problem),
            f"--{LAYOUT}": None if is_even else layout(layers, model.prediction.layers),
            f"--{LAYERS_PER_STAGE}": layers[0] if is_even and recipe.virtual_stages > 1 else None,
            "--use-tp-pp-dp-mapping": recipe.rank_order == "tp-pp-dp",
            "--use-distributed-optimizer": recipe.sharding_name != "none" or bf16_states,
            "--use-megatron-fsdp": fsdp is not None,
            f"--{STRATEGY}": fsdp,
            "--ckpt-format": "fsdp_dtensor" if fsdp else None,
            "--accumulate-allreduce-grads-in-fp32": problem.precision == "bf16",
            "--overlap-grad-reduce": recipe.copies > 1,
            "--overlap-param-gather": recipe.sharding.optimizer > 1,
            "--use-precision-aware-optimizer": bf16_states,
            "--exp-avg-dtype": "bf16" if bf16_states else None,
            "--exp-avg-sq-dtype": "bf16" if bf16_states else None,
            **FP8.get(recipe.fp8, {}),
        }
        connections = "above 1" if fsdp else "1, except on devices from Blackwell on"
        notes = [*self._notes(recipe), *_norm_notes(model)]
        if fsdp or max(recipe.tensor_parallel, recipe.context_parallel) > 1:
            notes.append(
                f"note: {self.title} needs the environment variable CUDA_DEVICE_MAX_CONNECTIONS"
                f" {connections}"
            )
        return Export(arguments=words(settings), notes=tuple(notes))

    def read(self, problem: Problem, given: Given) -> Recipe:
        """Return the recipe of a launch script or an argument file."""
        said = given.keep(reading.read_options(given.text))
        said.refuse(REFUSED)
        self._refuse_other_model(problem, said)
        found = self._choices(problem, said)
        heads = problem.model.attention.heads // found.get("tensor_parallel", 1)
        sends = said.text("--cp-comm-type", "p2p")  # one word, or one for each layer
        if "a2a" in sends.split() and heads % found.get("context_parallel", 1):
            raise bad_value(
                "--cp-comm-type",
                sends,
                f"p2p: context ranks do not divide the {heads} heads of a tensor-parallel rank,"
                " which a2a sends between them",
            )
        types = {said.text(name, "fp32") for name in ("--exp-avg-dtype", "--exp-avg-sq-dtype")}
        if types not in ({"fp32"}, {"bf16"}):
            raise bad_value(
                "--exp-avg-dtype, --exp-avg-sq-dtype",
                sorted(types),
                "fp32 or bf16, the same for both",
            )
        found["optimizer_state"] = types.pop()
        stated = {
            name: said.text(name, default)
            for name, default in (("--fp8-format", ""), ("--fp8-recipe", "delayed"))
        }
        if stated["--fp8-format"]:
            scaling = next((ours for ours, theirs in FP8.items() if theirs == stated), None)
            if scaling is None:
                expected = "".join(f"{' '.join(theirs.values())}, " for theirs in FP8.values())
                raise bad_value(
                    "--fp8-format, --fp8-recipe", list(stated.values()), f"{expected}or none"
                )
            found["fp8"] = scaling
        return reading.recipe_of(problem, found | said.launch, given)

    def _common(self, problem: Problem, recipe: Recipe) -> dict[str, object]:
        """Return the options of both trainers that have a command line.

        Megatron pads the vocabulary to a multiple of its divisor times tensor_parallel: the divisor
        is chosen so that it pads as we do. Its fused kernel for a bias and GELU computes the tanh
        form.
        """
        model = problem.model
        return {
            "--num-layers": len(model.layers),
            "--hidden-size": model.hidden,
            "--ffn-hidden-size": model.layers[0].feed_forward.ffn_hidden,
            "--num-attention-heads": model.attention.heads,
            "--kv-channels": model.attention.head_width,
            "--seq-length": problem.sequence_length,
            "--max-position-embeddings": max(
                model.embedding.max_positions or 0, problem.sequence_length
            ),
            "--make-vocab-size-divisible-by": model.embedding.padded_vocabulary
            // recipe.tensor_parallel,
            self.theta: int(model.rotary.theta) if model.rotary else None,
            self.epsilon: model.norm.epsilon,
            "--disable-bias-linear": not model.feed_forward.has_biases,
            # The fused kernel is the tanh form, and Megatron-LM refuses it with squared ReLU.
            "--no-bias-gelu-fusion": model.feed_forward.activation in ("gelu", "relu2"),
            "--swiglu": model.feed_forward.activation == "swiglu",
            "--squared-relu": model.feed_forward.activation == "relu2",
            "--untie-embeddings-and-output-weights": not model.head.tied,
            f"--{problem.precision}": problem.precision != "fp32",
            **self.numbers(recipe),
            "--sequence-parallel": recipe.sequence_parallel,
            **self._recomputing(recipe),
        }

    def _experts(self, problem: Problem) -> dict[str, object]:
        """Return the options of latent attention and of experts: dropless, tokens sent by
        all-to-all.
        """
        model, mixture = problem.model, problem.model.mixture
        found: dict[str, object] = {f"--{name}": value for name, value in _parts(model).items()}
        if mixture is None:
            return found
        dense, weight = model.dense_layers, mixture.balancing_weight
        has_loss, has_bias = mixture.balancing == "loss", mixture.balancing == "bias"
        return found | {
            "--moe-layer-freq": f"[0]*{dense}+[1]*{len(model.layers) - dense}" if dense else None,
            "--moe-router-load-balancing-type": "seq_aux_loss" if has_loss else "none",
            "--moe-aux-loss-coeff": weight if has_loss else None,
            "--moe-router-enable-expert-bias": has_bias,
            "--moe-router-bias-update-rate": weight if has_bias else None,
            "--moe-token-dispatcher-type": "alltoall",
            "--moe-grouped-gemm": problem.precision == "bf16",
            # Grouped products with biases need this.
            "--no-bias-dropout-fusion": mixture.has_biases,
        }

    def _recomputing(self, recipe: Recipe) -> dict[str, object]:
        """Return the options of recompute: full keeps each layer's input, selective repeats
        attention's core.
        """
        full = recipe.recompute == "full"
        return {
            self.key("recompute-granularity"): (
                None if recipe.recompute == "none" else recipe.recompute
            ),
            self.key("recompute-method"): "uniform" if full else None,
            self.key("recompute-num-layers"): 1 if full else None,
        }

    def _notes(self, recipe: Recipe) -> tuple[str, ...]:
        which = f"{self.title}'s own, which repeats attention's core; the probed one repeats less"
        notes = [f"note: recompute selective is {which}"] if recipe.recompute == "selective" else []
        if recipe.fp8 != "none":
            notes.append(
                "note: products in 8 bits are Transformer Engine's, also those of experts; the"
                " probed one's torchao's"
            )
        return tuple(notes)

    def _choices(self, problem: Problem, said: Options | Table) -> dict[str, Any]:
        key = self.key
        found: dict[str, Any] = {
            number: value for number, name in self.names.items() if (value := said.number(name))
        }
        pp = found.setdefault("pipeline_parallel", 1)
        if isinstance(said, Options) and said.number("--num-experts"):
            found.setdefault(
                "expert_tensor_parallel", found.get("tensor_parallel", 1)
            )  # as Megatron-LM does
        found |= self._stages(problem, said, pp)
        sharding = "zero-1" if said.flag(key("use-distributed-optimizer")) else "none"
        if said.flag(key("use-megatron-fsdp")):
            strategy = said.text(key(STRATEGY), "no_shard")
            if strategy not in SHARDING_OF_STRATEGY:
                raise bad_value(
                    key(STRATEGY), strategy, f"one of {', '.join(SHARDING_OF_STRATEGY)}"
                )
            sharding = SHARDING_OF_STRATEGY[strategy]
        granularity = said.text(key("recompute-granularity"), "none")
        if granularity not in ("none", "full", "selective"):
            raise bad_value(key("recompute-granularity"), granularity, "none, full or selective")
        how = {"recompute-method": "uniform", "recompute-num-layers": "1"}
        texts = [said.text(key(name), default) for name, default in how.items()]
        if granularity == "full" and texts != list(how.values()):
            raise bad_value(
                ", ".join(map(key, how)), " ".join(texts), "uniform 1: every layer on its own"
            )
        schedule = "1f1b" if found.get("virtual_stages", 1) == 1 else "interleaved-1f1b"
        return found | {
            "schedule": "none" if pp == 1 else schedule,
            # Megatron turns sequence parallelism off without tensor parallelism.
            "sequence_parallel": (
                said.flag(key("sequence-parallel")) and found.get("tensor_parallel", 1) > 1
            ),
            "sharding": sharding,
            "recompute": "selective" if said.flag(key("recompute-activations")) else granularity,
            "rank_order": "tp-pp-dp" if said.flag(key("use-tp-pp-dp-mapping")) else "tp-dp-pp",
        }

    def _stages(self, problem: Problem, said: Options | Table, pp: int) -> dict[str, Any]:
        layers, key = len(problem.model.layers), self.key(LAYERS_PER_STAGE)
        per_stage = said.number(key)
        if text := said.text(self.key(LAYOUT)):
            stages = layers_of_layout(text, self.key(LAYOUT), problem.model.prediction.layers)
            if len(stages) % pp:
                raise bad_value(self.key(LAYOUT), text, f"a multiple of {pp} stages")
            if sum(stages) != layers:
                raise bad_value(self.key(LAYOUT), text, f"the model's {layers} layers")
            uneven = () if stages == even_layers(layers, len(stages)) else stages
            return {"virtual_stages": len(stages) // pp, "layers_per_stage": uneven}
        if per_stage is None:
            per_rank = said.number(self.key("num-virtual-stages-per-pipeline-rank"))
            return {"virtual_stages": per_rank} if per_rank else {}
        if layers % (pp * per_stage):
            raise bad_value(key, per_stage, f"a divisor of the {layers} layers over {pp} ranks")
        return {"virtual_stages": layers // (pp * per_stage)}

    def _refuse_other_sizes(self, problem: Problem, said: Options | Table) -> None:
        model, key = problem.model, self.key
        first = model.layers[0]
        sizes = {
            "num-layers": len(model.layers),
            "hidden-size": model.hidden,
            "num-attention-heads": model.attention.heads,
            "kv-channels": model.attention.head_dim,
            "ffn-hidden-size": None if first.mixture else first.feed_forward.ffn_hidden,
            self.kv_heads: model.attention.kv_heads,
            "seq-length": problem.sequence_length,
        }
        found = {
            key(name): (said.number(key(name)), value)
            for name, value in sizes.items()
            if value is not None
        }
        reading.refuse_other_problem(found)
        self._refuse_other_layers(len(model.layers), said)
        self._refuse_other_experts(problem, said)
        for name in ("vocab-size", "padded-vocab-size"):
            reading.refuse_other_vocabulary(problem, key(name), said.number(key(name)))

    def _refuse_other_layers(self, layers: int, said: Options | Table) -> None:
        """Raise `InvalidInput` for layers whose attention no model here has."""
        key = self.key("no-rope-freq")
        value = said.get(key, 0)
        if (every := _layer_pattern(value, key)) != 0:
            if isinstance(every, int) and layers % every:
                raise bad_value(key, value, f"a divisor of the {layers} layers")
            unrotated = _of_layers(value, key, layers, lambda layer, n: (layer + 1) % n == 0)
            _refuse_some(key, value, unrotated, "no rotary positions")
        key = self.key("linear-attention-freq")
        if (value := said.get(key)) is not None:
            linear = _of_layers(value, key, layers, lambda layer, n: (layer + 1) % n != 0)
            _refuse_some(key, value, linear, "linear attention")

    def _refuse_other_experts(self, problem: Problem, said: Options | Table) -> None:
        """Raise `InvalidInput` for other experts or attention than the problem's.

        A file for Megatron-Bridge changes a Bridge recipe; in a script, what is missing has
        Megatron's defaults.
        """
        model, key, is_script = problem.model, self.key, isinstance(said, Options)
        is_whole = is_script and said.flag("--hidden-size")
        experts = said.number(key("num-experts"))
        width = said.number(key("ffn-hidden-size"))
        for name, value in (_parts(model) | _attention(problem)).items():
            default = width if name == "moe-ffn-hidden-size" else PART_DEFAULTS.get(name)
            found = said.get(key(name), default if is_whole else None)
            if name == "window-size" and found is not None:
                found = "(" + str(found).strip("()[]").replace(" ", "") + ")"
            if name == "window-attn-skip-freq" and isinstance(found, str | list):
                found = _full_attention_every(found, key(name), len(model.layers))
            if isinstance(value, float) and found is not None:
                found = float(said.text(key(name))) if isinstance(found, str) else found
            if found is not None or is_whole:
                reading.refuse_other_problem({key(name): (found or 0, value or 0)})
        dense = _leading_dense(
            said.get(key("moe-layer-freq"), 1 if is_whole and model.mixture else None),
            key("moe-layer-freq"),
            len(model.layers),
        )
        reading.refuse_other_problem(
            {f"leading dense layers of {key('moe-layer-freq')}": (dense, model.dense_layers)}
        )
        if experts and is_script and "--moe-token-dispatcher-type" not in said.values:
            raise bad_value(
                "--moe-token-dispatcher-type",
                "allgather",
                "alltoall: tokens are sent to their experts",
            )

    def _refuse_other_model(self, problem: Problem, said: Options) -> None:
        """Raise `InvalidInput` where options describe another model, sequence length or precision
        than the problem's.

        Where they give a hidden size they describe a model, so that those that are missing have
        their defaults.
        """
        model = problem.model
        self._refuse_other_sizes(problem, said)
        precisions = {f"--{name}": name for name in ("bf16", "fp16") if said.flag(f"--{name}")}
        reading.refuse_other_problem(
            {key: (precision, problem.precision) for key, precision in precisions.items()}
        )
        if not precisions:
            reading.refuse_other_default(
                "neither --bf16 nor --fp16 is there", "fp32", problem.precision
            )
        _refuse_other_activation(model, said)
        if not said.flag("--hidden-size"):
            return
        if not said.flag("--ffn-hidden-size") and model.mixture is None:
            is_gated = said.flag("--swiglu")
            width = int(4 * model.hidden * 2 / 3) // 64 * 64 if is_gated else 4 * model.hidden
            reading.refuse_other_default(
                "--ffn-hidden-size is not there", width, model.feed_forward.ffn_hidden
            )
        is_stated = any(map(said.flag, ("--group-query-attention", self.has_kv_heads)))
        if said.flag("--num-attention-heads") and not is_stated:
            reading.refuse_other_default(
                f"{self.has_kv_heads} is not there", model.attention.heads, model.attention.kv_heads
            )


class MegatronDeepSpeed(MegatronLM):
    """Megatron-DeepSpeed: a bash file that writes the DeepSpeed configuration and sets the
    arguments.
    """

    name = "megatron-deepspeed"
    title = "Megatron-DeepSpeed"
    names = DEEPSPEED_OPTIONS
    kv_heads = "num-key-value-heads"
    has_kv_heads = f"--{kv_heads}"
    theta = "--rotary-position-embeddings-theta"
    epsilon = "--layernorm-epsilon"
    model_fields = MODEL_FIELDS - {"qk_norm", "rotary_scaling"}
    of_zero = ("sharding", "offload", *deepspeed.ZERO_KEYS)
    expressed = frozenset({"schedule", "recompute", "sequence_parallel", *of_zero})

    def refusals(self, problem: Problem, recipe: Recipe) -> Iterable[Refusal]:
        """Return what of experts, stages and ZeRO Megatron-DeepSpeed is not told."""
        tool, layers, has_stages = (
            self.title,
            layers_of_stages(recipe, len(problem.model.layers)),
            recipe.pipeline_parallel > 1,
        )
        return (
            (problem.model.mixture and recipe.tensor_parallel > 1, "experts-tensor",
             f"{tool} is exported with experts only for tensor_parallel 1: its tensor ranks "
             f"repeat tokens or experts"),
            (has_stages and len(set(layers)) > 1, "stages-unsaid",
             f"{tool} gives every stage as many layers; {recipe.stages} stages have {layers}"),
            *deepspeed.zero_refusals(problem, recipe),
            *self._model_refusals(problem.model),
        )  # fmt: skip

    def _model_refusals(self, model: Model) -> tuple[Refusal, ...]:
        tool, mixture = self.title, model.mixture
        return (
            *super()._model_refusals(model),
            (model.attention.biases == "qkv", "model-unsaid",
             f"{tool} has biases all or none, not qkv"),
            (model.feed_forward.activation == "swiglu_clamped", "model-unsaid",
                f"{tool} has no activation {model.feed_forward.activation}"),
            (mixture and mixture.has_biases, "model-unsaid",
                f"no biases of experts are exported for {tool}"),
            (mixture and mixture.experts_per_token > 1 and not mixture.renormalized_experts,
             "model-unsaid", f"{tool} renormalizes the probabilities of several experts"),
        )  # fmt: skip

    def _experts(self, problem: Problem) -> dict[str, object]:
        """Return the options of DeepSpeed's experts, in every layer."""
        mixture = problem.model.mixture
        if mixture is None:
            return {}
        return {
            "--num-experts": mixture.experts,
            "--topk": mixture.experts_per_token,
            "--expert-interval": 1,
            "--disable-moe-token-dropping": True,
            "--disable-moe-top2-2nd-expert-sampling": True,
            "--moe-loss-coeff": 0.0,
            "--create-moe-param-group": True,
        }

    def _refuse_other_experts(self, problem: Problem, said: Options | Table) -> None:
        experts, mixture = said.number("--num-experts") or 1, problem.model.mixture
        found: dict[str, tuple[object, object]] = {
            "--num-experts": (experts, mixture.experts if mixture else 1)
        }
        if experts > 1:
            chosen = mixture.experts_per_token if mixture else 0
            found["--topk"] = (said.number("--topk") or 1, chosen)
            found["--expert-interval"] = (said.number("--expert-interval") or 2, 1)
            found["--disable-moe-token-dropping"] = (
                said.flag("--disable-moe-token-dropping"),
                True,
            )
        reading.refuse_other_problem(found)

    def arguments_and_files(self, problem: Problem, recipe: Recipe) -> Export:
        """Return what follows pretrain_gpt.py, except data, steps and learning rate."""
        model = problem.model
        settings = self._common(problem, recipe) | {
            self.has_kv_heads: model.attention.kv_heads,
            "--normalization": model.norm.kind,
            "--use-rotary-position-embeddings": model.embedding.positions == "rotary",
            "--use-flash-attn-v2": model.attention.kernel == "flash",
            **self._experts(problem),
            "--no-pipeline-parallel": recipe.pipeline_parallel == 1,
            "--deepspeed-activation-checkpointing": recipe.recompute == "full",
            "--deepspeed": True,
            "--deepspeed_config": deepspeed.FILE,
            "--zero-stage": deepspeed.zero_stage(recipe),
        }
        # Megatron cuts matrices and builds the experts: DeepSpeed's AutoTP and AutoEP stay off.
        seen_by_deepspeed = replace(
            recipe,
            tensor_parallel=1,
            devices=recipe.devices // recipe.tensor_parallel,
            sequence_parallel=False,
            expert_parallel=1,
        )
        files = {
            deepspeed.FILE: deepspeed.json_text(deepspeed.configuration(problem, seen_by_deepspeed))
        }
        padded = (
            ("note: DeepSpeed's experts are padded to the fullest one's tokens",)
            if model.mixture
            else ()
        )
        notes = (*self._notes(recipe), *_norm_notes(model), *padded)
        return Export(arguments=words(settings), files=files, notes=notes)

    def read(self, problem: Problem, given: Given) -> Recipe:
        """Return the recipe of a launch script and the DeepSpeed configuration that it names,
        inside or beside it.

        Raises `InvalidInput` where the two disagree: DeepSpeed would follow one and Megatron the
        other.
        """
        said = given.keep(reading.read_options(given.text))
        said.refuse(REFUSED_WITH_DEEPSPEED)
        self._refuse_other_model(problem, said)
        found = self._choices(problem, said) | {"rank_order": "tp-dp-pp"} | said.launch
        if said.flag("--checkpoint-activations"):
            found["recompute"] = "full"
        name = said.text("--deepspeed-config")
        if not name:
            what = (
                "--deepspeed_config is missing: it names the JSON that holds the ZeRO stage and the"
                " batch"
            )
            raise InvalidInput(what)
        text = reading.split_files(given.text)[1].get(name, given.beside(name))
        if text is None:
            what = f"--deepspeed_config {shown_key(name)}: no such file beside the configuration"
            raise InvalidInput(what, hint="copy it there")
        configured = deepspeed.choices(problem, given.keep(reading.json_table(text)))
        for key in ("micro_batch_seqs", "global_batch_seqs"):
            if found.setdefault(key, configured.get(key)) != (configured.get(key) or found[key]):
                theirs = f"{configured[key]} in DeepSpeed's configuration"
                raise InvalidInput(f"{key} is {found[key]} in the arguments and {theirs}")
        stage, word = SHARDING_NAMES.index(configured["sharding"]), said.text("--zero-stage", "1")
        if word != str(stage):
            raise InvalidInput(
                f"--zero-stage {shown_key(word)}: DeepSpeed's configuration has stage {stage}"
            )
        found |= {key: configured[key] for key in (*self.of_zero, "accumulation")}
        return reading.recipe_of(problem, found, given, engine="deepspeed")


class MegatronBridge(MegatronLM):
    """NeMo's Megatron-Bridge: YAML to be merged into one of its own recipes."""

    name = "nemo"
    title = "Megatron-Bridge"
    usage = ""
    has_launcher = False
    names = BRIDGE_KEYS
    model_fields = None
    expressed = MegatronLM.expressed - {"optimizer_state"}

    def arguments_and_files(self, problem: Problem, recipe: Recipe) -> Export:
        """Return the recipe as overrides, `section.key=value`."""
        settings = self._settings(problem, recipe)
        arguments = tuple(
            f"{key}={v if isinstance(v, str) else json.dumps(v)}" for key, v in settings.items()
        )
        return Export(
            arguments=arguments, notes=(*_recipe_notes(problem.model), *self._notes(recipe))
        )

    def _notes(self, recipe: Recipe) -> tuple[str, ...]:
        name = BRIDGE_FP8.get(recipe.fp8)
        what = {"tensorwise": "keeps the first and last layer in bf16, and gathers"}.get(
            recipe.fp8, "gathers"
        )
        return (
            *super()._notes(recipe),
            *((f"note: {name} {what} parameters in 8 bits",) if name else ()),
        )

    def render(self, problem: Problem, recipe: Recipe, header: Sequence[str]) -> str:
        """Return the recipe as YAML, for --config-file."""
        lines = (*header, f"devices: {recipe.devices}", *self.export(problem, recipe).notes)
        return comments(lines) + "\n" + yaml_text(nested(self._settings(problem, recipe)))

    def _model_refusals(self, _: Model) -> tuple[Refusal, ...]:
        return ()

    def key(self, name: str) -> str:
        """Return the path of an entry that has Megatron-LM's name."""
        return _bridge_key(name)

    def _settings(self, problem: Problem, recipe: Recipe) -> dict[str, Any]:
        layers, fsdp = (
            layers_of_stages(recipe, len(problem.model.layers)),
            FSDP.get(recipe.sharding_name),
        )
        is_sharded = recipe.sharding_name != "none"
        found = self.numbers(recipe)
        if recipe.virtual_stages == 1:
            found[self.names["virtual_stages"]] = None
        found |= {
            self.key(LAYOUT): (
                layout(layers, problem.model.prediction.layers) if len(set(layers)) > 1 else None
            ),
            "model.sequence_parallel": recipe.sequence_parallel,
            **self._recomputing(recipe),
            "ddp.use_distributed_optimizer": is_sharded,
            "optimizer.use_distributed_optimizer": is_sharded,
            "ddp.overlap_grad_reduce": recipe.copies > 1,
            "ddp.overlap_param_gather": is_sharded,
            "dist.use_tp_pp_dp_mapping": recipe.rank_order == "tp-pp-dp",
        }
        if problem.model.mixture:
            found |= {"model.moe_token_dispatcher_type": "alltoall"}
        # Bridge's recipe of DeepSeek-V3 has one such layer.
        if problem.model.mixture or problem.model.prediction.layers:
            found |= {self.key("mtp-num-layers"): problem.model.prediction.layers or None}
        if recipe.fp8 != "none":
            found["mixed_precision"] = BRIDGE_FP8[recipe.fp8]
        if fsdp:
            found |= {"ddp.use_megatron_fsdp": True, "ddp.data_parallel_sharding_strategy": fsdp}
            found |= {"dist.use_megatron_fsdp": True, "checkpoint.ckpt_format": "fsdp_dtensor"}
        return found

    def read(self, problem: Problem, given: Given) -> Recipe:
        """Return the recipe of a YAML file; its devices are the launcher's, so they are stated, or
        the cluster's.
        """
        root = given.keep(reading.yaml_table(given.text))
        root.refuse(REFUSED_BY_BRIDGE)
        _refuse_other_precision(problem, root)
        _refuse_other_function(problem.model, root)
        self._refuse_other_sizes(problem, root)
        found = self._choices(problem, root)
        precision = str(root.get("mixed_precision")).replace("-", "_")
        found["fp8"] = next(
            (ours for ours, theirs in BRIDGE_FP8.items() if theirs == precision), "none"
        )
        if root.flag("optimizer.use_distributed_optimizer") and not root.flag(
            self.key("use-megatron-fsdp")
        ):
            found["sharding"] = "zero-1"
        return reading.recipe_of(problem, found, given)


def _recipe_notes(model: Model) -> tuple[str, ...]:
    """Return which of Megatron-Bridge's recipes has the model; sequence length and precision are
    the recipe's.
    """
    model = model.with_keys(mtp_layers=0)  # which is exported
    name = next(
        (bridge for preset, bridge in BRIDGE_RECIPES.items() if is_preset(model, preset)), None
    )
    if name is None:
        return (
            (
                "note: Megatron-Bridge 0.3.1 has no recipe of this model; merge this into one of"
                " your own, which has the model, its sequence length and precision"
            ),
        )
    return (
        f"note: merge this into Megatron-Bridge's {name}_pretrain_config, which has the model",
        (
            "note: the sequence length and precision are that recipe's: set them there to those of"
            " this file's first lines"
        ),
    )


def _norm_notes(model: Model) -> tuple[str, ...]:
    has_other = model.norm.kind == "layernorm" and not model.norm.has_biases
    return ("note: LayerNorm has biases there, which the probed one lacks",) if has_other else ()


def _parts(model: Model) -> dict[str, object]:
    """Return Megatron-LM's options, without dashes, that state a model's experts, latent attention
    and MTP layers.

    The softmax is over the chosen experts where they are renormalized, else over all of them before
    the choice.
    """
    mixture, attention = model.mixture, model.attention
    found: dict[str, object] = {
        "num-experts": mixture and mixture.experts,
        "mtp-num-layers": model.prediction.layers or None,
    }
    if mixture is not None:
        is_grouped, is_renormalized = mixture.router_groups > 1, mixture.renormalized_experts
        scale = mixture.routed_scale
        found |= {
            "moe-ffn-hidden-size": mixture.ffn_hidden,
            "moe-router-topk": mixture.experts_per_token,
            "moe-router-score-function": mixture.router,
            "moe-router-pre-softmax": mixture.router == "softmax" and not is_renormalized,
            "moe-router-num-groups": mixture.router_groups if is_grouped else None,
            "moe-router-group-topk": mixture.router_groups_kept if is_grouped else None,
            "moe-router-topk-scaling-factor": scale if scale != 1 else None,
            "moe-shared-expert-intermediate-size": mixture.shared_width or None,
        }
    if not isinstance(attention, LatentAttention):
        return found | {"multi-latent-attention": False}
    return found | {
        "multi-latent-attention": True,
        "q-lora-rank": attention.query_rank,
        "kv-lora-rank": attention.key_value_rank,
        "qk-head-dim": attention.plain_width,
        "qk-pos-emb-head-dim": attention.rotated_width,
        "v-head-dim": attention.value_dim,
    }


def _attention(problem: Problem) -> dict[str, object]:
    """Return Megatron-LM's options, without dashes, of windows, of sinks and of how much of a head
    is rotated.
    """
    model, window = problem.model, _window(problem)
    is_part = isinstance(model.attention, GroupedAttention) and _rotary_percent(model) > 0
    return {
        "window-size": window and f"({window - 1},0)",  # besides a position's own
        "window-attn-skip-freq": (window and model.keys()["full_attention_every"]) or None,
        "softmax-type": "learnable" if model.attention.sinks else "vanilla",
        "rotary-percent": _rotary_percent(model) if is_part else 1.0,
    }


def _window(problem: Problem) -> int | None:
    """Return the window of attention, None where sequences fit in it."""
    window = problem.model.attention.window
    return None if (window or 0) >= problem.sequence_length else window


def _rotary_percent(model: Model) -> float:
    """Return which part of a head is stated to be rotated; 0 where nothing is stated."""
    return model.rotary.width / model.attention.head_dim if model.rotary else 0.0


def _refuse_other_activation(model: Model, said: Options) -> None:
    """Raise `InvalidInput` for another activation than the model's. Options with a hidden size
    describe a model, whose activation is GELU by default.
    """
    flags = [flag for flag in ACTIVATION_OF if said.flag(flag)]
    if len(flags) > 1:
        raise InvalidInput(
            f"{' and '.join(flags)} are both there, of which Megatron takes one",
            hint="keep the one that is trained in a copy of the script",
        )
    is_clamped = flags == ["--quick-geglu"]
    for option, clamped in CLAMPED_BY.items():
        name, expected = f"--{option}", clamped if is_clamped else 0.0
        text = said.text(name, "0")
        try:
            is_expected = float(text) == expected
        except ValueError:
            is_expected = False
        if not is_expected:
            how = "with" if is_clamped else "without"
            raise bad_value(name, text, f"{expected:g} {how} --quick-geglu: no other is modeled")
    if not flags and not said.flag("--hidden-size"):
        return
    what = f"{flags[0]} is there" if flags else "--swiglu is not there"
    stated = ACTIVATION_OF[flags[0]] if flags else "gelu"
    if stated not in GELUS or model.feed_forward.activation not in GELUS:
        reading.refuse_other_default(what, stated, model.feed_forward.activation)


def _refuse_other_function(model: Model, root: Table) -> None:
    """Raise `InvalidInput` where a YAML file of Bridge, or of NeMo 1, states another activation
    than the model's. What is missing is the Bridge recipe's.
    """
    is_gated = model.feed_forward.is_gated
    gates = root.flag("model.gated_linear_unit")
    if root.get("model.gated_linear_unit") is None:
        gates = is_gated
    key = "model.activation_func"
    if isinstance(root.get(key), Mapping):
        key = f"{key}._target_"
    if function := root.text(key):
        name = function.rpartition(".")[2]
        stated = FUNCTIONS.get((FUNCTION_NAMES.get(name, name), gates), ())
        known = [name for name, is_gate in FUNCTIONS if is_gate == gates]
        how = "with" if gates else "without"
        _refuse_unless_among(
            stated, key, function, model, f"one of {', '.join(known)} {how} gated_linear_unit"
        )
    reading.refuse_other_problem({"model.gated_linear_unit": (gates, is_gated)})
    if word := root.text("model.activation"):
        stated, known = NEMO_1_ACTIVATIONS.get(word, ()), [*NEMO_1_ACTIVATIONS]
        _refuse_unless_among(stated, "model.activation", word, model, f"one of {', '.join(known)}")
    for name, clamped in CLAMPED_BY.items():
        activation = model.feed_forward.activation
        key, expected = _bridge_key(name), clamped if activation == "swiglu_clamped" else 0.0
        if (value := root.get(key, expected)) != expected:
            raise bad_value(key, value, f"{expected:g} with {activation}: no other is modeled")


def _refuse_unless_among(
    stated: Sequence[str], key: str, word: str, model: Model, expected: str
) -> None:
    """Raise `InvalidInput` for a word that means none of our activations, or another one than the
    model's.
    """
    if not stated:
        raise bad_value(key, word, expected)
    if model.feed_forward.activation not in stated:
        reading.refuse_other_default(f"{word} as {key}", stated[0], model.feed_forward.activation)


def _refuse_some(key: str, value: object, of_layers: Sequence[int], what: str) -> None:
    """Raise `InvalidInput` where some of the layers have what no model here has."""
    if count := sum(of_layers):
        raise InvalidInput(
            f"{key} = {shown(value)} gives {what} to {count} of {len(of_layers)} layers, which no"
            " model here has",
            hint='a campaign with evaluator = "command" can measure such a model',
        )


def _of_layers(
    value: object, key: str, layers: int, of_number: Callable[[int, int], bool]
) -> list[int]:
    """Return the 0 or 1 of each layer: those of a list, or `of_number(layer, number)`, where layers
    count from 0.
    """
    kinds = _layer_pattern(value, key)
    if isinstance(kinds, int):
        if kinds < 1:
            raise bad_value(key, value, "at least 1")
        number = kinds
        kinds = [int(of_number(layer, number)) for layer in range(layers)]
    if len(kinds) != layers or any(kind not in (0, 1) for kind in kinds):
        raise bad_value(key, value, f"one 0 or 1 for each of the {layers} layers")
    return kinds


def _layer_pattern(value: object, key: str) -> list[int] | int:
    """Return a number, or the list that an expression makes, of which Megatron-LM evaluates digits,
    brackets, `+`, `*` and commas (`moe_freq_type`, `no_rope_freq_type`, `la_freq_type` and
    `_eval_pattern` of megatron/training/arguments.py at d98e8a64).
    """
    if isinstance(value, int | list) and not isinstance(value, bool):
        return value
    text = str(value).strip("\"' ")
    if not _PATTERN.fullmatch(text):
        raise bad_value(key, value, "a number, or a list of 0 and 1, as [0]*3+[1]*58")
    try:
        found = _evaluated(ast.parse(text, mode="eval").body)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        found = None
    if isinstance(found, int) or (isinstance(found, list) and found):
        return found
    raise bad_value(key, value, "a number, or a list of 0 and 1, as [0]*3+[1]*58")


def _evaluated(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=int(value)):
            return value
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            return [_evaluated(part) for part in parts]
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            found = _evaluated(left) + _evaluated(right)
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            sides = (_evaluated(left), _evaluated(right))
            size = math.prod(len(side) if isinstance(side, list) else side for side in sides)
            if size > MAX_STAGES:
                raise ValueError
            found = sides[0] * sides[1]
        case _:
            raise ValueError
    return found


def _full_attention_every(value: object, key: str, layers: int) -> int:
    """Return of how many layers the last has no window, as `--window-attn-skip-freq` says: a
    number, or a list with 0 for each such layer (`is_layer_window_attention` of
    megatron/core/transformer/utils.py at d98e8a64).
    """
    windowed = _layer_pattern(value, key)
    if isinstance(windowed, int):
        return windowed
    every = windowed.index(0) + 1 if 0 in windowed else 0
    if windowed != [int(not every or (layer + 1) % every != 0) for layer in range(layers)]:
        raise bad_value(key, value, f"the window in all of the {layers} layers but each n-th one")
    return every


def _leading_dense(value: object, key: str, layers: int) -> int | None:
    """Return the leading layers without experts that `--moe-layer-freq` describes, None where it is
    missing.

    A number n gives experts to every n-th layer from the first on.
    """
    if value is None:
        return None
    kinds = _of_layers(value, key, layers, lambda layer, number: layer % number == 0)
    if kinds != sorted(kinds):
        raise bad_value(key, value, "leading layers without experts, as [0]*3+[1]*58")
    return kinds.count(0)


def _rotary_scaling(model: Model) -> dict[str, object]:
    """Return the options of Llama 3.1's scaling, or for latent attention those of YaRN or plain
    rotation.

    YaRN's two mscales give what cosines and scores are multiplied by (`YarnRotaryEmbedding`,
    `MLASelfAttention`): g(mscale) / g(mscale_all_dim) and g(mscale_all_dim) ** 2, with g(m) = 0.1 m
    ln(factor) + 1.
    """
    scaling = model.rotary.scaling if model.rotary else None
    if isinstance(model.attention, GroupedAttention):
        return {
            "--use-rope-scaling": scaling is not None,
            "--rope-scaling-factor": scaling.factor if scaling else None,
        }
    if scaling is None:
        return {"--rope-type": "rope"}
    log, of_all = 0.1 * math.log(scaling.factor), math.sqrt(scaling.score_factor)
    return {
        "--rope-type": "yarn",
        "--rotary-scaling-factor": scaling.factor,
        "--mscale": round((scaling.magnitude * of_all - 1) / log, 9),
        "--mscale-all-dim": round((of_all - 1) / log, 9),
    }


def _yarn(scaling: RotaryScaling) -> RotaryScaling:
    """Return the YaRN scaling that Megatron-LM's options state: its factors, and defaults of all
    else.
    """
    plain = RotaryScaling(kind="yarn", factor=scaling.factor, original_positions=4096)
    return replace(
        plain, attention_factor=scaling.attention_factor, score_factor=scaling.score_factor
    )


def layout(layers: Sequence[int], mtp_layers: int = 0) -> str:
    """Return stages as --pipeline-model-parallel-layout has them: `Ett|tt|tmL`, embedding first and
    loss last.

    `m` are MTP layers, before the loss.
    """
    return "E" + "|".join("t" * count for count in layers) + "m" * mtp_layers + "L"


def layers_of_layout(text: str, key: str, mtp_layers: int = 0) -> tuple[int, ...]:
    """Return the layers of each stage of a layout; `(tt|)*3` and `t*4` repeat, as in
    `PipelineParallelLayerLayout`.
    """
    plain = text.replace(",", "")
    for pattern in (_REPEATED_GROUP, _REPEATED):
        if sum(len(found[1]) * int(found[2]) for found in pattern.finditer(plain)) > MAX_STAGES:
            raise bad_value(key, text, f"at most {MAX_STAGES:,} stages and layers")
        plain = pattern.sub(lambda found: found[1] * int(found[2]), plain)
    end = "m" * mtp_layers + "L"
    if not (plain.startswith("E") and plain.endswith(end)):
        raise bad_value(
            key, text, f"the embedding E in the first stage and {end} at the end of the last"
        )
    stages = plain[1 : -len(end)].split("|")
    if any(set(stage) != {"t"} for stage in stages):
        raise bad_value(key, text, "only transformer layers t between them, at least one per stage")
    return tuple(len(stage) for stage in stages)


def _refuse_other_precision(problem: Problem, root: Table) -> None:
    """Raise `InvalidInput` for another precision; where the file says none it is the Bridge
    recipe's.
    """
    sections = ["model", "mixed_precision"]
    if isinstance(root.get("mixed_precision"), str):
        names = {
            "bf16_mixed": "bf16",
            "fp16_mixed": "fp16",
            **dict.fromkeys(BRIDGE_FP8.values(), "bf16"),
        }
        named = root.choice(
            "mixed_precision", "", names, spelled=lambda name: name.replace("-", "_")
        )
        reading.refuse_other_problem({"mixed_precision": (named, problem.precision)})
        sections.remove("mixed_precision")
    for section in sections:
        root.refuse({f"{section}.fp8": "8-bit arithmetic", f"{section}.fp4": "4-bit arithmetic"})
        for precision in ("bf16", "fp16"):
            if root.flag(f"{section}.{precision}"):
                reading.refuse_other_problem(
                    {f"{section}.{precision}": (precision, problem.precision)}
                )
