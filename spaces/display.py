"""Display of values in notebooks and interpreters.

This module knows no class: `frontrunner.views.notebook` registers the HTML of each class.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any

MOST_CHARACTERS = 400
_WORDS = reprlib.Repr()
_WORDS.maxlevel, _WORDS.maxstring, _WORDS.maxother = 2, 60, 120
_WORDS.maxtuple = _WORDS.maxlist = _WORDS.maxdict = 3

_HTML: dict[type, Callable[[Any], str]] = {}
_LOADERS: list[Callable[[], object]] = []


def register_html(kind: type, html: Callable[[Any], str]) -> None:
    """Let notebooks show values of this class, and of its subclasses, as `html(value)`."""
    _HTML[kind] = html


def register_loader(load: Callable[[], object]) -> None:
    """Call `load` before a value is shown, so that the views are imported only when needed."""
    _LOADERS.append(load)


def in_short(value: Any) -> dict[str, str]:
    """Return the fields of a dataclass as short texts."""
    return {one.name: _WORDS.repr(getattr(value, one.name)) for one in fields(value) if one.repr}


def _short_repr(value: Any) -> str:
    name = type(value).__name__
    if is_dataclass(value):
        parts = (f"{name}={text}" for name, text in in_short(value).items())
        text = f"{name}({', '.join(parts)})"
    else:
        text = (
            f"<{name} of {len(value)}:"
            f" {', '.join(map(_WORDS.repr, value[:1]))}{', ...' if len(value) > 1 else ''}>"
        )
    return text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}..."


class Displayed:
    """A value with a short `repr`, and with HTML for notebooks."""

    def __init_subclass__(cls, **options: Any) -> None:
        """Give the class the short `repr`. A dataclass would generate one with all its fields."""
        super().__init_subclass__(**options)
        if "__repr__" not in vars(cls):
            setattr(cls, "__repr__", _short_repr)  # noqa: B010 - which mypy takes for a method's replacement

    def _repr_html_(self) -> str:
        for load in _LOADERS:
            load()
        kind = next(kind for kind in type(self).__mro__ if kind in _HTML)
        return _HTML[kind](self)
