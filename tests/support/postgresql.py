"""A PostgreSQL server for tests: Debian's, in a folder of its own, on a socket of its own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from urllib.parse import unquote

import psycopg
import pytest
from psycopg import sql

from support.starting import DidNotStart, retried

CANDIDATES = (*sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True), Path("/usr/bin"))
UNPRIVILEGED = "postgres"
SETTINGS = (
    "listen_addresses=",  # a socket in our own folder is enough
    "shared_buffers=16MB",
    "max_connections=40",
    "logging_collector=off",
)


def server_programs() -> Path | None:
    """The folder with initdb and postgres, or None where there is none."""
    return next((folder for folder in CANDIDATES if (folder / "initdb").exists()), None)


def why_none() -> str | None:
    """Why no server can be started here, or None where one can."""
    if server_programs() is None:
        return "PostgreSQL's server is not installed (Debian: postgresql)"
    if os.geteuid() == 0 and shutil.which("setpriv") is None:
        return (
            "PostgreSQL does not run as root, and setpriv, which would change the user, is not"
            " installed"
        )
    return None


def unprivileged() -> list[str]:
    """What to put before a command of the server, which refuses to run as root."""
    if os.geteuid() != 0:
        return []
    return ["setpriv", f"--reuid={UNPRIVILEGED}", f"--regid={UNPRIVILEGED}", "--clear-groups"]


@dataclass
class Server:
    """A running server. `fsync` is off: no test pulls the plug."""

    programs: Path
    folder: Path
    process: subprocess.Popen[bytes] | None = None
    _names: Iterator[int] = field(default_factory=lambda: count(1))

    def start(self) -> None:
        settings = [part for setting in SETTINGS for part in ("-c", setting)]
        where = ["-D", str(self.folder / "data"), "-k", str(self.folder)]
        command = [
            *unprivileged(),
            str(self.programs / "postgres"),
            *where,
            *settings,
            "-c",
            "fsync=off",
        ]
        with (self.folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder)
        while True:
            try:
                psycopg.connect(self._connection("postgres")).close()
            except psycopg.OperationalError:
                if self.process.poll() is not None:
                    raise DidNotStart((self.folder / "server.log").read_text()) from None
                time.sleep(0.05)
            else:
                return

    def stop(self, *, kill: bool = False) -> None:
        """End it: by SIGINT, which breaks every connection, or by SIGQUIT, after which it recovers
        from its log.
        """
        if self.process is not None:
            self.process.send_signal(signal.SIGQUIT if kill else signal.SIGINT)
            self.process.wait()
            self.process = None

    def new_store(self) -> str:
        """The URL of a schema that nothing else uses: a fresh, empty store for a test."""
        name = f"store_{next(self._names)}"
        with psycopg.connect(self._connection("postgres"), autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(name)))
        return f"postgresql+psycopg://{UNPRIVILEGED}@/postgres?host={self.folder}&options=-csearch_path%3D{name}"

    def connect(self, url: str) -> psycopg.Connection[tuple[object, ...]]:
        """A connection to such a store past our own code, which commits each statement."""
        options = unquote(url.partition("options=")[2])
        return psycopg.connect(f"{self._connection('postgres')} options={options}", autocommit=True)

    def _connection(self, database: str) -> str:
        return f"host={self.folder} user={UNPRIVILEGED} dbname={database}"


def running_server() -> AbstractContextManager[Server]:
    """A server that lives as long as the block; skips where none can be started."""
    return retried("PostgreSQL", lambda _: _server())


@contextmanager
def _server() -> Iterator[Server]:
    if (reason := why_none()) is not None:
        pytest.skip(reason)
    programs = server_programs()
    assert programs is not None
    folder = Path(tempfile.mkdtemp(prefix="frontrunner-pg-", dir="/tmp"))
    try:
        if os.geteuid() == 0:
            shutil.chown(folder, UNPRIVILEGED)
        made = [
            str(programs / "initdb"),
            "-D",
            str(folder / "data"),
            "-U",
            UNPRIVILEGED,
            "-A",
            "trust",
            "--no-sync",
        ]
        subprocess.run(
            [*unprivileged(), *made, "-E", "UTF8", "--locale=C.UTF-8"],
            check=True,
            capture_output=True,
            cwd=folder,
        )
        server = Server(programs=programs, folder=folder)
        server.start()
        try:
            yield server
        finally:
            server.stop(kill=True)  # nothing of it is needed any more
    finally:
        shutil.rmtree(folder, ignore_errors=True)
