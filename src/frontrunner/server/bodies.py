"""From a body of the wire to the table of a campaign file."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from frontrunner.config.campaign import CampaignFile, parse_campaign
from frontrunner.config.toml_file import Table
from frontrunner.server.models import FORBIDDEN_KEYS, SECTIONS, CampaignBody
from frontrunner.server.registered import EVALUATOR_OF, Registered
from frontrunner.spaces.errors import InvalidInput, bad_value, shown, shown_key
from frontrunner.spaces.names import FALLBACK

ABOUT = {"trainer": "command", "data": "data.", "table": "table."}
"""How a message begins that is about what a name stands for, by its kind: it may hold the path or the command."""
logger = logging.getLogger("frontrunner.server")
DISPATCHED = "probe"
"""The evaluator whose probes are sent to nodes; a site gives the others its cluster alone."""


def campaign_table(body: CampaignBody, known: Registered) -> Table:
    """The table as a campaign file would hold it, with the sections that registered names stand for.

    Raises `InvalidInput` for a key that names a file, an unknown name, and names that do not go with the rest.
    """
    table: Table = {name: dict(section) for name in SECTIONS if (section := getattr(body, name))}
    for section, keys in FORBIDDEN_KEYS.items():
        for key in keys:
            if key in table.get(section, {}):
                raise bad_value(f"{section}.{key}", table[section][key], "no path from the wire, in a service")
    table |= {"evaluator": _evaluator(body, known)} | ({} if body.name is None else {"name": body.name})
    for kind, name in (("trainer", body.trainer), ("data", body.data), ("table", body.table)):
        if name is not None:
            table |= known.sections(kind, name)
    return table if body.site is None else _at_site(table, body.site, known)


def _evaluator(body: CampaignBody, known: Registered) -> str:
    """What the body says, or what its names need."""
    named = {EVALUATOR_OF[kind]: kind for kind in EVALUATOR_OF if getattr(body, kind) is not None}
    if len(named) > 1:
        raise bad_value("table", body.table, f"no entry beside trainer = {shown(body.trainer)}")
    needed = next(iter(named), None)
    if needed is not None and body.evaluator not in (None, needed):
        raise bad_value("evaluator", body.evaluator, f"{needed}, or no entry, with a {named[needed]}")
    kinds = [kind for kind, evaluator in EVALUATOR_OF.items() if evaluator == body.evaluator]
    if kinds and needed is None:
        listed = ", ".join(known.names(kinds[0])) or "none is"
        raise bad_value(kinds[0], None, f"a registered {kinds[0]} ({listed}), for evaluator = {shown(body.evaluator)}")
    return needed or body.evaluator or DISPATCHED


def _at_site(table: Table, name: str, known: Registered) -> Table:
    """The table on a site's machine, of which the body says no more than how many nodes."""
    sections = dict(known.sections("site", name))
    if table["evaluator"] != DISPATCHED:
        sections.pop("dispatch", None)
    if "cluster" in sections:
        asked = table.get("cluster", {})
        for key, value in asked.items():
            if key != "nodes":
                raise bad_value(
                    f"cluster.{shown_key(key)}",
                    value,
                    f"cluster.nodes alone: site = {shown(name)} says what else it is",
                )
        sections["cluster"] = {**sections["cluster"], **asked}
    return {**table, **sections}


def parsed(table: Table) -> CampaignFile:
    """The campaign of such a table; raises `InvalidInput` for what is no campaign."""
    return parse_campaign(table, default_name=FALLBACK, base=Path.cwd())


@contextmanager
def contents_untold(body: CampaignBody, known: Registered) -> Iterator[None]:
    """Has a mistake in what a name stands for told by that name alone; the service's log says what it is.

    A file that was good when the service started may be gone, and the message would hold its path or command.
    """
    try:
        yield
    except InvalidInput as error:
        for kind, beginning in ABOUT.items():
            name = getattr(body, kind)
            if name is not None and error.message.startswith(beginning):
                raise _by_name(kind, name, known, error) from None
        raise


def _by_name(kind: str, name: str, known: Registered, error: InvalidInput) -> InvalidInput:
    called = f"{kind} = {shown(name)}"
    if kind == "table":
        rest = error.message.removeprefix(f"table.path = {known.sections(kind, name)[kind]['path']} ")
        if rest != error.message:  # it holds no such problem, and which it holds may be told
            return InvalidInput(f"{called} {rest}", hint=error.hint)
    logger.warning("%s cannot be used: %s", called, error.message)
    return InvalidInput(f"{called} can no longer be used", hint="the service's log says why")


def campaign_from(body: CampaignBody, known: Registered, *, most_points: int) -> CampaignFile:
    """The campaign of a body; raises `InvalidInput` for a space of more than `most_points` points."""
    file = parsed(campaign_table(body, known))
    dimensions = file.spec.space.dimensions(file.spec.problem.cluster)
    points = math.prod(len(values) for values in dimensions.values())
    if points > most_points:
        raise InvalidInput(
            f"space has {shown(points)} points: a service plans at most {most_points:,}",
            hint="narrow a dimension, or run `frontrunner plan` where the time is yours",
        )
    return file
