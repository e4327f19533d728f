"""Transactions under a lease: fenced, and made once whatever happens to the connection.

Every transaction begins by raising the campaign's row under the lease's epoch. A driver whose lease was
taken over is therefore refused with `AlreadyDriven`, and nothing of that transaction is written. The time that it
writes there also tells, after a connection broke at the commit, whether the server had made the transaction.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar, cast

from sqlalchemy import Connection

from frontrunner.results import leases
from frontrunner.results.clock import Clock, timestamp
from frontrunner.results.database_errors import ConnectionLost
from frontrunner.results.engine import RECONNECT_S, Database
from frontrunner.results.records import Lease

T = TypeVar("T")
M = TypeVar("M", bound=Callable[..., Any])


def atomic(method: M) -> M:
    """A method of a writer as a transaction of its own, or as a part of the one that is under way."""

    @wraps(method)
    def transaction(self: LeasedWriter, *arguments: Any, **named: Any) -> Any:
        return self.atomically(lambda: method(self, *arguments, **named))

    return cast(M, transaction)


class LeasedWriter:
    """Makes transactions under one lease. Used by one thread."""

    def __init__(self, database: Database, lease: Lease, clock: Clock) -> None:
        self._database = database
        self._lease = lease
        self._clock = clock
        self._shared: Connection | None = None
        self._written_at = ""

    def atomically(self, work: Callable[[], T]) -> T:
        """Make the calls of `work` one transaction: all of them are written, or, on an exception, none.

        Where the connection to a database server breaks, `work` is called again, until `RECONNECT_S` have passed; so
        it should do nothing but call this writer. What it writes is written once. Raises `AlreadyDriven` once the lease
        was taken over or released, and `ConnectionLost` where the server does not come back.
        """
        if self._shared is not None:
            return work()
        give_up = time.monotonic() + RECONNECT_S
        unsure: list[T] = []  # what a call returned whose commit may have been made
        while True:
            try:
                with self._database.write() as connection:
                    if unsure and leases.was_written(connection, self._lease, self._written_at):
                        return unsure[0]
                    unsure = []
                    self._check(connection)
                    with self._sharing(connection):
                        unsure = [work()]
                return unsure[0]
            except ConnectionLost:
                if time.monotonic() > give_up:
                    raise

    @contextmanager
    def together(self) -> Iterator[None]:
        """Make the calls inside one transaction, as `atomically` does; it is not made again if a connection breaks."""
        with self._database.write() as connection:
            self._check(connection)
            with self._sharing(connection):
                yield

    @property
    def _connection(self) -> Connection:
        """That of the transaction that is under way."""
        if self._shared is None:
            raise RuntimeError("a write of the campaign outside of a transaction")
        return self._shared

    @contextmanager
    def _sharing(self, connection: Connection) -> Iterator[None]:
        self._shared = connection
        try:
            yield
        finally:
            self._shared = None

    def _check(self, connection: Connection, **changes: object) -> None:
        """Raise the campaign's row under the lease, with these changes, or raise `AlreadyDriven`."""
        now = self._clock()
        leases.check(connection, self._lease, now=now, **changes)
        self._written_at = timestamp(now)
