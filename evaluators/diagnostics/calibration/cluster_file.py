"""Writing a cluster file: TOML with one section, [cluster], and a comment on what each figure rests on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from frontrunner.evaluators.analytic.fit import StepFit
from frontrunner.evaluators.diagnostics.calibration.measured_cluster import Calibration, busy
from frontrunner.evaluators.probe.files import write_json, write_text
from frontrunner.spaces.cluster import PRECISIONS, Cluster

DIGITS = 6
"""Significant digits that are written; no measurement is known better."""
TABLE_SUFFIX = ".measured.json"


def cluster_toml(cluster: Cluster, notes: Mapping[str, str], heading: str) -> str:
    """Return the file's text. `notes` follow their keys, dotted where they are in a table; None is left out."""
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
    """Return one entry; TOML's basic strings escape as JSON's do, and `repr` writes floats as TOML reads them."""
    if isinstance(value, float):
        value = float(f"{value:.{DIGITS}g}")
    text = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f") if isinstance(value, str) else repr(value)
    return f"{key} = {text}" + (f"  # {note}" if note else "")


def table_path(out: Path) -> Path:
    """Return the path of the raw measurements, next to the cluster file."""
    return out.with_name(out.stem + TABLE_SUFFIX)


def write_measured(out: Path, found: Calibration) -> None:
    """Write the raw measurements and then the cluster file, each whole or not at all."""
    lines = [{field.name: getattr(line, field.name) for field in fields(line)} for line in found.lines]
    write_json(
        table_path(out),
        {"taken_at": found.taken_at.isoformat(), "load_before": found.load_before, "lines": lines} | dict(found.seen),
    )
    heading = f"Measured by frontrunner calibrate, all ranks at once; every timing is in {table_path(out).name}."
    untold = (f"not written: {reason}" for reason in found.untold)
    heading = "\n".join(filter(None, (heading, _usage(out), busy(found), *untold)))
    write_text(out, cluster_toml(found.cluster, found.notes, heading))


def write_fit(out: Path, base: Cluster, fit: StepFit, *, origin: str, taken_at: datetime) -> None:
    """Write the base cluster with the fitted constants in it, and the error on rows held back."""
    day = taken_at.strftime("%Y-%m-%d %H:%M UTC")
    cluster = replace(
        base,
        efficiencies={**base.efficiencies, **fit.efficiencies},
        expected_error=fit.expected_error,
        source=f"{base.source}; constants fitted {day} to {fit.rows} rows of {origin}",
    )
    notes = {
        f"efficiencies.{constant.name}": f"fitted to {constant.rows} rows; was {constant.before:.4g}"
        for constant in fit.constants
        if not constant.held
    }
    held_back = "whole problems" if fit.by_problem else "every fifth row"
    for precision in PRECISIONS:
        notes[f"expected_error.{precision}"] = f"on rows held back, {held_back} at a time"
    write_text(out, cluster_toml(cluster, notes, f"Constants fitted by frontrunner calibrate.\n{_usage(out)}"))


def _usage(out: Path) -> str:
    return f"A campaign file uses it by  [cluster] file = {json.dumps(out.name)}"
