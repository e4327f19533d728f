"""The closed forms of bubbles against a simulation of the orders that torch's own schedules run."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from torch.distributed.pipelining import schedules
from torch.distributed.pipelining.schedules import _ComputationType as Kind

from frontrunner.evaluators.analytic.bubbles import dual, interleaved, share_left, v_shaped
from frontrunner.evaluators.analytic.memory import micro_batches_held
from frontrunner.evaluators.analytic.schedules import order_of
from frontrunner.spaces.recipe import Recipe
from support.analytic import recipe, work

TIMES = [(10, 13, 9), (10, 23, 9), (10, 11, 11), (10, 13, 5), (7, 19, 9)]
"""Seconds of a chunk's forward pass, its input's gradients and its weights' gradients."""


def simulated_bubble_s(
    name: str, ranks: int, chunks: int, micro_batches: int, times: tuple[int, int, int]
) -> float:
    """Time that the busiest rank waits when each rank works through torch's order as its inputs
    arrive.
    """
    stages = ranks * chunks
    order = orders(name, ranks, chunks, micro_batches)
    return _play(order, stages, dict(zip(("F", "I", "W"), times, strict=True)))


def orders(name: str, ranks: int, chunks: int, micro_batches: int):
    """Each rank's list of actions as torch states it."""
    schedule = getattr(schedules, name)
    stages = ranks * chunks
    v_shaped = name in ("ScheduleZBVZeroBubble", "ScheduleDualPipeV")
    held = [0, stages - 1] if v_shaped else list(range(0, stages, ranks))
    fakes = [
        SimpleNamespace(
            stage_index=stage, num_stages=stages, group_size=ranks, group_rank=0, group=None,
            has_backward=True,
            stage_index_to_group_rank=None, is_first=stage == 0, is_last=stage == stages - 1,
            submod=None, device="cpu",
        )
        for stage in held
    ]  # fmt: skip
    local = fakes[0] if issubclass(schedule, schedules.PipelineScheduleSingle) else fakes
    return schedule(local, micro_batches, loss_fn=lambda *_: 0).pipeline_order


def _play(order, stages, times) -> float:
    """Run every rank's list, an operation as soon as its rank is free and what it needs is
    there.
    """
    done: dict[tuple[str, int, int], float] = {}
    now, place = dict.fromkeys(order, 0.0), dict.fromkeys(order, 0)
    while any(place[rank] < len(order[rank]) for rank in order):
        before = dict(place)
        for rank, actions in order.items():
            while place[rank] < len(actions) and _run(
                actions[place[rank]], stages, times, done, now, rank
            ):
                place[rank] += 1
        assert place != before, "the order deadlocks"
    busy = {
        rank: sum(_length(one, times) for action in order[rank] for one in _parts(action))
        for rank in order
    }
    return max(now.values()) - max(busy.values())


def _parts(action) -> tuple:
    return () if action is None else action.sub_actions or (action,)


def _length(action, times) -> float:
    words = {
        Kind.FORWARD: "F",
        Kind.BACKWARD_INPUT: "I",
        Kind.BACKWARD_WEIGHT: "W",
        Kind.FULL_BACKWARD: "IW",
    }
    return sum(times[word] for word in words[action.computation_type])


def _needs(action, stages) -> list[tuple[str, int, int]]:
    stage, batch = action.stage_index, action.microbatch_index
    if action.computation_type is Kind.FORWARD:
        return [("F", stage - 1, batch)] if stage else []
    if action.computation_type is Kind.BACKWARD_WEIGHT:
        return [("I", stage, batch)]
    return [("F", stage, batch), *([("I", stage + 1, batch)] if stage < stages - 1 else [])]


def _run(action, stages, times, done, now, rank) -> bool:
    """Run one action if all that it needs is done."""
    parts = _parts(action)
    if not all(need in done for part in parts for need in _needs(part, stages)):
        return False
    for part in parts:
        begin = max([now[rank], *(done[need] for need in _needs(part, stages))])
        now[rank] = begin + _length(part, times)
        word = {Kind.FORWARD: "F", Kind.BACKWARD_WEIGHT: "W"}.get(part.computation_type, "I")
        done[word, part.stage_index, part.microbatch_index] = now[rank]
    return True


def in_columns(times):
    return {
        name: np.array([float(value)])
        for name, value in zip(("forward", "backward", "weights"), times, strict=True)
    }


@pytest.mark.parametrize("times", TIMES)
@pytest.mark.parametrize("ranks", [2, 3, 4, 6])
def test_bubbles_are_those_of_torch_orders(ranks, times):
    p, columns = np.array([float(ranks)]), in_columns(times)
    for micro_batches in (2 * ranks, 5 * ranks):
        m = np.array([float(micro_batches)])
        found = {
            "ScheduleInterleaved1F1B": (p - 1) * sum(columns.values()),
            "ScheduleInterleavedZeroBubble": interleaved(p, **columns),
            "ScheduleZBVZeroBubble": v_shaped(p, m, **columns),
            "ScheduleDualPipeV": dual(p, **columns),
        }
        for name, bubble in found.items():
            assert bubble[0] == pytest.approx(
                simulated_bubble_s(name, ranks, 2, micro_batches, times), abs=1.0
            ), name


@pytest.mark.parametrize("times", TIMES)
def test_bubble_of_a_v_shaped_pipeline_grows_with_few_micro_batches(times):
    for micro_batches in (4, 5, 6, 7):
        found = v_shaped(np.array([4.0]), np.array([float(micro_batches)]), **in_columns(times))
        simulated = simulated_bubble_s("ScheduleZBVZeroBubble", 4, 2, micro_batches, times)
        assert found[0] == pytest.approx(simulated, rel=0.25)


def test_share_left_is_chosen_by_schedule_and_is_all_of_it_without_a_pipeline():
    columns = in_columns((10, 13, 9))
    p, m = np.array([4.0, 4.0, 4.0, 1.0]), np.full(4, 16.0)
    left = share_left(
        p,
        m,
        columns,
        is_v_shaped=np.array([False, True, True, False]),
        is_dual=np.array([False, False, True, False]),
    )
    assert left.tolist() == pytest.approx([42 / 96, 39 / 96, 42 / 96, 1.0])


WORDS = {
    Kind.FORWARD: "F",
    Kind.FULL_BACKWARD: "B",
    Kind.BACKWARD_INPUT: "I",
    Kind.BACKWARD_WEIGHT: "W",
}
SCHEDULES = {
    "gpipe": ("ScheduleGPipe", 1, lambda _p, _m: True),
    "1f1b": ("Schedule1F1B", 1, lambda _p, _m: True),
    "looped-bfs": ("ScheduleLoopedBFS", 3, lambda _p, _m: True),
    "interleaved-1f1b": ("ScheduleInterleaved1F1B", 3, lambda p, m: not m % (m // p)),
    "interleaved-zero-bubble": ("ScheduleInterleavedZeroBubble", 3, lambda p, m: not m % (m // p)),
    "zbv": ("ScheduleZBVZeroBubble", 2, lambda _p, _m: True),
    "dualpipev": ("ScheduleDualPipeV", 2, lambda p, m: m >= 2 * p),
}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_order_of_each_rank_is_that_of_torch(schedule):
    name, chunks, takes = SCHEDULES[schedule]
    cases = [
        (p, m) for p in (2, 3, 4, 6) for m in (p, p + 1, 2 * p - 1, 2 * p, 5 * p) if takes(p, m)
    ]
    assert cases
    for ranks, batches in cases:
        recipe = Recipe(
            devices=ranks, pipeline_parallel=ranks, virtual_stages=chunks, schedule=schedule,
            accumulation=batches,
            tensor_parallel=1, micro_batch_seqs=1,
        )  # fmt: skip
        for rank, actions in orders(name, ranks, chunks, batches).items():
            parts = [
                part
                for action in actions
                for part in _parts(action)
                if part.computation_type in WORDS
            ]
            expected = [
                (WORDS[one.computation_type], one.stage_index, one.microbatch_index)
                for one in parts
            ]
            found = [tuple(one) for one in order_of(recipe)[rank]]
            if (
                schedule == "1f1b"
            ):  # torch's own list numbers the last rank's micro-batches from 1; its step does not
                assert [one[2] for one in found if one[0] == "F"] == list(range(batches))
                expected, found = ([one[:2] for one in side] for side in (expected, found))
            assert found == expected, (ranks, batches, rank)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_micro_batches_held_are_those_that_a_rank_s_order_leaves_open(schedule):
    """Until the gradients of the weights are there; of a rank's chunks each counts as its part of a
    micro-batch.
    """
    _, chunks, takes = SCHEDULES[schedule]
    each = (2, 3, 4) if schedule.startswith("interleaved") else (chunks,)
    shapes = [
        (p, m, v)
        for p in (2, 3, 4, 6)
        for m in (p, p + 1, 2 * p, 3 * p, 5 * p)
        for v in each
        if takes(p, m)
    ]
    for ranks, batches, stages in shapes:
        of = recipe(
            devices=ranks, pipeline_parallel=ranks, virtual_stages=stages, schedule=schedule,
            accumulation=batches,
            tensor_parallel=1, micro_batch_seqs=1,
        )  # fmt: skip
        for rank, passes in enumerate(order_of(of)):
            opened = np.cumsum([{"F": 1, "I": 0}.get(one.kind, -1) for one in passes])
            held = micro_batches_held(work(of), rank)[0]
            assert held == pytest.approx(max(opened) / stages), (of, rank)
