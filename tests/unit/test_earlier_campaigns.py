"""Campaigns of earlier versions whose features are gone: they open, are listed and are ranked."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from frontrunner.api import (
    best,
    campaigns,
    check_store,
    dataframe,
    export,
    history,
    launch,
    measure,
    report,
    resume,
    show,
    status,
)
from frontrunner.results.records import SEVERAL_NODE_TYPES
from frontrunner.results.states import CampaignState
from frontrunner.spaces.errors import InvalidInput
from frontrunner.views.history import noticed
from frontrunner.views.results import print_status
from support.campaigns import tiny
from support.services import settings, signed_in

DUMP = Path(__file__).parent.parent / "stores" / "pair-and-groups.sql"
"""A store with the two campaigns of `search.probe_nodes`, and one on several node types."""


@pytest.fixture
def store(tmp_path: Path) -> str:
    path = tmp_path / "store.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(DUMP.read_text())
    return str(path)


def test_campaigns_of_a_pair_are_ordinary_campaigns(store: str) -> None:
    assert {"tiny", "tiny-small"} <= {summary.name for summary in campaigns(store=store)}
    for name, measured in (("tiny-small", 3), ("tiny", 2)):
        assert status(name, store=store).campaign.state is CampaignState.FINISHED
        assert len(best(name, store=store)) == measured
    said = [noticed(event.kind, event.data) for event in history("tiny", store=store).items]
    assert sum(line.startswith("predicted from fewer nodes: ") for line in said) == 4


def test_larger_campaign_of_a_pair_goes_on_by_itself(store: str, tmp_path: Path) -> None:
    done = resume("tiny", store=store, budget={"probes": 3})
    assert done.measured == 3


def test_campaign_on_several_node_types_is_listed_and_ranked_with_its_node_types(
    store: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "grouped" in {summary.name for summary in campaigns(store=store)}
    ranking = best("grouped", store=store)
    assert {row.recipe.describe().rpartition(" ")[2] for row in ranking} == {
        "group=h100",
        "group=a100",
    }
    speeds = [row.standing.tokens_per_s for row in ranking]
    assert speeds == sorted(speeds, reverse=True)
    assert show(ranking[0].recipe_id, store=store).recipe == ranking[0].recipe
    assert len(dataframe("grouped", store=store)) == 5
    print_status(status("grouped", store=store))
    assert SEVERAL_NODE_TYPES in " ".join(capsys.readouterr().out.split())


def test_campaign_on_several_node_types_is_refused_by_all_that_work_on_its_cluster(
    store: str,
) -> None:
    recipe = best("grouped", store=store)[0].recipe_id
    for work in (
        lambda: resume("grouped", store=store),
        lambda: measure(confirm=1, campaign="grouped", store=store),
        lambda: export(recipe, to="recipe", store=store),
        lambda: report("grouped", store=store),
    ):
        with pytest.raises(
            InvalidInput, match="campaign grouped is on several node types"
        ) as refused:
            work()
        assert "compare" in str(refused.value.hint)


def test_service_lists_a_campaign_on_several_node_types_and_its_page_says_why_not(
    store: str, tmp_path: Path
) -> None:
    with signed_in(settings(tmp_path)) as client:
        assert "grouped" in client.get("/").text
        page = client.get("/campaigns/grouped")
    assert page.status_code == 422
    assert "campaign grouped is on several node types" in page.text


def test_new_campaign_starts_beside_an_earlier_one_on_several_node_types(store: str) -> None:
    done = launch(tiny(name="new", evaluator="simulated", budget={"probes": 2}), store=store)
    assert done.measured == 2


def test_store_check_knows_earlier_campaigns(store: str) -> None:
    assert check_store(store).findings == ()
