"""Where a step's time goes: arithmetic of spans, and the parts of steps that are made up event by
event.
"""

from __future__ import annotations

import gzip
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frontrunner.evaluators.diagnostics.profile import join_traces
from frontrunner.evaluators.diagnostics.step_breakdown import (
    Breakdown,
    Event,
    Part,
    Span,
    break_down,
    collective_part,
    difference,
    intersection,
    mean,
    merged,
    total,
)

SPANS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=12)


def moments(spans: list[Any]) -> set[int]:
    """The whole numbers t for which [t, t + 1] is covered."""
    return {moment for start, end in spans for moment in range(int(start), int(end))}


@given(SPANS, SPANS)
def test_spans_agree_with_sets_of_moments(one: list[Span], other: list[Span]) -> None:
    left, right = merged(one), merged(other)
    assert moments(left) == moments(one)
    assert moments(intersection(left, right)) == moments(one) & moments(other)
    assert moments(difference(left, right)) == moments(one) - moments(other)
    assert total(difference(left, right)) == len(moments(one) - moments(other))
    assert all(a[1] < b[0] for a, b in pairwise(left))


def event(
    name: str, start_ms: float, end_ms: float, category: str = "cpu_op", **more: Any
) -> Event:
    """A span on the thread of the steps, unless another is given; times in milliseconds."""
    given = {"thread": "main"} | more
    return Event(name=name, category=category, span=(1000 * start_ms, 1000 * end_ms), **given)


def note(name: str, start_ms: float, end_ms: float, **more: Any) -> Event:
    return event(name, start_ms, end_ms, "user_annotation", **more)


def parts(*events: Event) -> Breakdown:
    """The breakdown, whose parts are checked to sum to the step's time, with times in
    milliseconds.
    """
    found = break_down(events)
    assert sum(found.seconds.values()) == pytest.approx(found.step_time_s, rel=1e-9)
    return Breakdown(
        step_time_s=1000 * found.step_time_s,
        seconds={part: round(1000 * time, 6) for part, time in found.seconds.items() if time},
        hidden={part: round(1000 * time, 6) for part, time in found.hidden.items() if time},
    )


STEP = note("frontrunner::step", 0, 100)


def test_self_time_counts_on_a_cpu() -> None:
    found = parts(
        STEP,
        note("frontrunner::data", 0, 5),
        event("aten::copy_", 1, 2),
        event("aten::linear", 10, 20),
        event("aten::addmm", 12, 18),
        # Python's dispatch of a DTensor's operator: 30 to 34 and 38 to 40 are the host's.
        event("aten::mm", 30, 40),
        event("aten::mm", 34, 38),
        # A node of autograd holds what it runs, and is nothing itself.
        event("autograd::engine::evaluate_function: MmBackward0", 50, 60),
        event("MmBackward0", 51, 59),
        event("aten::mm", 52, 57),
        event("CompiledFunction", 61, 64),
        note("Optimizer.step#AdamW.step", 70, 80),
        event("aten::_foreach_mul_", 72, 75),
        event("aten::relu", 0, 90, thread="another"),
    )
    assert found.step_time_s == 100
    assert found.seconds == {
        Part.DATA: 5,
        Part.COMPUTE: 10 + 4 + 5 + 3,
        Part.OPTIMIZER: 10,
        Part.IDLE: 100 - 5 - 22 - 10,
    }


def test_communication_on_a_cpu_counts_where_the_thread_waits() -> None:
    found = parts(
        STEP,
        event("c10d::_allgather_base_", 0, 1),
        note("gloo:all_gather", 1, 30, thread="gloo"),
        event("aten::mm", 5, 15),  # beside it
        note("frontrunner::wait", 20, 31),  # 20 to 30 for it, 30 to 31 back from it
    )
    assert found.seconds == {Part.ALL_GATHER: 12, Part.COMPUTE: 10, Part.IDLE: 78}
    assert found.hidden == {Part.ALL_GATHER: 10}


def test_a_reduce_scatter_that_gloo_makes_of_an_all_reduce_keeps_its_name() -> None:
    found = parts(
        STEP,
        event("c10d::_reduce_scatter_base_", 0, 1),
        note("gloo:all_reduce", 1, 10, thread="gloo"),
        note("frontrunner::wait", 1, 10),
        event("_c10d_functional::all_reduce", 19, 21),
        event("c10d::allreduce_", 20, 21),
        note("gloo:all_reduce", 21, 40, thread="gloo"),
        event("_c10d_functional::wait_tensor", 21, 40),
    )
    assert found.seconds == {Part.REDUCE_SCATTER: 10, Part.ALL_REDUCE: 21, Part.IDLE: 69}


def test_a_send_that_nobody_takes_does_not_hide_what_is_waited_for() -> None:
    found = parts(
        STEP,
        event("c10d::send", 0, 1),
        note("gloo:send", 1, 90),
        event("c10d::allreduce_", 10, 11),
        note("gloo:all_reduce", 11, 20, thread="gloo"),
        note("frontrunner::wait", 11, 20),
        event("aten::mm", 30, 50),
        note("frontrunner::wait", 60, 90),
    )
    assert found.seconds == {
        Part.SEND_RECV: 31,
        Part.ALL_REDUCE: 10,
        Part.COMPUTE: 20,
        Part.IDLE: 39,
    }
    assert found.hidden == {Part.SEND_RECV: 20}


def test_under_ddp_whose_waits_are_not_recorded_what_is_in_flight_is_waited_for() -> None:
    found = parts(
        STEP,
        note("DistributedDataParallel.forward", 0, 10),
        event("aten::mm", 10, 40),
        event("c10d::allreduce_", 30, 31),
        note("gloo:all_reduce", 31, 60, thread="gloo"),
    )
    assert found.seconds == {Part.COMPUTE: 29, Part.ALL_REDUCE: 21, Part.IDLE: 50}
    assert found.hidden == {Part.ALL_REDUCE: 9}


def kernel(
    name: str, start_ms: float, end_ms: float, category: str = "kernel", **more: Any
) -> Event:
    return event(name, start_ms, end_ms, category, **({"thread": "device"} | more))


def test_on_a_device_kernels_count_and_communication_beside_them_is_hidden() -> None:
    found = parts(
        STEP,
        note("frontrunner::data", 0, 6),
        event("cudaMemcpyAsync", 4, 5, "cuda_runtime", correlation=1),
        kernel("Memcpy HtoD (Pageable -> Device)", 5, 7, "gpu_memcpy", correlation=1),
        event("aten::mm", 6, 99),  # the host only asks
        kernel("gemm", 10, 40),
        kernel("gemm", 30, 50, thread="another stream"),
        kernel("ncclDevKernel_ReduceScatter_Sum_f32_RING_LL", 35, 60),
        kernel("ncclDevKernel_SendRecv", 58, 62),
        kernel("ncclDevKernel_Generic_4", 62, 64, collective="_allgather_base"),
        kernel("Memcpy DtoH (Device -> Pinned)", 64, 66, "gpu_memcpy"),
        kernel("Memcpy DtoD (Device -> Device)", 66, 67, "gpu_memcpy"),
        note("Optimizer.step#AdamW.step", 60, 61),
        event("cudaLaunchKernel", 60.2, 60.3, "cuda_runtime", correlation=2),
        kernel("multi_tensor_apply_kernel", 80, 90, correlation=2),
    )
    assert found.seconds == {
        Part.DATA: 7,
        Part.COMPUTE: 41,
        Part.REDUCE_SCATTER: 10,
        Part.SEND_RECV: 2,
        Part.ALL_GATHER: 2,
        Part.HOST_COPY: 2,
        Part.OPTIMIZER: 10,
        Part.IDLE: 26,
    }
    assert found.hidden == {Part.REDUCE_SCATTER: 15}


def test_steps_are_averaged_and_what_lies_between_them_is_left_out() -> None:
    steps = (note("frontrunner::step", 0, 10), note("frontrunner::step", 20, 40))
    found = parts(*steps, event("aten::mm", 5, 25))
    assert (found.step_time_s, found.seconds) == (15, {Part.COMPUTE: 5, Part.IDLE: 10})


def test_a_trace_without_steps_is_refused() -> None:
    with pytest.raises(ValueError, match="contains no step"):
        break_down([event("aten::mm", 0, 1)])


def test_the_mean_over_ranks_sums_to_the_mean_step() -> None:
    one, other = (
        break_down([note("frontrunner::step", 0, end), event("aten::mm", 0, 5)]) for end in (9, 20)
    )
    found = mean((one, other))
    assert found.seconds[Part.COMPUTE] == pytest.approx(0.005)
    assert sum(found.seconds.values()) == pytest.approx(found.step_time_s) == pytest.approx(0.0145)


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("c10d::allreduce_", Part.ALL_REDUCE),
        ("_c10d_functional::reduce_scatter_tensor", Part.REDUCE_SCATTER),
        ("_c10d_functional::all_gather_into_tensor", Part.ALL_GATHER),
        ("c10d::alltoall_base_", Part.ALL_TO_ALL),
        ("c10d::broadcast_", Part.BROADCAST),
        ("c10d::recv_", Part.SEND_RECV),
        ("gloo:send", Part.SEND_RECV),
        ("c10d::barrier", Part.OTHER_COLLECTIVE),
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", Part.ALL_REDUCE),
        ("c10d::scatter_", Part.OTHER_COLLECTIVE),
    ],
)
def test_collectives_are_told_apart(name: str, part: Part) -> None:
    assert collective_part(name) == part


def test_the_order_of_events_in_a_file_does_not_matter() -> None:
    events = [
        STEP,
        event("aten::linear", 10, 20),
        event("aten::addmm", 12, 18),
        event("aten::mm", 30, 40),
    ]
    assert parts(*events) == parts(*reversed(events))


def test_joined_traces_have_one_clock_and_a_process_for_each_rank(tmp_path: Path) -> None:
    step = {"ph": "X", "pid": 7, "tid": 1, "ts": 100.0, "dur": 9.0}
    step |= {"name": "frontrunner::step", "cat": "user_annotation"}
    about = {"ph": "M", "pid": 7, "args": {"name": "python"}}
    kept = [step, about | {"name": "process_name"}, about | {"name": "process_sort_index"}]
    arrow, mark = {"ph": "s", "pid": 7, "name": "ac2g"}, step | {"pid": "Spans", "name": "mark"}
    traces = [tmp_path / "0.json.gz", tmp_path / "1.json.gz"]
    for path, base_ns in zip(traces, (5_000, 7_000), strict=True):
        with gzip.open(path, "wt") as file:
            trace = {"baseTimeNanoseconds": base_ns, "traceEvents": [arrow, mark, *kept]}
            json.dump(trace, file)

    breakdowns = join_traces(traces, tmp_path / "all.json.gz")

    assert [found.step_time_s for found in breakdowns] == pytest.approx([9e-6, 9e-6])
    with gzip.open(tmp_path / "all.json.gz") as file:
        events = json.load(file)["traceEvents"]
    found = [(e["pid"], e["ts"], e["name"], e.get("args")) for e in events]
    assert found == [
        (rank + 1, start_us + 2 * rank, name, args)
        for rank in (0, 1)
        for start_us, name, args in (
            (100, "frontrunner::step", None),
            (0, "process_name", {"name": f"rank {rank}: python"}),
            (0, "process_sort_index", {"sort_index": rank}),
        )
    ]
