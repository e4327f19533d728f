"""Maintenance of stores: check, backup, upgrade, copy, prune, archive and unarchive."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from frontrunner.config.settings import store_url
from frontrunner.search.spec import CampaignSpec
from frontrunner.spaces.errors import require_campaign_name
from frontrunner.spaces.validation import load_json
from frontrunner.store import opened

if TYPE_CHECKING:
    from frontrunner.results.check import Check
    from frontrunner.results.pruning import Prunable
    from frontrunner.results.transfer import Archived, Copied, Unarchived


@dataclass(frozen=True, kw_only=True)
class Upgraded:
    """A store's revision before and after, and the backup that was made first; None where nothing was to be done."""

    store: str
    before: str
    now: str
    backup: Path | None


def check_store(store: str | None = None) -> Check:
    """Check the store: the database's own checks, every row read, and everything recomputed that can be."""
    from frontrunner.results.check import check

    with opened(store) as found, found.database.read() as connection:
        return check(connection, store=found.url)


def backup_store(file: str | Path | None = None, *, store: str | None = None) -> Path:
    """Write a backup of the store to a new SQLite file, which is a store; drivers may keep running."""
    from frontrunner.results.transfer import backup

    with opened(store) as found:
        return backup(found, None if file is None else Path(file))


def upgrade_store(store: str | None = None) -> Upgraded:
    """Upgrade a store of an earlier version, after a backup next to it; refused while a driver holds a campaign."""
    from frontrunner.results.database import revision_of
    from frontrunner.results.lease import refuse_driven
    from frontrunner.results.schema import REVISION
    from frontrunner.results.store import open_store
    from frontrunner.results.transfer import backup

    with opened(store) as found:
        with found.database.read() as connection:
            before = revision_of(connection)
            if before >= REVISION:
                return Upgraded(store=found.url, before=before, now=before, backup=None)
            refuse_driven(found.database, connection)
        made = backup(found, None)
    open_store(store_url(store), create=False).close()
    return Upgraded(store=found.url, before=before, now=REVISION, backup=made)


def copy_store(source: str, target: str) -> Copied:
    """Copy every campaign of a store into a new one; a copy that fails leaves no file behind."""
    from frontrunner.results.transfer import copy

    with opened(source) as reading:
        return copy(reading, store_url(target))


def prunable(campaign: str | None = None, *, store: str | None = None) -> tuple[Prunable, ...]:
    """Return the run folders of finished campaigns, which `prune_store` would remove."""
    from frontrunner.results import pruning

    with opened(store) as found:
        return pruning.prunable(found, campaign)


def prune_store(campaign: str | None = None, *, store: str | None = None) -> tuple[Prunable, ...]:
    """Remove the run folders of finished campaigns; every outcome, and the end of every log, stays in the store."""
    from frontrunner.results import pruning

    found = prunable(campaign, store=store)
    pruning.prune(found)
    return found


def archive(campaign: str | None, file: str | Path, *, store: str | None = None) -> Archived:
    """Write a campaign (None: the newest) to one portable file, for `unarchive` elsewhere."""
    from frontrunner.results.transfer import archive as write

    with opened(store) as found:
        return write(found, campaign, Path(file))


def unarchive(file: str | Path, *, name: str | None = None, store: str | None = None) -> Unarchived:
    """Add the campaign of an archive to the store, as `name` or under its own; a damaged file leaves nothing behind."""
    from frontrunner.results import transfer

    if name is not None:
        require_campaign_name("--name", name)
    check_spec = partial(load_json, CampaignSpec, what="its spec")
    return transfer.unarchive(Path(file), store_url(store), name=name, check_spec=check_spec)
