"""A calibration on the terminal: what was measured, or what was fitted and how far off it still is."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table

from frontrunner.evaluators.diagnostics.calibration.figures import Calibration, busy
from frontrunner.evaluators.diagnostics.calibration.lines import Line
from frontrunner.evaluators.diagnostics.calibration.step_fit import Constant, StepFit
from frontrunner.spaces.cluster import PRECISIONS
from frontrunner.text import latency, percent, plain, thousands
from frontrunner.views.render import console, titled_table

NOISY = 0.3
"""Relative error of a line above which its figures are marked: timings that other work disturbed, or no line."""


def print_calibration(found: Calibration, out: Path) -> None:
    """The figures of the cluster, then a row a collective."""
    shown, cluster = console(), found.cluster
    shown.print(plain(f"{cluster.nodes} x {cluster.devices_per_node} {cluster.device}"), style="bold")
    shown.print(_figures(found))
    if found.lines:
        shown.print(_collectives(found.lines))
    if any(line.residual > NOISY for line in found.lines):
        shown.print(f"! timings lie more than {percent(NOISY, 0)} off the line: other work, or no line", style="dim")
    for untold in found.untold:
        shown.print(f"! not written: {untold}", style="yellow", soft_wrap=True)
    disturbed = busy(found)
    if disturbed:
        shown.print(f"! {disturbed}", style="yellow", soft_wrap=True)
    if found.left_out:
        left_out = f"{found.left_out} measurements were left out for lack of time; more --seconds has room for them"
        shown.print(left_out, style="dim", soft_wrap=True)
    shown.print(f"written: {plain(str(out))}", soft_wrap=True)


def _figures(found: Calibration) -> Table:
    cluster, links = found.cluster, found.cluster.links
    rows = [
        (f"matrix products, {name}", f"matmul_tflops.{name}", getattr(cluster.matmul_tflops, name), "TFLOP/s")
        for name in PRECISIONS
    ]
    rows += [
        ("memory", "memory_gb_per_s", cluster.memory_gb_per_s, "GB/s"),
        ("pair of devices", "links.pair_gb_per_s", links.pair_gb_per_s, "GB/s"),
        ("node", "links.node_gb_per_s", links.node_gb_per_s, "GB/s"),
        ("network port", "links.nic_gb_per_s", links.nic_gb_per_s, "GB/s"),
        ("host memory", "links.host_gb_per_s", links.host_gb_per_s, "GB/s"),
    ]
    table = titled_table()
    for name in ("a device's, all at work", "", "", "measured as"):
        table.add_column(name, justify="right" if not name and len(table.columns) == 1 else "left")
    for title, key, value, unit in rows:
        if key in found.notes and value is not None:
            table.add_row(title, thousands(value), unit, found.notes[key])
    return table


def _collectives(lines: tuple[Line, ...]) -> Table:
    table = titled_table("time = latency + bytes over a link / bandwidth")
    for name in ("collective", "level", "ranks", "latency", "GB/s", "sizes", "off by"):
        table.add_column(name, justify="left" if name in ("collective", "level") else "right", no_wrap=True)
    for line in lines:
        rate = "-" if line.bytes_per_s is None else thousands(line.bytes_per_s / 1e9)
        off = percent(line.residual, 0) + (" !" if line.residual > NOISY else "")
        cells = (str(line.ranks), latency(line.latency_s), rate, str(line.points), off)
        table.add_row(line.collective, line.level, *cells)
    return table


def print_fit(found: StepFit, out: Path) -> None:
    """The error before and after on rows held back, then the constants."""
    shown = console()
    how = "whole problems" if found.by_problem else "every fifth row"
    problems = f"{found.problems:,} problem{'' if found.problems == 1 else 's'}"
    shown.print(f"{found.rows:,} rows of {problems}, held back in {found.folds} parts: {how}", soft_wrap=True)
    table = titled_table()
    for name in ("error of step time", "mean", "median"):
        table.add_column(name, justify="left" if name == "error of step time" else "right")
    table.add_row("before", percent(found.error_before), percent(found.median_error_before))
    table.add_row("after, on rows held back", percent(found.error_after), percent(found.median_error_after))
    shown.print(table)
    shown.print(_constants(found.constants))
    if any(constant.at_the_end for constant in found.constants):
        shown.print("! at an end of where it is looked for: the formulas tell these rows badly", style="dim")
    held = [constant.name for constant in found.constants if constant.held]
    if held:
        shown.print(f"too few rows to move: {', '.join(held)}", style="dim", soft_wrap=True)
    for reason, count in found.refused.items():
        shown.print(plain(f"{count:,} rows left out: {reason}"), style="dim", soft_wrap=True)
    shown.print(f"written: {plain(str(out))}", soft_wrap=True)


def _constants(constants: tuple[Constant, ...]) -> Table:
    table = titled_table()
    for name in ("constant", "before", "after", "rows"):
        table.add_column(name, justify="left" if name == "constant" else "right")
    for constant in constants:
        if not constant.held:
            before, after = (_amount(constant.name, value) for value in (constant.before, constant.after))
            table.add_row(constant.name, before, after + (" !" if constant.at_the_end else ""), str(constant.rows))
    return table


def _amount(name: str, value: float) -> str:
    return latency(value) if name.endswith("_s") else f"{value:.3g}"
