"""Recipes as Megatron-LM's arguments.

Names and checks are those of `megatron/training/arguments.py` of NVIDIA/Megatron-LM (commit 000c4ac2, core 0.16);
layouts of uneven stages those of `pipeline_parallel_layer_layout.py` of megatron-core 0.16.1. The distributed
optimizer is ZeRO-1 over replicas and context ranks; ZeRO-2 and 3 are Megatron FSDP's. Ranks are numbered
tp-cp-dp-pp, with --use-tp-pp-dp-mapping tp-cp-pp-dp.
"""

from __future__ import annotations

from frontrunner.evaluators.export import megatron_core as core
from frontrunner.evaluators.export.base import Export, Tool
from frontrunner.evaluators.export.reading import Given, Options, read_options, recipe_of, refuse_options
from frontrunner.spaces.errors import bad_value
from frontrunner.spaces.legality import Reason
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import Recipe

PRETRAIN = 'torchrun "${TORCHRUN_ARGS[@]}" pretrain_gpt.py "${RECIPE_ARGS[@]}" and your data'
STRATEGY = "--data-parallel-sharding-strategy"
REFUSED = {
    "--expert-model-parallel-size": "experts",
    "--num-experts": "experts",
    "--use-torch-fsdp2": "Megatron-LM's wrapper of FSDP2: give --use-megatron-fsdp",
    "--use-custom-fsdp": "this older name: give --use-megatron-fsdp",
    "--fp8-format": "8-bit arithmetic",
    "--fp8-hybrid": "8-bit arithmetic",
    "--fp8-e4m3": "8-bit arithmetic",
    "--fp4-format": "4-bit arithmetic",
    "--cpu-offloading": "activations offloaded by whole layers",
    "--optimizer-cpu-offload": "a part of the optimizer offloaded",
    "--num-distributed-optimizer-instances": "optimizer states sharded over a part of the replicas",
    "--rampup-batch-size": "a batch that grows",
    "--decoder-first-pipeline-num-layers": f"this option: give {core.LAYOUT}",
    "--decoder-last-pipeline-num-layers": f"this option: give {core.LAYOUT}",
    "--account-for-embedding-in-pipeline-split": f"this option: give {core.LAYOUT}",
    "--account-for-loss-in-pipeline-split": f"this option: give {core.LAYOUT}",
    "--microbatch-group-size-per-virtual-pipeline-stage": "groups of micro-batches",
}
"""Options that change the run in ways that no recipe has, and what they do."""


class MegatronLM(Tool):
    """Megatron-LM: a bash file of arguments for pretrain_gpt.py."""

    name = "megatron-lm"
    title = "Megatron-LM"
    usage = PRETRAIN
    dimensions = frozenset({
        "tensor_parallel", "pipeline_parallel", "context_parallel", "virtual_stages", "schedule", "sharding",
        "recompute", "sequence_parallel", "optimizer_state", "layers_per_stage", "rank_order",
    })  # fmt: skip

    def why_unsupported(self, problem: Problem, recipe: Recipe) -> Reason | None:
        """Return what of the recipe Megatron core does not run."""
        return (
            core.why_no_schedule(recipe, self.title)
            or core.why_no_sharding(recipe, self.title)
            or core.why_no_rank_order(recipe, self.title)
            or core.why_no_context(problem, recipe, self.title)
        )

    def arguments_and_files(self, problem: Problem, recipe: Recipe) -> Export:
        """Return what follows pretrain_gpt.py, except data, steps and learning rate."""
        words = [*_model_arguments(problem, recipe), *_parallel_arguments(problem, recipe), *_memory_arguments(recipe)]
        return Export(arguments=tuple(map(str, words)), notes=core.recompute_notes(recipe, self.title))

    def read(self, problem: Problem, given: Given) -> Recipe:
        """Return the recipe of a launch script or an argument file."""
        said = read_options(given.text)
        refuse_options(said, REFUSED)
        core.refuse_other_model(problem, said, kv_heads=core.QUERY_GROUPS)
        found = core.parallel_choices(problem, said) | {
            "sharding": _sharding(said),
            "recompute": core.recompute_of(said),
            "optimizer_state": _optimizer_state(said),
            "rank_order": "tp-pp-dp" if "--use-tp-pp-dp-mapping" in said else "tp-dp-pp",
            "engine": given.stated.get("engine", "torch"),
        }
        return recipe_of(problem, found, given)


def _model_arguments(problem: Problem, recipe: Recipe) -> list[object]:
    """Return the options of the model, its sequence length and precision.

    Megatron-LM pads the vocabulary to a multiple of its divisor times tensor_parallel: the divisor is chosen so that
    it pads as we do.
    """
    model = problem.model
    words: list[object] = [
        *("--num-layers", model.layers, "--hidden-size", model.hidden, "--ffn-hidden-size", model.ffn_hidden),
        *("--num-attention-heads", model.heads, "--seq-length", problem.sequence_length),
        *("--max-position-embeddings", max(model.max_positions or 0, problem.sequence_length)),
        *("--make-vocab-size-divisible-by", model.padded_vocabulary // recipe.tensor_parallel),
        "--disable-bias-linear",
        *("--attention-backend", {"flash": "flash", "math": "unfused"}[model.attention]),
    ]
    if model.kv_heads != model.heads:
        words += ["--group-query-attention", core.QUERY_GROUPS, model.kv_heads]
    words += ["--position-embedding-type", {"rotary": "rope", "learned": "learned_absolute"}[model.positions]]
    words += ["--normalization", {"layernorm": "LayerNorm", "rmsnorm": "RMSNorm"}[model.norm]]
    words += ["--swiglu"] * (model.activation == "swiglu")
    words += ["--untie-embeddings-and-output-weights"] * (not model.tied_embeddings)
    words += [f"--{problem.precision}"] * (problem.precision != "fp32")
    return words


def _parallel_arguments(problem: Problem, recipe: Recipe) -> list[object]:
    words: list[object] = [word for key, name in core.NUMBERS.items() for word in (name, getattr(recipe, key))]
    layers = core.stage_layers(problem, recipe)
    if len(set(layers)) > 1:
        words += [core.LAYOUT, core.layout(layers)]
    elif recipe.virtual_stages > 1:
        words += [core.LAYERS_PER_STAGE, layers[0]]
    words += ["--use-tp-pp-dp-mapping"] * (recipe.rank_order == "tp-pp-dp")
    words += ["--sequence-parallel"] * recipe.sequence_parallel
    return words


def _memory_arguments(recipe: Recipe) -> list[object]:
    words: list[object] = []
    name, has_bf16_states = recipe.sharding_name, recipe.optimizer_state == "bf16"
    words += ["--use-distributed-optimizer"] * (name != "none" or has_bf16_states)
    if name in core.FSDP:
        words += ["--use-megatron-fsdp", STRATEGY, core.FSDP[name], "--ckpt-format", "fsdp_dtensor"]
    if has_bf16_states:
        words += ["--use-precision-aware-optimizer", "--exp-avg-dtype", "bf16", "--exp-avg-sq-dtype", "bf16"]
    return [*words, *core.recompute_arguments(recipe)]


def _sharding(said: Options) -> str:
    if "--use-megatron-fsdp" not in said:
        return "zero-1" if "--use-distributed-optimizer" in said else "none"
    strategy = said.text(STRATEGY, "no_shard")
    if strategy not in core.SHARDING_OF_STRATEGY:
        raise bad_value(STRATEGY, strategy, f"one of {', '.join(core.SHARDING_OF_STRATEGY)}")
    return core.SHARDING_OF_STRATEGY[strategy]


def _optimizer_state(said: Options) -> str:
    types = {said.text(name, "fp32") for name in ("--exp-avg-dtype", "--exp-avg-sq-dtype")}
    if types not in ({"fp32"}, {"bf16"}):
        raise bad_value("--exp-avg-dtype, --exp-avg-sq-dtype", sorted(types), "fp32 or bf16, the same for both")
    return types.pop()
