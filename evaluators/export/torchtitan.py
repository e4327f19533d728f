"""Recipes as torchtitan's arguments.

Names are those of torchtitan 0.3.0 (`torchtitan/config/configs.py`), where
`training.local_batch_size` and `training.global_batch_size` count sequences; later versions count
tokens there. FSDP shards over replicas and context ranks; a replica that keeps its parameters
between forward and backward pass (`never`) is ZeRO-2. Under pipelining the local batch is a whole
step's, cut into the pipeline's micro-batches. Layers are converted to 8 bits in Python: the script
writes a module, which `--module` names, with a configuration of torchtitan's whose layers it
converts.
"""

from __future__ import annotations

import ast
import itertools
import json
import tomllib
from collections.abc import Iterable, Mapping
from typing import Any

from frontrunner.evaluators.export.base import (
    EITHER,
    Export,
    Refusal,
    Tool,
    fsdp_degrees,
    fsdp_sharding,
    is_preset,
    words,
)
from frontrunner.evaluators.export.reading import (
    Given,
    Options,
    read_options,
    recipe_of,
    refuse_other_problem,
    split_files,
)
from frontrunner.evaluators.export.shell import Undecided
from frontrunner.spaces.errors import InvalidInput, bad_value, shown, shown_key
from frontrunner.spaces.model.model import KEYS, Model
from frontrunner.spaces.model.positions import RotaryScaling
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import LOOPED_SCHEDULES, RECOMPUTES, Recipe
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
LLAMA: dict[str, Any] = {
    "kv_heads": 8, "vocabulary": 128256, "rotary_theta": 500_000.0,
    "rotary_scaling": RotaryScaling(factor=8.0),
}  # fmt: skip
QWEN: dict[str, Any] = {
    "kv_heads": 8, "vocabulary": 151936, "rotary_theta": 1e6, "norm_epsilon": 1e-6,
    "head_width": 128, "qk_norm": True,
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "llama3_8b": LLAMA | {"layers": 32, "hidden": 4096, "heads": 32, "ffn_hidden": 14336},
    "llama3_70b": LLAMA | {"layers": 80, "hidden": 8192, "heads": 64, "ffn_hidden": 28672},
    "llama3_405b": LLAMA | {"layers": 126, "hidden": 16384, "heads": 128, "ffn_hidden": 53248},
    "qwen3_0_6b": QWEN | {"layers": 28, "hidden": 1024, "heads": 16, "ffn_hidden": 3072,
        "tied_embeddings": True},
    "qwen3_1_7b": QWEN | {"layers": 28, "hidden": 2048, "heads": 16, "ffn_hidden": 6144,
        "tied_embeddings": True},
    "qwen3_14b": QWEN | {"layers": 40, "hidden": 5120, "heads": 40, "ffn_hidden": 17408},
    "qwen3_32b": QWEN | {"layers": 64, "hidden": 5120, "heads": 64, "ffn_hidden": 25600},
    "qwen3_30b_a3b": QWEN | {
        "layers": 48, "hidden": 2048, "heads": 32, "kv_heads": 4, "ffn_hidden": 768, "experts": 128,
        "experts_per_token": 8,
    },
}  # fmt: skip
"""What torchtitan's configurations of whole models state: Llama 3.1's, and Qwen3's."""
PRESET_CONFIGS = {
    "deepseek_v3_16b": "deepseek-v2-lite",
    "deepseek_v3_671b": "deepseek-v3",
    "gpt_oss_20b": "gpt-oss-20b",
    "gpt_oss_120b": "gpt-oss-120b",
}
"""Its configurations of our presets, but for what `DIFFERS` says."""
DIFFERS = {
    "deepseek_v3_16b": (
        "norms have epsilon 1e-05 and scores mscale 0.70, where the model has 1e-06 and 0.707"
    ),
    "deepseek_v3_671b": "norms have epsilon 1e-05, where the model has 1e-06",
}
MODULES = ("llama3", "qwen3", "deepseek_v3", "gpt_oss")
CONVERTED = "frontrunner_fp8"
CONVERTERS: dict[str, tuple[str, dict[str, object]]] = {
    "rowwise": (
        "Float8LinearConverter",
        {"recipe_name": "rowwise", "filter_fqns": ["lm_head", "router"]},
    ),
    "mxfp8": ("MXFP8LinearConverter", {"fqns": ["attention", "feed_forward", "shared_experts"]}),
}
"""torchtitan's converters of linear layers to 8 bits, with what makes them convert the layers that
ours are.
"""
REFUSED = {
    "--model.converters": "converted layers, as of 8-bit arithmetic",
    "--parallelism.pipeline-parallel-split-points": "stages that are cut at named layers",
    "--parallelism.pipeline-parallel-schedule-csv": "a schedule from a file",
    "--parallelism.pipeline-parallel-microbatches": (
        "this older setting of pipelines: give pipeline_parallel_microbatch_size"
    ),
    "--optimizer.early-step-in-backward": "an optimizer within the backward pass",
    "--parallelism.enable-compiled-autograd": "a compiled backward pass",
}
QUANTIZED = ("--quantize.", "--float8.", "--mx.")
TURNS_ON_FLOAT8 = ("--float8.enable-float8-linear", "--float8.enable")
_MOVED = (
    "pipeline-parallel-degree", "pipeline-parallel-schedule", "pipeline-parallel-microbatches",
    "pipeline-parallel-split-points", "pipeline-parallel-schedule-csv", "context-parallel-degree",
    "context-parallel-rotate-method", "enable-async-tensor-parallel", "enable-compiled-autograd",
)  # fmt: skip
OLDER = {
    "--training.batch-size": "--training.local-batch-size",
    "--training.compile": "--compile.enable",
    "--training.tensor-parallel-degree": "--parallelism.tensor-parallel-degree",
    "--training.data-parallel-degree": "--parallelism.data-parallel-shard-degree",
    "--training.data-parallel-shard-degree": "--parallelism.data-parallel-shard-degree",
    "--training.data-parallel-replicate-degree": "--parallelism.data-parallel-replicate-degree",
    **{f"--experimental.{name}": f"--parallelism.{name}" for name in _MOVED},
}
"""Names of 2024 (torchtitan/config_manager.py at a99d2e5d and 90567fc9), and of today."""
LENGTH, COMPUTED_IN = "--training.seq_len", "--training.mixed_precision_param"
LOCAL_BATCH = "--training.local_batch_size"
REPLICATE, SHARD = (
    "--parallelism.data_parallel_replicate_degree",
    "--parallelism.data_parallel_shard_degree",
)
RESHARD = "--parallelism.fsdp_reshard_after_forward"
SCHEDULE, LAYERS_PER_STAGE, MICRO_BATCH = (
    f"--parallelism.pipeline_parallel_{name}"
    for name in ("schedule", "layers_per_stage", "microbatch_size")
)
FEWER_LAYERS = tuple(
    f"--parallelism.pipeline_parallel_{end}_stage_less_layers" for end in ("first", "last")
)
NOTES = (
    (
        f"note: for torchtitan {VERSION}, where training.local_batch_size and global_batch_size"
        " count sequences"
    ),
    "note: the loss is cut into chunks as the torchtitan config of the model says",
)
NAMES = {
    "tensor_parallel": "--parallelism.tensor_parallel_degree",
    "pipeline_parallel": "--parallelism.pipeline_parallel_degree",
    "context_parallel": "--parallelism.context_parallel_degree",
    "expert_parallel": "--parallelism.expert_parallel_degree",
    "global_batch_seqs": "--training.global_batch_size",
}


class Torchtitan(Tool):
    """torchtitan: a bash file of arguments for `-m torchtitan.train`."""

    name = "torchtitan"
    title = "torchtitan"
    usage = 'torchrun "${TORCHRUN_ARGS[@]}" -m torchtitan.train "${RECIPE_ARGS[@]}"'
    names = NAMES
    expressed = frozenset({
        "virtual_stages", "schedule", "sharding", "recompute", "sequence_parallel", "compile",
        "fp8",
    })  # fmt: skip

    def refusals(self, problem: Problem, recipe: Recipe) -> Iterable[Refusal]:
        """Return what of precision, sharding and stages torchtitan does not have."""
        p, g, o = recipe.sharding.degrees
        tool, cp, n, name = (
            self.title,
            recipe.context_parallel,
            recipe.copies,
            recipe.sharding_name,
        )
        layers, stages, stated = len(problem.model.layers), recipe.stages, recipe.layers_per_stage
        in_8_bits = recipe.fp8 != "none"
        return (
            (in_8_bits and recipe.fp8 not in CONVERTERS, "fp8-unsaid",
             f"{tool} {VERSION} converts to 8 bits by rows and blocks, not by tensors: fp8 "
             f"{' and '.join(CONVERTERS)}"),
            (in_8_bits and _config_of(problem.model) is None, "fp8-model",
             f"{tool} converts to 8 bits a configuration of its own, and has none of this model: "
             f"{', '.join((*CONFIGS, *PRESET_CONFIGS))}"),
            (in_8_bits and recipe.tensor_parallel > 1 and problem.model.feed_forward.has_biases,
                "fp8-biases",
             f"{tool} {VERSION} converts the layers that share a bias over tensor_parallel "
             f"ranks to ones that add it "
             f"on each"),
            (problem.precision not in PRECISIONS, "precision-unsaid",
             f"{tool} trains in bf16 and fp32, not {problem.precision}"),
            (o == 1 and cp > 1, "sharding-context",
             f"{tool} shards parameters over context ranks; sharding is none"),
            (not (p == g == o or (p, g, o) == (1, n, n)), "sharding-unsaid",
             f"{tool} has zero-2, zero-3 and hybrid-K, not {name}"),
            (o % cp, "sharding-context",
                f"{tool} shards over all {cp} context ranks: {name} does not"),
            (stated and stated != even_layers(layers, stages), "stages-unsaid",
             f"{tool} has no argument for stages of {recipe.layers_name} layers"),
            (_layers_argument(problem, recipe) == 0, "stages-unsaid",
             f"no number of layers per stage makes {tool} cut {layers} layers into {stages}"),
        )  # fmt: skip

    def arguments_and_files(self, problem: Problem, recipe: Recipe) -> Export:
        """Return what follows `-m torchtitan.train`; --module and --config only for a model that
        torchtitan has.
        """
        in_pipeline, is_sharded = recipe.pipeline_parallel > 1, recipe.sharding.optimizer > 1
        known, in_8_bits = _config_of(problem.model), recipe.fp8 != "none"
        replicate, shard, _ = fsdp_degrees(recipe)
        settings: dict[str, object] = {
            "--module": CONVERTED if in_8_bits else known and _module_of(known),
            "--config": known,
            **self.numbers(recipe),
            SCHEDULE: SCHEDULES.get(recipe.schedule),
            MICRO_BATCH: recipe.micro_batch_seqs if in_pipeline else None,
            **dict.fromkeys(FEWER_LAYERS, "0" if in_pipeline else None),
            LAYERS_PER_STAGE: _layers_argument(problem, recipe) if in_pipeline else None,
            REPLICATE: replicate,
            SHARD: shard,
            RESHARD: (
                ("always" if recipe.sharding.parameters > 1 else "never") if is_sharded else None
            ),
            LENGTH: problem.sequence_length,
            LOCAL_BATCH: (
                recipe.micro_batch_seqs * (recipe.accumulation if recipe.stages > 1 else 1)
            ),
            COMPUTED_IN: PRECISIONS[problem.precision],
            f"--parallelism.{'' if recipe.sequence_parallel else 'no-'}enable_sequence_parallel": (
                True
            ),
            # torchtitan refuses graphs of pipelines, and of all-to-alls whose sizes the host waits
            # for.
            "--training.disable_cuda_graphs": in_pipeline or recipe.expert_parallel > 1,
            f"--compile.{'' if recipe.compile else 'no-'}enable": True,
            # What follows a subcommand belongs to it, so activation checkpointing comes last.
            f"activation-checkpoint:{recipe.recompute}": True,
        }
        unknown = (
            "note: name torchtitan's model yourself, by --module and --config; its llama3 models"
            " are Llama 3.1's"
        )
        balanced = "note: torchtitan balances the load of experts by a bias of its own"
        notes = [
            *NOTES,
            *(() if known else (unknown,)),
            *((balanced,) if problem.model.mixture else ()),
        ]
        if differs := DIFFERS.get(known or ""):
            notes.append(f"note: in torchtitan's {known} {differs}")
        if not in_8_bits or known is None:
            return Export(arguments=words(settings), notes=tuple(notes))
        notes.append(
            f"note: {CONVERTED}.py must be in the folder that torchrun is started in; it needs"
            " torchao"
        )
        return Export(
            arguments=words(settings),
            files={f"{CONVERTED}.py": _converted(recipe, known)},
            notes=tuple(notes),
        )

    def read(self, problem: Problem, given: Given) -> Recipe:
        """Return the recipe of a launch script or argument file of torchtitan 0.3."""
        said = given.keep(_settings(given))
        _refuse_other_run(problem, said)
        defaults = [
            k
            for k, v in said.values.items()
            if v == "-1" and k.endswith(("degree", "size", "stage"))
        ]
        said = Options(
            {key: value for key, value in said.values.items() if key not in defaults}, said.seen
        )
        found: dict[str, Any] = {
            number: said.number(name) or 1
            for number, name in self.names.items()
            if number != "global_batch_seqs"
        }
        found |= said.launch
        found |= _sharding_choices(problem, said, found, given)
        found |= _stage_choices(problem, said, found["pipeline_parallel"])
        batch, global_batch = said.number(LOCAL_BATCH), said.number(self.names["global_batch_seqs"])
        most = global_batch or problem.global_batch.maximum
        if batch is not None and batch > most and batch % problem.sequence_length == 0:
            hint = (
                f"torchtitan after {VERSION} counts tokens: {batch // problem.sequence_length}"
                " sequences"
            )
            raise bad_value(
                LOCAL_BATCH, batch, f"at most {most} sequences, the global batch", hint=hint
            )
        found |= {
            "micro_batch_seqs": (
                said.number(MICRO_BATCH) or 1 if found["pipeline_parallel"] > 1 else batch
            ),
            "global_batch_seqs": global_batch,
            "sequence_parallel": (
                found["tensor_parallel"] > 1
                and _flag(said, "--parallelism.", "enable-sequence-parallel", default=True)
            ),
            "compile": _flag(said, "--compile.", "enable", default=False),
            "recompute": _recompute(said, given),
            "fp8": _scaling(said, given),
        }
        if global_batch is None and batch is not None and "accumulation" not in given.stated:
            # The default is one local batch of each replica (torchtitan/train.py of v0.2.2, line
            # 196); a pipeline cuts it into micro-batches.
            found["accumulation"] = max(1, batch // found["micro_batch_seqs"])
        recipe = recipe_of(problem, found, given)
        if (
            recipe.stages > 1
            and batch is not None
            and batch != recipe.micro_batch_seqs * recipe.accumulation
        ):
            raise bad_value(
                LOCAL_BATCH, batch, "a step's sequences of a replica: global batch / replicas"
            )
        return recipe


def _settings(given: Given) -> Options:
    """Return the settings of arguments, of a TOML file, or of a script with the TOML file that it
    names, by the names of today; arguments override the file.
    """
    if (table := _toml(given.text)) is not None:
        return Options(_current(_whole(table)))
    said = read_options(given.text)
    name = said.text("--job.config-file") or _config_file(said)
    values = _current(said.values)
    if not name.endswith(".toml"):
        return Options(values, said.seen)
    text = split_files(given.text)[1].get(name, given.beside(name))
    if text is None:  # What it sets is unknown, which a reader of the recipe has to know.
        return Options(values | {f"all settings of {shown_key(name)} (no such toml here)": True})
    if (table := _toml(text)) is None:
        raise InvalidInput(f"{shown_key(name)} is not valid TOML with sections")
    return Options(_current(_whole(table)) | values)


def _config_file(said: Options) -> str:
    """Return the value of a script's CONFIG_FILE, empty if it has none; raise `InvalidInput` where
    it depends on a test that is not known.
    """
    value = said.variables.get("CONFIG_FILE=", said.variables.get("CONFIG_FILE", ""))
    if isinstance(value, Undecided):
        raise value.refuse("CONFIG_FILE")
    return str(value)


def _toml(text: str) -> dict[str, Any] | None:
    """Return the tables of a TOML text, None for any other text."""
    try:
        found = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError):
        return None
    tables = [value for value in found.values() if isinstance(value, dict)]
    return found if tables else None


def _whole(table: Mapping[str, Any], prefix: str = "--") -> dict[str, Any]:
    """Return a file's settings as options; what is off has the word false."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        name = f"{prefix}{key}".replace("_", "-")
        if isinstance(value, dict):
            found |= _whole(value, f"{name}.")
        elif isinstance(value, bool):
            found[name] = value or "false"
        elif value != []:
            found[name] = value if isinstance(value, str) else str(value)
    if prefix != "--":
        return found
    # Of a file that leaves them out (v0.2.2, torchtitan/config/job_config.py).
    found.setdefault("--training.seq-len", "2048")
    if not {LOCAL_BATCH.replace("_", "-"), "--training.batch-size"} & found.keys():
        found[LOCAL_BATCH.replace("_", "-")] = "8"
    found.setdefault("--activation-checkpoint.mode", "selective")
    if found["--activation-checkpoint.mode"] == "selective":
        found.setdefault("--activation-checkpoint.selective-ac-option", "2")
    if "--model.converters" not in found:  # Settings of a converter that is not used.
        found = {
            key: value
            for key, value in found.items()
            if not key.startswith(QUANTIZED) or key in TURNS_ON_FLOAT8
        }
    return found


def _current(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return options under the names of today; raise `InvalidInput` for two that disagree."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        name = OLDER.get(key, key)
        if found.setdefault(name, value) != value:
            raise InvalidInput(f"{key} = {shown(value)}, but {name} = {shown(found[name])}")
    kind = str(found.pop("--training.data-parallel-type", "fsdp"))
    if kind not in ("fsdp", "ddp"):
        raise bad_value("training.data_parallel_type", kind, "fsdp or ddp")
    if kind == "ddp" and SHARD.replace("_", "-") in found:
        found[REPLICATE.replace("_", "-")] = found.pop(SHARD.replace("_", "-"))
        found[SHARD.replace("_", "-")] = "1"
    return found


def _recompute(said: Options, given: Given) -> str:
    """Return what is computed again: by 0.3's subcommand, or by the mode of earlier versions."""
    found = [word for word in RECOMPUTES if f"activation-checkpoint:{word}" in given.text.lower()]
    mode = said.text("--activation-checkpoint.mode")
    if mode and mode not in RECOMPUTES:
        raise bad_value("activation_checkpoint.mode", mode, f"one of {', '.join(RECOMPUTES)}")
    found = list(dict.fromkeys((*found, *([mode] if mode else []))))
    if len(found) > 1:
        raise bad_value("activation-checkpoint", found, "one of them")
    option = said.text("--activation-checkpoint.selective-ac-option", "op")
    if found == ["selective"] and option != "op":
        raise bad_value(
            "activation_checkpoint.selective_ac_option",
            option,
            "op (2 by default): no recipe recomputes every n-th layer alone",
        )
    return found[0] if found else "none"


def _config_of(model: Model) -> str | None:
    """Return torchtitan's own configuration of this model, or None."""
    stated = (config for config, fields_of in CONFIGS.items() if _is(model, fields_of))
    of_presets = (config for config, name in PRESET_CONFIGS.items() if is_preset(model, name))
    return next(itertools.chain(stated, of_presets), None)


def _module_of(config: str) -> str:
    return next(name for name in MODULES if config.startswith(name))


def _converted(recipe: Recipe, config: str) -> str:
    """Return a module with a configuration of this name, which is torchtitan's with its layers
    converted to 8 bits.
    """
    converter, chosen = CONVERTERS[recipe.fp8]
    stated = (
        "".join(f"    {key}={json.dumps(value)},\n" for key, value in chosen.items())
        + f"    model_compile_enabled={recipe.compile},\n"
    )
    return (
        f"from torchtitan.components.quantization import {converter}\n"
        f"from torchtitan.models.{_module_of(config)} import config_registry\n\n"
        f"CONVERTER = {converter}.Config(\n{stated})\n\n\n"
        f"def {config}():\n"
        f"    config = config_registry.{config}()\n"
        "    config.model_spec.model = CONVERTER.build().convert(config.model_spec.model)\n"
        "    return config\n"
    )


def _scaling(said: Options, given: Given) -> str:
    """Return how the module that `--module` names converts layers to 8 bits, if the script writes
    it or it lies beside.

    The module is parsed, not run. Raises `InvalidInput` for a converter that no recipe describes.
    """
    name = f"{said.text('--module')}.py"
    text = split_files(given.text)[1].get(name, given.beside(name))
    if text is None:
        return "none"
    try:
        calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
        found = [
            (
                node.func.value.id,
                {one.arg or "": ast.literal_eval(one.value) for one in node.keywords},
            )
            for node in calls
            if isinstance(node.func, ast.Attribute)
            and isinstance(node.func.value, ast.Name)
            and node.func.value.id.endswith("Converter")
        ]
    except (SyntaxError, ValueError, RecursionError) as error:
        raise InvalidInput(
            f"{shown_key(name)} cannot be read: {error}", hint="export it again"
        ) from None
    for _, chosen in found:
        chosen.pop("model_compile_enabled", None)
    if not found:
        return "none"
    for scaling, known in CONVERTERS.items():
        if found == [known]:
            return scaling
    converters = ", ".join(f"{converter}.Config({chosen})" for converter, chosen in found)
    expected = " or ".join(
        f"{converter}.Config({chosen})" for converter, chosen in CONVERTERS.values()
    )
    raise InvalidInput(f"{shown_key(name)} has {converters}: expected {expected}")


def _is(model: Model, stated: Mapping[str, Any]) -> bool:
    """Return whether a model has what a configuration states, and is a plain rotary RMSNorm SwiGLU
    model besides.
    """
    plain: dict[str, Any] = {name: one.default for name, one in KEYS.items()}
    wanted = plain | {"activation": "swiglu", "norm": "rmsnorm", **stated}
    keys = model.keys()
    return all(keys[name] == value for name, value in wanted.items() if name not in EITHER)


def _layers_argument(problem: Problem, recipe: Recipe) -> int | None:
    """Return layers per stage that give this many stages; None if the schedule's default does, 0 if
    nothing does.
    """
    if recipe.virtual_stages == (2 if recipe.schedule in LOOPED_SCHEDULES else 1):
        return None
    per_stage = -(-len(problem.model.layers) // recipe.stages)
    return per_stage if -(-len(problem.model.layers) // per_stage) == recipe.stages else 0


def _flag(said: Options, section: str, name: str, *, default: bool) -> bool:
    return (
        not said.flag(f"{section}no-{name}")
        and str(said.get(f"{section}{name}", default)).lower() != "false"
    )


def _refuse_other_run(problem: Problem, said: Options) -> None:
    """Raise `InvalidInput` for another length or precision, and for what no recipe has."""
    said.refuse(REFUSED)
    for name, value in said.values.items():
        if (
            name.startswith(QUANTIZED)
            and str(value).lower() != "false"
            and ".no-enable" not in name
        ):
            raise InvalidInput(
                f"{name}: torchtitan {VERSION} has no such argument: its converters are in a"
                " config's Python"
            )
    weights = said.text("--training.dtype", "float32")
    if weights != "float32":
        raise bad_value(
            "--training.dtype", weights, "float32: recipes keep weights and states in no less"
        )
    refuse_other_problem(
        {
            LENGTH: (said.number(LENGTH), problem.sequence_length),
            COMPUTED_IN: (said.text(COMPUTED_IN, "bfloat16"), PRECISIONS.get(problem.precision)),
        }
    )


def _stage_choices(problem: Problem, said: Options, pipeline_parallel: int) -> dict[str, Any]:
    if pipeline_parallel == 1:
        return {"schedule": "none"}
    word, per_stage = said.text(SCHEDULE, "1F1B"), said.number(LAYERS_PER_STAGE)
    schedule = next(
        (ours for ours, theirs in SCHEDULES.items() if theirs.lower() == word.lower()), None
    )
    if schedule is None:
        raise bad_value(SCHEDULE, word, f"one of {', '.join(SCHEDULES.values())}")
    if per_stage is None:
        return {"schedule": schedule, "virtual_stages": 2 if schedule in LOOPED_SCHEDULES else 1}
    virtual_stages, rest = divmod(-(-len(problem.model.layers) // per_stage), pipeline_parallel)
    if rest:
        raise bad_value(LAYERS_PER_STAGE, per_stage, "equally many stages per rank")
    return {"schedule": schedule, "virtual_stages": virtual_stages}


def _sharding_choices(
    problem: Problem, said: Options, found: dict[str, Any], given: Given
) -> dict[str, Any]:
    """Return `sharding` and `devices`; a shard degree of -1, the default, takes the ranks that are
    left.
    """
    within = found["tensor_parallel"] * found["pipeline_parallel"] * found["context_parallel"]
    replicate, shard = said.number(REPLICATE) or 1, said.number(SHARD)
    if shard is None:
        devices = int(
            found.get("devices") or given.stated.get("devices") or problem.cluster.devices
        )
        shard, rest = divmod(devices, within * replicate)
        if rest or not shard:
            raise bad_value(
                "devices",
                devices,
                f"a multiple of {within * replicate}, the product of the degrees",
            )
    policy = said.text(RESHARD, "default")
    if policy not in ("default", "always", "never"):
        raise bad_value(RESHARD, policy, "default, always or never")
    # By default pipelines keep parameters, and everything else gathers them again.
    keeps = policy == "never" or (policy == "default" and found["pipeline_parallel"] > 1)
    sharding = fsdp_sharding(found, shard, keeps_parameters=keeps)
    if keeps and replicate > 1 and sharding.optimizer > 1:
        raise bad_value(RESHARD, policy, "always, with hybrid sharding")
    return {"sharding": sharding, "devices": within * replicate * shard}
