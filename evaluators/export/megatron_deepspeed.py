"""Recipes as Megatron-DeepSpeed's arguments with the DeepSpeed configuration that they name.

Names are those of `megatron/arguments.py` of deepspeedai/Megatron-DeepSpeed (commit 207b2d5a), the trainer of the
Frontier study (arXiv 2312.12705). The ZeRO stage and the batch are in both, and have to be equal. Its pipeline is
DeepSpeed's, which runs 1F1B and keeps whole gradients, with equally many layers per stage.
"""

from __future__ import annotations

from dataclasses import replace

from frontrunner.evaluators.export import deepspeed
from frontrunner.evaluators.export import megatron_core as core
from frontrunner.evaluators.export.base import Export, Tool
from frontrunner.evaluators.export.megatron_lm import PRETRAIN
from frontrunner.evaluators.export.reading import (
    Given,
    Options,
    embedded_files,
    json_section,
    read_options,
    recipe_of,
    refuse_options,
)
from frontrunner.spaces.errors import InvalidInput, shown_key
from frontrunner.spaces.legality import Reason
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import Recipe
from frontrunner.spaces.sharding import SHARDING_NAMES

REFUSED = {
    "--ds-sequence-parallel-size": "DeepSpeed's sequence parallelism over ranks of their own",
    "--moe-expert-parallel-size": "experts",
    "--enable-zbh1-pipeline": "this zero-bubble schedule",
    "--fp8-e4m3": "8-bit arithmetic",
    "--fp8-hybrid": "8-bit arithmetic",
    "--rampup-batch-size": "a batch that grows",
    "--checkpoint-in-cpu": "checkpointed activations in the host's memory",
    "--partition-activations": "checkpointed activations sharded over ranks",
    "--memory-centric-tiled-linear": "tiled products",
}


class MegatronDeepSpeed(Tool):
    """Megatron-DeepSpeed: a bash file that writes the DeepSpeed configuration and sets the arguments."""

    name = "megatron-deepspeed"
    title = "Megatron-DeepSpeed"
    usage = PRETRAIN
    dimensions = frozenset({
        "tensor_parallel", "pipeline_parallel", "schedule", "sharding", "recompute", "sequence_parallel", "offload",
        "secondary_partition",
    })  # fmt: skip

    def why_unsupported(self, problem: Problem, recipe: Recipe) -> Reason | None:
        """Return what of pipeline and ZeRO Megatron-DeepSpeed does not run."""
        if recipe.pipeline_parallel > 1:
            layers = core.stage_layers(problem, recipe)
            if recipe.schedule != "1f1b":
                return Reason("schedule-unsaid", f"{self.title}'s pipeline runs 1f1b, not {recipe.schedule}")
            if recipe.sharding.gradients > 1:
                return Reason(
                    "sharding-pipeline", f"{self.title}'s pipeline takes ZeRO 0 and 1, not {recipe.sharding_name}"
                )
            if len(set(layers)) > 1:
                return Reason(
                    "stages-unsaid",
                    f"{self.title} gives every stage as many layers; {recipe.stages} stages have {layers}",
                )
        return deepspeed.why_no_zero(problem, recipe)

    def arguments_and_files(self, problem: Problem, recipe: Recipe) -> Export:
        """Return what follows pretrain_gpt.py, except data, steps and learning rate."""
        # Tensor parallelism is Megatron's: DeepSpeed is configured without it, so that AutoTP stays off.
        seen_by_deepspeed = replace(
            recipe, tensor_parallel=1, devices=recipe.devices // recipe.tensor_parallel, sequence_parallel=False
        )
        return Export(
            arguments=tuple(map(str, [*_model_arguments(problem, recipe), *_parallel_arguments(recipe)])),
            files={deepspeed.FILE: deepspeed.json_text(deepspeed.configuration(problem, seen_by_deepspeed))},
            notes=core.recompute_notes(recipe, self.title),
        )

    def read(self, problem: Problem, given: Given) -> Recipe:
        """Return the recipe of a launch script and the DeepSpeed configuration that it names, inside or beside it.

        Raises `InvalidInput` where the two disagree: DeepSpeed would follow one and Megatron the other.
        """
        said = read_options(given.text)
        refuse_options(said, REFUSED)
        core.refuse_other_model(problem, said, kv_heads="--num-key-value-heads")
        found = core.parallel_choices(problem, said)
        found["recompute"] = "full" if "--checkpoint-activations" in said else core.recompute_of(said)
        configured = deepspeed.choices(problem, json_section(_configuration(said, given)))
        for key in ("micro_batch_seqs", "global_batch_seqs"):
            if found.setdefault(key, configured[key]) != (configured.get(key) or found[key]):
                raise InvalidInput(
                    f"{key} is {found[key]} in the arguments and {configured[key]} in DeepSpeed's configuration"
                )
        stage, word = SHARDING_NAMES.index(configured["sharding"]), said.text("--zero-stage", "1")
        if word != str(stage):
            raise InvalidInput(f"--zero-stage {shown_key(word)}: DeepSpeed's configuration has stage {stage}")
        found |= {key: configured[key] for key in ("sharding", "offload", "secondary_partition", "accumulation")}
        found["engine"] = given.stated.get("engine", "deepspeed")
        return recipe_of(problem, found, given)


def _model_arguments(problem: Problem, recipe: Recipe) -> list[object]:
    model = problem.model
    words: list[object] = ["--num-layers", model.layers, "--hidden-size", model.hidden]
    words += ["--ffn-hidden-size", model.ffn_hidden, "--num-attention-heads", model.heads]
    words += ["--num-key-value-heads", model.kv_heads, "--seq-length", problem.sequence_length]
    words += ["--max-position-embeddings", max(model.max_positions or 0, problem.sequence_length)]
    words += ["--make-vocab-size-divisible-by", model.padded_vocabulary // recipe.tensor_parallel]
    words += ["--disable-bias-linear", "--normalization", model.norm]
    words += ["--use-rotary-position-embeddings"] * (model.positions == "rotary")
    words += ["--swiglu"] * (model.activation == "swiglu")
    words += ["--untie-embeddings-and-output-weights"] * (not model.tied_embeddings)
    words += ["--use-flash-attn-v2"] * (model.attention == "flash")
    words += [f"--{problem.precision}"] * (problem.precision != "fp32")
    return words


def _parallel_arguments(recipe: Recipe) -> list[object]:
    numbers = {key: name for key, name in core.NUMBERS.items() if key != "context_parallel"}
    words: list[object] = [word for key, name in numbers.items() for word in (name, getattr(recipe, key))]
    words += ["--sequence-parallel"] * recipe.sequence_parallel
    words += ["--no-pipeline-parallel"] * (recipe.pipeline_parallel == 1)
    words += core.recompute_arguments(recipe)
    words += ["--deepspeed-activation-checkpointing"] * (recipe.recompute == "full")
    return [*words, "--deepspeed", "--deepspeed_config", deepspeed.FILE, "--zero-stage", deepspeed.zero_stage(recipe)]


def _configuration(said: Options, given: Given) -> str:
    name = said.text("--deepspeed-config", "")
    if not name:
        raise InvalidInput("--deepspeed_config is missing: it names the JSON that holds the ZeRO stage and the batch")
    text = embedded_files(given.text).get(name)
    text = given.beside(name) if text is None else text
    if text is None:
        raise InvalidInput(
            f"--deepspeed_config {shown_key(name)}: no such file beside the configuration", hint="copy it there"
        )
    return text
