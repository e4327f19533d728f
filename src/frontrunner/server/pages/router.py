"""All pages in one router, for `frontrunner.server.app.create_app`."""

from __future__ import annotations

from fastapi import APIRouter

from frontrunner.server.pages.routes import campaigns, files, planning, recipes

router = APIRouter(include_in_schema=False)
for part in (files, campaigns, recipes, planning):
    router.include_router(part.router)
