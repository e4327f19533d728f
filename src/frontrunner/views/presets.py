"""Presets on the terminal."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from frontrunner.config.campaign import parse_cluster, preset_model
from frontrunner.config.settings import located
from frontrunner.config.toml_file import toml_value
from frontrunner.spaces.model.model import Model
from frontrunner.spaces.presets import CATALOGUES, catalogue, preset_names
from frontrunner.text import count, plain, thousands
from frontrunner.views.columns import Column, words
from frontrunner.views.terminal import column_table, console, ruled_table

Table = dict[str, Any]
UNKNOWN = "-"
"""Unknown, or none."""


def print_presets(found: dict[str, dict[str, Table]]) -> None:
    """Print all presets by what they say most of, or whole if there is only one."""
    presets = [(name, table) for kind in found.values() for name, table in kind.items()]
    if len(presets) == 1:
        _print_whole(*presets[0])
        return
    out = console()
    models = column_table(
        "models", MODELS, list(map(preset_model, preset_names("models"))), width=out.width
    )
    clusters = ruled_table("clusters", "name", "device", *((head, "right") for head in CLUSTERS))
    for name in preset_names("clusters"):
        cluster = parse_cluster({"preset": name})
        links = cluster.links
        ports = (
            UNKNOWN
            if links.nic_gb_per_s is None
            else f"{links.nics_per_node} x {links.nic_gb_per_s:g}"
        )
        rates = (_rate(links.pair_gb_per_s), _rate(links.node_gb_per_s), ports)
        clusters.add_row(name, cluster.device, str(cluster.devices_per_node), *rates)
    devices = ruled_table("devices", "name", *((head, "right") for head in DEVICES))
    for name, table in catalogue("devices").items():
        peaks = (
            _rate(table["peak_tflops"].get(precision))
            for precision in ("fp8", "bf16", "fp16", "fp32")
        )
        sizes = (f"{table['memory_gib_per_device']:g}", f"{table['memory_gb_per_s']:,g}")
        devices.add_row(name, *sizes, *peaks, _rate(table.get("matmul_share")))
    for shown in (models, clusters, devices):
        out.print(shown)
        out.say("")
    one = located(f"frontrunner presets {preset_names('devices')[0]}")
    out.say(f"{one}  # all figures of one, with their source", style="dim")


def _heads(model: Model) -> str:
    heads, kv_heads = model.attention.heads, model.attention.kv_heads
    return str(heads) if kv_heads == heads else f"{heads} / {kv_heads}"


def _experts(model: Model) -> str | None:
    mixture = model.mixture
    return None if mixture is None else f"{mixture.experts_per_token} of {mixture.experts}"


MODELS: tuple[Column[Model], ...] = (
    words("name", "name", attrgetter("name")),
    Column("parameters", "parameters", attrgetter("parameters"), count),
    Column(
        "active",
        "per token",
        lambda model: model.active_parameters if model.mixture else None,
        count,
        drop=3,
    ),
    Column("layers", "layers", lambda model: len(model.layers), drop=1),
    Column("hidden", "hidden", attrgetter("hidden"), drop=1),
    Column("heads", "heads / groups", _heads, drop=4),
    Column("ffn", "FFN", attrgetter("feed_forward.ffn_hidden"), drop=5),
    Column("experts", "experts", _experts, drop=2),
    Column("positions", "positions", attrgetter("embedding.max_positions"), thousands, drop=4),
)
CLUSTERS = ("per node", "pair GB/s", "node GB/s", "ports GB/s")
DEVICES = ("GiB", "GB/s", "fp8 TFLOPS", "bf16", "fp16", "fp32", "share reached")


def _rate(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:,g}"


def _print_whole(name: str, table: Table) -> None:
    out = console()
    out.say(name, style="bold")
    for key, value in table.items():
        if key not in ("matches", "unless"):
            out.say(plain(f"  {key} = {toml_value(value)}"))


def presets_by_kind(name: str | None) -> dict[str, dict[str, Table]]:
    """Return the presets of each catalogue; those of one name, if it is given. Models have their
    counted parameters.
    """
    kept = {
        kind: {own: table for own, table in catalogue(kind).items() if name in (None, own)}
        for kind in CATALOGUES
    }
    for own, table in kept["models"].items():
        model = preset_model(own)
        counts = {"parameters": model.parameters, "active_parameters": model.active_parameters}
        kept["models"][own] = table | counts
    return {kind: tables for kind, tables in kept.items() if tables}
