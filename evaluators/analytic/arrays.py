"""Arrays with one entry for each recipe, or with one entry where all recipes agree."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]


def number(value: float) -> Rows:
    """Return a value that holds for every recipe."""
    return np.array([value], dtype=np.float64)


@dataclass(frozen=True, kw_only=True)
class Sum:
    """Arrays named by what they count, which add up to `total`."""

    @property
    def total(self) -> Rows:
        """The sum of all fields."""
        parts: list[Rows] = [getattr(self, part.name) for part in fields(self)]
        return sum(parts[1:], start=parts[0])
