"""Units that cannot be meant: a whole table that is too fast for its devices, or a thousand times too slow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from frontrunner.evaluators.imported.columns import UNITS, Columns
from frontrunner.evaluators.table_rows import TableProblem
from frontrunner.results.outcome import Measurement
from frontrunner.spaces.errors import InvalidInput

LOWEST_MFU = 0.001
"""Below it for every row the unit is doubted. Assumed: the slowest measured training known here reaches several times
as much, and milliseconds taken for seconds give at most 0.1 %."""
LIKELY_MFU = (0.005, 1.0)
"""Between these the best row of a table in its right unit is expected; assumed."""
MOST_MEMORIES = 20.0
"""A peak of so many devices' memory is in another unit: of GiB, GB, MiB and bytes the nearest two that are mistaken for
one another differ by 1,000."""


def hardware_utilisation(measured: Measurement, problem: TableProblem) -> float | None:
    """Hardware FLOPs over the device's peak, None where no peak is known."""
    peak = problem.problem.cluster.peak_flops(problem.problem.precision)
    return None if peak is None else measured.hardware_tflops_per_device * 1e12 / peak


def refuse_slips(problems: Sequence[TableProblem], columns: Columns) -> None:
    """Raise `InvalidInput`, naming the flag that would mend it, where step times or peaks are in another unit."""
    shares = [share for measured, of in _measured(problems) if (share := hardware_utilisation(measured, of))]
    if shares and sum(share > 1 for share in shares) * 2 > len(shares):
        impossible = f"{sum(share > 1 for share in shares)} of {len(shares)} timed rows are above their device's peak"
        raise _slip("step_time_s", f"{impossible}, by up to {max(shares):,.3g} times", columns, shares)
    if shares and max(shares) < LOWEST_MFU and columns.unit("step_time_s") is None:
        low = f"the fastest of {len(shares)} timed rows reaches {100 * max(shares):.2g} % of its device's peak"
        raise _slip("step_time_s", low, columns, shares)
    memories = [
        measured.peak_memory_bytes_max_rank / of.problem.cluster.memory_bytes_per_device
        for measured, of in _measured(problems)
        if measured.peak_memory_bytes_max_rank
    ]
    if memories and min(memories) > MOST_MEMORIES:
        high = f"every peak is {min(memories):,.0f} times its device's memory and more"
        raise _slip("peak_mem_gb", high, columns, memories)


def _measured(problems: Sequence[TableProblem]) -> Iterator[tuple[Measurement, TableProblem]]:
    for problem in problems:
        for row in problem.rows:
            if isinstance(row.outcome, Measurement):
                yield row.outcome, problem


def _slip(name: str, found: str, columns: Columns, figures: Sequence[float]) -> InvalidInput:
    """The refusal, with the first unit in which the highest figure is a likely one."""
    theirs = columns.source(name)
    assumed = columns.unit(name) or next(iter(UNITS[name]))
    flag = f"--column {name}={theirs}:"
    stated = columns.unit(name) is not None
    hint = f"say its unit: {flag}UNIT, of {', '.join(UNITS[name])}"
    for unit, size in UNITS[name].items():
        ratio = size / UNITS[name][assumed]  # by which its values would grow: times lower a rate, peaks raise a share
        best = max(figures) / ratio if name == "step_time_s" else max(figures) * ratio
        if unit != assumed and LIKELY_MFU[0] <= best <= LIKELY_MFU[1]:
            of = "the peak" if name == "step_time_s" else "the memory"
            hint = f"in {unit} the highest is {100 * best:.2g} % of {of}: {flag}{unit}"
            break
    if not stated and name == "step_time_s" and max(figures) < LOWEST_MFU:
        hint += f"; if it is in {assumed} all the same: {flag}{assumed}"
    return InvalidInput(f"{theirs} in {assumed} cannot be meant: {found}", hint=hint)
