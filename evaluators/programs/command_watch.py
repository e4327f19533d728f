"""Runs of a trainer's command: they are followed and measured by their logs, and their failures
classified.
"""

from __future__ import annotations

import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from frontrunner.evaluators.nodes.base import Processes
from frontrunner.evaluators.nodes.child_processes import PEER_GRACE_S
from frontrunner.evaluators.nodes.supervisor import (
    END_S,
    KILL_S,
    LOG,
    NOT_STARTED,
    of_node,
    read_end,
)
from frontrunner.evaluators.programs import command as commands
from frontrunner.evaluators.programs import logs
from frontrunner.evaluators.programs.base import Watch, with_log
from frontrunner.evaluators.programs.command import Command
from frontrunner.evaluators.programs.jobs import DEADLINE_SHARE
from frontrunner.evaluators.protocol import ProbeOrder, ProbeSetup, Progress
from frontrunner.evaluators.runs.classify import Evidence, RankError, classify, first_line
from frontrunner.evaluators.runs.files import tail, why_disk_full
from frontrunner.evaluators.runs.measure import measurement, tokens_per_step
from frontrunner.results.outcome import Failure, FailureKind, Outcome, ProbeEnding

TAIL_LINES = 400
TAIL_BYTES = 262_144
"""Searched for signs: launchers write pages after the line that matters."""
EXCEPTION = re.compile(
    r"^(?:\[[\w.-]+\]:?\s*|[\w.-]+:\s+)?(?:\w+\.)*(\w*(?:Error|Exception|Interrupt))(?:: (.*))?$"
)
"""The last line of a traceback, after the rank that launchers put before it."""
USAGE = re.compile(r"^(?:\[[\w.-]+\]:?\s*|[\w.-]+:\s+)?\S+: error: (.*)$")
REFUSALS = ("AssertionError", "ValueError", "NotImplementedError")
"""Raised by trainers, before the first step, for configurations that they reject."""
RANK_KILLED = re.compile(
    r"exitcode\s*:\s*-9\b|Signal 9 \(SIGKILL\)|Exited with exit code 137|signal 9 \(Killed\)"
)
"""Messages of torchrun, srun and mpirun that a rank was killed, while they end with a status of
their own.
"""
FOREIGN_OOM = re.compile(r"oom[_-]kill|OUT_OF_DEVICE_MEMORY|OUT_OF_RESOURCES", re.IGNORECASE)
"""Messages of Slurm and the runtimes of other accelerators that memory ran out."""

NO_STEPS = (
    "the command ended with status 0, and no line of its log was recognized as a finished step;"
    " the last lines are below. Describe such a line in command.log_patterns, or set command.log,"
    " and try it without a run: frontrunner launch FILE --check-log LOG"
)
END_GRACE_S = END_S + 10.0
"""How long nodes may take to end a command: their supervisors, a look at the shared file system,
and its delays.
"""
MOST_STEPS_FOR_CLOCK = 2
"""A probe takes at most this many times its steps where the log's times could not be compared with
the clock yet.
"""


class CommandWatch(Watch):
    """Follows a command on its nodes; `is_measured` once its step time is known.

    `end_requested_s` is when we had it end. With `is_replay` it runs to its own end; one that
    `is_stopping` has been sent a SIGTERM, on which its ranks end one by one.
    """

    is_replay = is_stopping = False

    def __init__(
        self, order: ProbeOrder, setup: ProbeSetup, command: Command, processes: Processes
    ) -> None:
        super().__init__(order, setup, processes)
        self.is_measured = False
        self._count = processes.count
        patterns = logs.patterns_of(command.log_patterns)
        self.log = logs.LogReader(order.run_folder, patterns, self._count)
        self.end_requested_s: float | None = None
        self._failed_s: float | None = None

    @property
    def steps(self) -> list[logs.TimedStep]:
        """Return the steps logged so far, with their times."""
        return logs.timed(self.log.steps, self.order.recipe, self.setup.problem)

    @property
    def progress(self) -> Progress:
        """Return phase and steps."""
        done, most = sum(step.covers for step in self.steps), self.setup.probe.most_steps
        return Progress(
            phase="stepping" if done else "starting", steps_done=min(done, most), steps_total=most
        )

    def look(self) -> bool:
        """Note progress, end what is overdue, and return whether the command is over."""
        processes = self.processes
        processes.read()
        self.note_begin()
        if processes.have_ended:
            self.log.advance()
        else:
            self._follow()
        if any(processes.statuses.values()):
            self._failed_s = self._failed_s or time.monotonic()
        failed = self._failed_s is not None and time.monotonic() - self._failed_s > PEER_GRACE_S
        if failed and not self.is_stopping:  # other nodes' ranks wait for those that have failed
            self.end()
        self.lost = processes.trouble
        was_interrupted = (
            processes.is_interrupted and not self.is_measured and any(processes.statuses.values())
        )
        if processes.have_ended and not was_interrupted:
            return not self.log.is_behind
        self.lost = processes.why_lost(
            have_begun=self.began_s is not None, have_ended=processes.have_ended
        )
        late_s = 0.0
        if self.end_requested_s is not None:
            late_s = time.monotonic() - self.end_requested_s - END_GRACE_S
        if self.lost is None and late_s > 0:
            self.lost = f"the command had not ended on each of its nodes within {END_GRACE_S:g} s"
        return self.lost is not None

    def _follow(self) -> None:
        """Note progress, and end the command when its step time is known or a deadline has
        passed.
        """
        before = len(self.log.steps)
        wrote = self.log.advance()
        came = len(self.log.steps) > before
        # Until the first step any output is progress: trainers take long to build, and report that.
        if came or (wrote and not before):
            self.progressed_s = time.monotonic()
        if self.end_requested_s is None and not self.is_replay:
            # A loss that is not finite makes further steps useless.
            is_finite = all(step.is_finite for step in self.steps)
            self.is_measured = came and (not is_finite or self._is_known())
            done = self.progress.steps_done
            if not self.is_measured:
                self.overdue = self.find_overdue(
                    done, "finished step in the log" if done else "output"
                )
            if self.is_measured or self.overdue is not None:
                self.end()

    def end(self) -> None:
        """Have the command end on each of its nodes."""
        self.end_requested_s = self.end_requested_s or time.monotonic()
        super().end()

    def _is_known(self) -> bool:
        """Return whether the step time is known, and the log's times were compared with the clock.

        Where a few lines cannot decide that comparison, the probe takes more steps than it needs
        otherwise, up to `MOST_STEPS_FOR_CLOCK` times as many.
        """
        if self._verdict().ended is None:
            return False
        settings = self.setup.probe
        steps_done = sum(step.covers for step in self.steps)
        is_late = self.seconds > DEADLINE_SHARE * settings.deadline_s
        is_enough = steps_done >= MOST_STEPS_FOR_CLOCK * settings.most_steps
        return is_late or is_enough or logs.check_clock(self.steps).is_decided

    def _verdict(self) -> logs.Verdict:
        best = self.order.best_tokens_per_s
        best_step_time_s = (
            tokens_per_step(self.order.recipe, self.setup.problem) / best if best else None
        )
        return logs.verdict(
            self.steps, self.setup.probe, best_step_time_s=best_step_time_s, spent_s=self.seconds
        )

    def outcome(self) -> Outcome:
        """Return the measurement that follows from the log, or why there is none."""
        ends = {node: read_end(self.order.run_folder, node) for node in range(self._count)}
        found, log = self._judged(ends)
        return with_log(found, log) if isinstance(found, Failure) else found

    def _judged(self, ends: dict[int, dict[str, Any] | None]) -> tuple[Outcome, Path]:
        recipe, problem, steps, log = (
            self.order.recipe,
            self.setup.problem,
            self.steps,
            self._log_of(0),
        )
        ended = [end for end in ends.values() if end is not None]
        failed = self.overdue is not None or self.lost is not None or len(ended) < len(ends)
        failed = failed or (not self.is_measured and any(end["status"] != 0 for end in ended))
        rejected = self._why_rejected(steps, failed=failed)
        if rejected is not None:
            return rejected, log
        if failed:
            kind, message, log = self._why_failed(ends)
            return self._failure(kind, message), log
        if (too_short := self._why_too_short(steps)) is not None:
            return too_short, log
        found = self._verdict()
        peak = self.log.peak_memory_bytes
        if not peak and problem.cluster.backend == "cpu":
            peak = max(end["peak_resident_bytes"] for end in ended)
        first_s = steps[0].time_s if steps[0].is_claimed and steps[0].time_s else 0.0
        result = {
            "status": "measured",
            "step_times_s": found.times_s,
            "peak_memory_bytes": (peak,),
            "losses": [step.logged.loss for step in steps if step.logged.loss is not None],
            "build_time_s": max(0.0, steps[0].logged.arrival_s - first_s),
            "first_step_time_s": first_s,
            "ended": found.ended or ProbeEnding.LIMIT,
        }
        return (
            measurement(result, recipe, problem, self.node_seconds, memory_is_known=peak > 0),
            log,
        )

    def _why_rejected(self, steps: list[logs.TimedStep], *, failed: bool) -> Failure | None:
        """Return the failure of a log whose figures contradict each other, or are not finite."""
        recipe, problem = self.order.recipe, self.setup.problem
        doubt = commands.why_disagreeing(self.log.statements, recipe, problem)
        if not failed or not steps:
            doubt = doubt or logs.why_inconsistent(steps, recipe, problem)
        if doubt is not None and steps:
            return self._failure(FailureKind.IMPLAUSIBLE, doubt)
        unfinite = next((step.logged.number for step in steps if not step.is_finite), None)
        if unfinite is None:
            return None
        message = f"the loss was not finite at step {unfinite}"
        return self._failure(FailureKind.NOT_FINITE, message)

    def _why_too_short(self, steps: list[logs.TimedStep]) -> Failure | None:
        """Return the failure of a command that ended well, but whose log shows too few steps."""
        if not steps:
            return self._failure(FailureKind.NO_STEPS_FOUND, NO_STEPS)
        settings = self.setup.probe
        counting = logs.counting(steps, settings.warm_up_steps)
        overflowed = sum(step.logged.skipped_steps for step in steps)
        if overflowed and not counting:
            message = (
                f"gradients overflowed in {overflowed} of {len(steps)} steps, and in every"
                " measured one"
            )
            return self._failure(FailureKind.NOT_FINITE, message)
        least_steps = 1 if self.is_replay else settings.least_steps - settings.warm_up_steps
        steps_measured = sum(step.covers for step in counting)
        if steps_measured >= least_steps:
            return None
        message = (
            f"the command ended with status 0 after {sum(step.covers for step in steps)} steps,"
            f" of which {steps_measured} count: {settings.warm_up_steps} are warm-up, and"
            f" {least_steps} must be measured. Have it train for {settings.most_steps} steps"
            " ({steps} in command.arguments), or change [probe]"
        )
        return self._failure(FailureKind.TOO_FEW_STEPS, message)

    def _failure(self, kind: FailureKind, message: str) -> Failure:
        if left := ", ".join(map(str, self.processes.stuck_pids)):
            message += f"; killed, and not ended within {KILL_S:g} s: process {left}"
        return Failure(kind=kind, message=message, node_seconds=self.node_seconds)

    def _log_of(self, node: int) -> Path:
        return self.order.run_folder / of_node(LOG, node)

    def _why_failed(self, ends: dict[int, dict[str, Any] | None]) -> tuple[FailureKind, str, Path]:
        texts, statuses, errors = dict[int, str](), dict[int, int](), list[RankError]()
        phase = "stepping" if self.steps else "starting"
        for node, end in ends.items():
            lines = tail(self._log_of(node), TAIL_LINES, TAIL_BYTES).splitlines()
            text = texts[node] = "\n".join(
                line.partition(" ")[2] for line in lines
            )  # without times of arrival
            statuses[node] = -9 if end is None else end["status"]
            raised = [replace(error, rank=node) for error in exceptions(text, phase)]
            is_about_a_peer = all(error.is_about_a_peer for error in raised)
            if RANK_KILLED.search(text) and node not in self.processes.killed and is_about_a_peer:
                statuses[node], raised = -9, []
            errors += raised
            foreign = next((line for line in text.splitlines() if FOREIGN_OOM.search(line)), None)
            if foreign is not None:
                return FailureKind.OUT_OF_MEMORY, first_line(foreign), self._log_of(node)
            if end is not None and end["status"] == NOT_STARTED and not errors:
                return FailureKind.CRASHED, first_line(text), self._log_of(node)
        if self.lost is None and any(
            end is None and node not in self.processes.killed for node, end in ends.items()
        ):
            why_full = why_disk_full(self.order.run_folder)
            lost = why_full or "its supervisor was killed, and the command with it"
            return FailureKind.LOST, lost, self._log_of(0)
        evidence = Evidence(
            statuses=statuses,
            errors=tuple(errors),
            log_tails=texts,
            overdue=self.overdue,
            killed_by_us=frozenset(self.processes.killed),
            kernel_oom_kills=self.processes.kernel_oom_kills,
            lost=self.lost,
        )
        found = classify(evidence)
        log = (self.lost and self.processes.log) or self._log_of(found.rank)
        if self._count > 1:
            return (
                found.kind,
                found.message.replace(f"rank {found.rank}", f"node {found.rank}"),
                log,
            )
        message = found.message.replace(f"rank 0 while {phase}: ", "").replace(
            "rank 0", "the command"
        )
        return found.kind, message, log


def exceptions(text: str, phase: str) -> tuple[RankError, ...]:
    """Return the first exception in the log that ended a process; before the first step a refusal
    is a ValueError.
    """
    for line in text.splitlines():
        usage = USAGE.match(line.strip())
        if usage is not None and phase == "starting":
            return (RankError(rank=0, type="ValueError", message=usage[1], phase=phase),)
        raised = EXCEPTION.match(line.rstrip())
        if raised is not None and raised[1] != "ChildFailedError":  # torchrun's, about a rank's
            refused = phase == "starting" and raised[1] in REFUSALS
            message = raised[2] or raised[1]
            if refused and raised[1] == "AssertionError":
                message = f"assertion: {message}"
            return (
                RankError(
                    rank=0,
                    type="ValueError" if refused else raised[1],
                    message=message,
                    phase=phase,
                ),
            )
    return ()
