"""Settings of a campaign's probes and of their data: the sections [probe] and [data] of its file."""

from __future__ import annotations

from dataclasses import dataclass

from frontrunner.spaces.errors import bad_value, require_above_zero, require_at_least, require_one_of

OPTIMIZERS = ("adamw", "sgd")
TORCH_DEVICES = {"cpu": "cpu", "cuda": "cuda", "rocm": "cuda", "xpu": "xpu"}
"""Torch's device type for each backend; ROCm devices are `cuda` to torch."""


@dataclass(frozen=True, kw_only=True)
class ProbeSettings:
    """Settings for measuring one recipe.

    A probe ends when its step time is known to `precision` (half the width of a 95 % confidence interval over the
    median), is clearly above that of the campaign's best recipe, or after `max_steps`. It takes at least
    `warm_up_steps` and `min_measured_steps`. With `measured_steps` it takes exactly `warm_up_steps` and those.

    `deadline_s` bounds a whole probe; `step_deadline_s` the time without a finished step, after which the ranks count
    as hung.
    """

    warm_up_steps: int = 2
    measured_steps: int | None = None
    min_measured_steps: int = 3
    max_steps: int = 15
    precision: float = 0.03
    deadline_s: float = 300.0
    step_deadline_s: float = 120.0
    optimizer: str = "adamw"
    learning_rate: float = 3e-4

    def __post_init__(self) -> None:
        require_at_least("probe", 0, warm_up_steps=self.warm_up_steps)
        if self.measured_steps is not None:
            require_at_least("probe", 1, measured_steps=self.measured_steps)
        require_at_least("probe", 2, min_measured_steps=self.min_measured_steps)
        self._check_max_steps()
        if not 0 < self.precision < 1:
            raise bad_value("probe.precision", self.precision, "a share above 0 and below 1, as 0.03 for 3 %")
        require_one_of("probe", "optimizer", self.optimizer, OPTIMIZERS)
        for key in ("deadline_s", "step_deadline_s", "learning_rate"):
            require_above_zero(f"probe.{key}", getattr(self, key), "a number above 0")

    def _check_max_steps(self) -> None:
        least = self.warm_up_steps + self.min_measured_steps
        if self.is_adaptive and self.max_steps < least:
            expected = f"at least probe.warm_up_steps + probe.min_measured_steps = {least}"
            raise bad_value("probe.max_steps", self.max_steps, expected)

    @property
    def is_adaptive(self) -> bool:
        """Return whether the measured steps decide how many follow."""
        return self.measured_steps is None

    @property
    def most_steps(self) -> int:
        """Return the steps of a probe, or its maximum where it is adaptive."""
        return self.max_steps if self.measured_steps is None else self.warm_up_steps + self.measured_steps


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """Training text: a `.bin` file of tokens, any other file read as bytes, or None for the built-in text."""

    path: str | None = None
