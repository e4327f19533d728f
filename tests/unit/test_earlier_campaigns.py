"""Campaigns of earlier versions whose features are gone: they open, are listed and are ranked."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from frontrunner.api import best, campaigns, history, resume, status
from frontrunner.results.states import CampaignState
from frontrunner.views.history import noticed

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
