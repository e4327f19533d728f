"""Units that cannot be meant: a whole table that is too fast for its devices, or a thousand times too slow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from frontrunner.evaluators.tables.columns import UNITS, Columns
from frontrunner.evaluators.tables.table_rows import TableProblem
from frontrunner.results.outcome import Measurement
from frontrunner.spaces.errors import InvalidInput

LOWEST_MFU = 0.001
"""Below it for every row the unit is doubted. Assumed: the slowest measured training known here reaches several times
as much, and milliseconds taken for seconds give at most 0.1 %."""
LIKELY_SHARE = (0.005, 1.0)
"""Of the peak, or of the memory: between these a table's highest row is expected in its right unit. Assumed."""
MOST_MEMORIES = 20.0
"""A peak of so many devices' memory is in another unit: of GiB, GB, MiB and bytes the nearest two that are mistaken for
one another differ by 1,000."""


def hardware_utilisation(measured: Measurement, problem: TableProblem) -> float | None:
    """Hardware FLOPs over the device's peak, None where no peak is known."""
    peak = problem.problem.cluster.peak_flops(problem.problem.precision)
    return None if peak is None else measured.hardware_tflops_per_device * 1e12 / peak


def refuse_slips(problems: Sequence[TableProblem], columns: Columns) -> None:
    """Raise `InvalidInput`, naming the flag that would mend it, where step times or peaks are in another unit."""
    measured = list(_measured(problems))
    shares = [share for row, of in measured if (share := hardware_utilisation(row, of))]
    if shares:
        _refuse_times(shares, columns)
    memories = [
        row.peak_memory_bytes_max_rank / of.problem.cluster.memory_bytes_per_device
        for row, of in measured
        if row.peak_memory_bytes_max_rank
    ]
    if memories and min(memories) > MOST_MEMORIES:
        high = f"every peak is {min(memories):,.0f} times its device's memory and more"
        raise _slip("peak_mem_gb", high, columns, _remedy("peak_mem_gb", max(memories), columns))


def _refuse_times(shares: Sequence[float], columns: Columns) -> None:
    """Refuse times by the shares of their devices' peaks that the rows reach."""
    name, best = "step_time_s", max(shares)
    remedy = _remedy(name, best, columns)
    impossible = sum(share > 1 for share in shares)
    if 2 * impossible > len(shares):
        found = f"{impossible} of {len(shares)} timed rows are above their device's peak, by up to {best:,.3g} times"
        raise _slip(name, found, columns, remedy)
    if best < LOWEST_MFU and columns.unit(name) is None:
        found = f"the fastest of {len(shares)} timed rows reaches {100 * best:.2g} % of its device's peak"
        raise _slip(name, found, columns, f"{remedy}; if it is in s all the same: {_flag(name, columns)}s")


def _measured(problems: Sequence[TableProblem]) -> Iterator[tuple[Measurement, TableProblem]]:
    for problem in problems:
        for row in problem.rows:
            if isinstance(row.outcome, Measurement):
                yield row.outcome, problem


def _slip(name: str, found: str, columns: Columns, remedy: str) -> InvalidInput:
    message = f"{columns.source(name)} in {_assumed(name, columns)} cannot be meant: {found}"
    return InvalidInput(message, hint=remedy)


def _remedy(name: str, best: float, columns: Columns) -> str:
    """The first other unit in which the highest share, of peak or memory, is a likely one; else all units."""
    flag, assumed = _flag(name, columns), _assumed(name, columns)
    for unit, size in UNITS[name].items():
        grown = size / UNITS[name][assumed]  # what the column's numbers would be multiplied by
        share, of = (best / grown, "peak") if name == "step_time_s" else (best * grown, "memory")
        if unit != assumed and LIKELY_SHARE[0] <= share <= LIKELY_SHARE[1]:
            return f"in {unit} the highest is {100 * share:.2g} % of the {of}: {flag}{unit}"
    return f"say its unit: {flag}UNIT, of {', '.join(UNITS[name])}"


def _assumed(name: str, columns: Columns) -> str:
    """The unit that was said, or else the form's."""
    return columns.unit(name) or next(iter(UNITS[name]))


def _flag(name: str, columns: Columns) -> str:
    return f"--column {name}={columns.source(name)}:"
