"""The timeline of one step: what runs when on each pipeline rank, against the formulas' step and
memory.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from frontrunner.evaluators.analytic.estimates import estimate_many
from frontrunner.evaluators.analytic.timeline import step_timeline
from frontrunner.spaces.errors import InvalidInput
from frontrunner.spaces.legality import why_illegal
from frontrunner.spaces.problem import GlobalBatch
from frontrunner.spaces.recipe import LOOPED_SCHEDULES, SCHEDULES, SPLIT_BACKWARD_SCHEDULES
from frontrunner.spaces.sharding import Sharding
from frontrunner.views.timeline import apart, cells, print_timeline, shown_ranks
from support import analytic

pytestmark = pytest.mark.unit
PROBLEM = replace(
    analytic.PROBLEM,
    model=analytic.PROBLEM.model.with_keys(tied_embeddings=False),
    global_batch=GlobalBatch(minimum=256, maximum=256),
)
TINY = 1e-9


def recipe(schedule: str = "1f1b", ranks: int = 4, sharding: str = "zero-1", **changes: object):
    ranks = 1 if schedule == "none" else ranks
    copies = 8 // ranks
    chunks = 2 if schedule in LOOPED_SCHEDULES else 1
    found = analytic.recipe(
        **{
            "pipeline_parallel": ranks, "schedule": schedule, "virtual_stages": chunks,
            "micro_batch_seqs": 4,
            "accumulation": 64 // copies, "sharding": Sharding.named(sharding, copies),
        } | changes
    )  # fmt: skip
    assert why_illegal(found, PROBLEM) is None
    return found


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_actions_fill_the_step_and_no_pass_begins_before_its_input_is_there(schedule):
    found = step_timeline(recipe(schedule), PROBLEM)

    ended, last = {}, found.recipe.stages - 1
    for rank in found.ranks:
        assert rank.actions[0].begin_s == 0
        for one, following in zip(rank.actions, rank.actions[1:], strict=False):
            assert one.end_s == pytest.approx(following.begin_s, abs=TINY)
        assert rank.actions[-1].end_s == pytest.approx(found.step_time_s)
        ended |= {one[:3]: one.end_s for one in rank.actions if one.kind in "FBIW"}
    for rank in found.ranks:
        for kind, stage, batch, begin, _ in (one for one in rank.actions if one.kind in "FBIW"):
            assert stage in rank.stages
            if kind == "F" and stage:
                assert ended["F", stage - 1, batch] <= begin + TINY
            elif kind in "BI":
                after = (
                    min(ended.get((of, stage + 1, batch), 9e9) for of in "BI")
                    if stage < last
                    else 0.0
                )
                assert max(ended["F", stage, batch], after) <= begin + TINY
            elif kind == "W":
                assert ended["I", stage, batch] <= begin + TINY
    assert sum(one[0] == "F" for one in ended) == found.recipe.stages * found.recipe.accumulation
    assert any(one[0] == "W" for one in ended) == (schedule in SPLIT_BACKWARD_SCHEDULES)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_step_agrees_with_the_formulas_or_says_why_not(schedule):
    found = step_timeline(recipe(schedule), PROBLEM)

    estimate = estimate_many([found.recipe], PROBLEM)[0]
    assert found.formula_step_time_s == pytest.approx(estimate.step_time_s)
    off = found.step_time_s / estimate.step_time_s - 1
    assert abs(off) < (1e-6 if schedule == "none" else 0.04)
    assert bool(found.differences) == (abs(off) >= 0.01)
    most = max(rank.peak_memory_bytes for rank in found.ranks)
    assert most == pytest.approx(estimate.peak_memory_bytes, rel=0.04)


def test_equal_stages_without_transfers_are_the_formulas_to_the_digit():
    free = replace(PROBLEM, model=PROBLEM.model.with_keys(vocabulary=64))
    links = replace(free.cluster.links, nic_gb_per_s=1e6, node_gb_per_s=1e6)
    efficiencies = dict.fromkeys(("node_latency_s", "network_latency_s"), 0.0)
    free = replace(free, cluster=replace(free.cluster, links=links, efficiencies=efficiencies))
    for schedule in ("gpipe", "1f1b", "interleaved-1f1b"):
        found = step_timeline(recipe(schedule, sharding="none"), free)
        assert found.step_time_s == pytest.approx(found.formula_step_time_s, rel=1e-3)
        assert found.bubble_share == pytest.approx(found.formula_bubble_share, rel=2e-2)


def test_memory_rises_with_the_micro_batches_in_flight_and_falls_to_the_states():
    found = step_timeline(recipe(ranks=8), PROBLEM)

    first, last = found.ranks[0], found.ranks[-2]
    assert first.peak_memory_bytes > last.peak_memory_bytes
    assert first.memory[-1].memory_bytes < first.peak_memory_bytes
    ahead = next(place for place, one in enumerate(first.actions) if one.kind == "B")
    assert sum(one.kind == "F" for one in first.actions[:ahead]) == 8


def test_more_micro_batches_shrink_the_bubble():
    few, many = (
        step_timeline(recipe(ranks=8, micro_batch_seqs=size, accumulation=256 // size), PROBLEM)
        for size in (8, 1)
    )

    assert many.bubble_share < few.bubble_share / 2


def test_one_row_stands_for_all_devices_of_a_pipeline_rank():
    found = step_timeline(recipe(ranks=2), PROBLEM)

    assert [rank.devices for rank in found.ranks] == [32, 32]
    assert [rank.layers for rank in found.ranks] == [24, 24]


def test_an_unknown_or_endless_step_is_refused():
    with pytest.raises(InvalidInput, match="do not know offload to NVMe"):
        step_timeline(replace(recipe("none"), offload="nvme"), PROBLEM)
    with pytest.raises(InvalidInput, match="passes: at most"):
        step_timeline(replace(recipe(), accumulation=100_000), PROBLEM)


def test_a_printed_row_has_each_thing_by_its_share_of_the_step():
    found = step_timeline(recipe(ranks=4, micro_batch_seqs=1, accumulation=128), PROBLEM)

    row = found.ranks[1]
    shown = cells(row.actions, found.step_time_s, 60)
    assert len(shown) == 60
    for kind in "FB":
        share = (
            sum(one.end_s - one.begin_s for one in row.actions if one.kind == kind)
            / found.step_time_s
        )
        assert shown.count(kind) / 60 == pytest.approx(share, abs=0.05)
    assert shown[0] == "bubble" or row.actions[0].end_s < found.step_time_s / 60


def test_a_printed_pass_is_what_it_is_spent_on():
    found = step_timeline(recipe(recompute="full"), PROBLEM)
    row, stage = found.ranks[1], 1

    parts = apart(row.actions, found.pass_parts_s)

    assert all(one.end_s == pytest.approx(after.begin_s) for one, after in pairwise(parts))
    spent = sum(one.end_s - one.begin_s for one in parts if one.kind == "recompute")
    passes = sum(one.kind == "B" for one in row.actions)
    assert spent == pytest.approx(passes * found.pass_parts_s["I"][stage]["recompute"])
    assert "recompute" in cells(parts, found.step_time_s, 60)


def test_many_ranks_are_printed_as_an_even_selection_with_both_ends():
    found = step_timeline(recipe(ranks=4), PROBLEM)

    many = replace(found, ranks=tuple(replace(found.ranks[0], rank=number) for number in range(64)))
    assert [rank.rank for rank in shown_ranks(found)] == [0, 1, 2, 3]
    chosen = [rank.rank for rank in shown_ranks(many)]
    assert (len(chosen), chosen[0], chosen[-1]) == (16, 0, 63)


def test_printed_bubbles_say_whose_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    found = replace(
        step_timeline(recipe(ranks=4), PROBLEM), bubble_share=0.146, formula_bubble_share=0.089
    )
    print_timeline(found)
    words = " ".join(capsys.readouterr().out.split())
    assert "bubble 14.6 %, the mean of all ranks (8.9 % by the formulas, on the slowest" in words
