"""Runtime of probes and replays on one machine, and the sections [probe] and [data] of a campaign
file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from frontrunner.spaces.errors import (
    bad_value,
    require_above_zero,
    require_at_least,
    require_one_of,
)

OPTIMIZERS = ("adamw", "sgd")
BUILT_IN_DATA = "built-in"
"""Name of the text that comes with Python, where data are named by path."""
TORCH_DEVICES: dict[str, Literal["cpu", "cuda", "xpu"]] = {
    "cpu": "cpu",
    "cuda": "cuda",
    "rocm": "cuda",
    "xpu": "xpu",
}
"""Torch's device type for each backend; ROCm devices are `cuda` to torch."""


@dataclass(frozen=True, kw_only=True)
class OptimizerConstants:
    """Constants of the optimizers, by default those of GPT-3 (arXiv 2005.14165, appendix B).

    `momentum` is for SGD, which has no weight decay here; the next four are for AdamW. Gradients
    are clipped at their global 2-norm, with 0 not at all.
    """

    weight_decay: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-8
    momentum: float = 0.9
    gradient_clip_norm: float = 1.0

    def __post_init__(self) -> None:
        owner = "probe.optimizer_constants"
        require_at_least(
            owner, 0, weight_decay=self.weight_decay, gradient_clip_norm=self.gradient_clip_norm
        )
        require_above_zero(f"{owner}.epsilon", self.epsilon, "a number above 0")
        for key in ("beta1", "beta2", "momentum"):
            if not 0 <= (value := getattr(self, key)) < 1:
                raise bad_value(f"{owner}.{key}", value, "a number from 0 to below 1")


@dataclass(frozen=True, kw_only=True)
class ProbeSettings:
    """How one recipe is measured.

    A probe ends when its step time is known to `precision`, is clearly above that of the campaign's
    best recipe, or is still too noisy after `max_steps`.
    """

    warm_up_steps: int = 2
    """Steps left out before the measurement, at least; later steps are left out too while they are
    slower than those after them allow.
    """
    measured_steps: int | None = None
    """Measure exactly this many steps after exactly `warm_up_steps`; the next three keys then do
    not apply.
    """
    min_measured_steps: int = 3
    """Steps measured at least, however slow the recipe; at least 2."""
    max_steps: int = 15
    """Steps of a probe at most, warm-up included."""
    precision: float = 0.03
    """A probe ends when its step time is known to this: half the width of a 95 % confidence
    interval over the median.
    """
    deadline_s: float = 300.0
    """A probe that takes longer is `too-slow`."""
    step_deadline_s: float = 120.0
    """A probe without progress for this long is `hung`."""
    foreign_load_limit: float = 0.1
    """Where other processes keep a rank waiting for its processors for more than this share of the
    time, or use its device, the measurement is marked and repeated, a few times at most. 1:
    neither.
    """
    optimizer: str = "adamw"
    """`adamw` or `sgd`."""
    learning_rate: float = 3e-4
    """Constant during a probe."""
    optimizer_constants: OptimizerConstants = OptimizerConstants()
    """Of probes and replays: weight decay and epsilon of AdamW, its betas, SGD's momentum, and the
    global norm at which gradients are clipped (0: not at all). By default those of GPT-3: 0.1,
    1e-8, 0.9 and 0.95, 0.9, 1.
    """

    def __post_init__(self) -> None:
        require_at_least("probe", 0, warm_up_steps=self.warm_up_steps)
        if self.measured_steps is not None:
            require_at_least("probe", 1, measured_steps=self.measured_steps)
        require_at_least("probe", 2, min_measured_steps=self.min_measured_steps)
        if self.is_adaptive and self.max_steps < self.least_steps:
            expected = (
                f"at least probe.warm_up_steps + probe.min_measured_steps = {self.least_steps}"
            )
            raise bad_value("probe.max_steps", self.max_steps, expected)
        if not 0 < self.precision < 1:
            raise bad_value(
                "probe.precision", self.precision, "a share above 0 and below 1, as 0.03 for 3 %"
            )
        if not 0 < self.foreign_load_limit <= 1:
            expected = "a share above 0, as 0.1 for 10 %, or 1 for no limit"
            raise bad_value("probe.foreign_load_limit", self.foreign_load_limit, expected)
        require_one_of("probe", "optimizer", self.optimizer, OPTIMIZERS)
        for key in ("deadline_s", "step_deadline_s", "learning_rate"):
            require_above_zero(f"probe.{key}", getattr(self, key), "a number above 0")

    @property
    def is_adaptive(self) -> bool:
        """Return whether the measured steps decide how many follow."""
        return self.measured_steps is None

    @property
    def least_steps(self) -> int:
        """Return the steps of a probe, or its minimum where it is adaptive."""
        return self.warm_up_steps + (self.measured_steps or self.min_measured_steps)

    @property
    def most_steps(self) -> int:
        """Return the steps of a probe, or its maximum where it is adaptive."""
        return (
            self.max_steps
            if self.measured_steps is None
            else self.warm_up_steps + self.measured_steps
        )


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Learning rate of a full training run: linear up to the highest one, then half a cosine down
    to a fraction.
    """

    learning_rate: float = 3e-4
    warm_up_steps: int = 10
    final_learning_rate_fraction: float = 0.1


@dataclass(frozen=True, kw_only=True)
class DataFile:
    """One of several files, and its share of the sequences: its weight over the sum of all
    weights.
    """

    path: str
    weight: float

    def __post_init__(self) -> None:
        require_above_zero(
            "data.files.weight",
            self.weight,
            "a number above 0: a share, over the sum of all weights",
        )


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """Training text: `.bin` files of tokens, any other files read as bytes, or by default the
    built-in text.
    """

    path: str | None = None
    """A `.bin` file of token ids, as `frontrunner prepare` writes it (one without a description
    beside it: uint16; uint32 for vocabularies above 65,536), or any other file, read as one token
    per byte. Relative to the campaign file; by default a built-in text.
    """
    files: tuple[DataFile, ...] = ()
    """Instead of `path` several such files, of one tokenizer: `[{ path = "web.bin", weight = 0.7 },
    { path = "code.bin", weight = 0.3 }]`. A file's share of the sequences is its weight over the
    sum of all.
    """

    def __post_init__(self) -> None:
        if self.files and self.path is not None:
            raise bad_value("data.path", self.path, "no path beside data.files")

    @property
    def named(self) -> tuple[tuple[str | None, float], ...]:
        """Return path and weight of each file; the path of the built-in text is None."""
        return tuple((one.path, one.weight) for one in self.files) or ((self.path, 1.0),)

    def __str__(self) -> str:
        return " and ".join(path or "the built-in text" for path, _ in self.named)
