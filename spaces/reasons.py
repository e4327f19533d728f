"""The answer "no" as a value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from frontrunner.spaces.problem import Problem
    from frontrunner.spaces.recipe import Recipe


@dataclass(frozen=True)
class Reason:
    """Why a recipe is illegal: a stable code to count by, and the sentence with the numbers."""

    code: str
    text: str

    def __str__(self) -> str:
        return self.text


Rule = Callable[["Recipe", "Problem"], Reason | None]
