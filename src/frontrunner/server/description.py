"""The API's description: what FastAPI knows of the routes, and beside it campaign files, tokens and examples."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

from fastapi import FastAPI

from frontrunner.config.campaign import section_schema
from frontrunner.server.guards import COOKIE
from frontrunner.server.models import FORBIDDEN_KEYS, SECTIONS
from frontrunner.server.registered import KINDS, Registered

Document = dict[str, Any]
BODIES = ("CampaignBody", "PlanBody")
"""The bodies that are campaign files."""
SCHEMES: Document = {
    "token": {
        "type": "http",
        "scheme": "bearer",
        "description": "A token of the service's token file: an operator's may launch and stop, a reader's look.",
    },
    "session": {
        "type": "apiKey",
        "in": "cookie",
        "name": COOKIE,
        "description": "What a browser holds after it followed a link that `frontrunner serve` printed.",
    },
}
REFUSED: Document = {
    "error": {
        "kind": "InvalidInput",
        "message": "unknown section [budgets]",
        "hint": "did you mean 'budget'?",
    }
}
"""An example of an answer that says no."""


def describe(app: FastAPI, known: Registered) -> None:
    """Have the app's OpenAPI document say what its routes alone do not; it is made when it is first asked for."""
    describe_routes = app.openapi
    made: list[Document] = []

    def described() -> Document:
        if not made:
            made.append(_with_campaign_files(_with_tokens(_with_examples(describe_routes())), known))
        return made[0]

    app.openapi = described  # type: ignore[method-assign]  # FastAPI's own way to extend it


def examples() -> dict[str, Any]:
    """Operation, as `GET /api/v1/campaigns`, -> its answer once, from a small store; text for what is not JSON."""
    text = files("frontrunner.server").joinpath("examples.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def _with_campaign_files(document: Document, known: Registered) -> Document:
    """The sections of a launch as the reader of campaign files has them, and the names that are registered."""
    schemas = document["components"]["schemas"]
    for section in SECTIONS:
        schemas[_named(section)] = _of_the_wire(section)
        for body in BODIES:
            schemas[body]["properties"][section] = {"$ref": f"#/components/schemas/{_named(section)}"}
    for body in BODIES:
        for kind in KINDS:
            if known.names(kind):
                schemas[body]["properties"][kind]["anyOf"][0]["enum"] = list(known.names(kind))
    return document


def _named(section: str) -> str:
    return f"{section.capitalize()}Section"


def _of_the_wire(section: str) -> Document:
    """A section without the keys that name files; a cluster may be all a site's."""
    schema = section_schema(section)
    for key in FORBIDDEN_KEYS.get(section, ()):
        schema["properties"].pop(key, None)
    if section == "cluster":  # a registered site may stand for all that is needed
        del schema["anyOf"]
    return {"title": _named(section), **schema}


def _with_tokens(document: Document) -> Document:
    document["components"]["securitySchemes"] = SCHEMES
    document["security"] = [{name: []} for name in SCHEMES]
    return document


def _with_examples(document: Document) -> Document:
    """An example beside each answer that has one."""
    shown = examples()
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            for status, answer in operation["responses"].items():
                told = REFUSED if status in ("4XX", "5XX") else shown.get(f"{method.upper()} {path}")
                if told is not None:
                    for content in answer.get("content", {}).values():
                        content["example"] = told
    return document
