"""Train mode: a full training run with a learning-rate schedule, evaluation, metrics and
checkpoints.

Started again on the same run folder, it continues from the newest complete checkpoint, with the
same losses. Once the file `stop` there is not empty, it stores a checkpoint and ends, with status
`stopped`.
"""

import csv
import hashlib
import math
import os
import shutil
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from frontrunner.evaluators.trainer.job import STOP, Train, complete_steps
from frontrunner.evaluators.trainer.optimizer import set_learning_rate
from frontrunner.evaluators.trainer.run import RunContext, StepOutcome
from frontrunner.spaces.document import finite_or_none

COLUMNS = (
    "step",
    "loss",
    "learning_rate",
    "gradient_norm",
    "step_time_s",
    "tokens_per_s",
    "evaluation_loss",
)
LOOK_S = 1.0
"""Between two looks at the file `stop`, as far as steps allow."""
_REPORTED_STEP_TIMES = 200


class CsvMetrics:
    """`metrics.csv` with the COLUMNS, without rows of steps after `resumed_step` that a killed run
    has left.
    """

    def __init__(self, folder: Path, *, resumed_step: int) -> None:
        self._path = folder / "metrics.csv"
        kept: list[dict[str, str]] = []
        if self._path.exists():
            with self._path.open(newline="", encoding="utf-8") as file:
                whole = (
                    row for row in csv.DictReader(file) if None not in row.values()
                )  # the last may be cut off
                kept = [
                    row
                    for row in whole
                    if row["step"].isdigit() and int(row["step"]) <= resumed_step
                ]
        with self._path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(kept)

    def write(self, row: dict[str, float | None]) -> None:
        """Store one step's row; None is a value that this step does not have."""
        with self._path.open("a", newline="", encoding="utf-8") as file:
            csv.DictWriter(file, COLUMNS).writerow(row)

    def close(self) -> None:
        """End the run's metrics."""


class TensorBoardMetrics:
    """Event files; each column is a scalar of its own. See CsvMetrics."""

    def __init__(self, folder: Path, *, resumed_step: int) -> None:
        module: Any = import_module("torch.utils.tensorboard")
        self._writer = module.SummaryWriter(
            str(folder / "tensorboard"), purge_step=resumed_step + 1
        )

    def write(self, row: dict[str, float | None]) -> None:
        """See CsvMetrics."""
        for name, value in row.items():
            if name != "step" and value is not None:
                self._writer.add_scalar(name, value, row["step"])
        self._writer.flush()

    def close(self) -> None:
        """See CsvMetrics."""
        self._writer.close()


class WandbMetrics:
    """A run of Weights & Biases, named after the folder, in the project of $WANDB_PROJECT. See
    CsvMetrics.

    The library's own variables say where to: WANDB_MODE=offline keeps it in the folder. Continued
    it is the same run, in which steps that are trained again, with the same values, stand twice.
    """

    def __init__(self, folder: Path, *, resumed_step: int) -> None:  # noqa: ARG002 - as the others
        module: Any = import_module("wandb")
        self._run = module.init(
            project=os.environ.get("WANDB_PROJECT", "frontrunner"),
            id=hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16],
            name=folder.resolve().name,
            dir=str(folder),
            resume="allow",
            settings=module.Settings(console="off", silent=True),
        )
        self._run.define_metric("*", step_metric="step")

    def write(self, row: dict[str, float | None]) -> None:
        """See CsvMetrics."""
        self._run.log({name: value for name, value in row.items() if value is not None})

    def close(self) -> None:
        """See CsvMetrics."""
        self._run.finish()


Metrics = CsvMetrics | TensorBoardMetrics | WandbMetrics
METRICS: dict[str, type[Metrics]] = {
    "csv": CsvMetrics,
    "tensorboard": TensorBoardMetrics,
    "wandb": WandbMetrics,
}


class Checkpoints:
    """Checkpoints by torch.distributed.checkpoint, the newest few kept; a folder without
    `.metadata` is none.

    The torch engine's can be loaded under another parallel form, the DeepSpeed engine's only under
    its own.
    """

    def __init__(self, context: RunContext, *, keep: int) -> None:
        self._folder = context.folder / "checkpoints"
        self._keep = keep
        self._context = context

    def path_of(self, step: int) -> Path:
        """Return where the checkpoint of `step` is."""
        return self._folder / f"step-{step:08d}"

    def save(self, step: int) -> None:
        """Store weights and optimizer states as they are after `step`; drop checkpoints beyond
        those to keep.
        """
        began = time.monotonic()
        stepper = self._context.stepper
        save(stepper.state() | stepper.layout_of_state(), checkpoint_id=self.path_of(step))
        if self._context.rank == 0:
            for old in complete_steps(self._folder)[: -self._keep]:
                shutil.rmtree(self.path_of(old))
        self._context.log.write("checkpoint", step=step, time_s=time.monotonic() - began)

    def load_latest(self) -> int:
        """Restore the newest complete checkpoint, and return its step; 0 where there is none."""
        steps = complete_steps(self._folder) if self._context.rank == 0 else []
        newest = torch.tensor([0, *steps][-1:], device=self._context.stepper.device)
        # Rank 0 decides: on a shared file system another rank may not see the newest folder yet.
        dist.broadcast(newest, src=0)
        if step := int(newest.item()):
            self._context.stepper.restore(partial(load, checkpoint_id=self.path_of(step)))
            self._context.log.write("resumed", step=step)
        return step


class StopRequests:
    """Agreement of all ranks on the step after which they stop: rank 0 looks for the request, and
    when to look next.
    """

    def __init__(self, context: RunContext, *, resumed_step: int) -> None:
        self._path = context.folder / STOP
        self._rank, self._device = context.rank, context.stepper.device
        self.next_step = resumed_step + 1

    def come_after(self, step: int, step_times_s: Sequence[float]) -> bool:
        """Return whether training ends after `step`; every rank must make this call after each
        step.
        """
        if step != self.next_step:
            return False
        table = [0, 1]
        if self._rank == 0:
            asked = self._path.exists() and self._path.stat().st_size > 0
            table = [int(asked), max(1, int(LOOK_S / max(statistics.median(step_times_s), 1e-6)))]
        agreed = torch.tensor(table, device=self._device)
        dist.broadcast(agreed, src=0)
        must_stop, steps = agreed.tolist()
        self.next_step = step + int(steps)
        return bool(must_stop)


def learning_rate_at(step: int, *, peak: float, train: Train) -> float:
    """Return the rate of `step` (from 1): linear up to `peak` over the warm-up, then half a cosine
    down.
    """
    if step <= train.warm_up_steps:
        return peak * step / train.warm_up_steps
    progress = (step - train.warm_up_steps) / max(1, train.steps - train.warm_up_steps)
    final = train.final_learning_rate_fraction
    return peak * (final + (1 - final) * 0.5 * (1 + math.cos(math.pi * min(1.0, progress))))


def steps_run(
    context: RunContext, numbers: Iterable[int], train: Train, has_rest: Callable[[int], bool]
) -> Iterator[tuple[int, StepOutcome, float]]:
    """Run steps, and yield each with its outcome and seconds: on a stepper that runs ahead, once
    the next has begun.

    A step that `has_rest` is waited for before another begins. One that began after a loss that is
    not finite is lost.
    """
    stepper, begun, last_end = (
        context.stepper,
        deque[tuple[int, float, Callable[[], StepOutcome]]](),
        0.0,
    )
    for number in numbers:
        set_learning_rate(
            stepper.optimizer,
            learning_rate_at(number, peak=context.job.optimizer.learning_rate, train=train),
        )
        begun.append((number, time.monotonic(), stepper.begin(number)))
        while len(begun) > (stepper.runs_ahead and not has_rest(number)):
            over, start, finish = begun.popleft()
            outcome, now = finish(), time.monotonic()
            seconds, last_end = now - max(start, last_end), now
            context.note_step(over, outcome, seconds)
            yield over, outcome, seconds


def run_training(context: RunContext, train: Train) -> None:
    """Train to `train.steps`, a stop or a loss that is not finite, and write `result.json` on rank
    0.
    """
    checkpoints = Checkpoints(context, keep=train.keep_checkpoints)
    resumed_step = final_step = checkpoints.load_latest()
    stops = StopRequests(context, resumed_step=resumed_step)
    metrics = (
        METRICS[train.metrics](context.folder, resumed_step=resumed_step)
        if context.rank == 0
        else None
    )
    status, final_loss, overflowed = "trained", None, 0
    times: deque[float] = deque(maxlen=_REPORTED_STEP_TIMES)
    evaluations: list[tuple[int, float | None]] = []

    def is_due(every: int) -> bool:
        """Return whether what is done every so many steps (0: never) and after the last is due
        now.
        """
        return every > 0 and (final_step % every == 0 or final_step == train.steps)

    def has_rest(step: int) -> bool:
        """Return whether something is done between this step and the next."""
        due = (
            train.checkpoint_every_steps,
            train.evaluation_every_steps if train.evaluation_batches else 0,
        )
        return step in (train.steps, stops.next_step) or any(
            every > 0 and step % every == 0 for every in due
        )

    start = time.monotonic()
    for final_step, outcome, seconds in steps_run(
        context, range(resumed_step + 1, train.steps + 1), train, has_rest
    ):
        rate = learning_rate_at(final_step, peak=context.job.optimizer.learning_rate, train=train)
        times.append(seconds)
        overflowed += outcome.overflowed
        final_loss, evaluation_loss = finite_or_none(outcome.loss), None
        if (
            outcome.is_finite
            and train.evaluation_batches > 0
            and is_due(train.evaluation_every_steps)
        ):
            evaluation_loss = finite_or_none(context.stepper.evaluate(train.evaluation_batches))
            evaluations.append((final_step, evaluation_loss))
            context.log.write("evaluation", step=final_step, loss=evaluation_loss)
        if metrics is not None:
            norm, speed = finite_or_none(outcome.gradient_norm), context.tokens_per_step / seconds
            row = (final_step, final_loss, rate, norm, seconds, speed, evaluation_loss)
            metrics.write(dict(zip(COLUMNS, row, strict=True)))
        if not outcome.is_finite:
            status = "not-finite"
            break
        must_stop = stops.come_after(final_step, times)
        if must_stop or is_due(train.checkpoint_every_steps):
            checkpoints.save(final_step)
        if must_stop:
            break
    if metrics is not None:
        metrics.close()
    checkpoint = checkpoints.path_of(final_step)
    context.write_result(
        "stopped" if status == "trained" and final_step < train.steps else status,
        resumed_step=resumed_step,
        final_step=final_step,
        final_loss=final_loss,
        losses_path=str(context.folder / "progress.jsonl"),
        evaluation_losses=evaluations,
        overflowed_steps=overflowed,
        step_times_s=list(times),
        trained_time_s=time.monotonic() - start,  # with evaluations and checkpoints
        checkpoint=str(checkpoint) if checkpoint.exists() else None,
    )
