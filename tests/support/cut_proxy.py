"""A socket between a client and a PostgreSQL server that loses the answer to a commit, as a broken
network does.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

SOCKET_NAME = ".s.PGSQL.5432"
COMMIT = b"COMMIT\x00"
"""The whole statement: one that begins a transaction may name READ COMMITTED."""


class Proxy:
    """Passes everything on, but once `cut_next_commit` is set delivers a commit to the server and
    not its answer.
    """

    def __init__(self, listening: socket.socket, server: Path) -> None:
        self.cut_next_commit = False
        self.cuts = 0
        self._listening = listening
        self._server = server

    def serve(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:  # closed: the test is over
                return
            Thread(target=self._pass_on, args=(client,), daemon=True).start()

    def _pass_on(self, client: socket.socket) -> None:
        with client, socket.socket(socket.AF_UNIX) as server:
            server.connect(str(self._server / SOCKET_NAME))
            answers = Thread(target=self._answer, args=(server, client), daemon=True)
            answers.start()
            while data := _received(client):
                if self.cut_next_commit and COMMIT in data:
                    self.cut_next_commit = False
                    self._cut_after(server, client, data)
                    break
                server.sendall(data)
            _shut(server)
            answers.join()

    def _cut_after(self, server: socket.socket, client: socket.socket, commit: bytes) -> None:
        _shut(client)  # the answer finds nobody
        server.sendall(commit)
        self.cuts += 1

    def _answer(self, server: socket.socket, client: socket.socket) -> None:
        while data := _received(server):
            try:
                client.sendall(data)
            except OSError:  # a client that was cut off; the server's answer is read and dropped
                continue
        _shut(client)


def _received(source: socket.socket) -> bytes:
    try:
        return source.recv(65536)
    except OSError:
        return b""


def _shut(end: socket.socket) -> None:
    try:
        end.shutdown(socket.SHUT_RDWR)
    except OSError:  # it is shut already
        return


@contextmanager
def proxy_before(server: Path, folder: Path) -> Iterator[Proxy]:
    """A proxy whose socket lies in `folder`, before the server whose socket lies in `server`."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(folder / SOCKET_NAME))
        listening.listen()
        proxy = Proxy(listening, server)
        Thread(target=proxy.serve, daemon=True).start()
        yield proxy
        _shut(listening)
