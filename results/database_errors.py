"""What a database says went wrong, as an error that a person can act on."""

from __future__ import annotations

import sqlite3

from sqlalchemy.exc import DBAPIError

from frontrunner.results.address import StoreAddress
from frontrunner.results.backup_names import newest_backup
from frontrunner.results.broken_text import SAID_BY_SQLITE, broken_text
from frontrunner.spaces.errors import StoreUnusable

SHUTTING_DOWN = ("57P01", "57P02", "57P03", "25P03")
"""Codes of a server that ends or starts, and of a session that it ended: in PostgreSQL's manual, appendix A."""


NO_ROOM_BESIDE = ("SQLITE_IOERR_SHM", "SQLITE_FULL", "SQLITE_CANTOPEN", "SQLITE_READONLY")
"""What SQLite says where it can make no file to share a log by."""


class ConnectionLost(StoreUnusable):
    """The connection to a database server broke, so that nobody here knows whether the transaction was made."""


def unusable(
    error: DBAPIError | sqlite3.Error, address: StoreAddress, busy_timeout_s: float, *, read_only: bool
) -> StoreUnusable:
    """The error of ours for one of a database driver's; `read_only` says how the store was opened."""
    if isinstance(error, DBAPIError) and address.path is None:
        return _server_unusable(error, address, busy_timeout_s)
    cause = error.orig if isinstance(error, DBAPIError) else error
    if read_only and address.has_log and getattr(cause, "sqlite_errorname", "").startswith(NO_ROOM_BESIDE):
        return _log_unreadable(address, str(cause))
    return _file_unusable(cause, address, busy_timeout_s)


def _file_unusable(cause: BaseException | None, address: StoreAddress, busy_timeout_s: float) -> StoreUnusable:
    name = getattr(cause, "sqlite_errorname", "")
    if name.startswith("SQLITE_BUSY"):
        return _locked(address, busy_timeout_s, "close the program that has the file open")
    if name.startswith(("SQLITE_FULL", "SQLITE_IOERR")):
        return _full(address, str(cause))
    if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        return damaged(address, str(cause))
    if name.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM")):
        return StoreUnusable(f"{address} cannot be opened: {cause}", hint="check the permissions of file and folder")
    return _by_its_words(str(cause), address)


def _by_its_words(said: str, address: StoreAddress) -> StoreUnusable:
    """For what SQLite has one code for, as many things are."""
    if said.startswith(SAID_BY_SQLITE):
        return damaged(address, broken_text(address) or said)
    if said.startswith(("no such table", "no such column")):
        return damaged(address, said)
    return StoreUnusable(f"{address}: {said}")


def damaged(address: StoreAddress, finding: str) -> StoreUnusable:
    """The error for a store with broken pages or cells, which is left as it is."""
    backup = None if address.path is None else newest_backup(address.path)
    hint = "no backup lies beside it; the file was left as it is"
    if address.path is None:
        hint = "restore a backup into another schema: pg_restore; the store was left as it is"
    elif backup is not None:
        hint = f"restore the newest backup under another name: frontrunner store copy {backup} NEW.db"
    return StoreUnusable(f"{address} is damaged: {finding}", hint=hint)


def _server_unusable(error: DBAPIError, address: StoreAddress, busy_timeout_s: float) -> StoreUnusable:
    code = getattr(error.orig, "sqlstate", None) or ""
    said = str(error.orig).strip().splitlines()[0] if str(error.orig).strip() else type(error.orig).__name__
    if error.connection_invalidated or code in SHUTTING_DOWN or code.startswith("08"):
        return ConnectionLost(
            f"{address}: the connection broke: {said}", hint="once the server answers: frontrunner resume"
        )
    if code == "55P03":
        return _locked(address, busy_timeout_s, "end the session that holds it: see pg_stat_activity")
    if code.startswith("53"):
        return _full(address, said)
    if code in ("25006", "42501"):
        return StoreUnusable(f"{address} cannot be written: {said}", hint="use a role that may write to this database")
    if not code:  # no session was made
        return StoreUnusable(
            f"{address} cannot be reached: {said}", hint="check host, port, user and database, and that the server runs"
        )
    return StoreUnusable(f"{address}: {said}")


def _log_unreadable(address: StoreAddress, said: str) -> StoreUnusable:
    return StoreUnusable(
        f"{address} cannot be read: a log lies beside it, which needs one more file there ({said})",
        hint=f"copy {address} and {address}-wal to a folder that has room and may be written to, and read them there",
    )


def _locked(address: StoreAddress, busy_timeout_s: float, hint: str) -> StoreUnusable:
    return StoreUnusable(
        f"{address}: another program held the write lock for more than {busy_timeout_s:g} s", hint=hint
    )


def _full(address: StoreAddress, said: str) -> StoreUnusable:
    return StoreUnusable(
        f"{address} cannot be written ({said}); what was stored before is safe",
        hint="free some space, then run the command again; for a campaign that it stopped: frontrunner resume",
    )
