"""Nodes of a campaign: on which of them its attempts ran, and which are set aside, as follows from
those attempts.

Nothing else is stored of a node that is set aside: who reads the attempts, and the events of
checks, finds the same.

1. Attempts speak against a node as their run folders say (`attempt_nodes.py`): it was lost,
   hung, crashed, or lagged behind its peers. A crash counts once its recipe was measured without
   the node. Hangs of one recipe count once. So do losses of a recipe that several nodes have lost,
   if one of them has measured any. A measurement to which the node was no hindrance clears it.
2. A node is set aside once `after` losses without a measurement on it show that it was this node.
3. It is also set aside once `after` attempts of any kind in a row speak against it, while others
   did well: another node was measured without it and nothing has spoken against that one since, or
   its peers in these attempts had no trouble.
4. After a cool-down, which doubles each time, a check of the node decides: it is used again, or
   waits once more.
5. The next attempt at a recipe avoids the nodes that have lost it. The first loss of a recipe on a
   node, before the first step, does not count against the recipe. Further ones do if one of the
   nodes that lost it has measured any recipe, or if no node is set aside for such losses.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
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
"""One loss may be bad luck."""
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
MOST_NAMED = 3
"""Nodes that are set aside, each of which gets a line of its own."""


@dataclass(frozen=True, kw_only=True)
class AttemptNodes:
    """Names of the nodes that an attempt had, and by name what speaks against some of them."""

    names: tuple[str, ...]
    troubles: Mapping[str, str] = field(default_factory=dict)

    @property
    def names_culprits(self) -> bool:
        """Return whether the files tell which nodes had trouble and which had not."""
        return len(self.names) == 1 or len(self.troubles) < len(self.names)


@dataclass(frozen=True, kw_only=True)
class NodeTrouble:
    """An attempt that speaks against a node; `kind` is the failure's, or `STRAGGLING`.

    `names_node`: the attempt had this node alone, or other nodes of it had no trouble.
    """

    trial: int
    at: str
    kind: str
    why: str
    peers_did_well: bool = False
    names_node: bool = False

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
        return f"node {self.node} {when}: {self.evidence}{again}"

    @property
    def evidence(self) -> str:
        """Return how many attempts speak against the node, and the last of them, in words."""
        last = str(self.troubles[-1])
        count = len(self.troubles)
        return last if count == 1 else f"{count} attempts speak against it, the last: {last}"


def set_aside_in_words(nodes: Sequence[SetAside | str]) -> list[str]:
    """Return a line for each of the first nodes, or the words there are of it, and one for how many
    more there are.
    """
    lines = [str(node) for node in nodes[:MOST_NAMED]]
    if more := len(nodes) - len(lines):
        lines.append(f"set aside as well: {more} more")
    return lines


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
        self._lost: dict[int, set[str]] = {}
        self._measured: set[str] = set()
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
                    trial=trial,
                    at=at,
                    kind=words,
                    why=why,
                    peers_did_well=did_well,
                    names_node=nodes.names_culprits,
                )
                if kind is FailureKind.CRASHED:
                    self._crashed.setdefault(trial, []).append((name, trouble))
                else:
                    self._charge(name, trouble)
            elif kind is None:
                self._measured.add(name)
                self._against.pop(name, None)
                self._did_well[name] = self._did_well.get(name, frozenset(nodes.names)) & frozenset(
                    nodes.names
                )
        for name, trouble in self._crashed.pop(trial, []) if kind is None else []:
            if name not in nodes.names:
                self._charge(name, trouble)
        if kind is None:
            self._lost.pop(trial, None)
        return self._decide(at)

    def lost_on(self, trial: int) -> frozenset[str]:
        """Return the nodes that have lost a recipe since it was measured last."""
        return frozenset(self._lost.get(trial, ()))

    def excuses(self, nodes: AttemptNodes, *, trial: int) -> bool:
        """Return whether a loss before the first step, still to be noted, speaks against its nodes
        alone.
        """
        lost_on = self.lost_on(trial)
        if not nodes.troubles or not lost_on & nodes.troubles.keys():
            return bool(nodes.troubles)
        will_be_set_aside = self._after > 0 and nodes.names_culprits
        return will_be_set_aside and not lost_on & self._measured

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
        may_be_recipe = trouble.kind == FailureKind.HUNG
        if trouble.kind == FailureKind.LOST:
            losers = self._lost.setdefault(trouble.trial, set())
            losers.add(name)
            may_be_recipe = len(losers) > 1 and bool(losers & self._measured)
        is_repeat = may_be_recipe and (trouble.kind, trouble.trial) in {
            (one.kind, one.trial) for one in known
        }
        if name not in self.aside and not is_repeat:
            self._against[name] = [*known, trouble]

    def _decide(self, at: str) -> list[SetAside]:
        found = []
        for name, troubles in list(self._against.items()):
            if not self._after or len(troubles) < self._after:
                continue
            losses = sum(one.kind == FailureKind.LOST and one.names_node for one in troubles)
            if (
                losses >= self._after
                or self._others_do_well(name)
                or all(one.peers_did_well for one in troubles)
            ):
                until = _later(at, self._minutes * 2 ** self._times[name])
                self.aside[name] = SetAside(
                    node=name, since=at, until=until, troubles=tuple(troubles)
                )
                self._times[name] += 1
                del self._against[name]
                found.append(self.aside[name])
        return found

    def _others_do_well(self, name: str) -> bool:
        """Return whether another node does: load on all of them, or one fault that all share, must
        not set them aside one after the other.
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
