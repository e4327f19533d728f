"""Recipes as Megatron-LM's arguments.

Names and checks are those of `megatron/training/arguments.py` of NVIDIA/Megatron-LM (commit 000c4ac2, core 0.16);
layouts of uneven stages those of `pipeline_parallel_layer_layout.py` of megatron-core 0.16.1. The distributed
optimizer is ZeRO-1 over replicas and context ranks; ZeRO-2 and 3 are Megatron FSDP's. Ranks are numbered
tp-cp-dp-pp, with --use-tp-pp-dp-mapping tp-cp-pp-dp.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from frontrunner.evaluators.export import megatron, script
from frontrunner.evaluators.export.export import Export, launch_of, why_no_launch, why_unsaid
from frontrunner.evaluators.export.given import Given, number, recipe_of
from frontrunner.evaluators.export.megatron import Options
from frontrunner.evaluators.export.megatron_model import model_arguments
from frontrunner.evaluators.export.shell import options
from frontrunner.spaces.errors import bad_value
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.reasons import Reason
from frontrunner.spaces.recipe import Recipe

TOOL = "Megatron-LM"
SAYS = frozenset({
    "tensor_parallel", "pipeline_parallel", "context_parallel", "virtual_stages", "schedule", "sharding", "recompute",
    "sequence_parallel", "optimizer_state", "layers_per_stage", "rank_order",
})  # fmt: skip
FSDP = {"zero-2": "optim_grads", "zero-3": "optim_grads_params"}
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
    "--num-distributed-optimizer-instances": "optimizer states spread over a part of the replicas",
    "--rampup-batch-size": "a batch that grows",
    "--decoder-first-pipeline-num-layers": "this option: give --pipeline-model-parallel-layout",
    "--decoder-last-pipeline-num-layers": "this option: give --pipeline-model-parallel-layout",
    "--account-for-embedding-in-pipeline-split": "this option: give --pipeline-model-parallel-layout",
    "--account-for-loss-in-pipeline-split": "this option: give --pipeline-model-parallel-layout",
    "--microbatch-group-size-per-virtual-pipeline-stage": "groups of micro-batches",
}
"""Options that change the run in ways that no recipe has, and what they do."""


def why_not(problem: Problem, recipe: Recipe) -> Reason | None:
    """Why Megatron-LM cannot be told this recipe."""
    return (
        why_unsaid(recipe, TOOL, SAYS)
        or why_no_launch(problem, recipe)
        or megatron.why_no_schedule(recipe, TOOL)
        or why_no_sharding(recipe, TOOL)
        or why_no_rank_order(recipe, TOOL)
        or why_no_context(problem, recipe, TOOL)
    )


def why_no_sharding(recipe: Recipe, tool: str) -> Reason | None:
    """ZeRO-1 is the distributed optimizer, which alone keeps bf16 states; ZeRO-2 and 3 are Megatron FSDP's."""
    name = recipe.sharding_name
    if name not in ("none", "zero-1", *FSDP):
        return Reason("sharding-unsaid", f"{tool} spreads over all copies of the model, not as {name}")
    if name in FSDP and recipe.pipeline_parallel > 1:
        return Reason("sharding-pipeline", f"{name} is Megatron FSDP's, which is not exported together with pipelines")
    if recipe.optimizer_state == "bf16" and name == "none" and recipe.copies > 1:
        return Reason("states-sharding", f"{tool} keeps bf16 optimizer states in its distributed optimizer alone")
    return None


def why_no_rank_order(recipe: Recipe, tool: str) -> Reason | None:
    """Two of the six orders; in the second, context ranks stand before the stages, where ours stand after them."""
    if recipe.rank_order not in ("tp-dp-pp", "tp-pp-dp"):
        return Reason("rank-order-unsaid", f"{tool} numbers ranks as tp-dp-pp or tp-pp-dp, not {recipe.rank_order}")
    if recipe.rank_order == "tp-pp-dp" and min(recipe.context_parallel, recipe.pipeline_parallel) > 1:
        return Reason("rank-order-context", f"{tool}'s tp-pp-dp has context ranks before stages; ours come after them")
    return None


def why_no_context(problem: Problem, recipe: Recipe, tool: str) -> Reason | None:
    """Context ranks hold a slice from the front and one from the back each, so that causal attention is balanced."""
    cp, length = recipe.context_parallel, problem.sequence_length
    if cp == 1 or length % (2 * cp) == 0:
        return None
    return Reason("context-halves", f"{tool} cuts {length} positions into 2 x context_parallel {cp} equal slices")


def export(problem: Problem, recipe: Recipe) -> Export:
    """What follows pretrain_gpt.py, but for data, steps and learning rate."""
    words = (*model_arguments(problem, recipe), *_parallel_arguments(problem, recipe), *_memory_arguments(recipe))
    return Export(arguments=words, notes=notes(recipe, TOOL))


def render(problem: Problem, recipe: Recipe, header: Sequence[str]) -> str:
    """A bash file to be sourced: `torchrun "${TORCHRUN_ARGS[@]}" pretrain_gpt.py "${RECIPE_ARGS[@]}" ...`."""
    launch = launch_of(problem, recipe)
    found = export(problem, recipe)
    use = 'Use: source this file; torchrun "${TORCHRUN_ARGS[@]}" pretrain_gpt.py "${RECIPE_ARGS[@]}" and your data'
    arrays = {"TORCHRUN_ARGS": script.launcher_array(launch) if launch else (), "RECIPE_ARGS": found.arguments}
    return script.script((*header, *found.notes, use), arrays, {})


def notes(recipe: Recipe, tool: str) -> tuple[str, ...]:
    """What of the recipe Megatron does in a way of its own."""
    if recipe.recompute != "selective":
        return ()
    return (f"note: recompute selective is {tool}'s own, which repeats attention's core; the probed one repeats less",)


def _parallel_arguments(problem: Problem, recipe: Recipe) -> tuple[str, ...]:
    words: list[object] = ["--tensor-model-parallel-size", recipe.tensor_parallel]
    words += ["--pipeline-model-parallel-size", recipe.pipeline_parallel]
    words += ["--context-parallel-size", recipe.context_parallel]
    layers = megatron.stage_layers(problem, recipe)
    if len(set(layers)) > 1:
        words += ["--pipeline-model-parallel-layout", megatron.layout(layers)]
    elif recipe.virtual_stages > 1:
        words += ["--num-layers-per-virtual-pipeline-stage", layers[0]]
    words += ["--use-tp-pp-dp-mapping"] * (recipe.rank_order == "tp-pp-dp")
    words += ["--sequence-parallel"] * recipe.sequence_parallel
    words += ["--micro-batch-size", recipe.micro_batch_seqs, "--global-batch-size", recipe.global_batch_seqs]
    return tuple(str(word) for word in words)


def _memory_arguments(recipe: Recipe) -> tuple[str, ...]:
    words: list[str] = []
    name, has_bf16_states = recipe.sharding_name, recipe.optimizer_state == "bf16"
    if name != "none" or has_bf16_states:
        words.append("--use-distributed-optimizer")
    if name in FSDP:
        words += ["--use-megatron-fsdp", "--data-parallel-sharding-strategy", FSDP[name]]
        words += ["--ckpt-format", "fsdp_dtensor"]
    if has_bf16_states:
        words += ["--use-precision-aware-optimizer", "--exp-avg-dtype", "bf16", "--exp-avg-sq-dtype", "bf16"]
    return (*words, *recompute_arguments(recipe))


def recompute_arguments(recipe: Recipe) -> tuple[str, ...]:
    """Full recompute keeps each layer's input; selective repeats attention's core."""
    if recipe.recompute == "full":
        return "--recompute-granularity", "full", "--recompute-method", "uniform", "--recompute-num-layers", "1"
    return ("--recompute-granularity", "selective") if recipe.recompute == "selective" else ()


def read(problem: Problem, given: Given) -> Recipe:
    """The recipe of a launch script or a file of arguments."""
    said = options(given.text)
    megatron.refuse(said, REFUSED)
    megatron.refuse_other_model(problem, said, kv_heads=megatron.QUERY_GROUPS)
    found = parallel_choices(problem, said) | launch_choices(said)
    found |= {"sharding": _sharding(said), "recompute": recompute_of(said), "optimizer_state": _states(said)}
    found["rank_order"] = "tp-pp-dp" if "--use-tp-pp-dp-mapping" in said else "tp-dp-pp"
    found.setdefault("engine", given.stated.get("engine", "torch"))
    return recipe_of(problem, found, given)


def parallel_choices(problem: Problem, said: Options) -> dict[str, Any]:
    """Degrees, stages, schedule and batch, as Megatron-LM and Megatron-DeepSpeed name them."""
    numbers = {
        "tensor_parallel": "--tensor-model-parallel-size",
        "pipeline_parallel": "--pipeline-model-parallel-size",
        "context_parallel": "--context-parallel-size",
        "micro_batch_seqs": "--micro-batch-size",
        "global_batch_seqs": "--global-batch-size",
    }
    found: dict[str, Any] = {key: number(name, said[name]) for key, name in numbers.items() if name in said}
    found.setdefault("pipeline_parallel", 1)
    found |= _stages(problem, said, found["pipeline_parallel"])
    found["schedule"] = megatron.schedule_of(found["pipeline_parallel"], found.get("virtual_stages", 1))
    # Megatron leaves sequence parallelism out where there is no tensor parallelism.
    found["sequence_parallel"] = "--sequence-parallel" in said and found.get("tensor_parallel", 1) > 1
    return found


def _stages(problem: Problem, said: Options, pipeline_parallel: int) -> dict[str, Any]:
    layout, layers, stages = (
        "--pipeline-model-parallel-layout",
        "--num-layers-per-virtual-pipeline-stage",
        "--num-virtual-stages-per-pipeline-rank",
    )
    if layout in said:
        return megatron.stages_of_layout(problem, " ".join(said[layout]), layout, pipeline_parallel)
    if layers in said:
        return {"virtual_stages": megatron.virtual_stages_of(problem, said[layers], layers, pipeline_parallel)}
    return {"virtual_stages": number(stages, said[stages])} if stages in said else {}


def launch_choices(said: Options) -> dict[str, Any]:
    """`devices` where the launcher's counts of nodes and of processes a node are there to be read."""
    nodes, per_node = said.get("--nnodes"), said.get("--nproc-per-node")
    if nodes and per_node and nodes[0].isdecimal() and per_node[0].isdecimal():
        return {"devices": number("--nnodes", nodes) * number("--nproc-per-node", per_node)}
    return {}


def recompute_of(said: Options) -> str:
    """The recompute that the options stand for; raises `InvalidInput` for one of a part of the layers."""
    if "--recompute-activations" in said:
        return "selective"
    words = said.get("--recompute-granularity", ("none",))
    if words == ("full",):
        method, layers = said.get("--recompute-method", ("uniform",)), said.get("--recompute-num-layers", ("1",))
        if method != ("uniform",) or layers != ("1",):
            given = " ".join((*method, *layers))
            raise bad_value("--recompute-method, --recompute-num-layers", given, "uniform 1: every layer on its own")
    if words not in (("none",), ("full",), ("selective",)):
        raise bad_value("--recompute-granularity", " ".join(words), "full or selective")
    return words[0]


def _sharding(said: Options) -> str:
    if "--use-megatron-fsdp" not in said:
        return "zero-1" if "--use-distributed-optimizer" in said else "none"
    strategies = {"no_shard": "none", "optim": "zero-1"} | {word: name for name, word in FSDP.items()}
    words = said.get("--data-parallel-sharding-strategy", ("no_shard",))
    if words[:1] == () or words[0] not in strategies:
        raise bad_value("--data-parallel-sharding-strategy", " ".join(words), f"one of {', '.join(strategies)}")
    return strategies[words[0]]


def _states(said: Options) -> str:
    types = {said.get(name, ("fp32",)) for name in ("--exp-avg-dtype", "--exp-avg-sq-dtype")}
    if types not in ({("fp32",)}, {("bf16",)}):
        raise bad_value(
            "--exp-avg-dtype, --exp-avg-sq-dtype", sorted(map(str, types)), "fp32 or bf16, the same for both"
        )
    return types.pop()[0]
