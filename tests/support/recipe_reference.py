"""The JSON Schema of recipe files, as published in docs/recipe.schema.json."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter

from frontrunner.config.recipe_file import FORMAT, KEYS, VERSION, RecipeFile
from frontrunner.spaces.recipe import DIMENSIONS


def schema() -> dict[str, Any]:
    """Return the JSON Schema of the document, as in docs/recipe.schema.json."""
    content = TypeAdapter(RecipeFile).json_schema()
    definitions = content.pop("$defs")
    for table in (content, *definitions.values()):
        table["additionalProperties"] = False
        table.pop("description", None)  # docstrings are for readers of the code
    recipe = definitions["Recipe"]["properties"]
    for one in DIMENSIONS.values():
        recipe[one.stored] = recipe.pop(one.field) | {"description": one.description}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A frontrunner recipe file",
        "type": "object",
        "properties": {
            "format": {"const": FORMAT},
            "version": {"const": VERSION},
            "hash": {"type": "string", "pattern": "^[0-9a-f]{64}$"},
            "content": content,
        },
        "required": list(KEYS),
        "additionalProperties": False,
        "$defs": definitions,
    }
