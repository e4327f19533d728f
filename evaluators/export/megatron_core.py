"""Pipeline stages, schedules, ZeRO and checks that Megatron-LM and the trainers built from it share."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from frontrunner.evaluators.export.reading import (
    Options,
    refuse_other_default,
    refuse_other_problem,
    refuse_other_vocabulary,
)
from frontrunner.spaces.errors import bad_value
from frontrunner.spaces.legality import Reason
from frontrunner.spaces.model import Model
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import Recipe
from frontrunner.spaces.stages import even_layers

MAX_STAGES = 100_000
QUERY_GROUPS = "--num-query-groups"
"""Megatron-LM's number of key and value heads, which it ignores without --group-query-attention."""
NUMBERS = {
    "tensor_parallel": "--tensor-model-parallel-size",
    "pipeline_parallel": "--pipeline-model-parallel-size",
    "context_parallel": "--context-parallel-size",
    "micro_batch_seqs": "--micro-batch-size",
    "global_batch_seqs": "--global-batch-size",
}
LAYOUT = "--pipeline-model-parallel-layout"
LAYERS_PER_STAGE = "--num-layers-per-virtual-pipeline-stage"
VIRTUAL_STAGES = "--num-virtual-stages-per-pipeline-rank"
FSDP = {"zero-2": "optim_grads", "zero-3": "optim_grads_params"}
SHARDING_OF_STRATEGY = {"no_shard": "none", "optim": "zero-1"} | {theirs: ours for ours, theirs in FSDP.items()}
_REPEATED_GROUP = re.compile(r"\(([^()]*)\)\*([0-9]{1,5})")
_REPEATED = re.compile(r"(.)\*([0-9]{1,5})")


def why_no_schedule(recipe: Recipe, tool: str) -> Reason | None:
    """Refuse schedules other than 1F1B, interleaved where a rank holds several stages, in rounds of all ranks."""
    if recipe.schedule not in ("none", "1f1b", "interleaved-1f1b"):
        return Reason("schedule-unsaid", f"{tool} runs 1f1b and interleaved-1f1b, not {recipe.schedule}")
    if recipe.virtual_stages > 1 and recipe.accumulation % recipe.pipeline_parallel:
        return Reason(
            "interleaved-rounds",
            f"{tool} runs interleaved micro-batches in rounds of pipeline_parallel {recipe.pipeline_parallel}, which "
            f"does not divide {recipe.accumulation}",
        )
    return None


def why_no_sharding(recipe: Recipe, tool: str) -> Reason | None:
    """Refuse what neither the distributed optimizer (ZeRO-1, alone with bf16 states) nor Megatron FSDP runs."""
    name = recipe.sharding_name
    if name not in SHARDING_OF_STRATEGY.values():
        return Reason("sharding-unsaid", f"{tool} shards over all copies of the model, not as {name}")
    if name in FSDP and recipe.pipeline_parallel > 1:
        return Reason("sharding-pipeline", f"{name} is Megatron FSDP's, which is not exported together with pipelines")
    if recipe.optimizer_state == "bf16" and name == "none" and recipe.copies > 1:
        return Reason("states-sharding", f"{tool} keeps bf16 optimizer states only in its distributed optimizer")
    return None


def why_no_rank_order(recipe: Recipe, tool: str) -> Reason | None:
    """Refuse four of the six orders, and context ranks under tp-pp-dp: Megatron puts them before the stages."""
    if recipe.rank_order not in ("tp-dp-pp", "tp-pp-dp"):
        return Reason("rank-order-unsaid", f"{tool} numbers ranks as tp-dp-pp or tp-pp-dp, not {recipe.rank_order}")
    if recipe.rank_order == "tp-pp-dp" and min(recipe.context_parallel, recipe.pipeline_parallel) > 1:
        return Reason("rank-order-context", f"{tool}'s tp-pp-dp has context ranks before stages; ours come after them")
    return None


def why_no_context(problem: Problem, recipe: Recipe, tool: str) -> Reason | None:
    """Refuse sequences that cannot be cut into a front and a back slice per rank, which balance causal attention."""
    cp, length = recipe.context_parallel, problem.sequence_length
    if cp == 1 or length % (2 * cp) == 0:
        return None
    return Reason("context-halves", f"{tool} cuts {length} positions into 2 x context_parallel {cp} equal slices")


def stage_layers(problem: Problem, recipe: Recipe) -> tuple[int, ...]:
    """Return the layers of each stage along the model."""
    return recipe.layers_per_stage or even_layers(problem.model.layers, recipe.stages)


def layout(layers: Sequence[int]) -> str:
    """Return stages as --pipeline-model-parallel-layout has them: `Ett|tt|tL`, embedding first and loss last."""
    stages = ["t" * count for count in layers]
    stages[0], stages[-1] = "E" + stages[0], stages[-1] + "L"
    return "|".join(stages)


def layers_of_layout(text: str, key: str) -> tuple[int, ...]:
    """Return the layers of each stage of a layout; raise `InvalidInput` without embedding and loss at its ends.

    `(tt|)*3` and `t*4` repeat, as Megatron core's `PipelineParallelLayerLayout` reads them.
    """
    plain = text.replace(",", "")
    for pattern in (_REPEATED_GROUP, _REPEATED):
        if sum(len(found[1]) * int(found[2]) for found in pattern.finditer(plain)) > MAX_STAGES:
            raise bad_value(key, text, f"at most {MAX_STAGES:,} stages and layers")
        plain = pattern.sub(lambda found: found[1] * int(found[2]), plain)
    stages = plain.split("|")
    if not (stages[0].startswith("E") and stages[-1].endswith("L")):
        raise bad_value(key, text, "the embedding E in the first stage and the loss L in the last")
    stages[0], stages[-1] = stages[0][1:], stages[-1][:-1]
    if any(set(stage) != {"t"} for stage in stages):
        raise bad_value(key, text, "only transformer layers t between them, at least one per stage")
    return tuple(len(stage) for stage in stages)


def stages_of_layout(problem: Problem, text: str, key: str, pipeline_parallel: int) -> dict[str, Any]:
    """Return `virtual_stages` and `layers_per_stage` of a layout; the latter is empty for an even one."""
    layers = layers_of_layout(text, key)
    if len(layers) % pipeline_parallel:
        raise bad_value(key, text, f"a multiple of {pipeline_parallel} stages")
    if sum(layers) != problem.model.layers:
        raise bad_value(key, text, f"the model's {problem.model.layers} layers")
    even = layers == even_layers(problem.model.layers, len(layers))
    return {"virtual_stages": len(layers) // pipeline_parallel, "layers_per_stage": () if even else layers}


def schedule_of(pipeline_parallel: int, virtual_stages: int) -> str:
    """Return the schedule that Megatron runs."""
    if pipeline_parallel == 1:
        return "none"
    return "1f1b" if virtual_stages == 1 else "interleaved-1f1b"


def parallel_choices(problem: Problem, said: Options) -> dict[str, Any]:
    """Return degrees, stages, schedule, batch and devices, as Megatron-LM and Megatron-DeepSpeed name them."""
    found: dict[str, Any] = {key: said.number(name) for key, name in NUMBERS.items() if name in said}
    pipeline_parallel = found.setdefault("pipeline_parallel", 1)
    found |= _stages(problem, said, pipeline_parallel)
    found["schedule"] = schedule_of(pipeline_parallel, found.get("virtual_stages", 1))
    # Megatron turns sequence parallelism off without tensor parallelism.
    found["sequence_parallel"] = "--sequence-parallel" in said and found.get("tensor_parallel", 1) > 1
    return found | said.launch


def _stages(problem: Problem, said: Options, pipeline_parallel: int) -> dict[str, Any]:
    layers, per_stage = problem.model.layers, said.number(LAYERS_PER_STAGE)
    if LAYOUT in said:
        return stages_of_layout(problem, said.text(LAYOUT, ""), LAYOUT, pipeline_parallel)
    if per_stage is None:
        return {"virtual_stages": said.number(VIRTUAL_STAGES)} if VIRTUAL_STAGES in said else {}
    if layers % (pipeline_parallel * per_stage):
        raise bad_value(LAYERS_PER_STAGE, per_stage, f"a divisor of the {layers} layers over {pipeline_parallel} ranks")
    return {"virtual_stages": layers // (pipeline_parallel * per_stage)}


def recompute_arguments(recipe: Recipe) -> tuple[str, ...]:
    """Return the options of recompute: full keeps each layer's input, selective repeats attention's core."""
    if recipe.recompute == "full":
        return "--recompute-granularity", "full", "--recompute-method", "uniform", "--recompute-num-layers", "1"
    return ("--recompute-granularity", "selective") if recipe.recompute == "selective" else ()


def recompute_of(said: Options) -> str:
    """Return the recompute that the options describe; raise `InvalidInput` for one of a part of the layers."""
    if "--recompute-activations" in said:
        return "selective"
    granularity = said.text("--recompute-granularity", "none")
    if granularity not in ("none", "full", "selective"):
        raise bad_value("--recompute-granularity", granularity, "full or selective")
    how = [said.text("--recompute-method", "uniform"), said.text("--recompute-num-layers", "1")]
    if granularity == "full" and how != ["uniform", "1"]:
        raise bad_value(
            "--recompute-method, --recompute-num-layers", " ".join(how), "uniform 1: every layer on its own"
        )
    return granularity


def recompute_notes(recipe: Recipe, tool: str) -> tuple[str, ...]:
    """Return what of the recipe's recompute Megatron does in its own way."""
    if recipe.recompute != "selective":
        return ()
    return (f"note: recompute selective is {tool}'s own, which repeats attention's core; the probed one repeats less",)


def refuse_other_model(problem: Problem, options: Options, *, kv_heads: str) -> None:
    """Raise `InvalidInput` where the options describe another model, sequence length or precision than the problem's.

    `kv_heads` is the option of that number. Where the options give a hidden size they describe a model, so that those
    that are missing have their defaults; a model that comes from elsewhere is not compared.
    """
    model = problem.model
    said = {
        "--num-layers": model.layers,
        "--hidden-size": model.hidden,
        "--num-attention-heads": model.heads,
        "--kv-channels": model.head_dim,
        "--ffn-hidden-size": model.ffn_hidden,
        kv_heads: model.kv_heads,
        "--seq-length": problem.sequence_length,
    }
    refuse_other_problem({key: (options.number(key), value) for key, value in said.items()})
    for key in ("--vocab-size", "--padded-vocab-size"):
        refuse_other_vocabulary(problem, key, options.number(key))
    precisions = {f"--{name}": name for name in ("bf16", "fp16") if f"--{name}" in options}
    refuse_other_problem({key: (precision, problem.precision) for key, precision in precisions.items()})
    if not precisions:
        refuse_other_default("neither --bf16 nor --fp16 is there", "fp32", problem.precision)
    if "--hidden-size" in options:
        _refuse_other_defaults(problem.model, options, kv_heads)


def _refuse_other_defaults(model: Model, options: Options, kv_heads: str) -> None:
    swiglu = "--swiglu" in options
    what = f"--swiglu is {'' if swiglu else 'not '}there"
    refuse_other_default(what, "swiglu" if swiglu else "gelu", model.activation)
    if "--ffn-hidden-size" not in options:
        width = int(4 * model.hidden * 2 / 3) // 64 * 64 if swiglu else 4 * model.hidden
        refuse_other_default("--ffn-hidden-size is not there", width, model.ffn_hidden)
    switch = "--group-query-attention" if kv_heads == QUERY_GROUPS else kv_heads
    if "--num-attention-heads" in options and not {"--group-query-attention", switch} & options.keys():
        refuse_other_default(f"{switch} is not there", model.heads, model.kv_heads)
