"""A campaign's events as they are recorded: its history, its trials' outcomes, and its state when that has changed.

The id of each event is EVENT-OUTCOME, the highest numbers so far: a reader that comes back with the last id that it saw
continues exactly there, in whichever process it reads.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from frontrunner.plain_json import as_plain
from frontrunner.results.pages import outcomes_after
from frontrunner.results.store import Store
from frontrunner.spaces.errors import bad_value

POLL_S = 1.0
BATCH = 200
STATE_FIELDS = ("name", "state", "state_reason", "outcomes", "node_seconds_spent", "driver_seconds", "driver")
CURSOR = re.compile(r"(\d{1,18})-(\d{1,18})")


@dataclass(frozen=True, kw_only=True)
class StreamEvent:
    """One event of a campaign: `event` (its history), `outcome` (a trial's final outcome) or `state`."""

    id: str
    kind: str
    data: Mapping[str, Any]


class Cursor(NamedTuple):
    """The highest event id, and the highest number of an outcome, that a reader has seen."""

    event: int = 0
    outcome: int = 0


def parse_cursor(text: str | None) -> Cursor:
    """Return the cursor of an event id; the beginning without one. Raises `InvalidInput` for anything else."""
    found = CURSOR.fullmatch(text or "0-0")
    if found is None:
        raise bad_value("Last-Event-ID", text, "the id of an event of this stream, as in 12-5")
    return Cursor(int(found[1]), int(found[2]))


class Follower:
    """One reader's position in a campaign."""

    def __init__(self, store: Store, name: str, cursor: Cursor, batch: int = BATCH) -> None:
        self._store, self._name, self._cursor, self._batch = store, name, cursor, batch
        self._updated_at = ""
        self._state: Mapping[str, Any] = {}

    def poll(self) -> tuple[list[StreamEvent], bool]:
        """Return the new events, at most a batch of each kind, and whether more may be waiting."""
        campaign = self._store.campaign(self._name)
        if campaign.updated_at == self._updated_at:
            return [], False
        events = self._store.events(campaign.id, self._cursor.event, self._batch)
        outcomes = outcomes_after(self._store, campaign.id, self._cursor.outcome, self._batch)
        found = [self._seen("event", event, event=event.id) for event in events]
        found += [self._seen("outcome", outcome, outcome=outcome.outcome_number) for outcome in outcomes]
        if self._batch in (len(events), len(outcomes)):
            return found, True
        state = {name: getattr(campaign, name) for name in STATE_FIELDS}
        if state != self._state:
            found.append(self._seen("state", state))
        self._updated_at, self._state = campaign.updated_at, state
        return found, False

    def _seen(self, kind: str, value: object, **place: Any) -> StreamEvent:
        self._cursor = self._cursor._replace(**place)
        return StreamEvent(id="{}-{}".format(*self._cursor), kind=kind, data=as_plain(value))
