"""Ports of ranks: none is chosen before it is used, so none can be taken in between."""

from __future__ import annotations

import json
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import torch.distributed as dist

from frontrunner.evaluators.trainer.rendezvous import FILE, rendezvous_url

MEETINGS = 12


def met(folder: Path) -> int:
    """Have two ranks meet in a folder, and return the port."""
    folder.mkdir()

    def rank(number: int) -> dist.Store:
        store, *_ = next(dist.rendezvous(rendezvous_url(folder), rank=number, world_size=2))
        return store

    with ThreadPoolExecutor(2) as ranks:
        first, second = ranks.map(rank, range(2))
        first.set("greeting", folder.name)
        assert second.get("greeting").decode() == folder.name, (
            "they met each other, and nobody else"
        )
        port = int(json.loads((folder / FILE).read_text())["port"])
        with closing(socket.socket()) as taker:
            assert taker.connect_ex(("127.0.0.1", port)) == 0, "it is in use when it is told"
        return port


def test_meetings_at_one_time_have_ports_of_their_own(tmp_path: Path) -> None:
    with ThreadPoolExecutor(MEETINGS) as meetings:
        ports = list(meetings.map(met, [tmp_path / str(number) for number in range(MEETINGS)]))
    assert len(ports) == MEETINGS
