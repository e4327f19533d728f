"""What a campaign would read from a log that a trainer wrote earlier, without a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from frontrunner.evaluators.nodes.supervisor import LOG
from frontrunner.evaluators.programs.command_log import UNLIMITED, Log
from frontrunner.evaluators.programs.command_settings import CommandSettings
from frontrunner.evaluators.programs.logs import LoggedStep, LogReader, Statement, patterns_of
from frontrunner.evaluators.programs.trainers import log_patterns
from frontrunner.evaluators.runs.files import tail
from frontrunner.spaces.display import Displayed
from frontrunner.spaces.errors import bad_value, read_bytes

LAST_LINES = 5
MAX_BYTES = 2**28


@dataclass(frozen=True, kw_only=True)
class SampleStep:
    """A line of a finished step. Times are in seconds; `rates` are by the names of their groups.

    Where a line has neither a time nor a rate, a probe takes the time between two lines.
    """

    number: int
    time_s: float | None
    rates: dict[str, float]
    loss: float | None
    skipped_steps: int
    nan_steps: int


@dataclass(frozen=True, kw_only=True)
class LogSample(Displayed):
    """Figures that a campaign's patterns find in a log.

    `peak_memory_bytes` is None where the log states none. `statements` are what the trainer states
    about its configuration, which a probe compares with its recipe.
    """

    steps: tuple[SampleStep, ...]
    peak_memory_bytes: int | None
    statements: tuple[Statement, ...]


def read_sample(settings: CommandSettings, path: Path) -> LogSample:
    """Read a log file by the patterns of a campaign's [command].

    Raises `NotFound` where there is no such file, and `InvalidInput` where it is too long or has no
    finished step, with its last lines.
    """
    patterns = patterns_of(log_patterns(settings))
    content = read_bytes(path, "log", hint="name a log of the trainer", most=MAX_BYTES)
    with TemporaryDirectory() as folder:
        log = Log(Path(folder) / LOG, UNLIMITED)
        log.write(content)
        log.close()
        reader = LogReader(Path(folder), patterns)
        reader.read_all()
    if not reader.steps:
        last_lines = tail(path, LAST_LINES).rstrip() or "(the file is empty)"
        raise bad_value(
            "--check-log",
            str(path),
            "at least one line that command.log, command.trainer or command.log_patterns recognize"
            f" as a finished step; its last lines:\n{last_lines}",
            hint="describe such a line in command.log_patterns (docs/other-trainers.md#patterns)",
        )
    return LogSample(
        steps=_without_arrival(reader.steps),
        peak_memory_bytes=reader.peak_memory_bytes or None,
        statements=reader.statements,
    )


def _without_arrival(steps: Sequence[LoggedStep]) -> tuple[SampleStep, ...]:
    return tuple(
        SampleStep(
            number=step.number,
            time_s=step.time_s,
            rates=step.rates,
            loss=step.loss,
            skipped_steps=step.skipped_steps,
            nan_steps=step.nan_steps,
        )
        for step in steps
    )
