"""The API's OpenAPI document: FastAPI's, with the sections of campaign files, tokens and errors."""

from __future__ import annotations

from copy import deepcopy
from functools import cache
from typing import Any

from fastapi import FastAPI

from frontrunner.config.campaign import section_schema
from frontrunner.server.middleware import COOKIE
from frontrunner.server.registered import KINDS, Registered
from frontrunner.server.requests import FORBIDDEN_KEYS, SECTIONS, ErrorAnswer

Document = dict[str, Any]
BODIES = ("CampaignBody", "PlanBody")
"""The bodies that are campaign files."""
SCHEMES: Document = {
    "token": {
        "type": "http",
        "scheme": "bearer",
        "description": "A token of the service's token file: an operator's may launch and stop, a reader's read.",
    },
    "session": {
        "type": "apiKey",
        "in": "cookie",
        "name": COOKIE,
        "description": "Set in a browser that opened a link of `frontrunner serve`.",
    },
}
ERROR = {"error": {"kind": "InvalidInput", "message": "unknown section [budgets]", "hint": "did you mean 'budget'?"}}
ERRORS: dict[int | str, Document] = {
    status: {"model": ErrorAnswer, "description": text, "content": {"application/json": {"example": ERROR}}}
    for status, text in (("4XX", "Refused"), ("5XX", "Not possible now"))
}
"""Responses of every route that are errors."""


def describe(app: FastAPI, known: Registered) -> None:
    """Extend the app's OpenAPI document; it is made when it is first requested."""
    describe_routes = app.openapi

    @cache
    def described() -> Document:
        document = describe_routes()
        document["components"]["securitySchemes"] = SCHEMES
        document["security"] = [{name: []} for name in SCHEMES]
        _add_campaign_files(document["components"]["schemas"], known)
        return document

    app.openapi = described  # type: ignore[method-assign]  # FastAPI's own way to extend it


def _add_campaign_files(schemas: Document, known: Registered) -> None:
    """Add the sections of a launch, as campaign files have them, and the registered names."""
    for section in SECTIONS:
        title = f"{section.capitalize()}Section"
        schema = deepcopy(section_schema(section))  # which is shared
        for key in FORBIDDEN_KEYS.get(section, ()):
            schema["properties"].pop(key, None)
        if section == "cluster":  # a registered site may provide all that is needed
            del schema["anyOf"]
        schemas[title] = {"title": title, **schema}
        for body in BODIES:
            schemas[body]["properties"][section] = {"$ref": f"#/components/schemas/{title}"}
    for body in BODIES:
        for kind in KINDS:
            if known.names(kind):
                schemas[body]["properties"][kind]["anyOf"][0]["enum"] = list(known.names(kind))
