"""Clusters as people give them: a section [cluster], a cluster file, or the name of a preset."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from frontrunner.config.file_sections import section_of
from frontrunner.config.toml_file import Table, read_toml
from frontrunner.config.validation import refuse_unusable_values
from frontrunner.spaces.cluster import Cluster
from frontrunner.spaces.errors import InvalidInput, bad_value, did_you_mean
from frontrunner.spaces.presets import cluster_names, cluster_preset, known_device
from frontrunner.spaces.wording import shown, shown_key


def read_cluster_file(path: Path) -> Cluster:
    """Read and validate a cluster file: TOML with the section [cluster] alone, as `frontrunner calibrate` writes it.

    Raises `NotFound` where there is no such file, and `InvalidInput` for anything else that is wrong with it.
    """
    table = read_toml(path, "cluster file", "frontrunner calibrate --out FILE writes one")
    try:
        refuse_unusable_values(table)
        if set(table) != {"cluster"} or not isinstance(table["cluster"], dict):
            named = ", ".join(shown_key(key) for key in table) or "nothing"
            raise InvalidInput(f"it holds {named}: expected the section [cluster] alone")
        if "file" in table["cluster"]:
            raise bad_value("cluster.file", table["cluster"]["file"], "no such key in a cluster file")
        return checked_cluster(cluster_table(table["cluster"], path.parent))
    except InvalidInput as error:
        raise InvalidInput(f"{path}: {error.message}", hint=error.hint) from None


def named_cluster(name: str) -> Cluster:
    """A cluster by the name of a preset, or by the path of a cluster file."""
    if name == "this-machine" or name in cluster_names():
        return parse_cluster({"preset": name})
    if "/" in name or name.endswith(".toml"):
        return read_cluster_file(Path(name))
    hint = did_you_mean(name, (*cluster_names(), "this-machine"))
    raise bad_value("cluster", name, "a known preset, or a cluster file's path", hint=hint)


def parse_cluster(table: Table) -> Cluster:
    """A cluster from the keys of a [cluster] section; a relative `file` is taken from the working directory."""
    return checked_cluster(cluster_table(table, Path()))


def checked_cluster(table: Table) -> Cluster:
    """A cluster from all of its fields."""
    cluster = section_of(Cluster, "cluster", table)
    if cluster.efficiencies:
        from frontrunner.evaluators.analytic.machine import check_efficiencies

        check_efficiencies(cluster.efficiencies)
    return cluster


def cluster_table(given: Table, base: Path) -> Table:
    """All fields of a cluster, as a section [cluster] gives them; a relative `file` is taken from `base`."""
    table = dict(given)
    if "file" in table:
        return _cluster_of_file(table, base)
    name = table.pop("preset", None)
    if name is None:
        known = known_device(str(table.get("device", ""))) or {}  # so that `device = "mi300x"` says enough
        return {"name": "custom", "nodes": 1} | known | table
    if name != "this-machine":
        return cluster_preset(name) | table
    from frontrunner.evaluators.probe.this_machine import detect, share_processors

    found = detect()
    wanted = table.get("devices_per_node", found["devices_per_node"])
    if found["backend"] == "cpu" and isinstance(wanted, int) and wanted >= 1:
        found = share_processors(found, wanted)
    elif isinstance(wanted, int) and wanted > found["devices_per_node"]:
        raise bad_value("cluster.devices_per_node", wanted, f"at most the {found['devices_per_node']} found here")
    return found | table


def _cluster_of_file(table: Table, base: Path) -> Table:
    """The fields of a cluster file, by its path from `base`, under those of the campaign file."""
    name = table.pop("file")
    if not isinstance(name, str) or not name:
        raise bad_value("cluster.file", name, "the path of a cluster file")
    if "preset" in table:
        raise bad_value("cluster.preset", table["preset"], f"no preset beside cluster.file = {shown(name)}")
    cluster = read_cluster_file(base / name)
    wanted = table.get("devices_per_node", cluster.devices_per_node)
    if cluster.backend == "cpu" and wanted != cluster.devices_per_node:
        expected = f"{cluster.devices_per_node}: so many ranks shared the processors when {name} was measured"
        raise bad_value("cluster.devices_per_node", wanted, expected)
    stated = asdict(cluster)
    for key, value in table.items():
        both_tables = isinstance(value, dict) and isinstance(stated.get(key), dict)
        stated[key] = stated[key] | value if both_tables else value
    return stated
