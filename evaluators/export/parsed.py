"""JSON and YAML of other tools, read within limits."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from frontrunner.spaces.errors import InvalidInput
from frontrunner.spaces.wording import shown_key

if TYPE_CHECKING:
    import yaml

MOST_YAML_CHARACTERS = 64 * 1024
"""The parser, which is written in Python, takes half a second for so many."""
MOST_VALUES = 20_000
MERGE_TAG = "tag:yaml.org,2002:merge"
DEEPEST = 32
"""Levels of lists and tables; configurations of these tools have five."""


def json_table(text: str) -> dict[str, Any]:
    """The object that a JSON text holds; raises `InvalidInput` for any other text, and for a key given twice."""

    def table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                raise InvalidInput(f"the key {shown_key(key)} is given twice")
            found[key] = value
        return found

    try:
        found = json.loads(text, object_pairs_hook=table)
    except json.JSONDecodeError as error:
        raise InvalidInput(f"not valid JSON: {error.msg} at line {error.lineno}, column {error.colno}") from None
    except RecursionError:
        raise InvalidInput("not usable JSON: nested too deeply") from None
    except InvalidInput:
        raise
    except ValueError:  # Python converts no more than 4,300 decimal digits
        raise InvalidInput("not usable JSON: one of its numbers has thousands of digits") from None
    if not isinstance(found, dict):
        raise InvalidInput("not usable JSON: expected a table of keys and values")
    return found


def yaml_table(text: str) -> dict[str, Any]:
    """The mapping that a YAML text holds; raises `InvalidInput` for any other text. Builds plain values alone."""
    import yaml

    if len(text) > MOST_YAML_CHARACTERS:
        raise InvalidInput(f"not usable YAML: {len(text):,} characters: at most {MOST_YAML_CHARACTERS:,} do")
    try:
        found = yaml.load(text, Loader=_loader())  # noqa: S506 - a SafeLoader that reads less
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise InvalidInput(f"not valid YAML: {getattr(error, 'problem', None) or 'it cannot be read'}{where}") from None
    except RecursionError:
        raise InvalidInput("not usable YAML: nested too deeply") from None
    except ValueError as error:
        raise InvalidInput(f"not usable YAML: {error}") from None
    if not isinstance(found, dict):
        raise InvalidInput("not usable YAML: expected a mapping")
    _refuse_bomb(found)
    return found


@cache
def _loader() -> type[yaml.SafeLoader]:
    """A loader of plain values without merge keys, which copy what they name while the text is still being read."""
    import yaml

    class Loader(yaml.SafeLoader):  # type: ignore[misc]  # the library tells no types
        def flatten_mapping(self, node: yaml.MappingNode) -> None:
            for key, _ in node.value:
                if key.tag == MERGE_TAG:
                    raise yaml.constructor.ConstructorError(None, None, "merge keys (<<) are not read", key.start_mark)
            super().flatten_mapping(node)

    return Loader


def _refuse_bomb(table: dict[str, Any]) -> None:
    """Raise `InvalidInput` for a value that holds itself, or that repeats others until it is huge."""
    waiting: list[tuple[int, Any]] = [(0, table)]
    seen = 0
    while waiting:
        depth, value = waiting.pop()
        seen += 1
        if seen > MOST_VALUES or depth > DEEPEST:
            raise InvalidInput(f"not usable YAML: nested more than {DEEPEST} deep, or more than {MOST_VALUES:,} values")
        if isinstance(value, Mapping):
            waiting += [(depth + 1, item) for item in value.values()]
        elif isinstance(value, list | tuple | set):
            waiting += [(depth + 1, item) for item in value]


def yaml_text(table: Mapping[str, Any], depth: int = 0) -> str:
    """A table of tables and plain values as YAML; text is written as JSON writes it, which YAML reads."""
    lines = []
    for key, value in table.items():
        if isinstance(value, Mapping) and value:
            lines.append(f"{'  ' * depth}{key}:\n{yaml_text(value, depth + 1)}")
        else:
            lines.append(f"{'  ' * depth}{key}: {_scalar(value)}\n")
    return "".join(lines)


def _scalar(value: object) -> str:
    """A plain value as JSON writes it; YAML 1.1 takes a number with an exponent for text unless it has a dot."""
    text = json.dumps(value)
    if isinstance(value, float) and "e" in text and "." not in text:
        return text.replace("e", ".0e")
    return text
