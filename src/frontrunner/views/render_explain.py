"""One recipe's estimate on the terminal: what its step and its memory go to, as tables with bars."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from frontrunner.evaluators.analytic.breakdown import Breakdown, Measured, PipelineRank
from frontrunner.evaluators.diagnostics.dry_run.plan import why_untraceable
from frontrunner.text import gib, percent, plain, seconds, thousands
from frontrunner.views.columns import tight_table
from frontrunner.views.render import console
from frontrunner.views.render_plan import WORDS, limited_by, print_trust

EIGHTHS = " ▏▎▍▌▋▊▉"
LONGEST_BAR = 40
SHORTEST_BAR = 10


def print_breakdown(found: Breakdown) -> None:
    """Everything but the numbers that only programs want."""
    out = console()
    out.print(f"[bold]{found.estimate.recipe_id}[/bold]  {found.estimate.recipe.describe()}", soft_wrap=True)
    _print_figures(out, found)
    out.print()
    out.print(_step_table(found, out))
    out.print()
    out.print(_memory_table(found, out))
    _print_fit(out, found)
    for mark in found.marks:
        out.print(f"note: {mark.text}", style="dim")
    print_trust(found.trust)
    if why_untraceable(found.estimate.recipe) is None:
        out.print("`frontrunner dryrun` traces the memory of the real step", style="dim")


def _print_figures(out: Console, found: Breakdown) -> None:
    """Estimated and, where there is one, measured figures under one another."""
    estimate, measured = found.estimate, found.measured
    out.print(_figures(found))
    with_recompute = ""
    if found.hardware_tflops_per_device > 1.001 * estimate.model_tflops_per_device:
        with_recompute = f"; {thousands(found.hardware_tflops_per_device)} with what is computed a second time"
    out.print(f"TFLOPS: a device's, of the model's own work{with_recompute}", style="dim")
    if measured is not None:
        out.print(_source(measured, found), style="dim", markup=False, soft_wrap=True)
    out.print(f"limited by {limited_by(estimate)}")


def _figures(found: Breakdown) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False)
    for title in ("", "step", "tokens/s", "tok/s/device", "TFLOPS", "MFU", "peak GiB"):
        table.add_column(title, justify="right" if title else "left", no_wrap=True, header_style="dim")
    estimate, measured = found.estimate, found.measured
    rows = {"estimated": (estimate.step_time_s, estimate.tokens_per_s, estimate.mfu, estimate.peak_memory_bytes)}
    if measured is not None:
        rows["measured"] = (measured.step_time_s, measured.tokens_per_s, measured.mfu, measured.peak_memory_bytes)
    for name, (step_time_s, tokens_per_s, mfu, peak) in rows.items():
        tflops = estimate.model_tflops_per_device * tokens_per_s / estimate.tokens_per_s
        rates = (tokens_per_s, tokens_per_s / estimate.recipe.devices, tflops)
        table.add_row(name, seconds(step_time_s), *map(thousands, rates), percent(mfu), gib(peak))
    if measured is not None:
        table.add_row("error", _signed(found.step_time_error), *4 * [""], _signed(found.peak_memory_error), style="dim")
    return table


def _source(measured: Measured, found: Breakdown) -> str:
    """Where a measurement comes from, and whether the estimate is as far off as it may be."""
    times = f"{measured.repeats} measurements" if measured.repeats > 1 else "1 measurement"
    within = abs(found.step_time_error or 0.0) <= found.trust.expected_error
    verdict = "within" if within else "beyond"
    return plain(
        f"measured by campaign {measured.campaign} of {measured.store}: {times}, steps spread "
        f"by {percent(measured.step_time_spread)}; the estimate is {verdict} its expected error of "
        f"{percent(found.trust.expected_error, 0)}"
    )


def _signed(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:+.0f} %"


def _step_table(found: Breakdown, out: Console) -> Table:
    parts = {name: time for name, time in found.estimate.step_parts_s.items() if time > 0}
    table = tight_table("the step, on the slowest rank of the pipeline" if len(found.ranks) > 1 else "the step")
    for title in ("part", "time", "share"):
        table.add_column(title, justify="left" if title == "part" else "right", no_wrap=True)
    table.add_column("", no_wrap=True)
    room, ascii_only = bar_width(out.width, 36), _is_ascii_only(out)
    longest = max(parts.values())
    for name, time in parts.items():
        style = "red" if name == found.estimate.limit and name != "compute" else "cyan"
        share = percent(time / found.estimate.step_time_s)
        table.add_row(
            WORDS[name], seconds(time), share, f"[{style}]{bar(time / longest, room, ascii_only=ascii_only)}[/]"
        )
    table.add_section()
    table.add_row("step", seconds(found.estimate.step_time_s), "100.0 %", "", style="bold")
    return table


def _memory_table(found: Breakdown, out: Console) -> Table:
    """A column a rank; the bars are those of the fullest."""
    ranks, sizes = found.ranks, found.estimate.memory_parts_bytes
    unit, name = (2**30, "GiB") if found.estimate.peak_memory_bytes >= 2**30 else (2**20, "MiB")
    table = tight_table(f"memory, {name}")
    table.add_column("part", no_wrap=True)
    for rank in ranks:
        table.add_column(_heading(rank, len(ranks)), justify="right", no_wrap=True)
    table.add_column("fullest rank" if len(ranks) > 1 else "", no_wrap=True)
    room = bar_width(out.width, 16 + sum(max(9, len(rank.holds) + 2) for rank in ranks))
    ascii_only = _is_ascii_only(out)
    longest = max(sizes.values())
    for part, size in sizes.items():
        if any(rank.memory_parts_bytes[part] for rank in ranks):
            values = (f"{rank.memory_parts_bytes[part] / unit:.2f}" for rank in ranks)
            table.add_row(part, *values, f"[magenta]{bar(size / longest, room, ascii_only=ascii_only)}[/]")
    table.add_section()
    table.add_row("peak", *(f"{rank.peak_memory_bytes / unit:.2f}" for rank in ranks), "", style="bold")
    if len(ranks) > 1:
        table.add_row("busy", *(percent(rank.busy_s / found.estimate.step_time_s, 0) for rank in ranks), "")
    return table


def _heading(rank: PipelineRank, ranks: int) -> str:
    layers = "1 layer" if rank.layers == 1 else f"{rank.layers} layers"
    return f"{rank.holds}\n{layers}" if ranks > 1 else rank.holds


def bar_width(width: int, taken: int) -> int:
    """The longest bar beside columns that take so much."""
    return max(SHORTEST_BAR, min(LONGEST_BAR, width - taken))


def bar(share: float, width: int, *, ascii_only: bool = False) -> str:
    """A bar of `share` of the width, to an eighth of a character; what is more than nothing shows."""
    if ascii_only:
        return "#" * max(round(width * share), 1 if share > 0 else 0)
    eighths = max(round(8 * width * share), 1 if share > 0 else 0)
    return "█" * (eighths // 8) + EIGHTHS[eighths % 8].strip()


def _is_ascii_only(out: Console) -> bool:
    """Whether the output's encoding has no blocks."""
    try:
        EIGHTHS.encode(out.encoding)
    except UnicodeEncodeError:
        return True
    return False


def _print_fit(out: Console, found: Breakdown) -> None:
    peak, whole, margin = found.estimate.peak_memory_bytes, found.memory_limit_bytes, found.memory_margin_bytes
    if margin >= 0:
        verdict = f"fits: {gib(peak)} of {gib(whole)} GiB ({percent(peak / whole)}), {gib(margin)} GiB left"
    else:
        verdict = f"does not fit: {gib(peak)} GiB on a device of {gib(whole)} GiB, {gib(-margin)} GiB too much"
    out.print(f"[bold]{verdict}[/bold]", soft_wrap=True)
    if found.estimate.host_memory_bytes_per_rank:
        out.print(f"in the host's memory: {gib(found.estimate.host_memory_bytes_per_rank)} GiB a rank")
