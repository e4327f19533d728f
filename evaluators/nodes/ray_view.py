"""What a Ray cluster has, `python -P -m frontrunner.evaluators.nodes.ray_view ADDRESS
[--only-connect]`, as JSON.

It is a process of its own because connecting to a cluster that does not respond takes Ray minutes,
and may end it. On each node it looks for the packages whose versions have to agree, unless it only
connects.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from frontrunner.evaluators.nodes.ray_agent import own_versions
from frontrunner.evaluators.nodes.ray_allocation import ONLY_CONNECT
from frontrunner.evaluators.nodes.ray_holder import CONNECT_ERRORS, brief, node_name

NODE_TIMEOUT_S = 60.0


def main() -> None:
    """Print what there is, or why it could not be looked at."""
    found: dict[str, Any] = {}
    try:
        ray.init(sys.argv[1], log_to_driver=False, logging_level=logging.ERROR)
        if ONLY_CONNECT not in sys.argv:
            found = {"nodes": _nodes(), "versions": own_versions()}
    except CONNECT_ERRORS as error:
        found = {"failed": brief(error)}
    sys.stdout.write(json.dumps({"address": sys.argv[1], **found}) + "\n")
    sys.stdout.flush()
    os._exit(0)


def _nodes() -> dict[str, Any]:
    """Return the cluster's nodes by name: resources, and packages or why they are unknown."""
    nodes = [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
    ask = ray.remote(num_cpus=0)(own_versions)
    places = [NodeAffinitySchedulingStrategy(node["NodeID"], soft=False) for node in nodes]
    asked = [ask.options(scheduling_strategy=place).remote() for place in places]
    ray.wait(asked, num_returns=len(asked), timeout=NODE_TIMEOUT_S)
    found = {}
    for node, answer in zip(nodes, asked, strict=True):
        try:
            versions: dict[str, str] | str = ray.get(answer, timeout=0)
        except RayError as error:
            versions = brief(error)
        name = node_name(node["NodeManagerHostname"], node["NodeID"])
        found[name] = {"resources": node["Resources"], "versions": versions}
    return found


if __name__ == "__main__":
    main()
