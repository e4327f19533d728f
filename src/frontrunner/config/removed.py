"""Keys of campaign and cluster files that earlier versions took, and what to do instead."""

from __future__ import annotations

from frontrunner.config.toml_file import Table, value_of
from frontrunner.spaces.errors import InvalidInput, shown

_FEW_NODES_FIRST = (
    "launch a campaign on few nodes first (--set cluster.nodes=N --set problem.global_batch=M); the"
    " campaign on all nodes then learns from its outcomes (search.warm_start)"
)
_ONE_NODE_TYPE = (
    "a cluster is of one node type: launch a campaign for each node type, and compare them"
    " (frontrunner compare A B); frontrunner plan FILE --cluster A.toml --cluster B.toml ranks"
    " clusters"
)
REMOVED_KEYS = {
    "cluster.group": _ONE_NODE_TYPE,
    "dispatch.group": _ONE_NODE_TYPE,
    "space.group": _ONE_NODE_TYPE,
    "search.probe_nodes": _FEW_NODES_FIRST,
    "search.confirm_probes": f"budget.probes limits each campaign; {_FEW_NODES_FIRST}",
}
"""What to do instead of each removed key."""


def refuse_removed(table: Table) -> None:
    """Raise `InvalidInput` for the first removed key of a parsed file."""
    for key, advice in REMOVED_KEYS.items():
        value = value_of(table, key)
        if value is not None:
            raise InvalidInput(f"{key} = {shown(value)}: this version has no such key", hint=advice)
