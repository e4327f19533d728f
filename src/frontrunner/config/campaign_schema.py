"""The sections of a campaign file as JSON Schema, made from the types by which `campaign_file` reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from frontrunner.config.campaign_file import model_table
from frontrunner.config.cluster_file import cluster_table
from frontrunner.config.file_sections import KEYS, SECTION_TYPES
from frontrunner.search.strategy import STRATEGIES
from frontrunner.spaces.presets import cluster_names, device_names, model_names
from frontrunner.spaces.recipe import DIMENSIONS

Schema = dict[str, Any]


def section_schema(section: str) -> Schema:
    """One section with all of its keys, their types and defaults, and what the section is about.

    It is complete in itself. What it cannot say, such as which values go together, the reader of the file does.
    """
    found = TypeAdapter(SECTION_TYPES[section]).json_schema()
    schema: Schema = _plain(found, found.get("$defs", {}))
    schema["properties"] = {key: schema["properties"][key] for key in KEYS[section]}
    needed = [key for key in schema.pop("required", []) if key in KEYS[section]]
    more = {"model": _model, "cluster": _cluster, "problem": _problem, "space": _space, "search": _search}
    if section in more:
        needed = more[section](schema, needed)
    return schema | ({"required": needed} if needed else {})


def _plain(node: Any, definitions: Schema) -> Any:
    """A schema without references and titles, in which a table has no key but those that it names."""
    if isinstance(node, list):
        return [_plain(item, definitions) for item in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        rest = {key: value for key, value in node.items() if key != "$ref"}
        node = definitions[node["$ref"].rpartition("/")[2]] | rest
    plain = {key: _plain(value, definitions) for key, value in node.items() if key not in ("$defs", "title")}
    return plain | ({"additionalProperties": False} if isinstance(node.get("properties"), dict) else {})


def _model(schema: Schema, needed: list[str]) -> list[str]:
    schema["properties"]["preset"] = {"type": "string", "enum": list(model_names())}
    filled = set(model_table({"heads": 1, "hidden": 1})) - {"heads", "hidden"}
    schema["anyOf"] = [{"required": ["preset"]}, {"required": [key for key in needed if key not in filled]}]
    return []


def _cluster(schema: Schema, needed: list[str]) -> list[str]:
    properties = schema["properties"]
    properties["preset"] = {"type": "string", "enum": [*cluster_names(), "this-machine"]}
    properties["file"] = {"type": "string", "description": "The path of a cluster file."}
    properties["device"]["examples"] = list(device_names())
    filled = cluster_table({"device": device_names()[0]}, Path())
    rest = [key for key in needed if key not in filled or key == "device"]
    schema["anyOf"] = [{"required": ["preset"]}, {"required": ["file"]}, {"required": rest}]
    return []


def _problem(schema: Schema, needed: list[str]) -> list[str]:
    count = {"type": "integer", "minimum": 1}
    ends = {"type": "array", "items": count, "minItems": 2, "maxItems": 2}
    schema["properties"]["global_batch"] = {
        "description": "Sequences of an optimizer step, or [minimum, maximum].",
        "anyOf": [count, ends],
    }
    return needed


def _space(schema: Schema, needed: list[str]) -> list[str]:
    """A dimension is a list of values, or one of them."""
    for name, dimension in schema["properties"].items():
        dimension["items"] |= {"enum": list(DIMENSIONS[name].values)} if DIMENSIONS[name].values else {}
        more = {"default": dimension.pop("default"), "description": DIMENSIONS[name].description}
        schema["properties"][name] = {"anyOf": [dimension, dimension["items"]]} | more
    return needed


def _search(schema: Schema, needed: list[str]) -> list[str]:
    schema["properties"]["strategy"]["enum"] = list(STRATEGIES)
    schema["properties"]["baseline"] = {"type": "string", "description": "The path of a recipe file."}
    return needed
