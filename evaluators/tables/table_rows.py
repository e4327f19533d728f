"""Rows of a table of measured configurations as problems, recipes and outcomes.

The form is that of `analytic.tables`: one configuration a row. What the analytic model can do without, a search can
too: a row needs devices, a micro-batch, a batch and what tells the model's size. A problem is the rows of one model,
sequence length, global batch, hardware and number of devices, and of one attention kernel and precision, since a
recipe names neither. A row that cannot become a recipe is left out and counted with the reason.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from frontrunner.evaluators.analytic.software import Software
from frontrunner.evaluators.analytic.tables import BATCH_TOLERANCE, GPT2_VOCABULARY, completed, numbers, software_of
from frontrunner.evaluators.probe.measure import rates, tokens_per_step
from frontrunner.evaluators.tables.csv_file import csv_bytes, csv_table
from frontrunner.evaluators.tables.table_shapes import cluster_of, model_of
from frontrunner.results.outcome import Failure, FailureKind, Measurement, Outcome, refuse_unstorable
from frontrunner.spaces.cluster import PRECISIONS
from frontrunner.spaces.errors import InvalidInput
from frontrunner.spaces.problem import GlobalBatch, Problem
from frontrunner.spaces.recipe import RECOMPUTES, Recipe
from frontrunner.spaces.sharding import Sharding

PROBLEM_COLUMNS = ("model", "seq", "gbs", "hardware", "gpus", "attention_kernel", "precision")
"""What the rows of one problem have in common."""
MEASURED = frozenset({"ok", "success", "succeeded", "done", "completed", "finished", "measured"})
FAILURES = {
    "oom": FailureKind.OUT_OF_MEMORY,
    "out of memory": FailureKind.OUT_OF_MEMORY,
    "out-of-memory": FailureKind.OUT_OF_MEMORY,
    "out_of_memory": FailureKind.OUT_OF_MEMORY,
    "fail": FailureKind.CRASHED,
    "failed": FailureKind.CRASHED,
    "failure": FailureKind.CRASHED,
    "error": FailureKind.CRASHED,
    "crash": FailureKind.CRASHED,
    "crashed": FailureKind.CRASHED,
    "hang": FailureKind.HUNG,
    "hung": FailureKind.HUNG,
    "timeout": FailureKind.TOO_SLOW,
    "too-slow": FailureKind.TOO_SLOW,
    "nan": FailureKind.NOT_FINITE,
    "not-finite": FailureKind.NOT_FINITE,
}
"""A row's status, in lower case -> why it has no measurement."""
RECOMPUTE_NAMES = {"": "none", "no": "none", "off": "none", "false": "none", "true": "full", "yes": "full"}


@dataclass(frozen=True, kw_only=True)
class TableRow:
    """One row that became a recipe: its place in the file, counted from 0, and its outcome."""

    number: int
    recipe: Recipe
    outcome: Outcome


@dataclass(frozen=True, kw_only=True)
class TableProblem:
    """The rows of one problem, in the file's order; `software` is the training code, as far as the table tells."""

    name: str
    problem: Problem
    software: Software
    rows: tuple[TableRow, ...]

    def outcomes(self) -> dict[Recipe, Outcome]:
        """Each recipe with its outcome; where rows repeat the fastest counts, and a failure only where all failed."""
        found: dict[Recipe, Outcome] = {}
        for row in self.rows:
            known = found.get(row.recipe)
            if known is None or _speed(row.outcome) > _speed(known):
                found[row.recipe] = row.outcome
        return found


@dataclass(frozen=True, kw_only=True)
class TableProblems:
    """What a table holds: its problems, and how many rows were left out, by reason."""

    name: str
    problems: tuple[TableProblem, ...]
    left_out: Mapping[str, int]


def read_problems(path: Path) -> TableProblems:
    """Every problem of a table, of however few rows.

    Raises as `csv_table` and `csv_bytes` do where the file cannot be read or is not a table.
    """
    return problems_of(csv_table(path, csv_bytes(path)), path.stem)


def problems_of(found: pd.DataFrame, name: str) -> TableProblems:
    """The problems of rows in the table form, whatever columns are missing."""
    rows, left_out = _with_defaults(found), Counter[str]()
    problems = []
    for key, part in rows.groupby([rows[column] for column in PROBLEM_COLUMNS], dropna=False, sort=False):
        made = _problem(part, " | ".join(_word(value) for value in key), left_out)
        if made is not None:
            problems.append(made)
    return TableProblems(name=name, problems=tuple(_with_short_names(problems)), left_out=dict(left_out))


def _with_defaults(found: pd.DataFrame) -> pd.DataFrame:
    """Degrees that the table does not name are 1, and so is what follows from the others."""
    rows = found.rename(columns=str).copy()
    for column in ("tp", "pp"):
        rows[column] = numbers(rows[column]).fillna(1) if column in rows else 1.0
    rows = completed(rows)
    rows["mbs"] = rows.mbs.fillna(rows.gbs / (rows.dp * rows.gas))
    rows["gas"] = rows.gas.fillna(rows.gbs / (rows.mbs * rows.dp))
    rows["vocab"] = rows.vocab.fillna(GPT2_VOCABULARY)
    rows["recompute"] = rows.recompute.replace(RECOMPUTE_NAMES)
    return rows


def _problem(part: pd.DataFrame, name: str, left_out: Counter[str]) -> TableProblem | None:
    """The problem of rows that share `PROBLEM_COLUMNS`, or None where no row can become a recipe."""
    made: list[TableRow] = []
    told = ((_problem_or_reason(row), row) for _, row in part.iterrows())
    problem, row_of = next(((one, row) for one, row in told if isinstance(one, Problem)), (None, part.iloc[0]))
    if problem is None:
        left_out[str(_problem_or_reason(row_of))] += len(part)
        return None
    for number, row in part.iterrows():
        try:
            recipe = recipe_of(row, problem.model.layers)
            made.append(TableRow(number=int(str(number)), recipe=recipe, outcome=outcome_of(row, recipe, problem)))
        except (InvalidInput, ValueError, OverflowError) as error:
            left_out[str(error)] += 1
    if not made:
        return None
    return TableProblem(name=name, problem=problem, software=software_of(row_of), rows=tuple(made))


def _problem_or_reason(row: pd.Series) -> Problem | str:
    try:
        return _problem_of(row)
    except (InvalidInput, ValueError, OverflowError) as error:
        return str(error)


def _problem_of(row: pd.Series) -> Problem:
    """The problem of a row; raises `InvalidInput` or ValueError where the row does not tell it."""
    sequence, batch = _count(row, "seq"), _count(row, "gbs")
    return Problem(
        model=model_of(row),
        cluster=cluster_of(row),
        sequence_length=sequence,
        global_batch=GlobalBatch(minimum=batch, maximum=batch),
        precision=row.precision if row.precision in PRECISIONS else "bf16",
    )


def recipe_of(row: pd.Series, layers: int) -> Recipe:
    """The recipe of a completed row; raises `InvalidInput` or ValueError for one that there cannot be."""
    devices, tp, pp, dp, cp = (_count(row, name) for name in ("gpus", "tp", "pp", "dp", "cp"))
    micro_batch, accumulation = _count(row, "mbs"), _count(row, "gas")
    virtual = 1 if pd.isna(row.vpp) or pp == 1 else _count(row, "vpp")
    if tp * pp * cp * dp != devices:
        raise ValueError("tp x pp x cp x dp is not the number of devices")
    if abs(micro_batch * accumulation * dp / row.gbs - 1) > BATCH_TOLERANCE:
        raise ValueError("micro-batch x accumulation x dp is not the global batch")
    if pp * virtual > layers:
        raise ValueError("more pipeline stages than layers")
    if row.recompute not in RECOMPUTES:
        raise ValueError(f"recompute {row.recompute} is unknown")
    return Recipe(
        devices=devices,
        tensor_parallel=tp,
        pipeline_parallel=pp,
        context_parallel=cp,
        virtual_stages=virtual,
        schedule="none" if pp == 1 else "1f1b" if virtual == 1 else "interleaved-1f1b",
        micro_batch_seqs=micro_batch,
        accumulation=accumulation,
        sharding=_sharding(row, dp * cp),
        recompute=row.recompute,
        sequence_parallel=bool(row.seq_parallel == 1) and tp > 1,
    )


def _sharding(row: pd.Series, copies: int) -> Sharding:
    stage = 0 if pd.isna(row.zero) else row.zero
    if stage not in (0, 1, 2, 3):
        raise ValueError(f"ZeRO stage {stage:g} does not exist")
    return Sharding.named("none" if stage == 0 else f"zero-{stage:g}", copies)


def outcome_of(row: pd.Series, recipe: Recipe, problem: Problem) -> Outcome:
    """What the row says became of its recipe; a peak that it does not state is 0.

    Raises ValueError for a row that says nothing, or what cannot be true.
    """
    status = str(row.status)
    kind = FAILURES.get(status)
    if kind is not None:
        return Failure(kind=kind, message=f"the table says {status}")
    if status not in MEASURED:
        raise ValueError(f"status {status or 'unknown'}")
    seconds = float(row.step_time_s)
    if not (math.isfinite(seconds) and seconds > 0):
        raise ValueError(f"step time {seconds:g} s")
    found = rates(recipe, problem, seconds)
    peak = float(row.peak_mem_gb) if row.peak_mem_gb > 0 and math.isfinite(row.peak_mem_gb) else 0.0
    measured = Measurement(
        step_times_s=(seconds,),
        tokens_per_step=tokens_per_step(recipe, problem),
        tokens_per_s=found["tokens_per_s"] or 0.0,
        model_tflops_per_device=found["model_tflops_per_device"] or 0.0,
        hardware_tflops_per_device=found["hardware_tflops_per_device"] or 0.0,
        mfu=found["mfu"],
        peak_memory_bytes=(int(peak * 2**30),) * recipe.devices,
        losses=(),
        node_seconds=seconds * max(1, math.ceil(recipe.devices / problem.cluster.devices_per_node)),
        build_time_s=0.0,
        first_step_time_s=seconds,
    )
    refuse_unstorable(measured)
    return measured


def _count(row: pd.Series, name: str) -> int:
    """A whole number of at least 1; raises ValueError for anything else."""
    value = float(row[name])
    if pd.isna(value):
        raise ValueError(f"no {name}")
    if not math.isfinite(value) or value < 1 or abs(value - round(value)) > BATCH_TOLERANCE * value:
        raise ValueError(f"{name} is not a whole number of at least 1")
    return round(value)


def _with_short_names(problems: list[TableProblem]) -> list[TableProblem]:
    """Problems without the kernel and the precision in their names, where that leaves the names different."""
    short = [" ".join(problem.name.split(" | ")[:5]) for problem in problems]
    twice = {name for name, count in Counter(short).items() if count > 1}
    return [
        TableProblem(
            name=problem.name.replace(" | ", " ") if name in twice else name,
            problem=problem.problem,
            software=problem.software,
            rows=problem.rows,
        )
        for problem, name in zip(problems, short, strict=True)
    ]


def _word(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _speed(outcome: Outcome) -> float:
    return outcome.tokens_per_s if isinstance(outcome, Measurement) else 0.0
