"""Writing a cluster file: TOML with one section, [cluster], and a comment on what each figure rests on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from frontrunner.evaluators.calibration.figures import Calibration
from frontrunner.evaluators.files import write_json, write_text
from frontrunner.spaces.cluster import Cluster

TABLE_SUFFIX = ".measured.json"


def cluster_toml(cluster: Cluster, notes: Mapping[str, str], heading: str) -> str:
    """The file's text. `notes` go behind their keys, dotted where they are in a table; what is None is left out."""
    plain, tables = [], []
    for field in fields(cluster):
        value = getattr(cluster, field.name)
        table = _table(value)
        if table is None:
            plain += [] if value is None else [_line(field.name, value, notes.get(field.name))]
        elif table:
            tables += ["", f"[cluster.{field.name}]"]
            tables += [_line(key, entry, notes.get(f"{field.name}.{key}")) for key, entry in table.items()]
    comments = [f"# {line}" for line in heading.splitlines()]
    return "\n".join([*comments, "", "[cluster]", *plain, *tables]) + "\n"


def _table(value: Any) -> dict[str, Any] | None:
    if is_dataclass(value):
        entries = {field.name: getattr(value, field.name) for field in fields(value)}
        return {key: entry for key, entry in entries.items() if entry is not None}
    return dict(value) if isinstance(value, Mapping) else None


def _line(key: str, value: Any, note: str | None) -> str:
    """TOML's basic strings escape as JSON's do, and its floats need a point before an exponent or none at all."""
    text = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f") if isinstance(value, str) else repr(value)
    return f"{key} = {text}" + (f"  # {note}" if note else "")


def table_path(out: Path) -> Path:
    """Where the raw measurements of a cluster file lie: beside it."""
    return out.with_name(out.stem + TABLE_SUFFIX)


def write(out: Path, found: Calibration) -> None:
    """Write the raw measurements and then the cluster file, each whole or not at all."""
    lines = [{field.name: getattr(line, field.name) for field in fields(line)} for line in found.lines]
    write_json(table_path(out), {"taken_at": found.taken_at.isoformat(), "lines": lines} | dict(found.seen))
    heading = (
        "What frontrunner calibrate measured; every timing stands in "
        f'{table_path(out).name}.\nA campaign uses it by  [cluster] file = "{out.name}"'
    )
    write_text(out, cluster_toml(found.cluster, found.notes, heading))
