"""Trainings: what replays of our own trainer and of commands share, from their settings to the
followers of what their processes write.
"""

from __future__ import annotations

import fcntl
import json
import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, cast, get_args

from frontrunner.evaluators.nodes.base import Nodes
from frontrunner.evaluators.nodes.batch_jobs import end_of_job
from frontrunner.evaluators.nodes.dispatched import SourceNodes
from frontrunner.evaluators.nodes.fork_server import ServerSettings
from frontrunner.evaluators.nodes.local import ThisMachine
from frontrunner.evaluators.nodes.settings import SPARE_WALLTIME_S, NodeSource
from frontrunner.evaluators.protocol import ProbeSetup
from frontrunner.evaluators.runs.settings import BUILT_IN_DATA, Schedule
from frontrunner.evaluators.trainer.job import STOP, Metrics, Train
from frontrunner.spaces.errors import (
    InvalidInput,
    JobEnds,
    bad_value,
    require_above_zero,
    require_at_least,
    require_one_of,
)
from frontrunner.spaces.recipe import Recipe

METRICS = get_args(Metrics)
SLOW_SHARE = 0.9
"""Throughput under this share of the probe's is reported."""
RECOVERED_SHARE = 0.95
WATCHED_STEPS = 20
"""Assumed: the median of so many steps is not moved by a pause of one."""

OnEvent = Callable[[Mapping[str, Any]], None]


class ReplayStopped(JobEnds):
    """Training ended with a checkpoint before it was done, for its job's end or a signal: to be
    submitted again.
    """


@dataclass(frozen=True, kw_only=True)
class ReplaySettings:
    """How a replay trains; one that is `launched` is only prepared here, for the user's own
    launcher.

    By default the learning rate and the data are those of the recipe's campaign; `data` is a path
    (of a .toml file: its section [data]), or `built-in`. After a failure the training is started
    again, at most `restarts` times in a row without a new checkpoint. `walltime` is that of the
    allocations for it, "HH:MM:00". In a batch job the ranks are stopped, with a checkpoint,
    `stop_margin_s` before its end: by default what checkpoints are known to take, and a margin.
    """

    steps: int
    learning_rate: float | None = None
    warm_up_steps: int | None = None
    final_learning_rate_fraction: float | None = None
    data: str | None = None
    evaluation_every_steps: int = 50
    evaluation_batches: int = 4
    checkpoint_every_steps: int | None = None
    keep_checkpoints: int = 2
    metrics: str = "csv"
    folder: Path | None = None
    launched: bool = False
    restarts: int = 3
    walltime: str | None = None
    stop_margin_s: float | None = None

    def __post_init__(self) -> None:
        for key in ("steps", "evaluation_batches", "evaluation_every_steps", "keep_checkpoints"):
            require_at_least("replay", 1, **{key: getattr(self, key)})
        require_at_least("replay", 0, restarts=self.restarts)
        if self.warm_up_steps is not None:
            require_at_least("replay", 0, warm_up_steps=self.warm_up_steps)
        if self.checkpoint_every_steps is not None:
            require_at_least("replay", 1, checkpoint_every_steps=self.checkpoint_every_steps)
        if self.stop_margin_s is not None:
            require_above_zero("replay.stop_margin_s", self.stop_margin_s, "seconds above 0")
        if self.learning_rate is not None:
            require_above_zero("replay.learning_rate", self.learning_rate, "a number above 0")
        if self.data is not None and not self.data.strip():
            raise bad_value("--data", self.data, f"the path of a file, or {BUILT_IN_DATA}")
        require_one_of("replay", "metrics", self.metrics, METRICS)

    def following(self, schedule: Schedule) -> ReplaySettings:
        """Return the settings with the schedule's values where they state none."""
        return replace(self, **asdict(self.schedule(schedule)))

    def schedule(self, otherwise: Schedule) -> Schedule:
        """Return the schedule, with the values of another where these settings state none."""
        stated = {one.name: getattr(self, one.name) for one in fields(Schedule)}
        return replace(
            otherwise, **{key: value for key, value in stated.items() if value is not None}
        )

    def train(self, schedule: Schedule) -> Train:
        """Return how the job trains, on this schedule."""
        return Train(
            steps=self.steps,
            warm_up_steps=schedule.warm_up_steps,
            final_learning_rate_fraction=schedule.final_learning_rate_fraction,
            evaluation_every_steps=self.evaluation_every_steps,
            evaluation_batches=self.evaluation_batches,
            checkpoint_every_steps=self.checkpoint_every_steps or max(10, self.steps // 10),
            keep_checkpoints=self.keep_checkpoints,
            metrics=cast("Metrics", self.metrics),
        )


@dataclass(frozen=True, kw_only=True)
class PlannedReplay:
    """A replay ready to run, by our own trainer or another's command; `source` is None on this
    machine.
    """

    recipe_id: str
    recipe: Recipe
    folder: Path
    measured_tokens_per_s: float | None
    setup: ProbeSetup
    source: NodeSource | None
    restarts: int

    @property
    def server(self) -> ServerSettings:
        """Return what the fork servers of its nodes have."""
        return ServerSettings()


@dataclass(frozen=True, kw_only=True)
class ReplayResult:
    """A finished replay; its `tokens_per_s` is that of the median step, None if no step was left to
    run.

    `sustained_tokens_per_s` is that of the whole training since its last start, evaluations and
    checkpoints included.
    """

    recipe_id: str
    folder: Path
    final_step: int
    tokens_per_s: float | None
    sustained_tokens_per_s: float | None
    measured_tokens_per_s: float | None
    final_loss: float | None
    evaluation_losses: Mapping[int, float | None]

    @property
    def ratio_to_probe(self) -> float | None:
        """tokens_per_s / measured_tokens_per_s; None if either is unknown."""
        if self.tokens_per_s is None or self.measured_tokens_per_s is None:
            return None
        return self.tokens_per_s / self.measured_tokens_per_s


def with_walltime(setup: ProbeSetup, walltime: str | None) -> ProbeSetup:
    """Return the setup with the walltime of a replay's allocations; raise `InvalidInput` where
    there can be none.
    """
    if walltime is None:
        return setup
    if not setup.dispatch.reads("walltime"):
        raise bad_value(
            "--walltime",
            walltime,
            'no walltime where the campaign\'s dispatch.backend is not "parsl"',
        )
    dispatch = replace(setup.dispatch, walltime=walltime)
    if dispatch.walltime_s < SPARE_WALLTIME_S:
        raise bad_value("--walltime", walltime, f'"HH:MM:00" of at least {SPARE_WALLTIME_S:g} s')
    return replace(setup, dispatch=dispatch)


def nodes_of(chosen: PlannedReplay, setup: ProbeSetup) -> Nodes:
    """Return the nodes that a replay trains on."""
    if chosen.source is not None:
        return SourceNodes(setup, chosen.source, chosen.server)
    return ThisMachine(setup.work_folder, chosen.server, end_s=end_of_job())


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold a replay's folder until this process ends, however it does; raise `InvalidInput` if
    another holds it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            hint = "wait for it, or choose another folder with --folder"
            raise InvalidInput(f"a replay is running in {folder}", hint=hint) from None
        yield


class ThroughputWatch:
    """Compares throughput with the probe's, by the median of `WATCHED_STEPS` steps at a time."""

    def __init__(self, tokens_per_step: int, measured_tokens_per_s: float | None) -> None:
        self._tokens, self._probe = tokens_per_step, measured_tokens_per_s
        self._times: list[float] = []
        self._is_slow = False

    def begin(self) -> None:
        """Forget the steps since the last comparison."""
        self._times.clear()

    def add(self, step: int, time_s: float) -> dict[str, Any] | None:
        """Note a step; return the event that throughput has fallen below the probe's, or has
        recovered, else None.
        """
        self._times.append(time_s)
        if self._probe is None or len(self._times) < WATCHED_STEPS:
            return None
        tokens_per_s = self._tokens / statistics.median(self._times)
        self._times.clear()
        was_slow, share = self._is_slow, tokens_per_s / self._probe
        self._is_slow = share < (RECOVERED_SHARE if was_slow else SLOW_SHARE)
        if self._is_slow == was_slow:
            return None
        event = "slower than the probe" if self._is_slow else "as fast as the probe again"
        return {
            "event": event,
            "step": step,
            "tokens_per_s": round(tokens_per_s, 1),
            "share": round(share, 3),
        }


class RunFollower(ABC):
    """Reads what a replay's processes write, passes it on, and has them store a checkpoint and end
    in time.

    They end once its `stop_file` is not empty; it exists from the beginning: see nodes/agent.py.
    """

    def __init__(self, folder: Path, on_event: OnEvent | None, signals: Sequence[str] = ()) -> None:
        self.stop_file = folder / STOP
        self._log, self._on_event = folder / "replay.log", on_event
        self.signals = signals
        self.has_stopped = False
        self.stop_file.write_bytes(b"")

    @property
    @abstractmethod
    def needed_s(self) -> float:
        """Return how long before their time is up the processes have to be stopped."""

    @abstractmethod
    def read(self) -> None:
        """Read what is new."""

    def note(self, event: str, **values: object) -> None:
        """Report an event of the run's own, and write it to the log."""
        with self._log.open("a", encoding="utf-8") as log:
            log.write(json.dumps({"event": event, **values}) + "\n")
        self.pass_on({"event": event, **values})

    def begin(self) -> None:
        """Forget the stop of an earlier start."""
        self.stop_file.write_bytes(b"")
        self.has_stopped = False

    @property
    def why_stopped(self) -> str:
        """Why the processes were stopped."""
        if self.signals:
            return f"on {self.signals[0]}"
        return "before the job's time was up" if self.has_stopped else f"by {self.stop_file}"

    def stop_before(self, end_s: float | None) -> None:
        """Have them store a checkpoint and end, on a signal, or when the time until `end_s` is just
        enough.
        """
        if self.has_stopped:
            return
        is_due = end_s is not None and time.monotonic() > end_s - self.needed_s
        if self.signals or is_due:
            self.has_stopped = True
            left = {} if end_s is None else {"seconds_left": round(end_s - time.monotonic(), 1)}
            self.note("stopping", why=self.why_stopped, **left)
            self.stop_file.write_bytes(b"1")

    def pass_on(self, event: Mapping[str, Any]) -> None:
        """Report an event."""
        if self._on_event is not None:
            self._on_event(event)
