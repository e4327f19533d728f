"""Rows of a table of measured configurations as problems, recipes and outcomes.

A search can do without what the formulas need: a row needs devices, a micro-batch, a batch and the model's size. A
problem is the rows of one model, sequence length, global batch, hardware and number of devices, and of one attention
kernel and precision, since a recipe names neither. A row that cannot become a recipe is left out and counted with the
reason.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from frontrunner.evaluators.analytic.software import Software
from frontrunner.evaluators.probe.measure import measured_steps, nodes_used
from frontrunner.evaluators.tables.hardware import cluster_of
from frontrunner.evaluators.tables.schema import (
    BATCH_TOLERANCE,
    GPT2_VOCABULARY,
    SWIGLU_WIDTH,
    Refusals,
    Row,
    complete,
    over,
    read_csv,
    rows_of,
)
from frontrunner.evaluators.tables.workloads import is_fused, software_of
from frontrunner.results.outcome import Failure, FailureKind, Measurement, Outcome, refuse_unstorable
from frontrunner.spaces.cluster import PRECISIONS
from frontrunner.spaces.errors import InvalidInput
from frontrunner.spaces.model import Model
from frontrunner.spaces.problem import GlobalBatch, Problem
from frontrunner.spaces.recipe import RECOMPUTES, Recipe
from frontrunner.spaces.sharding import Sharding

PROBLEM_COLUMNS = ("model", "seq", "gbs", "hardware", "gpus", "attention_kernel", "precision")
"""What the rows of one problem have in common."""
MEASURED = frozenset({"ok", "success", "succeeded", "done", "completed", "finished", "measured"})
FAILURES = {
    FailureKind.OUT_OF_MEMORY: ("oom", "out of memory", "out-of-memory", "out_of_memory"),
    FailureKind.CRASHED: ("fail", "failed", "failure", "error", "crash", "crashed"),
    FailureKind.HUNG: ("hang", "hung"),
    FailureKind.TOO_SLOW: ("timeout", "too-slow"),
    FailureKind.NOT_FINITE: ("nan", "not-finite"),
}
"""Why a row has no measurement, and its words for that in the status column, in lower case."""
RECOMPUTE_NAMES = {"": "none", "no": "none", "off": "none", "false": "none", "true": "full", "yes": "full"}
HIDDEN_PER_LAYER = 128
"""Hidden size over layers of GPT-3 175B (arXiv 2005.14165) and of Llama 7B (arXiv 2302.13971): assumed of a model of
which only the parameters are known."""
HEAD_WIDTH = 128
"""Of the same models."""


@dataclass(frozen=True, kw_only=True)
class TableRow:
    """A row that became a recipe: its place in the file, counted from 0, and its outcome."""

    number: int
    recipe: Recipe
    outcome: Outcome


@dataclass(frozen=True, kw_only=True)
class TableProblem:
    """The rows of one problem, in the file's order; `software` is the training code, as far as the table states it."""

    name: str
    problem: Problem
    software: Software
    rows: tuple[TableRow, ...]

    def outcomes(self) -> dict[Recipe, Outcome]:
        """Return each recipe's outcome; of repeats the fastest counts, and a failure only where all failed."""
        found: dict[Recipe, Outcome] = {}
        for row in self.rows:
            known = found.get(row.recipe)
            if known is None or _speed(row.outcome) > _speed(known):
                found[row.recipe] = row.outcome
        return found


@dataclass(frozen=True, kw_only=True)
class TableProblems:
    """The problems of a table, and how many rows were left out, by reason."""

    name: str
    problems: tuple[TableProblem, ...]
    left_out: Mapping[str, int]


def read_problems(path: Path) -> TableProblems:
    """Read every problem of a table, of however few rows; raises as `read_csv` does."""
    left_out = Refusals()
    problems = problems_of(rows_of(read_csv(path)), left_out)
    return TableProblems(name=path.stem, problems=tuple(problems), left_out=left_out.counts)


def problems_of(rows: Iterable[Row], left_out: Refusals) -> list[TableProblem]:
    """Return the problems of rows, whatever columns are missing; rows that cannot become a recipe are left out."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        row.fill(tp=1.0, pp=1.0)  # degrees that the table does not name are 1
        complete(row)
        row.fill(mbs=over(row.gbs, row.dp * row.gas))
        row.fill(gas=over(row.gbs, row.mbs * row.dp), vocab=GPT2_VOCABULARY)
        row.recompute = RECOMPUTE_NAMES.get(row.recompute, row.recompute)
        groups.setdefault(tuple(str(getattr(row, column)) for column in PROBLEM_COLUMNS), []).append(row)
    found = [made for group in groups.values() if (made := _problem(group, left_out))]
    short = [" ".join(problem.name.split(" | ")[:5]) for problem in found]
    # The kernel and the precision are in the name only where problems differ in nothing else.
    names = [
        name if short.count(name) == 1 else one.name.replace(" | ", " ") for one, name in zip(found, short, strict=True)
    ]
    return [replace(problem, name=name) for problem, name in zip(found, names, strict=True)]


def _word(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _problem(rows: list[Row], left_out: Refusals) -> TableProblem | None:
    """Return the problem of rows that share `PROBLEM_COLUMNS`, or None where no row can become a recipe."""
    problem, first, reason = None, rows[0], ""
    for row in rows:
        try:
            problem, first = _problem_of(row), row
            break
        except (InvalidInput, ValueError, OverflowError) as error:
            reason = reason or str(error)
    made: list[TableRow] = []
    for row in rows:
        try:
            if problem is None:
                raise ValueError(reason)
            recipe = recipe_of(row, problem.model.layers)
            made.append(TableRow(number=row.number - 1, recipe=recipe, outcome=outcome_of(row, recipe, problem)))
        except (InvalidInput, ValueError, OverflowError) as error:
            left_out.add(str(error), row.number)
    if problem is None or not made:
        return None
    name = " | ".join(_word(getattr(first, column)) for column in PROBLEM_COLUMNS)
    return TableProblem(name=name, problem=problem, software=software_of(first), rows=tuple(made))


def _problem_of(row: Row) -> Problem:
    """Return the problem of a row; raises `InvalidInput` or ValueError where the row does not state it."""
    sequence, batch = _count(row, "seq"), _count(row, "gbs")
    return Problem(
        model=model_of(row),
        cluster=cluster_of(row),
        sequence_length=sequence,
        global_batch=GlobalBatch(minimum=batch, maximum=batch),
        precision=row.precision if row.precision in PRECISIONS else "bf16",
    )


def model_of(row: Row) -> Model:
    """Return the transformer of a completed row; raises ValueError where it states neither shape nor parameters."""
    layers, hidden = _shape(row)
    heads = int(row.heads) if _is_count(row.heads) and hidden % int(row.heads) == 0 else max(1, hidden // HEAD_WIDTH)
    kv_heads = int(row.kv_heads) if _is_count(row.kv_heads) else heads
    gpt = row.two_matrices
    width = row.ffn_hidden if _is_count(row.ffn_hidden) else (4 if gpt else SWIGLU_WIDTH) * hidden
    return Model(
        name=row.model or "unnamed",
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads if heads % kv_heads == 0 else heads,
        ffn_hidden=max(1, round(width)),
        vocabulary=max(2, int(row.vocab)),
        positions="learned" if gpt else "rotary",
        max_positions=int(row.seq) if gpt and _is_count(row.seq) else None,
        activation="gelu" if gpt else "swiglu",
        norm="layernorm" if gpt else "rmsnorm",
        tied_embeddings=gpt,
        attention="flash" if is_fused(row) else "math",
    )


def _shape(row: Row) -> tuple[int, int]:
    """Return layers and hidden size: stated, or those of a model of common proportions with as many parameters.

    Its parameters are 12 layers hidden^2 (arXiv 2104.04473, equation 2, without the embedding).
    """
    if _is_count(row.layers) and _is_count(row.hidden):
        return int(row.layers), int(row.hidden)
    if not 0 < row.n_params_b < math.inf:
        missing = [name for name in ("layers", "hidden") if not _is_count(getattr(row, name))]
        raise ValueError(f"no {', '.join(missing)} and no n_params_b")
    parameters = row.n_params_b * 1e9
    width = (parameters * HIDDEN_PER_LAYER / 12) ** (1 / 3)
    hidden = max(HEAD_WIDTH, round(width / HEAD_WIDTH) * HEAD_WIDTH)
    return max(1, round(parameters / (12 * hidden**2))), hidden


def recipe_of(row: Row, layers: int) -> Recipe:
    """Return the recipe of a completed row; raises `InvalidInput` or ValueError for an impossible one."""
    devices, tp, pp, dp, cp = (_count(row, name) for name in ("gpus", "tp", "pp", "dp", "cp"))
    micro_batch, accumulation = _count(row, "mbs"), _count(row, "gas")
    virtual = 1 if math.isnan(row.vpp) or pp == 1 else _count(row, "vpp")
    if tp * pp * cp * dp != devices:
        raise ValueError("tp x pp x cp x dp is not the number of devices")
    if abs(micro_batch * accumulation * dp / row.gbs - 1) > BATCH_TOLERANCE:
        raise ValueError("micro-batch x accumulation x dp is not the global batch")
    if pp * virtual > layers:
        raise ValueError("more pipeline stages than layers")
    if row.recompute not in RECOMPUTES:
        raise ValueError(f"recompute {row.recompute} is unknown")
    stage = 0.0 if math.isnan(row.zero) else row.zero
    if stage not in (0, 1, 2, 3):
        raise ValueError(f"ZeRO stage {stage:g} does not exist")
    return Recipe(
        devices=devices,
        tensor_parallel=tp,
        pipeline_parallel=pp,
        context_parallel=cp,
        virtual_stages=virtual,
        schedule="none" if pp == 1 else "1f1b" if virtual == 1 else "interleaved-1f1b",
        micro_batch_seqs=micro_batch,
        accumulation=accumulation,
        sharding=Sharding.named("none" if stage == 0 else f"zero-{stage:g}", dp * cp),
        recompute=row.recompute,
        sequence_parallel=row.seq_parallel == 1 and tp > 1,
    )


def outcome_of(row: Row, recipe: Recipe, problem: Problem) -> Outcome:
    """Return the outcome that a row states for its recipe; a peak that it does not state is 0.

    Raises ValueError for a row that states none, or an impossible one.
    """
    for kind, words in FAILURES.items():
        if row.status in words:
            return Failure(kind=kind, message=f"the table says {row.status}")
    if row.status not in MEASURED:
        raise ValueError(f"status {row.status or 'unknown'}")
    seconds = row.step_time_s
    if not 0 < seconds < math.inf:
        raise ValueError(f"step time {seconds:g} s")
    peak = row.peak_mem_gb if 0 < row.peak_mem_gb < math.inf else 0.0
    measured = measured_steps(
        recipe,
        problem,
        (seconds,),
        peak_memory_bytes=(int(peak * 2**30),) * recipe.devices,
        node_seconds=seconds * nodes_used(recipe, problem),
    )
    refuse_unstorable(measured)
    return measured


def _is_count(value: float) -> bool:
    return 1 <= value < math.inf


def _count(row: Row, name: str) -> int:
    """Return a whole number of at least 1; raises ValueError for anything else."""
    value: float = getattr(row, name)
    if math.isnan(value):
        raise ValueError(f"no {name}")
    if not _is_count(value) or abs(value - round(value)) > BATCH_TOLERANCE * value:
        raise ValueError(f"{name} is not a whole number of at least 1")
    return round(value)


def _speed(outcome: Outcome) -> float:
    return outcome.tokens_per_s if isinstance(outcome, Measurement) else 0.0
