"""What a campaign says about its probes and their data."""

from __future__ import annotations

from dataclasses import dataclass

from frontrunner.spaces.errors import require_above_zero, require_at_least, require_one_of

OPTIMIZERS = ("adamw", "sgd")


@dataclass(frozen=True, kw_only=True)
class ProbeSettings:
    """How one recipe is measured.

    `deadline_s` bounds a whole probe; `step_deadline_s` the time without a finished step, after which the
    ranks are held to be hung.
    """

    warm_up_steps: int = 2
    measured_steps: int = 5
    deadline_s: float = 300.0
    step_deadline_s: float = 120.0
    optimizer: str = "adamw"
    learning_rate: float = 3e-4

    def __post_init__(self) -> None:
        require_at_least("probe", 0, warm_up_steps=self.warm_up_steps)
        require_at_least("probe", 1, measured_steps=self.measured_steps)
        require_one_of("probe", "optimizer", self.optimizer, OPTIMIZERS)
        for key in ("deadline_s", "step_deadline_s", "learning_rate"):
            require_above_zero(f"probe.{key}", getattr(self, key), "a number above 0")


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """The training text: a `.bin` file of tokens, any other file read as bytes, or None for the built-in text."""

    path: str | None = None
