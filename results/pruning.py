"""Run folders that are no longer needed: those of finished campaigns, whose outcomes are in the
store.

A store may name any folder, so only one that a driver is known to have made is removed, by what was
written into it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, delete, func, insert, or_, select

from frontrunner.results.process_identity import acting_user
from frontrunner.results.records import timestamp
from frontrunner.results.rows import cell
from frontrunner.results.schema import (
    AttemptRow,
    Base,
    CampaignRow,
    DeletionRow,
    FailureRow,
    MeasurementRow,
)
from frontrunner.results.states import CampaignState
from frontrunner.results.status import was_copied
from frontrunner.results.store import Store
from frontrunner.results.transfer import TABLES, of_campaign
from frontrunner.spaces.display import Displayed
from frontrunner.spaces.errors import InvalidInput

NAMED_IN = {
    "attempt.json": ("run_folder",),
    "job.json": ("run_folder",),
    "command.json": ("environment", "FRONTRUNNER_RUN"),
    "outcome.json": ("run_folder",),
}
"""Files that drivers write into a run folder, and the keys of the folder's own path in them."""


@dataclass(frozen=True, kw_only=True)
class Prunable(Displayed):
    """A finished campaign with the existing run folders of its attempts, and the bytes in their
    files.
    """

    campaign: str
    folders: tuple[Path, ...]
    bytes: int


def prunable(store: Store, campaign: str | None = None) -> tuple[Prunable, ...]:
    """Return what may be removed of the named campaign, or (None) of every finished one.

    A folder is included only if the store holds its outcome, if it lies in a folder with the
    campaign's name, and if a file in it names it. The folders of a copied campaign are left
    alone: they are those of another store.
    """
    if (
        campaign is not None
        and (state := store.campaign(campaign).state) is not CampaignState.FINISHED
    ):
        raise InvalidInput(
            f"campaign {campaign} is {state}, so its run folders may still be needed",
            hint=f"finish it first: frontrunner resume {campaign}",
        )
    finished = select(CampaignRow.id, CampaignRow.name).where(
        CampaignRow.state == CampaignState.FINISHED
    )
    with store.database.read() as connection:
        rows = [
            row
            for row in connection.execute(finished.order_by(CampaignRow.id))
            if campaign in (None, row.name)
        ]
        found = [(row.name, _folders(connection, row.id, row.name)) for row in rows]
    return tuple(
        Prunable(campaign=name, folders=folders, bytes=_bytes(folders))
        for name, folders in found
        if folders
    )


def _bytes(folders: Iterable[Path]) -> int:
    files = (file for folder in folders for file in folder.rglob("*"))
    return sum(file.stat().st_size for file in files if file.is_file() and not file.is_symlink())


@dataclass(frozen=True, kw_only=True)
class Deleted(Prunable):
    """A campaign with its rows in the store and its run folders, which were deleted, or in a
    preview would be.
    """

    rows: int
    is_preview: bool


def delete_campaign(store: Store, campaign: str, *, preview: bool = False) -> Deleted:
    """Delete a campaign: its rows, then the run folders that `prunable` returns of a finished one.

    Raises as `Store.rename` does.
    """
    rows = 0
    with store.read(campaign) if preview else store.alone(campaign) as (connection, found):
        folders = _folders(connection, found.id, found.name)
        if not preview:
            now = timestamp(store.database.now(connection))
            made = insert(DeletionRow).values(campaign=campaign, at=now, user=acting_user())
            connection.execute(made)
        for table in (Base.metadata.tables[name] for name in reversed(TABLES)):
            mine = of_campaign(table, found.id)
            rows += connection.execute(
                select(func.count()).select_from(table).where(mine)
            ).scalar_one()
            if not preview:
                connection.execute(delete(table).where(mine))
    part = Deleted(
        campaign=campaign, folders=folders, bytes=_bytes(folders), rows=rows, is_preview=preview
    )
    if not preview:
        prune([part])
    return part


def prune(found: Iterable[Prunable]) -> None:
    """Remove the folders; raises OSError at the first that cannot be removed."""
    for part in found:
        for folder in part.folders:
            shutil.rmtree(folder)


def names_itself(folder: Path) -> bool:
    """Return whether a file in the folder, written by a driver or an evaluator, names this very
    folder.
    """
    for file, keys in NAMED_IN.items():
        with suppress(OSError, ValueError, RecursionError):
            found: Any = json.loads((folder / file).read_bytes())
            for key in keys:
                found = found.get(key) if isinstance(found, dict) else None
            if found == str(folder):
                return True
    return False


def _folders(connection: Connection, campaign_id: int, name: str) -> tuple[Path, ...]:
    """Return the run folders whose outcomes are stored, in a folder that has the name of the
    campaign's launch.
    """
    if was_copied(connection, campaign_id):
        return ()
    spec = connection.execute(
        select(CampaignRow.spec_json).where(CampaignRow.id == campaign_id)
    ).scalar_one()
    name = json.loads(cell(CampaignRow.spec_json, spec, campaign_id)).get("name", name)
    stored = (
        select(AttemptRow.id, AttemptRow.run_folder)
        .outerjoin(MeasurementRow, MeasurementRow.attempt_id == AttemptRow.id)
        .outerjoin(FailureRow, FailureRow.attempt_id == AttemptRow.id)
        .where(AttemptRow.campaign_id == campaign_id, AttemptRow.finished_at.is_not(None))
        .where(or_(MeasurementRow.attempt_id.is_not(None), FailureRow.attempt_id.is_not(None)))
        .order_by(AttemptRow.run_folder)
    )
    rows = connection.execute(stored).all()
    folders = dict.fromkeys(
        Path(cell(AttemptRow.run_folder, row.run_folder, row.id)) for row in rows
    )
    return tuple(
        folder for folder in folders if _is_run_folder(folder, name) and names_itself(folder)
    )


def _is_run_folder(folder: Path, campaign: object) -> bool:
    """Return whether a folder is named as drivers name it: absolute, NUMBER.NUMBER, in one with the
    campaign's name.
    """
    trial, _, attempt = folder.name.partition(".")
    named = (
        folder.is_absolute()
        and folder.parent.name == campaign
        and trial.isdigit()
        and attempt.isdigit()
    )
    return named and ".." not in folder.parts and folder.is_dir() and not folder.is_symlink()
