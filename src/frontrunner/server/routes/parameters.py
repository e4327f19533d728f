"""Parameters that several routes share."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Query

from frontrunner.spaces.names import CAMPAIGN_NAME

MOST_PAGES = 1_000_000

CampaignName = Annotated[
    str, Path(pattern=f"^{CAMPAIGN_NAME.pattern}$", description="A campaign's name.", examples=["frontier-22b"])
]
RecipeId = Annotated[
    str, Path(pattern="^[0-9a-f]{4,64}$", description="A recipe's id, or a beginning of it that no other has.")
]
PageNumber = Annotated[int, Query(ge=1, le=MOST_PAGES, description="The page, from 1.")]
PageSize = Annotated[int, Query(ge=1, le=200, description="Items on a page.")]
