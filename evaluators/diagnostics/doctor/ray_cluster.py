"""Check of the Ray cluster that a campaign's probes run on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from frontrunner.evaluators.cluster.ray_allocation import look_at_ray
from frontrunner.evaluators.cluster.settings import RAY_AUTO, RAY_LOCAL, NodeSource, has_resources, in_words
from frontrunner.evaluators.diagnostics.doctor.check import NOTE, PROBLEM, WARNING, Check, judge

START_ONE = "start it (`ray start`), or correct dispatch.address"


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
    found = look_at_ray(address)
    for source in sources if not isinstance(found, str) else sources[:1]:
        yield from check_ray(source, found)
