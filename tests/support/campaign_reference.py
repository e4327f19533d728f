"""Reference tables of docs/campaign-file.md, generated from the configuration tree.

A table stands after each marker `<!-- keys of SECTION -->` of the page.
"""

from __future__ import annotations

import json
import re
from typing import Any

from frontrunner.config.campaign import SECTIONS, CampaignConfig, section_schema
from frontrunner.spaces.validation import inlined_schema

TOP = "the top level"
_MARKED = re.compile(r"(<!-- keys of ([^>]+) -->\n)(?:\|.*\n)*")


def table(section: str) -> str:
    """Return the Markdown table of a section's keys, or of the keys at the top of the file."""
    if section == TOP:
        whole = inlined_schema(CampaignConfig)["properties"]
        keys, required = {key: whole[key] for key in whole if key not in SECTIONS}, set()
    else:
        section, *inner = section.split(".")
        schema = section_schema(section)
        for key in inner:
            schema = schema["properties"][key]
        keys, required = schema["properties"], set(schema.get("required", ()))
    rows = [
        f"| `{key}` | {_default(one, key in required)} | {_meaning(one)} |"
        for key, one in keys.items()
    ]
    return "\n".join(["| key | default | meaning |", "|---|---|---|", *rows, ""])


def _default(schema: dict[str, Any], is_required: bool) -> str:
    if is_required:
        return "required"
    value = schema.get("default")
    if value is None or value == [] or isinstance(value, dict):
        return ""
    return f"`{value:g}`" if isinstance(value, float) else f"`{json.dumps(value)}`"


def _meaning(schema: dict[str, Any]) -> str:
    text = " ".join(schema.get("description", "").split())
    text = text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")
    parts = [schema, *schema.get("anyOf", ())]
    nested = [key for part in parts for key in part.get("properties", ())]
    words = [word for part in parts for word in part.get("enum", ())]
    if nested:
        text += f" Keys: {', '.join(f'`{key}`' for key in nested)}."
    if words and not all(str(word) in text for word in words):
        text += f" One of {', '.join(f'`{word}`' for word in dict.fromkeys(words))}."
    return text.replace("|", "\\|")


def updated(page: str) -> str:
    """Return the page with the table after each marker replaced."""
    return _MARKED.sub(lambda found: found[1] + table(found[2]), page)
