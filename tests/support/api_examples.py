"""The examples of the API's description, held to what the service answers with.

    python tests/support/api_examples.py

writes them anew after an answer has got another field: each is read as the answer's own type and written as the service
would, so that new fields have their defaults, derived figures are calculated anew, and fields that are gone are gone.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fastapi.routing import APIRoute
from pydantic import BaseModel, TypeAdapter

from frontrunner.plain_json import as_plain
from frontrunner.server.app import API, ROUTERS
from frontrunner.server.description import examples

PLACE = Path(__file__).parents[2] / "src" / "frontrunner" / "service" / "examples.json"


def routes() -> dict[str, APIRoute]:
    """Operation, as `GET /api/v1/campaigns`, -> its route."""
    found = [route for router in ROUTERS for route in router.routes if isinstance(route, APIRoute)]
    return {f"{next(iter(route.methods))} {API}{route.path}": route for route in found}


def as_answered(kind: Any, example: Any) -> Any:
    """An answer as the service writes it, read as `kind` first."""
    value = TypeAdapter(kind).validate_python(example)
    return value.model_dump(mode="json") if isinstance(value, BaseModel) else as_plain(value)


if __name__ == "__main__":
    kinds = {name: route.response_model for name, route in routes().items()}
    told = {
        name: shown if kinds[name] is None else as_answered(kinds[name], shown) for name, shown in examples().items()
    }
    PLACE.write_text(json.dumps(told, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
