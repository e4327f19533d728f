"""Diagnostics on the terminal: doctor, calibration, dry runs and profiles."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import dropwhile
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from frontrunner.spaces.cluster import PRECISIONS
from frontrunner.text import (
    counted,
    fit_verdict,
    latency,
    memory_unit,
    percent,
    plain,
    seconds,
    size,
    thousands,
    wrapped,
)
from frontrunner.views.terminal import console, ruled_table

if TYPE_CHECKING:
    from frontrunner.evaluators.analytic.fit import StepFit, StepFits
    from frontrunner.evaluators.diagnostics.calibration import Calibration
    from frontrunner.evaluators.diagnostics.doctor.check import Check
    from frontrunner.evaluators.diagnostics.doctor.collective_test import Bandwidth
    from frontrunner.evaluators.diagnostics.dryrun import DryRun
    from frontrunner.evaluators.diagnostics.profile import ProfileReport

STYLES = {"ok": "green", "note": "cyan", "warning": "yellow", "problem": "bold red"}
WIDEST = 120
INDENT = 11
NOISY = 0.3
"""Relative error of a line above which its figures are marked: timings that other work disturbed,
or no line.
"""
LEAST_SHARE = 0.0005
"""Share of a step below which a part is not shown, since it would read 0.0 %."""
BINDING = re.compile(r"pybind11_detail_\w+\.")
"""Prefix of the names of torch's functions in C++, of no use to a reader."""
MOST_STAGES, MOST_TREE_LINES = 4, 40


def print_doctor(checks: Sequence[Check], rows: Sequence[Bandwidth]) -> None:
    """Print all checks, then the bandwidths, then how many there are of each status."""
    out = console()
    width = min(out.width, WIDEST)
    for section in dict.fromkeys(check.section for check in checks):
        out.say(section, style="bold")
        for check in checks:
            if check.section == section:
                body = wrapped(plain(f"{check.name}: {check.found}"), width=width, indent=INDENT)
                out.say(
                    (f"  {check.status.value:<{INDENT - 2}}", STYLES[check.status.value]),
                    body[INDENT:],
                )
                if check.remedy and check.status.value != "ok":
                    out.say(
                        wrapped(plain(f"-> {check.remedy}"), width=width, indent=INDENT),
                        style="dim",
                    )
    if rows:
        heads = ("size", "time", "algorithm GB/s", "bus GB/s")
        table = ruled_table(
            f"all-reduce over {rows[0].ranks} ranks", *((head, "right") for head in heads)
        )
        for row in rows:
            rates = (
                thousands(rate / 1e9) for rate in (row.algorithm_bytes_per_s, row.bus_bytes_per_s)
            )
            table.add_row(size(row.bytes), latency(row.time_s), *rates)
        out.print(table)
    counts = Counter(check.status.value for check in checks)
    summary = (
        counted(counts[status], status) if status != "ok" else f"{counts[status]} ok"
        for status in STYLES
    )
    out.say(", ".join(summary), style="bold")


_LINKS = {"pair": "pair of devices", "node": "node", "nic": "network port", "host": "host memory"}


def print_calibration(found: Calibration, out_file: Path) -> None:
    """Print the measured figures of a cluster, then a row per collective."""
    out, cluster = console(), found.cluster
    out.say(f"{cluster.nodes} x {cluster.devices_per_node} {cluster.device}", style="bold")
    tables = {
        **{f"matmul_tflops.{name}": (f"matrix products, {name}", "TFLOP/s") for name in PRECISIONS},
        "memory_gb_per_s": ("memory", "GB/s"),
        **{f"links.{link}_gb_per_s": (title, "GB/s") for link, title in _LINKS.items()},
    }
    table = ruled_table(None, "per device, all at work", ("", "right"), "", ("measured as", "fold"))
    for key, (title, unit) in tables.items():
        value = attrgetter(key)(cluster)
        if key in found.notes and value is not None:
            table.add_row(title, thousands(value), unit, found.notes[key])
    out.print(table)
    if found.lines:
        numbers = ((head, "right") for head in ("ranks", "latency", "GB/s", "sizes", "off by"))
        table = ruled_table(
            "time = latency + bytes over a link / bandwidth", "collective", "level", *numbers
        )
        for line in found.lines:
            rate = "-" if line.bytes_per_s is None else thousands(line.bytes_per_s / 1e9)
            off = percent(line.residual, 0) + (" !" if line.residual > NOISY else "")
            figures = (str(line.ranks), latency(line.latency_s), rate, str(line.points), off)
            table.add_row(line.collective, line.level, *figures)
        out.print(table)
    if any(line.residual > NOISY for line in found.lines):
        out.say(
            f"! timings lie more than {percent(NOISY, 0)} off the line: other work, or no line",
            style="dim",
        )
    for warning in (
        *(f"not written: {missing}" for missing in found.untold),
        *filter(None, [found.busy]),
    ):
        out.say(f"! {warning}", style="yellow")
    if found.left_out:
        lacking = "measurements were left out for lack of time; raise --seconds to include them"
        out.say(f"{found.left_out} {lacking}", style="dim")
    out.say(f"written: {out_file}", whole=True)


def print_fits(found: StepFits, out_file: Path) -> None:
    """Print the fit of each training code, and what was left out."""
    out = console()
    for fit in found.fits:
        _print_fit(fit)
    for reason, count in found.refused.items():
        out.say(f"{count:,} rows left out: {reason}", style="dim")
    out.say(f"written: {out_file}", whole=True)


def _print_fit(found: StepFit) -> None:
    """Print the error before and after on rows held back, then the fitted constants."""
    out = console()
    how = "whole problems" if found.by_problem else "every fifth row"
    problems = counted(found.problems, "problem")
    out.say(found.code, style="bold")
    nodes = counted(found.nodes, "node")
    out.say(
        f"{found.rows:,} rows of {problems} on up to {nodes}, held back in {found.folds} parts:"
        f" {how}"
    )
    errors = ruled_table(None, "error of step time", ("mean", "right"), ("median", "right"))
    errors.add_row("before", percent(found.error_before), percent(found.median_error_before))
    errors.add_row(
        "after, on rows held back", percent(found.error_after), percent(found.median_error_after)
    )
    out.print(errors)
    constants = ruled_table(
        None,
        "constant",
        ("before", "right"),
        ("after", "right"),
        ("95 %", "right"),
        ("rows", "right"),
    )
    for constant in found.constants:
        if not constant.held:
            text = latency if constant.name.endswith("_s") else "{:.3g}".format
            after = text(constant.after) + (" !" if constant.at_the_end else "")
            span = " to ".join(map(text, constant.range_95))
            constants.add_row(constant.name, text(constant.before), after, span, str(constant.rows))
    out.print(constants)
    if any(constant.at_the_end for constant in found.constants):
        out.say("! at a bound of its range: the formulas describe these rows badly", style="dim")
    if held := [constant.name for constant in found.constants if constant.held]:
        out.say(f"too few rows to move: {', '.join(held)}", style="dim")


_FLOPS = {
    "forward": "forward_flops",
    "backward": "backward_flops",
    "model: both": "model_flops_per_step",
    "model, by formula": "model_flops_by_formula",
    "recomputed": "recomputed_flops",
    "hardware: all": "hardware_flops_per_step",
}


def print_dryrun(found: DryRun) -> None:
    """Print a dry run: memory at the peak by category, whether it fits, and the FLOPs."""
    out = console()
    stages = found.recipe.pipeline_parallel
    out.say((found.recipe_id, "bold"), f"  {found.recipe.describe()}")
    heads = []
    for rank in found.ranks:
        worst = ", worst" if rank is found.worst and len(found.ranks) > 1 else ""
        place = (
            f"\npipeline {rank.pipeline_rank + 1} of {stages}, {rank.layers} layers"
            if stages > 1
            else ""
        )
        heads.append((f"rank {rank.rank}{worst}{place}", "right"))
    unit, name = memory_unit(found.peak_bytes)
    table = ruled_table(None, f"memory at the peak, {name}", *heads)
    for category in found.worst.memory_bytes:
        sizes = [rank.memory_bytes[category] for rank in found.ranks]
        if any(sizes):
            table.add_row(category, *(f"{one / unit:.2f}" for one in sizes))
    table.add_section()
    table.add_row("peak", *(f"{rank.peak_bytes / unit:.2f}" for rank in found.ranks), style="bold")
    table.add_section()
    table.add_row("TFLOP per step", *("" for _ in found.ranks))
    for label, figure in _FLOPS.items():
        table.add_row(label, *(thousands(getattr(rank, figure) / 1e12) for rank in found.ranks))
    out.print(table)
    out.say(fit_verdict(found.fit, found.peak_bytes, found.device_memory_bytes), style="bold")
    out.say(
        "runtime is estimated, as by plan: device context, the collective library's buffers,"
        " fragmentation"
    )
    if found.backend != "cpu":
        out.say(
            f"traced on a CPU: RMS norms keep what torch's kernel for {found.backend} keeps, all"
            " else what the CPU's do"
        )
    traced, every = found.micro_batches, found.recipe.accumulation
    how = (
        f"memory extrapolated from {traced} and {2 * traced}"
        if found.extrapolated
        else "later ones add no memory"
    )
    part = "" if traced == every else f", {how}; FLOPs cover all {every}"
    out.say(f"traced: {traced} of {every} micro-batches{part}")
    out.say(f"traced in {seconds(found.wall_time_s)}")


def print_profile(report: ProfileReport) -> None:
    """Print the parts of a step by group of ranks, what was hidden, and what the profiler cost."""
    out = console()
    out.say((report.recipe_id, "bold"), f"  {report.recipe.describe()}")
    out.print(_parts(report))
    if len(report.ranks) > 1:
        out.say(
            "communication: waiting time, including for slower ranks; slowest: the rank that waited"
            " least"
        )
    if hidden := [
        f"{part} {seconds(time)}" for part, time in report.mean.hidden.items() if time > 0
    ]:
        out.say(f"hidden behind computing, in no part: {', '.join(hidden)}")
    measured = report.measured_step_time_s
    probed = "" if measured is None else f"; the campaign's probe measured {seconds(measured)}"
    out.say(
        f"step: {seconds(report.mean.step_time_s)} traced, {seconds(report.step_time_s_untraced)}"
        f" untraced in the same run ({report.tracing_slowdown:.2f} times){probed}"
    )
    if report.host_trees:
        path = report.host_trees[report.slowest_rank]
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        lines = list(dropwhile(lambda line: not line[0].isdigit(), lines))  # its banner
        out.say(f"\nPython on rank {report.slowest_rank}, by pyinstrument:", style="bold")
        for line in lines[:MOST_TREE_LINES]:
            out.print(Text(plain(BINDING.sub("", line))), overflow="ellipsis", no_wrap=True)
        if len(lines) > MOST_TREE_LINES:
            out.say(f"... {len(lines) - MOST_TREE_LINES} more lines in {path}", whole=True)
    ranks = f"all {len(report.ranks)} ranks" if len(report.ranks) > 1 else "the rank"
    out.say(f"trace of {ranks}, for Perfetto: {report.joined_trace}", whole=True)


def _parts(report: ProfileReport) -> Table:
    from frontrunner.evaluators.diagnostics.step_breakdown import Part

    ranks, slowest, mean = len(report.ranks), report.slowest_rank, report.mean
    columns = {"mean": mean}
    if ranks > 1:
        columns[f"rank {slowest}, slowest"] = report.ranks[slowest]
    if 1 < len(report.stages) <= MOST_STAGES:
        columns |= {f"stage {place}": found for place, found in report.stages.items()}
    title = f"a step, mean of {report.steps}" + (f", over {ranks} ranks" if ranks > 1 else "")
    table = ruled_table(title, "part", *((name, "right") for name in ("share", *columns)))
    labels = {Part.COMPUTE: "compute (forward, backward)"}
    if report.recipe.pipeline_parallel > 1:
        labels[Part.SEND_RECV] = "send/recv, pipeline bubble"
    if report.on_cpu:
        labels[Part.IDLE] = "host (Python, dispatch)"
    waits = [  # for what some rank waited
        part
        for part in Part
        if part.moves_data
        and max(rank.seconds[part] / rank.step_time_s for rank in report.ranks) >= LEAST_SHARE
    ]
    for part in (Part.COMPUTE, Part.OPTIMIZER, Part.DATA, *waits, Part.IDLE):
        times = [_milliseconds(found.seconds[part]) for found in columns.values()]
        table.add_row(
            labels.get(part, str(part)), percent(mean.seconds[part] / mean.step_time_s), *times
        )
    table.add_section()
    table.add_row(
        "step",
        "100.0 %",
        *(_milliseconds(found.step_time_s) for found in columns.values()),
        style="bold",
    )
    return table


def _milliseconds(time_s: float) -> str:
    """Return one digit after the point throughout, so that a column adds up."""
    return f"{1000 * time_s:,.1f} ms"
