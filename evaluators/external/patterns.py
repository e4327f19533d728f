"""What regular expressions find in a trainer's log: the names of their groups say the figure and its unit."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from frontrunner.spaces.errors import InvalidInput, bad_value, did_you_mean

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
    "micro_batch_seqs",
    "accumulation",
    "global_batch_seqs",
    "sequence_length",
    "devices",
    "tensor_parallel",
    "pipeline_parallel",
    "context_parallel",
    "data_parallel",
    "zero_stage",
)
"""What a trainer says of its own configuration: it must be the recipe's and the problem's."""
GROUPS = ("step", "loss", *TIMES, *PEAKS, *RATES, *COUNTS, *STATEMENTS)
MARKS = frozenset(("step", *TIMES, *RATES))
"""A line in which one of these is found tells of a finished step."""

LARGEST_FIGURE = 2.0**62
"""No step, time or memory is larger; what a database holds as a whole number."""
THOUSANDS = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12}
NUMBER = re.compile(r"([-+]?[0-9][0-9,_]*(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?|[-+]?\.[0-9]+)\s?([KMGBT]?)", re.ASCII)
NOT_FINITE = {"nan": math.nan, "inf": math.inf, "infinity": math.inf}
LONGEST_LINE = 4000
"""Characters of a line that are searched; what is longer holds no figure that a person would read."""


@dataclass(frozen=True)
class Pattern:
    """One regular expression whose named groups are among `GROUPS`."""

    expression: re.Pattern[str]

    @classmethod
    def of(cls, text: str) -> Pattern:
        """The pattern of a regular expression; raises `InvalidInput` for one that is none, or finds nothing known."""
        try:
            expression = re.compile(text)
        except (re.error, OverflowError, RecursionError) as error:
            raise bad_value("command.log_patterns", text, f"a regular expression; here: {error}") from None
        if not expression.groupindex:
            expected = "a named group, as (?P<step_time_ms>[0-9.]+)"
            raise bad_value("command.log_patterns", text, expected, hint=f"known: {', '.join(GROUPS)}")
        for name in expression.groupindex:
            if name not in GROUPS:
                message = f"command.log_patterns: no figure is called {name} in {text!r}"
                raise InvalidInput(message, hint=did_you_mean(name, GROUPS))
        return cls(expression)

    @property
    def marks_a_step(self) -> bool:
        """Whether it finds finished steps."""
        return any(name in MARKS for name in self.expression.groupindex)

    def found(self, line: str) -> dict[str, float] | None:
        """The figures of one line, in the units of their names; None where the pattern does not fit.

        A group that holds no number is left out, and so is one above `LARGEST_FIGURE`; a loss may be anything.
        """
        match = self.expression.search(line[:LONGEST_LINE])
        if match is None:
            return None
        numbers = {name: number(text) for name, text in match.groupdict().items() if text is not None}
        return {
            name: value
            for name, value in numbers.items()
            if value is not None and (name == "loss" or abs(value) <= LARGEST_FIGURE)  # False for NaN
        }


def patterns_of(texts: Iterable[str]) -> tuple[Pattern, ...]:
    """The patterns of regular expressions, of which one must find finished steps."""
    found = tuple(Pattern.of(text) for text in texts)
    if not any(pattern.marks_a_step for pattern in found):
        expected = f"a regular expression that finds a finished step, with a group of {', '.join(sorted(MARKS))}"
        raise bad_value("command.log_patterns", [] if found else None, expected)
    return found


def number(text: str) -> float | None:
    """A number as trainers print it: 1,234 and 7.03e3, 11.5K and 85.8G by thousands, nan and inf; None for others."""
    cleaned = text.strip().strip("'\"")
    lowered = cleaned.lower().lstrip("+-")
    if lowered in NOT_FINITE:
        return -NOT_FINITE[lowered] if cleaned.startswith("-") else NOT_FINITE[lowered]
    match = NUMBER.fullmatch(cleaned)
    if match is None:
        return None
    return float(match[1].replace(",", "").replace("_", "")) * THOUSANDS[match[2]]


def in_base_units(figures: Mapping[str, float], units: Mapping[str, float]) -> Iterator[float]:
    """Those of the figures that `units` names, in seconds or bytes."""
    return (figures[name] * factor for name, factor in units.items() if name in figures)
