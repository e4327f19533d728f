"""Rotary positions, and the scaling of their frequencies."""

from __future__ import annotations

import math
from dataclasses import dataclass

from frontrunner.spaces.errors import (
    bad_value,
    require_above_zero,
    require_at_least,
    require_one_of,
)
from frontrunner.spaces.model.keys import check_keys, key

ROTARY_SCALINGS = ("llama3", "yarn", "linear")


@dataclass(frozen=True, kw_only=True)
class RotaryScaling:
    """A scaling of rotary frequencies, for sequences longer than the `original_positions` of the
    first training.

    `linear` makes all wavelengths `factor` times as long. `llama3` (Llama 3.1) leaves those below
    original_positions / high_frequency_factor, scales those above original_positions /
    low_frequency_factor, and interpolates between. `yarn` (arXiv 2309.00071) leaves those that turn
    `beta_fast` times and more over the original positions, scales those that turn `beta_slow` times
    and less, and interpolates by their number, from and to whole numbers if it is to `truncate`; it
    also multiplies cosines and sines by `attention_factor`, by default 0.1 ln(factor) + 1. Latent
    attention also multiplies its scores by `score_factor`.
    """

    factor: float
    kind: str = "llama3"
    low_frequency_factor: float = 1.0
    high_frequency_factor: float = 4.0
    original_positions: int = 8192
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float | None = None
    score_factor: float = 1.0

    def __post_init__(self) -> None:
        key = "model.rotary_scaling"
        require_at_least(key, 1, factor=self.factor, original_positions=self.original_positions)
        require_one_of(key, "kind", self.kind, ROTARY_SCALINGS)
        for low, high in (
            ("low_frequency_factor", "high_frequency_factor"),
            ("beta_slow", "beta_fast"),
        ):
            if not 0 < getattr(self, low) < getattr(self, high):
                expected = f"above 0 and below {high} = {getattr(self, high)}"
                raise bad_value(f"{key}.{low}", getattr(self, low), expected)
        require_above_zero(f"{key}.attention_factor", self.magnitude, "above 0")
        require_above_zero(f"{key}.score_factor", self.score_factor, "above 0")

    @property
    def magnitude(self) -> float:
        """What cosines and sines are multiplied by."""
        if self.kind != "yarn":
            return 1.0
        return (
            0.1 * math.log(self.factor) + 1
            if self.attention_factor is None
            else self.attention_factor
        )


@dataclass(frozen=True, kw_only=True)
class RotaryPositions:
    """Positions that rotate pairs of values of each query and key (arXiv 2104.09864)."""

    width: int = key("rotary_width", default=0)
    """Values of each query and key that are rotated: the first ones, by default all. With latent
    attention these values come besides `head_width`, and all heads share those of the key.
    """
    theta: float = key("rotary_theta", default=10_000.0, is_positive=True)
    """Base of the rotary frequencies."""
    scaling: RotaryScaling | None = key("rotary_scaling", default=None)  # noqa: RUF009 - a field
    """Scaling of the rotary frequencies, as in `{ factor = 8.0 }`, by default none; of kind
    `llama3`, which is Llama 3.1's, `yarn` or `linear`.
    """

    def __post_init__(self) -> None:
        check_keys(self)

    @property
    def is_stretched(self) -> bool:
        """Whether rotations also scale queries and keys, as YaRN's do (arXiv 2309.00071, section
        3.4).
        """
        return self.scaling is not None and self.scaling.kind == "yarn"
