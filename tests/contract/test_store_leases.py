"""One driver a campaign: leases, and the fencing of drivers that lost theirs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from frontrunner.results.holders import this_host
from frontrunner.results.provenance import collect
from frontrunner.results.records import Campaign
from frontrunner.results.states import CampaignState
from frontrunner.results.status import status
from frontrunner.results.store import Store
from frontrunner.results.writer import CampaignWriter
from frontrunner.spaces.errors import AlreadyDriven, NotFound
from support.store_contract import (
    FOREIGN_HOST,
    RECIPE,
    SettableClock,
    StoreContract,
    begin,
    create,
    everything,
    lease_elsewhere,
    measurement,
)


class TestLeases(StoreContract):
    def test_a_second_driver_is_refused_by_name(self, store: Store, campaign: Campaign, writer: CampaignWriter) -> None:
        with pytest.raises(AlreadyDriven, match=rf"first is driven by {FOREIGN_HOST}:1 since 2026-03-01") as refused:
            lease_elsewhere(store, campaign, pid=2)
        assert "--take-over" in str(refused.value.hint)
        writer.event("still writing")

    def test_a_lease_ends_with_its_time_and_each_renewal_moves_the_end(
        self, store: Store, campaign: Campaign, clock: SettableClock
    ) -> None:
        writer = store.drive(lease_elsewhere(store, campaign))
        clock.move(25)
        writer.renew()
        clock.move(25)
        assert status(store, None).driver_is_live
        with pytest.raises(AlreadyDriven):
            lease_elsewhere(store, campaign, pid=2)
        clock.move(6)
        assert not status(store, None).driver_is_live
        assert lease_elsewhere(store, campaign, pid=2).epoch == 2

    def test_a_clock_set_back_keeps_the_lease_and_its_writes(
        self, store: Store, campaign: Campaign, writer: CampaignWriter, clock: SettableClock
    ) -> None:
        clock.move(-3600)
        with pytest.raises(AlreadyDriven):
            lease_elsewhere(store, campaign, pid=2)
        writer.renew()
        writer.event("written")

    def test_a_clock_set_forward_is_made_good_by_the_next_renewal(
        self, store: Store, campaign: Campaign, writer: CampaignWriter, clock: SettableClock
    ) -> None:
        clock.move(3600)
        writer.renew()
        with pytest.raises(AlreadyDriven):
            lease_elsewhere(store, campaign, pid=2)

    def test_a_released_lease_is_free_at_once(self, store: Store, campaign: Campaign, writer: CampaignWriter) -> None:
        writer.set_state(CampaignState.RUNNING, reason="start")
        writer.release(CampaignState.STOPPED, reason="asked to")
        lease_elsewhere(store, campaign, pid=2)

    def test_a_holder_that_died_on_this_host_is_followed_at_once(self, store: Store, campaign: Campaign) -> None:
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        here = this_host()
        store.acquire_lease(campaign.id, host=here, pid=child.pid, duration_s=3600)
        with pytest.raises(AlreadyDriven):
            store.acquire_lease(campaign.id, host=here, pid=os.getpid())
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # dead, but still in the process table
        assert store.acquire_lease(campaign.id, host=here, pid=os.getpid()).epoch == 2
        child.communicate()

    def test_campaigns_are_leased_one_by_one(self, store: Store, writer: CampaignWriter) -> None:
        lease_elsewhere(store, create(store, "second"), pid=2)
        writer.event("undisturbed")

    def test_there_is_no_lease_without_a_campaign(self, store: Store) -> None:
        with pytest.raises(NotFound):
            store.acquire_lease(99, host="h", pid=1)


WRITES: dict[str, Callable[[CampaignWriter, Store, Campaign], None]] = {
    "renew": lambda writer, *_: writer.renew(),
    "release": lambda writer, *_: writer.release(CampaignState.PAUSED, reason="x"),
    "set_state": lambda writer, *_: writer.set_state(CampaignState.PAUSED, reason="x"),
    "propose": lambda writer, *_: str(writer.propose("bbbb", RECIPE)) and None,
    "repeat": lambda writer, store, c: str(writer.repeat(store.trials(c.id)[2])) and None,
    "start_attempt": lambda writer, store, c: str(writer.start_attempt(store.trials(c.id)[1], run_folder="x")) and None,
    "finish_attempt": lambda writer, store, c: writer.finish_attempt(
        store.open_attempts(c.id)[0], measurement(), retry=False
    ),
    "event": lambda writer, *_: writer.event("x"),
    "add_driver_seconds": lambda writer, *_: writer.add_driver_seconds(1.0),
    "record_provenance": lambda writer, *_: writer.record_provenance(collect("cpu")),
}


class TestFencing(StoreContract):
    def test_every_write_of_the_writer_is_listed(self) -> None:
        public = {name for name in vars(CampaignWriter) if not name.startswith("_")}
        assert public - {"together"} == set(WRITES)

    @pytest.mark.parametrize("write", WRITES)
    @pytest.mark.parametrize("how", ["taken over", "released"])
    def test_a_driver_without_its_lease_writes_nothing(
        self, store: Store, campaign: Campaign, write: str, how: str
    ) -> None:
        stale = store.drive(lease_elsewhere(store, campaign))
        stale.set_state(CampaignState.RUNNING, reason="start")
        stale.start_attempt(begin(stale), run_folder="1")
        begin(stale, "cccc")
        stale.finish_attempt(stale.start_attempt(begin(stale, "dddd"), run_folder="2"), measurement(), retry=False)
        if how == "released":
            stale.release(CampaignState.PAUSED, reason="x")
        else:
            lease_elsewhere(store, campaign, take_over=True, pid=2)
        before = everything(store, campaign)
        with pytest.raises(AlreadyDriven, match="first"):
            WRITES[write](stale, store, campaign)
        assert everything(store, campaign) == before

    def test_the_successor_finishes_what_the_first_began_and_it_counts_once(
        self, store: Store, campaign: Campaign, writer: CampaignWriter
    ) -> None:
        attempt = writer.start_attempt(begin(writer), run_folder="1")
        successor = store.drive(lease_elsewhere(store, campaign, take_over=True, pid=2))
        (left,) = store.open_attempts(campaign.id)
        successor.finish_attempt(left, measurement(), retry=False)
        with pytest.raises(AlreadyDriven, match=f"taken over by {FOREIGN_HOST}:2"):
            writer.finish_attempt(attempt, measurement(), retry=False)
        assert len(store.told(campaign.id)) == 1
        assert store.campaign(None).node_seconds_spent == 3.0

    def test_a_writer_cannot_finish_an_attempt_of_another_campaign(
        self, store: Store, campaign: Campaign, writer: CampaignWriter
    ) -> None:
        attempt = writer.start_attempt(begin(writer), run_folder="1")
        other = store.drive(lease_elsewhere(store, create(store, "second")))
        other.finish_attempt(attempt, measurement(), retry=False)
        assert store.open_attempts(campaign.id) == [attempt]
