"""Recipes as torchtitan's arguments.

Names are those of torchtitan 0.3.0 (`torchtitan/config/configs.py`), where `training.local_batch_size` and
`training.global_batch_size` count sequences; later versions count tokens there. FSDP shards over replicas and context
ranks; a replica that keeps its parameters between forward and backward pass (`never`) is ZeRO-2. Under pipelining the
local batch is a whole step's, cut into the pipeline's micro-batches.
"""

from __future__ import annotations

from typing import Any

from frontrunner.evaluators.export.base import Export, Tool
from frontrunner.evaluators.export.reading import (
    Given,
    Options,
    read_options,
    recipe_of,
    refuse_options,
    refuse_other_problem,
)
from frontrunner.spaces.errors import InvalidInput, bad_value
from frontrunner.spaces.legality import Reason
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import LOOPED_SCHEDULES, Recipe
from frontrunner.spaces.sharding import Sharding
from frontrunner.spaces.stages import even_layers

VERSION = "0.3"
PRECISIONS = {"bf16": "bfloat16", "fp32": "float32"}
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
    (32, 4096, 32, 8, 14336, 128256): "llama3_8b",
    (80, 8192, 64, 8, 28672, 128256): "llama3_70b",
    (126, 16384, 128, 8, 53248, 128256): "llama3_405b",
}
"""Layers, hidden, heads, kv heads, feed-forward width and vocabulary of torchtitan's Llama 3 models."""
DEGREES = {
    "tensor_parallel": "parallelism.tensor_parallel_degree",
    "context_parallel": "parallelism.context_parallel_degree",
    "pipeline_parallel": "parallelism.pipeline_parallel_degree",
}
REFUSED = {
    "--parallelism.expert-parallel-degree": "experts",
    "--model.converters": "converted layers, as of 8-bit arithmetic",
}
QUANTIZED = ("--quantize.", "--float8.", "--mx.")
LOCAL_BATCH = "--training.local-batch-size"
LAYERS_PER_STAGE = "--parallelism.pipeline-parallel-layers-per-stage"
RESHARD = "--parallelism.fsdp-reshard-after-forward"
NOTES = (
    f"note: for torchtitan {VERSION}, where training.local_batch_size and global_batch_size count sequences",
    "note: the loss is cut into chunks as the torchtitan config of the model says",
)


class Torchtitan(Tool):
    """torchtitan: a bash file of arguments for `-m torchtitan.train`."""

    name = "torchtitan"
    title = "torchtitan"
    usage = 'torchrun "${TORCHRUN_ARGS[@]}" -m torchtitan.train "${RECIPE_ARGS[@]}"'
    dimensions = frozenset({
        "tensor_parallel", "pipeline_parallel", "context_parallel", "virtual_stages", "schedule", "sharding",
        "recompute", "sequence_parallel", "compile",
    })  # fmt: skip

    def why_unsupported(self, problem: Problem, recipe: Recipe) -> Reason | None:
        """Return what of precision, sharding and stages torchtitan does not run."""
        if problem.precision not in PRECISIONS:
            return Reason("precision-unsaid", f"{self.title} trains in bf16 and fp32, not {problem.precision}")
        return self._why_no_sharding(recipe) or self._why_no_stages(problem, recipe)

    def _why_no_sharding(self, recipe: Recipe) -> Reason | None:
        p, g, o = recipe.sharding.degrees
        cp, n, name = recipe.context_parallel, recipe.copies, recipe.sharding_name
        if o == 1 and cp > 1:
            return Reason("sharding-context", f"{self.title} shards parameters over context ranks; sharding is none")
        if not (p == g == o or (p, g, o) == (1, n, n)):
            return Reason("sharding-unsaid", f"{self.title} has zero-2, zero-3 and hybrid-K, not {name}")
        if o % cp:
            return Reason("sharding-context", f"{self.title} shards over all {cp} context ranks: {name} does not")
        return None

    def _why_no_stages(self, problem: Problem, recipe: Recipe) -> Reason | None:
        layers, stages = problem.model.layers, recipe.stages
        if recipe.layers_per_stage and recipe.layers_per_stage != even_layers(layers, stages):
            return Reason("stages-unsaid", f"{self.title} has no argument for stages of {recipe.layers_name} layers")
        if _layers_argument(problem, recipe) == 0:
            reason = f"no number of layers per stage makes {self.title} cut {layers} layers into {stages}"
            return Reason("stages-unsaid", reason)
        return None

    def arguments_and_files(self, problem: Problem, recipe: Recipe) -> Export:
        """Return what follows `-m torchtitan.train`; --module and --config only for a model that torchtitan has."""
        found = {
            **{name: getattr(recipe, key) for key, name in DEGREES.items()},
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
        # What follows a subcommand belongs to it, so activation checkpointing comes last.
        words.append(f"activation-checkpoint:{recipe.recompute}")
        m = problem.model
        known = CONFIGS.get((m.layers, m.hidden, m.heads, m.kv_heads, m.ffn_hidden, m.vocabulary))
        if known is None:
            unknown = "note: name torchtitan's model yourself, by --module and --config"
            return Export(arguments=tuple(words), notes=(*NOTES, unknown))
        return Export(arguments=("--module", "llama3", "--config", known, *words), notes=NOTES)

    def read(self, problem: Problem, given: Given) -> Recipe:
        """Return the recipe of a launch script or argument file of torchtitan 0.3."""
        said = read_options(given.text)
        _refuse_other_run(problem, said)
        found: dict[str, Any] = {
            key: _degree(said, f"--{name.replace('_', '-')}") or 1 for key, name in DEGREES.items()
        } | said.launch
        found |= _sharding_choices(problem, said, found, given)
        found |= _stage_choices(problem, said, found["pipeline_parallel"])
        batch, global_batch = _degree(said, LOCAL_BATCH), _degree(said, "--training.global-batch-size")
        found |= {"micro_batch_seqs": batch, "global_batch_seqs": global_batch}
        if found["pipeline_parallel"] > 1:
            found["micro_batch_seqs"] = _degree(said, "--parallelism.pipeline-parallel-microbatch-size") or 1
        sequence = _flag(said, "--parallelism.", "enable-sequence-parallel", default=True)
        found["sequence_parallel"] = found["tensor_parallel"] > 1 and sequence
        found["compile"] = _flag(said, "--compile.", "enable", default=False)
        found["recompute"] = _recompute(given.text)
        found["engine"] = given.stated.get("engine", "torch")
        _refuse_tokens(problem, batch, global_batch)
        recipe = recipe_of(problem, found, given)
        if recipe.stages > 1 and batch is not None and batch != recipe.micro_batch_seqs * recipe.accumulation:
            raise bad_value(LOCAL_BATCH, batch, "a step's sequences of a replica: global batch / replicas")
        return recipe


def _layers_argument(problem: Problem, recipe: Recipe) -> int | None:
    """Return layers per stage that give this many stages; None if the schedule's default does, 0 if nothing does."""
    default = 2 if recipe.schedule in LOOPED_SCHEDULES else 1
    if recipe.virtual_stages == default:
        return None
    per_stage = -(-problem.model.layers // recipe.stages)
    return per_stage if -(-problem.model.layers // per_stage) == recipe.stages else 0


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


def _degree(said: Options, name: str) -> int | None:
    return None if said.get(name) == ("-1",) else said.number(name)


def _flag(said: Options, section: str, name: str, *, default: bool) -> bool:
    if f"{section}no-{name}" in said:
        return False
    return default if f"{section}{name}" not in said else said[f"{section}{name}"] not in (("False",), ("false",))


def _refuse_other_run(problem: Problem, said: Options) -> None:
    """Raise `InvalidInput` for another length or precision, and for what no recipe has.

    `training.dtype` is that of weights and states, which a recipe keeps in fp32.
    """
    refuse_options(said, REFUSED)
    for name, words in said.items():
        if name.startswith(QUANTIZED) and words[:1] not in (("False",), ("false",)) and ".no-enable" not in name:
            raise InvalidInput(f"{name}: no recipe of ours has 8-bit arithmetic")
    weights = said.text("--training.dtype", "float32")
    if weights != "float32":
        raise bad_value("--training.dtype", weights, "float32: recipes keep weights and states in no less")
    computed = "--training.mixed-precision-param"
    refuse_other_problem(
        {
            "--training.seq-len": (said.number("--training.seq-len"), problem.sequence_length),
            computed: (said.text(computed, "bfloat16"), PRECISIONS.get(problem.precision)),
        }
    )


def _refuse_tokens(problem: Problem, batch: int | None, global_batch: int | None) -> None:
    """Raise `InvalidInput` for a local batch that can only count tokens, as later versions of torchtitan do."""
    most = global_batch or problem.global_batch.maximum
    if batch is not None and batch > most and batch % problem.sequence_length == 0:
        raise bad_value(
            LOCAL_BATCH,
            batch,
            f"at most {most} sequences, the global batch",
            hint=f"torchtitan after {VERSION} counts tokens: {batch // problem.sequence_length} sequences",
        )


def _stage_choices(problem: Problem, said: Options, pipeline_parallel: int) -> dict[str, Any]:
    if pipeline_parallel == 1:
        return {"schedule": "none"}
    name = "--parallelism.pipeline-parallel-schedule"
    schedules = {theirs.lower(): ours for ours, theirs in SCHEDULES.items()}
    word = said.text(name, "1F1B")
    if word.lower() not in schedules:
        raise bad_value(name, word, f"one of {', '.join(SCHEDULES.values())}")
    schedule = schedules[word.lower()]
    per_stage = _degree(said, LAYERS_PER_STAGE)
    if per_stage is None:
        return {"schedule": schedule, "virtual_stages": 2 if schedule in LOOPED_SCHEDULES else 1}
    stages = -(-problem.model.layers // per_stage)
    if stages % pipeline_parallel:
        raise bad_value(LAYERS_PER_STAGE, per_stage, "equally many stages per rank")
    return {"schedule": schedule, "virtual_stages": stages // pipeline_parallel}


def _sharding_choices(problem: Problem, said: Options, found: dict[str, Any], given: Given) -> dict[str, Any]:
    """Return `sharding` and `devices`; a shard degree of -1, the default, takes the ranks that are left."""
    within = found["tensor_parallel"] * found["pipeline_parallel"] * found["context_parallel"]
    replicate = _degree(said, "--parallelism.data-parallel-replicate-degree") or 1
    shard = _degree(said, "--parallelism.data-parallel-shard-degree")
    if shard is None:
        devices = int(found.get("devices") or given.stated.get("devices") or problem.cluster.devices)
        shard, rest = divmod(devices, within * replicate)
        if rest or not shard:
            raise bad_value("devices", devices, f"a multiple of {within * replicate}, the product of the degrees")
    spread = shard * found["context_parallel"]
    policy = said.text(RESHARD, "default")
    if policy not in ("default", "always", "never"):
        raise bad_value(RESHARD, policy, "default, always or never")
    # By default pipelines keep parameters, and everything else gathers them again.
    keeps = policy == "never" or (policy == "default" and found["pipeline_parallel"] > 1)
    if keeps and replicate > 1 and spread > 1:
        raise bad_value(RESHARD, policy, "always, with hybrid sharding")
    sharding = Sharding(parameters=1 if keeps else spread, gradients=spread, optimizer=spread)
    return {"sharding": sharding, "devices": within * replicate * shard}


def _recompute(text: str) -> str:
    found = [word for word in ("none", "selective", "full") if f"activation-checkpoint:{word}" in text.lower()]
    if len(found) > 1:
        raise bad_value("activation-checkpoint", found, "one of them")
    return found[0] if found else "none"
