"""The service inside this process, asked with bodies that are no good."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fastapi.testclient import TestClient

from frontrunner.results.store import open_store
from frontrunner.server.app import create_app
from frontrunner.server.auth import read_tokens
from frontrunner.server.settings import Limits, ServiceSettings

UNLIMITED = Limits(requests_per_s=1e6, request_burst=1_000_000)
PATH = "/api/v1/plan"
"""What takes a campaign's body and starts nothing: launching takes the same body, by the same
functions.
"""


def service(folder: Path) -> Callable[[Path], None]:
    """A reader that sends a file's bytes as a body, and takes an answer of 500 for an error of
    ours.
    """
    store = folder / "served.db"
    open_store(str(store)).close()
    chosen = ServiceSettings(store=str(store), token_file=folder / "tokens.json", limits=UNLIMITED)
    app = create_app(chosen)
    client = TestClient(app, base_url="http://127.0.0.1:8787", raise_server_exceptions=True)
    token = read_tokens(chosen.token_file).operator
    headers = {"Authorization": f"Bearer {token}", "content-type": "application/json"}

    def ask(path: Path) -> None:
        answer = client.post(PATH, content=path.read_bytes(), headers=headers)
        if answer.status_code not in (200, 400, 404, 409, 413, 422):
            raise AssertionError(f"answered {answer.status_code}: {answer.text[:300]}")
        if answer.status_code != 200 and not answer.json()["detail"]:
            raise AssertionError("a refusal without a message")

    return ask
