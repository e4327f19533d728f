"""Recipes as Megatron-DeepSpeed's arguments with the DeepSpeed configuration that they name.

Names are those of `megatron/arguments.py` of deepspeedai/Megatron-DeepSpeed (commit 207b2d5a), the trainer of the
Frontier study (arXiv 2312.12705). The ZeRO stage and the batch stand in both, and have to be equal. Its pipeline is
DeepSpeed's, which runs 1F1B and keeps whole gradients. Layers are spread as evenly as they divide.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from frontrunner.evaluators.export import deepspeed, megatron, megatron_lm, script
from frontrunner.evaluators.export.export import Export, launch_of, why_no_launch, why_unsaid
from frontrunner.evaluators.export.given import Given, recipe_of
from frontrunner.evaluators.export.parsed import json_table
from frontrunner.evaluators.export.shell import embedded_files, options
from frontrunner.spaces.errors import InvalidInput
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.reasons import Reason
from frontrunner.spaces.recipe import Recipe
from frontrunner.spaces.sharding import SHARDING_NAMES
from frontrunner.spaces.wording import shown_key

TOOL = "Megatron-DeepSpeed"
SAYS = frozenset({
    "tensor_parallel", "pipeline_parallel", "schedule", "sharding", "recompute", "sequence_parallel", "offload",
    "secondary_partition",
})  # fmt: skip
REFUSED = {
    "--ds-sequence-parallel-size": "DeepSpeed's sequence parallelism over ranks of their own",
    "--moe-expert-parallel-size": "experts",
    "--enable-zbh1-pipeline": "this zero-bubble schedule",
    "--fp8-e4m3": "8-bit arithmetic",
    "--fp8-hybrid": "8-bit arithmetic",
    "--rampup-batch-size": "a batch that grows",
    "--checkpoint-in-cpu": "checkpointed activations in the host's memory",
    "--partition-activations": "checkpointed activations spread over ranks",
    "--memory-centric-tiled-linear": "tiled products",
}


def why_not(problem: Problem, recipe: Recipe) -> Reason | None:
    """Why Megatron-DeepSpeed cannot be told this recipe."""
    return (
        why_unsaid(recipe, TOOL, SAYS)
        or why_no_launch(problem, recipe)
        or _why_no_pipeline(problem, recipe)
        or deepspeed.why_no_zero(problem, recipe)
    )


def _why_no_pipeline(problem: Problem, recipe: Recipe) -> Reason | None:
    if recipe.pipeline_parallel == 1:
        return None
    if recipe.schedule != "1f1b":
        return Reason("schedule-unsaid", f"{TOOL}'s pipeline runs 1f1b, not {recipe.schedule}")
    if recipe.sharding.gradients > 1:
        return Reason("sharding-pipeline", f"{TOOL}'s pipeline takes ZeRO 0 and 1, not {recipe.sharding_name}")
    layers = megatron.stage_layers(problem, recipe)
    if len(set(layers)) > 1:
        return Reason("stages-unsaid", f"{TOOL} gives every stage as many layers; {recipe.stages} stages have {layers}")
    return None


def export(problem: Problem, recipe: Recipe) -> Export:
    """What follows pretrain_gpt.py, but for data, steps and learning rate."""
    words = (*_model_arguments(problem, recipe), *_parallel_arguments(recipe))
    files = {deepspeed.FILE: deepspeed.text_of(deepspeed.configuration(problem, _whole_tensors(recipe)))}
    return Export(arguments=words, files=files, notes=megatron_lm.notes(recipe, TOOL))


def _whole_tensors(recipe: Recipe) -> Recipe:
    """The recipe as DeepSpeed sees it: tensor parallelism is Megatron's, so that AutoTP stays off."""
    return replace(recipe, tensor_parallel=1, devices=recipe.devices // recipe.tensor_parallel, sequence_parallel=False)


def render(problem: Problem, recipe: Recipe, header: Sequence[str]) -> str:
    """A bash file to be sourced: it writes the configuration and sets the arguments."""
    launch = launch_of(problem, recipe)
    found = export(problem, recipe)
    use = 'Use: source this file; torchrun "${TORCHRUN_ARGS[@]}" pretrain_gpt.py "${RECIPE_ARGS[@]}" and your data'
    arrays = {"TORCHRUN_ARGS": script.launcher_array(launch) if launch else (), "RECIPE_ARGS": found.arguments}
    return script.script((*header, *found.notes, use), arrays, found.files)


def _model_arguments(problem: Problem, recipe: Recipe) -> tuple[str, ...]:
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
    return tuple(str(word) for word in words)


def _parallel_arguments(recipe: Recipe) -> tuple[str, ...]:
    words: list[object] = ["--tensor-model-parallel-size", recipe.tensor_parallel]
    words += ["--pipeline-model-parallel-size", recipe.pipeline_parallel]
    words += ["--micro-batch-size", recipe.micro_batch_seqs, "--global-batch-size", recipe.global_batch_seqs]
    words += ["--sequence-parallel"] * recipe.sequence_parallel
    words += ["--no-pipeline-parallel"] * (recipe.pipeline_parallel == 1)
    words += megatron_lm.recompute_arguments(recipe)
    words += ["--deepspeed-activation-checkpointing"] * (recipe.recompute == "full")
    words += ["--deepspeed", "--deepspeed_config", deepspeed.FILE, "--zero-stage", deepspeed.zero_stage(recipe)]
    return tuple(str(word) for word in words)


def read(problem: Problem, given: Given) -> Recipe:
    """The recipe of a launch script and the DeepSpeed configuration that it names, inside it or beside it.

    Raises `InvalidInput` where the two disagree: DeepSpeed would follow one and Megatron the other.
    """
    said = options(given.text)
    megatron.refuse(said, REFUSED)
    megatron.refuse_other_model(problem, said, kv_heads="--num-key-value-heads")
    found = megatron_lm.parallel_choices(problem, said) | megatron_lm.launch_choices(said)
    found["recompute"] = "full" if "--checkpoint-activations" in said else megatron_lm.recompute_of(said)
    configured = deepspeed.choices(problem, json_table(_configuration(said, given)))
    for key in ("micro_batch_seqs", "global_batch_seqs"):
        if found.setdefault(key, configured[key]) != (configured.get(key) or found[key]):
            raise InvalidInput(
                f"{key} is {found[key]} in the arguments and {configured[key]} in DeepSpeed's configuration"
            )
    stage, words = SHARDING_NAMES.index(configured["sharding"]), said.get("--zero-stage", ("1",))
    if words != (str(stage),):
        raise InvalidInput(f"--zero-stage {shown_key(' '.join(words))}: DeepSpeed's configuration has stage {stage}")
    found |= {key: configured[key] for key in ("sharding", "offload", "secondary_partition", "accumulation")}
    found["engine"] = given.stated.get("engine", "deepspeed")
    return recipe_of(problem, found, given)


def _configuration(said: megatron.Options, given: Given) -> str:
    name = " ".join(said.get("--deepspeed-config", ()))
    if not name:
        raise InvalidInput("--deepspeed_config is missing: it names the JSON that holds the ZeRO stage and the batch")
    text = embedded_files(given.text).get(name)
    text = given.beside(name) if text is None else text
    if text is None:
        raise InvalidInput(
            f"--deepspeed_config {shown_key(name)}: no such file beside the configuration", hint="copy it there"
        )
    return text
