"""Run folders that nothing needs any more: those of finished campaigns, whose outcomes are in the store.

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

from sqlalchemy import Connection, Row, Select, or_, select

from frontrunner.results.archive import ATTEMPTS_BEFORE, UNARCHIVED
from frontrunner.results.rows import cell, find_campaign
from frontrunner.results.schema import AttemptRow, CampaignRow, EventRow, FailureRow, MeasurementRow
from frontrunner.results.states import CampaignState
from frontrunner.results.store import Store
from frontrunner.spaces.errors import InvalidInput

NAMED_IN = {
    "job.json": ("run_folder",),
    "command.json": ("environment", "FRONTRUNNER_RUN"),
    "outcome.json": ("run_folder",),
}
"""Files that drivers write into a run folder, and where in them its own path stands; see `evaluators/run_folder.py`."""
MOST_BYTES = 64 * 2**20
"""Of such a file: no driver writes a longer one."""


@dataclass(frozen=True, kw_only=True)
class Prunable:
    """A finished campaign with the run folders of its attempts that are there, and the bytes in their files."""

    campaign: str
    folders: tuple[Path, ...]
    bytes: int


def prunable(store: Store, campaign: str | None = None) -> tuple[Prunable, ...]:
    """What may be removed of the named campaign, or (None) of every finished one.

    A folder is among it only where a driver of this store made the attempt and the store holds its outcome, where the
    folder lies in one that is called after the campaign, and where a file in it says that it was made for the attempt.
    Raises `InvalidInput` for a campaign that is not finished.
    """
    with store.database.read() as connection:
        if campaign is not None:
            found = find_campaign(connection, campaign, store=store.url)
            if found.state is not CampaignState.FINISHED:
                raise InvalidInput(
                    f"campaign {campaign} is {found.state}, so its run folders may still be needed",
                    hint=f"finish it first: frontrunner resume {campaign}",
                )
        rows = connection.execute(
            select(CampaignRow.id, CampaignRow.name)
            .where(CampaignRow.state == CampaignState.FINISHED)
            .order_by(CampaignRow.id)
        ).all()
        chosen = [row for row in rows if campaign in (None, row.name)]
        found_folders = [(row.name, tuple(_folders(connection, row))) for row in chosen]
    return tuple(
        Prunable(campaign=name, folders=folders, bytes=sum(map(_size, folders)))
        for name, folders in found_folders
        if folders
    )


def prune(found: Iterable[Prunable]) -> int:
    """Remove the folders; returns how many. One that cannot be removed raises OSError, and the rest stays."""
    removed = 0
    for part in found:
        for folder in part.folders:
            shutil.rmtree(folder)
            removed += 1
    return removed


def names_itself(folder: Path) -> bool:
    """Whether a file in it, written by a driver or an evaluator, says that it was written for this very folder."""
    return any(_names(folder / file, keys) == str(folder) for file, keys in NAMED_IN.items())


def _folders(connection: Connection, campaign: Row[int, str]) -> list[Path]:
    stored = (
        select(AttemptRow.id, AttemptRow.run_folder)
        .outerjoin(MeasurementRow, MeasurementRow.attempt_id == AttemptRow.id)
        .outerjoin(FailureRow, FailureRow.attempt_id == AttemptRow.id)
        .where(AttemptRow.campaign_id == campaign.id, AttemptRow.finished_at.is_not(None))
        .where(or_(MeasurementRow.attempt_id.is_not(None), FailureRow.attempt_id.is_not(None)))
        .where(AttemptRow.id.not_in(_from_elsewhere(connection, campaign.id)))
        .order_by(AttemptRow.run_folder)
    )
    rows = connection.execute(stored).all()
    folders = dict.fromkeys(Path(cell(AttemptRow.run_folder, row.run_folder, row.id)) for row in rows)
    return [folder for folder in folders if _is_run_folder(folder, campaign.name) and names_itself(folder)]


def _from_elsewhere(connection: Connection, campaign_id: int) -> Select[int]:
    """The ids of the attempts that came with an archive: the campaign's first ones, or none of them.

    Its archive may hold such an event too; the newest is that of the store it was added to last.
    """
    event = (
        select(EventRow.data_json)
        .where(EventRow.campaign_id == campaign_id, EventRow.kind == UNARCHIVED)
        .order_by(EventRow.id.desc())
        .limit(1)
    )
    told = connection.execute(event).scalar()
    of_campaign = select(AttemptRow.id).where(AttemptRow.campaign_id == campaign_id)
    return of_campaign.order_by(AttemptRow.id).limit(0 if told is None else _count(told))


def _count(told: str) -> int | None:
    """How many attempts came with the archive; None, which is all of them, where an event does not say it."""
    try:
        count = json.loads(told)[ATTEMPTS_BEFORE]
    except (ValueError, KeyError, TypeError, RecursionError):  # of an earlier version, or damaged
        return None
    return count if isinstance(count, int) and count >= 0 else None


def _is_run_folder(folder: Path, campaign: str) -> bool:
    """Whether it is a folder as drivers make them: absolute, NUMBER.NUMBER, in one with the campaign's name."""
    trial, _, attempt = folder.name.partition(".")
    named = folder.is_absolute() and folder.parent.name == campaign and trial.isdigit() and attempt.isdigit()
    return named and ".." not in folder.parts and folder.is_dir() and not folder.is_symlink()


def _names(path: Path, keys: tuple[str, ...]) -> object:
    """What stands in a JSON file under these keys; None where there is no such file, or nothing there."""
    if not path.is_file() or path.stat().st_size > MOST_BYTES:
        return None
    try:
        found: Any = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    for key in keys:
        found = found.get(key) if isinstance(found, dict) else None
    return found


def _size(folder: Path) -> int:
    files = (entry for entry in folder.rglob("*") if entry.is_file() and not entry.is_symlink())
    return sum(entry.stat().st_size for entry in files)
