"""How pydantic reads and writes a model: as a table of keys. Ranks of a probe do not import it."""

from __future__ import annotations

import ast
import inspect
import itertools
from collections.abc import Callable
from dataclasses import field, is_dataclass, make_dataclass
from functools import cache
from typing import Annotated, Any, cast

from pydantic import Field, GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from frontrunner.spaces.model.keys import REQUIRED, keys_of
from frontrunner.spaces.model.model import KEYS, PARTS, Model


def schema_of_keys(handler: GetCoreSchemaHandler) -> CoreSchema:
    """Return the schema of a table of keys that becomes a `Model`; a `Model` is left as it is."""
    return core_schema.no_info_wrap_validator_function(
        _read,
        handler(_table()),
        serialization=core_schema.plain_serializer_function_ser_schema(Model.keys),
    )


def _read(value: Any, read_table: Callable[[Any], Any]) -> Model:
    return value if isinstance(value, Model) else Model.from_keys(**vars(read_table(value)))


@cache
def _table() -> type:
    """Return a dataclass whose fields are the keys, with their docstrings as descriptions."""
    described = _descriptions()
    columns: list[tuple[str, Any, Any]] = []
    for one in KEYS.values():
        kind: Any = Annotated[one.type, Field(description=described[one.name])]
        default = field() if one.default is REQUIRED else field(default=one.default)
        columns.append((one.name, kind, default))
    return make_dataclass("Model", columns, kw_only=True, namespace={"__doc__": Model.__doc__})


def _descriptions() -> dict[str, str]:
    """Return the docstring of each key's field; where parts share a key, the first part's."""
    found: dict[str, str] = {}
    for part in PARTS:
        docstrings = _docstrings(part)
        for one in keys_of(part):
            if one.field in docstrings:
                found.setdefault(one.name, docstrings[one.field])
    return found


def _docstrings(part: type) -> dict[str, str]:
    """Return the docstrings of the fields of a part, with those that it inherits."""
    found: dict[str, str] = {}
    for base in part.__mro__:
        if is_dataclass(base):
            (definition,) = ast.parse(inspect.getsource(base)).body
            statements = cast("ast.ClassDef", definition).body
            for statement, following in itertools.pairwise(statements):
                match statement, following:
                    case (
                        ast.AnnAssign(target=ast.Name(id=name)),
                        ast.Expr(value=ast.Constant(value=str(text))),
                    ):
                        found.setdefault(name, inspect.cleandoc(text))
    return found
