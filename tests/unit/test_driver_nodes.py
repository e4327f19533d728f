"""The driver on nodes some of which lose every probe: which recipes are measured, which nodes are
set aside, and how a campaign without a good node ends.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from frontrunner.evaluators.nodes.allocations import MAX_FAILED_STARTS
from frontrunner.results import nodes as nodes_of_campaigns
from frontrunner.results.outcome import POLICIES, FailureKind
from frontrunner.results.states import CampaignState, TrialState
from frontrunner.results.status import status
from frontrunner.search.driver import Conclusion
from frontrunner.views.charts.marks import collect
from frontrunner.views.report import warnings
from frontrunner.views.results import print_status
from support.campaigns import spec_of, tiny
from support.drivers import LEGAL, Campaigns, Recorder
from support.imagined_nodes import World
from support.services import settings, signed_in

RECIPES = spec_of(tiny()).space.survey(spec_of(tiny()).problem).recipes


@pytest.fixture
def drive(campaigns: Campaigns, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run a campaign of recipes of one node, with the nodes of a world."""

    def run(world: World, *, at_a_time: int) -> Conclusion:
        world.install(monkeypatch)
        record, spec = campaigns.create(
            "imagined",
            cluster={"nodes": world.nodes},
            space={"devices": [2]},
            search={"parallel_probes": at_a_time, "strategy": "exhaustive"},
        )
        return campaigns.driver(record, spec, Recorder()).run()

    return run


def states(campaigns: Campaigns) -> dict[str, int]:
    return dict(campaigns.states(campaigns.store.campaign("tiny")))


def nodes_aside(campaigns: Campaigns) -> list[str]:
    return [one.node for one in status(campaigns.store, None).nodes_aside]


@pytest.mark.parametrize("at_a_time", [1, 2, 3])
def test_driver_measures_every_recipe_beside_a_node_that_loses_all_at_once(
    campaigns: Campaigns, drive: Any, at_a_time: int
) -> None:
    world = World(nodes=3, bad={"n1"})
    assert drive(world, at_a_time=at_a_time).state is CampaignState.FINISHED
    assert states(campaigns) == {TrialState.MEASURED: LEGAL}
    assert nodes_aside(campaigns) == ["n1"]
    lost = [order.recipe for order, hosts in world.ran if hosts == ("n1",)]
    assert len(lost) == len(set(lost)) == 2, "two recipes, each once"


@pytest.mark.parametrize("at_a_time", [1, 2])
def test_driver_retries_on_the_other_of_two_nodes(
    campaigns: Campaigns, drive: Any, at_a_time: int
) -> None:
    world = World(nodes=2, bad={"n1"})
    assert drive(world, at_a_time=at_a_time).state is CampaignState.FINISHED
    assert states(campaigns) == {TrialState.MEASURED: LEGAL}
    assert [hosts for _, hosts in world.ran].count(("n1",)) == 2
    assert nodes_aside(campaigns) == ["n1"]


def test_driver_retries_elsewhere_where_no_node_is_ever_set_aside(
    campaigns: Campaigns, drive: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes_of_campaigns, "QUARANTINE_AFTER", 0)
    world = World(nodes=2, bad={"n1"})
    assert drive(world, at_a_time=2).state is CampaignState.FINISHED
    assert nodes_aside(campaigns) == []
    assert states(campaigns) == {TrialState.MEASURED: LEGAL}


@pytest.mark.parametrize("at_a_time", [1, 2])
@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("fresh_nodes", [False, True])
def test_driver_pauses_where_every_node_is_bad(
    campaigns: Campaigns, drive: Any, nodes: int, at_a_time: int, *, fresh_nodes: bool
) -> None:
    world = World(nodes=nodes, bad={"*"}, fresh_nodes=fresh_nodes)
    conclusion = drive(world, at_a_time=at_a_time)
    assert conclusion.state is CampaignState.PAUSED
    assert conclusion.reason.startswith("no nodes: ")
    assert "is set aside since" in conclusion.reason
    assert "2 attempts speak against it, the last: probe" in conclusion.reason
    assert set(states(campaigns)) == {TrialState.QUEUED}, "none is failed"
    assert len(world.allocations) == MAX_FAILED_STARTS


def test_status_page_and_report_have_a_line_for_three_nodes_that_are_set_aside(
    campaigns: Campaigns, drive: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = ("n1", "n2", "n3", "n4", "n5")
    drive(World(nodes=6, bad=bad), at_a_time=6)
    found = status(campaigns.store, None)
    assert sorted(nodes_aside(campaigns)) == list(bad)
    print_status(found)
    lines = [line for line in capsys.readouterr().out.splitlines() if "avoided" in line]
    assert len(lines) == 4
    assert lines[3].split() == ["avoided", "set", "aside", "as", "well:", "2", "more"]
    with signed_in(settings(tmp_path), accept="text/html") as client:
        page = client.get("/campaigns/tiny").text
    survey = spec_of(tiny(space={"devices": [2]})).survey()
    in_report = list(warnings(collect(campaigns.store, found.campaign, survey)))[:4]
    for line in (*in_report[:3], "Set aside as well: 2 more."):
        assert line in page
        assert line in in_report
    assert in_report[0].startswith("Node n")


def test_driver_requests_nodes_as_long_as_some_measure(campaigns: Campaigns, drive: Any) -> None:
    world = World(nodes=1, fresh_nodes=True, lasts=1)
    assert drive(world, at_a_time=1).state is CampaignState.FINISHED
    assert states(campaigns) == {TrialState.MEASURED: LEGAL}
    assert len(world.allocations) == LEGAL > MAX_FAILED_STARTS


@pytest.mark.parametrize("after_step", [False, True])
@pytest.mark.parametrize("at_a_time", [1, 3])
def test_driver_fails_a_recipe_that_every_node_loses_and_goes_on(
    campaigns: Campaigns, drive: Any, at_a_time: int, *, after_step: bool
) -> None:
    """The first recipes show that the nodes are good."""
    world = World(nodes=2, deadly=RECIPES[4], after_step=after_step)
    conclusion = drive(world, at_a_time=at_a_time)
    assert conclusion.state is CampaignState.FINISHED, conclusion.reason
    assert states(campaigns) == {TrialState.MEASURED: LEGAL - 1, TrialState.FAILED: 1}
    tried_on = [hosts for order, hosts in world.ran if order.recipe == world.deadly]
    assert tried_on[:2] in ([("n1",), ("n2",)], [("n2",), ("n1",)])
    most = POLICIES[FailureKind.LOST].max_attempts
    assert len(tried_on) == (most if after_step else most + 2)
    assert nodes_aside(campaigns) == []
