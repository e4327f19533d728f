"""Services to test: one inside the test's process, one as a process of its own, and a store for
them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fastapi.testclient import TestClient

from frontrunner.remote import RemoteStore
from frontrunner.results.outcome import Failure, FailureKind
from frontrunner.results.states import CampaignState
from frontrunner.results.status import active_drivers
from frontrunner.results.store import open_store
from frontrunner.server.app import create_app
from frontrunner.server.auth import Tokens, read_tokens
from frontrunner.server.settings import Limits, ServiceSettings
from support.rankings import measurement, record, start

ORIGIN = "http://127.0.0.1:8787"
UNLIMITED = Limits(requests_per_s=1e6, request_burst=1_000_000, cache_s=0.0)
BODY = {
    "name": "by-wire",
    "evaluator": "simulated",
    "model": {"layers": 4, "hidden": 128, "heads": 8, "vocabulary": 257},
    "cluster": {
        "device": "test",
        "backend": "cpu",
        "devices_per_node": 4,
        "memory_gib_per_device": 1.0,
    },
    "problem": {"sequence_length": 128, "global_batch": 16, "precision": "fp32"},
    "space": {"tensor_parallel": [1, 2, 4], "micro_batch_seqs": [1, 2]},
    "budget": {"probes": 3},
}


def settings(folder: Path, limits: Limits = UNLIMITED, **others: Any) -> ServiceSettings:
    return ServiceSettings(
        store=str(folder / "store.db"),
        token_file=folder / "tokens" / "tokens.json",
        limits=limits,
        **others,
    )


@contextmanager
def browser(chosen: ServiceSettings) -> Iterator[TestClient]:
    """Requests to a service inside this process, without a token unless one is given."""
    with TestClient(create_app(chosen), base_url=ORIGIN, raise_server_exceptions=False) as client:
        yield client


@contextmanager
def signed_in(
    chosen: ServiceSettings, role: str = "operator", **headers: str
) -> Iterator[TestClient]:
    """Requests to a service inside this process with a role's token."""
    with browser(chosen) as client:
        client.headers.update(bearer(getattr(tokens_of(chosen), role)) | headers)
        yield client


def tokens_of(chosen: ServiceSettings) -> Tokens:
    return read_tokens(chosen.token_file)


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def filled(folder: Path) -> Path:
    """A store with a finished campaign of three measured recipes and a failed one."""
    path = folder / "store.db"
    with open_store(str(path)) as store:
        writer = start(store, "first")
        writer.set_state(CampaignState.RUNNING, reason="")
        for number, (step_s, memory) in enumerate(
            [(1.0, 4_000), (0.5, 8_000), (2.0, 2_000)], start=1
        ):
            record(
                writer, f"{number:012x}", measurement((step_s, 1.1 * step_s), memory), number=number
            )
        failure = Failure(
            kind=FailureKind.CRASHED, message="<script>alert(1)</script>", log_tail="the end\n"
        )
        record(writer, f"{9:012x}", failure, number=9)
        writer.event("evidence", learned_from=0)
        writer.release(CampaignState.FINISHED, reason="the budget is used up")
    return path


class Served:
    """`frontrunner serve` as a process of its own, over the store in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process: subprocess.Popen[str] | None = None
        self.url = ""

    @property
    def token_file(self) -> Path:
        return self.folder / "tokens" / "tokens.json"

    def start(self, *more: str) -> RemoteStore:
        """Start it, with `more` options, and wait for the link that it prints."""
        arguments = [
            "serve",
            "--port",
            "0",
            "--store",
            "store.db",
            "--token-file",
            str(self.token_file),
            *more,
        ]
        environment = {
            key: value for key, value in os.environ.items() if not key.startswith("FRONTRUNNER_")
        }
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "frontrunner.cli", *arguments],
            cwd=self.folder,
            env=environment | {"OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self.process.stdout
        self.url = self.process.stdout.readline().partition("/login")[0]
        return RemoteStore(self.url, read_tokens(self.token_file).operator)

    def kill(self) -> None:
        """As a machine does that runs out of memory: at once, without a word."""
        if self.process is not None:
            self.process.kill()
            self.process.communicate()


@contextmanager
def served(folder: Path) -> Iterator[Served]:
    service = Served(folder)
    try:
        yield service
    finally:
        service.kill()
        _kill_drivers(folder / "store.db")


def _kill_drivers(path: Path) -> None:
    """What a test that failed has left running."""
    if path.exists():
        with open_store(str(path)) as store:
            for driver in active_drivers(store):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(driver.pid, signal.SIGKILL)


def remote(service: TestClient, token: str) -> RemoteStore:
    """A client of a service inside this process."""
    return RemoteStore(ORIGIN, token, client=service)
