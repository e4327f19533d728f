"""How far step times of the formulas are off, by published steps: the only accuracy that is stated.

`compared.toml` has the mean errors, which `benchmarks/compared_steps.py` measures on tables that
are not part of the product.
"""

from __future__ import annotations

import functools
import statistics
import tomllib
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from frontrunner.spaces.problem import Problem

FIGURES = Path(__file__).with_name("compared.toml")
FAMILIES = {
    "a100-40gb": "A100", "a100-80gb": "A100",
    "h100-80gb": "Hopper", "h200-141gb": "Hopper", "h100-pcie": "Hopper", "h100-nvl": "Hopper",
    "h200-nvl": "Hopper", "gh200-96gb": "Hopper", "h20": "Hopper",
    "b200-180gb": "Blackwell", "b300": "Blackwell", "gb200": "Blackwell", "gb300": "Blackwell",
    "mi250x-gcd": "MI200", "mi250-gcd": "MI200",
    "mi300a": "MI300", "mi300x": "MI300", "mi325x": "MI300", "mi350x": "MI350", "mi355x": "MI350",
    "pvc-tile": "PVC", "v100-32gb": "V100",
}  # fmt: skip
"""Devices of one architecture, whose errors are taken to be alike; others are alone."""


@dataclass(frozen=True, kw_only=True)
class ComparedSteps:
    """Measured steps of one training code on one family of devices.

    `error` is the mean of |estimated / measured step time - 1|. `model` is `dense` or `experts`.
    """

    devices: str
    model: str
    code: str
    tables: int
    rows: int
    error: float


@dataclass(frozen=True, kw_only=True)
class Accuracy:
    """The error that was measured nearest to a problem.

    `error` is the mean over the training codes, which weigh the same however many steps each has;
    `least` and `most` are the smallest and the largest mean error of one code. `of` says in words
    which steps they are.
    """

    error: float
    least: float
    most: float
    rows: int | None
    codes: tuple[str, ...]
    of: str

    def in_words(self) -> str:
        """Return the statement: of which steps, and how far these were off."""
        if self.least == self.most:
            return f"{self.of} were off by {100 * self.error:.0f} % on average"
        return (
            f"{self.of} were off by {100 * self.least:.0f} to {100 * self.most:.0f} % on average,"
            f" depending on the code; the mean over these {len(self.codes)} codes is"
            f" {100 * self.error:.0f} %"
        )


@functools.cache
def compared_steps() -> tuple[ComparedSteps, ...]:
    """Return the figures that ship."""
    entries = tomllib.loads(FIGURES.read_text())["steps"]
    return tuple(ComparedSteps(**entry) for entry in entries)


def family(device: str) -> str:
    """Return the family of a preset's device, or the device itself."""
    return FAMILIES.get(device, device)


def kind_of(problem: Problem) -> str:
    """Return whether the model is `dense` or has `experts`."""
    return "experts" if problem.model.mixture else "dense"


def held_back(error: float, rows: int | None) -> Accuracy:
    """Return the accuracy that a cluster file states of its own steps."""
    count = "steps" if rows is None else f"{rows:,} steps"
    of = f"{count} that the cluster file's own fit did not see"
    return Accuracy(error=error, least=error, most=error, rows=rows, codes=(), of=of)


def nearest(problem: Problem, codes: Collection[str]) -> Accuracy | None:
    """Return the error measured on steps of the same family of devices and the same kind of model.

    Steps of the same training code are preferred. None where no step was compared, as in fp32.
    """
    if problem.precision == "fp32":
        return None
    devices, model = family(problem.cluster.device), kind_of(problem)
    alike = [one for one in compared_steps() if (one.devices, one.model) == (devices, model)]
    if not alike:
        return None
    same = [one for one in alike if one.code in codes]
    found = same or alike
    names = _listed(one.code for one in found)
    under = names if same else f"other training codes ({names})"
    rows = sum(one.rows for one in found)
    errors = [one.error for one in found]
    return Accuracy(
        error=statistics.fmean(errors),
        least=min(errors),
        most=max(errors),
        rows=rows,
        codes=tuple(one.code for one in found),
        of=f"{rows:,} published steps of {_models(model)} on {devices} under {under}",
    )


def why_not_compared(problem: Problem) -> str:
    """Return that no measured step is near to the problem."""
    cluster = problem.cluster
    device = cluster.device or cluster.name
    precision = " in fp32" if problem.precision == "fp32" else ""
    return (
        "not compared with any measurement of"
        f" {_models(kind_of(problem))} on {family(device)}{precision}"
    )


def _models(kind: str) -> str:
    return {"dense": "dense models", "experts": "mixtures of experts"}[kind]


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted({"unknown ones" if name == "unknown" else name for name in names}))
