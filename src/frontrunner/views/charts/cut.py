"""Chart of how a recipe cuts a model over a cluster: its stages as a strip, and what each device of a node holds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from frontrunner.spaces.cluster import Cluster
from frontrunner.spaces.recipe import Recipe
from frontrunner.spaces.stages import even_layers, rank_of_stage
from frontrunner.views.charts.data import Json
from frontrunner.views.charts.marks import BLUE, GRAY, layer, name, values

MOST_NODES, MOST_DEVICES_PER_NODE, DEVICES_PER_ROW, MOST_PARTS = 12, 64, 4, 16
WIDTH, HEIGHT = 66, 48
"""Of a device, in pixels."""
STRIP_WIDTH, STRIP_WIDEST, STRIP_HEIGHT = 566, 1148, 64
MOST_STAGE_CHARACTERS = 6
ROOM_FOR_WORDS, ROOM_PER_STAGE, ROOM_PER_CHARACTER = 112, 24, 7.5
LIGHTEST, DARKEST = 0.14, 0.62
"""Opacities of the first and the last pipeline rank: text is readable on all between."""


@dataclass(frozen=True, kw_only=True)
class Device:
    """One device and the rank that runs on it; `replica`, `context` and `tensor` count from 0, as ranks do.

    `stages` are those that it holds, several if they are interleaved.
    """

    rank: int
    pipeline: int
    tensor: int
    replica: int
    context: int
    stages: tuple[int, ...]

    @property
    def stage_words(self) -> str:
        """S3, or S3,11; of many the first and the last, from which the rest follows."""
        words = "S" + ",".join(map(str, self.stages))
        return words if len(words) <= MOST_STAGE_CHARACTERS else f"S{self.stages[0]}-{self.stages[-1]}"


@dataclass(frozen=True, kw_only=True)
class Reach:
    """One kind of group: `ranks` ranks each, on at most `nodes` nodes."""

    kind: str
    ranks: int
    nodes: int
    exchange: str
    gb_per_s: float | None

    @property
    def words(self) -> str:
        """Where such a group lies, and how fast the link there is, if the cluster file states it."""
        where = "within a node" if self.nodes == 1 else f"over {self.nodes} nodes"
        end = "device" if self.nodes == 1 else "network port"
        return where if self.gb_per_s is None else f"{where}, {self.gb_per_s:g} GB/s per {end}"


@dataclass(frozen=True, kw_only=True)
class Cut:
    """The chart of a cut with what it leaves out, and how far the recipe's groups reach."""

    spec: Json
    nodes_left_out: int
    devices_left_out: int
    reaches: tuple[Reach, ...]


def cut(recipe: Recipe, cluster: Cluster, *, layers: int) -> Cut:
    """Draw a legal recipe of a model with `layers` layers on this cluster."""
    nodes = -(-recipe.devices // cluster.devices_per_node)
    shown = shown_nodes(recipe, cluster, nodes)
    per_node = min(cluster.devices_per_node, MOST_DEVICES_PER_NODE)
    rows = [row for node in shown for row in _node_rows(recipe, node, node * cluster.devices_per_node, per_node)]
    return Cut(
        spec={
            "vconcat": [_strip(recipe, stages(recipe, layers)), _nodes(rows, per_node)],
            "spacing": 18,
            "resolve": {"scale": {"x": "independent", "y": "independent"}},
        },
        nodes_left_out=nodes - len(shown),
        devices_left_out=cluster.devices_per_node - per_node,
        reaches=tuple(reaches(recipe, cluster)),
    )


def stages(recipe: Recipe, layers: int) -> list[Json]:
    """Return one row per stage: its layers, where they begin and end, and the pipeline rank that holds it."""
    counts = recipe.layers_per_stage or even_layers(layers, recipe.stages)
    ends = list(accumulate(counts))
    width = _strip_width(recipe) / ends[-1]
    found = []
    for stage, (count, end) in enumerate(zip(counts, ends, strict=True)):
        rank = rank_of_stage(recipe, stage)
        words = f"{count} layer{'s' if count > 1 else ''}"
        short, room = f"S{stage}", count * width
        lines = [f"stage {stage}:", words] if room >= ROOM_FOR_WORDS else [short, f"{count} L"]
        found.append(
            {
                "stage": stage,
                "rank": rank,
                "layers": count,
                "begin": end - count,
                "end": end,
                "middle": end - count / 2,
                "shade": shade(rank, recipe.pipeline_parallel),
                "words": lines if room >= ROOM_PER_CHARACTER * len(short) else [],
                "hint": f"stage {stage}: {words}, on pipeline rank {rank}",
            }
        )
    return found


def _strip_width(recipe: Recipe) -> int:
    return min(max(STRIP_WIDTH, ROOM_PER_STAGE * recipe.stages), STRIP_WIDEST)


def shade(place: int, places: int) -> float:
    """Return the opacity of a place among many; the middle for a single one."""
    share = place / (places - 1) if places > 1 else 0.4
    return round(LIGHTEST + (DARKEST - LIGHTEST) * share, 3)


def shown_nodes(recipe: Recipe, cluster: Cluster, nodes: int) -> list[int]:
    """Return all nodes; of many, those on which a stage begins, and then the first ones."""
    if nodes <= MOST_NODES:
        return list(range(nodes))
    stride = recipe.rank_strides["pp"]
    begins = list(dict.fromkeys(rank * stride // cluster.devices_per_node for rank in range(recipe.pipeline_parallel)))
    if len(begins) > MOST_NODES:  # an even selection, with the last
        begins = [begins[place * (len(begins) - 1) // (MOST_NODES - 1)] for place in range(MOST_NODES)]
    others = [node for node in range(2 * MOST_NODES) if node not in begins and node < nodes]
    return sorted([*begins, *others[: MOST_NODES - len(begins)]])


def device(recipe: Recipe, rank: int) -> Device:
    """Return what a rank holds, by the recipe's own order of ranks."""
    strides = recipe.rank_strides
    copy, pipeline = rank // strides["dp"] % recipe.copies, recipe.pipeline_rank(rank)
    return Device(
        rank=rank,
        pipeline=pipeline,
        tensor=rank // strides["tp"] % recipe.tensor_parallel,
        replica=copy // recipe.context_parallel,
        context=copy % recipe.context_parallel,
        stages=tuple(stage for stage in range(recipe.stages) if rank_of_stage(recipe, stage) == pipeline),
    )


def _node_rows(recipe: Recipe, node: int, first_rank: int, devices: int) -> Iterator[Json]:
    """Yield one row per device of a node, and one per run of neighbors in a row that share each layer."""
    run: list[tuple[int, int, Device]] = []
    for place in range(devices):
        line, column = divmod(place, DEVICES_PER_ROW)
        where = {
            "node": f"node {node:,}",
            "line": line,
            "begin": column + 0.05,
            "end": column + 0.95,
            "middle": column + 0.5,
        }
        if first_rank + place >= recipe.devices:
            yield where | {"kind": "idle", "words": ["idle"], "hint": "no rank runs here", "shade": 0}
            continue
        found = device(recipe, first_rank + place)
        yield where | {
            "kind": "device",
            "words": _device_words(recipe, found),
            "hint": _device_hint(recipe, found),
            "shade": shade(found.pipeline, recipe.pipeline_parallel),
        }
        if run and not (run[-1][0] == line and _are_partners(run[-1][2], found)):
            yield from _group(node, run)
            run = []
        run.append((line, column, found))
    yield from _group(node, run)


def _are_partners(one: Device, other: Device) -> bool:
    return (one.pipeline, one.replica, one.context) == (other.pipeline, other.replica, other.context)


def _group(node: int, run: list[tuple[int, int, Device]]) -> Iterator[Json]:
    if len(run) > 1:
        line, column, _ = run[0]
        begin, end = column + 0.02, run[-1][1] + 0.98
        yield {"kind": "group", "node": f"node {node:,}", "line": line, "begin": begin, "end": end}


def _device_words(recipe: Recipe, found: Device) -> list[str]:
    parts = [f"{'replica ' if recipe.data_parallel <= 100 else 'R'}{found.replica}"]
    named = []
    if recipe.pipeline_parallel > 1:
        named.append(found.stage_words)
    if recipe.tensor_parallel > 1:
        named.append(f"T{found.tensor}")
    if recipe.context_parallel > 1:
        named.append(f"C{found.context}")
    return [*parts, " ".join(named) or "whole"]


def _device_hint(recipe: Recipe, found: Device) -> str:
    held = f"stage{'s' if len(found.stages) > 1 else ''} {', '.join(map(str, found.stages))}"
    context = f", context part {found.context}" if recipe.context_parallel > 1 else ""
    return (
        f"rank {found.rank}: pipeline rank {found.pipeline}, {held}, tensor part {found.tensor}, "
        f"replica {found.replica}{context}"
    )


BOX: Json = {"stroke": GRAY, "strokeWidth": 1, "color": BLUE}
SHADE: Json = {"field": "shade", "type": "quantitative", "scale": None}
HINT: Json = {"field": "hint"}


def _strip(recipe: Recipe, rows: list[Json]) -> Json:
    """Specify the model as a strip: stages next to one another, cut lengthwise into tensor-parallel parts."""
    x: Json = {"field": "begin", "type": "quantitative", "axis": None, "scale": {"nice": False}}
    y = {"field": "part", "type": "quantitative", "axis": None, "scale": {"domain": [0, 1]}}
    most = recipe.tensor_parallel if recipe.tensor_parallel <= MOST_PARTS else 1
    parts = [{"part": part / most} for part in range(1, most)]
    text = {"x": x | {"field": "middle"}, "text": {"field": "words"}, "tooltip": HINT}
    return {
        "width": _strip_width(recipe),
        "height": STRIP_HEIGHT,
        "layer": [
            layer("rect", {"x": x, "x2": {"field": "end"}, "fillOpacity": SHADE, "tooltip": HINT}, rows=rows, **BOX),
            layer("rule", {"y": y}, rows=parts, strokeDash=[3, 3], color=GRAY, opacity=0.8),
            layer("text", text, rows=rows, lineHeight=15, fontSize=12, dy=-7),
        ],
    }


def _nodes(rows: list[Json], devices: int) -> Json:
    """Specify the nodes as boxes of devices."""
    across, lines = min(devices, DEVICES_PER_ROW), -(-devices // DEVICES_PER_ROW)
    scale = {"domain": [-0.06, across + 0.06], "nice": False}
    place: Json = {
        "x": {"field": "begin", "type": "quantitative", "axis": None, "scale": scale},
        "x2": {"field": "end"},
    }
    text = {"x": place["x"] | {"field": "middle"}, "text": {"field": "words"}}
    box = BOX | {"height": HEIGHT - 8, "cornerRadius": 3}
    ring = BOX | {"height": HEIGHT - 3, "cornerRadius": 5, "strokeWidth": 2, "fillOpacity": 0}
    return {
        "data": values(rows),
        "facet": name(
            "node",
            sort=list(dict.fromkeys(row["node"] for row in rows)),
            header={"title": None, "labelAnchor": "start"},
        ),
        "columns": 4,
        "spacing": 12,
        "spec": {
            "width": across * WIDTH,
            "height": lines * HEIGHT,
            "view": {"stroke": GRAY, "cornerRadius": 4, "strokeOpacity": 0.5},
            "encoding": {"y": {"field": "line", "type": "ordinal", "axis": None}, "tooltip": HINT},
            "layer": [
                layer("rect", place | {"fillOpacity": SHADE}, where="datum.kind == 'device'", **box),
                layer("rect", place, where="datum.kind == 'idle'", strokeDash=[3, 3], fillOpacity=0, **box),
                layer("rect", place, where="datum.kind == 'group'", **ring),
                layer("text", text, where="datum.kind != 'group'", lineHeight=14, fontSize=11, dy=-6),
            ],
        },
    }


def reaches(recipe: Recipe, cluster: Cluster) -> Iterator[Reach]:
    """Yield the kinds of groups that have more than one rank, in the order in which a model is cut."""
    strides, links = recipe.rank_strides, cluster.links
    kinds = (
        ("tensor-parallel group", recipe.tensor_parallel, strides["tp"], "activations, in every layer"),
        ("pipeline", recipe.pipeline_parallel, strides["pp"], "activations, between stages"),
        ("context-parallel group", recipe.context_parallel, strides["dp"], "keys, values and queries, in every layer"),
        ("replicas", recipe.data_parallel, strides["dp"] * recipe.context_parallel, "gradients, once per step"),
    )
    for kind, ranks, stride, exchange in kinds:
        if ranks > 1:
            nodes = nodes_of_groups(recipe.devices, cluster.devices_per_node, ranks=ranks, stride=stride)
            rate = links.node_gb_per_s if nodes == 1 else links.nic_gb_per_s
            yield Reach(kind=kind, ranks=ranks, nodes=nodes, exchange=exchange, gb_per_s=rate)


def nodes_of_groups(devices: int, devices_per_node: int, *, ranks: int, stride: int) -> int:
    """Return the most nodes that one group touches; a group has `ranks` ranks, each `stride` after the one before."""
    every = np.arange(devices)
    first = every[every // stride % ranks == 0]
    nodes = (first[:, None] + stride * np.arange(ranks)) // devices_per_node
    return int(1 + np.count_nonzero(np.diff(nodes, axis=1), axis=1).max())
