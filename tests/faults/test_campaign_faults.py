"""Campaigns on full disks and beside a foreign lock: they stop or wait, say why, and lose
nothing.
"""

from __future__ import annotations

import sqlite3
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from frontrunner.results.records import Campaign
from frontrunner.results.states import CampaignState
from frontrunner.results.store import BUSY_TIMEOUT_S, Store, open_store
from frontrunner.search.attempts import LEASE_S
from frontrunner.search.spec import CampaignSpec
from frontrunner.spaces.errors import StoreUnusable
from support.drivers import LEGAL, Campaigns, Recorder
from support.limits import fill, small_disk

ROOM = 2**20
"""Too little to begin a probe with, and enough for the files of one that has begun."""


@contextmanager
def campaigns_in(store_folder: Path, runs: Path, **opened: Any) -> Iterator[Campaigns]:
    with open_store(str(store_folder / "store.db"), **opened) as store:
        yield Campaigns(store, runs)


def check_complete(store: Store, record: Campaign) -> None:
    """Every legal recipe was measured, once, in as many attempts as the store has outcomes."""
    trials = store.trials(record.id)
    assert Counter(str(trial.state) for trial in trials) == {"measured": LEGAL}
    assert len(store.final_outcomes(record.id)) == LEGAL == len({trial.recipe for trial in trials})
    assert store.open_attempts(record.id) == []


def after_outcomes(count: int, act: Any) -> Recorder:
    """A listener that acts once, when so many outcomes are stored."""
    recorder = Recorder()

    def on_ended(_view: object, _ended: object) -> None:
        if len(recorder.endings) == count:
            act()

    recorder.on_ended = on_ended
    return recorder


def test_a_full_disk_of_run_folders_pauses_a_campaign_until_there_is_room(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", mib=24) as disk, campaigns_in(tmp_path, disk) as campaigns:
        record, spec = campaigns.create()
        full = after_outcomes(3, lambda: fill(disk, leave_bytes=ROOM))
        paused = campaigns.driver(record, spec, full).run()
        assert paused.state is CampaignState.PAUSED
        assert (
            paused.reason
            == f"the disk of the run folder {spec.run_folder} is full: 1.0 MiB are free"
        )
        assert len(campaigns.store.final_outcomes(record.id)) == 3
        assert campaigns.store.open_attempts(record.id) == [], "no attempt was begun for nothing"
        (disk / "ballast").unlink()
        assert campaigns.driver(record, spec).run().state is CampaignState.FINISHED
        check_complete(campaigns.store, record)


def test_a_disk_that_fills_up_within_a_probe_pauses_the_campaign_and_costs_it_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "frontrunner.evaluators.runs.files.MIN_FREE_BYTES", 0
    )  # as where others fill it between two looks
    with small_disk(tmp_path / "disk", mib=8) as disk, campaigns_in(tmp_path, disk) as campaigns:
        record, spec = campaigns.create()
        paused = campaigns.driver(record, spec, after_outcomes(3, lambda: fill(disk))).run()
        assert paused.state is CampaignState.PAUSED
        assert "No space left on device" in paused.reason
        assert len(campaigns.store.final_outcomes(record.id)) == 3
        (disk / "ballast").unlink()
        assert campaigns.driver(record, spec).run().state is CampaignState.FINISHED
        check_complete(campaigns.store, record)


def test_a_store_whose_disk_is_full_stops_its_driver_and_loses_no_outcome(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", mib=8) as disk:
        with campaigns_in(disk, tmp_path / "runs") as campaigns:
            record, spec = campaigns.create()
            with pytest.raises(StoreUnusable, match="what was stored before is safe") as stopped:
                campaigns.driver(record, spec, after_outcomes(3, lambda: fill(disk))).run()
            assert "for a campaign that it stopped: frontrunner resume" in str(stopped.value.hint)
        (disk / "ballast").unlink()
        resume_complete(disk, tmp_path / "runs", record, spec)


def resume_complete(store_folder: Path, runs: Path, record: Campaign, spec: CampaignSpec) -> None:
    with campaigns_in(store_folder, runs) as campaigns:
        assert campaigns.driver(record, spec).run(take_over=True).state is CampaignState.FINISHED
        check_complete(campaigns.store, record)


class Lock:
    """The write lock of a store in another program's hands: taken when asked, given back after so
    many seconds.
    """

    def __init__(self, path: Path, seconds: float) -> None:
        self.was_given_back = False
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._release = threading.Timer(seconds, self._give_back)

    def take(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")
        self._release.start()

    def _give_back(self) -> None:
        self.was_given_back = True
        self._connection.execute("ROLLBACK")

    def close(self) -> None:
        self._release.join()
        self._connection.close()


@pytest.mark.parametrize("seconds", [0.8, LEASE_S + 3.0])
def test_a_running_driver_waits_for_another_programs_lock(tmp_path: Path, seconds: float) -> None:
    assert BUSY_TIMEOUT_S > 2 * LEASE_S
    with campaigns_in(tmp_path, tmp_path / "runs") as campaigns:
        record, spec = campaigns.create()
        with closing(Lock(tmp_path / "store.db", seconds)) as lock:
            done = campaigns.driver(record, spec, after_outcomes(3, lock.take)).run()
            assert lock.was_given_back
        assert done.state is CampaignState.FINISHED
        check_complete(campaigns.store, record)


def test_a_lock_held_for_too_long_stops_the_driver_and_loses_no_outcome(tmp_path: Path) -> None:
    with campaigns_in(tmp_path, tmp_path / "runs", busy_timeout_s=0.3) as campaigns:
        record, spec = campaigns.create()
        with closing(Lock(tmp_path / "store.db", 1.0)) as lock:
            with pytest.raises(StoreUnusable, match="another program held the write lock"):
                campaigns.driver(record, spec, after_outcomes(3, lock.take)).run()
            assert len(campaigns.store.final_outcomes(record.id)) == 3
    resume_complete(tmp_path, tmp_path / "runs", record, spec)
