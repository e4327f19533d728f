"""Run folders that are no longer needed: those of finished campaigns, whose outcomes are in the store.

A store may name any folder: an archive's rows come from elsewhere, and a file can be changed. So only a folder that
a driver is known to have made is removed, by what was written into it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Select, or_, select

from frontrunner.results.rows import cell
from frontrunner.results.schema import AttemptRow, CampaignRow, EventRow, FailureRow, MeasurementRow
from frontrunner.results.states import CampaignState
from frontrunner.results.store import Store
from frontrunner.results.transfer import ATTEMPTS_BEFORE, UNARCHIVED
from frontrunner.spaces.errors import InvalidInput

NAMED_IN = {
    "job.json": ("run_folder",),
    "command.json": ("environment", "FRONTRUNNER_RUN"),
    "outcome.json": ("run_folder",),
}
"""Files that drivers write into a run folder, and the keys of the folder's own path in them."""


@dataclass(frozen=True, kw_only=True)
class Prunable:
    """A finished campaign with the existing run folders of its attempts, and the bytes in their files."""

    campaign: str
    folders: tuple[Path, ...]
    bytes: int


def prunable(store: Store, campaign: str | None = None) -> tuple[Prunable, ...]:
    """Return what may be removed of the named campaign, or (None) of every finished one.

    A folder is included only if a driver of this store made the attempt and the store holds its outcome, if it lies in
    a folder with the campaign's name, and if a file in it names it. Raises `InvalidInput` for a campaign that is not
    finished.
    """
    if campaign is not None and (state := store.campaign(campaign).state) is not CampaignState.FINISHED:
        raise InvalidInput(
            f"campaign {campaign} is {state}, so its run folders may still be needed",
            hint=f"finish it first: frontrunner resume {campaign}",
        )
    query = select(CampaignRow.id, CampaignRow.name).where(CampaignRow.state == CampaignState.FINISHED)
    found = []
    with store.database.read() as connection:
        for row in connection.execute(query.order_by(CampaignRow.id)).all():
            folders = _folders(connection, row.id, row.name) if campaign in (None, row.name) else ()
            if folders:
                found.append(Prunable(campaign=row.name, folders=folders, bytes=sum(map(_size, folders))))
    return tuple(found)


def prune(found: Iterable[Prunable]) -> int:
    """Remove the folders and return how many; raises OSError at the first that cannot be removed."""
    folders = [folder for part in found for folder in part.folders]
    for folder in folders:
        shutil.rmtree(folder)
    return len(folders)


def names_itself(folder: Path) -> bool:
    """Return whether a file in the folder, written by a driver or an evaluator, names this very folder."""
    return any(_value(folder / file, keys) == str(folder) for file, keys in NAMED_IN.items())


def _folders(connection: Connection, campaign_id: int, name: str) -> tuple[Path, ...]:
    stored = (
        select(AttemptRow.id, AttemptRow.run_folder)
        .outerjoin(MeasurementRow, MeasurementRow.attempt_id == AttemptRow.id)
        .outerjoin(FailureRow, FailureRow.attempt_id == AttemptRow.id)
        .where(AttemptRow.campaign_id == campaign_id, AttemptRow.finished_at.is_not(None))
        .where(or_(MeasurementRow.attempt_id.is_not(None), FailureRow.attempt_id.is_not(None)))
        .where(AttemptRow.id.not_in(_from_archive(connection, campaign_id)))
        .order_by(AttemptRow.run_folder)
    )
    rows = connection.execute(stored).all()
    folders = dict.fromkeys(Path(cell(AttemptRow.run_folder, row.run_folder, row.id)) for row in rows)
    return tuple(folder for folder in folders if _is_run_folder(folder, name) and names_itself(folder))


def _from_archive(connection: Connection, campaign_id: int) -> Select[int]:
    """Select the ids of the attempts that came with an archive: the campaign's first ones, or none.

    The archive may itself hold such an event; the newest is that of this store. All attempts are selected where an
    event does not state their number, as one of an earlier version.
    """
    mine = (EventRow.campaign_id == campaign_id, EventRow.kind == UNARCHIVED)
    event = connection.execute(select(EventRow.data_json).where(*mine).order_by(EventRow.id.desc()).limit(1)).scalar()
    attempts = select(AttemptRow.id).where(AttemptRow.campaign_id == campaign_id).order_by(AttemptRow.id)
    count = 0 if event is None else _looked_up(event, (ATTEMPTS_BEFORE,))
    return attempts.limit(count) if isinstance(count, int) and count >= 0 else attempts


def _is_run_folder(folder: Path, campaign: str) -> bool:
    """Return whether a folder is named as drivers name it: absolute, NUMBER.NUMBER, in one with the campaign's name."""
    trial, _, attempt = folder.name.partition(".")
    named = folder.is_absolute() and folder.parent.name == campaign and trial.isdigit() and attempt.isdigit()
    return named and ".." not in folder.parts and folder.is_dir() and not folder.is_symlink()


def _value(path: Path, keys: tuple[str, ...]) -> object:
    """Return a value from a JSON file; None where the file or the value is missing."""
    try:
        return _looked_up(path.read_bytes(), keys)
    except OSError:
        return None


def _looked_up(text: str | bytes, keys: tuple[str, ...]) -> object:
    """Return the value under nested keys of a JSON document; None where it is missing."""
    try:
        found: Any = json.loads(text)
    except (ValueError, RecursionError):
        return None
    for key in keys:
        found = found.get(key) if isinstance(found, dict) else None
    return found


def _size(folder: Path) -> int:
    files = (entry for entry in folder.rglob("*") if entry.is_file() and not entry.is_symlink())
    return sum(entry.stat().st_size for entry in files)
