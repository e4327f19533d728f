"""Check of the Ray cluster that a campaign's probes run on."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from frontrunner.evaluators.cluster.settings import (
    RAY_AUTO,
    RAY_LOCAL,
    NodeSource,
    has_resources,
    in_words,
    why_unreachable,
)  # fmt: skip
from frontrunner.evaluators.diagnostics.doctor.check import NOTE, PROBLEM, WARNING, Check, judge

PROGRAM = "frontrunner.evaluators.cluster.ray_view"
TIMEOUT_S = 120.0
START_ONE = "start it (`ray start`), or correct dispatch.address"


def gather_ray(address: str) -> Mapping[str, Any] | str:
    """Return a cluster's nodes as `ray_view.py` prints them, or why it could not be looked at."""
    if (why := why_unreachable(address)) is not None:
        return why
    command = [sys.executable, "-P", "-m", PROGRAM, address]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        return f"it did not respond within {TIMEOUT_S:g} s"
    for line in done.stdout.splitlines():
        if line.startswith('{"nodes"'):
            found: Mapping[str, Any] = json.loads(line)
            return found
    return (done.stderr.strip().splitlines() or ["no output"])[-1]


def check_ray(source: NodeSource, found: Mapping[str, Any] | str) -> Iterator[Check]:
    """Require a cluster with enough nodes, each with the campaign's devices and the driver's versions."""
    address = source.settings.address or RAY_AUTO
    if isinstance(found, str):
        yield Check("ray", f"{address}: {found}", PROBLEM, START_ONE)
        return
    needed = source.node_resources
    fitting = {name: node for name, node in found["nodes"].items() if has_resources(node["resources"], needed)}
    what = f"{address}: {len(found['nodes'])} nodes, {len(fitting)} of them with {in_words(needed)}"
    remedy = f"start nodes with so many until there are {source.nodes}, or let Ray's autoscaler do it"
    yield judge("ray", what, fine=len(fitting) >= source.nodes, otherwise=WARNING, remedy=remedy)
    for name, node in fitting.items():
        ours, theirs = found["versions"], node["versions"]
        if isinstance(theirs, str):
            yield Check("ray node", f"{name}: {theirs}", PROBLEM, "install frontrunner on it, in Ray's environment")
        elif theirs != ours:
            named = (", ".join(f"{key} {value}" for key, value in sorted(each.items())) for each in (theirs, ours))
            what = "{} has {}; the driver {}".format(name, *named)
            yield Check("ray node", what, PROBLEM, "install the same versions on it")


def ray_checks(sources: Sequence[NodeSource]) -> Iterator[Check]:
    """Look at the cluster and judge it for each group's nodes; one that a campaign starts itself is not there yet."""
    address = sources[0].settings.address or RAY_AUTO
    if address == RAY_LOCAL:
        yield Check("ray", "the campaign starts a cluster on this machine", NOTE)
        return
    found = gather_ray(address)
    for source in sources if not isinstance(found, str) else sources[:1]:
        yield from check_ray(source, found)
