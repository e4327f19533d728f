"""Step time from a log's steps: which are warm-up, whether there are enough, and what contradicts itself."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from frontrunner.evaluators.external.logs import LoggedStep
from frontrunner.evaluators.probe.job import DEADLINE_SHARE
from frontrunner.evaluators.probe.measure import tokens_per_step
from frontrunner.evaluators.probe.settings import ProbeSettings
from frontrunner.evaluators.trainer.step_time_stats import ending, settled
from frontrunner.results.outcome import ProbeEnding
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import Recipe

RATE_TOLERANCE = 0.1
"""How far a rate in the log may differ from the one that follows from tokens and step time: trainers round, and may
exclude the reading of data or the optimizer."""
SLOWER_PACE = 2.0
"""A time between two lines, by our clock, of this many times the log's step time is not believed."""
TIMING_SLACK_S = 2.0
"""How long buffers may delay output, and a trainer be busy between two steps."""


@dataclass(frozen=True, kw_only=True)
class TimedStep:
    """One logged step with its time, the mean of the steps that it `covers`; `before` is the number of earlier steps.

    `is_claimed` is True if the log states the time.
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


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The measured step times, in seconds, without warm-up; `ended` if no more are needed."""

    times_s: tuple[float, ...]
    ended: ProbeEnding | None


def timed(steps: Sequence[LoggedStep], recipe: Recipe, problem: Problem) -> list[TimedStep]:
    """Return the logged steps with their times.

    A time is the log's own; else it follows from the log's rate and the recipe's tokens; else it is the time between
    two lines by our clock, divided by the steps between them. If a trainer logs every k-th step a time is the mean of
    k. A step 0 without a time, as of a progress bar, is where the clock starts.
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
        time_s = (step.arrival_s - previous.arrival_s) / covers if claimed is None and previous else claimed
        is_claimed = claimed is not None
        found.append(TimedStep(logged=step, time_s=time_s, covers=covers, before=done, is_claimed=is_claimed))
        done += covers
    return found


def tokens_per_s_of(step: LoggedStep, recipe: Recipe, problem: Problem) -> float | None:
    """Return the rate that the log states, as tokens/s of the whole job; None if it states none."""
    tokens = {"tokens_per_s": 1, "tokens_per_s_per_device": recipe.devices, "samples_per_s": problem.sequence_length}
    return next((step.rates[name] * factor for name, factor in tokens.items() if name in step.rates), None)


def measured(steps: Sequence[TimedStep], warm_up_steps: int) -> list[float]:
    """Return the times that count: after the warm-up, and of steps without gradients that overflowed."""
    counting = (step for step in steps if step.before >= warm_up_steps and not step.logged.skipped_steps)
    return [step.time_s for step in counting if step.time_s is not None]


def verdict(
    steps: Sequence[TimedStep], settings: ProbeSettings, *, best_step_time_s: float | None, spent_s: float
) -> Verdict:
    """Return the verdict on the steps so far, by the rules of our own probes (`trainer/probe_loop.py`)."""
    times = measured(steps, settings.warm_up_steps)
    if not settings.is_adaptive:
        enough = len(times) >= (settings.measured_steps or 1)
        return Verdict(times_s=tuple(times[: settings.measured_steps]), ended=ProbeEnding.FIXED if enough else None)
    most_dropped = max(0, settings.most_steps // 2 - settings.warm_up_steps)
    times = settled(times, most_dropped=most_dropped, tolerance=settings.precision / 2)
    most = settings.most_steps - settings.warm_up_steps
    ended = None
    if len(times) >= settings.min_measured_steps:
        found = ending(times, precision=settings.precision, best_step_time_s=best_step_time_s, most=most)
        late = spent_s + times[-1] > DEADLINE_SHARE * settings.deadline_s
        limit = ProbeEnding.LIMIT if late or len(times) >= most else None
        ended = limit if found is None else ProbeEnding(found)
    return Verdict(times_s=tuple(times), ended=ended)


def why_inconsistent(steps: Sequence[TimedStep], recipe: Recipe, problem: Problem) -> str | None:
    """Return why the log's times cannot be true, with both values; None if nothing contradicts them.

    Compare the log's rate with the one that follows from its step time, and its step times with our own clock.
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
            return (
                f"the log says {stated:.6g} tokens/s, and its step time gives {ours:.6g} tokens/s with the recipe's "
                f"{tokens} tokens per step"
            )
    claimed = [(step, step.time_s) for step in steps if step.is_claimed and step.time_s is not None]
    if len(claimed) < 2:
        return None
    first, last = claimed[0][0].logged, claimed[-1][0].logged
    in_all = sum(step.covers * seconds for step, seconds in claimed)
    if in_all > last.arrival_s * (1 + RATE_TOLERANCE) + TIMING_SLACK_S:
        return f"the log's steps take {in_all:.4g} s in all, and came within {last.arrival_s:.4g} s by our clock"
    usual = statistics.median(seconds for _, seconds in claimed)
    count, span = last.number - first.number, last.arrival_s - first.arrival_s
    if span > SLOWER_PACE * count * usual and span - count * usual > TIMING_SLACK_S:
        return f"the log's median step takes {usual:.4g} s, and by our clock one takes {span / count:.4g} s"
    return None
