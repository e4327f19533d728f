"""Units that cannot be right: a whole table that is too fast for its devices, or a thousand times too slow."""

from __future__ import annotations

from collections.abc import Sequence

from frontrunner.evaluators.tables.mapping import Mapped
from frontrunner.evaluators.tables.rows import TableProblem
from frontrunner.evaluators.tables.schema import UNITS
from frontrunner.results.outcome import Measurement
from frontrunner.spaces.errors import InvalidInput

LOWEST_MFU = 0.001
"""Below it for every row the unit is doubted. Assumed: the slowest measured training known here reaches several times
as much, and milliseconds read as seconds give at most 0.1 %."""
LIKELY_SHARE = (0.005, 1.0)
"""Of the peak, or of the memory: between these a table's highest row is expected in its right unit. Assumed."""
MOST_MEMORIES = 20.0
"""A peak of more than this number of devices' memory is in another unit: of GiB, GB, MiB and bytes the nearest two that
are mistaken for one another differ by 1,000."""


def peak_share(measured: Measurement, problem: TableProblem) -> float | None:
    """Return hardware FLOPs over the device's peak, None where no peak is known."""
    peak = problem.problem.cluster.peak_flops(problem.problem.precision)
    return None if peak is None else measured.hardware_tflops_per_device * 1e12 / peak


def refuse_wrong_units(problems: Sequence[TableProblem], mapped: Mapped) -> None:
    """Raise `InvalidInput`, naming the flag that corrects it, where step times or peaks are in another unit."""
    measured = [(row.outcome, of) for of in problems for row in of.rows if isinstance(row.outcome, Measurement)]
    shares = [share for row, of in measured if (share := peak_share(row, of))]
    if shares:
        _refuse_times(shares, mapped)
    memories = [
        row.peak_memory_bytes_max_rank / of.problem.cluster.memory_bytes_per_device
        for row, of in measured
        if row.peak_memory_bytes_max_rank
    ]
    if memories and min(memories) > MOST_MEMORIES:
        high = f"every peak is {min(memories):,.0f} times its device's memory and more"
        raise _wrong_unit("peak_mem_gb", high, mapped, _remedy("peak_mem_gb", max(memories), mapped))


def _refuse_times(shares: Sequence[float], mapped: Mapped) -> None:
    """Refuse times by the shares of their devices' peaks that the rows reach."""
    name, best = "step_time_s", max(shares)
    remedy = _remedy(name, best, mapped)
    impossible = sum(share > 1 for share in shares)
    if 2 * impossible > len(shares):
        found = f"{impossible} of {len(shares)} timed rows are above their device's peak, by up to {best:,.3g} times"
        raise _wrong_unit(name, found, mapped, remedy)
    if best < LOWEST_MFU and mapped.unit(name) is None:
        found = f"the fastest of {len(shares)} timed rows reaches {100 * best:.2g} % of its device's peak"
        raise _wrong_unit(name, found, mapped, f"{remedy}; if it is in s all the same: {_flag(name, mapped)}s")


def _wrong_unit(name: str, found: str, mapped: Mapped, remedy: str) -> InvalidInput:
    return InvalidInput(f"{mapped.source(name)} in {_unit(name, mapped)} cannot be meant: {found}", hint=remedy)


def _remedy(name: str, best: float, mapped: Mapped) -> str:
    """Return the first other unit in which the highest share, of peak or memory, is a likely one; else all units."""
    flag, assumed = _flag(name, mapped), _unit(name, mapped)
    for unit, size in UNITS[name].items():
        grown = size / UNITS[name][assumed]  # what the column's numbers would be multiplied by
        share, of = (best / grown, "peak") if name == "step_time_s" else (best * grown, "memory")
        if unit != assumed and LIKELY_SHARE[0] <= share <= LIKELY_SHARE[1]:
            return f"in {unit} the highest is {100 * share:.2g} % of the {of}: {flag}{unit}"
    return f"say its unit: {flag}UNIT, of {', '.join(UNITS[name])}"


def _unit(name: str, mapped: Mapped) -> str:
    """Return the unit that was given, or else the schema's."""
    return mapped.unit(name) or next(iter(UNITS[name]))


def _flag(name: str, mapped: Mapped) -> str:
    return f"--column {name}={mapped.source(name)}:"
