"""From a body of the wire to the table of a campaign file."""

from __future__ import annotations

import math
from pathlib import Path

from frontrunner.campaign_file import CampaignFile, parse_campaign
from frontrunner.service.models import FORBIDDEN_KEYS, CampaignBody
from frontrunner.spaces.errors import InvalidInput, bad_value
from frontrunner.spaces.names import FALLBACK
from frontrunner.spaces.wording import shown


def campaign_table(body: CampaignBody) -> dict[str, object]:
    """The table as a campaign file would hold it; raises `InvalidInput` for a key that names a file."""
    names = CampaignBody.model_fields
    table = {name: value for name in names if (value := getattr(body, name)) is not None}
    for section, keys in FORBIDDEN_KEYS.items():
        for key in keys:
            if key in table[section]:
                raise bad_value(f"{section}.{key}", table[section][key], "no path from the wire, in a service")
    return table


def parsed(table: dict[str, object]) -> CampaignFile:
    """The campaign of such a table; raises `InvalidInput` for what is no campaign."""
    return parse_campaign(table, default_name=FALLBACK, base=Path.cwd())


def campaign_from(body: CampaignBody, *, most_points: int) -> CampaignFile:
    """The campaign of a body; raises `InvalidInput` for a space of more than `most_points` points."""
    file = parsed(campaign_table(body))
    dimensions = file.spec.space.dimensions(file.spec.problem.cluster)
    points = math.prod(len(values) for values in dimensions.values())
    if points > most_points:
        raise InvalidInput(
            f"space has {shown(points)} points: a service plans at most {most_points:,}",
            hint="narrow a dimension, or run `frontrunner plan` where the time is yours",
        )
    return file
