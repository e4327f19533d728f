"""The small campaign that a large one is predicted from: its problem, its space, its budget."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import frontrunner.search.pair
from frontrunner.config.campaign import parse_campaign
from frontrunner.evaluators.cluster.settings import DispatchSettings
from frontrunner.results.store import open_store
from frontrunner.search.budget import Spent
from frontrunner.search.campaign_setup import change_budget, stored_spec, why_not_here
from frontrunner.search.pair import create_pair, what_is_left
from frontrunner.search.spec import Budget, CampaignSpec
from frontrunner.search.two_stage import scale_in_words, small_spec
from frontrunner.spaces.errors import InvalidInput
from support.campaigns import Table, spec_of, tiny


def pair(**sections: Table) -> Table:
    """Eight nodes of two devices with 8 layers, probed on one node unless sections are changed."""
    return tiny(
        model={"layers": 8},
        cluster={"nodes": 8, **sections.pop("cluster", {})},
        problem={"global_batch": 64},
        search={"strategy": "guided", "probe_nodes": 1, **sections.pop("search", {})},
        **sections,
    )


def frontier(**search: Any) -> CampaignSpec:
    """A model of 175 billion parameters on 128 nodes: a replica takes more than two of them."""
    table = {
        "model": {"preset": "frontier-175b"},
        "cluster": {"preset": "frontier", "nodes": 128},
        "problem": {"sequence_length": 2048, "global_batch": 1024, "precision": "fp16"},
        "space": {
            "tensor_parallel": [4, 8],
            "pipeline_parallel": [1, 2, 4, 8, 16],
            "micro_batch_seqs": [1, 2],
            "sharding": ["zero-1"],
            "recompute": ["full"],
        },
        "search": {"probe_nodes": 2} | search,
    }
    return parse_campaign(table, default_name="frontier", base=Path()).spec


def test_fewer_nodes_have_as_much_less_of_the_batch_and_the_same_layers() -> None:
    spec = spec_of(pair())
    small = small_spec(spec)
    assert (small.problem.cluster.nodes, str(small.problem.global_batch)) == (1, "8")
    assert small.problem.model == spec.problem.model
    assert small.search.probe_nodes is None
    assert small.name == "tiny-small"
    assert scale_in_words(small.problem, spec.problem) == "1 of 8 nodes, batch 8 of 64"


def test_a_recipe_keeps_its_degrees_micro_batch_and_accumulation() -> None:
    spec = spec_of(pair())

    def parts(recipe: Any) -> tuple[int, ...]:
        return (
            recipe.tensor_parallel,
            recipe.pipeline_parallel,
            recipe.micro_batch_seqs,
            recipe.accumulation,
        )

    large = {parts(recipe): recipe.data_parallel for recipe in spec.survey().recipes}
    small = {parts(recipe): recipe.data_parallel for recipe in small_spec(spec).survey().recipes}
    assert small
    assert all(large[key] == 8 * replicas for key, replicas in small.items())


def test_counts_of_devices_are_the_same_shares_of_fewer_nodes() -> None:
    spec = spec_of(pair(space={"devices": [16, 8, 4]}))
    assert small_spec(spec).space.devices == (
        2,
        1,
    )  # a half of one device is none: it counts as one


def test_a_replica_that_does_not_fit_has_fewer_layers_of_the_same_shape() -> None:
    spec = frontier()
    small = small_spec(spec)
    model, whole = small.problem.model, spec.problem.model
    assert model.layers < whole.layers
    assert whole.layers % model.layers == 0
    assert replace(model, layers=whole.layers, name=whole.name) == whole
    # As many times fewer layers leave as many times more replicas for a pipeline of as many times
    # fewer stages.
    assert small.problem.global_batch.maximum == 1024 * 2 // 128 * (whole.layers // model.layers)
    fewer = small_spec(replace(spec, search=replace(spec.search, probe_nodes=16)))
    assert fewer.problem.model.layers > model.layers


def test_nodes_that_hold_nothing_are_refused_with_the_key() -> None:
    spec = frontier(probe_nodes=1)
    long_pipelines = replace(
        spec, space=replace(spec.space, tensor_parallel=(8,), pipeline_parallel=(16,))
    )
    with pytest.raises(InvalidInput) as refused:
        small_spec(long_pipelines)
    assert "search.probe_nodes = 1" in str(refused.value)


@pytest.mark.parametrize(
    ("search", "key"),
    [
        ({"probe_nodes": 8}, "search.probe_nodes = 8"),
        ({"probe_nodes": 0}, "search.probe_nodes = 0"),
        ({"confirm_probes": -1}, "search.confirm_probes = -1"),
        ({"strategy": "random"}, "search.strategy = 'random'"),
        ({"objectives": ["tokens", "memory"]}, "search.objectives"),
    ],
)
def test_what_cannot_be_a_pair_is_refused(search: dict[str, Any], key: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        spec_of(pair(search=search))
    assert key.replace("'", '"') in str(refused.value).replace("'", '"')


def test_an_allocation_need_hold_no_more_than_the_nodes_that_are_probed() -> None:
    spec = spec_of(pair(search={"probe_nodes": 2}))
    held = DispatchSettings(
        backend="parsl", scheduler="slurm", nodes_per_allocation=4, walltime="01:00:00"
    )
    spec = replace(spec, dispatch=held)
    assert (
        why_not_here(spec)
        == "dispatch.nodes_per_allocation = 4: expected at least cluster.nodes = 8"
    )
    with pytest.raises(InvalidInput, match=r"at least search\.probe_nodes = 2"):
        replace(spec, dispatch=replace(held, nodes_per_allocation=1))


def test_the_small_campaign_leaves_something_for_the_confirmations() -> None:
    budget = {"probes": 10, "minutes": 4.0, "node_hours": 2.0, "cost": 6.0}
    spec = spec_of(pair(budget=budget, cluster={"price_per_node_hour": 5.0}))
    assert small_spec(spec).budget == Budget(probes=7, minutes=2.0, node_hours=1.0, cost=3.0)
    assert small_spec(spec, confirmable=False).budget == spec.budget
    assert small_spec(spec_of(pair(search={"confirm_probes": 0}))).budget == Budget()


@pytest.mark.parametrize(
    ("budget", "probes", "left"),
    [
        (Budget(), 7, Budget(probes=3)),
        (Budget(probes=10), 8, Budget(probes=2)),
        (Budget(probes=10), 10, None),
        (Budget(node_hours=2.0), 4, Budget(probes=3, node_hours=1.5)),
        (Budget(node_hours=0.5), 4, None),
        (Budget(minutes=1.0), 4, None),
        (Budget(cost=9.0), 4, Budget(probes=3, cost=7.0)),
        (Budget(cost=2.0), 4, None),
    ],
)
def test_confirmations_get_what_is_left(budget: Budget, probes: int, left: Budget | None) -> None:
    small = Spent(probes=probes, driver_seconds=60.0, node_seconds=1800.0, cost=2.0)
    assert what_is_left(budget, small, confirm_probes=3) == left


def test_a_baseline_is_left_to_the_campaign_of_the_whole_cluster() -> None:
    spec = spec_of(pair())
    whole = spec.survey().recipes[0]
    small = small_spec(replace(spec, search=replace(spec.search, baseline=whole)))
    assert small.search.baseline is None


@pytest.mark.parametrize(("why_not", "small"), [(None, 17), ("no such nodes", 20)])
def test_a_changed_budget_is_shared_as_at_launch(
    why_not: str | None, small: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frontrunner.search.pair, "why_not_here", lambda _: why_not)
    spec = spec_of(pair(budget={"probes": 12}))
    with open_store(str(tmp_path / "s.db")) as store:
        record = create_pair(store, spec, spec.survey())
        change_budget(store, record, {"probes": 8}, add=True)
        assert stored_spec(store.campaign("tiny")).budget.probes == 20
        assert stored_spec(store.campaign("tiny-small")).budget.probes == small
