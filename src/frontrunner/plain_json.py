"""Values of ours as plain JSON: what `--json` prints, and what the service answers."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any


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
        derived = (name for name, member in vars(kind).items() if isinstance(member, property) and name[0] != "_")
        _SHOWN[kind] = own + tuple(name for name in derived if name not in own)
    return _SHOWN.get(kind)


_SHOWN: dict[type, tuple[str, ...]] = {}
"""What `_shown` has found, since answers hold hundreds of values of few types."""
