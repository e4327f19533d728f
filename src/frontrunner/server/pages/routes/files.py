"""Style sheets and scripts."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from frontrunner.server.pages.assets import by_path
from frontrunner.spaces.errors import NotFound

router = APIRouter()
FOR_EVER = "public, max-age=31536000, immutable"


@router.get("/static/{name}")
def static(request: Request, name: str) -> Response:
    """One of the files that pages name, and nothing else; a browser keeps it, since a changed file has another name."""
    found = by_path().get(f"/static/{name}")
    if found is None:
        raise NotFound(f"there is no file {name!r} here")
    headers = {"cache-control": FOR_EVER, "vary": "accept-encoding"}
    if "gzip" in request.headers.get("accept-encoding", ""):
        return Response(found.compressed, headers=headers | {"content-encoding": "gzip"}, media_type=found.media_type)
    return Response(found.plain, headers=headers, media_type=found.media_type)
