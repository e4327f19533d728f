"""How PostgreSQL is used.

A write transaction runs at READ COMMITTED and locks rows: a driver's begins by raising its campaign's row under its
lease's epoch, and holds that row to its end. Everything else it touches belongs to that campaign, so nothing can change
under it, and campaigns of other drivers are not waited for. SERIALIZABLE would promise the same, at the price of
transactions that fail at their commit and have to be made again. Reads run at REPEATABLE READ: they see one state.
"""

from __future__ import annotations

import logging
import time
from datetime import UTC, datetime, timedelta
from threading import Lock
from typing import Any

from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError

from frontrunner.results.address import StoreAddress
from frontrunner.spaces.errors import bad_value

READING = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
WRITING = {"isolation_level": "READ COMMITTED"}

CONNECT_TIMEOUT_S = 10
STALLED_WRITER_S = 30
"""After how long without a statement a transaction's locks are taken from a client that was paused or cut off."""
RESYNC_S = 60.0

CONNECTION: dict[str, Any] = {
    "application_name": "frontrunner",
    "connect_timeout": CONNECT_TIMEOUT_S,
    # Without these a host that vanished is noticed after two hours.
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
}


def server_engine(address: StoreAddress, *, lock_timeout_s: float) -> Engine:
    """Connections to the server, made when they are needed; each is tried before it is used again.

    Raises `InvalidInput` where the driver that the URL names is not installed.
    """
    # A connection that breaks is an error of ours or is mended; the pool would print its traceback besides.
    logging.getLogger("sqlalchemy.pool").addHandler(logging.NullHandler())
    try:
        engine = create_engine(address.url, connect_args=CONNECTION, pool_pre_ping=True)
    except (NoSuchModuleError, ModuleNotFoundError, ArgumentError) as error:
        raise bad_value(
            "store.url",
            str(address),
            "postgresql+psycopg://..., with psycopg installed",
            hint=f"{error}; run: pip install 'frontrunner[postgresql]', or use sqlite:///path",
        ) from error

    @event.listens_for(engine, "connect")
    def settle(connection: Any, _record: object) -> None:
        with connection.cursor() as cursor:
            cursor.execute(f"SET lock_timeout = {int(lock_timeout_s * 1000)}")
            cursor.execute(f"SET idle_in_transaction_session_timeout = {STALLED_WRITER_S * 1000}")
            # A server may be told to acknowledge before it has written; an acknowledged outcome is on disk.
            cursor.execute(
                "SELECT set_config('synchronous_commit', 'on', false)"
                " WHERE current_setting('synchronous_commit') = 'off'"
            )
        connection.commit()

    return engine


class ServerClock:
    """The server's time, asked for once a minute and carried on by this machine's monotonic clock in between.

    So drivers on several hosts judge leases by one clock, and a jump of their own clocks changes nothing.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = Lock()
        self._told: tuple[datetime, float] | None = None

    def __call__(self) -> datetime:
        """The time in UTC. A server that does not answer is not asked again before the next minute."""
        with self._lock:
            if self._told is None or time.monotonic() - self._told[1] > RESYNC_S:
                self._told = self._asked(), time.monotonic()
            return self._carried_on(*self._told)

    def _asked(self) -> datetime:
        try:
            with self._engine.connect() as connection:
                told: datetime = connection.execute(text("SELECT clock_timestamp()")).scalar_one()
        except DBAPIError:
            if self._told is None:
                raise
            return self._carried_on(*self._told)
        return told.astimezone(UTC)

    @staticmethod
    def _carried_on(told: datetime, at_s: float) -> datetime:
        return told + timedelta(seconds=time.monotonic() - at_s)
