"""One driver a campaign: leases, and the fencing of drivers that lost theirs."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from frontrunner.results.process_identity import this_host
from frontrunner.results.provenance import collect
from frontrunner.results.records import Campaign
from frontrunner.results.states import CampaignState
from frontrunner.results.status import active_drivers, status
from frontrunner.results.store import Store
from frontrunner.results.writer import CampaignWriter
from frontrunner.spaces.errors import AlreadyDriven
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
    def test_a_second_driver_is_refused_by_name(
        self, store: Store, campaign: Campaign, writer: CampaignWriter
    ) -> None:
        with pytest.raises(
            AlreadyDriven, match=rf"first is driven by {FOREIGN_HOST}:1 since 2026-03-01"
        ) as refused:
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

    def test_a_released_lease_is_free_at_once(
        self, store: Store, campaign: Campaign, writer: CampaignWriter
    ) -> None:
        writer.set_state(CampaignState.RUNNING, reason="start")
        writer.release(CampaignState.STOPPED, reason="asked to")
        lease_elsewhere(store, campaign, pid=2)

    def test_a_holder_that_died_on_this_host_is_followed_at_once(
        self, store: Store, campaign: Campaign
    ) -> None:
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        here = this_host()
        store.acquire_lease(campaign.id, host=here, pid=child.pid, duration_s=3600)
        with pytest.raises(AlreadyDriven):
            store.acquire_lease(campaign.id, host=here, pid=os.getpid())
        child.kill()
        os.waitid(
            os.P_PID, child.pid, os.WEXITED | os.WNOWAIT
        )  # dead, but still in the process table
        assert store.acquire_lease(campaign.id, host=here, pid=os.getpid()).epoch == 2
        child.communicate()

    def test_campaigns_are_leased_one_by_one(self, store: Store, writer: CampaignWriter) -> None:
        lease_elsewhere(store, create(store, "second"), pid=2)
        writer.event("undisturbed")


class TestHolders(StoreContract):
    """A holder is the process that the lease was given to, and no other that has its id."""

    @pytest.fixture
    def holder(self, store: Store, campaign: Campaign) -> Iterator[subprocess.Popen[bytes]]:
        """A process of this host that holds the campaign's lease."""
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        try:
            store.acquire_lease(campaign.id, host=this_host(), pid=child.pid, duration_s=30)
            yield child
        finally:
            child.kill()
            child.communicate()

    def test_it_is_known_by_when_it_began_under_which_start_of_the_machine(
        self, store: Store, campaign: Campaign, holder: subprocess.Popen[bytes]
    ) -> None:
        store.acquire_lease(campaign.id, host=this_host(), pid=os.getpid(), take_over=True)
        rows = in_store(
            store, "SELECT campaign_id, epoch, boot_id, started_ticks FROM holders ORDER BY epoch"
        )
        since_boot_s = time.clock_gettime(time.CLOCK_BOOTTIME)
        for epoch, row in enumerate(rows, start=1):
            assert row[:3] == (
                campaign.id,
                epoch,
                Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
            )
            assert 0 < row[3] / os.sysconf("SC_CLK_TCK") <= since_boot_s
        assert rows[0][3] > rows[1][3], "the child began later than this process"

    def test_a_process_that_was_given_its_id_holds_nothing(
        self, store: Store, campaign: Campaign, holder: subprocess.Popen[bytes]
    ) -> None:
        assert status(store, None).driver_is_live
        in_store(store, "UPDATE holders SET started_ticks = started_ticks - 1")
        assert not status(store, None).driver_is_live
        assert store.acquire_lease(campaign.id, host=this_host(), pid=os.getpid()).epoch == 2

    def test_this_process_holds_no_lease_of_one_that_had_its_id(
        self, store: Store, campaign: Campaign
    ) -> None:
        """As the only driver of a container that was started again."""
        store.acquire_lease(campaign.id, host=this_host(), pid=os.getpid())
        with pytest.raises(AlreadyDriven):
            store.acquire_lease(campaign.id, host=this_host(), pid=os.getpid())
        in_store(store, "UPDATE holders SET started_ticks = started_ticks - 1")
        assert store.acquire_lease(campaign.id, host=this_host(), pid=os.getpid()).epoch == 2

    def test_one_on_another_machine_of_the_same_name_holds_its_lease_for_its_time(
        self,
        store: Store,
        campaign: Campaign,
        holder: subprocess.Popen[bytes],
        clock: SettableClock,
    ) -> None:
        in_store(store, "UPDATE holders SET boot_id = 'another'")
        (seen,) = active_drivers(store)
        assert (seen.is_live, seen.is_here, seen.is_certain) == (True, False, True)
        clock.move(31)
        assert not status(store, None).driver_is_live, "the process with its id here is another"

    def test_an_absent_one_under_another_boot_id_is_gone_only_where_one_machine_has_the_store(
        self,
        store: Store,
        campaign: Campaign,
        holder: subprocess.Popen[bytes],
        clock: SettableClock,
    ) -> None:
        """An SQLite store's machine was started again; a server's may be another one of the same
        name.
        """
        in_store(store, "UPDATE holders SET boot_id = 'another'")
        holder.kill()
        holder.wait()
        assert status(store, None).driver_is_live == store.database.is_server
        clock.move(31)
        assert store.acquire_lease(campaign.id, host=this_host(), pid=os.getpid()).epoch == 2

    def test_leases_of_earlier_versions_are_judged_by_the_process_id(
        self, store: Store, campaign: Campaign, holder: subprocess.Popen[bytes]
    ) -> None:
        in_store(store, "DELETE FROM holders")
        (seen,) = active_drivers(store)
        assert (seen.is_live, seen.is_here, seen.is_certain) == (True, True, False)
        holder.kill()
        holder.wait()
        assert not status(store, None).driver_is_live

    def test_what_is_known_of_one_holder_is_not_taken_for_the_next(
        self, store: Store, campaign: Campaign, holder: subprocess.Popen[bytes]
    ) -> None:
        """An earlier version, which knows nothing of the table, gives out the next lease to another
        process.
        """
        in_store(store, f"UPDATE campaigns SET epoch = epoch + 1, driver_pid = {os.getpid()}")
        holder.kill()
        holder.wait()
        assert status(store, None).driver_is_live
        assert not active_drivers(store)[0].is_certain


def in_store(store: Store, sql: str) -> list[tuple[Any, ...]]:
    """What plain SQL says, or does, past our code."""
    with store.database.write() as connection:
        done = connection.exec_driver_sql(sql)
        return [tuple(row) for row in done] if done.returns_rows else []


WRITES: dict[str, Callable[[CampaignWriter, Store, Campaign], None]] = {
    "renew": lambda writer, *_: writer.renew(),
    "release": lambda writer, *_: writer.release(CampaignState.PAUSED, reason="x"),
    "set_state": lambda writer, *_: writer.set_state(CampaignState.PAUSED, reason="x"),
    "propose": lambda writer, *_: str(writer.propose("bbbb", RECIPE)) and None,
    "repeat": lambda writer, store, c: str(writer.repeat(store.trials(c.id)[2])) and None,
    "start_attempt": lambda writer, store, c: (
        str(writer.start_attempt(store.trials(c.id)[1], run_folder="x")) and None
    ),
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
        assert public - {"together", "atomically"} == set(WRITES)

    @pytest.mark.parametrize("write", WRITES)
    @pytest.mark.parametrize("how", ["taken over", "released"])
    def test_a_driver_without_its_lease_writes_nothing(
        self, store: Store, campaign: Campaign, write: str, how: str
    ) -> None:
        stale = store.drive(lease_elsewhere(store, campaign))
        stale.set_state(CampaignState.RUNNING, reason="start")
        stale.start_attempt(begin(stale), run_folder="1")
        begin(stale, "cccc")
        stale.finish_attempt(
            stale.start_attempt(begin(stale, "dddd"), run_folder="2"), measurement(), retry=False
        )
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
        assert len(store.final_outcomes(campaign.id)) == 1
        assert store.campaign(None).node_seconds_spent == 3.0

    def test_a_writer_cannot_finish_an_attempt_of_another_campaign(
        self, store: Store, campaign: Campaign, writer: CampaignWriter
    ) -> None:
        attempt = writer.start_attempt(begin(writer), run_folder="1")
        other = store.drive(lease_elsewhere(store, create(store, "second")))
        other.finish_attempt(attempt, measurement(), retry=False)
        assert store.open_attempts(campaign.id) == [attempt]
