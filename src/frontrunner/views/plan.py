"""Estimates on the terminal: a plan, scaling, and one recipe's breakdown."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import replace
from operator import attrgetter
from typing import Any

from rich.progress_bar import ProgressBar
from rich.table import Table

from frontrunner.evaluators.analytic.accuracy_bounds import Trust
from frontrunner.evaluators.analytic.breakdown import Breakdown, Measured
from frontrunner.evaluators.analytic.estimates import Estimate, ShownPlan
from frontrunner.evaluators.analytic.scaling import Bound, Scaling, ScalingRow
from frontrunner.evaluators.diagnostics.dryrun import why_untraceable
from frontrunner.text import counted, fit_verdict, gib, percent, seconds, thousands
from frontrunner.views.columns import ESTIMATES, FIGURES, LIMIT, PARTS, RECIPE, Column, limited_by
from frontrunner.views.terminal import column_table, console, ruled_table


def print_plan(plan: ShownPlan, *, file: str) -> None:
    """Print a plan, its front if that holds more than the first recipe, and the command for a closer look."""
    out = console()
    left_out = sum(plan.not_modelled.values())
    out.say(
        f"{plan.legal:,} legal recipes: {plan.fitting:,} are estimated to fit in {gib(plan.memory_limit_bytes)} GiB "
        "per device" + (f", {left_out:,} are not estimated" if left_out else "")
    )
    for reason, count in plan.not_modelled.items():
        out.say(f"note: {count:,} recipes are left out: the formulas do not cover {reason}", style="dim")
    tables = {"estimated, fastest first": plan.estimates}
    if len(plan.front) > 1:
        tables["speed against memory: what nothing else beats in both"] = plan.front[: len(plan.estimates)]
    for title, estimates in tables.items():
        rows = list(enumerate(estimates, start=1))
        if rows:
            out.print()
            out.print(column_table(title, ESTIMATES, rows, width=out.width, bold=lambda row: row[0] == 1))
    if plan.legal > left_out:
        out.print()
        print_trust(plan)
    for best in plan.estimates[:1]:
        closer = f"frontrunner explain --campaign {shlex.quote(file)} {best.recipe_id}"
        out.say(f"{closer}  # where the first recipe's step time and memory go", style="dim", whole=True)


def print_trust(trust: Trust | ShownPlan) -> None:
    """Print how far to trust the figures."""
    out = console()
    out.say(
        f"estimates, not measurements: expect step times to be off by {percent(trust.expected_error, 0)} on average; "
        "`frontrunner launch` measures",
        style="dim",
    )
    if trust.assumed:
        keys = ", ".join(f"cluster.{key}" for key in trust.assumed)
        out.say(f"unknown, and a common value assumed: {keys}", style="dim")
    for remark in trust.remarks:
        out.say(f"note: {remark}", style="dim")


def _global_batch(row: ScalingRow) -> str | None:
    """Return the best recipe's own, where the problem leaves a range."""
    if row.best is not None:
        return f"{row.best.recipe.global_batch_seqs:,}"
    batch = row.global_batch
    return None if batch is None else f"{batch.minimum:,}" if batch.is_fixed else str(batch)


_BEST: dict[str, Column[ScalingRow]] = {
    column.key: column.of(attrgetter("best")) for column in (*RECIPE, *FIGURES, LIMIT)
}
SCALING: tuple[Column[ScalingRow], ...] = (
    Column("nodes", "nodes", attrgetter("nodes"), "{:,}".format),
    Column("devices", "devices", attrgetter("devices"), "{:,}".format, drop=6),
    Column("global_batch", "global batch", _global_batch, drop=5),
    replace(_BEST["recipe_id"], title="best recipe", drop=1),
    _BEST["layout"],
    replace(_BEST["batch"], drop=7),
    replace(_BEST["sharding"], drop=8),
    replace(_BEST["step_time_s_median"], drop=4),
    _BEST["tokens_per_s"],
    Column("tokens_per_s_per_device", "tok/s/device", attrgetter("tokens_per_s_per_device"), thousands, drop=3),
    replace(_BEST["mfu"], drop=3),
    Column("efficiency", "efficiency", attrgetter("efficiency"), percent),
    replace(_BEST["peak_memory_bytes_max_rank"], drop=2),
    Column(
        "node_hours",
        "node-h / 1e9 tok",
        attrgetter("node_hours_per_billion_tokens"),
        lambda value: f"{value:#.3g}" if 0.01 <= value < 100 else thousands(value),
    ),
    replace(_BEST["limit"], drop=9),
)
"""The best recipe on each number of nodes."""


def print_scaling(found: Scaling) -> None:
    """Print both tables, the reasons of their gaps, and what may bound them."""
    out = console()
    tables = {
        "strong scaling: the same global batch on all": found.strong,
        "weak scaling: the global batch grows with the nodes": found.weak,
    }
    for title, rows in tables.items():
        out.print()
        out.print(column_table(title, SCALING, rows, width=out.width))
        for row in rows:
            if row.reason is not None:
                out.say(f"{counted(row.nodes, 'node')}: {row.reason}")
    out.say("\nefficiency: tokens/s per device relative to the smallest node count that has a recipe", style="dim")
    for bound in found.bounds:
        out.say(f"note: {_bounded(bound)}", style="dim")
    if found.devices_ignored:
        out.say("note: space.devices is ignored: each count uses all its devices", style="dim")
    print_trust(found.trust)


def _bounded(bound: Bound) -> str:
    *most, last = (f"{count:,}" for count in bound.nodes)
    nodes = f"{', '.join(most)} and {last} nodes" if most else f"{last} nodes"
    return (
        f"space.{bound.dimension} goes up to {bound.largest}, which is best on {nodes}: a longer list may hold "
        "something faster"
    )


def print_breakdown(found: Breakdown) -> None:
    """Print where a recipe's step time and memory go."""
    out = console()
    estimate, measured = found.estimate, found.measured
    out.say((estimate.recipe_id, "bold"), f"  {estimate.recipe.describe()}")
    out.print(_figures(found))
    with_recompute = ""
    if found.hardware_tflops_per_device > 1.001 * estimate.model_tflops_per_device:
        with_recompute = f"; {thousands(found.hardware_tflops_per_device)} with what is computed a second time"
    out.say(f"TFLOPS: per device, of the model's own work{with_recompute}", style="dim")
    if measured is not None:
        verdict = "within" if abs(found.step_time_error or 0.0) <= found.trust.expected_error else "beyond"
        out.say(
            f"measured by campaign {measured.campaign} of {measured.store}: "
            f"{counted(measured.repeats, 'measurement')}, steps spread by {percent(measured.step_time_spread)}; the "
            f"estimate is {verdict} its expected error of {percent(found.trust.expected_error, 0)}",
            style="dim",
        )
    out.say(f"limited by {limited_by(estimate)}")
    for table in (_step_table(found), _memory_table(found)):
        out.print()
        out.print(table)
    out.say(fit_verdict(estimate.peak_memory_bytes, found.memory_limit_bytes), style="bold")
    if estimate.host_memory_bytes_per_rank:
        out.say(f"in the host's memory: {gib(estimate.host_memory_bytes_per_rank)} GiB per rank")
    for mark in found.marks:
        out.say(f"note: {mark.text}", style="dim")
    print_trust(found.trust)
    if why_untraceable(estimate.recipe) is None:
        out.say("`frontrunner dryrun` traces the memory of the real step", style="dim")


def _figures(found: Breakdown) -> Table:
    """Return estimated and, where there are any, measured figures in a row each, and the error between them."""
    estimate, measured = found.estimate, found.measured
    table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False)
    table.add_column("", no_wrap=True)
    for title in ("step", "tokens/s", "tok/s/device", "TFLOPS", "MFU", "peak GiB"):
        table.add_column(title, justify="right", no_wrap=True, header_style="dim")
    rows: dict[str, Estimate | Measured] = {"estimated": estimate} | ({"measured": measured} if measured else {})
    for name, row in rows.items():
        tflops = estimate.model_tflops_per_device * row.tokens_per_s / estimate.tokens_per_s
        rates = map(thousands, (row.tokens_per_s, row.tokens_per_s / estimate.recipe.devices, tflops))
        table.add_row(name, seconds(row.step_time_s), *rates, percent(row.mfu), gib(row.peak_memory_bytes))
    if measured is not None:
        errors = ("-" if e is None else f"{100 * e:+.0f} %" for e in (found.step_time_error, found.peak_memory_error))
        step, memory = errors
        table.add_row("error", step, *4 * [""], memory, style="dim")
    return table


def _bar(amount: float, longest: float, style: str) -> ProgressBar:
    return ProgressBar(total=longest, completed=amount, style="bar.back", complete_style=style, finished_style=style)


def _step_table(found: Breakdown) -> Table:
    estimate = found.estimate
    parts = {name: time for name, time in estimate.step_parts_s.items() if time > 0}
    title = "the step, on the slowest rank of the pipeline" if len(found.ranks) > 1 else "the step"
    table = ruled_table(title, "part", ("time", "right"), ("share", "right"))
    table.add_column("", width=40)
    for name, time in parts.items():
        style = "red" if name == estimate.limit and name != "compute" else "cyan"
        share = percent(time / estimate.step_time_s)
        table.add_row(PARTS[name], seconds(time), share, _bar(time, max(parts.values()), style))
    table.add_section()
    table.add_row("step", seconds(estimate.step_time_s), "100.0 %", "", style="bold")
    return table


def _memory_table(found: Breakdown) -> Table:
    """Return a column per rank that differs; the bars are those of the fullest."""
    ranks, sizes = found.ranks, found.estimate.memory_parts_bytes
    is_split = len(ranks) > 1
    unit, name = (2**30, "GiB") if found.estimate.peak_memory_bytes >= 2**30 else (2**20, "MiB")
    heads = [f"{rank.holds}\n{counted(rank.layers, 'layer')}" if is_split else rank.holds for rank in ranks]
    table = ruled_table(f"memory, {name}", "part", *((head, "right") for head in heads))
    table.add_column("fullest rank" if is_split else "", width=None, max_width=40, ratio=1)

    def amounts(parts: Callable[[Any], float]) -> list[str]:
        return [f"{parts(rank) / unit:.2f}" for rank in ranks]

    for part, size in sizes.items():
        if any(rank.memory_parts_bytes[part] for rank in ranks):
            bar = _bar(size, max(sizes.values()), "magenta")
            table.add_row(part, *amounts(lambda rank, part=part: rank.memory_parts_bytes[part]), bar)  # type: ignore[misc]
    table.add_section()
    table.add_row("peak", *amounts(lambda rank: rank.peak_memory_bytes), "", style="bold")
    if is_split:
        table.add_row("busy", *(percent(rank.busy_s / found.estimate.step_time_s, 0) for rank in ranks), "")
    return table
