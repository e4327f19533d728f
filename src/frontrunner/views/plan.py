"""Estimates on the terminal: a plan, scaling, and one recipe's breakdown."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any

from rich.progress_bar import ProgressBar
from rich.table import Table

from frontrunner.evaluators.analytic.accuracy_bounds import Trust
from frontrunner.evaluators.analytic.breakdown import Breakdown, Measured
from frontrunner.evaluators.analytic.estimates import Estimate, Plan
from frontrunner.evaluators.analytic.scaling import Bound, Scaling, ScalingRow
from frontrunner.evaluators.diagnostics.dryrun import why_untraceable
from frontrunner.text import fit_verdict, gib, percent, seconds, thousands
from frontrunner.views.columns import ESTIMATES, FIGURES, LIMIT, PARTS, RECIPE, Column, limited_by
from frontrunner.views.terminal import Terminal, column_table, console, ruled_table


def print_plan(plan: Plan, *, top: int, file: str) -> None:
    """Print a plan, its front if that holds more than the first recipe, and the command for a closer look."""
    out = console()
    fitting = plan.table.fitting
    left_out = sum(plan.not_modelled.values())
    out.say(
        f"{plan.legal:,} legal recipes: {fitting:,} are estimated to fit in {gib(plan.memory_limit_bytes)} GiB "
        "per device" + (f", {left_out:,} are not estimated" if left_out else "")
    )
    for reason, count in plan.not_modelled.items():
        out.say(f"note: {count:,} recipes are left out: the formulas do not cover {reason}", style="dim")
    if fitting:
        _print_estimates(out, "estimated, fastest first", plan.fastest(top))
    if len(plan.front) > 1:
        _print_estimates(out, "speed against memory: what nothing else beats in both", plan.front[:top])
    if len(plan.table):
        out.print()
        print_trust(plan.trust)
    for best in plan.fastest(1):
        closer = f"frontrunner explain --campaign {shlex.quote(file)} {best.recipe_id}"
        out.say(f"{closer}  # where the first recipe's step time and memory go", style="dim", whole=True)


def _print_estimates(out: Terminal, title: str, estimates: Sequence[Estimate]) -> None:
    rows = list(enumerate(estimates, start=1))
    out.print()
    out.print(column_table(title, ESTIMATES, rows, width=out.width, bold=lambda row: row[0] == 1))


def print_trust(trust: Trust) -> None:
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
    if batch is None:
        return None
    return f"{batch.minimum:,}" if batch.minimum == batch.maximum else str(batch)


def _digits(value: float) -> str:
    """Return three digits throughout, so that a column reads as one."""
    return f"{value:#.3g}" if 0.01 <= value < 100 else thousands(value)


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
    Column("node_hours", "node-h / 1e9 tok", attrgetter("node_hours_per_billion_tokens"), _digits),
    replace(_BEST["limit"], drop=9),
)
"""The best recipe on each number of nodes."""


def print_scaling(found: Scaling) -> None:
    """Print both tables, the reasons of their gaps, and what may bound them."""
    out = console()
    _print_scaling(out, "strong scaling: the same global batch on all", found.strong)
    _print_scaling(out, "weak scaling: the global batch grows with the nodes", found.weak)
    out.say("\nefficiency: tokens/s per device relative to the smallest node count that has a recipe", style="dim")
    for bound in found.bounds:
        out.say(f"note: {_bounded(bound)}", style="dim")
    if found.devices_ignored:
        out.say("note: space.devices is ignored: each count uses all its devices", style="dim")
    print_trust(found.trust)


def _print_scaling(out: Terminal, title: str, rows: Sequence[ScalingRow]) -> None:
    out.print()
    out.print(column_table(title, SCALING, rows, width=out.width))
    for row in rows:
        if row.reason is not None:
            out.say(f"{row.nodes:,} node{'s' if row.nodes > 1 else ''}: {row.reason}")


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
        out.say(_source(measured, found), style="dim")
    out.say(f"limited by {limited_by(estimate)}")
    out.print()
    out.print(_step_table(found))
    out.print()
    out.print(_memory_table(found))
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
    titles = ("step", "tokens/s", "tok/s/device", "TFLOPS", "MFU", "peak GiB")
    table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False)
    table.add_column("", no_wrap=True)
    for title in titles:
        table.add_column(title, justify="right", no_wrap=True, header_style="dim")
    rows: dict[str, Estimate | Measured] = {"estimated": estimate}
    if measured is not None:
        rows["measured"] = measured
    for name, row in rows.items():
        tflops = estimate.model_tflops_per_device * row.tokens_per_s / estimate.tokens_per_s
        rates = (row.tokens_per_s, row.tokens_per_s / estimate.recipe.devices, tflops)
        table.add_row(
            name, seconds(row.step_time_s), *map(thousands, rates), percent(row.mfu), gib(row.peak_memory_bytes)
        )
    if measured is not None:
        table.add_row("error", _signed(found.step_time_error), *4 * [""], _signed(found.peak_memory_error), style="dim")
    return table


def _source(measured: Measured, found: Breakdown) -> str:
    """Return where a measurement comes from, and whether the estimate is as far off as it may be."""
    times = f"{measured.repeats} measurements" if measured.repeats > 1 else "1 measurement"
    verdict = "within" if abs(found.step_time_error or 0.0) <= found.trust.expected_error else "beyond"
    return (
        f"measured by campaign {measured.campaign} of {measured.store}: {times}, steps spread "
        f"by {percent(measured.step_time_spread)}; the estimate is {verdict} its expected error of "
        f"{percent(found.trust.expected_error, 0)}"
    )


def _signed(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:+.0f} %"


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
    unit, name = (2**30, "GiB") if found.estimate.peak_memory_bytes >= 2**30 else (2**20, "MiB")
    heads = [rank.holds for rank in ranks]
    if len(ranks) > 1:
        heads = [f"{rank.holds}\n{rank.layers} layer{'' if rank.layers == 1 else 's'}" for rank in ranks]
    table = ruled_table(f"memory, {name}", "part", *((head, "right") for head in heads))
    table.add_column("fullest rank" if len(ranks) > 1 else "", width=None, max_width=40, ratio=1)

    def amounts(parts: Callable[[Any], float]) -> list[str]:
        return [f"{parts(rank) / unit:.2f}" for rank in ranks]

    for part, size in sizes.items():
        if any(rank.memory_parts_bytes[part] for rank in ranks):
            bar = _bar(size, max(sizes.values()), "magenta")
            table.add_row(part, *amounts(lambda rank, part=part: rank.memory_parts_bytes[part]), bar)  # type: ignore[misc]
    table.add_section()
    table.add_row("peak", *amounts(lambda rank: rank.peak_memory_bytes), "", style="bold")
    if len(ranks) > 1:
        table.add_row("busy", *(percent(rank.busy_s / found.estimate.step_time_s, 0) for rank in ranks), "")
    return table
