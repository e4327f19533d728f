"""The section [cluster] of a campaign file, cluster files, and clusters by name."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, ValidationInfo

from frontrunner.config.toml_file import Table, read_toml
from frontrunner.spaces.cluster import Cluster
from frontrunner.spaces.errors import InvalidInput, bad_value, did_you_mean, shown
from frontrunner.spaces.presets import cluster_names, cluster_preset, device_names, known_device
from frontrunner.spaces.validation import Config, SchemaOf, parse


def _complete_cluster(given: Any, info: ValidationInfo) -> Any:
    if not isinstance(given, dict):
        return given
    return complete_cluster(given, (info.context or {}).get("base", Path()))


def _check_efficiencies(cluster: Cluster) -> Cluster:
    if cluster.efficiencies:
        from frontrunner.evaluators.analytic.machine import check_efficiencies

        check_efficiencies(cluster.efficiencies)
    return cluster


def _cluster_schema(schema: dict[str, Any]) -> None:
    names, described = [*cluster_names(), "this-machine"], "A preset; the other keys override it."
    schema["properties"] = {
        "preset": {"type": "string", "enum": names, "description": described},
        "file": {"type": "string", "description": "Path of a cluster file, relative to the campaign file."},
        **schema["properties"],
    }
    schema["properties"]["device"]["examples"] = list(device_names())
    filled = complete_cluster({"device": device_names()[0]}, Path())
    own = [key for key in schema.pop("required") if key not in filled or key == "device"]
    schema["anyOf"] = [{"required": ["preset"]}, {"required": ["file"]}, {"required": own}]


ClusterSection = Annotated[
    Cluster, BeforeValidator(_complete_cluster), AfterValidator(_check_efficiencies), SchemaOf(_cluster_schema)
]


class ClusterFile(Config):
    """A cluster file: TOML with the section [cluster] alone, as `frontrunner calibrate` writes it."""

    cluster: ClusterSection


def read_cluster_file(path: Path) -> Cluster:
    """Read and validate a cluster file.

    Raises `NotFound` for a missing file, and `InvalidInput` naming the key, its value and what was expected.
    """
    table = read_toml(path, "cluster file", "frontrunner calibrate --out FILE writes one")
    try:
        section = table.get("cluster")
        if isinstance(section, dict) and "file" in section:
            raise bad_value("cluster.file", section["file"], "no such key in a cluster file")
        return parse(ClusterFile, table, base=path.parent).cluster
    except InvalidInput as error:
        raise InvalidInput(f"{path}: {error.message}", hint=error.hint) from None


def named_cluster(name: str) -> Cluster:
    """Return a cluster by the name of a preset, or by the path of a cluster file."""
    if name == "this-machine" or name in cluster_names():
        return parse_cluster({"preset": name})
    if "/" in name or name.endswith(".toml"):
        return read_cluster_file(Path(name))
    hint = did_you_mean(name, (*cluster_names(), "this-machine"))
    raise bad_value("cluster", name, "a known preset, or a cluster file's path", hint=hint)


def parse_cluster(table: Table) -> Cluster:
    """Validate the keys of a section [cluster]; a relative `file` is taken from the working directory."""
    return parse(ClusterFile, {"cluster": table}).cluster


def complete_cluster(given: Table, base: Path) -> Table:
    """Fill in a section's cluster file, preset or known device; a relative `file` is taken from `base`."""
    table = dict(given)
    if "file" in table:
        return _over_file(table, base)
    name, wanted = table.pop("preset", None), table.get("devices_per_node")
    if name is None:
        return {"name": "custom", "nodes": 1} | (known_device(str(table.get("device", ""))) or {}) | table
    if name != "this-machine":
        return cluster_preset(name) | table
    from frontrunner.evaluators.probe.this_machine import detect, share_processors

    found = detect()
    if isinstance(wanted, int) and found["backend"] == "cpu" and wanted >= 1:
        found = share_processors(found, wanted)
    elif isinstance(wanted, int) and wanted > found["devices_per_node"]:
        raise bad_value("cluster.devices_per_node", wanted, f"at most the {found['devices_per_node']} found here")
    return found | table


def _over_file(table: Table, base: Path) -> Table:
    """Merge the section's own keys over those of the cluster file that it names."""
    name = table.pop("file")
    if not isinstance(name, str) or not name:
        raise bad_value("cluster.file", name, "the path of a cluster file")
    if "preset" in table:
        raise bad_value("cluster.preset", table["preset"], f"no preset with cluster.file = {shown(name)}")
    cluster = read_cluster_file(base / name)
    wanted = table.get("devices_per_node", cluster.devices_per_node)
    if cluster.backend == "cpu" and wanted != cluster.devices_per_node:
        expected = f"{cluster.devices_per_node}: {name} was measured with this many ranks sharing the processors"
        raise bad_value("cluster.devices_per_node", wanted, expected)
    merged = asdict(cluster)
    for key, value in table.items():
        both_tables = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = merged[key] | value if both_tables else value
    return merged
