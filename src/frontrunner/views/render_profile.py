"""A profile as it is printed: the parts of a step by group of ranks, what was hidden, and what the profiler cost."""

from __future__ import annotations

import re
from itertools import dropwhile

from rich.console import Console
from rich.table import Table

from frontrunner.evaluators.diagnostics.profiling.breakdown import Part
from frontrunner.evaluators.diagnostics.profiling.run import ProfileReport
from frontrunner.text import percent, plain, seconds
from frontrunner.views.render import console, titled_table

ALWAYS = (Part.COMPUTE, Part.OPTIMIZER, Part.DATA)
"""The parts that are shown even where nothing went there; communication only where a rank waited for it."""

LEAST_SHARE = 0.0005
"""Of a step: what is less on every rank is not shown, it would read 0.0 %."""

BINDING = re.compile(r"pybind11_detail_\w+\.")
"""What stands before the names of torch's functions in C++, of no use to a reader."""

MOST_STAGES = 4
MOST_TREE_LINES = 40


def print_profile(report: ProfileReport) -> None:
    """Everything but the traces themselves."""
    out = console()
    out.print(f"[bold]{report.recipe_id}[/bold]  {report.recipe.describe()}")
    out.print(_table(report))
    _print_notes(out, report)
    _print_cost(out, report)
    if report.host_trees:
        _print_tree(out, report)
    ranks = f"all {len(report.ranks)} ranks" if len(report.ranks) > 1 else "the rank"
    out.print(f"trace of {ranks}, for Perfetto: {report.joined_trace}", markup=False, soft_wrap=True)


def _table(report: ProfileReport) -> Table:
    ranks = len(report.ranks)
    slowest = report.slowest_rank
    columns = {"mean": report.mean}
    if ranks > 1:
        columns[f"rank {slowest}, slowest"] = report.ranks[slowest]
    if 1 < len(report.stages) <= MOST_STAGES:
        columns |= {f"stage {place}": found for place, found in report.stages.items()}
    title = f"a step, mean of {report.steps}, over {ranks} ranks" if ranks > 1 else f"a step, mean of {report.steps}"
    table = titled_table(title)
    table.add_column("part", no_wrap=True)
    for name in ("share", *columns):
        table.add_column(name, justify="right", no_wrap=True)
    for part in _shown(report):
        times = [_milliseconds(found.seconds[part]) for found in columns.values()]
        share = percent(report.mean.seconds[part] / report.mean.step_time_s)
        table.add_row(_label(part, report), share, *times)
    table.add_section()
    table.add_row("step", "100.0 %", *(_milliseconds(found.step_time_s) for found in columns.values()), style="bold")
    return table


def _shown(report: ProfileReport) -> list[Part]:
    """What was computed first, then what was waited for."""
    others = [part for part in Part if part.moves_data and _most(report, part) >= LEAST_SHARE]
    return [*ALWAYS, *others, Part.IDLE]


def _most(report: ProfileReport, part: Part) -> float:
    """The largest share of its step that any rank spent in a part."""
    return max(rank.seconds[part] / rank.step_time_s for rank in report.ranks)


def _milliseconds(time_s: float) -> str:
    """One digit after the point throughout, so that a column adds up."""
    return f"{1000 * time_s:,.1f} ms"


def _label(part: Part, report: ProfileReport) -> str:
    if part == Part.COMPUTE:
        return "compute (forward, backward)"
    if part == Part.SEND_RECV and report.recipe.pipeline_parallel > 1:
        return "send/recv, pipeline bubble"
    if part == Part.IDLE and report.on_cpu:
        return "host (Python, dispatch)"
    return str(part)


def _print_notes(out: Console, report: ProfileReport) -> None:
    """What the table does not say of itself."""
    if len(report.ranks) > 1:
        out.print(
            "communication: the time that a rank waited for it, a slower rank included; "
            "slowest: the rank that waited least",
            soft_wrap=True,
        )
    hidden = {part: time for part, time in report.mean.hidden.items() if time > 0}
    if hidden:
        shown = ", ".join(f"{part} {seconds(time)}" for part, time in hidden.items())
        out.print(f"hidden behind computing, in no part: {shown}")


def _print_cost(out: Console, report: ProfileReport) -> None:
    """The profiler's own cost, beside what was measured without it."""
    measured = report.measured_step_time_s
    probed = "" if measured is None else f"; the campaign's probe measured {seconds(measured)}"
    out.print(
        f"step: {seconds(report.mean.step_time_s)} traced, {seconds(report.step_time_s_untraced)} untraced in the "
        f"same run ({report.tracing_slowdown:.2f} times){probed}",
        soft_wrap=True,
    )


def _print_tree(out: Console, report: ProfileReport) -> None:
    """The tree of the slowest rank."""
    path = report.host_trees[report.slowest_rank]
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    lines = list(dropwhile(lambda line: not line[0].isdigit(), lines))  # its banner
    out.print(f"\nPython on rank {report.slowest_rank}, by pyinstrument:", style="bold")
    for line in lines[:MOST_TREE_LINES]:
        out.print(plain(BINDING.sub("", line)), markup=False, overflow="ellipsis", no_wrap=True)
    if len(lines) > MOST_TREE_LINES:
        out.print(f"... {len(lines) - MOST_TREE_LINES} more lines in {path}", markup=False, soft_wrap=True)
