"""Chart of how a recipe cuts a model over a cluster: its stages as a strip, and what each device of
a node holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import Any

import numpy as np

from frontrunner.spaces.cluster import Cluster
from frontrunner.spaces.recipe import DIMENSIONS, Recipe
from frontrunner.spaces.stages import layers_of_stages, rank_of_stage
from frontrunner.text import counted
from frontrunner.views.charts import marks as vl
from frontrunner.views.charts.marks import Json

MOST_NODES, MOST_DEVICES_PER_NODE, DEVICES_PER_ROW, MOST_PARTS = 12, 64, 4, 16
WIDTH, HEIGHT = 66, 48
STRIP_WIDTH, STRIP_WIDEST, STRIP_HEIGHT = 566, 1148, 64
MOST_STAGE_CHARACTERS = 6
ROOM_FOR_WORDS, ROOM_PER_STAGE, ROOM_PER_CHARACTER = 112, 24, 7.5
LIGHTEST, DARKEST = 0.14, 0.62
"""Opacities of the first and the last pipeline rank: text is readable on all between."""
GROUPS = {
    "TP": ("tensor-parallel group", "activations, in every layer"),
    "PP": ("pipeline", "activations, between stages"),
    "CP": ("context-parallel group", "keys, values and queries, in every layer"),
    "DP": ("replicas", "gradients, once per step"),
}
OF_EXPERTS = {
    "EP": (
        "expert-parallel group",
        "tokens, to their experts and back, in every layer with experts",
    ),
    "ETP": ("expert tensor-parallel group", "tokens and outcomes of the experts that it splits"),
}
"""Groups of ranks by the degree that sets their size, in the order in which a model is cut; and
what they exchange.
"""


@dataclass(frozen=True, kw_only=True)
class Cut:
    """The chart of a cut with what it leaves out, and how far the recipe's groups reach, one row
    per kind of group.
    """

    spec: Json
    nodes_left_out: int
    devices_left_out: int
    stages_left_out: int
    reaches: tuple[Json, ...]


def cut(recipe: Recipe, cluster: Cluster, *, layers: int) -> Cut:
    """Draw a legal recipe of a model with `layers` layers on this cluster."""
    nodes = -(-recipe.devices // cluster.devices_per_node)
    shown = shown_nodes(recipe, cluster, nodes)
    per_node = min(cluster.devices_per_node, MOST_DEVICES_PER_NODE)
    rows = [
        row
        for node in shown
        for row in _node_rows(recipe, node, node * cluster.devices_per_node, per_node)
    ]
    drawn = {row["pipeline"] for row in rows if row["kind"] == "device"}
    return Cut(
        spec={
            "vconcat": [_strip(recipe, stages(recipe, layers)), _nodes(rows, per_node)],
            "spacing": 18,
            "resolve": {"scale": {"x": "independent", "y": "independent"}},
        },
        nodes_left_out=nodes - len(shown),
        devices_left_out=cluster.devices_per_node - per_node,
        stages_left_out=sum(
            rank_of_stage(recipe, stage) not in drawn for stage in range(recipe.stages)
        ),
        reaches=tuple(reaches(recipe, cluster)),
    )


def _groups(recipe: Recipe) -> dict[str, tuple[int, int]]:
    """Return the ranks of one group of each kind, and the distance between neighbors in it."""
    strides = recipe.rank_strides
    degrees = {
        one.label: getattr(recipe, one.field) for one in DIMENSIONS.values() if one.label in GROUPS
    }
    degrees["DP"] = (
        recipe.data_parallel
    )  # the replicas lie further apart than the ranks that share one's sequences
    distances = {label: strides.get(label.lower(), strides["dp"]) for label in GROUPS}
    distances["DP"] *= recipe.copies // recipe.data_parallel
    return {label: (degrees[label], distances[label]) for label in GROUPS}


def places(recipe: Recipe, rank: int) -> dict[str, int]:
    """Return a rank's number in its group of each kind, by the recipe's own order of ranks."""
    return {label: rank // distance % ranks for label, (ranks, distance) in _groups(recipe).items()}


def expert_groups(recipe: Recipe) -> np.ndarray[Any, Any]:
    """Return the ranks as [groups, parts of the experts, parts of an expert]: neighbors within a
    pipeline stage.
    """
    every = np.arange(recipe.devices)
    of_stages = every[
        np.argsort(every // recipe.rank_strides["pp"] % recipe.pipeline_parallel, kind="stable")
    ]
    return of_stages.reshape(-1, recipe.expert_parallel, recipe.expert_tensor_parallel)


def stages(recipe: Recipe, layers: int) -> list[Json]:
    """Return one row per stage: its layers, where they begin and end, and the pipeline rank that
    holds it.
    """
    counts = layers_of_stages(recipe, layers)
    ends = list(accumulate(counts))
    width = _strip_width(recipe) / ends[-1]
    widest = max(len(f"S{recipe.stages - 1}"), len(f"{max(counts)} L"))
    named = math.ceil(
        ROOM_PER_CHARACTER * widest / (min(counts) * width)
    )  # each, or every second, ... of many
    found = []
    for stage, (count, end) in enumerate(zip(counts, ends, strict=True)):
        rank, words = rank_of_stage(recipe, stage), counted(count, "layer")
        lines = (
            [f"stage {stage}:", words]
            if count * width >= ROOM_FOR_WORDS
            else [f"S{stage}", f"{count} L"]
        )
        found.append(
            {
                "stage": stage,
                "rank": rank,
                "layers": count,
                "begin": end - count,
                "end": end,
                "middle": end - count / 2,
                "shade": shade(rank, recipe.pipeline_parallel),
                "words": [] if stage % named else lines,
                "hint": f"stage {stage}: {words}, on pipeline rank {rank}",
            }
        )
    return found


def _strip_width(recipe: Recipe) -> int:
    return min(max(STRIP_WIDTH, ROOM_PER_STAGE * recipe.stages), STRIP_WIDEST)


def shade(place: int, of: int) -> float:
    """Return the opacity of a place among many; the middle for a single one."""
    share = place / (of - 1) if of > 1 else 0.4
    return round(LIGHTEST + (DARKEST - LIGHTEST) * share, 3)


def shown_nodes(recipe: Recipe, cluster: Cluster, nodes: int) -> list[int]:
    """Return all nodes; of many, those on which a stage begins, and then the first ones."""
    if nodes <= MOST_NODES:
        return list(range(nodes))
    stride = recipe.rank_strides["pp"]
    begins = list(
        dict.fromkeys(
            rank * stride // cluster.devices_per_node for rank in range(recipe.pipeline_parallel)
        )
    )
    if len(begins) > MOST_NODES:  # an even selection, with the last
        begins = [
            begins[place * (len(begins) - 1) // (MOST_NODES - 1)] for place in range(MOST_NODES)
        ]
    others = [node for node in range(2 * MOST_NODES) if node not in begins and node < nodes]
    return sorted([*begins, *others[: MOST_NODES - len(begins)]])


def _node_rows(recipe: Recipe, node: int, first_rank: int, devices: int) -> Iterator[Json]:
    found, experts = [], np.zeros((recipe.devices, 3), dtype=int)
    if recipe.expert_ranks > 1:
        groups = expert_groups(recipe)
        experts[groups.ravel()] = np.indices(groups.shape).reshape(3, -1).T
    for place in range(devices):
        line, column = divmod(place, DEVICES_PER_ROW)
        where: Json = {
            "node": f"node {node:,}",
            "line": line,
            "begin": column + 0.05,
            "end": column + 0.95,
            "middle": column + 0.5,
        }
        if first_rank + place < recipe.devices:
            held = places(recipe, first_rank + place)
            group, *part = experts[first_rank + place].tolist()
            found.append((where, held, group))
            look = {
                "kind": "device",
                "pipeline": held["PP"],
                "shade": shade(held["PP"], recipe.pipeline_parallel),
            }
            yield where | look | _device_words(recipe, first_rank + place, held, part)
        else:
            yield where | {
                "kind": "idle",
                "words": ["idle"],
                "hint": "no rank runs here",
                "shade": 0,
            }
    rings: dict[str, Callable[[Any], Any]] = {
        "group": lambda one: (one[0]["line"], {**one[1], "TP": 0})
    }
    if recipe.expert_ranks > 1:
        rings["experts"] = lambda one: (one[0]["line"], one[2])
    for kind, same in rings.items():
        for _, run in groupby(found, same):
            (first, *_), *others = run
            if others:
                room = 0.045 if kind == "experts" else 0.025
                yield first | {
                    "kind": kind,
                    "begin": first["begin"] - room,
                    "end": others[-1][0]["end"] + room,
                }


def _device_words(recipe: Recipe, rank: int, held: dict[str, int], of_experts: list[int]) -> Json:
    groups, pipeline = _groups(recipe), held["PP"]
    own = [str(stage) for stage in range(recipe.stages) if rank_of_stage(recipe, stage) == pipeline]
    stages_held = "S" + ",".join(own)
    if (
        len(stages_held) > MOST_STAGE_CHARACTERS
    ):  # the first and the last, from which the rest follows
        stages_held = f"S{own[0]}-{own[-1]}"
    short = {"PP": stages_held, "TP": f"T{held['TP']}", "CP": f"C{held['CP']}"}
    parts = " ".join(text for label, text in short.items() if groups[label][0] > 1)
    if recipe.expert_ranks > 1:
        parts += " E" + ".".join(map(str, of_experts[: 1 + (recipe.expert_tensor_parallel > 1)]))
        parts = parts.strip()
    context = f", context part {held['CP']}" if groups["CP"][0] > 1 else ""
    shared = f", part {of_experts[0]} of the experts" if recipe.expert_ranks > 1 else ""
    shared += f", part {of_experts[1]} of each" if recipe.expert_tensor_parallel > 1 else ""
    return {
        "words": [
            f"{'replica ' if recipe.data_parallel <= 100 else 'R'}{held['DP']}",
            parts or "whole",
        ],
        "hint": (
            f"rank {rank}: pipeline rank {pipeline}, stage{'s' if len(own) > 1 else ''}"
            f" {', '.join(own)}, tensor part {held['TP']}, replica {held['DP']}{context}{shared}"
        ),
    }


BOX: Json = {"stroke": vl.GRAY, "strokeWidth": 1, "color": vl.BLUE}
SHADE: Json = {"field": "shade", "type": "quantitative", "scale": None}
HINT: Json = {"field": "hint"}
WORDS: Json = {"field": "words"}


def _strip(recipe: Recipe, rows: list[Json]) -> Json:
    x, y = vl.unscaled("begin", nice=False), vl.unscaled("part", domain=[0, 1])
    most = recipe.tensor_parallel if recipe.tensor_parallel <= MOST_PARTS else 1
    parts = [{"part": part / most} for part in range(1, most)]
    text = {"x": x | {"field": "middle"}, "text": WORDS, "tooltip": HINT}
    return {
        "width": _strip_width(recipe),
        "height": STRIP_HEIGHT,
        "layer": [
            vl.layer(
                "rect",
                {"x": x, "x2": {"field": "end"}, "fillOpacity": SHADE, "tooltip": HINT},
                rows=rows,
                **BOX,
            ),
            vl.layer("rule", {"y": y}, rows=parts, strokeDash=[3, 3], color=vl.GRAY, opacity=0.8),
            vl.layer("text", text, rows=rows, lineHeight=15, fontSize=12, dy=-7),
        ],
    }


def _nodes(rows: list[Json], devices: int) -> Json:
    across, lines = min(devices, DEVICES_PER_ROW), -(-devices // DEVICES_PER_ROW)
    x = vl.unscaled("begin", domain=[-0.06, across + 0.06], nice=False)
    place = {"x": x, "x2": {"field": "end"}}
    box = BOX | {"height": HEIGHT - 8, "cornerRadius": 3}
    ring = BOX | {"height": HEIGHT - 4, "cornerRadius": 5, "strokeWidth": 2, "fillOpacity": 0}
    outer = ring | {"height": HEIGHT - 1, "stroke": vl.ORANGE}
    text = {"x": x | {"field": "middle"}, "text": WORDS}
    nodes = list(dict.fromkeys(row["node"] for row in rows))
    return {
        "data": {"values": rows},
        "facet": vl.name("node", sort=nodes, header={"title": None, "labelAnchor": "start"}),
        "columns": 4,
        "spacing": 12,
        "spec": {
            "width": across * WIDTH,
            "height": lines * HEIGHT,
            "view": {"stroke": vl.GRAY, "cornerRadius": 4, "strokeOpacity": 0.5},
            "encoding": {"y": {"field": "line", "type": "ordinal", "axis": None}, "tooltip": HINT},
            "layer": [
                vl.layer(
                    "rect", place | {"fillOpacity": SHADE}, where="datum.kind == 'device'", **box
                ),
                vl.layer(
                    "rect",
                    place,
                    where="datum.kind == 'idle'",
                    strokeDash=[3, 3],
                    fillOpacity=0,
                    **box,
                ),
                vl.layer("rect", place, where="datum.kind == 'group'", **ring),
                vl.layer(
                    "rect", place, where="datum.kind == 'experts'", strokeDash=[4, 3], **outer
                ),
                vl.layer("text", text, where="datum.words", lineHeight=14, fontSize=11, dy=-6),
            ],
        },
    }


def reaches(recipe: Recipe, cluster: Cluster) -> Iterator[Json]:
    """Yield each kind of group of several ranks: the distance of neighbors, how far it reaches,
    over which links.

    Groups of experts have no one distance: they are neighbors within a pipeline stage.
    """
    distances = {label: distance for label, (_, distance) in _groups(recipe).items()}
    per_node, shared = cluster.devices_per_node, expert_groups(recipe)
    found = {
        label: (ranks, nodes_of_groups(recipe.devices, per_node, ranks=ranks, stride=distance))
        for label, (ranks, distance) in _groups(recipe).items()
    }
    for label, members in zip(OF_EXPERTS, (shared.swapaxes(1, 2), shared), strict=True):
        ranks = members.shape[2]
        found[label] = ranks, most_nodes(members.reshape(-1, ranks), per_node)
    for label, (ranks, nodes) in found.items():
        if ranks > 1:
            where, rate, end = "within a node", cluster.links.node_gb_per_s, "device"
            if nodes > 1:
                where, rate, end = f"over {nodes} nodes", cluster.links.nic_gb_per_s, "network port"
            kind, exchange = (GROUPS | OF_EXPERTS)[label]
            words = where if rate is None else f"{where}, {rate:g} GB/s per {end}"
            reach = {
                "label": label,
                "distance": distances.get(label),
                "nodes": nodes,
                "gb_per_s": rate,
            }
            yield {"kind": kind, "ranks": ranks, "words": words, "exchange": exchange} | reach


def nodes_of_groups(devices: int, devices_per_node: int, *, ranks: int, stride: int) -> int:
    """Return the most nodes that one group touches; a group has `ranks` ranks, each `stride` after
    the one before.
    """
    every = np.arange(devices)
    first = every[every // stride % ranks == 0]
    return most_nodes(first[:, None] + stride * np.arange(ranks), devices_per_node)


def most_nodes(groups: np.ndarray[Any, Any], devices_per_node: int) -> int:
    """Return the most nodes that one of the groups [groups, ranks], in rising order, touches."""
    return int(1 + np.count_nonzero(np.diff(groups // devices_per_node, axis=1), axis=1).max())
