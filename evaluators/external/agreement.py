"""Whether what a command, its files and its log say of the configuration is what the recipe says.

A trainer that is told one thing by its arguments and another by a file runs one of them at full speed. In one log of
the Frontier study (arXiv 2312.12705, gpt175b_megatron_16N) the command line says micro-batch 1 and DeepSpeed's JSON
says 4, and 149 TFLOPS a device are reported where about 37 were computed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from frontrunner.evaluators.export.deepspeed import zero_stage
from frontrunner.evaluators.external.reading import Statement
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import Recipe

OPTIONS = {
    "micro-batch-size": "micro_batch_seqs",
    "per-device-train-batch-size": "micro_batch_seqs",
    "gradient-accumulation-steps": "accumulation",
    "global-batch-size": "global_batch_seqs",
    "seq-length": "sequence_length",
    "tensor-model-parallel-size": "tensor_parallel",
    "pipeline-model-parallel-size": "pipeline_parallel",
    "context-parallel-size": "context_parallel",
    "zero-stage": "zero_stage",
}
"""Options of Megatron-LM, Megatron-DeepSpeed and the transformers Trainer, by the figure that they state."""
DEEPSPEED_FILES = ("deepspeed", "deepspeed-config", "deepspeed-config-file")
DEEPSPEED_KEYS = {
    "train_micro_batch_size_per_gpu": "micro_batch_seqs",
    "gradient_accumulation_steps": "accumulation",
    "train_batch_size": "global_batch_seqs",
    "zero_optimization.stage": "zero_stage",
}
MOST_BYTES = 1_000_000


def stated_before(arguments: Sequence[str], folder: Path) -> Iterator[Statement]:
    """What the arguments state, and the DeepSpeed files that they name, by their path from `folder`."""
    for option, value in options(arguments):
        if option in OPTIONS and value.isdecimal():
            yield Statement(OPTIONS[option], float(value), f"the argument --{option} {value}")
        if option in DEEPSPEED_FILES and value.endswith(".json"):
            yield from _of_deepspeed(folder / value)


def options(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    """`--name value` and `--name=value`, with names in hyphens."""
    for place, argument in enumerate(arguments):
        if argument.startswith("--"):
            name, equals, value = argument[2:].partition("=")
            after = arguments[place + 1] if place + 1 < len(arguments) else ""
            yield name.replace("_", "-"), value if equals else after


def _of_deepspeed(path: Path) -> Iterator[Statement]:
    try:
        with path.open("rb") as file:
            table = json.loads(file.read(MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return  # the trainer will say what is wrong with it
    for key, figure in DEEPSPEED_KEYS.items():
        value = _at(table, key.split("."))
        if isinstance(value, int) and not isinstance(value, bool):  # not "auto"
            yield Statement(figure, float(value), f"{key} = {value} of {path.name}")


def _at(table: Any, keys: Sequence[str]) -> Any:
    for key in keys:
        table = table.get(key) if isinstance(table, Mapping) else None
    return table


def why_disagreeing(statements: Iterable[Statement], recipe: Recipe, problem: Problem) -> str | None:
    """The first statement that is not the recipe's, with both values; None where all agree."""
    expected = {
        "micro_batch_seqs": recipe.micro_batch_seqs,
        "accumulation": recipe.accumulation,
        "global_batch_seqs": recipe.global_batch_seqs,
        "sequence_length": problem.sequence_length,
        "devices": recipe.devices,
        "tensor_parallel": recipe.tensor_parallel,
        "pipeline_parallel": recipe.pipeline_parallel,
        "context_parallel": recipe.context_parallel,
        "data_parallel": recipe.data_parallel,
        # One copy has nothing to shard: trainers choose the stage by what else they need of it.
        "zero_stage": zero_stage(recipe) if recipe.copies > 1 else None,
    }
    for statement in statements:
        ours = expected[statement.figure]
        if ours is not None and statement.value != ours:
            source = statement.source[:200]
            return f"{statement.figure} is {ours} in the recipe and {statement.value:g} to the trainer: {source}"
    return None
