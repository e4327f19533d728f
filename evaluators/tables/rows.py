"""Rows of a table of measured configurations as clusters, problems, recipes and outcomes.

A problem is the rows that state the same in `PROBLEM_COLUMNS` and the same shape. A row that cannot
become a recipe is left out and counted with the reason.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from frontrunner.evaluators.analytic.codes import (
    ALEPH_ALPHA,
    CODES,
    LLM_FOUNDRY,
    MEGATRON,
    MEGATRON_DEEPSPEED,
    MEGATRON_GPT,
    NANOTRON,
    UNKNOWN,
)
from frontrunner.evaluators.analytic.kernels import FLASH_SPEED
from frontrunner.evaluators.analytic.training_code import TrainingCode
from frontrunner.evaluators.runs.measure import measured_steps, nodes_used
from frontrunner.evaluators.tables import schema
from frontrunner.evaluators.tables.schema import Refusals, Row
from frontrunner.results.outcome import (
    Failure,
    FailureKind,
    Measurement,
    Outcome,
    refuse_unstorable,
)
from frontrunner.spaces.cluster import PRECISIONS, ByPrecision, Cluster, Links
from frontrunner.spaces.document import read_plain
from frontrunner.spaces.errors import free_among
from frontrunner.spaces.model.attention import LatentAttention
from frontrunner.spaces.model.model import Model
from frontrunner.spaces.presets import cluster_preset, device_preset, model_preset, preset_names
from frontrunner.spaces.problem import GlobalBatch, Problem, SoftwareSettings
from frontrunner.spaces.recipe import DIMENSIONS, Recipe
from frontrunner.spaces.sharding import Sharding
from frontrunner.spaces.stages import even_layers

PRESETS = {
    "a100": "dgx-a100-80gb",
    "h100": "dgx-h100",
    "h200": "dgx-h200",
    "b200": "dgx-b200",
    "b300": "dgx-b300",
    "gb200": "gb200-nvl72",
    "gb300": "gb300-nvl72",
    "mi250x": "frontier",
    "mi300x": "mi300x-platform",
    "mi325x": "mi325x-platform",
    "mi355x": "mi355x-platform",
    "v100": "dgx-1-v100",
    "pvc": "aurora",
}
"""A word of the hardware column, in lower case -> its cluster preset; the first that matches."""
OTHER_BOARDS = re.compile(r"pcie|\bnvl\b")
MEMORY = re.compile(r"(?<!\d)(\d{1,9}) ?gi?b", re.IGNORECASE)
"""The memory that a device's name states; the look behind keeps a search through thousands of
digits short.
"""
SAME_MEMORY = 0.02
"""A name states a little more than the driver reports, which is what a preset states."""
_OTHER_SIZES = {
    ("a100-80gb", "40"): {"memory_gb_per_s": device_preset("a100-40gb")["memory_gb_per_s"]},
    ("h100-80gb", "96"): {"memory_gb_per_s": 2400},
}
"""What else differs where a name states another memory than its preset's device has. H100 with 96
GB have HBM2e of 2.4 TB/s (github.com/pytorch/torchtitan, docs/performance.md).
"""
POWER = re.compile(r"(?<!\d)(\d{3,4}) ?W\b")
FULL_POWER_W = {"a100-80gb": 400.0, "h100-80gb": 700.0, "h200-141gb": 700.0}
"""The power that a device's preset is stated for, by its datasheet, where a name may state a lower
limit.
"""
_PRESETS = tuple(
    read_plain(
        Model, {"kv_heads": table["heads"], "ffn_hidden": 4 * table["hidden"]} | table, "model"
    )
    for table in map(model_preset, preset_names("models"))
)
_STATED = itemgetter(
    "layers", "hidden", "heads", "kv_heads", "ffn_hidden", "vocabulary", "positions", "norm",
    "tied_embeddings", "attention", "experts", "experts_per_token", "shared_experts",
    "dense_layers", "dense_ffn_hidden", "key_value_rank", "query_rank",
)  # fmt: skip
LATENT = ("key_value_rank", "query_rank", "head_width", "rotary_width", "value_width")
LINKS = ("node_gb_per_s", "nic_gb_per_s", "nics_per_node")
COUNTED = {"gpus_per_node": "devices_per_node", "compute_units": "compute_units"}
DEVICES_PER_NODE = 8
"""Of machines without a preset whose rows do not state it; assumed."""
ASSUMED_MEMORY_GIB = 80.0
"""Of a device that is neither known nor described: assumed, and wrong for many; failures show what
fits.
"""

PROBLEM_COLUMNS = (
    "model", "activation", "seq", "gbs", "hardware", "gpus", "training_code", "attention_kernel",
    "precision", "experts", "top_k",
    "framework", "dispatcher", "ep_overlap", "cuda_graph", "routing", *schema.MACHINE_NUMBERS,
)  # fmt: skip
SHAPE_COLUMNS = (
    "layers", "hidden", "heads", "kv_heads", "ffn_hidden", "vocab", "attention", "shared_experts",
    "dense_layers",
    "dense_ffn_hidden", "mtp_layers",
)  # fmt: skip
"""What makes rows of one model's name, which may be empty, another model's."""
CODE_COLUMNS = ("training_code", "framework", "dispatcher", "ep_overlap", "cuda_graph", "routing")
FAILURES = {
    FailureKind.OUT_OF_MEMORY: ("oom", "out of memory", "out-of-memory", "out_of_memory"),
    FailureKind.CRASHED: ("fail", "failed", "failure", "error", "crash", "crashed"),
    FailureKind.HUNG: ("hang", "hung"),
    FailureKind.TOO_SLOW: ("timeout", "too-slow"),
    FailureKind.NOT_FINITE: ("nan", "not-finite"),
}
"""Why a row has no measurement, and its words for that in the status column, in lower case."""
HIDDEN_PER_LAYER = 128
"""Of GPT-3 175B (arXiv 2005.14165) and Llama 7B (arXiv 2302.13971), as is `HEAD_WIDTH`."""
HEAD_WIDTH = 128
FUSED_ATTENTION = re.compile("flash|sdpa|xformers|memory.efficient|cudnn|fused.attention")
UNFUSED_ATTENTION = re.compile("torch|softmax|eager|math|naive|unfused")
FLASH_VERSION = re.compile(r"flash[^0-9]*([1-9])")
OTHER_FRAMEWORK = re.compile(r"\bframework=(?![^;]*(?:megatron|deepspeed|\bds))", re.IGNORECASE)
UNDER_DEEPSPEED = re.compile(r"deepspeed|\bds|bigscience", re.IGNORECASE)
"""What names of attention kernels say, in lower case."""
CODE_OF_SOURCE = {
    "efficient-parallelization-layouts": ALEPH_ALPHA.name,
    "202412_torchtitan": "torchtitan-2024",
    "megatron-bridge": "nemo",
    **{name: name for name in (NANOTRON.name, "torchtitan", LLM_FOUNDRY.name)},
}
"""What a table's `source` holds, in lower case -> the training code; others follow from the model's
name.
"""
CODE_OF_FRAMEWORK = {
    "automodel": "nemo-automodel",
    "nemo": "nemo",
    "megatron-bridge": "nemo",
    "torchtitan": "torchtitan",
    "nanotron": NANOTRON.name,
    "deepspeed": MEGATRON_DEEPSPEED.name,
    "megatron": MEGATRON.name,
}
"""What a row's `framework` holds, in lower case -> the training code; the first that matches."""
PERFORMANCE = re.compile(
    r"performance-summary|dgxc|mlcommons|pretrain_performance|perf_recipes", re.IGNORECASE
)
"""Sources and notes of NeMo's and Megatron Bridge's performance recipes."""
DISPATCHERS = {"alltoall": "alltoall", "deepep": "deepep", "hybridep": "deepep"}
OVERLAPS = {"0": False, "1": True}
GRAPHS = {"none": "none", "full_iteration": "step"}
"""What the columns `dispatcher`, `ep_overlap` and `cuda_graph` hold; other graphs are those of
parts of layers.
"""
EVEN_ROUTING = re.compile(r"forced|balanced?\b|uniform|drop, cap|token drop", re.IGNORECASE)
"""What the column `routing` holds where each expert gets equally many tokens, or no more than its
capacity.
"""
BENCHMARKS = re.compile(r"megatron-bridge|nemo|dgxc|primus", re.IGNORECASE)
"""Sources and frameworks of vendors' benchmarks, which deal tokens evenly
(`--moe-router-force-load-balancing`) or drop those above an expert's capacity (NeMo's
`MegatronTokenDropCallback`), unless they say.
"""
LONG_SEQUENCE = 8192
"""From here on attention that is not named is taken to be fused: its scores would not fit."""


@dataclass(frozen=True, kw_only=True)
class TableRow:
    """A row that became a recipe: its place in the file, counted from 0, and its outcome."""

    number: int
    recipe: Recipe
    outcome: Outcome


@dataclass(frozen=True, kw_only=True)
class TableProblem:
    """The rows of one problem, in the file's order."""

    name: str
    problem: Problem
    rows: tuple[TableRow, ...]

    def outcomes(self) -> dict[Recipe, Outcome]:
        """Return each recipe's outcome; of repeats the fastest counts, and a failure only where all
        failed.
        """
        found: dict[Recipe, Outcome] = {}
        for row in self.rows:
            found[row.recipe] = max(found.get(row.recipe, row.outcome), row.outcome, key=_speed)
        return found


class TableProblems(NamedTuple):
    """The problems of a table, and how many rows were left out, by reason."""

    problems: list[TableProblem]
    left_out: dict[str, int]


def read_problems(path: Path) -> TableProblems:
    """Read every problem of a table, of however few rows; raises as `read_csv` does."""
    left_out = Refusals()
    problems = problems_of(schema.rows_of(schema.read_csv(path)), left_out)
    return TableProblems(problems, left_out.counts)


def problems_of(rows: Iterable[Row], left_out: Refusals) -> list[TableProblem]:
    """Return the problems of rows, whatever columns are missing; rows that cannot become a recipe
    are left out.
    """
    groups: dict[tuple[str, ...], list[Row]] = {}
    rows = list(rows)
    for row in rows:
        row.fill(tp=1.0, pp=1.0)  # degrees that the table does not name are 1
        schema.complete(row)
        row.fill(mbs=schema.over(row.gbs, row.dp * row.gas))
        row.fill(gas=schema.over(row.gbs, row.mbs * row.dp), vocab=schema.GPT2_VOCABULARY)
    doubted = schema.mislabeled(rows)
    shapes: dict[tuple[str, ...], tuple[str, ...]] = {}
    for row in rows:
        if _has_shape(row):
            shapes.setdefault(_stated(row, PROBLEM_COLUMNS), _stated(row, SHAPE_COLUMNS))
    for row in rows:
        if row.number in doubted:
            left_out.add(schema.MISLABELED, row.number)
            continue
        alike = _stated(row, PROBLEM_COLUMNS)
        # A row without a shape takes that of the others.
        shape = (
            _stated(row, SHAPE_COLUMNS)
            if _has_shape(row)
            else shapes.get(alike, (str(row.n_params_b),))
        )
        groups.setdefault((*alike, *shape), []).append(row)
    found = [(made, group[0]) for group in groups.values() if (made := _problem(group, left_out))]
    names = Counter(one.name for one, _ in found)
    named: dict[str, TableProblem] = {}
    for one, row in found:
        # The kernel, the precision and a code are in the name only where problems differ in nothing
        # else.
        words = (
            (row.attention_kernel, row.precision, *_distinct_words(row))
            if names[one.name] > 1
            else ()
        )
        name = free_among(named, " ".join((one.name, *words)))
        named[name] = replace(one, name=name)
    return list(named.values())


def _stated(row: Row, columns: Sequence[str]) -> tuple[str, ...]:
    return tuple(
        str(getattr(row, column)) for column in columns
    )  # as text, since NaN differs from itself


def _has_shape(row: Row) -> bool:
    return _is_count(row.layers) and _is_count(row.hidden)


def _distinct_words(row: Row) -> list[str]:
    stated = ((name, getattr(row, name)) for name in CODE_COLUMNS)
    words = [
        word if name in CODE_COLUMNS[:3] else f"{name} {word}" for name, word in stated if word
    ]
    return [row.activation, *words] if row.activation else words


def _problem(rows: list[Row], left_out: Refusals) -> TableProblem | None:
    """Return the problem of rows that belong together, as its first complete row states it, or
    None.
    """
    problem, first = None, rows[0]
    for row in rows:
        with suppress(ValueError, OverflowError):
            problem, first = _problem_of(row), row
            break
    made: list[TableRow] = []
    for row in rows:
        try:
            problem = problem or _problem_of(row)
            recipe = recipe_of(row, len(problem.model.layers))
            if recipe.fp8 != "none" and problem.cluster.peak_flops("fp8") is None:
                raise ValueError(f"no peak in fp8 for {row.hardware}")
            made.append(
                TableRow(
                    number=row.number - 1, recipe=recipe, outcome=outcome_of(row, recipe, problem)
                )
            )
        except (ValueError, OverflowError) as error:
            left_out.add(str(error), row.number)
    if problem is None or not made:
        return None
    if any(one.recipe.fp8 != "none" for one in made):
        problem = replace(problem, tolerance="quantized")
    return TableProblem(name=first.problem, problem=problem, rows=tuple(made))


def _problem_of(row: Row) -> Problem:
    sequence, batch, machine = _count(row, "seq"), _count(row, "gbs"), machine_of(row)
    if not _is_count(row.gpus):
        raise ValueError("no gpus")
    return Problem(
        sequence_length=sequence,
        model=model_of(row),
        cluster=replace(machine, nodes=math.ceil(row.gpus / machine.devices_per_node)),
        global_batch=GlobalBatch(minimum=batch, maximum=batch),
        precision=row.precision if row.precision in PRECISIONS else "bf16",
        software=software_of(row),
    )


def model_of(row: Row) -> Model:
    """Return the transformer of a completed row; raises ValueError where it states neither shape
    nor parameters.
    """
    if reason := schema.why_no_mixture(row):
        raise ValueError(reason)
    layers, hidden = _shape(row)
    heads = (
        int(row.heads)
        if _is_count(row.heads) and hidden % int(row.heads) == 0
        else max(1, hidden // HEAD_WIDTH)
    )
    kv_heads = int(row.kv_heads) if _is_count(row.kv_heads) else heads
    gpt = row.is_gpt
    if row.shared % 1:
        raise ValueError(
            f"shared experts {row.shared_experts} are of another width than the others"
        )
    dense, latent = int(row.dense_layers), latent_of(row)
    widths = {name: latent.keys()[name] for name in LATENT} if latent else {}
    width = (
        row.ffn_hidden
        if _is_count(row.ffn_hidden)
        else (4 if row.two_matrices else schema.SWIGLU_WIDTH) * hidden
    )
    keys: dict[str, Any] = dict(
        name=row.model or "unnamed",
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads if heads % kv_heads == 0 else heads,
        ffn_hidden=max(1, round(width)),
        experts=int(row.experts),
        experts_per_token=int(row.top_k),
        routing=routing_of(row),
        shared_experts=int(row.shared),
        dense_layers=dense,
        dense_ffn_hidden=int(row.dense_ffn_hidden) if dense else None,
        mtp_layers=int(row.mtp_layers),
        vocabulary=max(2, int(row.vocab)),
        positions="learned" if gpt else "rotary",
        max_positions=int(row.seq) if gpt and _is_count(row.seq) else None,
        activation=row.activation or _usual_activation(row),
        norm="layernorm" if row.two_matrices else "rmsnorm",
        tied_embeddings=row.tied,
        attention="flash" if is_fused(row) else "math",
        **widths,
        **windows(row),
    )
    found = Model.from_keys(**keys)
    if found.embedding.has_learned_positions:
        return found
    preset: Model | None = next(
        (one for one in _PRESETS if _is_stated(one, found, row.activation)), None
    )
    if preset is None:
        return found
    # What rows do not state of a preset, such as the range of its rotary positions, is part of its
    # recipes' ids.
    return preset.with_keys(**{key: keys[key] for key in ("name", "routing", "mtp_layers")})


def _is_stated(preset: Model, model: Model, activation: str) -> bool:
    """Return whether a preset agrees with all that the row of a model states."""
    return (
        _STATED(preset.keys()) == _STATED(model.keys())
        and preset.feed_forward.matrices == model.feed_forward.matrices
        and activation in ("", preset.feed_forward.activation)
    )


def _usual_activation(row: Row) -> str:
    """Return the activation of a row that states none."""
    if row.squared_relu:
        return "relu2"
    return "gelu" if row.is_gpt else "swiglu"


def latent_of(row: Row) -> Model | None:
    """Return the preset whose widths the latent attention of a row has, if it has such: that of as
    wide a model.

    Rows do not state them. Kimi K2, with half of DeepSeek-V3's heads, has its widths too
    (huggingface.co/moonshotai/Kimi-K2-Instruct, config.json). Raises ValueError where no preset is
    as wide.
    """
    if row.attention.upper() != "MLA":
        return None
    found: Model | None = next(
        (one for one in _PRESETS if _is_latent(one) and one.hidden == row.hidden), None
    )
    if found is None:
        raise ValueError(f"no preset with latent attention has hidden {row.hidden:.0f}")
    return found


def _is_latent(model: Model) -> bool:
    return isinstance(model.attention, LatentAttention)


def windows(row: Row) -> dict[str, Any]:
    """Return the model's keys of the sliding window that a row states."""
    found = schema.WINDOW.search(row.attention)
    if found is None:
        return {}
    return {"attention_window": max(1, int(found[2])), "full_attention_every": 2 if found[1] else 0}


def head_width(row: Row) -> float:
    """Return the width of an attention head: that of a preset with the same heads and feed-forward
    part, else usual.
    """
    found = latent_of(row) or preset_like(row)
    return found.attention.head_dim if found else schema.over(row.hidden, row.heads)


def preset_like(row: Row) -> Model | None:
    """Return the preset whose layers a row's model has, by its heads and feed-forward part, if one
    has.
    """
    names = ("hidden", "heads", "kv_heads", "ffn_hidden", "experts")
    stated = attrgetter(*names)(row)
    return next((one for one in _PRESETS if itemgetter(*names)(one.keys()) == stated), None)


def routing_of(row: Row) -> str:
    """Return how a row's tokens find their experts, as `Model.routing`."""
    is_even = (
        EVEN_ROUTING.search(row.routing)
        if row.routing
        else BENCHMARKS.search(row.source + row.framework)
    )
    return "uniform" if row.experts and is_even else "learned"


def _shape(row: Row) -> tuple[int, int]:
    """Return layers and hidden size: stated, or of 12 layers hidden^2 parameters (arXiv 2104.04473,
    equation 2).
    """
    missing = [name for name in ("layers", "hidden") if not _is_count(getattr(row, name))]
    if not missing:
        return int(row.layers), int(row.hidden)
    if not 0 < row.n_params_b < math.inf:
        raise ValueError(f"no {', '.join(missing)} and no n_params_b")
    parameters = row.n_params_b * 1e9
    width = (parameters * HIDDEN_PER_LAYER / 12) ** (1 / 3)
    hidden = max(HEAD_WIDTH, round(width / HEAD_WIDTH) * HEAD_WIDTH)
    return max(1, round(parameters / (12 * hidden**2))), hidden


def is_fused(row: Row) -> bool:
    """Return whether a row's attention is fused: as it says, else outside GPT models and where
    sequences are long.
    """
    kernel = row.attention_kernel.lower()
    if FUSED_ATTENTION.search(kernel):
        return True
    return not UNFUSED_ATTENTION.search(kernel) and (row.seq >= LONG_SEQUENCE or not row.is_gpt)


@cache
def _software(
    code: TrainingCode, kernel: str, experts: tuple[str, str, str], *, under_deepspeed: bool
) -> SoftwareSettings:
    """Return a code with the kernels named as in "flash_attention2 + RMS kernel"; it stays as it is
    where none is.

    Under DeepSpeed, Megatron's code keeps its kernels. `experts` are the dispatcher, whether it
    overlaps, and graphs.
    """
    dispatcher, overlap, graphs = experts
    found = {"dispatcher": DISPATCHERS.get(dispatcher), "dispatch_overlap": OVERLAPS.get(overlap)}
    found["cuda_graphs"] = GRAPHS.get(graphs, "layers") if graphs else None
    traits: dict[str, Any] = {key: value for key, value in found.items() if value is not None}
    if version := FLASH_VERSION.search(kernel):
        traits["attention"] = f"flash-{min(int(version[1]), max(FLASH_SPEED))}"
    elif UNFUSED_ATTENTION.search(kernel) and not FUSED_ATTENTION.search(kernel):
        traits["attention"] = "fused-softmax" if "softmax" in kernel else "eager"
    if "rms" in kernel:
        traits["norm"] = "fused"
    if under_deepspeed and code in (MEGATRON, MEGATRON_GPT):
        gradients = "fp32" if code.gradients.wide else "16-bit"
        traits |= {
            "activation": code.kernels.gate,
            "rotary": code.kernels.rotary,
            "dropout": code.kernels.dropout,
            "gradients": gradients,
        }
        code = MEGATRON_DEEPSPEED
    return SoftwareSettings(code=code.name, **traits)


def software_of(row: Row) -> SoftwareSettings:
    """Return the training code a row was measured with, with the kernels that it names.

    It is the row's own `training_code`, else that of its `framework`, of its source, or of its
    model: Megatron-LM's, a GPT's in fp16 the earlier one. A framework that is none of these, also
    one that a note names, is an unknown code.
    """
    name, source = row.model.lower(), row.source.lower()
    is_earlier = name.startswith(("gpt", "megatron", "turing")) and row.precision != "bf16"
    code = LLM_FOUNDRY if name.startswith("mpt") else MEGATRON_GPT if is_earlier else MEGATRON
    code = UNKNOWN if OTHER_FRAMEWORK.search(row.note) else code
    code = next((CODES[named] for sign, named in CODE_OF_SOURCE.items() if sign in source), code)
    if framework := row.framework.lower():
        code = next(
            (CODES[named] for sign, named in CODE_OF_FRAMEWORK.items() if sign in framework),
            UNKNOWN,
        )
    if code.name == "nemo" and PERFORMANCE.search(row.source + row.note):
        code = CODES["nemo-benchmark"]
    code = CODES.get(row.training_code.lower(), UNKNOWN) if row.training_code else code
    under_deepspeed = (
        not row.training_code and UNDER_DEEPSPEED.search(row.source + row.note) is not None
    )
    experts = (row.dispatcher.lower(), row.ep_overlap, row.cuda_graph.lower())
    return _software(code, row.attention_kernel.lower(), experts, under_deepspeed=under_deepspeed)


def layers_before_mtp(layers: int, stages: int, mtp_layers: int) -> tuple[int, ...]:
    """Return the layers of stages of which the last has the MTP layers, as NVIDIA lays out
    DeepSeek-V3.

    Its head counts as two layers and each MTP layer as one, where so many are at hand
    (NVIDIA-NeMo/Megatron-Bridge, `recipes/deepseek/h100/deepseek_v3.py`).
    """
    besides = mtp_layers + 2
    *others, last = even_layers(layers + besides, stages)
    return (*others, last - besides) if last > besides else even_layers(layers, stages)


def recipe_of(row: Row, layers: int) -> Recipe:
    """Return the recipe of a completed row; raises ValueError for an impossible one, and for one
    that recomputed other parts than selective recompute of any trainer does.
    """
    if modules := set(row.recompute_modules.split()) - {"core_attn"}:
        raise ValueError(f"recompute of {', '.join(sorted(modules))} alone is no choice of recipes")
    if row.pp == 1:
        row.vpp = 1.0
    row.fill(vpp=1.0)
    devices, replicas = _count(row, "gpus"), _count(row, "dp")
    counts: dict[str, Any] = {
        name: _count(row, column) for name, column in schema.OF_RECIPES.items()
    }
    if impossible := schema.why_impossible(row, layers):
        raise ValueError(impossible)
    fp8 = "tensorwise" if row.fp8 == "default" else row.fp8
    if fp8 not in DIMENSIONS["fp8"].values:
        raise ValueError(f"fp8 {fp8} is no choice of recipes")
    if row.mtp_layers and row.pp > 1:
        stages = round(row.pp * row.vpp)
        laid_out = layers_before_mtp(layers, stages, round(row.mtp_layers))
        counts["layers_per_stage"] = () if laid_out == even_layers(layers, stages) else laid_out
    return Recipe(
        devices=devices,
        schedule="none" if row.pp == 1 else "1f1b" if row.vpp == 1 else "interleaved-1f1b",
        sharding=Sharding.named(
            f"zero-{row.zero:g}" if row.zero > 0 else "none", replicas * round(row.cp)
        ),
        recompute=row.recompute,
        sequence_parallel=row.seq_parallel == 1 and row.tp > 1,
        fp8=fp8,
        **counts,
    )


def outcome_of(row: Row, recipe: Recipe, problem: Problem) -> Outcome:
    """Return the outcome that a row states (a missing peak is 0); raises ValueError for none or an
    impossible one.
    """
    for kind, words in FAILURES.items():
        if row.status in words:
            return Failure(kind=kind, message=f"the table says {row.status}")
    seconds = row.step_time_s
    if row.status != "ok":
        raise ValueError(f"status {row.status or 'unknown'}")
    if not _is_given(seconds):
        raise ValueError(f"step time {seconds:g} s")
    peak = row.peak_mem_gb if _is_given(row.peak_mem_gb) else 0.0
    measured = measured_steps(
        recipe,
        problem,
        (seconds,),
        peak_memory_bytes=(int(peak * 2**30),),
        node_seconds=seconds * nodes_used(recipe, problem),
    )
    refuse_unstorable(measured)
    return measured


def _speed(outcome: Outcome) -> float:
    return outcome.tokens_per_s if isinstance(outcome, Measurement) else 0.0


def _is_given(value: float) -> bool:
    return 0 < value < math.inf


def _is_count(value: float) -> bool:
    return 1 <= value < math.inf


def _count(row: Row, name: str) -> int:
    value: float = getattr(row, name)
    if math.isnan(value):
        raise ValueError(f"no {name}")
    if not _is_count(value) or abs(value - round(value)) > schema.BATCH_TOLERANCE * value:
        raise ValueError(f"{name} is not a whole number of at least 1")
    return round(value)


def preset_of(hardware: str) -> str | None:
    """Return the preset for a device's name, or None."""
    name = hardware.lower()
    if OTHER_BOARDS.search(name):
        return None
    return next(
        (
            preset
            for word, preset in PRESETS.items()
            if re.search(rf"(?<![a-z0-9]){word}(?![0-9])", name)
        ),
        None,
    )


def is_elsewhere(hardware: str, cluster: Cluster) -> bool:
    """Return whether the hardware is that of a preset with another device; memory sizes of one chip
    may differ.
    """
    return preset_of(hardware) not in (None, preset_of(cluster.device))


def machine_of(row: Row) -> Cluster:
    """Return one node that a row was measured on: its own figures, its device's name, then the
    preset's.
    """
    preset = preset_of(row.hardware)
    # Without a preset only the row's own figures are known.
    unknown = {
        "name": row.hardware, "device": row.hardware, "backend": "cuda", "nodes": 1, "links": {},
        "peak_tflops": {},
        "devices_per_node": DEVICES_PER_NODE, "memory_gib_per_device": ASSUMED_MEMORY_GIB,
        "source": "the table's row",
    }  # fmt: skip
    figures: dict[str, Any] = cluster_preset(preset) if preset else unknown
    stated = MEMORY.search(row.hardware)
    if stated and abs(float(stated[1]) / figures["memory_gib_per_device"] - 1) > SAME_MEMORY:
        figures |= _OTHER_SIZES.get((str(figures["device"]), stated[1]), {})
        figures["memory_gib_per_device"] = float(stated[1])
    full, limit = FULL_POWER_W.get(str(figures["device"])), POWER.search(row.hardware)
    if full and limit and 0 < float(limit[1]) < full:
        # Power grows with the clock times the square of the voltage, which grows with the clock.
        figures["matmul_share"] *= (float(limit[1]) / full) ** (1 / 3)
    own = {name: value for name in schema.MACHINE_NUMBERS if _is_given(value := getattr(row, name))}
    links = figures["links"] | {name: own.pop(name) for name in LINKS if name in own}
    peaks = (
        {row.precision or "bf16": own.pop("peak_tflops")}
        if "peak_tflops" in own
        else figures["peak_tflops"]
    )
    counts = {key: int(own.pop(name)) for name, key in COUNTED.items() if name in own}
    return Cluster(
        **figures | own | counts | {"links": Links(**links), "peak_tflops": ByPrecision(**peaks)}
    )
