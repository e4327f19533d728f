"""Models, devices and clusters that ship with frontrunner, as data with their sources."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from importlib.resources import files
from typing import Any

from frontrunner.spaces.errors import bad_value, did_you_mean

Table = dict[str, Any]


CATALOGUES = ("models", "clusters", "devices")


@cache
def catalogue(name: str) -> dict[str, Table]:
    """Return the presets of one of `CATALOGUES` as their file states them, with their sources."""
    text = (files("frontrunner.spaces") / "preset_data" / f"{name}.toml").read_text(
        encoding="utf-8"
    )
    return tomllib.loads(text)


def _entry(kind: str, key: str, name: object, *extra: str) -> Table:
    known = catalogue(kind)
    if not isinstance(name, str) or name not in known:
        raise bad_value(key, name, "a known preset", hint=did_you_mean(str(name), (*known, *extra)))
    return {
        field: value for field, value in known[name].items() if field not in ("matches", "unless")
    }


def preset_names(kind: str) -> tuple[str, ...]:
    """Return the names of all presets in `models`, `clusters` (without the detected this-machine)
    or `devices`.
    """
    return tuple(catalogue(kind))


def model_preset(name: object) -> Table:
    """Return the fields of [model] for a preset; raises `InvalidInput` for an unknown name."""
    table = _entry("models", "model.preset", name)
    del table["source"]
    return {"name": name, **table}


def cluster_preset(name: object) -> Table:
    """Return the fields of [cluster] for a preset; raises `InvalidInput` for an unknown name."""
    table = _entry("clusters", "cluster.preset", name, "this-machine")
    return {"name": name, "nodes": 1, **device_preset(table["device"]), **table}


def device_preset(name: str) -> Table:
    """Return what [cluster] says of one device by its key in devices.toml."""
    return {"device": name} | _entry("devices", "cluster.device", name)


def known_device(reported_name: str) -> Table | None:
    """Return the device of a driver's name for it, or of its key in devices.toml.

    All words of its `matches` occur in the name, and none of its `unless`: boards of one chip
    differ in rate.
    """
    known = catalogue("devices")
    words = set(
        re.sub(
            r"(\d) gb\b", r"\1gb", reported_name.lower().replace("-", " ").replace("/", " ")
        ).split()
    )
    fitting = (
        name
        for name, table in known.items()
        if words.issuperset(table["matches"]) and words.isdisjoint(table.get("unless", ()))
    )
    name = reported_name if reported_name in known else next(fitting, None)
    return None if name is None else device_preset(name)
