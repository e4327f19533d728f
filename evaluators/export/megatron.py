"""What Megatron-LM and those that came from it have in common: a model's arguments, stages, and schedules."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from frontrunner.evaluators.export.given import (
    number,
    refuse_other_default,
    refuse_other_problem,
    refuse_other_vocabulary,
)
from frontrunner.spaces.errors import InvalidInput, bad_value
from frontrunner.spaces.model import Model
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.reasons import Reason
from frontrunner.spaces.recipe import Recipe
from frontrunner.spaces.stages import even_layers
from frontrunner.spaces.wording import shown_key

Options = Mapping[str, tuple[str, ...]]
MOST_STAGES = 100_000
QUERY_GROUPS = "--num-query-groups"
"""Megatron-LM's number of key and value heads, of which it takes notice with --group-query-attention alone."""
_REPEATED_GROUP = re.compile(r"\(([^()]*)\)\*([0-9]{1,5})")
_REPEATED = re.compile(r"(.)\*([0-9]{1,5})")


def why_no_schedule(recipe: Recipe, tool: str) -> Reason | None:
    """Megatron's pipelines run 1F1B, interleaved where a rank holds several stages, in rounds of all ranks."""
    if recipe.schedule not in ("none", "1f1b", "interleaved-1f1b"):
        return Reason("schedule-unsaid", f"{tool} runs 1f1b and interleaved-1f1b, not {recipe.schedule}")
    if recipe.virtual_stages > 1 and recipe.accumulation % recipe.pipeline_parallel:
        return Reason(
            "interleaved-rounds",
            f"{tool} runs interleaved micro-batches in rounds of pipeline_parallel {recipe.pipeline_parallel}, which "
            f"does not divide {recipe.accumulation}",
        )
    return None


def stage_layers(problem: Problem, recipe: Recipe) -> tuple[int, ...]:
    """The layers of each stage along the model."""
    return recipe.layers_per_stage or even_layers(problem.model.layers, recipe.stages)


def layout(layers: Sequence[int]) -> str:
    """Stages in the words of --pipeline-model-parallel-layout: `Ett|tt|tL`, embedding first and loss last."""
    stages = ["t" * count for count in layers]
    stages[0], stages[-1] = "E" + stages[0], stages[-1] + "L"
    return "|".join(stages)


def layers_of_layout(text: str, key: str) -> tuple[int, ...]:
    """The layers of each stage of a layout; raises `InvalidInput` for one whose ends hold no embedding or loss.

    `(tt|)*3` and `t*4` repeat, as Megatron core's `PipelineParallelLayerLayout` reads them.
    """
    plain = text.replace(",", "")
    for pattern in (_REPEATED_GROUP, _REPEATED):
        if sum(len(found[1]) * int(found[2]) for found in pattern.finditer(plain)) > MOST_STAGES:
            raise bad_value(key, text, f"at most {MOST_STAGES:,} stages and layers")
        plain = pattern.sub(lambda found: found[1] * int(found[2]), plain)
    stages = plain.split("|")
    if not (stages[0].startswith("E") and stages[-1].endswith("L")):
        raise bad_value(key, text, "the embedding E in the first stage and the loss L in the last")
    stages[0], stages[-1] = stages[0][1:], stages[-1][:-1]
    if any(set(stage) != {"t"} for stage in stages):
        raise bad_value(key, text, "transformer layers t alone between them, at least one a stage")
    return tuple(len(stage) for stage in stages)


def stages_of_layout(problem: Problem, text: str, key: str, pipeline_parallel: int) -> dict[str, Any]:
    """`virtual_stages` and `layers_per_stage` of a layout; the latter is empty where stages are as even as can be."""
    layers = layers_of_layout(text, key)
    if len(layers) % pipeline_parallel:
        raise bad_value(key, text, f"a multiple of {pipeline_parallel} stages")
    if sum(layers) != problem.model.layers:
        raise bad_value(key, text, f"the model's {problem.model.layers} layers")
    even = layers == even_layers(problem.model.layers, len(layers))
    return {"virtual_stages": len(layers) // pipeline_parallel, "layers_per_stage": () if even else layers}


def schedule_of(pipeline_parallel: int, virtual_stages: int) -> str:
    """The schedule that Megatron runs."""
    if pipeline_parallel == 1:
        return "none"
    return "1f1b" if virtual_stages == 1 else "interleaved-1f1b"


def virtual_stages_of(problem: Problem, words: Sequence[str], key: str, pipeline_parallel: int) -> int:
    """The stages a rank holds, from the layers that each of them has."""
    per_stage = number(key, words)
    if problem.model.layers % (pipeline_parallel * per_stage):
        expected = f"a divisor of the {problem.model.layers} layers over {pipeline_parallel} ranks"
        raise bad_value(key, per_stage, expected)
    return problem.model.layers // (pipeline_parallel * per_stage)


def refuse(options: Options, refused: Mapping[str, str]) -> None:
    """Raise `InvalidInput` for the first option that is in use and that no recipe of ours stands for."""
    for name, why in refused.items():
        if name in options and options[name][:1] not in (("1",), ("0",), ("none",)):
            value = " ".join(options[name])
            raise InvalidInput(f"{name} {shown_key(value) if value else ''}".strip() + f": no recipe of ours has {why}")


def refuse_other_model(problem: Problem, options: Options, *, kv_heads: str) -> None:
    """Raise `InvalidInput` where the options describe another model, sequence length or precision than the problem's.

    `kv_heads` is the option of that number. Where the options give a hidden size they describe a model, so that those
    that are absent stand for their defaults; a model that comes from elsewhere is not compared.
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
    refuse_other_problem({key: (number(key, options[key]), value) for key, value in said.items() if key in options})
    for key in ("--vocab-size", "--padded-vocab-size"):
        if key in options:
            refuse_other_vocabulary(problem, key, number(key, options[key]))
    precisions = {f"--{name}": name for name in ("bf16", "fp16") if f"--{name}" in options}
    refuse_other_problem({key: (precision, problem.precision) for key, precision in precisions.items()})
    if not precisions:
        refuse_other_default("neither --bf16 nor --fp16 is there", "fp32", problem.precision)
    if "--hidden-size" in options:
        _refuse_other_defaults(problem.model, options, kv_heads)


def _refuse_other_defaults(model: Model, options: Options, kv_heads: str) -> None:
    """Raise `InvalidInput` where what the options leave to their defaults is another model's."""
    activation = "swiglu" if "--swiglu" in options else "gelu"
    width = int(4 * model.hidden * 2 / 3) // 64 * 64 if activation == "swiglu" else 4 * model.hidden
    grouped = "--group-query-attention" in options or (kv_heads != QUERY_GROUPS and kv_heads in options)
    what = f"--swiglu is {'' if '--swiglu' in options else 'not '}there"
    refuse_other_default(what, activation, model.activation)
    if "--ffn-hidden-size" not in options:
        refuse_other_default("--ffn-hidden-size is not there", width, model.ffn_hidden)
    if "--num-attention-heads" in options and not grouped:
        what = f"{'--group-query-attention' if kv_heads == QUERY_GROUPS else kv_heads} is not there"
        refuse_other_default(what, model.heads, model.kv_heads)
