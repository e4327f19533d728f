"""What a campaign's page says while a driver runs, and how often its figures are drawn anew."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from frontrunner.results.predictions import OUTLOOK
from frontrunner.results.states import CampaignState
from frontrunner.results.status import status
from frontrunner.results.store import open_store
from frontrunner.search.budget import IN_A_ROW, STOPPING, StopRule
from frontrunner.search.strategy import Outlook
from frontrunner.server.pages.campaigns import (
    CHARTS_AT_ONCE,
    CHARTS_EVERY_S,
    campaign_view,
    charts_version,
)
from frontrunner.spaces.document import recipe_id
from support.page_stores import page_store


def test_campaign_view_shows_what_a_pausing_driver_waits_for(tmp_path: Path) -> None:
    page_store(tmp_path)
    with open_store(str(tmp_path / "store.db")) as store:
        campaign, spec = store.campaign("first"), campaign_view(store, "first")["spec"]
        writer = store.drive(store.acquire_lease(campaign.id, host="h", pid=1))
        writer.set_state(CampaignState.RUNNING, reason="")
        assert campaign_view(store, "first")["ending"] == ""
        recipe = spec.survey().recipes[5]
        writer.start_attempt(
            writer.propose(recipe_id(spec.problem, recipe), recipe), run_folder="/runs/1"
        )
        writer.event(STOPPING, leaves="paused", probes_to_finish=1)
        assert campaign_view(store, "first")["ending"] == "pausing, 1 probe to finish"
        writer.release(CampaignState.PAUSED, reason="")
        assert campaign_view(store, "first")["ending"] == ""
        store.acquire_lease(campaign.id, host="h", pid=1)
        assert campaign_view(store, "first")["ending"] == "", "another driver was told nothing"


def test_campaign_view_reserves_rows_while_driven(tmp_path: Path) -> None:
    page_store(tmp_path)
    with open_store(str(tmp_path / "store.db")) as store:
        assert campaign_view(store, "first")["rows_ahead"] == 0
        store.acquire_lease(store.campaign("first").id, host="h", pid=1)
        view = campaign_view(store, "first")
        assert (len(view["ranking"]), view["rows_ahead"]) == (3, 7)


def test_campaign_view_shows_the_outlook_once(tmp_path: Path) -> None:
    page_store(tmp_path)
    with open_store(str(tmp_path / "store.db")) as store:
        writer = store.drive(store.acquire_lease(store.campaign("first").id, host="h", pid=1))
        writer.set_state(CampaignState.RUNNING, reason="")
        writer.event(
            OUTLOOK,
            expected_improvement=0.004,
            gap=0.0,
            gap_at_most=0.1,
            of_front=False,
            measured=3,
        )
        assert campaign_view(store, "first")["outlook"].startswith(
            "the next probe is expected to gain 0.4 %"
        )
        rule = StopRule(0.01)
        for _ in range(IN_A_ROW):
            rule.hear(Outlook(expected_improvement=0.004, gap=0.0, gap_at_most=0.1), measured=3)
        writer.release(CampaignState.FINISHED, reason=rule.why_stop(()) or "")
        assert campaign_view(store, "first")["outlook"] == ""


def test_charts_version_changes_per_outcome_and_later_per_interval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page_store(tmp_path)
    with open_store(str(tmp_path / "store.db")) as store:
        found = status(store, "first")
    now_s = 0.0
    monkeypatch.setattr("frontrunner.server.pages.campaigns.time.time", lambda: now_s)

    def version(outcomes: int, *, is_live: bool = True, spent_s: float = 0.0) -> str:
        campaign = replace(found.campaign, outcomes=outcomes, node_seconds_spent=spent_s)
        return charts_version(campaign, is_live)

    assert len({version(outcomes) for outcomes in range(CHARTS_AT_ONCE + 1)}) == CHARTS_AT_ONCE + 1
    assert version(19) == version(20)
    before, now_s = version(20), float(CHARTS_EVERY_S)
    assert version(20) != before
    assert version(20, is_live=False) != version(21, is_live=False), "its end shows at once"
    assert version(20, is_live=False, spent_s=6.4) != version(20, is_live=False), (
        "a lost attempt costs, too"
    )
