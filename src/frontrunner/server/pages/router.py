"""All pages and static files in one router, for `frontrunner.server.app.create_app`."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from frontrunner.server.pages import campaigns, planning, recipes
from frontrunner.server.pages.assets import by_path
from frontrunner.spaces.errors import NotFound

router = APIRouter(include_in_schema=False)
for part in (campaigns, recipes, planning):
    router.include_router(part.router)


@router.get("/static/{name}")
def static(request: Request, name: str) -> Response:
    """A file that pages name; browsers keep it, since a changed file has another name."""
    found = by_path().get(f"/static/{name}")
    if found is None:
        raise NotFound(f"there is no file {name!r} here")
    headers = {"cache-control": "public, max-age=31536000, immutable", "vary": "accept-encoding"}
    if "gzip" in request.headers.get("accept-encoding", ""):
        return Response(found.compressed, headers=headers | {"content-encoding": "gzip"}, media_type=found.media_type)
    return Response(found.plain, headers=headers, media_type=found.media_type)
