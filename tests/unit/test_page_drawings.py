"""The drawings of the pages: held against the trainer's own numbering of ranks, and against sums done by hand."""

from __future__ import annotations

from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from frontrunner.evaluators.analytic.memory import PeakMemory
from frontrunner.evaluators.trainer.layout import rank_grid
from frontrunner.server.pages.drawings.coordinates import parallels
from frontrunner.server.pages.drawings.cut import MOST_NODES, cut_drawing
from frontrunner.server.pages.drawings.reach import nodes_of_groups
from frontrunner.server.pages.drawings.stack import FILLS, stack
from frontrunner.server.pages.drawings.steps import step_strip
from frontrunner.server.pages.drawings.timeline import Span, timeline
from frontrunner.spaces.cluster import Cluster, Links
from frontrunner.spaces.recipe import RANK_ORDERS, Recipe
from frontrunner.views.charts.chart import Coordinate
from frontrunner.views.columns import PARTS

BEGINNING = datetime(2026, 1, 1, tzinfo=UTC)


def cluster(nodes: int, devices_per_node: int) -> Cluster:
    return Cluster(
        name="test",
        device="test",
        backend="cuda",
        nodes=nodes,
        devices_per_node=devices_per_node,
        memory_gib_per_device=64,
        links=Links(node_gb_per_s=50, nic_gb_per_s=25),
    )


def span(begin_s: float, end_s: float, outcome: str = "measured") -> Span:
    return Span(
        started_at=BEGINNING + timedelta(seconds=begin_s),
        ended_at=BEGINNING + timedelta(seconds=end_s),
        outcome=outcome,
        words="",
        recipe_id="1",
    )


@pytest.mark.parametrize("order", RANK_ORDERS)
def test_devices_stand_where_the_trainer_puts_their_ranks(order: str) -> None:
    degrees = {"tensor_parallel": 2, "pipeline_parallel": 4, "context_parallel": 2}
    recipe = Recipe(devices=32, schedule="1f1b", micro_batch_seqs=1, accumulation=4, rank_order=order, **degrees)
    trained: Any = SimpleNamespace(
        pipeline_parallel=4, tensor_parallel=2, world_size=32, rank_order=order
    )  # all that the trainer's grid asks of a recipe
    grid = rank_grid(trained, (2, 2))  # pipeline, replica, context, tensor
    drawing = cut_drawing(recipe, cluster(4, 8), layers=8)
    assert [device.rank for device in drawing.devices] == list(range(32))
    for device in drawing.devices:
        place = (device.pipeline, device.replica, device.context, device.tensor)
        assert grid[place] == device.rank


def test_the_strip_holds_every_layer_and_shades_rise_with_the_pipeline() -> None:
    recipe = Recipe(devices=8, pipeline_parallel=4, schedule="1f1b", micro_batch_seqs=1, accumulation=4)
    drawing = cut_drawing(recipe, cluster(1, 8), layers=10)
    assert [stage.layers for stage in drawing.stages] == [3, 3, 2, 2]
    assert sum(stage.width for stage in drawing.stages) == pytest.approx(drawing.width)
    shades = {device.pipeline: device.shade for device in drawing.devices}
    assert sorted(shades.values()) == [shades[rank] for rank in range(4)]


def test_a_v_shaped_pipeline_gives_its_first_rank_the_first_and_the_last_stage() -> None:
    recipe = Recipe(
        devices=4, pipeline_parallel=4, virtual_stages=2, schedule="zbv", micro_batch_seqs=1, accumulation=8
    )
    assert [stage.rank for stage in cut_drawing(recipe, cluster(1, 4), layers=8).stages] == [0, 1, 2, 3, 3, 2, 1, 0]


def test_a_device_names_every_stage_that_it_holds_and_a_narrow_stage_its_number() -> None:
    recipe = Recipe(
        devices=16,
        pipeline_parallel=16,
        virtual_stages=2,
        schedule="interleaved-1f1b",
        micro_batch_seqs=1,
        accumulation=32,
    )
    drawing = cut_drawing(recipe, cluster(2, 8), layers=32)
    assert [device.stage_words for device in drawing.devices[:2]] == ["S0,16", "S1,17"]
    assert [stage.words for stage in drawing.stages][15:17] == [("S15", "1 L"), ("S16", "1 L")]
    four = replace(recipe, virtual_stages=4, pipeline_parallel=4, devices=4)
    held = cut_drawing(four, cluster(1, 8), layers=32).devices[1]
    assert (held.stages, held.stage_words) == ((1, 5, 9, 13), "S1-13")
    whole = cut_drawing(Recipe(devices=4, micro_batch_seqs=1, accumulation=1), cluster(1, 8), layers=48)
    assert whole.stages[0].words == ("stage 0: 48 layers",)


def test_tensor_groups_are_outlined_and_devices_without_a_rank_are_idle() -> None:
    recipe = Recipe(devices=6, tensor_parallel=2, micro_batch_seqs=1, accumulation=1)
    drawing = cut_drawing(recipe, cluster(1, 8), layers=2)
    assert len(drawing.groups) == 3
    assert len(drawing.idle) == 2


def test_of_a_large_machine_a_node_of_each_stage_is_drawn() -> None:
    recipe = Recipe(
        devices=1024, tensor_parallel=4, pipeline_parallel=8, schedule="1f1b", micro_batch_seqs=1, accumulation=32
    )
    drawing = cut_drawing(recipe, cluster(128, 8), layers=96)
    assert {device.pipeline for device in drawing.devices} == set(range(8))
    assert len(drawing.nodes) == MOST_NODES
    assert drawing.nodes_left_out == 128 - MOST_NODES


def test_more_stages_than_nodes_drawn_still_show_the_first_and_the_last() -> None:
    recipe = Recipe(devices=512, pipeline_parallel=32, schedule="1f1b", micro_batch_seqs=1, accumulation=32)
    drawing = cut_drawing(recipe, cluster(64, 8), layers=64)
    assert {0, 31} <= {device.pipeline for device in drawing.devices}


def test_groups_reach_over_as_many_nodes_as_their_ranks_lie_on() -> None:
    assert nodes_of_groups(32, 8, ranks=8, stride=1) == 1
    assert nodes_of_groups(32, 8, ranks=16, stride=1) == 2
    assert nodes_of_groups(32, 8, ranks=4, stride=8) == 4
    assert nodes_of_groups(24, 8, ranks=6, stride=1) == 2  # groups that are not whole fractions of a node
    recipe = Recipe(devices=32, tensor_parallel=8, micro_batch_seqs=1, accumulation=1)
    within, across = cut_drawing(recipe, cluster(4, 8), layers=2).reaches
    assert within.words == "within a node, 50 GB/s a device"
    assert across.words == "over 4 nodes, 25 GB/s a network port"


def test_probes_that_ran_together_are_in_rows_of_their_own_and_long_pauses_are_cut_out() -> None:
    found = timeline([span(0, 10), span(5, 15), span(1000, 1010)])
    assert found is not None
    assert found.lanes == 2
    assert [round(bar.x + bar.width) for bar in found.bars] == [448, 672, 1120]  # of 25 s in all: 10, 15 and 25
    assert [round(cut) for cut in found.cuts] == [672]
    assert timeline([]) is None


def test_a_stack_has_one_scale_for_all_bars_and_its_limit() -> None:
    found = stack([("a", {"x": 1.0, "y": 3.0, "z": 0.0}), ("b", {"y": 2.0})], limit=8.0)
    widths = [[part.width for part in row.parts] for row in found.rows]
    assert widths == [[140.0, 420.0], [280.0]]  # 1120 wide for the limit of 8
    assert found.limit_x == 1120.0
    assert found.rows[0].parts[1].fill == found.rows[1].parts[0].fill
    assert found.rows[0].parts[0].share == 0.25


def test_each_part_of_a_step_and_of_a_memory_has_a_colour_of_its_own() -> None:
    step = [word for name, word in PARTS.items() if name != "memory"]
    for names in (step, [field.name for field in fields(PeakMemory)]):
        assert len({FILLS[name] for name in names}) == len(names)


def test_a_single_step_has_a_place_on_its_strip() -> None:
    found = step_strip([("only", [0.5])])
    assert found is not None
    assert 0 < found.rows[0].xs[0] < found.width
    assert step_strip([]) is None


def test_parallel_coordinates_draw_the_fastest_last_and_on_top_of_its_axis() -> None:
    axes = [
        Coordinate(label="TP", values=(0.0, 1.0), ticks=((0.0, "1"), (1.0, "2"))),
        Coordinate(label="tokens/s", values=(200.0, 100.0)),
    ]
    found = parallels(axes, [("fast", "tp1"), ("slow", "tp2")])
    assert [line.recipe_id for line in found.lines] == ["slow", "fast"]
    assert found.lines[-1].is_best
    assert found.lines[-1].points.endswith(f",{found.top:.1f}")
    assert [mark.words for mark in found.axes[1].marks] == ["100", "150", "200"]
