"""An archive into a store: verified first, then added in one transaction, and checked before that is made."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Table, insert, select
from sqlalchemy.exc import DataError, IntegrityError

from frontrunner.results.archive.lines import Line
from frontrunner.results.archive.verifying import REFERENCES, ArchiveRows
from frontrunner.results.archive.writing import TABLES
from frontrunner.results.audit.check import campaign_of, check
from frontrunner.results.clock import timestamp
from frontrunner.results.leases import GIVEN_BACK
from frontrunner.results.schema import Base, CampaignRow, EventRow
from frontrunner.results.states import CampaignState
from frontrunner.results.store import Store
from frontrunner.spaces.document import canonical_json
from frontrunner.spaces.errors import InvalidInput, StoreUnusable, bad_value
from frontrunner.spaces.names import CAMPAIGN_NAME

UNARCHIVED = "unarchived"
"""The event of a campaign that came from an archive; its data names the file and its hash."""
ATTEMPTS_BEFORE = "attempts"
"""Its datum that counts the attempts which came with the archive: the campaign's first ones."""
NOT_HERE = "its driver ended elsewhere"
"""Why a campaign is stopped that was archived as running: whoever held its lease drives another store."""
BATCH = 500


@dataclass(frozen=True, kw_only=True)
class Unarchived:
    """What was added to a store, under the name that the campaign has there."""

    campaign: str
    file: str
    store: str
    rows: int
    sha256: str


def unarchive(store: Store, archive: ArchiveRows, *, name: str | None = None) -> Unarchived:
    """Add the campaign of an archive to the store, as `name` or under its own.

    Raises `InvalidInput` where the name is taken, and where the rows are not a campaign that a driver could have
    written. Nothing is written then.
    """
    wanted = archive.campaign if name is None else name
    if not CAMPAIGN_NAME.fullmatch(wanted):
        key = "campaign.name" if name is not None else f"{archive.path}: campaign.name"
        raise bad_value(key, wanted, "1 to 64 of a-z, 0-9, '.', '_' and '-'", hint="give one with --name")
    path = archive.path
    now = timestamp(store.now())
    with store.database.write(whole_store=True) as connection:
        if connection.execute(select(CampaignRow.id).where(CampaignRow.name == wanted)).first():
            raise InvalidInput(f"campaign {wanted!r} exists already in {store.url}", hint="give another with --name")
        try:
            campaign_id = _add(connection, archive.rows, wanted)
        except (IntegrityError, DataError) as error:
            raise _impossible(path, str(error.orig).splitlines()[0]) from error
        _refuse_unsound(connection, campaign_id, path, store.url)
        attempts = sum(row.kind == "attempts" for row in archive.rows)
        about = canonical_json({"file": path.name, "sha256": archive.sha256, ATTEMPTS_BEFORE: attempts})
        event = {"campaign_id": campaign_id, "at": now, "kind": UNARCHIVED, "data_json": about}
        connection.execute(insert(EventRow).values(**event))
    return Unarchived(campaign=wanted, file=str(path), store=store.url, rows=len(archive.rows), sha256=archive.sha256)


def _add(connection: Connection, rows: Iterable[Line], name: str) -> int:
    """Insert the rows under ids that are free here, and the campaign as one that nobody drives; returns its id."""
    new_ids: dict[str, dict[int, int]] = {table: {} for table in TABLES}
    by_table: dict[str, list[dict[str, Any]]] = {table: [] for table in TABLES}
    for line in rows:
        by_table[line.kind].append(line.content)
    (campaign,) = by_table["campaigns"]
    campaign |= {"name": name, **GIVEN_BACK}
    if campaign["state"] == CampaignState.RUNNING:
        campaign |= {"state": CampaignState.STOPPED, "state_reason": NOT_HERE}
    campaign["spec_json"] = canonical_json({**json.loads(campaign["spec_json"]), "name": name})
    for table, contents in by_table.items():
        for begin in range(0, len(contents), BATCH):
            _insert(connection, Base.metadata.tables[table], contents[begin : begin + BATCH], new_ids)
    return next(iter(new_ids["campaigns"].values()))


def _insert(
    connection: Connection, table: Table, contents: list[dict[str, Any]], new_ids: dict[str, dict[int, int]]
) -> None:
    values = [
        {key: new_ids[REFERENCES[key]].get(value) if key in REFERENCES else value for key, value in row.items()}
        for row in contents
    ]
    if "id" not in table.columns:
        connection.execute(insert(table), values)
        return
    old: list[Any] = [row.pop("id") for row in values]
    made = insert(table).returning(table.c.id, sort_by_parameter_order=True)
    new_ids[table.name].update(zip(old, connection.execute(made, values).scalars(), strict=True))


def _refuse_unsound(connection: Connection, campaign_id: int, path: Path, store: str) -> None:
    """Raise where the checker of stores finds that the rows contradict one another, and so undo the transaction.

    Damage that belongs to no campaign was in the store before.
    """
    for finding in check(connection, store=store, campaign_id=campaign_id).findings:
        if not finding.is_fault:
            continue
        if any(campaign_of(row) == campaign_id for row in finding.rows):
            raise _impossible(path, f"{finding.count} rows break that {finding.says}")
        raise StoreUnusable(
            f"{store} is broken, so nothing is added to it: {finding.count} rows break that {finding.says}",
            hint=f"run: frontrunner store check --store {store}",
        )


def _impossible(path: Path, why: str) -> InvalidInput:
    return InvalidInput(f"{path} does not hold a campaign that a driver wrote: {why}", hint="nothing was written")
