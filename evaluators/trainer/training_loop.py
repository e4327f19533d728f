"""Train mode: a full training run with a learning-rate schedule, evaluation, metrics and checkpoints.

Started again on the same run folder, it continues from the newest complete checkpoint: each step's data and learning
rate follow from its number alone, so the losses are those of a run that was never interrupted.
"""

import csv
import math
from collections import deque
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, Protocol

from frontrunner.evaluators.trainer.checkpoint import Checkpoints
from frontrunner.evaluators.trainer.files import write_json
from frontrunner.evaluators.trainer.job import Train
from frontrunner.evaluators.trainer.run_context import (
    RESULT_VERSION,
    RunContext,
    describe_memory,
    describe_software,
    finite_or_none,
    gather_peak_memory,
)

COLUMNS = ("step", "loss", "learning_rate", "gradient_norm", "step_time_s", "tokens_per_s", "evaluation_loss")

Row = dict[str, float | None]


class Metrics(Protocol):
    """Where rows go. A row has the keys of COLUMNS; None is a value that this step does not have."""

    def write(self, row: Row) -> None:
        """Store one step's row; it is on its way to disk when this returns."""
        ...

    def close(self) -> None:
        """Finish the files."""
        ...


def open_metrics(kind: Literal["csv", "tensorboard"], folder: Path, *, resumed_step: int) -> Metrics:
    """Metrics in `folder`; rows of steps after `resumed_step`, left by a run that was killed, are dropped.

    Raises:
        ValueError: TensorBoard is wanted and not installed.
    """
    if kind == "csv":
        return CsvMetrics(folder / "metrics.csv", resumed_step=resumed_step)
    return TensorBoardMetrics(folder / "tensorboard", resumed_step=resumed_step)


class CsvMetrics:
    """`metrics.csv`, with a header."""

    def __init__(self, path: Path, *, resumed_step: int) -> None:
        kept = _rows_until(path, resumed_step)
        temporary = path.with_name(f".{path.name}")
        with temporary.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(kept)
        temporary.replace(path)
        self._file = path.open("a", newline="", encoding="utf-8")
        self._writer = csv.DictWriter(self._file, COLUMNS)

    def write(self, row: Row) -> None:
        """See Metrics."""
        self._writer.writerow(row)
        self._file.flush()

    def close(self) -> None:
        """See Metrics."""
        self._file.close()


class TensorBoardMetrics:
    """Event files; each column is a scalar of its own."""

    def __init__(self, folder: Path, *, resumed_step: int) -> None:
        try:
            module: Any = import_module("torch.utils.tensorboard")
        except ImportError as error:
            raise ValueError("metrics for TensorBoard need it installed: pip install tensorboard") from error
        self._writer = module.SummaryWriter(str(folder), purge_step=resumed_step + 1)

    def write(self, row: Row) -> None:
        """See Metrics."""
        for name, value in row.items():
            if name != "step" and value is not None:
                self._writer.add_scalar(name, value, row["step"])
        self._writer.flush()

    def close(self) -> None:
        """See Metrics."""
        self._writer.close()


def _rows_until(path: Path, last_step: int) -> list[dict[str, str]]:
    """Return the whole rows of an earlier run up to `last_step`; a half-written last line is dropped."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if None not in row.values()]
    return [row for row in rows if row["step"].isdigit() and int(row["step"]) <= last_step]


_REPORTED_STEP_TIMES = 200


def learning_rate_at(step: int, *, peak: float, train: Train) -> float:
    """Return the rate of `step` (from 1): linear up to `peak` over the warm-up, then half a cosine down.

    Step `train.steps` has exactly peak * final_learning_rate_fraction.
    """
    if step <= train.warm_up_steps:
        return peak * step / train.warm_up_steps
    progress = (step - train.warm_up_steps) / max(1, train.steps - train.warm_up_steps)
    final = train.final_learning_rate_fraction
    return peak * (final + (1 - final) * 0.5 * (1 + math.cos(math.pi * min(1.0, progress))))


def run_training(context: RunContext, train: Train) -> None:
    """Train from the newest checkpoint to `train.steps` and write `result.json` on rank 0.

    Raises:
        ValueError: TensorBoard is wanted and not installed.
    """
    checkpoints = Checkpoints(
        context.folder / "checkpoints", keep=train.keep_checkpoints, rank=context.rank, device=context.device
    )
    resumed_step = checkpoints.load_latest(context.stepper)
    if resumed_step:
        context.log.write("resumed", step=resumed_step)
    metrics = open_metrics(train.metrics, context.folder, resumed_step=resumed_step) if context.rank == 0 else None
    run = _Run(context, train, checkpoints, metrics)
    try:
        status = run.steps_from(resumed_step + 1)
    finally:
        if metrics is not None:
            metrics.close()
    result: dict[str, Any] = {
        "version": RESULT_VERSION,
        "status": status,
        "resumed_step": resumed_step,
        **run.describe(),
        "build_time_s": context.build_time_s,
        **describe_memory(gather_peak_memory(context.device)),
        **describe_software(context.device),
    }
    if context.rank == 0:
        write_json(context.folder / "result.json", result)


class _Run:
    """The steps of one start of a training run, and its result."""

    def __init__(self, context: RunContext, train: Train, checkpoints: Checkpoints, metrics: Metrics | None) -> None:
        self._context = context
        self._train = train
        self._checkpoints = checkpoints
        self._metrics = metrics
        self._times: deque[float] = deque(maxlen=_REPORTED_STEP_TIMES)
        self._evaluation_losses: dict[int, float | None] = {}
        self._overflowed_steps = 0
        self._final_step = 0
        self._final_loss: float | None = None

    def steps_from(self, first: int) -> str:
        """Train on steps `first` to the last; "trained", or "not-finite" as soon as a loss is not."""
        self._final_step = first - 1
        for step in range(first, self._train.steps + 1):
            if not self._step(step):
                return "not-finite"
            if self._is_due(step, self._train.checkpoint_every_steps):
                self._checkpoints.save(self._context.stepper, step)
                self._context.log.write("checkpoint", step=step)
        return "trained"

    def describe(self) -> dict[str, Any]:
        """Return the result's keys about the steps; evaluations are those since this start, by step."""
        checkpoint = self._checkpoints.path_of(self._final_step)
        return {
            "final_step": self._final_step,
            "final_loss": self._final_loss,
            "losses_path": str(self._context.folder / "progress.jsonl"),
            "evaluation_losses": [[step, loss] for step, loss in self._evaluation_losses.items()],
            "overflowed_steps": self._overflowed_steps,
            "step_times_s": list(self._times),
            "checkpoint": str(checkpoint) if checkpoint.exists() else None,
        }

    def _step(self, step: int) -> bool:
        """Train on one step and write its row; whether its loss was finite."""
        context = self._context
        rate = learning_rate_at(step, peak=context.job.optimizer.learning_rate, train=self._train)
        context.stepper.set_learning_rate(rate)
        outcome, seconds = context.timed_step(step)
        self._times.append(seconds)
        self._overflowed_steps += outcome.overflowed
        self._final_step, self._final_loss = step, finite_or_none(outcome.loss)
        evaluation_loss = self._evaluate(step) if outcome.is_finite else None
        if self._metrics is not None:
            self._metrics.write(
                {
                    "step": step,
                    "loss": self._final_loss,
                    "learning_rate": rate,
                    "gradient_norm": finite_or_none(outcome.gradient_norm),
                    "step_time_s": seconds,
                    "tokens_per_s": context.tokens_per_step / seconds,
                    "evaluation_loss": evaluation_loss,
                }
            )
        return outcome.is_finite

    def _evaluate(self, step: int) -> float | None:
        if self._train.evaluation_batches == 0 or not self._is_due(step, self._train.evaluation_every_steps):
            return None
        loss = finite_or_none(self._context.stepper.evaluate(self._train.evaluation_batches))
        self._evaluation_losses[step] = loss
        self._context.log.write("evaluation", step=step, loss=loss)
        return loss

    def _is_due(self, step: int, every: int) -> bool:
        """Return whether what is done every `every` steps (0: never) and after the last is due after `step`."""
        return every > 0 and (step % every == 0 or step == self._train.steps)
