"""Calibration: measuring a machine by real ranks, and the cluster file with what that, or a fit to
steps, found.

Ranks time products, memory, collectives and transfers; what formulas are fitted to these timings is
a cluster's.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from frontrunner.evaluators.analytic.arrays import Rows
from frontrunner.evaluators.analytic.codes import FRONTRUNNER
from frontrunner.evaluators.analytic.fit import StepFits
from frontrunner.evaluators.analytic.machine import FITTED, Machine
from frontrunner.evaluators.analytic.pricing import matmul_s
from frontrunner.evaluators.analytic.workload import BYTES_PER_VALUE
from frontrunner.evaluators.diagnostics.ranks import OWN, Place, Rank, await_ranks
from frontrunner.evaluators.runs.files import read_json, write_json, write_text
from frontrunner.spaces.cluster import ByPrecision, Cluster, FittedCode
from frontrunner.spaces.errors import FrontrunnerError

CHILD = "frontrunner.evaluators.trainer.calibration"
START_S = 180.0
LONGEST = 3.0
"""Times the budget after which ranks are given up: each section may overrun by its last cell."""

PASSES = {"all-reduce": 2, "reduce-scatter": 1, "all-gather": 1, "all-to-all": 1, "scatter": 1}
"""Times that (g - 1) / g of the message goes over each link of a ring of g ranks (NCCL's "bus
bandwidth").
"""
RINGS = ("all-reduce", "reduce-scatter", "all-gather")
FEWEST_POINTS = 2
LARGE_BYTES = 2**19
"""From this size on a message shows bandwidth; smaller ones differ by latency's noise."""
FELT = 1e-3
"""A largest message that takes less of the time than this share shows no bandwidth."""
PRODUCT_BOUNDS = {
    "matmul": (0.5, 1.0),
    "tile_waves": (0.0, 3.0),
    "reduction_depth": (0.0, 600.0),
    "kernel_s": (1e-7, 1e-3),
}
FEWEST_PRODUCTS = 2 * len(PRODUCT_BOUNDS)
PLACES = 6
"""Digits after the point of a value's place between its bounds; a solver's 1e-13 means 0."""
GIGA = 1e9
BUSY_SHARE = 0.1
DIGITS = 4
FAR_OFF = 0.5
"""From this relative error of a fit on, its results are not written: the timings follow no such
line.
"""
LARGE_SHARE = 1 / 16
"""A precision whose largest timed product has less than this share of the largest work timed shows
no rate.
"""
WRITTEN_DIGITS = 6
CORRELATION_DIGITS = 3
Seen = dict[str, Any]
Row = Mapping[str, Any]


def measure(where: Place, *, device: str, seconds: float) -> Seen | None:
    """Run the measuring ranks that this process starts; return what they measured, or None where
    another has it.
    """
    with tempfile.TemporaryDirectory(prefix="frontrunner-") as name, ExitStack() as stack:
        folder = Path(name)
        out = folder / "measured.json"
        ranks: list[Rank] = []
        for number, _ in where.own:
            places = {
                "RANK": number,
                "WORLD_SIZE": where.ranks,
                "LOCAL_RANK": number,
                "LOCAL_WORLD_SIZE": where.ranks,
            }
            meeting = {"FRONTRUNNER_RENDEZVOUS": f"file://{folder / 'rendezvous'}"}
            alone = OWN | meeting | {key: str(place) for key, place in places.items()}
            order = {"device": device, "seconds": seconds, "out": str(out)}
            ranks.append(
                Rank(number, [CHILD], json.dumps(order), where.environment or alone, folder)
            )
            stack.callback(ranks[-1].end)
        await_ranks(
            ranks,
            what="measuring rank",
            limit_s=START_S + LONGEST * seconds,
            hint="give more --seconds",
        )
        if not where.writes:
            return None
        seen = read_json(out)
        if not isinstance(seen, dict):
            raise FrontrunnerError(f"the ranks wrote no measurements:\n{ranks[0].log_tail}")
        return seen


# Fits to timings


@dataclass(frozen=True, kw_only=True)
class Line:
    """time = latency_s + bytes over a link / bytes_per_s, with the RMS of relative errors; for all
    `RINGS` by hop.
    """

    collective: str
    level: str
    ranks: int
    latency_s: float
    bytes_per_s: float | None
    residual: float
    points: int


def link_bytes(collective: str, ranks: int, message_bytes: float) -> float:
    """Return the bytes of a message that go over one rank's link: all of them, once, of what is no
    ring.
    """
    if collective not in PASSES:
        return message_bytes
    return PASSES[collective] * message_bytes * (ranks - 1) / ranks


def lines(seen: Seen) -> tuple[Line, ...]:
    """Return a line for each collective and level of which two sizes or more were measured."""
    groups: dict[tuple[str, str, int], list[Row]] = {}
    for row in seen["collectives"]:
        groups.setdefault((row["collective"], row["level"], row["ranks"]), []).append(row)
    fitted = (_line(key[0], rows, [1.0] * len(rows)) for key, rows in groups.items())
    return tuple(line for line in fitted if line)


def ring(seen: Seen, level: str) -> Line | None:
    """Return the level's line of all rings, with steps as `ring_s` counts; None where too little of
    it was measured.
    """
    rows = [
        row for row in seen["collectives"] if row["level"] == level and row["collective"] in RINGS
    ]
    steps = [
        PASSES[row["collective"]] * min(row["ranks"] - 1, 2 * np.log2(row["ranks"])) for row in rows
    ]
    return _line("ring", rows, steps)


def _line(collective: str, rows: Sequence[Row], steps: Sequence[float]) -> Line | None:
    """Fit seconds per step and bytes/s, at least 0, with the least relative errors."""
    from scipy.optimize import nnls

    if len(rows) < FEWEST_POINTS:
        return None
    times: Rows = np.array([row["time_s"] for row in rows])
    moved = [link_bytes(row["collective"], row["ranks"], row["bytes"]) for row in rows]
    # Bytes are a million times steps: columns of like size keep the solver's tolerance out of it.
    scale = np.array([1.0, max(moved)])
    design = np.column_stack([steps, moved]) / scale / times[:, None]
    found, error = nnls(design, np.ones(len(times)))
    latency_s, per_byte = (found / scale).tolist()
    is_felt = found[1] > FELT * times.min() and max(row["bytes"] for row in rows) >= LARGE_BYTES
    return Line(
        collective=collective,
        level=rows[0]["level"],
        ranks=rows[0]["ranks"],
        latency_s=latency_s,
        bytes_per_s=1 / per_byte if is_felt else None,
        residual=float(error / np.sqrt(len(times))),
        points=len(rows),
    )


def fit_products(cluster: Cluster, rows: Sequence[Row]) -> tuple[Mapping[str, float], float] | None:
    """Return the efficiencies of `matmul_s` that predict the measured products best, and the RMS of
    relative errors.
    """
    from scipy.optimize import least_squares

    if len(rows) < FEWEST_PRODUCTS:
        return None
    names = [name for name in PRODUCT_BOUNDS if name != "kernel_s" or cluster.backend == "cpu"]
    # An accelerator's small products, one after another, show how fast the host issues them, not
    # the device's start.
    low, high = (np.array([PRODUCT_BOUNDS[name][side] for name in names]) for side in (0, 1))
    measured = np.array([row["time_s"] for row in rows])

    def errors(place: Rows) -> Rows:
        values = (low + place * (high - low)).tolist()
        ratios: Rows = np.log(
            _times(cluster, rows, dict(zip(names, values, strict=True))) / measured
        )
        return ratios

    start = np.clip(([getattr(FITTED, name) for name in names] - low) / (high - low), 0.01, 0.99)
    best = least_squares(errors, start, bounds=(0, 1), loss="soft_l1", f_scale=0.1)
    found = dict(zip(names, (low + np.round(best.x, PLACES) * (high - low)).tolist(), strict=True))
    return found, float(np.sqrt(np.mean(errors(best.x) ** 2)))


def _times(cluster: Cluster, rows: Sequence[Row], efficiencies: Mapping[str, float]) -> Rows:
    times = np.empty(len(rows))
    for precision in {row["precision"] for row in rows}:
        index = [number for number, row in enumerate(rows) if row["precision"] == precision]
        m, n, k = (np.array([float(rows[number][side]) for number in index]) for side in "mnk")
        machine = Machine.of(cluster, precision, FRONTRUNNER, replace(FITTED, **efficiencies))
        times[index] = matmul_s(machine, m, n, k, BYTES_PER_VALUE[precision])
    return times


# Figures of a cluster


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """A measured cluster: `notes` by dotted key, and in `untold` what was measured too badly to be
    written.
    """

    cluster: Cluster
    notes: Mapping[str, str]
    lines: tuple[Line, ...]
    seen: Seen
    taken_at: datetime
    load_before: float | None
    untold: tuple[str, ...]

    @property
    def left_out(self) -> int:
        """The number of measurements that the budget had no room for."""
        return len(self.seen["left_out"])

    @property
    def busy(self) -> str | None:
        """A sentence where other work kept a tenth of the processors or more busy."""
        processors, load = os.cpu_count() or 1, self.load_before
        if load is None or load < BUSY_SHARE * processors:
            return None
        return (
            f"other work ran on this machine: load average {load:.1f} before, on {processors}"
            " processors"
        )


Figure = tuple[str, float, str]
"""A measured field of a cluster: its dotted key, its value, and what it rests on."""


def calibration(
    base: Cluster, seen: Seen, taken_at: datetime, load_before: float | None = None
) -> Calibration:
    """Return the base cluster with what was measured on it; other figures stay as the base has
    them.
    """
    per_node, untold, rows = seen["ranks_per_node"], list[str](), seen["matmul"]
    day, torch = taken_at.strftime("%Y-%m-%d %H:%M UTC"), seen["versions"]["torch"]
    sized = replace(
        base,
        nodes=seen["ranks"] // per_node,
        devices_per_node=per_node,
        source=(
            f"frontrunner calibrate, {day}: {seen['ranks']} ranks, {seen['device_name']}, torch"
            f" {torch}"
        ),
    )
    figures = [
        *_rates(rows, untold),
        *_memory(seen["memory"]),
        *_links(base, seen, untold),
        *_host(seen),
    ]
    products = fit_products(_with_figures(sized, figures), rows)
    if products and _is_usable("efficiencies of matrix products", products[1], untold):
        note = f"fitted to {len(rows)} matrix products, {100 * products[1]:.0f} % off"
        figures += [(f"efficiencies.{name}", value, note) for name, value in products[0].items()]
    return Calibration(
        cluster=_with_figures(sized, figures),
        notes={key: note for key, _, note in figures if note},
        lines=lines(seen),
        seen=seen,
        taken_at=taken_at,
        load_before=load_before,
        untold=tuple(untold),
    )


def _with_figures(base: Cluster, figures: Iterable[Figure]) -> Cluster:
    tables: dict[str, dict[str, Any]] = {
        "": {},
        "matmul_tflops": {},
        "links": {},
        "efficiencies": {},
    }
    for key, value, _ in figures:
        table, _, name = key.rpartition(".")
        tables[table][name] = value if isinstance(value, int) else float(f"{value:.{DIGITS}g}")
    rates = tables["matmul_tflops"]
    # A stated peak below what was measured is wrong.
    peaks = {
        name: p
        for name, p in asdict(base.peak_tflops).items()
        if p is None or p >= rates.get(name, 0.0)
    }
    return replace(
        base,
        **tables[""],
        matmul_tflops=ByPrecision(**rates),
        peak_tflops=ByPrecision(**peaks),
        links=replace(base.links, **tables["links"]),
        efficiencies={**base.efficiencies, **tables["efficiencies"]},
    )


def _is_usable(what: str, residual: float, untold: list[str]) -> bool:
    if residual > FAR_OFF:
        untold.append(f"{what}: the fit is {100 * residual:.0f} % off")
    return residual <= FAR_OFF


def _rates(rows: Sequence[Row], untold: list[str]) -> Iterator[Figure]:
    work: Counter[str] = Counter()
    for row in rows:
        work[row["precision"]] = max(work[row["precision"]], row["m"] * row["n"] * row["k"])
    for precision, largest in work.items():
        key, own = (
            f"matmul_tflops.{precision}",
            [row for row in rows if row["precision"] == precision],
        )
        if largest < LARGE_SHARE * max(work.values()):
            untold.append(f"{key}: only small products were timed")
        else:
            rate = max(2e-12 * row["m"] * row["n"] * row["k"] / row["time_s"] for row in own)
            yield key, rate, f"the fastest of {len(own)} shapes"


def _memory(rows: Sequence[Row]) -> Iterator[Figure]:
    sizes = [row["bytes"] / (2 if row["kernel"] == "copy" else 3) for row in rows]
    largest = [row for row, size in zip(rows, sizes, strict=True) if size == max(sizes)]
    if largest:
        best = max(largest, key=lambda row: row["bytes"] / row["time_s"])
        note = f"{best['kernel']} of arrays of {max(sizes) / 2**20:.0f} MiB"
        yield "memory_gb_per_s", best["bytes"] / best["time_s"] / GIGA, note
        yield "efficiencies.memory", 1.0, "the bandwidth above is measured"


def _links(base: Cluster, seen: Seen, untold: list[str]) -> Iterator[Figure]:
    ports, node_rate = base.links.nics_per_node or 1, 0.0
    for level, key in {"node": "node", "network": "nic", "pair": "pair"}.items():
        line = ring(seen, level)
        if (
            not line
            or not _is_usable(f"links of a {level}", line.residual, untold)
            or not line.bytes_per_s
        ):
            continue
        rate, note = (
            line.bytes_per_s,
            f"rings of {line.ranks}, {line.points} timings, {100 * line.residual:.0f} % off",
        )
        if level == "pair":
            if 0 < node_rate < rate:
                yield "links.pair_gb_per_s", rate / GIGA, note
            continue
        if level == "node":
            node_rate = rate
        else:  # the groups of a node's ranks share its ports, and were all measured at once
            rate *= seen["ranks_per_node"] / ports
            yield "links.nics_per_node", ports, ""
        yield f"links.{key}_gb_per_s", rate / GIGA, note
        yield f"efficiencies.{level}_links", 1.0, "the bandwidth above is measured"
        yield f"efficiencies.{level}_latency_s", line.latency_s, "a hop, from the same fit"


def _host(seen: Seen) -> Iterator[Figure]:
    """Yield the slower direction of the largest pinned transfers, and the host's time per layer."""
    pinned = [row for row in seen["transfers"] if row["pinned"]]
    if pinned:
        slower = max(pinned, key=lambda row: (row["bytes"], row["time_s"]))
        note = f"{slower['direction']}, {slower['bytes'] / 2**20:.0f} MiB pinned"
        yield "links.host_gb_per_s", slower["bytes"] / slower["time_s"] / GIGA, note
    for row in seen["layer"]:
        note = "a pass of one of the trainer's layers with next to nothing to compute"
        yield "efficiencies.host_layer_s", row["time_s"] / row["passes"], note


# The cluster file


def write_measured(out: Path, found: Calibration) -> None:
    """Write the raw measurements and then the cluster file, each whole or not at all."""
    table = out.with_name(f"{out.stem}.measured.json")
    about = {"taken_at": found.taken_at.isoformat(), "load_before": found.load_before}
    write_json(table, about | {"lines": [asdict(line) for line in found.lines]} | found.seen)
    heading = [
        f"Measured by frontrunner calibrate, all ranks at once; every timing is in {table.name}.",
        _usage(out),
        *([found.busy] if found.busy else []),
        *(f"not written: {reason}" for reason in found.untold),
    ]
    write_text(out, cluster_toml(found.cluster, found.notes, heading))


def write_fits(
    out: Path, base: Cluster, found: StepFits, *, origin: str, taken_at: datetime
) -> None:
    """Write the base cluster as it is, with a fit of each training code in place of an earlier
    one.
    """
    source = f"{origin}, {taken_at.strftime('%Y-%m-%d %H:%M UTC')}"
    fits = {one.code: one for one in base.fitted} | {
        fit.code: fit.for_cluster_file(source) for fit in found.fits
    }
    heading = ["Constants fitted by frontrunner calibrate.", _usage(out)]
    write_text(out, cluster_toml(replace(base, fitted=tuple(fits.values())), {}, heading))


def _usage(out: Path) -> str:
    return f"A campaign file uses it by  [cluster] file = {json.dumps(out.name)}"


def cluster_toml(cluster: Cluster, notes: Mapping[str, str], heading: Sequence[str]) -> str:
    """Return the file's text. `notes` follow their keys, dotted where they are in a table; None and
    () are left out.
    """
    plain, tables = [], []
    for name, value in (
        (f.name, getattr(cluster, f.name)) for f in fields(cluster) if f.name != "fitted"
    ):
        table = asdict(value) if is_dataclass(value) and not isinstance(value, type) else value
        if not isinstance(table, Mapping):
            plain += [] if value is None or value == () else [_entry(name, value, notes.get(name))]
        elif entries := {key: entry for key, entry in table.items() if entry is not None}:
            tables += ["", f"[cluster.{name}]"]
            tables += [
                _entry(key, entry, notes.get(f"{name}.{key}")) for key, entry in entries.items()
            ]
    tables += [line for fit in cluster.fitted for line in _of_fit(fit)]
    return "\n".join([*(f"# {line}" for line in heading), "", "[cluster]", *plain, *tables]) + "\n"


def _of_fit(fit: FittedCode) -> Iterator[str]:
    """Yield the lines of a fit, one for each constant, with its correlations with those of the
    lines before.
    """
    yield from ("", "[[cluster.fitted]]")
    yield from (
        _entry(key, getattr(fit, key), None) for key in ("code", "rows", "problems", "nodes")
    )
    errors = {key: value for key, value in vars(fit.error).items() if value is not None}
    yield f"error = {{ {', '.join(_entry(key, value, None) for key, value in errors.items())} }}"
    yield _entry("source", fit.source, None)
    yield "constants = ["
    for one in fit.constants:
        shown = ", ".join(f"{value:.{CORRELATION_DIGITS}f}" for value in one.correlations)
        known = ", ".join(
            _entry(key, getattr(one, key), None) for key in ("name", "value", "deviation")
        )
        yield f"  {{ {known}, correlations = [{shown}] }},"
    yield "]"


def _entry(key: str, value: Any, note: str | None) -> str:
    """Return one entry; TOML's basic strings escape as JSON's do, and `repr` writes floats as TOML
    reads them.
    """
    if isinstance(value, float):
        value = float(f"{value:.{WRITTEN_DIGITS}g}")
    is_json = isinstance(value, str | bool)
    text = (
        json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f") if is_json else repr(value)
    )
    return f"{key} = {text}" + (f"  # {note}" if note else "")
