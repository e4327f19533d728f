"""The service held to its own OpenAPI document, by requests made up from it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance

from frontrunner.server.app import create_app
from support.services import bearer, filled, tokens_of
from support.services import settings as service_settings

STARTS_A_PROCESS = {
    ("POST", "/api/v1/campaigns"),
    ("POST", "/api/v1/campaigns/{name}/resume"),
    ("POST", "/api/v1/replays"),
}
NEVER_ENDS = "/api/v1/campaigns/{name}/events"
CHECKS = [not_a_server_error, content_type_conformance, response_schema_conformance]


@pytest.fixture(scope="module")
def described(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, dict[str, str]]]:
    folder = Path(tmp_path_factory.mktemp("schema"))
    filled(folder)
    chosen = service_settings(folder)
    app = create_app(chosen)
    headers = bearer(tokens_of(chosen).operator) | {"host": "localhost"}
    yield schemathesis.openapi.from_asgi("/api/v1/openapi.json", app, headers=headers), headers
    app.state.service.store.close()


@pytest.mark.nightly
def test_no_request_breaks_it_and_answers_are_as_described(
    described: tuple[Any, dict[str, str]],
) -> None:
    schema, headers = described
    asked = 0
    for found in schema.get_all_operations():
        operation = found.ok()
        if (
            operation.path == NEVER_ENDS
            or (operation.method.upper(), operation.path) in STARTS_A_PROCESS
        ):
            continue

        @settings(
            max_examples=20, deadline=None, database=None, suppress_health_check=list(HealthCheck)
        )
        @given(case=operation.as_strategy())
        def ask(case: Any) -> None:
            case.call_and_validate(headers=headers, checks=CHECKS)

        ask()
        asked += 1
    assert asked >= 18
