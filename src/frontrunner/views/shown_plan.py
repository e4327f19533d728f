"""A plan as it is shown to programs: what `frontrunner plan --json` prints and a service answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from frontrunner.evaluators.analytic.estimates import Estimate


@dataclass(frozen=True, kw_only=True)
class ShownPlan:
    """What there is to say of a plan, without the estimates of all its recipes.

    `fitting` of the `legal` recipes fit; `estimates` are the fastest of these, as many as were asked for, and `front`
    those that no other beats in both speed and memory, both fastest first. `not_modelled` counts the legal recipes
    that the formulas leave out, by reason. For `assumed`, `expected_error` and `remarks` see
    `frontrunner.evaluators.analytic.estimates.Trust`.
    """

    legal: int
    fitting: int
    not_modelled: Mapping[str, int]
    memory_limit_bytes: int
    assumed: tuple[str, ...]
    expected_error: float
    remarks: tuple[str, ...]
    estimates: tuple[Estimate, ...]
    front: tuple[Estimate, ...]

    def fastest(self, top: int) -> tuple[Estimate, ...]:
        """The first `top` recipes that fit, fastest first, of those that were asked for."""
        return self.estimates[:top]
