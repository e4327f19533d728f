"""What the measuring ranks are asked to do, as JSON on their standard input."""

import json
from dataclasses import dataclass
from typing import Self

BACKENDS = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl", "xpu": "cpu:gloo,xpu:xccl"}
"""By device; ranks agree on times over gloo, so that an accelerator runs nothing but what is measured."""


@dataclass(frozen=True, kw_only=True)
class Order:
    """One calibration. `device` is torch's word for it: cpu, cuda (ROCm too) or xpu.

    `seconds` is the budget of all measurements together; `out` is where rank 0 writes what was measured.
    """

    device: str
    seconds: float
    out: str

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The order that a parent wrote; TypeError for a missing or unknown key."""
        return cls(**json.loads(text))
