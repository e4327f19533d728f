"""Types of arguments of the public functions, checked where a program calls them."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from functools import wraps
from numbers import Integral, Real
from typing import Any, TypeVar

from pydantic import PydanticSchemaGenerationError, PydanticUserError, TypeAdapter, ValidationError

from frontrunner.spaces.errors import bad_value

F = TypeVar("F", bound=Callable[..., Any])


def checks_types(function: F) -> F:
    """Have a function raise `InvalidInput` for an argument of another type than it states.

    An annotation that cannot be resolved while the program runs is not checked.
    """
    adapters: dict[str, TypeAdapter[Any] | None] = {}
    signature = inspect.signature(function)

    @wraps(function)
    def checked(*arguments: Any, **named: Any) -> Any:
        for name, value in signature.bind(*arguments, **named).arguments.items():
            parameter = signature.parameters[name]
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                continue
            if name not in adapters:
                adapters[name] = _adapter(function, parameter.annotation)
            adapter = adapters[name]
            if adapter is None:
                continue
            try:
                adapter.validate_python(_plain_number(value), strict=True)
            except ValidationError:
                expected = f"an argument of type {parameter.annotation}"
                raise bad_value(f"{function.__name__}.{name}", value, expected) from None
        return function(*arguments, **named)

    return checked  # type: ignore[return-value]


def _adapter(function: Callable[..., Any], annotation: object) -> TypeAdapter[Any] | None:
    """Return what checks values against an annotation; None where it cannot be resolved."""
    names = vars(sys.modules[function.__module__])
    try:
        kind: Any = eval(annotation, names) if isinstance(annotation, str) else annotation  # noqa: S307
        return TypeAdapter(kind, config={"arbitrary_types_allowed": True})
    except PydanticUserError:  # a class with a configuration of its own
        return _plain_adapter(kind)
    except (NameError, TypeError, PydanticSchemaGenerationError):
        return None


def _plain_number(value: Any) -> Any:
    """Return a number of another library, such as NumPy, as one of Python; others as they are."""
    if isinstance(value, Integral) and not isinstance(value, int):
        return int(value)
    return float(value) if isinstance(value, Real) and not isinstance(value, int) else value


def _plain_adapter(kind: Any) -> TypeAdapter[Any] | None:
    try:
        return TypeAdapter(kind)
    except (PydanticUserError, PydanticSchemaGenerationError):
        return None
