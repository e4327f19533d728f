"""The model and the cluster of a table's row, as far as the row tells them, and common values for the rest."""

from __future__ import annotations

import math

import pandas as pd

from frontrunner.evaluators.analytic.hardware import cluster_of_row, preset_of
from frontrunner.spaces.cluster import Cluster
from frontrunner.spaces.model import Model

HIDDEN_PER_LAYER = 128
"""Hidden size over layers of GPT-3 175B (arXiv 2005.14165) and of Llama 7B (arXiv 2302.13971): assumed of a model of
which only the parameters are known."""
HEAD_WIDTH = 128
"""Of the same models."""
ASSUMED_MEMORY_GIB = 80.0
"""Of a device that is neither known nor described: assumed, and wrong for many; what fits is learned from failures."""
DEVICES_PER_NODE = 8
"""Of machines whose rows do not say it; assumed."""


def model_of(row: pd.Series) -> Model:
    """The transformer of a completed row; raises ValueError where the row tells neither shape nor parameters."""
    layers, hidden = _shape(row)
    heads = int(row.heads) if _is_count(row.heads) and hidden % int(row.heads) == 0 else max(1, hidden // HEAD_WIDTH)
    kv_heads = int(row.kv_heads) if _is_count(row.kv_heads) else heads
    gpt = bool(row.two_matrices)
    width = row.ffn_hidden if _is_count(row.ffn_hidden) else (4 if gpt else 8 / 3) * hidden
    kernel = str(row.attention_kernel).lower()
    return Model(
        name=str(row.model) or "unnamed",
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads if heads % kv_heads == 0 else heads,
        ffn_hidden=max(1, round(width)),
        vocabulary=max(2, int(row.vocab)),
        positions="learned" if gpt else "rotary",
        max_positions=int(row.seq) if gpt and _is_count(row.seq) else None,
        activation="gelu" if gpt else "swiglu",
        norm="layernorm" if gpt else "rmsnorm",
        tied_embeddings=gpt,
        attention="math" if gpt and "flash" not in kernel and row.seq < 8192 else "flash",
    )


def _shape(row: pd.Series) -> tuple[int, int]:
    """Layers and hidden size: stated, or those of a model of common proportions with as many parameters.

    Its parameters are 12 layers hidden^2 (arXiv 2104.04473, equation 2, without the embedding).
    """
    if _is_count(row.layers) and _is_count(row.hidden):
        return int(row.layers), int(row.hidden)
    if not (row.n_params_b > 0 and math.isfinite(row.n_params_b)):
        missing = [name for name in ("layers", "hidden") if not _is_count(row[name])]
        raise ValueError(f"no {', '.join(missing)} and no n_params_b")
    parameters = row.n_params_b * 1e9
    hidden = (parameters * HIDDEN_PER_LAYER / 12) ** (1 / 3)
    hidden = max(HEAD_WIDTH, round(hidden / HEAD_WIDTH) * HEAD_WIDTH)
    return max(1, round(parameters / (12 * hidden**2))), hidden


def _is_count(value: float) -> bool:
    return bool(value >= 1 and math.isfinite(value))


def cluster_of(row: pd.Series) -> Cluster:
    """As many whole nodes of the row's machine as its devices need.

    Of hardware without a preset only what the row states is known, and a device's memory is assumed where the name
    does not tell it.
    """
    if not _is_count(row.gpus):
        raise ValueError("no gpus")
    known = preset_of(row.hardware) is not None
    filled = row.copy()
    if not known and pd.isna(filled.memory_gib_per_device):
        filled["memory_gib_per_device"] = ASSUMED_MEMORY_GIB
    found = cluster_of_row(filled)
    width = found.devices_per_node if known or _is_count(row.gpus_per_node) else DEVICES_PER_NODE
    nodes = math.ceil(row.gpus / width)
    figures = {name: getattr(found, name) for name in Cluster.__dataclass_fields__}
    return Cluster(**figures | {"nodes": nodes, "devices_per_node": width})
