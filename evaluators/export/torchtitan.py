"""Recipes as torchtitan's arguments.

Names are those of torchtitan 0.3.0 (`torchtitan/config/configs.py`), where `training.local_batch_size` and
`training.global_batch_size` count sequences; later versions count tokens there, and have to be told otherwise. FSDP
spreads over replicas and context ranks; a replica that keeps its parameters between forward and backward pass
(`never`) is ZeRO-2. Under pipelining the local batch is a whole step's, cut into the pipeline's micro-batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from frontrunner.evaluators.export import megatron, script
from frontrunner.evaluators.export.export import Export, launch_of, why_no_launch, why_unsaid
from frontrunner.evaluators.export.given import Given, number, recipe_of
from frontrunner.evaluators.export.megatron_lm import launch_choices
from frontrunner.evaluators.export.shell import options
from frontrunner.evaluators.export.torchtitan_refusals import PRECISIONS, VERSION, refuse_other_run, refuse_tokens
from frontrunner.spaces.errors import bad_value
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.reasons import Reason
from frontrunner.spaces.recipe import LOOPED_SCHEDULES, Recipe
from frontrunner.spaces.sharding import Sharding
from frontrunner.spaces.stages import even_layers

TOOL = "torchtitan"
SAYS = frozenset({
    "tensor_parallel", "pipeline_parallel", "context_parallel", "virtual_stages", "schedule", "sharding", "recompute",
    "sequence_parallel", "compile",
})  # fmt: skip
SCHEDULES = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved-1f1b": "Interleaved1F1B",
    "looped-bfs": "LoopedBFS",
    "interleaved-zero-bubble": "InterleavedZeroBubble",
    "zbv": "ZBVZeroBubble",
    "dualpipev": "DualPipeV",
}
CONFIGS = {
    "llama3_8b": (32, 4096, 32, 8, 14336, 128256),
    "llama3_70b": (80, 8192, 64, 8, 28672, 128256),
    "llama3_405b": (126, 16384, 128, 8, 53248, 128256),
}
"""Layers, hidden, heads, kv heads, feed-forward width and vocabulary of torchtitan's Llama 3 models."""
RECOMPUTES = {"none": "none", "selective": "selective", "full": "full"}
VERSION_NOTE = f"note: for torchtitan {VERSION}, where training.local_batch_size and global_batch_size count sequences"
LOSS_NOTE = "note: the loss is cut into chunks as the torchtitan config of the model says"


def why_not(problem: Problem, recipe: Recipe) -> Reason | None:
    """Why torchtitan cannot be told this recipe."""
    if problem.precision not in PRECISIONS:
        return Reason("precision-unsaid", f"{TOOL} trains in bf16 and fp32, not {problem.precision}")
    return (
        why_unsaid(recipe, TOOL, SAYS)
        or why_no_launch(problem, recipe)
        or _why_no_sharding(recipe)
        or _why_no_stages(problem, recipe)
    )


def _why_no_sharding(recipe: Recipe) -> Reason | None:
    p, g, o = recipe.sharding.degrees
    cp, n = recipe.context_parallel, recipe.copies
    if o == 1 and cp > 1:
        return Reason("sharding-context", f"{TOOL} spreads parameters over context ranks; sharding is none")
    if not (p == g == o or (p, g, o) == (1, n, n)):
        return Reason("sharding-unsaid", f"{TOOL} has zero-2, zero-3 and hybrid-K, not {recipe.sharding_name}")
    if o % cp:
        return Reason(
            "sharding-context", f"{TOOL} spreads over all {cp} context ranks: {recipe.sharding_name} does not"
        )
    return None


def _why_no_stages(problem: Problem, recipe: Recipe) -> Reason | None:
    layers, stages = problem.model.layers, recipe.stages
    if recipe.layers_per_stage and recipe.layers_per_stage != even_layers(layers, stages):
        return Reason("stages-unsaid", f"{TOOL} cannot be told stages of {recipe.layers_name} layers by an argument")
    if _layers_argument(problem, recipe) == 0:
        return Reason("stages-unsaid", f"no number of layers a stage makes {TOOL} cut {layers} layers into {stages}")
    return None


def _layers_argument(problem: Problem, recipe: Recipe) -> int | None:
    """Layers a stage that give so many stages; None where the schedule's default gives them, 0 where nothing does."""
    default = 2 if recipe.schedule in LOOPED_SCHEDULES else 1
    if recipe.virtual_stages == default:
        return None
    per_stage = -(-problem.model.layers // recipe.stages)
    return per_stage if -(-problem.model.layers // per_stage) == recipe.stages else 0


def export(problem: Problem, recipe: Recipe) -> Export:
    """What follows `-m torchtitan.train`; --module and --config only for a model that torchtitan has."""
    found = {
        "parallelism.tensor_parallel_degree": recipe.tensor_parallel,
        "parallelism.context_parallel_degree": recipe.context_parallel,
        "parallelism.pipeline_parallel_degree": recipe.pipeline_parallel,
        **_stage_settings(problem, recipe),
        **_sharding_settings(recipe),
        "training.seq_len": problem.sequence_length,
        "training.local_batch_size": recipe.micro_batch_seqs * (recipe.accumulation if recipe.stages > 1 else 1),
        "training.global_batch_size": recipe.global_batch_seqs,
        "training.mixed_precision_param": PRECISIONS[problem.precision],
    }
    words = [word for key, value in found.items() for word in (f"--{key}", str(value))]
    words.append(f"--parallelism.{'' if recipe.sequence_parallel else 'no-'}enable_sequence_parallel")
    if recipe.pipeline_parallel > 1:
        words.append("--training.disable_cuda_graphs")  # torchtitan refuses graphs of pipelines
    words.append(f"--compile.{'' if recipe.compile else 'no-'}enable")
    model = next((name for name, shape in CONFIGS.items() if shape == _shape(problem)), None)
    chosen = ("--module", "llama3", "--config", model) if model else ()
    unknown = () if model else ("note: torchtitan's model is yours to name, by --module and --config",)
    # What follows a subcommand belongs to it, so that the activation checkpointing comes last.
    checkpointing = f"activation-checkpoint:{RECOMPUTES[recipe.recompute]}"
    return Export(arguments=(*chosen, *words, checkpointing), notes=(VERSION_NOTE, LOSS_NOTE, *unknown))


def _shape(problem: Problem) -> tuple[int, ...]:
    model = problem.model
    return model.layers, model.hidden, model.heads, model.kv_heads, model.ffn_hidden, model.vocabulary


def _stage_settings(problem: Problem, recipe: Recipe) -> dict[str, object]:
    if recipe.pipeline_parallel == 1:
        return {}
    found: dict[str, object] = {
        "parallelism.pipeline_parallel_schedule": SCHEDULES[recipe.schedule],
        "parallelism.pipeline_parallel_microbatch_size": recipe.micro_batch_seqs,
        "parallelism.pipeline_parallel_first_stage_less_layers": 0,
        "parallelism.pipeline_parallel_last_stage_less_layers": 0,
    }
    per_stage = _layers_argument(problem, recipe)
    return found | ({"parallelism.pipeline_parallel_layers_per_stage": per_stage} if per_stage else {})


def _sharding_settings(recipe: Recipe) -> dict[str, object]:
    p, _, o = recipe.sharding.degrees
    shard = max(1, o // recipe.context_parallel)
    found: dict[str, object] = {
        "parallelism.data_parallel_replicate_degree": recipe.data_parallel // shard,
        "parallelism.data_parallel_shard_degree": shard,
    }
    return found | ({"parallelism.fsdp_reshard_after_forward": "always" if p > 1 else "never"} if o > 1 else {})


def render(problem: Problem, recipe: Recipe, header: Sequence[str]) -> str:
    """A bash file to be sourced: `torchrun "${TORCHRUN_ARGS[@]}" -m torchtitan.train "${RECIPE_ARGS[@]}"`."""
    launch = launch_of(problem, recipe)
    found = export(problem, recipe)
    use = 'Use: source this file; torchrun "${TORCHRUN_ARGS[@]}" -m torchtitan.train "${RECIPE_ARGS[@]}"'
    arrays = {"TORCHRUN_ARGS": script.launcher_array(launch) if launch else (), "RECIPE_ARGS": found.arguments}
    return script.script((*header, *found.notes, use), arrays, {})


def read(problem: Problem, given: Given) -> Recipe:
    """The recipe of a launch script or a file of arguments of torchtitan 0.3."""
    said = options(given.text)
    refuse_other_run(problem, said)
    found: dict[str, Any] = {
        key: _degree(said, f"--parallelism.{name}-parallel-degree") or 1
        for key, name in {
            "tensor_parallel": "tensor",
            "pipeline_parallel": "pipeline",
            "context_parallel": "context",
        }.items()
    }
    found |= launch_choices(said)
    found |= _sharding_choices(problem, said, found, given) | _stage_choices(problem, said, found["pipeline_parallel"])
    batch = _degree(said, "--training.local-batch-size")
    found["global_batch_seqs"] = _degree(said, "--training.global-batch-size")
    found["micro_batch_seqs"] = batch
    if found["pipeline_parallel"] > 1:
        found["micro_batch_seqs"] = _degree(said, "--parallelism.pipeline-parallel-microbatch-size") or 1
    found["sequence_parallel"] = found["tensor_parallel"] > 1 and _flag(
        said, "--parallelism.", "enable-sequence-parallel", default=True
    )
    found["compile"] = _flag(said, "--compile.", "enable", default=False)
    found["recompute"] = _recompute(given.text)
    found["engine"] = given.stated.get("engine", "torch")
    refuse_tokens(problem, batch, found["global_batch_seqs"])
    recipe = recipe_of(problem, found, given)
    if recipe.stages > 1 and batch is not None and batch != recipe.micro_batch_seqs * recipe.accumulation:
        raise bad_value(
            "--training.local-batch-size", batch, "a step's sequences of a replica: global batch / replicas"
        )
    return recipe


def _degree(said: megatron.Options, name: str) -> int | None:
    return number(name, said[name]) if name in said and said[name] != ("-1",) else None


def _flag(said: megatron.Options, section: str, name: str, *, default: bool) -> bool:
    if f"{section}no-{name}" in said:
        return False
    return default if f"{section}{name}" not in said else said[f"{section}{name}"] not in (("False",), ("false",))


def _stage_choices(problem: Problem, said: megatron.Options, pipeline_parallel: int) -> dict[str, Any]:
    if pipeline_parallel == 1:
        return {"schedule": "none"}
    name = "--parallelism.pipeline-parallel-schedule"
    schedules = {theirs.lower(): ours for ours, theirs in SCHEDULES.items()}
    word = " ".join(said.get(name, ("1F1B",)))
    if word.lower() not in schedules:
        raise bad_value(name, word, f"one of {', '.join(SCHEDULES.values())}")
    schedule = schedules[word.lower()]
    per_stage = _degree(said, "--parallelism.pipeline-parallel-layers-per-stage")
    if per_stage is None:
        return {"schedule": schedule, "virtual_stages": 2 if schedule in LOOPED_SCHEDULES else 1}
    stages = -(-problem.model.layers // per_stage)
    if stages % pipeline_parallel:
        raise bad_value("--parallelism.pipeline-parallel-layers-per-stage", per_stage, "equally many stages a rank")
    return {"schedule": schedule, "virtual_stages": stages // pipeline_parallel}


def _sharding_choices(problem: Problem, said: megatron.Options, found: dict[str, Any], given: Given) -> dict[str, Any]:
    """`sharding` and `devices`; a shard degree of -1, the default, takes the ranks that are left over."""
    within = found["tensor_parallel"] * found["pipeline_parallel"] * found["context_parallel"]
    replicate = _degree(said, "--parallelism.data-parallel-replicate-degree") or 1
    shard = _degree(said, "--parallelism.data-parallel-shard-degree")
    if shard is None:
        devices = int(found.get("devices") or given.stated.get("devices") or problem.cluster.devices)
        shard, rest = divmod(devices, within * replicate)
        if rest or not shard:
            raise bad_value("devices", devices, f"a multiple of {within * replicate}, the product of the degrees")
    spread = shard * found["context_parallel"]
    policy = " ".join(said.get("--parallelism.fsdp-reshard-after-forward", ("default",)))
    if policy not in ("default", "always", "never"):
        raise bad_value("--parallelism.fsdp-reshard-after-forward", policy, "default, always or never")
    # By default pipelines keep parameters, and everything else gathers them again.
    keeps = policy == "never" or (policy == "default" and found["pipeline_parallel"] > 1)
    if keeps and replicate > 1 and spread > 1:
        raise bad_value("--parallelism.fsdp-reshard-after-forward", policy, "always, with hybrid sharding")
    sharding = Sharding(parameters=1 if keeps else spread, gradients=spread, optimizer=spread)
    return {"sharding": sharding, "devices": within * replicate * shard}


def _recompute(text: str) -> str:
    words = {f"activation-checkpoint:{theirs}": ours for ours, theirs in RECOMPUTES.items()}
    found = {ours for word, ours in words.items() if word in text.lower()}
    if len(found) > 1:
        raise bad_value("activation-checkpoint", sorted(found), "one of them")
    return found.pop() if found else "none"
