"""What of a campaign is not told over HTTP: what its command and its nodes are given may hold keys and passwords."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import lru_cache
from typing import Any

from frontrunner.results.explain import Explanation
from frontrunner.results.records import Campaign
from frontrunner.results.redaction import REDACTED, redact
from frontrunner.results.status import Status

LINES = ("worker_init", "scheduler_options", "launcher_options")
"""Keys of [dispatch] with lines for shells and batch systems, which are left out."""


def status_told(found: Status) -> Status:
    """Where a campaign stands, without what may be secret."""
    return replace(found, campaign=campaign_told(found.campaign))


def explanation_told(found: Explanation) -> Explanation:
    """What is known of a recipe, without what may be secret of its campaigns."""
    told = (replace(one, campaign=campaign_told(one.campaign)) for one in found.appearances)
    return replace(found, appearances=tuple(told))


def campaign_told(campaign: Campaign) -> Campaign:
    """A campaign whose specification can still be read, but not run where its command or its nodes need a secret."""
    return replace(campaign, spec_json=_told(campaign.spec_json))


@lru_cache(maxsize=256)
def _told(spec_json: str) -> str:
    spec: dict[str, Any] = json.loads(spec_json)
    command, dispatch = spec.get("command") or {}, spec.get("dispatch") or {}
    environment, arguments = command.get("environment"), command.get("arguments")
    hidden = [key for key in LINES if dispatch.get(key)]
    if environment:
        command["environment"] = dict.fromkeys(environment, REDACTED)
    if arguments:
        command["arguments"] = list(redact(arguments))
    dispatch.update(dict.fromkeys(hidden, ()))
    return json.dumps(spec) if environment or arguments or hidden else spec_json
