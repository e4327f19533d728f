"""A campaign's history in words: what its drivers noted, and who asked for what."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter

from frontrunner.results.nodes import AWAITED, CHECKED, SET_ASIDE, minute
from frontrunner.results.pages import HistoryPage
from frontrunner.results.prior_results import CUT, REUSED
from frontrunner.results.records import COPIED, IMPORTED, UNARCHIVED, USER, Event, EventData
from frontrunner.results.states import CampaignState
from frontrunner.results.store import LABELED
from frontrunner.search.budget import REQUESTED, STOPPING
from frontrunner.search.campaign_setup import BEFORE, BUDGET
from frontrunner.search.recovery import RECOVERED
from frontrunner.text import counted, plain
from frontrunner.views.columns import Column, words
from frontrunner.views.terminal import column_table, console

WORDS = {
    CHECKED: "node {node} was checked: {found}",
    AWAITED: "probes wait for nodes: {why}",
    "harvested": (
        "probe {trial} had ended before its driver did, and its outcome was collected: {recipe}"
    ),
    "lost": "probe {trial} was cut off with its driver: {recipe}",
    "prediction": (  # of a campaign with search.probe_nodes, which earlier versions had
        "predicted from fewer nodes: {tokens_per_s:,.0f} tokens/s (95 %: {low:,.0f} to {high:,.0f})"
        " for recipe {recipe_id}"
    ),
    "pruned": (
        "{recipes} of {of} legal recipes surely do not fit and are not probed"
        " (search.prune_infeasible)"
    ),
    "repeat": "probe {trial} is measured again: {recipe}",
    "launched": "launched; driver {driver}",
    "resumed": "resumed; driver {driver}",
    "measuring": "recipes measured again: {recipes}; driver {driver}",
    CUT: "probe {trial} was cut off, which says nothing of its recipe: {recipe}",
    "overtime": "{seconds:.1f} s were driven beyond the budget's minutes",
    "strategy-replaced": "{by} order goes on in place of the strategy: {why}",
    "renamed": "renamed from {earlier} to {name}",
    COPIED: "copied from campaign {campaign} of {store}; attempts: {attempts}",
    UNARCHIVED: "unarchived from {file}; attempts: {attempts}",
    RECOVERED: "{outcomes} outcomes were read back from {folder}",
    REQUESTED: "asked to {word}",
}
"""Events by kind, of which the fields in braces are filled in."""


def noticed(kind: str, data: EventData, *, running: bool = True) -> str:
    """Return an event in words; `running` adds what a user at the driver's terminal can do."""
    try:
        if kind in WORDS and (kind != CHECKED or data["found"]):
            return plain(WORDS[kind].format_map(data))
        return plain(IN_WORDS[kind](data) + (_more(data) if running and kind == STOPPING else ""))
    except (
        KeyError,
        ValueError,
        TypeError,
    ):  # of another kind or version, or of a stranger's campaign
        return plain(
            f"{kind}: " + " ".join(f"{key}={value}" for key, value in data.items() if key != USER)
        )


def _checked(data: EventData) -> str:
    return f"node {data['node']} was checked, is fine, and is used again"


def _set_aside(data: EventData) -> str:
    return (
        f"node {data['node']} is set aside, until a check after {minute(str(data['until']))}:"
        f" {data['why']}"
    )


def _stopping(data: EventData) -> str:
    if ended := data.get("probes_ended"):
        return f"ending {counted(int(ended), 'running probe')}"
    left = int(data["probes_to_finish"] or 0)
    finishing = f"finishing {counted(left, 'running probe')}" if left else "stopping"
    return (
        f"{finishing}; then the campaign is paused"
        if data["leaves"] == CampaignState.PAUSED
        else finishing
    )


def _more(data: EventData) -> str:
    left = int(data["probes_to_finish"] or 0)
    return f"; press Ctrl-C again to end {'it' if left == 1 else 'them'} now" if left else ""


def _budget(data: EventData) -> str:
    limits = {key: value for key, value in data.items() if key != USER and not key.endswith(BEFORE)}
    words = (
        f"{key} {value:g}, was {data.get(key + BEFORE) or 'no limit'}"
        for key, value in limits.items()
    )
    return f"budget: {', '.join(words)}"


def _labeled(data: EventData) -> str:
    return "; ".join(f"{key}: {value or 'none'}" for key, value in data.items() if key != USER)


def _reused(data: EventData) -> str:
    origin = (
        f"probe {data['its_trial']} of campaign {data['campaign']}, measured"
        f" {minute(str(data['measured_at']))}"
    )
    return f"probe {data['trial']} takes the result of {origin}: {data['recipe']}"


def _warm_start(data: EventData) -> str:
    """Return as in: warm start: 12 outcomes of a.csv, 3 recipes answered; left out: 2 simulated."""
    origins = f" of {data['origins']}" if "origins" in data else ""
    answered = f", {counted(int(data['answers']), 'recipe')} answered" if data["answers"] else ""
    return (
        f"warm start: {data['learned_from'] or 'no'} usable"
        f" outcomes{origins}{answered}{_left_out(data)}"
    )


def _imported(data: EventData) -> str:
    return (
        f"imported from {data['file']}, a table of"
        f" {counted(int(data['rows'] or 0), 'row')}{_left_out(data, ' x')}"
    )


def _left_out(data: EventData, times: str = "") -> str:
    prefix = "left out: "
    found = [
        f"{count}{times} {key.removeprefix(prefix)}"
        for key, count in data.items()
        if key.startswith(prefix)
    ]
    return f"; {prefix}{', '.join(found)}" if found else ""


IN_WORDS: Mapping[str, Callable[[EventData], str]] = {
    CHECKED: _checked,
    SET_ASIDE: _set_aside,
    STOPPING: _stopping,
    BUDGET: _budget,
    LABELED: _labeled,
    REUSED: _reused,
    "evidence": _warm_start,
    IMPORTED: _imported,
}


HISTORY: tuple[Column[Event], ...] = (
    words("at", "UTC", lambda row: f"{row.at[:10]} {row.at[11:19]}"),
    words("user", "by", attrgetter("user")),
    words("what", "what", lambda row: noticed(row.kind, row.data, running=False), least=30),
)


def print_history(found: HistoryPage) -> None:
    """Print a page of a campaign's history."""
    out = console()
    items: Sequence[Event] = found.items
    if items:
        out.print(column_table(None, HISTORY, items, width=out.width))
    out.say(
        f"{len(items)} of {counted(found.total, 'event')}" if items else "no event on this page",
        style="dim",
    )
