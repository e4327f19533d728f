"""Sharding: over how many copies of the model each kind of state is spread, and the names of
that.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

from frontrunner.spaces.errors import bad_value, did_you_mean

SHARDING_NAMES = ("none", "zero-1", "zero-2", "zero-3")
_DEGREE = "([1-9][0-9]{0,8})"
HYBRID = re.compile(f"hybrid-{_DEGREE}", re.ASCII)
THREE_LEVEL = re.compile(f"3-level-{_DEGREE}/{_DEGREE}(?:/{_DEGREE})?", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Sharding:
    """Over how many copies of the model (`Recipe.copies`) parameters, gradients and optimizer
    states are each spread.

    Degrees divide one another and the number N of copies: (1,1,1) is plain data parallelism,
    (1,1,N) ZeRO-1, (1,N,N) ZeRO-2, (N,N,N) ZeRO-3 / FSDP, (k,k,k) hybrid sharding (arXiv
    1910.02054, 2304.11277), (2,8,N) the three-level partitioning for Frontier (arXiv 2501.04266).
    """

    parameters: int = 1
    gradients: int = 1
    optimizer: int = 1

    @classmethod
    def named(cls, name: str, copies: int) -> Self:
        """Return the degrees of a name over the copies: none, zero-1, zero-2, zero-3, hybrid-K,
        3-level-P/G.

        hybrid-K spreads all three over K copies; 3-level-P/G parameters over P, gradients over G
        and optimizer states over all, or 3-level-P/G/O over O. With one copy every name gives
        (1,1,1).
        """
        degrees: tuple[int | str, ...]
        if name in SHARDING_NAMES:
            level = SHARDING_NAMES.index(name)
            degrees = tuple(copies if level >= least else 1 for least in (3, 2, 1))
        elif hybrid := HYBRID.fullmatch(name):
            degrees = (hybrid[1],) * 3
        elif levels := THREE_LEVEL.fullmatch(name):
            degrees = (levels[1], levels[2], levels[3] or copies)
        else:
            raise bad_value(
                "space.sharding",
                name,
                f"one of {', '.join(SHARDING_NAMES)}, hybrid-K for groups of K replicas, or"
                " 3-level-P/G for parameters over P and gradients over G of them",
                hint=did_you_mean(name, (*SHARDING_NAMES, "hybrid-2", "3-level-2/8")),
            )
        p, g, o = (int(degree) if copies > 1 else 1 for degree in degrees)
        return cls(parameters=p, gradients=g, optimizer=o)

    @property
    def degrees(self) -> tuple[int, int, int]:
        """(parameters, gradients, optimizer)."""
        return self.parameters, self.gradients, self.optimizer

    def name(self, copies: int) -> str:
        """Return the common name of these degrees where one exists, else 3-level-p/g/o; `named`
        reads each back.
        """
        for name in SHARDING_NAMES:
            if self.degrees == Sharding.named(name, copies).degrees:
                return name
        p, g, o = self.degrees
        return f"hybrid-{p}" if p == g == o else f"3-level-{p}/{g}/{o}"


UNSHARDED = Sharding()
