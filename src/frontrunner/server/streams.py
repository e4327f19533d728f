"""A campaign as it happens: server-sent events made from what the store holds, so that none is lost or invented.

Three kinds: `event` (an entry of the campaign's history), `outcome` (a trial with its final outcome) and `state` (the
campaign itself, when it has changed). The id of each is EVENT-OUTCOME, the highest numbers told so far: a client that
comes back with the last id it saw (Last-Event-ID) goes on exactly there, whichever service it asks.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

import anyio
import anyio.to_thread

from frontrunner.plain_json import to_json
from frontrunner.results.pages import outcomes_after
from frontrunner.results.records import Campaign
from frontrunner.results.store import Store
from frontrunner.spaces.errors import bad_value

POLL_S = 1.0
QUIET_POLLS = 15
"""After so many polls without news a comment keeps proxies from closing the connection."""
CURSOR = re.compile(r"(\d{1,18})-(\d{1,18})")


@dataclass(frozen=True)
class Cursor:
    """The highest event id, and the highest number of an outcome, that a client has seen."""

    event: int = 0
    outcome: int = 0

    def __str__(self) -> str:
        return f"{self.event}-{self.outcome}"


def cursor_from(text: str | None) -> Cursor:
    """The cursor of a Last-Event-ID; the beginning without one. Raises `InvalidInput` for anything else."""
    if not text:
        return Cursor()
    found = CURSOR.fullmatch(text)
    if found is None:
        raise bad_value("Last-Event-ID", text, "the id of an event of this stream, as in 12-5")
    return Cursor(int(found[1]), int(found[2]))


class Follower:
    """One client's way through a campaign."""

    def __init__(self, store: Store, name: str, cursor: Cursor, batch: int) -> None:
        self._store, self._name, self._cursor, self._batch = store, name, cursor, batch
        self._seen: Campaign | None = None

    def news(self) -> tuple[list[str], bool]:
        """What is new, as server-sent events, at most a batch of each kind; and whether there may be more at once."""
        campaign = self._store.campaign(self._name)
        if self._seen is not None and campaign.updated_at == self._seen.updated_at:
            return [], False
        events = self._store.events(campaign.id, self._cursor.event, self._batch)
        outcomes = outcomes_after(self._store, campaign.id, self._cursor.outcome, self._batch)
        told = []
        for event in events:
            self._cursor = replace(self._cursor, event=event.id)
            told.append(self._written("event", event))
        for outcome in outcomes:
            self._cursor = replace(self._cursor, outcome=outcome.outcome_number or self._cursor.outcome)
            told.append(self._written("outcome", outcome))
        if len(events) == self._batch or len(outcomes) == self._batch:
            return told, True
        if self._seen is None or _shown(campaign) != _shown(self._seen):
            told.append(self._written("state", _shown(campaign)))
        self._seen = campaign
        return told, False

    def _written(self, kind: str, value: object) -> str:
        return f"id: {self._cursor}\nevent: {kind}\ndata: {to_json(value)}\n\n"


async def follow(follower: Follower, streams: anyio.CapacityLimiter) -> AsyncIterator[str]:
    """The stream of one client, without an end: the client comes back by itself where it is cut."""
    quiet = 0
    async with streams:
        yield f"retry: {int(1000 * POLL_S)}\n\n"
        while True:
            told, more = await anyio.to_thread.run_sync(follower.news)
            if told:
                quiet = 0
                yield "".join(told)
            if not more:
                quiet += 1
                if quiet % QUIET_POLLS == 0:
                    yield ": nothing new\n\n"
                await anyio.sleep(POLL_S)


def _shown(campaign: Campaign) -> dict[str, object]:
    """What a stream tells of the campaign itself."""
    names = ("name", "state", "state_reason", "outcomes", "node_seconds_spent", "driver_seconds", "driver")
    return {name: getattr(campaign, name) for name in names}
