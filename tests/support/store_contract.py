"""A store of each kind of database with a driven campaign in it, and outcomes to record there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from frontrunner.results.outcome import Failure, FailureKind, Measurement
from frontrunner.results.provenance import Provenance
from frontrunner.results.records import Campaign, Lease, Trial
from frontrunner.results.store import Store, open_store
from frontrunner.results.writer import CampaignWriter
from frontrunner.spaces.recipe import Recipe
from frontrunner.spaces.sharding import Sharding
from support.postgresql import Server

RECIPE = Recipe(
    devices=8,
    tensor_parallel=2,
    pipeline_parallel=2,
    schedule="1f1b",
    micro_batch_seqs=2,
    accumulation=4,
    sharding=Sharding(optimizer=2),
)
RAN_WITH = Provenance(
    versions={"torch": "2.8"},
    host="here",
    platform="Linux",
    device="test",
    git_revision=None,
    git_dirty=None,
    command_line=("frontrunner", "launch", "kept.toml"),
)
START = datetime(2026, 3, 1, 12, tzinfo=UTC)
FOREIGN_HOST = "another-host.example"

KINDS = ("sqlite", "postgresql")
"""The kinds of database that may hold a store."""


class SettableClock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.moment = START

    def __call__(self) -> datetime:
        return self.moment

    def move(self, seconds: float) -> None:
        self.moment += timedelta(seconds=seconds)


class StoreContract:
    """Fixtures for test classes that every kind of store must pass."""

    @pytest.fixture(params=KINDS)
    def url(self, request: pytest.FixtureRequest, tmp_path: Path) -> str:
        """A fresh, empty store's."""
        if request.param == "sqlite":
            return f"sqlite:///{tmp_path / 'store.db'}"
        server: Server = request.getfixturevalue("postgresql_server")
        return server.new_store()

    @pytest.fixture
    def clock(self) -> SettableClock:
        return SettableClock()

    @pytest.fixture
    def store(self, url: str, clock: SettableClock) -> Iterator[Store]:
        with open_store(url, clock=clock) as opened:
            yield opened

    @pytest.fixture
    def campaign(self, store: Store) -> Campaign:
        return create(store, "first")

    @pytest.fixture
    def writer(self, store: Store, campaign: Campaign) -> CampaignWriter:
        return store.drive(lease_elsewhere(store, campaign))


def create(store: Store, name: str) -> Campaign:
    return store.create_campaign(
        name=name,
        spec_json=json.dumps({"search": {"strategy": "random"}}),
        legal_recipes=12,
        problem_summary={"model": "tiny", "devices": 8},
    )


def lease_elsewhere(
    store: Store, campaign: Campaign, *, take_over: bool = False, pid: int = 1
) -> Lease:
    return store.acquire_lease(
        campaign.id, host=FOREIGN_HOST, pid=pid, duration_s=30, take_over=take_over
    )


def measurement(step_time_s: float = 0.5, *, losses: tuple[float, ...] = (5.0, 4.5)) -> Measurement:
    return Measurement(
        step_times_s=(step_time_s, step_time_s * 1.02, step_time_s * 0.99),
        tokens_per_step=4096,
        tokens_per_s=4096 / step_time_s,
        model_tflops_per_device=10 / step_time_s,
        hardware_tflops_per_device=12 / step_time_s,
        mfu=0.1,
        peak_memory_bytes=(10**9, 2 * 10**9),
        losses=losses,
        node_seconds=3.0,
        build_time_s=1.0,
        first_step_time_s=0.75,
    )


def failure(kind: FailureKind = FailureKind.CRASHED) -> Failure:
    return Failure(
        kind=kind,
        message="rank 1 ended",
        log_tail="Traceback",
        log_path="/runs/1/rank1.log",
        node_seconds=2.0,
    )


def begin(writer: CampaignWriter, recipe_id: str = "aaaa00000000") -> Trial:
    return writer.propose(recipe_id, RECIPE)


def repeated(writer: CampaignWriter, store: Store, campaign: Campaign) -> Trial:
    """The campaign's first trial, queued to be measured again."""
    return writer.repeat(store.trials(campaign.id)[0])


def everything(store: Store, campaign: Campaign) -> tuple[object, ...]:
    """All that a campaign holds, to see that nothing changed."""
    return (
        store.campaign(campaign.name),
        store.trials(campaign.id),
        store.open_attempts(campaign.id),
        store.final_outcomes(campaign.id),
        store.events(campaign.id),
    )
