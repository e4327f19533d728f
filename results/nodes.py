"""Nodes of a campaign: on which of them its attempts ran, and which are set aside, as follows from
those attempts.

Nothing else is stored of a node that is set aside: who reads the attempts, and the events of
checks, finds the same.

1. Attempts speak against a node as their run folders say (`evaluators.cluster.nodes`): it was lost,
   hung, crashed, or lagged behind its peers. A crash counts once its recipe was measured without
   the node; hangs of one recipe count once; a measurement to which the node was no hindrance clears
   it.
2. A node is set aside once `after` attempts in a row speak against it, while others did well:
   another node was measured without it and nothing has spoken against that one since, or its peers
   in these attempts had no trouble.
3. After a cool-down, which doubles each time, a check of the node decides: it is used again, or
   waits once more.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Connection, select

from frontrunner.results.outcome import FailureKind
from frontrunner.results.records import Campaign, Event, timestamp
from frontrunner.results.rows import cell, columns_of, has_table, interpreted, values
from frontrunner.results.schema import AttemptRow, EventRow, FailureRow, NodesRow, TrialRow
from frontrunner.results.states import CampaignState

QUARANTINE_AFTER = 2
"""One loss may be bad luck. With 2 a node cannot use up the four attempts of a lost probe alone."""
QUARANTINE_MINUTES = 30.0
"""Assumed: about what a reboot, or the end of another job, takes. A check takes a node for half a
minute.
"""
SET_ASIDE, CHECKED = "node-set-aside", "node-checked"
"""Events about the `node` that they name; `CHECKED` has what was `found`, empty where the node is
fine.
"""
AWAITED = "nodes-awaited"
"""Event of probes that wait for nodes, with `why`."""
STRAGGLING = "straggling"


@dataclass(frozen=True, kw_only=True)
class AttemptNodes:
    """Names of the nodes that an attempt had, and by name what speaks against some of them."""

    names: tuple[str, ...]
    troubles: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class NodeTrouble:
    """An attempt that speaks against a node; `kind` is the failure's, or `STRAGGLING`."""

    trial: int
    at: str
    kind: str
    why: str
    peers_did_well: bool = False

    def __str__(self) -> str:
        return f"probe {self.trial} {self.kind} at {self.at[11:16]}: {self.why}"


@dataclass(frozen=True, kw_only=True)
class SetAside:
    """A node that no probe gets: since when, when a check is due, and why. `found` is what the last
    check found.

    `until` is empty where none will come, since the campaign is finished.
    """

    node: str
    since: str
    until: str
    troubles: tuple[NodeTrouble, ...]
    found: str = ""

    def __str__(self) -> str:
        again = f"; checked, and not fine: {self.found}" if self.found else ""
        when = f"is set aside since {minute(self.since)}, until a check after {minute(self.until)}"
        if not self.until:
            when = f"was set aside from {minute(self.since)} on"
        return f"node {self.node} {when}: {'; '.join(map(str, self.troubles))}{again}"


def minute(at: str) -> str:
    """Return a stored time to the minute, for people."""
    return at[:16].replace("T", " ")


class NodeLedger:
    """What the attempts of a campaign say of its nodes; they are noted in the order in which they
    ended.
    """

    def __init__(
        self, *, after: int = QUARANTINE_AFTER, minutes: float = QUARANTINE_MINUTES
    ) -> None:
        """`after` attempts set a node aside, 0 never, for `minutes` at first."""
        self.aside: dict[str, SetAside] = {}
        self._after, self._minutes = after, minutes
        self._did_well: dict[str, frozenset[str]] = {}
        """The nodes that all of a node's measurements had since its last trouble, itself among
        them.
        """
        self._against: dict[str, list[NodeTrouble]] = {}
        self._crashed: dict[int, list[tuple[str, NodeTrouble]]] = {}
        self._times: Counter[str] = Counter()

    @classmethod
    def of(cls, dispatch: Mapping[str, Any]) -> NodeLedger:
        """Return an empty ledger with the thresholds of a section [dispatch]."""
        after, minutes = dispatch.get("quarantine_after"), dispatch.get("quarantine_minutes")
        return cls(
            after=QUARANTINE_AFTER if after is None else after,
            minutes=QUARANTINE_MINUTES if minutes is None else minutes,
        )

    def note(
        self, nodes: AttemptNodes, *, trial: int, at: str, kind: FailureKind | None
    ) -> list[SetAside]:
        """Take in an attempt that ended, measured where `kind` is None; return the nodes that it
        has set aside.
        """
        did_well = len(nodes.troubles) < len(nodes.names)
        for name in nodes.names:
            why = nodes.troubles.get(name)
            if why is not None:
                words = STRAGGLING if kind is None else kind.value
                trouble = NodeTrouble(
                    trial=trial, at=at, kind=words, why=why, peers_did_well=did_well
                )
                if kind is FailureKind.CRASHED:
                    self._crashed.setdefault(trial, []).append((name, trouble))
                else:
                    self._charge(name, trouble)
            elif kind is None:
                self._against.pop(name, None)
                self._did_well[name] = self._did_well.get(name, frozenset(nodes.names)) & frozenset(
                    nodes.names
                )
        for name, trouble in self._crashed.pop(trial, []) if kind is None else []:
            if name not in nodes.names:
                self._charge(name, trouble)
        return self._decide(at)

    def note_check(self, node: str, *, at: str, found: str) -> None:
        """Take in a check: `found` is what is not fine, empty where the node is to be used
        again.
        """
        if node in self.aside:
            if found:
                again = _later(at, self._minutes * 2 ** (self._times[node] - 1))
                self.aside[node] = replace(self.aside[node], until=again, found=found)
            else:
                del self.aside[node]

    def _charge(self, name: str, trouble: NodeTrouble) -> None:
        self._did_well.pop(name, None)
        known = self._against.get(name, [])
        is_repeat = trouble.kind == FailureKind.HUNG and (trouble.kind, trouble.trial) in {
            (one.kind, one.trial) for one in known
        }
        if name not in self.aside and not is_repeat:
            self._against[name] = [*known, trouble]

    def _decide(self, at: str) -> list[SetAside]:
        found = []
        for name, troubles in list(self._against.items()):
            if not self._after or len(troubles) < self._after:
                continue
            if self._others_do_well(name) or all(one.peers_did_well for one in troubles):
                until = _later(at, self._minutes * 2 ** self._times[name])
                self.aside[name] = SetAside(
                    node=name, since=at, until=until, troubles=tuple(troubles)
                )
                self._times[name] += 1
                del self._against[name]
                found.append(self.aside[name])
        return found

    def _others_do_well(self, name: str) -> bool:
        """Return whether another node does: load on all of them must not set them aside one after
        the other.
        """
        return any(name not in names for names in self._did_well.values())


def _later(at: str, minutes: float) -> str:
    return timestamp(datetime.fromisoformat(at) + timedelta(minutes=minutes))


def node_ledger(connection: Connection, campaign: Campaign) -> NodeLedger:
    """Return the ledger of a campaign's attempts and checks so far."""
    ledger = NodeLedger.of(json.loads(campaign.spec_json).get("dispatch") or {})
    if not has_table(connection, NodesRow):
        return ledger
    query = (
        select(NodesRow, AttemptRow.finished_at, TrialRow.number, FailureRow.kind)
        .join(AttemptRow, AttemptRow.id == NodesRow.attempt_id)
        .join(TrialRow, TrialRow.id == AttemptRow.trial_id)
        .outerjoin(FailureRow, FailureRow.attempt_id == AttemptRow.id)
        .where(AttemptRow.campaign_id == campaign.id, AttemptRow.finished_at.is_not(None))
        .order_by(AttemptRow.finished_at, AttemptRow.id)
    )
    of_checks = (EventRow.campaign_id == campaign.id, EventRow.kind == CHECKED)
    checks = values(connection, Event, *of_checks)[::-1]
    for row in connection.execute(query):
        while checks and checks[-1].at < row.finished_at:
            _note_event(ledger, checks.pop())
        kind = None if row.kind is None else cell(FailureRow.kind, row.kind, row.attempt_id)
        ledger.note(_read(row), trial=row.number, at=row.finished_at, kind=kind)
    for event in reversed(checks):
        _note_event(ledger, event)
    return ledger


def nodes_of(connection: Connection, *wanted: ColumnElement[bool]) -> dict[int, AttemptNodes]:
    """Return the nodes of the attempts that meet the conditions, by the attempts' ids, where they
    are known.
    """
    if not has_table(connection, NodesRow):
        return {}
    query = select(NodesRow).join(AttemptRow, AttemptRow.id == NodesRow.attempt_id).where(*wanted)
    return {row.attempt_id: _read(row) for row in connection.execute(query)}


def _read(row: Any) -> AttemptNodes:
    held = columns_of(NodesRow, row)
    return AttemptNodes(names=held["names_json"], troubles=held["troubles_json"])


def set_aside(connection: Connection, campaign: Campaign) -> tuple[SetAside, ...]:
    """Return the nodes of a campaign that are set aside now, or were at its end."""
    if not has_table(connection, NodesRow):
        return ()
    mine = AttemptRow.campaign_id == campaign.id
    troubled = (
        select(NodesRow.attempt_id)
        .join(AttemptRow)
        .where(mine, NodesRow.troubles_json != "{}")
        .limit(1)
    )
    if connection.execute(troubled).first() is None:
        return ()
    aside = node_ledger(connection, campaign).aside.values()
    return tuple(
        replace(one, until="") if campaign.state is CampaignState.FINISHED else one for one in aside
    )


def _note_event(ledger: NodeLedger, event: Event) -> None:
    node, found = interpreted(
        EventRow, event.id, "data_json", lambda: (event.data["node"], event.data["found"])
    )
    ledger.note_check(str(node), at=event.at, found=str(found))
