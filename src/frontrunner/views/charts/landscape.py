"""Charts of the measured recipes: speed against memory, parallel coordinates, and which corners of the space fail."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from frontrunner.evaluators.probe.measure import nodes_used
from frontrunner.results.ranking import RankedRecipe
from frontrunner.spaces.recipe import Recipe
from frontrunner.text import gib, percent, thousands
from frontrunner.views.charts.data import (
    GIB,
    NOTHING_ENDED,
    NOTHING_MEASURED,
    Chart,
    Collected,
    Json,
    Knob,
    Missing,
    Table,
    knobs,
    shown,
    table,
)
from frontrunner.views.charts.marks import (
    BLUE,
    GRAY,
    ORANGE,
    OUTCOMES,
    SLOW,
    layer,
    name,
    number,
    palette,
    recipe_fields,
    rule,
    tooltip,
    values,
)
from frontrunner.views.columns import COLUMNS, used

FAR = 2.0
"""A memory limit beyond this multiple of the fullest recipe's peak is a remark: drawn, it would squeeze the points."""
APART = 0.06
"""Least distance between two labels of the front, as a share of the axis."""
MOST_LINES = 500
"""Of parallel coordinates; the fastest recipes are drawn."""
NODE_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "triangle-down")


def speed_memory(collected: Collected) -> Chart | Missing:
    """Draw every measured recipe by peak memory and tokens/s, the front joined, the device's limit marked."""
    ranking, front = collected.ranking, collected.front
    if not ranking:
        return NOTHING_MEASURED
    limit = collected.problem.cluster.memory_bytes_per_device
    is_near = limit <= FAR * max(row.standing.peak_memory_bytes_max_rank for row in ranking)
    room = 1 - front[0].standing.peak_memory_bytes_max_rank / limit
    leanest = front[-1].standing
    nodes = {row.recipe_id: nodes_used(row.recipe, collected.problem) for row in ranking}
    counts = sorted(set(nodes.values()))
    remarks = []
    if len(counts) > 1:
        remarks.append(
            f"Recipes take {counts[0]} to {counts[-1]} nodes, which this front does not weigh: frontrunner pareto "
            "--objectives tokens,memory,nodes does."
        )
    if not is_near:
        remarks.append(f"The device's {gib(limit)} GiB lie beyond the chart.")
    return Chart(
        reading=(
            f"{len(front)} of {len(ranking)} recipes are on the front: no other is both faster and smaller. The "
            f"fastest leaves {percent(room, 0)} of a device's {gib(limit)} GiB free; the leanest of the front needs "
            f"{gib(leanest.peak_memory_bytes_max_rank)} GiB and reaches {thousands(leanest.tokens_per_s)} tokens/s."
        ),
        remarks=tuple(remarks),
        spec={
            "height": 380,
            "layer": [
                *_recipe_layers(_speed_memory_rows(collected, nodes), counts),
                *(rule("x", limit / GIB, f"device: {gib(limit)} GiB") if is_near else ()),
            ],
        },
        table=ranking_table(front),
    )


def _speed_memory_rows(collected: Collected, nodes: Mapping[str, int]) -> list[Json]:
    """Return one row per recipe; points of the front carry their rank unless it would cover the label before it."""
    front_ids = {row.recipe_id for row in collected.front}
    sizes = [row.standing.peak_memory_bytes_max_rank for row in collected.ranking]
    apart, last = APART * (max(sizes) - min(sizes)), float("inf")
    rows = []
    for row in collected.ranking:
        size, label = row.standing.peak_memory_bytes_max_rank, ""
        is_on_front = row.recipe_id in front_ids
        if is_on_front and last - size >= apart:
            label, last = f"#{row.rank}", size
        rows.append(
            {
                **recipe_fields(row),
                "peak": size / GIB,
                "tokens_per_s": row.standing.tokens_per_s,
                "group": "on the front" if is_on_front else _group(nodes, row),
                "nodes": nodes[row.recipe_id],
                "label": label,
            }
        )
    return rows


def _group(nodes: Mapping[str, int], row: RankedRecipe) -> str:
    count = nodes[row.recipe_id]
    return _nodes(count) if len(set(nodes.values())) > 1 else "measured"


def _nodes(count: int) -> str:
    return f"{count} node{'s' if count > 1 else ''}"


def _recipe_layers(rows: Sequence[Json], counts: Sequence[int]) -> list[Json]:
    groups = ["measured"] if len(counts) < 2 else [_nodes(count) for count in counts]
    present = [group for group in (*groups, "on the front") if any(row["group"] == group for row in rows)]
    shapes = {group: NODE_SYMBOLS[place % len(NODE_SYMBOLS)] for place, group in enumerate(groups)}
    look = {
        "shape": name("group", scale={"domain": present, "range": [shapes.get(group, "circle") for group in present]}),
        "color": palette("group", dict.fromkeys(groups, BLUE) | {"on the front": ORANGE}, present),
    }
    place = {
        "x": number("peak", "peak memory of the fullest rank, GiB", from_zero=False),
        "y": number("tokens_per_s", "tokens/s"),
    }
    front = "datum.group == 'on the front'"
    hints = tooltip("recipe", "choices", "nodes", numbers={"tokens_per_s": "tokens/s", "peak": "peak GiB"})
    return [
        layer("line", place, rows=rows, where=front, color=ORANGE, strokeWidth=2),
        layer("point", place | look | {"tooltip": hints}, rows=rows, filled=True, size=70, opacity=0.9),
        layer("text", place | {"text": {"field": "label"}}, rows=rows, where=front, dy=-11),
    ]


def ranking_table(rows: Sequence[RankedRecipe]) -> Table:
    """Return recipes with the numbers that they are chosen by."""
    return table(rows, *((column.title, column.cell) for column in used(COLUMNS, rows)))


def parallel_coordinates(collected: Collected) -> Chart | Missing:
    """Draw a line per recipe over the knobs, the peak memory and the speed."""
    ranking = collected.ranking
    if len(ranking) < 2:
        return Missing(reason=f"Lines can be compared from two measured recipes on; there are {len(ranking)}.")
    varied = knobs(collected.survey, [row.recipe for row in ranking])
    left_out = len(ranking) - MOST_LINES
    return Chart(
        reading=(
            "Each line is a measured recipe, orange the fastest. In a browser, drag a box over an axis to keep the "
            "lines that pass through it; click elsewhere to show all again."
        ),
        remarks=(f"The {left_out} slowest recipes are not drawn.",) if left_out > 0 else (),
        spec=_parallel_spec(varied, ranking[:MOST_LINES]),
        table=table(
            ranking,
            ("recipe", lambda row: row.recipe_id),
            *((knob.label, lambda row, knob=knob: knob.word(row.recipe)) for knob in varied),
            ("peak GiB", lambda row: gib(row.standing.peak_memory_bytes_max_rank)),
            ("tokens/s", lambda row: thousands(row.standing.tokens_per_s)),
        ),
    )


def _parallel_spec(varied: Iterable[Knob], ranking: Sequence[RankedRecipe]) -> Json:
    lines: list[Json] = []
    ticks: list[Json] = []
    for knob in varied:
        last = len(knob.values) - 1
        heights = [knob.place(row.recipe) / last for row in ranking]
        lines += _line_points(knob.label, heights, ranking)
        ticks += _ticks(knob.label, {shown(value): place / last for place, value in enumerate(knob.values)})
    numbers = {
        "peak GiB": [row.standing.peak_memory_bytes_max_rank / GIB for row in ranking],
        "tokens/s": [row.standing.tokens_per_s for row in ranking],
    }
    for label, found in numbers.items():
        low, room = min(found), max(found) - min(found)
        heights = [(value - low) / room if room else 0.5 for value in found]
        lines += _line_points(label, heights, ranking)
        ticks += _ticks(label, {thousands(low + share * room): share for share in (0.0, 0.25, 0.5, 0.75, 1.0)})
    return _parallel_layers(lines, ticks)


def _line_points(axis: str, heights: Sequence[float], ranking: Sequence[RankedRecipe]) -> Iterator[Json]:
    """Yield where each recipe's line crosses an axis, the slowest first: the fastest is drawn above the others."""
    for row, height in reversed(list(zip(ranking, heights, strict=True))):
        yield recipe_fields(row) | {"tokens_per_s": row.standing.tokens_per_s, "axis": axis, "height": height}


def _ticks(axis: str, heights: Mapping[str, float]) -> Iterator[Json]:
    for words, height in heights.items():
        yield {"axis": axis, "words": words, "height": height}


def _parallel_layers(lines: Sequence[Json], ticks: Sequence[Json]) -> Json:
    """Specify the lines with a brush: a box drawn over an axis hides the lines that cross the axis outside of it."""
    on_axis = "isArray(brush.axis) && indexof(brush.axis, datum.axis) >= 0"
    outside = "datum.height < brush.height[0] || datum.height > brush.height[1]"
    fastest = {"range": [SLOW, BLUE, ORANGE], "interpolate": "rgb"}
    crossed = {
        "detail": {"field": "recipe"},
        "color": number("tokens_per_s", None, scale=fastest, legend=None),
        "strokeOpacity": {"condition": {"test": "datum.is_out > 0", "value": 0.06}, "value": 0.8},
        "tooltip": tooltip("recipe", "choices", numbers={"tokens_per_s": "tokens/s"}),
    }
    axis = {"orient": "top", "labelAngle": 0, "labelPadding": 12, "grid": True, "domain": False, "ticks": False}
    text = {"text": {"field": "words"}}
    return {
        "height": 340,
        "encoding": {
            "x": name("axis", scale={"type": "point", "padding": 0.3}, axis=axis),
            "y": {"field": "height", "type": "quantitative", "axis": None, "scale": {"domain": [0, 1]}},
        },
        "layer": [
            layer("line", crossed, rows=lines, strokeWidth=1.8, opacity=1)
            | {
                "params": [{"name": "brush", "select": {"type": "interval", "encodings": ["x", "y"]}}],
                "transform": [
                    {"calculate": f"{on_axis} && ({outside}) ? 1 : 0", "as": "outside"},
                    {"joinaggregate": [{"op": "max", "field": "outside", "as": "is_out"}], "groupby": ["recipe"]},
                ],
            },
            *(layer("text", text, rows=ticks, style=style, align="left", dx=5) for style in ("halo", "text")),
        ],
    }


@dataclass(kw_only=True)
class Cell:
    """The legal recipes of one corner of the space: how many were measured, and how many failed in which way."""

    legal: int = 0
    speeds: list[float] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)

    @property
    def state(self) -> str:
        """The cell's legend."""
        if not self.speeds and not self.failures:
            return "not tried"
        if not self.failures:
            return "all ran"
        if self.speeds:
            return "some ran, some failed"
        return f"all failed: {min(self.failures, key=lambda kind: (-self.failures[kind], kind))}"

    @property
    def failed(self) -> str:
        """The failures as text."""
        return ", ".join(f"{count} {kind}" for kind, count in sorted(self.failures.items()))


CELLS = (
    {"all ran": BLUE, "some ran, some failed": "#b3620a"}
    | {f"all failed: {kind}": color for kind, (color, _) in OUTCOMES.items()}
    | {"not tried": GRAY}
)


def feasibility(collected: Collected) -> Chart | Missing:
    """Draw a panel per micro-batch: what ran and what failed by tensor and pipeline parallelism."""
    if not collected.ranking and not collected.final_failures:
        return NOTHING_ENDED
    cells: dict[tuple[int, int, int], Cell] = {}
    for recipe in collected.survey.recipes:
        _cell(cells, recipe).legal += 1
    for row in collected.ranking:
        _cell(cells, row.recipe).speeds.append(row.standing.tokens_per_s)
    for recipe, failure in collected.final_failures.items():
        _cell(cells, recipe).failures[failure.kind.value] += 1
    tried = [cell for cell in cells.values() if cell.state != "not tried"]
    failed = sum(cell.state.startswith("all failed") for cell in tried)
    rows = [_cell_row(*corner, cell) for corner, cell in sorted(cells.items())]
    return Chart(
        reading=(
            f"Of {len(cells)} corners with a legal recipe {len(tried)} were tried; {failed or 'none'} of these failed "
            "altogether. A cell shows how many of the recipes tried there ran; an empty place has no legal one."
        ),
        spec=_feasibility_spec(rows),
        table=table(
            rows,
            *(("TP", "tp"), ("PP", "pp"), ("micro-batch", "micro_batch"), ("legal recipes", "legal")),
            *(("measured", "measured"), ("failed", lambda row: row["failed"] or "0"), ("best tokens/s", "best")),
        ),
    )


def _cell(cells: dict[tuple[int, int, int], Cell], recipe: Recipe) -> Cell:
    return cells.setdefault((recipe.tensor_parallel, recipe.pipeline_parallel, recipe.micro_batch_seqs), Cell())


def _cell_row(tensor: int, pipeline: int, micro_batch: int, cell: Cell) -> Json:
    measured = len(cell.speeds)
    return {
        "tp": tensor,
        "pp": pipeline,
        "micro_batch": micro_batch,
        "panel": f"micro-batch {micro_batch}",
        "legal": cell.legal,
        "measured": measured,
        "failed": cell.failed,
        "best": thousands(max(cell.speeds)) if cell.speeds else "-",
        "state": cell.state,
        "words": f"{measured}/{measured + cell.failures.total()}",
    }


def _feasibility_spec(rows: Sequence[Json]) -> Json:
    colors = palette("state", CELLS, (row["state"] for row in rows))
    hints = tooltip("legal", "measured", "failed", best="best tokens/s", tp="TP", pp="PP")
    tried = "datum.state != 'not tried'"
    panels = list(dict.fromkeys(row["panel"] for row in sorted(rows, key=lambda row: row["micro_batch"])))
    width = 37 * len({row["tp"] for row in rows})
    return {
        "data": values(rows),
        "facet": {
            "field": "panel",
            "type": "nominal",
            "sort": panels,
            "header": {"title": None},
        },
        "columns": 4,
        "usermeta": {"panels": len(panels), "least": width + 46},
        "spec": {
            "width": {"step": 37},
            "height": {"step": 37},
            "encoding": {
                "x": {"field": "tp", "type": "ordinal", "title": "TP", "axis": {"labelAngle": 0}},
                "y": {"field": "pp", "type": "ordinal", "title": "PP", "sort": "descending"},
                "tooltip": hints,
            },
            "layer": [
                layer("rect", {"color": colors}, where=tried, width=33, height=33, cornerRadius=3),
                layer("point", {"color": colors}, where=f"!({tried})", filled=True, size=30),
                layer("text", {"text": {"field": "words"}}, where=tried, color="white", fontSize=11),
            ],
        },
    }
