"""All pages in one router, for `frontrunner.service.app.create_app`."""

from __future__ import annotations

from fastapi import APIRouter

from frontrunner.service.pages.routes import campaigns, files, planning, recipes

router = APIRouter(include_in_schema=False)
for part in (files, campaigns, recipes, planning):
    router.include_router(part.router)
