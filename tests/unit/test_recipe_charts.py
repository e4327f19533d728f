"""Charts of one recipe and of its campaign's timeline: checked against the trainer's ranks, and
sums by hand.
"""

from __future__ import annotations

from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from frontrunner.evaluators.analytic.breakdown import Breakdown, Measured, breakdown
from frontrunner.evaluators.analytic.memory import PeakMemory
from frontrunner.evaluators.trainer.layout import make_layout, rank_grid
from frontrunner.results.records import Attempt, AttemptOutcome, Trial, timestamp
from frontrunner.results.states import AttemptState, TrialState
from frontrunner.spaces.cluster import Cluster, Links
from frontrunner.spaces.recipe import RANK_ORDERS, Recipe
from frontrunner.views.charts.campaign import timeline
from frontrunner.views.charts.cut import (
    MOST_NODES,
    cut,
    expert_groups,
    nodes_of_groups,
    places,
    shown_nodes,
    stages,
)
from frontrunner.views.charts.recipe import COLORS, memory_bars, step_bars, step_times, steps_beside
from frontrunner.views.columns import PARTS
from support.charted import spec

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


def recipe(devices: int, **more: Any) -> Recipe:
    return Recipe(**({"devices": devices, "micro_batch_seqs": 1, "accumulation": 32} | more))


def boxes(drawn: Any, kind: str) -> list[dict[str, Any]]:
    rows = drawn.spec["vconcat"][1]["data"]["values"]
    return [row for row in rows if row["kind"] == kind]


@pytest.mark.parametrize("order", RANK_ORDERS)
def test_device_holds_what_the_trainer_puts_on_its_rank(order: str) -> None:
    found = recipe(
        32,
        tensor_parallel=2,
        pipeline_parallel=4,
        context_parallel=2,
        schedule="1f1b",
        rank_order=order,
    )
    grid = rank_grid(found, (2, 2))  # pipeline, replica, context, tensor
    for rank in range(32):
        held = places(found, rank)
        assert grid[held["PP"], held["DP"], held["CP"], held["TP"]] == rank


@pytest.mark.parametrize("order", RANK_ORDERS)
def test_ranks_share_experts_as_the_trainer_has_them(order: str) -> None:
    degrees = {
        "tensor_parallel": 2,
        "pipeline_parallel": 2,
        "expert_parallel": 4,
        "expert_tensor_parallel": 2,
    }
    found = recipe(32, **degrees, schedule="1f1b", sequence_parallel=True, rank_order=order)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=32)
    try:
        grid = make_layout(found, device_type="cpu").experts
    finally:
        dist.destroy_process_group()
    assert grid is not None
    assert expert_groups(found).tolist() == grid.mesh.flatten(0, 1).tolist()


def test_cut_outlines_ranks_that_share_experts() -> None:
    found = recipe(16, expert_parallel=8)
    drawn = cut(found, cluster(4, 4), layers=2)
    assert len(boxes(drawn, "experts")) == 4, "a line is around the part of a group on each node"
    assert [box["words"][1] for box in boxes(drawn, "device")] == 2 * [
        f"E{part}" for part in range(8)
    ]
    assert "part 3 of the experts" in boxes(drawn, "device")[3]["hint"]
    shared = next(row for row in drawn.reaches if row["kind"] == "expert-parallel group")
    assert (shared["ranks"], shared["words"]) == (8, "over 2 nodes, 25 GB/s per network port")
    split = replace(found, expert_parallel=2, expert_tensor_parallel=4)
    assert {row["kind"]: row["words"].split(",")[0] for row in cut(split, cluster(4, 4),
    layers=2).reaches} == {
        "replicas": "over 4 nodes", "expert-parallel group": "over 2 nodes",
        "expert tensor-parallel group": "within a node",
    }  # fmt: skip
    assert (
        split.experts_in_words(64)
        == "8 neighboring ranks share each layer's 64 experts: 32 per rank, each split over 4 ranks"
    )
    assert boxes(cut(recipe(4), cluster(1, 4), layers=2), "experts") == []


def test_stages_hold_every_layer() -> None:
    rows = stages(recipe(8, pipeline_parallel=4, schedule="1f1b"), 10)
    assert [row["layers"] for row in rows] == [3, 3, 2, 2]
    assert [(row["begin"], row["end"]) for row in rows] == [(0, 3), (3, 6), (6, 8), (8, 10)]
    assert [row["shade"] for row in rows] == sorted({row["shade"] for row in rows})
    folded = recipe(4, pipeline_parallel=4, virtual_stages=2, schedule="zbv")
    assert [row["rank"] for row in stages(folded, 8)] == [0, 1, 2, 3, 3, 2, 1, 0]


def test_stage_names_fit_their_room() -> None:
    looped = recipe(16, pipeline_parallel=16, virtual_stages=2, schedule="interleaved-1f1b")
    assert [row["words"] for row in stages(looped, 32)][15:17] == [["S15", "1 L"], ["S16", "1 L"]]
    deep = stages(recipe(64, pipeline_parallel=64, schedule="1f1b"), 128)
    assert [row["words"] for row in deep][-3:] == [[], ["S62", "2 L"], []]
    words = [box["words"] for box in boxes(cut(looped, cluster(2, 8), layers=32), "device")]
    assert words[:2] == [["replica 0", "S0,16"], ["replica 0", "S1,17"]]
    four = replace(looped, virtual_stages=4, pipeline_parallel=4, devices=4)
    box = boxes(cut(four, cluster(1, 4), layers=32), "device")[1]
    assert box["words"] == ["replica 0", "S1-13"]
    assert "stages 1, 5, 9, 13," in box["hint"]
    assert stages(recipe(4), 48)[0]["words"] == ["stage 0:", "48 layers"]


def test_cut_outlines_tensor_groups_and_shows_idle_devices() -> None:
    drawn = cut(recipe(6, tensor_parallel=2), cluster(1, 8), layers=2)
    assert [len(boxes(drawn, kind)) for kind in ("device", "group", "idle")] == [6, 3, 2]


def test_cut_of_a_large_machine_shows_a_node_of_each_stage() -> None:
    found = recipe(1024, tensor_parallel=4, pipeline_parallel=8, schedule="1f1b")
    drawn = cut(found, cluster(128, 8), layers=96)
    assert {row["shade"] for row in boxes(drawn, "device")} == {
        row["shade"] for row in stages(found, 96)
    }
    assert len({row["node"] for row in boxes(drawn, "device")}) == MOST_NODES
    assert (drawn.nodes_left_out, drawn.stages_left_out) == (128 - MOST_NODES, 0)
    deep = recipe(512, pipeline_parallel=32, schedule="1f1b")
    assert {0, 31 * 16 // 8} <= set(shown_nodes(deep, cluster(64, 8), 64))
    narrow = cut(recipe(128, pipeline_parallel=16, schedule="1f1b"), cluster(16, 8), layers=48)
    assert (narrow.nodes_left_out, narrow.stages_left_out) == (4, 4), "a stage on each node"
    looped = recipe(64, pipeline_parallel=32, virtual_stages=2, schedule="interleaved-1f1b")
    assert cut(looped, cluster(32, 2), layers=64).stages_left_out == 2 * (32 - MOST_NODES)


def test_groups_reach_over_as_many_nodes_as_their_ranks_lie_on() -> None:
    assert nodes_of_groups(32, 8, ranks=8, stride=1) == 1
    assert nodes_of_groups(32, 8, ranks=16, stride=1) == 2
    assert nodes_of_groups(32, 8, ranks=4, stride=8) == 4
    assert (
        nodes_of_groups(24, 8, ranks=6, stride=1) == 2
    )  # groups that are not whole fractions of a node
    within, across = cut(recipe(32, tensor_parallel=8), cluster(4, 8), layers=2).reaches
    assert within["words"] == "within a node, 50 GB/s per device"
    assert across["words"] == "over 4 nodes, 25 GB/s per network port"


def attempt(begin_s: float, end_s: float | None) -> AttemptOutcome:
    ended = None if end_s is None else timestamp(BEGINNING + timedelta(seconds=end_s))
    state = AttemptState.RUNNING if ended is None else AttemptState.MEASURED
    times = {"started_at": timestamp(BEGINNING + timedelta(seconds=begin_s)), "finished_at": ended}
    return AttemptOutcome(
        trial=Trial(
            id=1, campaign_id=1, number=1, recipe_id="1", recipe=recipe(8), state=TrialState.RUNNING
        ),
        attempt=Attempt(
            id=1, campaign_id=1, trial_id=1, number=1, state=state, run_folder="/runs/1", **times
        ),
        outcome=None,
    )


def test_timeline_has_a_lane_per_concurrent_probe_and_cuts_pauses_out() -> None:
    found = timeline(
        [attempt(0, 10), attempt(5, 15), attempt(1000, None)], BEGINNING + timedelta(seconds=1010)
    )
    assert found is not None
    bars, cuts = (layer["data"]["values"] for layer in found["layer"])
    assert [(bar["lane"], bar["begin"], bar["end"]) for bar in bars] == [
        (0, 0, 10),
        (1, 5, 15),
        (0, 15, 25),
    ]
    assert [row["begin"] for row in cuts] == [15]
    assert timeline([], None) is None


@pytest.fixture(scope="module")
def parts() -> Breakdown:
    """A breakdown of a recipe with a pipeline, whose step was measured to take twice as long."""
    campaign = spec(space={"pipeline_parallel": [2], "tensor_parallel": [1]})
    found = breakdown(campaign.space.survey(campaign.problem).recipes[0], campaign.problem)
    measured = Measured(
        store="s.db",
        campaign="c",
        figures="measured",
        repeats=1,
        step_time_s=2 * found.estimate.step_time_s,
        step_time_spread=0.0,
        tokens_per_s=1.0,
        mfu=None,
        peak_memory_bytes=2**30,
    )
    return replace(found, measured=measured)


def ends(spec: dict[str, Any]) -> dict[str, float]:
    """Return where each bar ends; its parts follow one another."""
    found: dict[str, float] = {}
    for row in spec["layer"][0]["data"]["values"]:
        assert row["amount"] == pytest.approx(found.get(row["bar"], 0.0))
        found[row["bar"]] = row["end"]
    return found


def test_bars_add_up_to_the_step_and_to_each_rank_s_memory(parts: Breakdown) -> None:
    step = parts.estimate.step_time_s
    assert ends(step_bars(parts)) == pytest.approx({"estimated": step, "measured": 2 * step})
    memory = ends(memory_bars(parts))
    whole = [rank.peak_memory_bytes / 2**30 for rank in parts.ranks]
    assert list(memory.values()) == pytest.approx([*whole, 1.0])
    assert (
        memory_bars(parts)["layer"][-2]["data"]["values"][0]["at"]
        == parts.memory_limit_bytes / 2**30
    )


def test_steps_of_unlike_length_are_drawn_as_shares_of_each_ones_estimate(parts: Breakdown) -> None:
    step, estimate = parts.estimate.step_time_s, parts.estimate

    def times(factor: float) -> Breakdown:
        its = {name: factor * time_s for name, time_s in estimate.step_parts_s.items()}
        return replace(parts, estimate=replace(estimate, step_parts_s=its))

    alike = ends(steps_beside({"a": parts, "b": times(3.0)}))
    assert list(alike.values()) == pytest.approx([step, 2 * step, 3 * step, 2 * step])
    unlike = ends(steps_beside({"a": parts, "b": times(100.0)}))
    assert list(unlike.values()) == pytest.approx([1.0, 2.0, 1.0, 0.02])


def test_each_part_has_a_color_of_its_own() -> None:
    step = [word for name, word in PARTS.items() if name != "memory"]
    for names in (step, [field.name for field in fields(PeakMemory)]):
        assert len({COLORS[name] for name in names}) == len(names)


def test_step_times_show_each_step_and_the_median() -> None:
    found = step_times([("only", [0.5, 0.7, 0.6])])
    assert found is not None
    points, medians = (layer["data"]["values"] for layer in found["layer"])
    assert [row["time"] for row in points] == [0.5, 0.7, 0.6]
    assert [row["time"] for row in medians] == [0.6]
    assert step_times([]) is None
