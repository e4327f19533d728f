"""Files of the repository that are made from the code; `make kept` writes them anew."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from support import campaign_reference, command_reference, recipe_reference

ROOT = Path(__file__).parents[2]


def _recipe_schema(_: str) -> str:
    return json.dumps(recipe_reference.schema(), indent=2) + "\n"


KEPT: dict[str, Callable[[str], str]] = {
    "docs/commands.md": command_reference.updated,
    "docs/campaign-file.md": campaign_reference.updated,
    "docs/recipe.schema.json": _recipe_schema,
}
"""The content that a file should have, as a function of the content that it has."""


def main() -> None:
    """Write each file that is not as the code makes it, and print its name."""
    for name, made in KEPT.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        if made(text) != text:
            (ROOT / name).write_text(made(text), encoding="utf-8")
            print(name)  # noqa: T201


if __name__ == "__main__":
    main()
