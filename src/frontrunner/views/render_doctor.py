"""Doctor's checks on the terminal: a line each by section, what to do below those that need it, and the bandwidths."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from frontrunner.evaluators.diagnostics.doctor.check import Check, Status
from frontrunner.evaluators.diagnostics.doctor.collective_report import Bandwidth
from frontrunner.text import latency, plain, thousands, wrapped
from frontrunner.views.render import console, titled_table

STYLES = {Status.OK: "green", Status.NOTE: "cyan", Status.WARNING: "yellow", Status.PROBLEM: "bold red"}
WIDEST = 120
INDENT = 11
"""Columns before what was found: two, the longest status, two."""
UNITS = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


def print_doctor(checks: Sequence[Check], rows: Sequence[Bandwidth]) -> None:
    """All checks, then the bandwidths, then how many there are of each kind."""
    shown = console()
    width = min(shown.width, WIDEST)
    for section in dict.fromkeys(check.section for check in checks):
        shown.print(section, style="bold")
        for check in checks:
            if check.section == section:
                shown.print(_line(check, width), soft_wrap=True)
    if rows:
        shown.print(_bandwidths(rows))
    counted = Counter(check.status for check in checks)
    told = (f"{counted[status]} {status.value}{_plural(status, counted[status])}" for status in Status)
    shown.print(", ".join(told), style="bold")


def _plural(status: Status, count: int) -> str:
    return "" if status is Status.OK or count == 1 else "s"


def _line(check: Check, width: int) -> Text:
    """Status and what was found; the remedy, if any, on lines of its own."""
    body = wrapped(plain(f"{check.name}: {check.found}"), width=width, indent=INDENT)
    line = Text(f"  {check.status.value:<{INDENT - 2}}", style=STYLES[check.status])
    line.append(body[INDENT:], style="default")
    if check.remedy and check.status is not Status.OK:
        line.append("\n" + wrapped(plain(f"-> {check.remedy}"), width=width, indent=INDENT), style="dim")
    return line


def _bandwidths(rows: Sequence[Bandwidth]) -> Table:
    title = f"all-reduce over {rows[0].ranks} ranks"
    table = titled_table(title)
    for name in ("size", "time", "algorithm GB/s", "bus GB/s"):
        table.add_column(name, justify="right")
    for row in rows:
        rates = (thousands(rate / 1e9) for rate in (row.algorithm_bytes_per_s, row.bus_bytes_per_s))
        table.add_row(_size(row.bytes), latency(row.time_s), *rates)
    return table


def _size(size_bytes: int) -> str:
    unit, name = next(((unit, name) for unit, name in UNITS if size_bytes >= unit), (1, "B"))
    return f"{size_bytes / unit:.3g} {name}"
