"""Replay: the full training run of a measured recipe, by the trainer that measured it.

On this machine its ranks run under torchrun, on other nodes as a probe's do (`cluster/replay.py`).
"""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, cast, get_args

from frontrunner.evaluators.cluster.batch import end_of_job
from frontrunner.evaluators.cluster.settings import SPARE_WALLTIME_S, NodeSource
from frontrunner.evaluators.probe import BUILT_IN_DATA, Schedule
from frontrunner.evaluators.probe.corpus import corpus, holds_bytes, training_data
from frontrunner.evaluators.probe.files import (
    LineReader,
    read_json,
    tail,
    write_json,
    write_text,
)
from frontrunner.evaluators.probe.job import training_job
from frontrunner.evaluators.probe.measure import tokens_per_step
from frontrunner.evaluators.probe.preflight import Doing, prepare_recipe, source_for
from frontrunner.evaluators.probe.processes import end_child, kill_tagged, start_child
from frontrunner.evaluators.probe.watch import rank_environment
from frontrunner.evaluators.protocol import ProbeSetup
from frontrunner.evaluators.trainer.job import STOP, Data, Job, Metrics, Train
from frontrunner.results.provenance import collect
from frontrunner.spaces.errors import (
    FrontrunnerError,
    InvalidInput,
    JobEnds,
    bad_value,
    require_above_zero,
    require_at_least,
    require_extra,
    require_one_of,
)
from frontrunner.spaces.recipe import Recipe

METRICS = get_args(Metrics)
POLL_S = 0.2
SLOW_SHARE = 0.9
"""Throughput under this share of the probe's is reported."""
RECOVERED_SHARE = 0.95
WATCHED_STEPS = 20
"""Assumed: the median of so many steps is not moved by a pause of one."""
STOP_MARGIN_S = 20.0
"""Assumed: what ranks take to notice a stop and to end, beside the checkpoint."""
CHECKPOINTS_S = 3.0
"""Assumed: a checkpoint takes at most this many times the longest before it."""
STOP_GRACE_S = 20.0
REPLAY_TAG = "FRONTRUNNER_REPLAY"
"""Finds the ranks of a torchrun that was killed: it gives each rank a session of its own."""

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
    (of a .toml file: its section [data]), or `built-in`. `restarts`: on nodes of a batch system the
    ranks are started again after a failure, so often in a row without a new checkpoint, and another
    trainer's command anywhere; `walltime` is that of the allocations for it, "HH:MM:00". In a batch
    job the ranks are stopped, with a checkpoint, `stop_margin_s` before its end: by default
    `STOP_MARGIN_S` and what checkpoints are known to take, of a command `command.STOP_MARGIN_S`.
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


@dataclass(frozen=True, kw_only=True)
class ReplayPlan(PlannedReplay):
    """A replay by our own trainer; `differences` are those of this machine from the one
    measured.
    """

    job: Job
    environment: Mapping[str, str]
    argv: tuple[str, ...]
    tokens_per_step: int
    differences: tuple[str, ...]
    stop_margin_s: float | None

    @property
    def command(self) -> str:
        """Return the command as one line for a shell."""
        variables = " ".join(
            f"{key}={shlex.quote(value)}" for key, value in self.environment.items()
        )
        return f"env {variables} {shlex.join(self.argv)}"

    @property
    def log(self) -> Path:
        """Return the path of the output."""
        return self.folder / "replay.log"


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


def plan(  # noqa: PLR0913 - of what, and how it trains
    *,
    recipe_id: str,
    recipe: Recipe,
    setup: ProbeSetup,
    measured_tokens_per_s: float | None,
    settings: ReplaySettings,
    anyway: bool,
    named: str | None = None,
) -> ReplayPlan:
    """Plan a replay on the data of `setup`, and write their token file; raises as `prepare_recipe`
    does.

    `named` is the path of the recipe's file, where it is of one.
    """
    schedule, cluster = settings.schedule(Schedule()), setup.problem.cluster
    if settings.metrics != "csv" and not settings.launched:
        require_extra(settings.metrics, settings.metrics, f'metrics = "{settings.metrics}"')
    doing: Doing = "launch" if settings.launched else "replay"
    source = None
    if not settings.launched:
        setup = with_walltime(setup, settings.walltime)
        source = source_for(recipe_id, recipe, setup, doing=doing, named=named)
        if not setup.dispatch.shares_files:
            expected = "true for replays, whose checkpoints all nodes write to one folder"
            hint = (
                "keep run folders on a volume that the nodes share, or export the recipe to another"
                " launcher"
            )
            raise bad_value(
                "dispatch.shared_files", setup.dispatch.shared_files, expected, hint=hint
            )
    differences = prepare_recipe(recipe_id, recipe, cluster, source, doing=doing, anyway=anyway)
    setup.work_folder.mkdir(parents=True, exist_ok=True)
    folder = (settings.folder or setup.work_folder.parent / "replays" / recipe_id).resolve()
    tokens = corpus(setup.data, setup.work_folder, setup.problem)
    job = training_job(
        setup,
        recipe,
        folder,
        tokens,
        train=settings.train(schedule),
        learning_rate=schedule.learning_rate,
    )
    return ReplayPlan(
        recipe_id=recipe_id,
        recipe=recipe,
        folder=folder,
        job=job,
        environment={"PYTHONSAFEPATH": "1", **rank_environment(setup)},
        argv=torchrun(recipe.devices, cluster.devices_per_node, folder / "job.json"),
        tokens_per_step=tokens_per_step(recipe, setup.problem),
        measured_tokens_per_s=measured_tokens_per_s,
        differences=differences,
        setup=setup,
        source=source,
        restarts=settings.restarts,
        stop_margin_s=settings.stop_margin_s,
    )


def with_walltime(setup: ProbeSetup, walltime: str | None) -> ProbeSetup:
    """Return the setup with the walltime of a replay's allocations; raise `InvalidInput` where
    there can be none.
    """
    if walltime is None:
        return setup
    if setup.dispatch.backend != "parsl":
        raise bad_value(
            "--walltime",
            walltime,
            'no walltime where the campaign\'s dispatch.backend is not "parsl"',
        )
    dispatch = replace(setup.dispatch, walltime=walltime)
    if dispatch.walltime_s < SPARE_WALLTIME_S:
        raise bad_value("--walltime", walltime, f'"HH:MM:00" of at least {SPARE_WALLTIME_S:g} s')
    return replace(setup, dispatch=dispatch)


def torchrun(devices: int, devices_per_node: int, job: Path) -> tuple[str, ...]:
    """Return the command that starts the ranks of one node, or of each of several, which meet at
    the host of rank 0.
    """
    if devices <= devices_per_node:
        where: tuple[str, ...] = ("--standalone", "--nproc-per-node", str(devices))
    else:
        counts = (
            "--nnodes",
            str(devices // devices_per_node),
            "--nproc-per-node",
            str(devices_per_node),
        )
        where = (*counts, "--rdzv-backend", "c10d", "--rdzv-endpoint", "HOST_OF_RANK_0:29500")
    return (
        sys.executable,
        "-m",
        "torch.distributed.run",
        *where,
        "-m",
        "frontrunner.evaluators.trainer",
        str(job),
    )


def prepare(chosen: ReplayPlan) -> None:
    """Write the job file that the plan's command reads; raise `InvalidInput` if its folder holds
    another run.
    """
    chosen.folder.mkdir(parents=True, exist_ok=True)
    job_path = chosen.folder / "job.json"
    if job_path.exists():
        _refuse_another_run(job_path, chosen.job)
    write_text(job_path, chosen.job.to_json())


def _refuse_another_run(job_path: Path, job: Job) -> None:
    """Raise `InvalidInput` where a folder's job is another run's than `job`, which may train on."""
    hint = "choose another folder with --folder"
    try:
        earlier = Job.from_json(job_path.read_text(encoding="utf-8"))
    except ValueError as error:
        found = f"{job_path.parent} holds a run that this version cannot continue: {error}"
        raise InvalidInput(found, hint=hint) from None
    before, now = _comparable(earlier), _comparable(job)
    changed = [name for name, value in now.items() if value != before[name]]
    if changed:
        found = f"{job_path.parent} holds a run that differs in {', '.join(sorted(changed))}"
        raise InvalidInput(found, hint=hint)


def _comparable(job: Job) -> dict[str, Any]:
    """Return what stays the same while one run goes on: all but how long it trains.

    Each campaign makes token files of text in its own folder, under names that state the content.
    """
    data = [_by_content(file) for file in (job.data, *job.more_data)]
    others = {one.name: getattr(job, one.name) for one in fields(job)}
    del others["train"], others["more_data"]
    return others | {"data": data}


def _by_content(file: Data) -> Data:
    path = Path(file.path)
    return replace(file, path=path.name) if holds_bytes(path) else file


def run(
    chosen: ReplayPlan, on_step: OnEvent | None = None, signals: Sequence[str] = ()
) -> ReplayResult:
    """Run a replay to its end, from its folder's newest checkpoint; raise `FrontrunnerError` with
    the log's end.

    Once `signals` has a name, it is stopped with a checkpoint.
    """
    prepare(chosen)
    with alone(chosen.folder):
        _remove_leftovers(chosen)
        (chosen.folder / "result.json").unlink(missing_ok=True)
        provenance = asdict(collect(chosen.job.device, training_data(chosen.setup.data)))
        provenance |= {"differences": list(chosen.differences), "recipe_id": chosen.recipe_id}
        write_json(chosen.folder / "provenance.json", provenance)
        follower = Follower(chosen, on_step, signals)
        if chosen.source is None:
            status = _train(chosen, follower)
        else:
            from frontrunner.evaluators.cluster.replay import RankStarts

            RankStarts(chosen, chosen.source, follower).run()
            status = 0
    result = read_json(chosen.folder / "result.json") or {}
    if status == 0 and result.get("status") == "stopped":
        raise ReplayStopped(
            f"stopped after step {result['final_step']}, with a checkpoint, {follower.why_stopped}",
            hint="the same command continues",
        )
    if status != 0 or result.get("status") != "trained":
        hint = (
            f"the whole log: {chosen.log}; the same command continues from the newest checkpoint,"
            " if any"
        )
        raise FrontrunnerError(
            f"the replay ended with status {status}:\n{tail(chosen.log)}", hint=hint
        )
    times, trained_s = result["step_times_s"], result["trained_time_s"]
    trained = chosen.tokens_per_step * (result["final_step"] - result["resumed_step"])
    return ReplayResult(
        recipe_id=chosen.recipe_id,
        folder=chosen.folder,
        final_step=result["final_step"],
        tokens_per_s=chosen.tokens_per_step / statistics.median(times) if times else None,
        sustained_tokens_per_s=trained / trained_s if times else None,
        measured_tokens_per_s=chosen.measured_tokens_per_s,
        final_loss=result.get("final_loss"),
        evaluation_losses=dict(result.get("evaluation_losses", [])),
    )


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


def _remove_leftovers(chosen: ReplayPlan) -> None:
    kill_tagged(REPLAY_TAG, str(chosen.folder), wait_s=STOP_GRACE_S)
    if chosen.job.disk is not None:
        shutil.rmtree(chosen.job.disk.folder, ignore_errors=True)


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

    They end once its `stop_file` is not empty; it exists from the beginning: see cluster/agent.py.
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
        return f"on {self.signals[0]}" if self.signals else "before the job's time was up"

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


class Follower(RunFollower):
    """Reads what rank 0 writes, and reports throughput far below the probe's."""

    def __init__(
        self, chosen: ReplayPlan, on_step: OnEvent | None, signals: Sequence[str] = ()
    ) -> None:
        super().__init__(chosen.folder, on_step, signals)
        progress = chosen.folder / "progress.jsonl"
        self._events = LineReader(
            progress, offset=progress.stat().st_size if progress.exists() else 0
        )
        self._stop_margin_s = chosen.stop_margin_s
        self._speed = ThroughputWatch(chosen.tokens_per_step, chosen.measured_tokens_per_s)
        self._checkpoint_s = self._longest_s = 0.0

    @property
    def needed_s(self) -> float:
        """Return what is stated, else what a checkpoint and two steps may take."""
        return (
            self._stop_margin_s
            or STOP_MARGIN_S + CHECKPOINTS_S * self._checkpoint_s + 2 * self._longest_s
        )

    def read(self) -> None:
        """Read what is new."""
        for line in self._events.new_lines():
            with suppress(ValueError):  # a line that a kill has cut short is no event
                event = json.loads(line)
                self.pass_on(event)
                if event["event"] == "built":
                    self._speed.begin()
                elif event["event"] == "checkpoint":
                    self._checkpoint_s = max(self._checkpoint_s, event["time_s"])
                elif event["event"] == "step":
                    self._longest_s = max(self._longest_s, event["time_s"])
                    if (alert := self._speed.add(event["step"], event["time_s"])) is not None:
                        self.note(**alert)


def _train(chosen: ReplayPlan, follower: Follower) -> int:
    with chosen.log.open("ab") as output:
        environment = {**os.environ, **chosen.environment, REPLAY_TAG: str(chosen.folder)}
        process = start_child(
            chosen.argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment
        )
    has_ended, end_s = False, end_of_job()
    try:
        while not has_ended:
            time.sleep(POLL_S)
            has_ended = process.poll() is not None
            follower.read()
            follower.stop_before(end_s)
    finally:
        end_child(process, grace_s=STOP_GRACE_S)
        _remove_leftovers(chosen)
    return int(process.returncode)
