"""Run folders that nothing needs any more: those of finished campaigns, whose outcomes are in the store."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection, Row, or_, select

from frontrunner.results.schema import AttemptRow, CampaignRow, FailureRow, MeasurementRow
from frontrunner.results.states import CampaignState
from frontrunner.results.store import Store, find_campaign
from frontrunner.spaces.errors import InvalidInput


@dataclass(frozen=True, kw_only=True)
class Prunable:
    """A finished campaign with the run folders of its attempts that are there, and the bytes in their files."""

    campaign: str
    folders: tuple[Path, ...]
    bytes: int


def prunable(store: Store, campaign: str | None = None) -> tuple[Prunable, ...]:
    """What may be removed of the named campaign, or (None) of every finished one.

    A folder is among it only where the store holds the attempt's outcome, and where the folder lies in one that is
    called after the campaign, as drivers make them. Raises `InvalidInput` for a campaign that is not finished.
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


def _folders(connection: Connection, campaign: Row[int, str]) -> list[Path]:
    stored = (
        select(AttemptRow.run_folder)
        .outerjoin(MeasurementRow, MeasurementRow.attempt_id == AttemptRow.id)
        .outerjoin(FailureRow, FailureRow.attempt_id == AttemptRow.id)
        .where(AttemptRow.campaign_id == campaign.id, AttemptRow.finished_at.is_not(None))
        .where(or_(MeasurementRow.attempt_id.is_not(None), FailureRow.attempt_id.is_not(None)))
        .distinct()
        .order_by(AttemptRow.run_folder)
    )
    folders = [Path(name) for name in connection.execute(stored).scalars()]
    return [folder for folder in folders if _is_run_folder(folder, campaign.name)]


def _is_run_folder(folder: Path, campaign: str) -> bool:
    """Whether it is a folder as drivers make them: absolute, NUMBER.NUMBER, in one with the campaign's name."""
    trial, _, attempt = folder.name.partition(".")
    named = folder.is_absolute() and folder.parent.name == campaign and trial.isdigit() and attempt.isdigit()
    return named and ".." not in folder.parts and folder.is_dir() and not folder.is_symlink()


def _size(folder: Path) -> int:
    files = (entry for entry in folder.rglob("*") if entry.is_file() and not entry.is_symlink())
    return sum(entry.stat().st_size for entry in files)
