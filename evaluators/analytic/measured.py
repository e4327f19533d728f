"""Constants that a cluster brings along, fitted or measured there, in place of those that ship."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from frontrunner.evaluators.analytic.software import Software
from frontrunner.spaces.cluster import Cluster
from frontrunner.spaces.errors import InvalidInput, bad_value, did_you_mean

if TYPE_CHECKING:
    from frontrunner.evaluators.analytic.machine import Efficiencies

OF_SOFTWARE = ("host_layer_s", "host_collective_s", "gradient_overlap")
"""Those of the training code that are shares or times, and not read off its source."""
ABOVE_ZERO = frozenset(
    {"matmul", "memory", "fused_attention_forward", "fused_attention_backward", "node_links", "network_links"}
)
"""Shares of a rate, by which something is divided."""
SHARES = ABOVE_ZERO | {"gradient_overlap"}


def efficiency_names() -> tuple[str, ...]:
    """What `cluster.efficiencies` may hold."""
    from frontrunner.evaluators.analytic.machine import Efficiencies

    return (*(field.name for field in fields(Efficiencies)), *OF_SOFTWARE)


def check_efficiencies(table: Mapping[str, float]) -> None:
    """Raise `InvalidInput` for the first name that is none of an efficiency, or value that cannot be one."""
    known = efficiency_names()
    for name, value in table.items():
        key = f"cluster.efficiencies.{name}"
        if name not in known:
            raise InvalidInput(f"unknown key {key} = {value}", hint=did_you_mean(name, known))
        if not (math.isfinite(value) and value >= 0) or (name in SHARES and value > 1):
            raise bad_value(key, value, "a share of at most 1" if name in SHARES else "a number of at least 0")
        if name in ABOVE_ZERO and value == 0:
            raise bad_value(key, value, "a share above 0 and at most 1")


def with_measured(cluster: Cluster, efficiencies: Efficiencies, software: Software) -> tuple[Efficiencies, Software]:
    """Both with the cluster's own constants in place of theirs.

    Raises `InvalidInput` for a constant that there is not, or that is impossible.
    """
    check_efficiencies(cluster.efficiencies)
    code: dict[str, Any] = {name: value for name, value in cluster.efficiencies.items() if name in OF_SOFTWARE}
    rest = {name: value for name, value in cluster.efficiencies.items() if name not in OF_SOFTWARE}
    return replace(efficiencies, **rest), replace(software, **code)
