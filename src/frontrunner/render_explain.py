"""One recipe's estimate on the terminal: what its step and its memory go to, as tables with bars."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table

from frontrunner.evaluators.analytic.breakdown import Breakdown, Measured, PipelineRank
from frontrunner.render import console
from frontrunner.render_plan import WORDS, limited_by, print_trust
from frontrunner.text import gib, percent, plain, seconds, thousands

EIGHTHS = " ▏▎▍▌▋▊▉"
LONGEST_BAR = 40
SHORTEST_BAR = 10


def print_breakdown(found: Breakdown) -> None:
    """Everything but the numbers that only programs want."""
    out = console()
    out.print(f"[bold]{found.estimate.recipe_id}[/bold]  {found.estimate.recipe.describe()}", soft_wrap=True)
    _print_figures(out, found)
    out.print()
    out.print(_step_table(found, out.width))
    out.print()
    out.print(_memory_table(found, out.width))
    _print_fit(out, found)
    for mark in found.marks:
        out.print(f"note: {mark.text}", style="dim")
    print_trust(found.trust)
    out.print("`frontrunner dryrun` traces the memory of the real step", style="dim")


def _print_figures(out: Console, found: Breakdown) -> None:
    """Estimated and, where there is one, measured figures under one another."""
    table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False)
    for title in ("", "step", "tokens/s", "a device", "TFLOPS", "MFU", "peak GiB"):
        table.add_column(title, justify="right" if title else "left", no_wrap=True, header_style="dim")
    estimate, measured = found.estimate, found.measured
    table.add_row(
        "estimated",
        seconds(estimate.step_time_s),
        thousands(estimate.tokens_per_s),
        thousands(found.tokens_per_s_per_device),
        thousands(estimate.model_tflops_per_device),
        percent(estimate.mfu),
        gib(estimate.peak_memory_bytes),
    )
    if measured is not None:
        devices = estimate.recipe.devices
        table.add_row(
            "measured",
            seconds(measured.step_time_s),
            thousands(measured.tokens_per_s),
            thousands(measured.tokens_per_s / devices),
            thousands(estimate.model_tflops_per_device * measured.tokens_per_s / estimate.tokens_per_s),
            percent(measured.mfu),
            gib(measured.peak_memory_bytes),
        )
        table.add_row(
            "error", _signed(found.step_time_error), "", "", "", "", _signed(found.peak_memory_error), style="dim"
        )
    out.print(table)
    with_recompute = ""
    if found.hardware_tflops_per_device > 1.001 * estimate.model_tflops_per_device:
        with_recompute = f"; {thousands(found.hardware_tflops_per_device)} with what is computed a second time"
    out.print(f"TFLOPS: a device's, of the model's own work{with_recompute}", style="dim")
    if measured is not None:
        out.print(_source(measured, found), style="dim", markup=False, soft_wrap=True)
    out.print(f"limited by {limited_by(estimate)}")


def _source(measured: Measured, found: Breakdown) -> str:
    """Where a measurement comes from, and whether the estimate is as far off as it may be."""
    times = f"{measured.repeats} measurements" if measured.repeats > 1 else "1 measurement"
    within = abs(found.step_time_error or 0.0) <= found.trust.expected_error
    verdict = "within" if within else "beyond"
    return plain(
        f"measured by campaign {measured.campaign} of {measured.store}: {times}, steps ± "
        f"{percent(measured.step_time_spread)}; the estimate is {verdict} its expected error of "
        f"{percent(found.trust.expected_error, 0)}"
    )


def _signed(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:+.0f} %"


def _step_table(found: Breakdown, width: int) -> Table:
    parts = {name: time for name, time in found.estimate.step_parts_s.items() if time > 0}
    table = _table("the step, on the slowest rank of the pipeline" if len(found.ranks) > 1 else "the step")
    for title in ("part", "time", "share"):
        table.add_column(title, justify="left" if title == "part" else "right", no_wrap=True)
    table.add_column("", no_wrap=True)
    room = bar_width(width, 36)
    longest = max(parts.values())
    for name, time in parts.items():
        style = "red" if name == found.estimate.limit and name != "compute" else "cyan"
        share = percent(time / found.estimate.step_time_s)
        table.add_row(WORDS[name], seconds(time), share, f"[{style}]{bar(time / longest, room)}[/]")
    table.add_section()
    table.add_row("step", seconds(found.estimate.step_time_s), "100.0 %", "", style="bold")
    return table


def _memory_table(found: Breakdown, width: int) -> Table:
    """A column a rank; the bars are those of the fullest."""
    ranks, sizes = found.ranks, found.estimate.memory_parts_bytes
    table = _table("memory, GiB")
    table.add_column("part", no_wrap=True)
    for rank in ranks:
        table.add_column(_heading(rank, len(ranks)), justify="right", no_wrap=True)
    table.add_column("fullest rank" if len(ranks) > 1 else "", no_wrap=True)
    room = bar_width(width, 16 + sum(max(9, len(rank.holds) + 2) for rank in ranks))
    longest = max(sizes.values())
    for name, size in sizes.items():
        if any(rank.memory_parts_bytes[name] for rank in ranks):
            values = (gib(rank.memory_parts_bytes[name]) for rank in ranks)
            table.add_row(name, *values, f"[magenta]{bar(size / longest, room)}[/]")
    table.add_section()
    table.add_row("peak", *(gib(rank.peak_memory_bytes) for rank in ranks), "", style="bold")
    if len(ranks) > 1:
        table.add_row("busy", *(percent(rank.busy_s / found.estimate.step_time_s, 0) for rank in ranks), "")
    return table


def _heading(rank: PipelineRank, ranks: int) -> str:
    return f"{rank.holds}\n{rank.layers} layers" if ranks > 1 else rank.holds


def _table(title: str) -> Table:
    return Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        padding=(0, 1, 0, 0),
    )


def bar_width(width: int, taken: int) -> int:
    """The longest bar beside columns that take so much."""
    return max(SHORTEST_BAR, min(LONGEST_BAR, width - taken))


def bar(share: float, width: int) -> str:
    """A bar of `share` of the width, to an eighth of a character; what is more than nothing shows."""
    eighths = max(round(8 * width * share), 1 if share > 0 else 0)
    return "█" * (eighths // 8) + EIGHTHS[eighths % 8].strip()


def _print_fit(out: Console, found: Breakdown) -> None:
    peak, whole, margin = found.estimate.peak_memory_bytes, found.memory_limit_bytes, found.memory_margin_bytes
    if margin >= 0:
        verdict = f"fits: {gib(peak)} of {gib(whole)} GiB ({percent(peak / whole)}), {gib(margin)} GiB left"
    else:
        verdict = f"does not fit: {gib(peak)} GiB on a device of {gib(whole)} GiB, {gib(-margin)} GiB too much"
    out.print(f"[bold]{verdict}[/bold]", soft_wrap=True)
