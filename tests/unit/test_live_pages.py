"""What a campaign's page says while a driver runs, and how often its figures are drawn anew."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from frontrunner.results.predictions import OUTLOOK
from frontrunner.results.states import CampaignState
from frontrunner.results.store import open_store
from frontrunner.search.stopping import IN_A_ROW, STOPPING, StopRule
from frontrunner.search.strategy import Outlook
from frontrunner.server.pages.campaigns import campaign_view
from frontrunner.server.pages.figures import EARLY, Editions
from frontrunner.spaces.document import recipe_id
from support.page_stores import page_store


def test_a_driver_that_was_told_to_pause_says_what_it_waits_for(tmp_path: Path) -> None:
    page_store(tmp_path)
    with open_store(str(tmp_path / "store.db")) as store:
        campaign, spec = store.campaign("first"), campaign_view(store, "first").spec
        writer = store.drive(store.acquire_lease(campaign.id, host="h", pid=1))
        writer.set_state(CampaignState.RUNNING, reason="")
        assert campaign_view(store, "first").ending == ""
        recipe = spec.survey().recipes[5]
        writer.start_attempt(writer.propose(recipe_id(spec.problem, recipe), recipe), run_folder="/runs/1")
        writer.event(STOPPING, leaves="paused", probes_to_finish=1)
        assert campaign_view(store, "first").ending == "pausing, 1 probe to finish"
        writer.release(CampaignState.PAUSED, reason="")
        assert campaign_view(store, "first").ending == ""
        store.acquire_lease(campaign.id, host="h", pid=1)
        assert campaign_view(store, "first").ending == "", "another driver was told nothing"


def test_a_driven_campaign_keeps_room_for_the_rows_that_may_come(tmp_path: Path) -> None:
    page_store(tmp_path)
    with open_store(str(tmp_path / "store.db")) as store:
        assert campaign_view(store, "first").rows_ahead == 0
        store.acquire_lease(store.campaign("first").id, host="h", pid=1)
        view = campaign_view(store, "first")
        assert (len(view.ranking), view.rows_ahead) == (3, 7)


def test_what_is_left_to_gain_is_said_once(tmp_path: Path) -> None:
    page_store(tmp_path)
    with open_store(str(tmp_path / "store.db")) as store:
        writer = store.drive(store.acquire_lease(store.campaign("first").id, host="h", pid=1))
        writer.set_state(CampaignState.RUNNING, reason="")
        writer.event(OUTLOOK, expected_improvement=0.004, gap=0.0, gap_at_most=0.1, of_front=False, measured=3)
        assert campaign_view(store, "first").outlook.startswith("the next probe is expected to gain 0.4 %")
        rule = StopRule(0.01)
        for _ in range(IN_A_ROW):
            rule.hear(Outlook(expected_improvement=0.004, gap=0.0, gap_at_most=0.1), measured=3)
        writer.release(CampaignState.FINISHED, reason=rule.why_stop(()) or "")
        assert campaign_view(store, "first").outlook == ""


def test_figures_of_a_driven_campaign_change_every_fifteen_seconds(tmp_path: Path) -> None:
    now_s = 0.0
    editions = Editions(clock=lambda: now_s)
    page_store(tmp_path)
    with open_store(str(tmp_path / "store.db")) as store:
        campaign = store.campaign("first")

    def shown(outcomes: int, *, is_live: bool = True) -> int:
        return editions.of(replace(campaign, outcomes=outcomes), is_live=is_live)[0]

    assert [shown(outcomes) for outcomes in range(EARLY + 1)] == list(range(EARLY + 1))  # the first ones at once
    now_s = 14.9
    assert shown(19) == 10
    now_s = 15.0
    assert shown(19) == 19
    assert shown(21, is_live=False) == 21  # its end shows at once
    cancelled = replace(campaign, outcomes=11, node_seconds_spent=campaign.node_seconds_spent + 6.4)
    assert editions.of(cancelled, is_live=False)[1] == cancelled.node_seconds_spent  # what ran then is no outcome
