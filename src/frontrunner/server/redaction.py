"""Redaction of what HTTP responses must not carry: commands and nodes may be given keys and passwords."""

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
"""Keys of [dispatch] with lines for shells and batch systems, which are removed."""


def redacted_status(found: Status) -> Status:
    """Return a status without secrets."""
    return replace(found, campaign=redacted_campaign(found.campaign))


def redacted_explanation(found: Explanation) -> Explanation:
    """Return an explanation without the secrets of its campaigns."""
    redacted = (replace(one, campaign=redacted_campaign(one.campaign)) for one in found.appearances)
    return replace(found, appearances=tuple(redacted))


def redacted_campaign(campaign: Campaign) -> Campaign:
    """Return a campaign whose specification can be read, but not run where its command or nodes need a secret."""
    return replace(campaign, spec_json=_redacted(campaign.spec_json))


@lru_cache(maxsize=256)
def _redacted(spec_json: str) -> str:
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
