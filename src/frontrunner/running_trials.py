"""What a campaign's driver does now: the probes that run, why each was chosen, the last outcomes,
and the time left.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from frontrunner.evaluators.registry import commands_of
from frontrunner.evaluators.runs.files import last_lines, read_end
from frontrunner.evaluators.runs.measure import nodes_used
from frontrunner.evaluators.runs.run_folder import RunFolder, StepCounter
from frontrunner.results.pages import TrialOutcome, newest_outcomes, under_way
from frontrunner.results.predictions import Expected, expected_of
from frontrunner.results.process_identity import this_host
from frontrunner.results.records import AttemptOutcome, Campaign
from frontrunner.results.store import Store
from frontrunner.search.budget import Limit
from frontrunner.search.campaign_setup import spent_of, stored_spec
from frontrunner.search.spec import CampaignSpec
from frontrunner.spaces.display import Displayed
from frontrunner.spaces.errors import FrontrunnerError
from frontrunner.spaces.legality import Reason
from frontrunner.spaces.recipe import Recipe
from frontrunner.text import percent, seconds, thousands

if TYPE_CHECKING:
    from collections.abc import Mapping

LAST_OUTCOMES = 6
CLOCK_SKEW_S = 300.0
"""By how much the clocks of a store and of a shared file system may differ."""
LOG_BYTES, LOG_LINES = 16_384, 12


@dataclass(frozen=True, kw_only=True)
class RunningTrial:
    """A probe that runs, `seconds` after it was ordered: its `attempt_number`-th attempt.

    `steps_done` of at most `steps_total`, and `phase`, are None where they are unknown, for the
    reason `unknown`.
    """

    trial_number: int
    attempt_number: int
    recipe_id: str
    recipe: Recipe
    run_folder: str
    seconds: float
    phase: str | None
    steps_done: int | None
    steps_total: int | None
    last_step_s: float | None
    unknown: str
    expected: Expected | None

    @property
    def step_in_words(self) -> str:
        """The step, or the phase before the first, or why neither is known."""
        if self.steps_done:
            took = "" if self.last_step_s is None else f", the last in {seconds(self.last_step_s)}"
            return f"step {self.steps_done} of at most {self.steps_total}{took}"
        return self.phase or self.unknown


@dataclass(frozen=True, kw_only=True)
class Running(Displayed):
    """A campaign at this moment: the first of its `total` probes that run, and its `last` outcomes,
    the newest first.

    `driver` is host:pid of the live driver, None where there is none; `seconds_left` the time until
    the first of the budget's `limits` is reached at the pace so far, None where there is no limit
    or no pace yet.
    """

    campaign: str
    strategy: str
    driver: str | None
    probes: tuple[RunningTrial, ...]
    total: int
    last: tuple[TrialOutcome, ...]
    limits: tuple[Limit, ...]
    seconds_left: float | None


def running(store: Store, campaign: str | None, *, top: int) -> Running:
    """Return what runs in a campaign (None: the newest), the first `top` probes in full."""
    with store.database.reading():
        found = store.campaign(campaign)
        is_driven, attempts = under_way(store, found, top)
        named = [one.trial.number for one in attempts.items]
        expected = expected_of(store, found.id, named) if named else {}
        last = newest_outcomes(store, found.id, LAST_OUTCOMES)
        spec, now = stored_spec(found), store.now()
        spent = spent_of(store, found, spec)
    return Running(
        campaign=found.name,
        strategy=found.strategy,
        driver=found.driver if is_driven else None,
        probes=tuple(_running(found, spec, one, expected, now) for one in attempts.items),
        total=attempts.total,
        last=last,
        limits=spent.limits(spec.budget),
        seconds_left=spent.seconds_left(spec.budget),
    )


def _running(
    campaign: Campaign,
    spec: CampaignSpec,
    one: AttemptOutcome,
    expected: Mapping[int, Expected],
    now: datetime,
) -> RunningTrial:
    began = datetime.fromisoformat(one.attempt.started_at)
    folder, phase, done, last_s = Path(one.attempt.run_folder), None, None, None
    unknown = why_unseen(campaign, spec, folder, began)
    if not unknown:
        try:
            phase, done, last_s = _progress(spec, one.trial.recipe, folder)
        except (FrontrunnerError, OSError) as error:
            unknown = f"its step cannot be read: {getattr(error, 'message', error)}"
    return RunningTrial(
        trial_number=one.trial.number,
        attempt_number=one.attempt.number,
        recipe_id=one.trial.recipe_id,
        recipe=one.trial.recipe,
        run_folder=one.attempt.run_folder,
        seconds=max(0.0, (now - began).total_seconds()),
        phase=phase,
        steps_done=done,
        steps_total=None if done is None else spec.probe.most_steps,
        last_step_s=last_s,
        unknown=unknown,
        expected=expected.get(one.trial.number),
    )


def why_unseen(campaign: Campaign, spec: CampaignSpec, folder: Path, began: datetime) -> str:
    """Return why the files of a probe that runs cannot be read here; empty where they can."""
    if not (spec.evaluator_kind.trains or spec.trainer):
        return f"no step and no log: evaluator = {spec.evaluator!r} trains nothing"
    host = (campaign.driver or "").rpartition(":")[0]
    try:
        changed_s = folder.stat().st_mtime
    except OSError:
        changed_s = None
    # On another host a folder of the same path may be an earlier campaign's.
    if changed_s is None or (
        host != this_host() and changed_s < (began - timedelta(seconds=CLOCK_SKEW_S)).timestamp()
    ):
        where = f"the driver runs on {host}" if host != this_host() else "its run folder is gone"
        return f"step and log are unknown here: {where}, and {folder} is not on this machine"
    return ""


def _progress(spec: CampaignSpec, recipe: Recipe, folder: Path) -> tuple[str, int, float | None]:
    """Return phase, steps and the last one's time of a probe whose files are here."""
    if (make := commands_of(spec.evaluator, spec.command)) is not None:
        from frontrunner.evaluators.programs import command as commands
        from frontrunner.evaluators.programs import logs

        command = make(commands.request_of(spec.probe_setup(), recipe, folder))
        if isinstance(command, Reason):
            return "ending", 0, None
        log = logs.LogReader(
            folder, logs.patterns_of(command.log_patterns), nodes_used(recipe, spec.problem)
        )
        began = log.read_all()
        found = logs.timed(log.steps, recipe, spec.problem)
        done = min(sum(step.covers for step in found), spec.probe.most_steps)
        return (
            "starting" if began else "waiting to start",
            done,
            found[-1].time_s if found else None,
        )
    steps = StepCounter(folder)
    began = steps.advance() or RunFolder(folder).job.exists()
    phase = "first step" if steps.is_built else "starting" if began else "waiting to start"
    return phase, steps.steps_done, steps.last_step_s


def log_of(folder: Path) -> Path:
    """Return the log of a probe that runs: its first rank's, or its command's."""
    from frontrunner.evaluators.nodes.supervisor import LOG

    own = RunFolder(folder).log(0)
    return own if own.exists() else folder / LOG


def log_end(root: Path, folder: Path) -> str:
    """Return the last lines of the log of a probe that runs, without secrets; empty where there is
    none to read.
    """
    from frontrunner.evaluators.nodes.supervisor import LOG

    path = log_of(folder)
    text = read_end(root, path, most_bytes=LOG_BYTES) or ""
    if path.name == LOG:  # each line begins with the second of its arrival
        text = "\n".join(line.partition(" ")[2] for line in text.splitlines())
    return last_lines(text, LOG_LINES)


def why_chosen(one: RunningTrial, strategy: str) -> str:
    """Return in words why a recipe was chosen, as far as its strategy stored that."""
    again = f"attempt {one.attempt_number} of this recipe; " if one.attempt_number > 1 else ""
    if one.expected is None:
        return f"{again}{strategy} stored no forecast of it"
    again += "when it was first chosen: " if again else ""
    expected, gain = one.expected, one.expected.expected_improvement
    of = "the front" if expected.of_front else "the best"
    gains = (
        ""
        if gain is None
        else f"; expected gain over {of} {percent(gain, 2 if gain < 0.001 else 1)}, none if slower"
    )
    speed = f"expected {thousands(expected.tokens_per_s)} tokens/s"
    return f"{again}chance to run {percent(expected.chance, 0)}, {speed}{gains}"
