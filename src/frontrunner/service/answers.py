"""Answers as JSON, in the shape that the commands print with `--json`."""

from __future__ import annotations

from fastapi import Response

from frontrunner.plain_json import to_json


def answer(value: object, *, status: int = 200) -> Response:
    """A value of ours as a JSON answer.

    FastAPI's own way would check each answer against its model again, and leave out the derived figures.
    """
    return Response(to_json(value), status_code=status, media_type="application/json")
