"""What the DeepSpeed engine's checkpoints state of their flat, unnamed tensors: of which parameters
they are.

Importing this module imports no torch.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import NamedTuple, Self

LAYOUT = ".layout"
"""Ends the name of the uint8 tensor, JSON, that describes the weights whose names begin as its
own.
"""


class StatePart(NamedTuple):
    """Elements of a parameter, of this shape on its tensor-parallel rank, that lie in a flat tensor
    of weights.

    They are from the flat parameter's element `first` on, and from the element `place` of tensor
    `number` on.
    """

    name: str
    shape: tuple[int, ...]
    number: int
    place: int
    first: int
    elements: int


@dataclass(frozen=True, kw_only=True)
class StateLayout:
    """The parts of parameters that one rank holds."""

    tensor_rank: int
    parts: tuple[StatePart, ...]

    def to_json(self) -> bytes:
        """Return the document."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, text: bytes) -> Self:
        """Return what `to_json` was given."""
        table = json.loads(text)
        parts = (StatePart(one[0], tuple(one[1]), *one[2:]) for one in table["parts"])
        return cls(tensor_rank=table["tensor_rank"], parts=tuple(parts))
