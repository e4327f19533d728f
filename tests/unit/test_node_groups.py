"""Clusters of several node types: what a recipe of one group is, costs and may be, and what is
refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import frontrunner
from frontrunner.config.campaign import read_campaign_file
from frontrunner.config.recipe_file import from_text
from frontrunner.evaluators.analytic.estimates import estimate_many
from frontrunner.evaluators.analytic.simulated import simulate
from frontrunner.evaluators.export.tools import tool_named
from frontrunner.evaluators.grouped import Grouped
from frontrunner.evaluators.protocol import Finished, ProbeOrder
from frontrunner.exchange import exported, import_config
from frontrunner.results.outcome import Failure, FailureKind
from frontrunner.results.store import open_store
from frontrunner.search.campaign_setup import create, prepare
from frontrunner.search.guided.prior import prior_of
from frontrunner.search.spec import CampaignSpec
from frontrunner.spaces.document import recipe_id
from frontrunner.spaces.errors import InvalidInput, NodesUnavailable
from frontrunner.spaces.legality import why_illegal
from frontrunner.spaces.recipe import Recipe, plain_recipe
from frontrunner.spaces.validation import dump_json, load_json
from frontrunner.store import LocalStore
from support.campaigns import Table, spec_of, tiny

EXAMPLE = Path(__file__).parents[2] / "examples" / "two-node-types.toml"
SPEC = read_campaign_file(EXAMPLE).spec
SURVEY = SPEC.survey()
A100, H100 = SPEC.problem.by_group.values()
PRICES = {"a100": 4 * 12, "h100": 2 * 40}
"""Of all nodes of a group for an hour."""
GROUPS = [
    {"name": "small"},
    {"name": "large", "devices_per_node": 4, "nodes": 2, "memory_gib_per_device": 4},
]


def grouped(*groups: Table, **sections: Any) -> CampaignSpec:
    """A tiny campaign on these groups."""
    table = tiny(**{"evaluator": "simulated", **sections})
    table["cluster"] = {**table["cluster"], "group": [*(groups or GROUPS)]}
    return spec_of(table)


def of_group(name: str) -> list[Recipe]:
    return [recipe for recipe in SURVEY.recipes if recipe.group == name]


def test_a_group_inherits_what_is_said_of_all_and_not_of_another_device() -> None:
    small, large = grouped().problem.cluster.group
    assert (small.device, small.nodes, small.devices_per_node) == ("test-cpu", 1, 2)
    assert (large.device, large.devices, large.memory_gib_per_device) == ("test-cpu", 8, 4)
    groups = [{"name": "own", "device": "h100-80gb", "backend": "cuda"}, {"name": "shared"}]
    stated = {
        "cluster": {
            "peak_tflops": {"fp32": 1.0},
            "nvme_path": "/fast",
            "efficiencies": {"memory": 0.5},
        }
    }
    own, shared = grouped(*groups, **stated).problem.cluster.group
    assert (own.peak_tflops.bf16, own.nvme_path, own.efficiencies) == (
        H100.cluster.peak_tflops.bf16,
        "/fast",
        {},
    )
    assert (shared.peak_tflops.fp32, shared.efficiencies) == (1.0, {"memory": 0.5})


def test_the_whole_is_a_summary_of_its_groups() -> None:
    whole = SPEC.problem.cluster
    assert (whole.name, whole.device, whole.nodes, whole.devices) == (
        "two-node-types",
        "a100-80gb + h100-80gb",
        6,
        48,
    )
    assert whole.describe() == "a100: 4 nodes of 8 x a100-80gb, h100: 2 nodes of 8 x h100-80gb"
    assert (whole.parts(), A100.cluster.parts()) == (whole.group, (A100.cluster,))
    assert load_json(CampaignSpec, dump_json(SPEC), what="spec") == SPEC


def test_a_space_has_the_recipes_of_each_group_by_itself() -> None:
    alone = {
        name: replace(SPEC, problem=own).survey().recipes
        for name, own in (("a100", A100), ("h100", H100))
    }
    for name, recipes in alone.items():
        assert of_group(name) == [replace(recipe, group=name) for recipe in recipes]
    assert len(SURVEY.recipes) == sum(map(len, alone.values()))
    only = replace(SPEC, space=SPEC.space.with_choices(group=("h100",))).survey()
    assert list(only.recipes) == of_group("h100")
    assert all(why_illegal(recipe, SPEC.problem) is None for recipe in SURVEY.recipes)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"group": ""}, "group"),
        ({"group": "b200"}, "group"),
        ({"devices": 32, "accumulation": 8}, "devices"),  # of 16 in the group, and of 48 in all
    ],
)
def test_a_recipe_is_legal_within_its_group(changes: dict[str, Any], code: str) -> None:
    recipe = next(
        one for one in of_group("h100") if one.micro_batch_seqs == 1 and one.data_parallel == 16
    )
    reason = why_illegal(replace(recipe, **changes), SPEC.problem)
    assert reason is not None
    assert reason.code == code


def test_identity_is_as_without_groups_where_there_are_none() -> None:
    recipe = of_group("h100")[0]
    plain = replace(recipe, group="")
    assert "group" not in plain_recipe(plain)
    assert recipe_id(SPEC.problem, recipe) == recipe_id(H100, recipe)
    assert len({recipe_id(H100, plain), recipe_id(SPEC.problem, recipe)}) == 2
    # Two groups of equal nodes but for price or network are told apart.
    twins = grouped(
        {"name": "spot", "price_per_node_hour": 1}, {"name": "reserved", "price_per_node_hour": 3}
    )
    ids = {recipe_id(twins.problem, one) for one in twins.survey().recipes}
    assert len(ids) == len(twins.survey().recipes) == 2 * len(spec_of(tiny()).survey().recipes)
    assert repr(recipe) == repr(plain)  # of which simulated outcomes are made


def test_estimates_are_those_of_the_group_alone() -> None:
    rows = estimate_many(SURVEY.recipes, SPEC.problem)
    prior = prior_of(SURVEY.recipes, SPEC.problem)
    for name, own in (("a100", A100), ("h100", H100)):
        places = [place for place, recipe in enumerate(SURVEY.recipes) if recipe.group == name]
        alone, judged = estimate_many(of_group(name), own), prior_of(of_group(name), own)
        np.testing.assert_array_equal(rows.step_time_s[places], alone.step_time_s)
        np.testing.assert_array_equal(rows.fit[places], alone.fit)
        np.testing.assert_array_equal(prior.log_fill[places], judged.log_fill)
        np.testing.assert_array_equal(prior.slopes[places], judged.slopes)
        assert rows[places[0]] == alone[0]
        assert simulate(of_group(name)[0], SPEC_SETUP) == simulate(
            of_group(name)[0], SPEC_SETUP.by_group[name]
        )


SPEC_SETUP = replace(SPEC, run_root="/runs").probe_setup()


def test_the_cheapest_recipe_is_of_another_group_than_the_fastest(tmp_path: Path) -> None:
    winners = {}
    for rate in ("tokens", "tokens_per_cost"):
        url = str(tmp_path / f"{rate}.db")
        spec = replace(SPEC, name=rate, search=replace(SPEC.search, objectives=(rate,)))
        frontrunner.launch(spec, store=url)
        rows = list(frontrunner.best(top=None, store=url))
        assert {row.recipe.group for row in rows} == {"a100", "h100"}
        winners[rate] = rows[0].recipe.group
        paid = [row.training.price for row in rows if row.training and row.training.price]
        hours = 15e9 / rows[0].standing.tokens_per_s / 3600
        assert paid[0] == pytest.approx(hours * PRICES[rows[0].recipe.group])
        if rate == "tokens_per_cost":
            assert paid == sorted(paid)
    assert winners == {"tokens": "h100", "tokens_per_cost": "a100"}
    found = frontrunner.show(rows[0].recipe_id, store=url)
    text = exported(LocalStore(url), found.recipe_id, to="recipe")
    file = from_text(text)
    assert "group" not in json.loads(text)["content"]["problem"]["cluster"]
    assert (file.problem.cluster, file.recipe.group) == (A100.cluster, "a100")
    assert (
        "group"
        not in json.loads(exported(LocalStore(url), found.recipe_id, to="recipe"))["content"][
            "problem"
        ]["cluster"]
    )
    table = frontrunner.dataframe(store=url)
    assert set(table["group"]) == {"a100", "h100"}


def test_frames_of_other_clusters_have_no_column_of_groups(tmp_path: Path) -> None:
    url = str(tmp_path / "s.db")
    frontrunner.launch(spec_of(tiny(evaluator="simulated")), store=url)
    assert "group" not in frontrunner.dataframe(store=url).columns


def test_advice_weighs_the_groups() -> None:
    found = frontrunner.advise(EXAMPLE)
    (other,) = found.elsewhere
    assert found.chosen is not None
    assert found.chosen.estimate is not None
    assert other.chosen is not None
    assert other.chosen.estimate is not None
    assert [one.estimate.recipe.group for one in (found.chosen, other.chosen)] == ["a100", "h100"]  # type: ignore[union-attr]
    assert found.choices["group"] == "a100"


def dispatched(**groups: Table) -> Table:
    return {
        "backend": "parsl",
        "scheduler": "slurm",
        "walltime": "01:00:00",
        "queue": "all",
        "group": groups,
    }


def test_each_group_requests_nodes_in_its_own_way() -> None:
    spec = grouped(
        evaluator="probe", dispatch=dispatched(large={"constraint": "big", "queue": "long"})
    )
    asked = {
        name: one.dispatch
        for name, one in replace(spec, run_root="/r").probe_setup().by_group.items()
    }
    assert {name: (one.queue, one.constraint) for name, one in asked.items()} == {
        "small": ("all", None),
        "large": ("long", "big"),
    }


def test_a_walltime_of_all_is_needed_only_where_a_group_has_none() -> None:
    own = {"small": {"walltime": "01:00:00"}, "large": {"walltime": "02:00:00"}}
    spec = grouped(evaluator="probe", dispatch=dispatched(**own) | {"walltime": None})
    assert {name: spec.dispatch.of_group(name).walltime_s for name in own} == {
        "small": 3600.0,
        "large": 7200.0,
    }
    with pytest.raises(
        InvalidInput, match=r"group\.small: dispatch\.walltime is missing: expected \"HH:MM:00\""
    ):
        grouped(evaluator="probe", dispatch=dispatched(large=own["large"]) | {"walltime": None})


def test_a_misspelled_name_of_a_group_is_suggested() -> None:
    with pytest.raises(InvalidInput, match=r"cluster\.group\.name is missing") as refused:
        grouped({"nodes": 2, "nam": "a"})
    assert refused.value.hint == "nam is no key of a group: did you mean 'name'?"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: grouped({"name": "a"}, {"name": "a"}),
            r'cluster\.group\.name = "a": expected a name of its own',
        ),
        (
            lambda: grouped({"nodes": 2}),
            r"cluster\.group\.name is missing: expected a name for each group",
        ),
        (lambda: grouped({"name": "a", "nods": 2}), r"group a: unknown key cluster\.nods"),
        (
            lambda: grouped({"name": "a", "group": [{"name": "b"}]}),
            r"cluster\.group = .*: expected tables",
        ),
        (
            lambda: grouped(space={"group": ["b"]}).survey(),
            r'space\.group = "b": expected one of small, large',
        ),
        (
            lambda: spec_of(tiny(space={"group": ["b"]})).survey(),
            r"no entry: the cluster has no groups",
        ),
        (
            lambda: grouped(search={"strategy": "guided", "probe_nodes": 1}),
            r"probe_nodes = 1: expected no entry with",
        ),
        (
            lambda: grouped(search={"objectives": ["tokens_per_cost"]}),
            r"group\.price_per_node_hour beside it",
        ),
        (
            lambda: prepare(grouped(evaluator="probe")),
            r'dispatch\.backend is missing: expected "parsl" or "ray", which get',
        ),
        (
            lambda: grouped(dispatch=dispatched(b={"queue": "x"})),
            r'dispatch\.group = "b": expected one of small, large',
        ),
        (
            lambda: grouped(dispatch=dispatched(large={"walltime": "2h"})),
            r"group\.large: dispatch\.walltime",
        ),
        (
            lambda: grouped(
                dispatch={"backend": "ray", "group": {"large": {"resources": {"big": 1}}}}
            ),
            (
                r"dispatch\.group\.small\.resources is missing: expected an entry: the resource of"
                r" Ray by which"
            ),
        ),
        (
            lambda: frontrunner.scaling(EXAMPLE, [1, 2]),
            r'space\.group = .*: expected one of them, as "a100"',
        ),
    ],
)
def test_what_cannot_work_is_refused_by_name(make: Callable[[], object], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        make()


class Stub:
    """An evaluator that reports what it is given, or has no nodes."""

    measures_here = False

    def __init__(self, *, has_nodes: bool = True) -> None:
        self.orders: list[ProbeOrder] = []
        self.has_nodes, self.is_closed = has_nodes, False

    def start(self, order: ProbeOrder) -> None:
        self.orders.append(order)

    def finished(self, timeout_s: float) -> list[Finished]:
        if not self.has_nodes and self.orders:
            raise NodesUnavailable("none in the queue")
        failure = Failure(kind=FailureKind.OUT_OF_MEMORY, message="too large")
        ended, self.orders = [Finished(token=one.token, outcome=failure) for one in self.orders], []
        return ended

    def withdraw(self, token: str) -> bool:
        return any(one.token == token for one in self.orders)

    def close(self) -> None:
        self.is_closed = True
        raise OSError("closing failed")


def test_a_group_without_nodes_keeps_no_other_from_going_on(tmp_path: Path) -> None:
    groups = {"a100": Stub(), "h100": Stub(has_nodes=False)}
    both = Grouped(groups)  # type: ignore[arg-type]
    for token, name in (("1", "a100"), ("2", "h100")):
        both.start(ProbeOrder(token=token, recipe=of_group(name)[0], run_folder=tmp_path / token))
    assert [one.token for one in both.finished(0.0)] == ["1"]
    with pytest.raises(NodesUnavailable, match="group h100: none in the queue"):
        both.finished(0.0)
    assert both.withdraw("2")
    assert not both.withdraw("1")
    with pytest.raises(OSError, match="closing failed"):
        both.close()
    assert all(one.is_closed for one in groups.values())


def test_configurations_of_other_tools_are_of_one_group(tmp_path: Path) -> None:
    recipe = next(
        one for one in of_group("h100") if one.sharding_name == "zero-1" and one.recompute == "none"
    )
    path = tmp_path / "train.sh"
    path.write_text(tool_named("megatron-lm").render(H100, recipe, ()), encoding="utf-8")
    found = import_config(path, tool="megatron-lm", campaign=EXAMPLE, stated={"group": "h100"})
    assert (found.recipe, found.recipe_id) == (recipe, recipe_id(SPEC.problem, recipe))
    with pytest.raises(InvalidInput, match=r'space\.group = .*: expected one of them, as "a100"'):
        import_config(path, tool="megatron-lm", campaign=EXAMPLE)


def test_constants_are_fitted_to_one_group(tmp_path: Path) -> None:
    url, spec = str(tmp_path / "s.db"), grouped(evaluator="probe")
    with open_store(url) as store:
        create(store, spec, len(spec.survey().recipes))
    with pytest.raises(
        InvalidInput, match=r"cluster is missing: expected a cluster with the device"
    ):
        frontrunner.fit_campaign(store=url)
