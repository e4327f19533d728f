"""Figures of a trainer's log, found by regular expressions and read while it grows; step times and
their verdict.
"""

from __future__ import annotations

import itertools
import math
import re
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from frontrunner.evaluators.nodes.supervisor import LOG, of_node
from frontrunner.evaluators.programs import clock
from frontrunner.evaluators.programs.command_log import LEFT_OUT, LogLines
from frontrunner.evaluators.programs.jobs import DEADLINE_SHARE
from frontrunner.evaluators.runs.measure import tokens_per_step
from frontrunner.evaluators.runs.settings import ProbeSettings
from frontrunner.evaluators.trainer.step_time_stats import ending, settled
from frontrunner.results.outcome import ProbeEnding
from frontrunner.spaces.errors import InvalidInput, bad_value, did_you_mean
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import DIMENSIONS, Recipe

TIMES = {"step_time_s": 1.0, "step_time_ms": 1e-3, "step_time_us": 1e-6}
PEAKS = {
    "peak_memory_bytes": 1.0,
    "peak_memory_mb": 1e6,
    "peak_memory_gb": 1e9,
    "peak_memory_mib": 2.0**20,
    "peak_memory_gib": 2.0**30,
}
RATES = ("tokens_per_s", "tokens_per_s_per_device", "samples_per_s")
COUNTS = ("skipped_steps", "nan_steps")
STATEMENTS = (
    *(
        "micro_batch_seqs",
        "accumulation",
        "global_batch_seqs",
        "sequence_length",
        "data_parallel",
        "zero_stage",
    ),
    *(name for name, dimension in DIMENSIONS.items() if dimension.group == "degrees"),
)
"""Statements of a trainer about its configuration, which must be the recipe's and the problem's."""
GROUPS = ("step", "loss", *TIMES, *PEAKS, *RATES, *COUNTS, *STATEMENTS)
STEP_GROUPS = frozenset(("step", *TIMES, *RATES))

MAX_FIGURE = 2.0**62
"""No step, time or memory is larger; a database holds it as an integer."""
THOUSANDS = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12}
NUMBER = re.compile(
    r"(?P<digits>[-+]?[0-9][0-9,_]*(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?|[-+]?\.[0-9]+)\s?(?P<unit>[KMGBT]?)"
    r"|(?P<word>[-+]?(?i:nan|inf|infinity))",
    re.ASCII,
)
MAX_SEARCHED_CHARACTERS = 4000
COLORS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
MAX_LINE_BYTES = 8_000
"""Of a line that are decoded: twice what patterns search, since color codes are removed first."""
RATE_TOLERANCE = 0.1
"""A rate in the log may differ by this from tokens over step time: trainers round, and leave out
some work.
"""


Pattern = re.Pattern[str]
"""A regular expression whose named groups are among `GROUPS`."""


def pattern_of(text: str) -> Pattern:
    """Return a compiled regular expression; raise `InvalidInput` if it is invalid or has no known
    group.
    """
    try:
        found = re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise bad_value(
            "command.log_patterns", text, f"a regular expression; here: {error}"
        ) from None
    if not found.groupindex:
        expected = "a named group, as (?P<step_time_ms>[0-9.]+)"
        raise bad_value("command.log_patterns", text, expected, hint=f"known: {', '.join(GROUPS)}")
    for name in found.groupindex:
        if name not in GROUPS:
            message = f"command.log_patterns: no figure is called {name} in {text!r}"
            raise InvalidInput(message, hint=did_you_mean(name, GROUPS))
    return found


def marks_a_step(pattern: Pattern) -> bool:
    """Return whether a pattern finds finished steps."""
    return not STEP_GROUPS.isdisjoint(pattern.groupindex)


def patterns_of(texts: Iterable[str]) -> tuple[Pattern, ...]:
    """Return the patterns of regular expressions, of which one must find finished steps."""
    found = tuple(map(pattern_of, texts))
    if not any(map(marks_a_step, found)):
        expected = (
            "a regular expression that finds a finished step, with a group of"
            f" {', '.join(sorted(STEP_GROUPS))}"
        )
        raise bad_value("command.log_patterns", [] if found else None, expected)
    return found


def figures_of(match: re.Match[str]) -> dict[str, float]:
    """Return the figures of a match, without groups that hold no number."""
    numbers = {name: number(text) for name, text in match.groupdict().items() if text is not None}
    known = ((name, value) for name, value in numbers.items() if value is not None)
    return {
        name: value for name, value in known if name == "loss" or abs(value) <= MAX_FIGURE
    }  # False for NaN


def number(text: str) -> float | None:
    """Parse a number as trainers print it: 1,234 and 7.03e3, 11.5K and 85.8G, nan and inf; None for
    others.
    """
    match = NUMBER.fullmatch(text.strip().strip("'\""))
    if match is None:
        return None
    if match["word"]:
        return float(match["word"])
    return float(match["digits"].replace(",", "").replace("_", "")) * THOUSANDS[match["unit"]]


def in_base_units(figures: Mapping[str, float], units: Mapping[str, float]) -> Iterator[float]:
    """Return the figures that `units` names, in seconds or bytes."""
    return (figures[name] * factor for name, factor in units.items() if name in figures)


@dataclass(kw_only=True)
class LoggedStep:
    """Figures of one logged step, or means since the one before; of repeated lines the first
    counts.

    With `is_after_gap` the log states no number, and lines before it were left out, so that nobody
    knows how many steps came between it and the one before.
    """

    number: int
    arrival_s: float
    is_after_gap: bool = False
    time_s: float | None = None
    loss: float | None = None
    rates: dict[str, float] = field(default_factory=dict)
    skipped_steps: int = 0
    nan_steps: int = 0

    def add(self, figures: Mapping[str, float]) -> None:
        """Add the figures of a line that were not known."""
        if self.time_s is None:
            self.time_s = next(in_base_units(figures, TIMES), None)
        if self.loss is None:
            self.loss = figures.get("loss")
        self.rates = {name: figures[name] for name in RATES if name in figures} | self.rates
        for name in COUNTS:
            setattr(self, name, max(getattr(self, name), int(figures.get(name, 0))))

    def complete(self, other: LoggedStep) -> None:
        """Add what another node's log knows of the same step."""
        self.time_s = other.time_s if self.time_s is None else self.time_s
        self.loss = other.loss if self.loss is None else self.loss
        self.rates = other.rates | self.rates
        for name in COUNTS:
            setattr(self, name, max(getattr(self, name), getattr(other, name)))


@dataclass(frozen=True)
class Statement:
    """A source's statement about the configuration: a figure of `STATEMENTS`, its value, and the
    source's text.
    """

    figure: str
    value: float
    source: str


class _NodeLog:
    """The log of one node, its steps by number, and whether lines were left out after the last
    one.
    """

    def __init__(self, path: Path) -> None:
        self.lines = LogLines(path)
        self.steps: dict[int, LoggedStep] = {}
        self.has_gap = False

    def new_lines(self) -> list[bytes]:
        """Return the lines of the next piece."""
        lines = self.lines.new_lines()
        self.has_gap = self.has_gap or self.lines.has_gap
        self.lines.has_gap = False
        return lines


class LogReader:
    """Follows the command's logs in a run folder, one for each node.

    Trainers print a step on the first rank, the last or all of them. Steps are those of the node
    that has logged most, whose times of arrival have one clock, completed by the others'.
    """

    def __init__(self, folder: Path, patterns: tuple[Pattern, ...], nodes: int = 1) -> None:
        self._nodes = [_NodeLog(folder / of_node(LOG, node)) for node in range(nodes)]
        self._patterns = [(pattern, marks_a_step(pattern)) for pattern in patterns]
        self._stated: dict[tuple[str, float], Statement] = {}
        self.peak_memory_bytes = 0

    @property
    def steps(self) -> list[LoggedStep]:
        """Return the steps logged so far, in the order of their arrival."""
        by_number = [node.steps for node in self._nodes]
        found = max(by_number, key=len)
        for others in by_number:
            for number in () if others is found else others.keys() & found.keys():
                found[number].complete(others[number])
        return list(found.values())

    @property
    def statements(self) -> tuple[Statement, ...]:
        """Return each value that the log states about the configuration, once."""
        return tuple(self._stated.values())

    def advance(self) -> bool:
        """Read the next piece of what is new, and return whether there was anything."""
        wrote = [self._advance(node) for node in self._nodes]
        return any(wrote)

    def read_all(self) -> bool:
        """Read all that is new, and return whether there was anything."""
        wrote = self.advance()
        while self.is_behind:
            self.advance()
        return wrote

    @property
    def is_behind(self) -> bool:
        """Return whether a log had more to read than one piece."""
        return any(node.lines.is_behind for node in self._nodes)

    def _advance(self, node: _NodeLog) -> bool:
        lines = node.new_lines()
        for line in lines:
            arrival, _, raw = line[:MAX_LINE_BYTES].partition(b" ")
            if raw.startswith(LEFT_OUT):
                node.has_gap = True
                continue
            text = COLORS.sub("", raw.decode("utf-8", errors="replace"))
            for pattern, marks in self._patterns:
                found = pattern.finditer(
                    text[:MAX_SEARCHED_CHARACTERS]
                )  # of memory, say: lines of two ranks may lack a newline
                for match in itertools.islice(found, 1) if marks else found:
                    self._add(node, figures_of(match), text, float(arrival), marks=marks)
        return bool(lines)

    def _add(
        self,
        node: _NodeLog,
        figures: Mapping[str, float],
        line: str,
        arrival_s: float,
        *,
        marks: bool,
    ) -> None:
        self.peak_memory_bytes = max(
            [self.peak_memory_bytes, *map(int, in_base_units(figures, PEAKS))]
        )
        for name in STATEMENTS:
            if name in figures:
                self._stated.setdefault(
                    (name, figures[name]), Statement(name, figures[name], line.strip())
                )
        steps = node.steps
        if marks and figures:
            number = int(figures.get("step", max(steps, default=0) + 1))
            if number not in steps:
                is_after_gap = node.has_gap and "step" not in figures
                steps[number] = LoggedStep(
                    number=number, arrival_s=arrival_s, is_after_gap=is_after_gap
                )
                node.has_gap = False
            steps[number].add(figures)
        elif steps:  # a loss, say, on a line of its own: of the step logged last
            next(reversed(steps.values())).add(figures)


@dataclass(frozen=True, kw_only=True)
class TimedStep:
    """One logged step with its time, the mean of those that it `covers`; `is_claimed` if the log
    states the time.
    """

    logged: LoggedStep
    time_s: float | None
    covers: int
    before: int
    is_claimed: bool

    @property
    def is_finite(self) -> bool:
        """Return whether the loss is finite, as far as the log states it."""
        loss = self.logged.loss
        return not self.logged.nan_steps and (loss is None or abs(loss) < float("inf"))


class Verdict(NamedTuple):
    """The measured step times, in seconds, without warm-up; `ended` if no more are needed."""

    times_s: tuple[float, ...]
    ended: ProbeEnding | None


def timed(steps: Sequence[LoggedStep], recipe: Recipe, problem: Problem) -> list[TimedStep]:
    """Return the logged steps with times: the log's own, else from its rate, else between two lines
    by our clock.
    """
    found: list[TimedStep] = []
    done = 0
    for place, step in enumerate(steps):
        previous = steps[place - 1] if place else None
        if step.number == 0 and step.time_s is None and not step.rates:
            continue
        covers = max(1, step.number - previous.number) if previous else 1
        claimed, rate = step.time_s, tokens_per_s_of(step, recipe, problem)
        if claimed is None and rate:
            claimed = tokens_per_step(recipe, problem) / rate
        time_s = claimed
        if claimed is None and previous and not step.is_after_gap:
            time_s = (step.arrival_s - previous.arrival_s) / covers
        is_claimed = claimed is not None
        found.append(
            TimedStep(logged=step, time_s=time_s, covers=covers, before=done, is_claimed=is_claimed)
        )
        done += covers
    return found


def tokens_per_s_of(step: LoggedStep, recipe: Recipe, problem: Problem) -> float | None:
    """Return the rate that the log states, as tokens/s of the whole job; None if it states none."""
    tokens = {
        "tokens_per_s": 1,
        "tokens_per_s_per_device": recipe.devices,
        "samples_per_s": problem.sequence_length,
    }
    return next(
        (step.rates[name] * factor for name, factor in tokens.items() if name in step.rates), None
    )


def counting(steps: Sequence[TimedStep], warm_up_steps: int) -> list[TimedStep]:
    """Return the lines that count: after the warm-up, and of steps whose gradients did not
    overflow.
    """
    return [
        step
        for step in steps
        if step.before >= warm_up_steps
        and not step.logged.skipped_steps
        and step.time_s is not None
    ]


def measured(steps: Sequence[TimedStep], warm_up_steps: int) -> list[float]:
    """Return the times of the lines that count."""
    return [step.time_s for step in counting(steps, warm_up_steps) if step.time_s is not None]


def verdict(
    steps: Sequence[TimedStep],
    settings: ProbeSettings,
    *,
    best_step_time_s: float | None,
    spent_s: float,
) -> Verdict:
    """Return the verdict on the steps so far, by the rules of our own probes
    (`trainer/probe_loop.py`).
    """
    times = measured(steps, settings.warm_up_steps)
    if not settings.is_adaptive:
        enough = len(times) >= (settings.measured_steps or 1)
        return Verdict(
            tuple(times[: settings.measured_steps]), ProbeEnding.FIXED if enough else None
        )
    if not all(0 < time_s < math.inf for time_s in times):
        # Such a log is implausible, whatever it says of further steps.
        return Verdict(tuple(times), ProbeEnding.LIMIT)
    most_dropped = max(0, settings.most_steps // 2 - settings.warm_up_steps)
    times = settled(times, most_dropped=most_dropped, tolerance=settings.precision / 2)
    most = settings.most_steps - settings.warm_up_steps
    ended = None
    if len(times) >= settings.min_measured_steps:
        found = ending(
            times, precision=settings.precision, best_step_time_s=best_step_time_s, most=most
        )
        late = spent_s + times[-1] > DEADLINE_SHARE * settings.deadline_s
        limit = ProbeEnding.LIMIT if late or len(times) >= most else None
        ended = limit if found is None else ProbeEnding(found)
    return Verdict(tuple(times), ended)


def why_inconsistent(steps: Sequence[TimedStep], recipe: Recipe, problem: Problem) -> str | None:
    """Return why the log's rates or times contradict each other or our clock, with both values, or
    None.
    """
    tokens = tokens_per_step(recipe, problem)
    pairs = [
        (rate, tokens / step.logged.time_s)
        for step in steps
        if step.logged.time_s and (rate := tokens_per_s_of(step.logged, recipe, problem))
    ]
    if pairs:
        stated, ours = (statistics.median(values) for values in zip(*pairs, strict=True))
        if abs(stated / ours - 1) > RATE_TOLERANCE:
            theirs = (
                f"the log says {stated:.6g} tokens/s, and its step time gives {ours:.6g} tokens/s"
            )
            return f"{theirs} with the recipe's {tokens} tokens per step"
    return check_clock(steps).contradiction


def check_clock(steps: Sequence[TimedStep]) -> clock.ClockCheck:
    """Compare the times that the log states with the arrival of its lines.

    Where lines were left out between two steps without numbers, the interval counts as it was
    observed, unless the log states more.
    """
    if not any(step.is_claimed for step in steps):
        return clock.ClockCheck(None, is_decided=True)  # all times are from our clock
    stated, before_s = list[clock.StatedTime](), 0.0
    for step in steps:
        arrival_s = step.logged.arrival_s
        stated_s = step.covers * (step.time_s or 0.0)
        if step.logged.is_after_gap:  # whether steps came in between is unknown
            stated_s = max(stated_s, arrival_s - before_s)
        stated.append(clock.StatedTime(arrival_s, stated_s))
        before_s = arrival_s
    return clock.compare(stated)
