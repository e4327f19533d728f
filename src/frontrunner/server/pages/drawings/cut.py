"""How a recipe cuts a model over the devices of a cluster, as shapes to draw.

At the top a strip of the model: a column a stage, a row a tensor-parallel part. Below it the nodes with their devices;
each device has the shade of the stages that it holds. Lengths are in SVG's user units, one of which is a pixel.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from frontrunner.server.pages.drawings.reach import Reach, reaches
from frontrunner.server.pages.drawings.strip import STRIP_HEIGHT, Stage, parts, shade, stages, strip_width
from frontrunner.spaces.cluster import Cluster
from frontrunner.spaces.recipe import Recipe
from frontrunner.spaces.stages import rank_of_stage

MOST_NODES = 12
MOST_DEVICES_A_NODE = 64
NODES_A_ROW, DEVICES_A_ROW = 4, 4
CELL_WIDTH, CELL_HEIGHT, CELL_GAP = 60, 42, 6
NODE_PADDING, NODE_GAP, NODE_HEADING = 10, 12, 22
MOST_STAGE_CHARACTERS = 6
AROUND = 2
"""From a group's devices to its outline."""


@dataclass(frozen=True, kw_only=True)
class Device:
    """One device and the rank that it drives; `replica`, `context` and `tensor` count from 0, as ranks do.

    `stages` are those that it holds, several where they are interleaved.
    """

    rank: int
    x: float
    y: float
    shade: float
    pipeline: int
    tensor: int
    replica: int
    context: int
    stages: tuple[int, ...]

    @property
    def stage_words(self) -> str:
        """S3, or S3,11; of many the first and the last, since the rest follows from them."""
        words = "S" + ",".join(map(str, self.stages))
        return words if len(words) <= MOST_STAGE_CHARACTERS else f"S{self.stages[0]}-{self.stages[-1]}"


@dataclass(frozen=True, kw_only=True)
class Box:
    """A rectangle, with a word or none."""

    x: float
    y: float
    width: float
    height: float
    words: str = ""


@dataclass(frozen=True, kw_only=True)
class CutDrawing:
    """The whole drawing.

    `groups` are the runs of neighboring devices that share each layer; `idle` are devices without a rank;
    `nodes_left_out` and `devices_left_out` (of each node) are there, and not drawn.
    """

    width: float
    height: float
    strip_height: float
    parts: tuple[float, ...]
    stages: tuple[Stage, ...]
    nodes: tuple[Box, ...]
    devices: tuple[Device, ...]
    groups: tuple[Box, ...]
    idle: tuple[Box, ...]
    nodes_left_out: int
    devices_left_out: int
    reaches: tuple[Reach, ...]


def cut_drawing(recipe: Recipe, cluster: Cluster, *, layers: int) -> CutDrawing:
    """The drawing of a legal recipe of a model of so many layers on this cluster."""
    nodes = -(-recipe.devices // cluster.devices_per_node)
    shown, shown_devices = _shown_nodes(recipe, cluster, nodes), min(cluster.devices_per_node, MOST_DEVICES_A_NODE)
    boxes = _nodes(shown, shown_devices)
    width = max(strip_width(recipe.stages), *(box.x + box.width for box in boxes))
    places = [
        (number * cluster.devices_per_node + place, *_cell(box, place))
        for number, box in zip(shown, boxes, strict=True)
        for place in range(shown_devices)
    ]
    devices = tuple(_device(recipe, rank, x, y) for rank, x, y in places if rank < recipe.devices)
    return CutDrawing(
        width=width,
        height=max(box.y + box.height for box in boxes),
        strip_height=STRIP_HEIGHT,
        parts=parts(recipe.tensor_parallel),
        stages=stages(recipe, layers, width),
        nodes=boxes,
        devices=devices,
        groups=tuple(_groups(devices, recipe)),
        idle=tuple(_idle(x, y) for rank, x, y in places if rank >= recipe.devices),
        nodes_left_out=nodes - len(shown),
        devices_left_out=cluster.devices_per_node - shown_devices,
        reaches=reaches(recipe, cluster),
    )


def _shown_nodes(recipe: Recipe, cluster: Cluster, nodes: int) -> list[int]:
    """All nodes, or of many those on which each stage begins, and then the first ones."""
    if nodes <= MOST_NODES:
        return list(range(nodes))
    stride = recipe.rank_strides["pp"]
    ranks = range(recipe.pipeline_parallel)
    begins = list(dict.fromkeys(rank * stride // cluster.devices_per_node for rank in ranks))
    if len(begins) > MOST_NODES:  # every so many of them, the last included
        begins = [begins[place * (len(begins) - 1) // (MOST_NODES - 1)] for place in range(MOST_NODES)]
    others = [node for node in range(2 * MOST_NODES) if node not in begins and node < nodes]
    return sorted([*begins, *others[: MOST_NODES - len(begins)]])


def _nodes(numbers: Sequence[int], devices: int) -> tuple[Box, ...]:
    columns, rows = min(devices, DEVICES_A_ROW), -(-devices // DEVICES_A_ROW)
    width = columns * (CELL_WIDTH + CELL_GAP) - CELL_GAP + 2 * NODE_PADDING
    height = rows * (CELL_HEIGHT + CELL_GAP) - CELL_GAP + NODE_PADDING + NODE_HEADING
    return tuple(
        Box(
            x=place % NODES_A_ROW * (width + NODE_GAP),
            y=STRIP_HEIGHT + 2 * NODE_GAP + place // NODES_A_ROW * (height + NODE_GAP),
            width=width,
            height=height,
            words=f"node {number:,}",
        )
        for place, number in enumerate(numbers)
    )


def _cell(node: Box, place: int) -> tuple[float, float]:
    """Where the place-th device of a node stands."""
    column, row = place % DEVICES_A_ROW, place // DEVICES_A_ROW
    return (
        node.x + NODE_PADDING + column * (CELL_WIDTH + CELL_GAP),
        node.y + NODE_HEADING + row * (CELL_HEIGHT + CELL_GAP),
    )


def _device(recipe: Recipe, rank: int, x: float, y: float) -> Device:
    """The device of a rank, by the recipe's own order of ranks."""
    strides = recipe.rank_strides
    copy, pipeline = rank // strides["dp"] % recipe.copies, recipe.pipeline_rank(rank)
    return Device(
        rank=rank,
        x=x,
        y=y,
        shade=shade(pipeline, recipe.pipeline_parallel),
        pipeline=pipeline,
        tensor=rank // strides["tp"] % recipe.tensor_parallel,
        replica=copy // recipe.context_parallel,
        context=copy % recipe.context_parallel,
        stages=tuple(stage for stage in range(recipe.stages) if rank_of_stage(recipe, stage) == pipeline),
    )


def _idle(x: float, y: float) -> Box:
    """A device that is left without a rank."""
    return Box(x=x, y=y, width=CELL_WIDTH, height=CELL_HEIGHT, words="idle")


def _groups(devices: tuple[Device, ...], recipe: Recipe) -> Iterator[Box]:
    """An outline around each run of neighbors in a row that share each layer."""
    if recipe.tensor_parallel == 1:
        return
    begin = 0
    for end in range(1, len(devices) + 1):
        if end < len(devices) and _are_partners(devices[end - 1], devices[end]):
            continue
        run = devices[begin:end]
        begin = end
        if len(run) > 1:
            yield Box(
                x=run[0].x - AROUND,
                y=run[0].y - AROUND,
                width=run[-1].x - run[0].x + CELL_WIDTH + 2 * AROUND,
                height=CELL_HEIGHT + 2 * AROUND,
            )


def _are_partners(one: Device, other: Device) -> bool:
    """Whether two devices stand side by side and share their layers."""
    is_beside = one.y == other.y and other.x - one.x == CELL_WIDTH + CELL_GAP
    same = (one.pipeline, one.replica, one.context) == (other.pipeline, other.replica, other.context)
    return is_beside and same
