"""Timeline of a step on a terminal: one row per pipeline rank, one character per moment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rich.text import Text

from frontrunner.evaluators.analytic.timeline import KINDS, Action, RankTimeline, StepTimeline
from frontrunner.text import counted, gib, percent, seconds
from frontrunner.views.terminal import console


class Look(NamedTuple):
    """The character and the style of what a rank does."""

    character: str
    style: str


LOOKS: Mapping[str, Look] = {
    "F": Look("F", "blue"), "B": Look("B", "green"), "I": Look("I", "green"),
    "W": Look("W", "cyan"),
    "recompute": Look("R", "magenta"), "tensor_parallel": Look("t", "bright_red"),
    "context_parallel": Look("c", "bright_cyan"), "expert_parallel": Look("e", "bright_yellow"),
    "receive": Look(">", "magenta"), "send": Look("<", "magenta"), "replicas": Look("=", "red"),
    "reduce": Look("r", "red"), "gather": Look("g", "bright_magenta"), "host": Look("h", "red"),
    "optimizer": Look("O", "yellow"), "bubble": Look(".", "dim"),
}  # fmt: skip
WITHIN = {
    "recompute": "recompute", "tensor_parallel": "tensor-parallel collectives",
    "context_parallel": "context-parallel collectives",
    "expert_parallel": "expert-parallel collectives",
}  # fmt: skip
"""What a pass is spent on besides its own computing."""
MOST_ROWS, WIDEST, LEAST, AROUND = 16, 120, 24, 40
"""Rows that are printed, the longest and the shortest row, and the room for what stands around
it.
"""


def print_timeline(found: StepTimeline) -> None:
    """Print one step, with the ranks' bubbles and peaks; of many ranks an even selection with both
    ends.
    """
    out = console()
    width = max(min(out.width - AROUND, WIDEST), LEAST)
    rows = shown_ranks(found)
    out.say("\none step, by pipeline rank", style="bold")
    for rank in rows:
        text = Text(f"{f'rank {rank.rank}':>8}  ")
        for kind in cells(apart(rank.actions, found.pass_parts_s), found.step_time_s, width):
            text.append(*LOOKS[kind])
        text.append(
            f"  bubble {percent(rank.bubble_s / found.step_time_s):>6} "
            f" {gib(rank.peak_memory_bytes):>6} GiB"
        )
        out.print(text, soft_wrap=True)
    used = {one.kind for rank in found.ranks for one in rank.actions}
    used |= {name for stages in found.pass_parts_s.values() for parts in stages for name in parts}
    names = [
        f"{LOOKS[kind].character} {words}"
        for kind, words in {**KINDS, **WITHIN}.items()
        if kind in used
    ]
    out.say("; ".join(names), style="dim")
    left = len(found.ranks) - len(rows)
    stands = f"a row stands for {counted(found.ranks[0].devices, 'equal device')}" + (
        f"; {left} of {len(found.ranks)} pipeline ranks are not shown" if left else ""
    )
    out.say(
        f"{seconds(found.step_time_s)}, of which bubble {percent(found.bubble_share)}, the mean of"
        f" all ranks ({percent(found.formula_bubble_share)} by the formulas, on the slowest rank);"
        f" {stands}",
        style="dim",
    )
    for words in found.differences:
        out.say(words, style="dim")
    out.print()


def shown_ranks(found: StepTimeline) -> list[RankTimeline]:
    """Return the ranks to print: all, or an even selection with the first and the last."""
    most = min(len(found.ranks), MOST_ROWS)
    last = len(found.ranks) - 1
    return [found.ranks[place * last // max(most - 1, 1)] for place in range(most)]


def apart(
    actions: Sequence[Action], parts_s: Mapping[str, Sequence[Mapping[str, float]]]
) -> list[Action]:
    """Return actions with each pass as what it is spent on, one after the other, its own computing
    last.
    """
    found = []
    for one in actions:
        kinds = "IW" if one.kind == "B" else one.kind
        rows = (
            [parts_s[kind][one.stage] for kind in kinds if kind in parts_s]
            if one.stage is not None
            else []
        )
        times = {name: sum(row.get(name, 0.0) for row in rows) for name in WITHIN}
        total, begin_s = sum(sum(row.values()) for row in rows), one.begin_s
        for name, time_s in times.items():
            if time_s:
                end_s = begin_s + (one.end_s - one.begin_s) * time_s / total
                found.append(one._replace(kind=name, begin_s=begin_s, end_s=end_s))
                begin_s = end_s
        found.append(one._replace(begin_s=begin_s))
    return found


def cells(actions: Sequence[Action], step_time_s: float, width: int) -> list[str]:
    """Return what stands in each of `width` equal parts of the step.

    Where several things happen in one, they take turns over the row by their shares.
    """
    found, place, due = list[str](), 0, dict[str, float]()
    for cell in range(width):
        begin, end = cell * step_time_s / width, (cell + 1) * step_time_s / width
        here = set()
        while place < len(actions):
            one = actions[place]
            here.add(one.kind)
            due[one.kind] = due.get(one.kind, 0.0) + (
                min(one.end_s, end) - max(one.begin_s, begin)
            ) / (end - begin)
            if one.end_s > end:
                break
            place += 1
        found.append(max(here, key=lambda kind: due[kind]) if here else found[-1])
        due[found[-1]] = due.get(found[-1], 0.0) - 1
    return found
