"""Replay of another trainer's recipe: its command with the same knobs for more steps, compared with the probe."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from frontrunner.evaluators.cluster.agent import OrphanedSteps
from frontrunner.evaluators.external.command import MakeCommand, request_of
from frontrunner.evaluators.external.logs import LogReader, patterns_of, timed
from frontrunner.evaluators.probe.measure import nodes_used, tokens_per_step
from frontrunner.evaluators.probe.replay import ReplayResult, ReplaySettings, ThroughputWatch, alone
from frontrunner.evaluators.probe.run_folder import CANCEL, MEETING
from frontrunner.evaluators.protocol import ProbeOrder, ProbeSetup
from frontrunner.evaluators.registry import command_probe
from frontrunner.results.outcome import Failure
from frontrunner.spaces.errors import FrontrunnerError, InvalidInput
from frontrunner.spaces.legality import Reason
from frontrunner.spaces.recipe import Recipe

POLL_S = 1.0
LONGEST_S = 365 * 86_400.0
"""No deadline: the walltime of an allocation is one."""
APPLICABLE = ("steps", "folder")

OnEvent = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True, kw_only=True)
class CommandReplay:
    """A replay by the command of the campaign that `setup` is of, for all `steps` of its probe settings."""

    recipe_id: str
    recipe: Recipe
    folder: Path
    setup: ProbeSetup
    make_command: MakeCommand
    measured_tokens_per_s: float | None


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
    for name, value in vars(settings).items():
        if value != getattr(plain, name):
            raise InvalidInput(
                f"replay.{name} = {value}: recipe {recipe_id} was run by another trainer, which does not know it",
                hint="put it into command.arguments, as {replay?--ARGUMENT} for replays alone, and launch the campaign",
            )
    probe, warm_up = setup.probe, min(setup.probe.warm_up_steps, settings.steps - 1)
    probe = replace(probe, warm_up_steps=warm_up, measured_steps=settings.steps - warm_up, deadline_s=LONGEST_S)
    folder = (settings.folder or setup.work_folder.parent / "replays" / recipe_id).resolve()
    return CommandReplay(
        recipe_id=recipe_id,
        recipe=recipe,
        folder=folder,
        setup=replace(setup, work_folder=folder.parent, probe=probe),
        make_command=make_command,
        measured_tokens_per_s=measured_tokens_per_s,
    )


def run(chosen: CommandReplay, on_event: OnEvent | None = None) -> ReplayResult:
    """Run the command to its own end; raise `FrontrunnerError` with the log's end."""
    setup, folder = chosen.setup, chosen.folder
    order = ProbeOrder(token=chosen.recipe_id, recipe=chosen.recipe, run_folder=folder)
    nodes = nodes_used(chosen.recipe, setup.problem)
    with alone(folder):
        earlier = OrphanedSteps([folder])  # of a driver that was killed
        while not earlier.have_ended():
            time.sleep(POLL_S)
        _clear(folder)
        follower = _Follower(chosen, nodes, on_event)
        evaluator = command_probe(setup, chosen.make_command, is_replay=True)
        try:
            evaluator.start(order)
            while not (finished := evaluator.finished(POLL_S)):
                follower.read()
        finally:
            evaluator.close()
        follower.read()
    outcome = finished[0].outcome
    if isinstance(outcome, Failure):
        why = f"the replay failed, {outcome.kind}: {outcome.message}\n{outcome.log_tail or ''}"
        raise FrontrunnerError(why.rstrip(), hint=f"the whole log: {outcome.log_path or folder}")
    return ReplayResult(
        recipe_id=chosen.recipe_id,
        folder=folder,
        final_step=follower.step,
        tokens_per_s=outcome.tokens_per_s,
        sustained_tokens_per_s=follower.sustained_tokens_per_s or outcome.tokens_per_s,
        measured_tokens_per_s=chosen.measured_tokens_per_s,
        final_loss=outcome.losses[-1] if outcome.losses else None,
        evaluation_losses={},
    )


class _Follower:
    """Reads the command's logs beside the evaluator, and reports steps, and throughput far below the probe's."""

    def __init__(self, chosen: CommandReplay, nodes: int, on_event: OnEvent | None) -> None:
        request = request_of(chosen.setup, chosen.recipe, chosen.folder, is_replay=True)
        command = chosen.make_command(request)
        if isinstance(command, Reason):
            raise InvalidInput(f"recipe {chosen.recipe_id} cannot be replayed: {command.text}")
        self._chosen, self._on_event = chosen, on_event
        self._log = LogReader(chosen.folder, patterns_of(command.log_patterns), nodes)
        self._known = 0
        self._tokens = tokens_per_step(chosen.recipe, chosen.setup.problem)
        self._speed = ThroughputWatch(self._tokens, chosen.measured_tokens_per_s)

    @property
    def step(self) -> int:
        """Return the last step's number."""
        steps = self._log.steps
        return steps[-1].number if steps else 0

    @property
    def sustained_tokens_per_s(self) -> float | None:
        """Return the throughput between the first logged step and the last; None for fewer than two."""
        steps = self._log.steps
        if len(steps) < 2 or steps[-1].arrival_s <= steps[0].arrival_s:
            return None
        done = steps[-1].number - steps[0].number
        return self._tokens * done / (steps[-1].arrival_s - steps[0].arrival_s)

    def read(self) -> None:
        """Report what is new."""
        self._log.advance()
        steps = self._log.steps
        first = max(0, self._known - 1)  # whose time of arrival the next one's may be counted from
        for step in timed(steps[first:], self._chosen.recipe, self._chosen.setup.problem):
            if step.time_s is None or (self._known and step.logged is steps[first]):
                continue
            loss = {} if step.logged.loss is None else {"loss": step.logged.loss if step.is_finite else None}
            self._report(event="step", step=step.logged.number, time_s=step.time_s, **loss)
            if (alert := self._speed.add(step.logged.number, step.time_s)) is not None:
                self._report(**alert)
        self._known = len(steps)

    def _report(self, **event: Any) -> None:
        if self._on_event is not None:
            self._on_event(event)


def _clear(folder: Path) -> None:
    """Remove how an earlier run ended, and keep its logs under numbers."""
    for path in (folder / MEETING, folder / CANCEL, folder / "outcome.json", *folder.glob("ended*.json")):
        path.unlink(missing_ok=True)
    for path in folder.glob("node-*.json"):
        path.unlink()
    for path in folder.glob("command*.log"):
        if path.stem.count(".") == 0:
            numbers = itertools.count(1)
            path.rename(next(new for n in numbers if not (new := path.with_name(f"{path.stem}.{n}.log")).exists()))
