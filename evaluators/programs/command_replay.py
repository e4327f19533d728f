"""Replay of another trainer's recipe: its command with the same knobs for more steps, compared with
the probe.

It is started again after a failure, and, stopped by SIGTERM before its nodes are taken away, on
other nodes. That it goes on from its own checkpoint is the command's part.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from frontrunner.evaluators.nodes.child_processes import PEER_GRACE_S
from frontrunner.evaluators.programs.command import MakeCommand, request_of
from frontrunner.evaluators.programs.command_program import start_of_command, write_run
from frontrunner.evaluators.programs.command_watch import CommandWatch
from frontrunner.evaluators.programs.logs import timed
from frontrunner.evaluators.programs.preflight import source_for
from frontrunner.evaluators.protocol import ProbeOrder, ProbeSetup
from frontrunner.evaluators.runs.measure import tokens_per_step
from frontrunner.evaluators.runs.starts import LONGEST_RUN_S, Cause, Ending, Starts
from frontrunner.evaluators.runs.training import (
    OnEvent,
    PlannedReplay,
    ReplayResult,
    ReplaySettings,
    ReplayStopped,
    RunFollower,
    ThroughputWatch,
    alone,
    nodes_of,
    with_walltime,
)
from frontrunner.results.outcome import POLICIES, Failure, FailureKind, Measurement
from frontrunner.spaces.errors import InvalidInput
from frontrunner.spaces.legality import Reason
from frontrunner.spaces.recipe import Recipe

STOP_MARGIN_S = 60.0
"""Assumed: what a command takes to store a checkpoint and to end."""
ENDED_WELL = (FailureKind.NO_STEPS_FOUND, FailureKind.TOO_FEW_STEPS)
"""Failures of a command that ended with status 0."""
APPLICABLE = ("steps", "folder", "restarts", "walltime", "stop_margin_s")


@dataclass(frozen=True, kw_only=True)
class CommandReplay(PlannedReplay):
    """A replay by the command of the campaign that `setup` is of, for all `steps` of its probe
    settings.
    """

    make_command: MakeCommand
    stop_margin_s: float


def plan(
    *,
    recipe_id: str,
    recipe: Recipe,
    setup: ProbeSetup,
    make_command: MakeCommand,
    measured_tokens_per_s: float | None,
    settings: ReplaySettings,
) -> CommandReplay:
    """Plan a replay; raise `InvalidInput` for settings of our own trainer's replays."""
    plain = ReplaySettings(**{name: getattr(settings, name) for name in APPLICABLE})
    if settings.launched:
        raise InvalidInput(
            f"--print-command: recipe {recipe_id} was run by another trainer, whose command each"
            " start makes anew",
            hint=(
                "starts/N/command.json in the folder of a replay has it, and command.json in a"
                " probe's run folder"
            ),
        )
    for name, value in vars(settings).items():
        if value != getattr(plain, name):
            raise InvalidInput(
                f"replay.{name} = {value}: recipe {recipe_id} was run by another trainer, which"
                " does not know it",
                hint=(
                    "put it into command.arguments, as {replay?--ARGUMENT} for replays alone, and"
                    " launch the campaign"
                ),
            )
    setup = with_walltime(setup, settings.walltime)
    probe, warm_up = setup.probe, min(setup.probe.warm_up_steps, settings.steps - 1)
    probe = replace(
        probe,
        warm_up_steps=warm_up,
        measured_steps=settings.steps - warm_up,
        deadline_s=LONGEST_RUN_S,
    )
    folder = (settings.folder or setup.work_folder.parent / "replays" / recipe_id).resolve()
    return CommandReplay(
        recipe_id=recipe_id,
        recipe=recipe,
        folder=folder,
        setup=replace(setup, work_folder=folder, probe=probe),
        make_command=make_command,
        measured_tokens_per_s=measured_tokens_per_s,
        source=(
            source_for(recipe_id, recipe, setup, doing="replay")
            if setup.dispatch.has_nodes
            else None
        ),
        restarts=settings.restarts,
        stop_margin_s=settings.stop_margin_s or STOP_MARGIN_S,
    )


def run(
    chosen: CommandReplay, on_event: OnEvent | None = None, signals: Sequence[str] = ()
) -> ReplayResult:
    """Run the command to its own end; raise `FrontrunnerError` with the log's end.

    Once `signals` has a name, the command is stopped by SIGTERM.
    """
    with alone(chosen.folder):
        starts = CommandStarts(chosen, follower := _Follower(chosen, on_event, signals))
        if not starts.run():
            raise ReplayStopped(
                f"stopped after step {follower.step}, {follower.why_stopped}", hint=starts.goes_on
            )
    outcome = starts.outcome
    tokens_per_s = None if outcome is None else outcome.tokens_per_s
    return ReplayResult(
        recipe_id=chosen.recipe_id,
        folder=chosen.folder,
        final_step=follower.step,
        tokens_per_s=tokens_per_s,
        sustained_tokens_per_s=tokens_per_s and (follower.sustained_tokens_per_s or tokens_per_s),
        measured_tokens_per_s=chosen.measured_tokens_per_s,
        final_loss=outcome.losses[-1] if outcome is not None and outcome.losses else None,
        evaluation_losses={},
    )


class CommandStarts(Starts[CommandWatch]):
    """Starts of a command, until it ends with status 0 that was not stopped.

    Each has its own number as `{attempt}`. What it went on from is known by the first step that it
    logs.
    """

    no_progress = "without going on from a later step than the one before"
    goes_on = (
        "run again, the command is started with the next {attempt}, to go on from its own"
        " checkpoint"
    )

    def __init__(self, chosen: CommandReplay, follower: _Follower) -> None:
        self._chosen, self._logs = chosen, follower
        self.outcome: Measurement | None = None
        self._is_first = True
        super().__init__(chosen, nodes_of(chosen, chosen.setup), follower)

    def begin(self, order: ProbeOrder, number: int) -> CommandWatch:
        """Start the command."""
        chosen, setup = self._chosen, self._chosen.setup
        self._is_first = number == 1
        request = request_of(setup, chosen.recipe, chosen.folder, is_replay=True, attempt=number)
        command = chosen.make_command(request)
        if isinstance(command, Reason):
            raise InvalidInput(f"recipe {chosen.recipe_id} cannot be replayed: {command.text}")
        doubt = write_run(
            request,
            command,
            setup.command,
            folder=order.run_folder,
            stop_file=self._follower.stop_file,
        )
        if doubt is not None:
            raise InvalidInput(f"recipe {chosen.recipe_id} cannot be replayed: {doubt}")
        self._follower.note("start", number=number)
        processes = self._nodes.start(order, start_of_command(order, setup))
        watch = CommandWatch(order, setup, command, processes)
        watch.is_replay = True
        self._logs.follow(watch)
        return watch

    def ending(self, watch: CommandWatch) -> Ending:
        """Return that the command is done if it ended well, but not on a SIGTERM before its last
        step.
        """
        outcome = watch.outcome()
        is_fatal = (
            isinstance(outcome, Failure)
            and outcome.kind not in ENDED_WELL
            and POLICIES[outcome.kind].max_attempts == 1
        )
        last_step = self._chosen.setup.probe.most_steps
        if watch.is_stopping and self._logs.step < last_step and not is_fatal:
            return Ending.STOPPED
        if isinstance(outcome, Measurement):
            self.outcome = outcome
            return Ending.DONE
        # One that goes on from its last checkpoint may have no step left.
        is_done = watch.processes.have_succeeded and not is_fatal and not self._is_first
        return Ending.DONE if is_done else Ending.FAILED

    def cause(self, watch: CommandWatch) -> Cause:
        """Return the failure."""
        found = watch.outcome()
        assert isinstance(found, Failure)  # noqa: S101 - see `ending`
        return Cause(found.kind, found.message, Path(found.log_path or watch.order.run_folder))

    def reached(self) -> int:
        """Return how far the last starts went on from: the largest of their first steps."""
        return self._logs.went_on_from


class _Follower(RunFollower):
    """Reads the steps that the command logs, and reports throughput far below the probe's."""

    def __init__(
        self, chosen: CommandReplay, on_event: OnEvent | None, signals: Sequence[str] = ()
    ) -> None:
        super().__init__(chosen.folder, on_event, signals)
        self._chosen = chosen
        self._tokens = tokens_per_step(chosen.recipe, chosen.setup.problem)
        self._speed = ThroughputWatch(self._tokens, chosen.measured_tokens_per_s)
        self._watch: CommandWatch | None = None
        self._stopped_s: float | None = None
        self._known = 0
        self._firsts: list[int] = []
        self.step = 0
        """The last step of any start."""

    def follow(self, watch: CommandWatch) -> None:
        """Read what another start logs from now on."""
        self._watch, self._known, self._stopped_s = watch, 0, None
        self._speed.begin()

    @property
    def needed_s(self) -> float:
        """Return the stop margin."""
        return self._chosen.stop_margin_s

    @property
    def went_on_from(self) -> int:
        """Return how many steps later than the first start's first step another one's was."""
        return max(self._firsts) - self._firsts[0] if self._firsts else 0

    @property
    def sustained_tokens_per_s(self) -> float | None:
        """Return the throughput between the last start's first logged step and its last; None for
        fewer than two.
        """
        steps = self._watch.log.steps if self._watch is not None else []
        if len(steps) < 2 or steps[-1].arrival_s <= steps[0].arrival_s:
            return None
        done = steps[-1].number - steps[0].number
        return self._tokens * done / (steps[-1].arrival_s - steps[0].arrival_s)

    def stop_before(self, end_s: float | None) -> None:
        """See `RunFollower.stop_before`."""
        super().stop_before(end_s)
        if self._watch is None or not self.has_stopped:
            return
        self._watch.is_stopping = True
        self._stopped_s = self._stopped_s or time.monotonic()
        is_over = time.monotonic() - self._stopped_s > max(PEER_GRACE_S, self.needed_s)
        if is_over and self._watch.end_requested_s is None:  # ranks wait for one that has ended
            self._watch.end()

    def read(self) -> None:
        """Report the steps that are new since the last call; the watch has read them."""
        assert self._watch is not None  # noqa: S101 - called once a start is followed
        steps = self._watch.log.steps
        if steps and not self._known:
            self._firsts.append(steps[0].number)
        first = max(0, self._known - 1)  # whose time of arrival the next one's may be counted from
        for step in timed(steps[first:], self._chosen.recipe, self._chosen.setup.problem):
            if step.time_s is None or (self._known and step.logged is steps[first]):
                continue
            loss = (
                {}
                if step.logged.loss is None
                else {"loss": step.logged.loss if step.is_finite else None}
            )
            self.pass_on(
                {"event": "step", "step": step.logged.number, "time_s": step.time_s, **loss}
            )
            if (alert := self._speed.add(step.logged.number, step.time_s)) is not None:
                self.note(**alert)
        self._known = len(steps)
        self.step = max(self.step, steps[-1].number if steps else 0)
