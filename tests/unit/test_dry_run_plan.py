"""What a dry run traces of a recipe, and how a recipe is named by choices."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import frontrunner
from frontrunner.config.campaign import read_campaign_file
from frontrunner.evaluators.diagnostics.dryrun import (
    DryRun,
    TracedRank,
    needed_micro_batches,
    plan,
    why_untraceable,
    worst_ranks,
)
from frontrunner.evaluators.runs.settings import ProbeSettings
from frontrunner.recipe_actions import one_recipe
from frontrunner.spaces.errors import InvalidInput, NothingLegal
from frontrunner.spaces.recipe import Recipe
from frontrunner.spaces.stages import layers_of_ranks
from frontrunner.views.diagnostics import print_dryrun

FILE = Path(__file__).parents[2] / "examples" / "frontier-175b.toml"
SPEC = read_campaign_file(FILE).spec


def recipe(**changes: object) -> Recipe:
    """The example's recipe with zero-1 and without recompute, but for the changes."""
    return one_recipe(SPEC, {"sharding": "zero-1", "recompute": "none"} | changes)


def test_choices_single_out_a_recipe_and_may_be_new_to_the_space() -> None:
    found = recipe(tensor_parallel=4, sharding="hybrid-2")
    assert (found.tensor_parallel, found.data_parallel, found.sharding_name) == (4, 16, "hybrid-2")
    assert found.accumulation == 40


def test_choices_that_leave_several_recipes_name_what_is_open() -> None:
    with pytest.raises(InvalidInput, match="the space has 3 recipes with sharding=") as raised:
        one_recipe(SPEC, {"sharding": "zero-1"})
    assert raised.value.hint == "name recompute as well"


def test_choices_that_leave_no_recipe_say_why() -> None:
    with pytest.raises(
        NothingLegal, match="tensor_parallel 5 x pipeline_parallel 16 does not divide 1024"
    ):
        recipe(tensor_parallel=5)


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"tensor_paralel": 8}, "unknown choice tensor_paralel"),
        ({"tensor_parallel": "eight"}, "space.tensor_parallel"),
        ({"recompute": "some"}, 'space.recompute = "some"'),
    ],
)
def test_choices_that_are_none_are_refused(choice: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        recipe(**choice)


def test_a_recipe_by_choices_needs_its_file() -> None:
    with pytest.raises(InvalidInput, match="campaign file"):
        frontrunner.plan_dryrun({"sharding": "zero-1"})


@pytest.mark.parametrize(
    ("changes", "needed"),
    [
        ({}, 17),
        ({"accumulation": 10}, 10),
        ({"schedule": "zbv", "virtual_stages": 2}, 33),
        ({"schedule": "interleaved-1f1b", "virtual_stages": 2}, 48),
        # Rounds of more micro-batches than the pipeline has ranks hold more in flight.
        ({"schedule": "interleaved-1f1b", "virtual_stages": 2, "accumulation": 72}, 72),
        ({"schedule": "gpipe"}, 80),
        ({"schedule": "none", "pipeline_parallel": 1}, 2),
        ({"schedule": "none", "pipeline_parallel": 1, "accumulation": 1}, 1),
    ],
)
def test_as_many_micro_batches_are_traced_as_show_the_peak(
    changes: dict[str, Any], needed: int
) -> None:
    assert needed_micro_batches(replace(recipe(), **changes)) == needed


def test_first_and_last_rank_are_traced_and_one_that_holds_more_layers() -> None:
    even = recipe()
    assert worst_ranks(even, SPEC.problem) == (0, 15 * 64)
    uneven = replace(even, layers_per_stage=(5, 6, 7, *(6,) * 13))
    assert layers_of_ranks(uneven, len(SPEC.problem.model.layers))[:4] == [5, 6, 7, 6]
    assert worst_ranks(uneven, SPEC.problem) == (0, 2 * 64, 15 * 64)


def test_v_shaped_pipelines_end_where_they_begin() -> None:
    found = replace(recipe(), schedule="zbv", virtual_stages=2, layers_per_stage=(4, *(3,) * 30, 2))
    assert layers_of_ranks(found, len(SPEC.problem.model.layers)) == [6] * 16


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"engine": "deepspeed"}, "torch engine"),
        ({"compile": True}, "torch.compile"),
        ({"replication": "ddp"}, "ddp"),
        ({"offload": "optimizer+parameters"}, "offload"),
        ({"activation_offload": True}, "offload"),
    ],
)
def test_what_cannot_be_traced_is_refused_with_the_reason(
    changes: dict[str, Any], reason: str
) -> None:
    found = replace(recipe(), **changes)
    assert reason in (why_untraceable(found, SPEC.problem) or "")
    with pytest.raises(InvalidInput, match=f"cannot be traced: .*{reason}"):
        plan(recipe_id="0123", recipe=found, problem=SPEC.problem, probe=ProbeSettings())


@pytest.mark.parametrize("rank", [-1, 1024])
def test_a_rank_must_be_one_of_the_recipe_s(rank: int) -> None:
    with pytest.raises(
        InvalidInput, match=f"rank = {rank}: expected one of the recipe's ranks, 0 to 1023"
    ):
        plan(
            recipe_id="0123",
            recipe=recipe(),
            problem=SPEC.problem,
            probe=ProbeSettings(),
            rank=rank,
        )


def test_a_schedule_that_keeps_all_in_flight_is_extrapolated_where_it_is_long() -> None:
    for accumulation, micro_batches, extrapolated in (
        (40, 40, False),
        (80, 4, True),
        (800, 4, True),
    ):
        long = replace(recipe(), schedule="gpipe", accumulation=accumulation)
        planned = plan(recipe_id="0", recipe=long, problem=SPEC.problem, probe=ProbeSettings())
        assert (planned.micro_batches, planned.extrapolated) == (micro_batches, extrapolated)


@pytest.mark.parametrize(("scale", "unit"), [(2**20, "MiB"), (2**30, "GiB")])
def test_memory_is_printed_in_a_unit_of_its_size(
    scale: int, unit: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rank = TracedRank(
        rank=0,
        pipeline_rank=0,
        layers=2,
        memory_bytes={"parameters": 3 * scale, "runtime": 5 * scale},
        forward_flops=1,
        backward_flops=2,
        recomputed_flops=0,
        model_flops_by_formula=3.0,
        trace_time_s=1.0,
    )
    print_dryrun(
        DryRun(
            recipe_id="3f9c01d2ab4e",
            recipe=recipe(pipeline_parallel=1, schedule="none"),
            device="test",
            backend="cpu",
            device_memory_bytes=80 * 2**30,
            ranks=(rank,),
            micro_batches=1,
            extrapolated=False,
            wall_time_s=1.0,
        )
    )
    words = capsys.readouterr().out.split()
    assert words[words.index("peak,") + 1] == unit
    assert words[words.index("parameters") + 1] == "3.00"
    assert words.count("8.00") >= 1
