"""The panel of a running campaign: what a person wants to see at one glance, in lines that never wrap."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Group
from rich.text import Text

from frontrunner.results.outcome import Failure, Measurement
from frontrunner.search.budget import Limit
from frontrunner.search.listener import LAST_OUTCOMES, Ended, RunningProbe, View
from frontrunner.search.strategy import Outlook
from frontrunner.text import gib, percent, plain, seconds, thousands

LABEL_WIDTH = 11
BAR_WIDTH = 30
NUMBERS_WIDTH = 42
"""What the numbers of a measurement take at most; a recipe's text gets the rest of the line."""
MOST_RUNNING = 6
"""So many running probes are shown one by one."""


@dataclass(kw_only=True)
class Heights:
    """The most lines that the running probes have taken so far: kept, so that the panel does not jump."""

    running: int = 1


def panel(view: View, *, width: int, heights: Heights | None) -> Group:
    """The whole picture: budget, counts, best so far, what runs, and the last outcomes.

    With `heights` the panel is padded to a steady height; without it holds no empty lines.
    """
    lines = [_head(view, width), *map(_limit, view.limits), _counts(view), _best(view, width)]
    if view.outlook is not None:
        lines.append(Text(f"{'outlook':<{LABEL_WIDTH}}", style="dim").append(_outlook(view.outlook), style="not dim"))
    running = list(_running(view))
    last = list(_last(view, width))
    if heights is not None:
        heights.running = max(heights.running, len(running))
        running += [Text()] * (heights.running - len(running))
        last += [Text()] * (LAST_OUTCOMES - len(last))
    lines += [*_labelled("running", running), *_labelled("last", last)]
    for line in lines:
        line.no_wrap, line.overflow = True, "ellipsis"
    return Group(*lines)


def _labelled(label: str, lines: list[Text]) -> Iterator[Text]:
    for number, line in enumerate(lines):
        yield Text(f"{'' if number else label:<{LABEL_WIDTH}}", style="dim").append_text(line)


def _head(view: View, width: int) -> Text:
    text = Text(view.name, style="bold")
    text.append(f"  {view.strategy} over {view.legal_recipes:,} legal recipes", style="not bold")
    if view.figures != "measured":
        text.append(f", {view.figures}", style="not bold yellow")
    if view.seconds_left is not None and view.seconds_left >= 1:
        left = f"about {seconds(round(view.seconds_left))} left"
        text.append(left.rjust(max(2 + len(left), min(width, 100) - text.cell_len)), style="not bold")
    return text


def _limit(limit: Limit) -> Text:
    done = round(BAR_WIDTH * limit.share)
    text = Text(f"{limit.name:<{LABEL_WIDTH}}", style="dim")
    text.append("━" * done, style="green").append("━" * (BAR_WIDTH - done), style="bright_black")
    return text.append(f"  {limit.used:.3g} of {limit.allowed:.3g}", style="not dim")


def _counts(view: View) -> Text:
    failed = "".join(f", {count} {kind}" for kind, count in view.failures.items())
    text = Text(f"{'outcomes':<{LABEL_WIDTH}}", style="dim")
    return text.append(f"{view.measured} {view.figures}{failed}", style="not dim")


def _best(view: View, width: int) -> Text:
    text = Text(f"{'best':<{LABEL_WIDTH}}", style="dim")
    if view.best is None:
        return text.append(f"nothing {view.figures} yet", style="not dim")
    return text.append_text(_outcome(view.best, _recipe_width(view, width), style="bold green"))


def _outlook(outlook: Outlook) -> str:
    """What is left to gain, short enough for a narrow terminal."""
    shares = (outlook.expected_improvement, outlook.share_below, outlook.share_below_at_most)
    gain, below, most = (percent(share) for share in shares)
    what = "front" if outlook.of_front else "best"
    return f"next probe +{gain}; {what} {below} (at most {most}) below the space's"


def _running(view: View) -> Iterator[Text]:
    shown = view.running if len(view.running) <= MOST_RUNNING else view.running[: MOST_RUNNING - 1]
    for probe in shown:
        yield Text(f"[{probe.number}] {probe.recipe.describe()}  {_progress(probe)}")
    if len(shown) < len(view.running):
        yield Text(f"and {len(view.running) - len(shown)} more")


def _progress(probe: RunningProbe) -> str:
    """What a probe does, with the time first: its width changes least."""
    elapsed = f"{probe.seconds:.0f} s"
    if probe.progress is None:
        return elapsed
    steps = f"step {probe.progress.steps_done} of at most {probe.progress.steps_total}"
    return f"{elapsed}, {steps if probe.progress.phase == 'stepping' else probe.progress.phase}"


def _last(view: View, width: int) -> Iterator[Text]:
    for ended in reversed(view.last):
        yield _outcome(ended, _recipe_width(view, width), style="red" if isinstance(ended.outcome, Failure) else "")


def _recipe_width(view: View, width: int) -> int:
    """One width for every recipe shown, so that the numbers stand under one another."""
    shown = [*view.last, *([view.best] if view.best else [])]
    longest = max((len(_named(ended)) for ended in shown), default=0)
    return max(12, min(longest, width - LABEL_WIDTH - NUMBERS_WIDTH))


def _named(ended: Ended) -> str:
    return f"[{ended.number}] {ended.recipe.describe()}"


def _outcome(ended: Ended, recipe_width: int, *, style: str) -> Text:
    name = Text(_named(ended))
    name.truncate(recipe_width, overflow="ellipsis", pad=True)
    outcome = ended.outcome
    if not isinstance(outcome, Measurement):
        return name.append(f"  {outcome_line(ended)}", style=style)
    step = f"{seconds(outcome.step_time_s_median)} ± {percent(outcome.step_time_spread, 0)}"
    memory = f"{gib(outcome.peak_memory_bytes_max_rank)} GiB"
    return name.append(f"  {thousands(outcome.tokens_per_s):>7} tok/s  {step:>15}  {memory:>9}", style=style)


def outcome_line(ended: Ended) -> str:
    """One outcome in a few words."""
    outcome = ended.outcome
    if isinstance(outcome, Measurement):
        return (
            f"{thousands(outcome.tokens_per_s)} tokens/s, step {seconds(outcome.step_time_s_median)} "
            f"± {percent(outcome.step_time_spread, 0)}, peak {gib(outcome.peak_memory_bytes_max_rank)} GiB"
        )
    again = ", will be tried again" if ended.will_retry else ""
    return plain(f"{outcome.kind}: {outcome.message[:120]}{again}").replace("\n", " ")
