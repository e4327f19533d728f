"""A dry run as it is printed: memory at the peak by category, whether it fits, and the FLOPs."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Console
from rich.table import Table

from frontrunner.evaluators.diagnostics.dry_run.report import DryRun, TracedRank
from frontrunner.text import gib, percent, seconds, thousands
from frontrunner.views.render import console, titled_table

ABSENT = "not in it: the allocator's fragmentation, the collective library's buffers, the device's own context"


def print_dryrun(found: DryRun) -> None:
    """Everything that a dry run says."""
    out = console()
    out.print(f"[bold]{found.recipe_id}[/bold]  {found.recipe.describe()}", soft_wrap=True)
    out.print(_table(found))
    _print_fit(out, found)
    out.print(ABSENT, soft_wrap=True)
    out.print(_counted_over(found), soft_wrap=True)
    out.print(f"traced in {seconds(found.wall_time_s)}")


def _table(found: DryRun) -> Table:
    table = titled_table()
    table.add_column("memory at the peak, GiB", no_wrap=True)
    for rank in found.ranks:
        table.add_column(_heading(rank, found), justify="right", no_wrap=True)
    for category in found.worst.memory_bytes:
        sizes = [rank.memory_bytes[category] for rank in found.ranks]
        if any(sizes):
            table.add_row(category, *map(gib, sizes))
    table.add_section()
    table.add_row("peak", *(gib(rank.peak_bytes) for rank in found.ranks), style="bold")
    table.add_section()
    table.add_row("TFLOP of a step", *("" for _ in found.ranks))
    for label, value in _FLOPS:
        table.add_row(label, *(thousands(value(rank) / 1e12) for rank in found.ranks))
    return table


_FLOPS: tuple[tuple[str, Callable[[TracedRank], float]], ...] = (
    ("forward", lambda rank: rank.forward_flops),
    ("backward", lambda rank: rank.backward_flops),
    ("model: both", lambda rank: rank.model_flops_per_step),
    ("model, by formula", lambda rank: rank.model_flops_by_formula),
    ("recomputed", lambda rank: rank.recomputed_flops),
    ("hardware: all", lambda rank: rank.hardware_flops_per_step),
)


def _heading(rank: TracedRank, found: DryRun) -> str:
    worst = ", worst" if rank is found.worst and len(found.ranks) > 1 else ""
    stages = found.recipe.pipeline_parallel
    place = f"\npipeline {rank.pipeline_rank + 1} of {stages}, {rank.layers} layers" if stages > 1 else ""
    return f"rank {rank.rank}{worst}{place}"


def _print_fit(out: Console, found: DryRun) -> None:
    peak, whole, margin = found.peak_bytes, found.device_memory_bytes, found.margin_bytes
    if found.fits:
        verdict = f"fits: {gib(peak)} of {gib(whole)} GiB ({percent(peak / whole)}), {gib(margin)} GiB left"
    else:
        verdict = f"does not fit: {gib(peak)} GiB on a device of {gib(whole)} GiB, {gib(-margin)} GiB too much"
    out.print(f"[bold]{verdict}[/bold]", soft_wrap=True)


def _counted_over(found: DryRun) -> str:
    """What was traced of the step, and why it stands for the whole."""
    traced, all_of_them = found.micro_batches, found.recipe.accumulation
    if found.extrapolated:
        return (
            f"memory extrapolated from {traced} and {2 * traced} of {all_of_them} micro-batches, all of which are in "
            "flight; FLOPs are those of all"
        )
    if traced == all_of_them:
        return f"traced: the whole step, {all_of_them} micro-batches"
    why = "what is in flight grows no further" if found.recipe.pipeline_parallel > 1 else "more need no more memory"
    return f"traced: {traced} of {all_of_them} micro-batches, {why}; FLOPs are those of all"
