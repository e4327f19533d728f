"""Numbers and values as text and as JSON, and outside text made safe to print."""

from __future__ import annotations

import json
import math
import re
import textwrap
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

LEAST_NODE_HOURS = 0.01
"""Below it, node time is shown in node-seconds."""


def plain(text: str) -> str:
    """Escape control characters other than line breaks, so that text from outside is safe to
    print.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)


def thousands(value: float) -> str:
    """Return a rate with three significant digits or in whole numbers: 0.000123, 4.56, 789,
    12,345.
    """
    if not math.isfinite(value):
        return "-"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    if 0 < abs(value) < 1e-4:  # here three digits would be written as 1.23e-05
        return f"{value:.{2 - math.floor(math.log10(abs(value)))}f}"
    return f"{value:.3g}"


def percent(share: float | None, digits: int = 1) -> str:
    """Return a share as a percentage, or a dash for None."""
    return "-" if share is None else f"{100 * share:.{digits}f} %"


def mib(size_bytes: float) -> str:
    """Return a size as a number of MiB, for what is small beside a device."""
    return f"{size_bytes / 2**20:,.0f}"


def gib(size_bytes: float | None) -> str:
    """Return bytes in GiB, two digits after the point; a dash where they are unknown."""
    return "-" if size_bytes is None else f"{size_bytes / 2**30:.2f}"


def memory_unit(peak_bytes: float) -> tuple[int, str]:
    """Return the unit of a table of the parts of a peak, in bytes and by name: GiB, or MiB where it
    is smaller.
    """
    return (2**30, "GiB") if peak_bytes >= 2**30 else (2**20, "MiB")


def fit_verdict(fit: str, peak_bytes: int, device_bytes: int) -> str:
    """Return a verdict on whether a peak fits in a device's memory, and by how much."""
    left = device_bytes - peak_bytes
    if left < 0:
        return (
            f"{fit}: {gib(peak_bytes)} GiB on a device of {gib(device_bytes)} GiB, {gib(-left)} GiB"
            " too much"
        )
    share = percent(peak_bytes / device_bytes)
    return f"{fit}: {gib(peak_bytes)} of {gib(device_bytes)} GiB ({share}), {gib(left)} GiB left"


def size(size_bytes: float) -> str:
    """Return bytes with their unit: 512 B, 64 KiB, 14.2 MiB, 2,937 GiB."""
    units = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
    unit, name = next((found for found in units if size_bytes >= found[0]), (1, "B"))
    return f"{thousands(size_bytes / unit)} {name}"


def count(value: float) -> str:
    """Return a large number in words: 22.4 billion, 124 million, 886 thousand."""
    for unit, name in ((1e12, "trillion"), (1e9, "billion"), (1e6, "million"), (1e3, "thousand")):
        if value >= 0.9995 * unit:
            return f"{value / unit:.3g} {name}"
    return f"{value:g}"


def parameters(total: int, *, active: int) -> str:
    """Return a model's size: 671 billion parameters, of which 37.6 billion per token."""
    words = f"{count(total)} parameters"
    return words if active == total else f"{words}, of which {count(active)} per token"


def counted(number: int, word: str) -> str:
    """Return a count with its noun: 1 row, 2,000 rows."""
    return f"{number:,} {word}" + ("" if number == 1 else "s")


def wrapped(text: str, *, width: int, indent: int) -> str:
    """Wrap text to lines of at most `width` characters, each indented; a number and its unit stay
    together.
    """
    joined = re.sub(r"(?<=\d) (?=%|[GM]iB|s\b|ms\b)", "\N{NO-BREAK SPACE}", text)
    blank = " " * indent
    wrapper = textwrap.TextWrapper(
        width,
        initial_indent=blank,
        subsequent_indent=blank,
        break_long_words=False,
        break_on_hyphens=False,
    )
    lines = wrapper.fill(joined)
    return lines.replace("\N{NO-BREAK SPACE}", " ")


def seconds(value: float) -> str:
    """Return a duration: 8.1 ms, 1.25 s, 3 min 20 s, 2 h 05 min; a dash if it is not finite."""
    if not math.isfinite(value):
        return "-"
    if value < 0.9995:  # above, three digits of milliseconds would read 1e+03
        return f"{1000 * value:.3g} ms"
    if value < 100:
        return f"{value:.3g} s"
    if value < 6000:
        return f"{int(value // 60)} min {int(value % 60):02d} s"
    return f"{int(value // 3600)} h {int(value % 3600 // 60):02d} min"


def node_unit(node_seconds: float) -> tuple[str, float]:
    """Return the unit for node time, and its seconds: node-seconds below a hundredth of a
    node-hour.
    """
    return (
        ("node-hours", 3600.0) if node_seconds >= LEAST_NODE_HOURS * 3600 else ("node-seconds", 1.0)
    )


def node_time(node_seconds: float) -> str:
    """Return node time: 24.8 node-seconds, 3.4 node-hours, 12,345 node-hours."""
    unit, size_s = node_unit(node_seconds)
    return f"{thousands(node_seconds / size_s)} {unit}"


def minute(moment: str) -> str:
    """Return an ISO timestamp to the minute: 2025-03-01 12:30."""
    return moment[:16].replace("T", " ")


def latency(value: float) -> str:
    """Return a duration that may be very short: 8.1 us below a millisecond, above it as
    `seconds`.
    """
    return f"{1e6 * value:.3g} us" if value < 0.9995e-3 else seconds(value)


def to_json(value: object, *, indent: int | None = None) -> str:
    """A value of ours as JSON text; numbers that JSON cannot hold become null."""
    return json.dumps(as_plain(value), indent=indent, allow_nan=False)


def as_plain(value: Any) -> Any:
    """Dataclasses, with their derived properties, enums and tuples as plain JSON values."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, Mapping):
        return {str(as_plain(key)): as_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [as_plain(item) for item in value]
    shown = _shown(type(value))
    return str(value) if shown is None else {name: as_plain(getattr(value, name)) for name in shown}


def _shown(kind: type) -> tuple[str, ...] | None:
    """The public fields of a dataclass, then its public properties; None for any other type."""
    if kind not in _SHOWN and is_dataclass(kind):
        own = tuple(f.name for f in fields(kind) if not f.name.startswith("_"))
        derived = (
            name
            for name, member in vars(kind).items()
            if isinstance(member, property) and name[0] != "_"
        )
        _SHOWN[kind] = own + tuple(name for name in derived if name not in own)
    return _SHOWN.get(kind)


_SHOWN: dict[type, tuple[str, ...]] = {}
"""What `_shown` has found, since answers hold hundreds of values of few types."""
