"""Rows of a table of measurements as the model's arrays."""

from __future__ import annotations

from typing import cast

import numpy as np
import pandas as pd

from frontrunner.evaluators.analytic.layers_of_ranks import balanced_layers, even_layers
from frontrunner.evaluators.analytic.workload import Workload

LONG_SEQUENCE = 8192
"""From here on attention that is not named is taken to be fused: its scores would not fit."""


def layer_parameters(rows: pd.DataFrame) -> np.ndarray:
    """Parameters of one layer's matrices, as `Workload.layer_matmul_parameters`."""
    matrices = rows.two_matrices.map({True: 2.0, False: 3.0})
    width = 2 * rows.hidden * (1 + rows.kv_heads / rows.heads) + matrices * rows.ffn_hidden
    return cast("np.ndarray", (rows.hidden * width).to_numpy(float))


def workload(rows: pd.DataFrame, precision: str, *, balances_head: bool = False) -> Workload:
    """The rows as the model's arrays; layers are split as evenly as possible, or together with the head's cost."""

    def column(name: str, default: float = 1.0) -> np.ndarray:
        return cast("np.ndarray", rows[name].fillna(default).to_numpy(float))

    layers, ways, zero = column("layers"), column("pp"), column("zero", 0)
    copies = column("dp") * column("cp")
    heads = column("vocab") * column("hidden") / layer_parameters(rows)
    first, middle, last = balanced_layers(layers, ways, heads) if balances_head else even_layers(layers, ways)
    gpt = rows.two_matrices.to_numpy(bool)
    fused = rows.attention_kernel.str.lower().str.contains("flash") | (rows.seq >= LONG_SEQUENCE) | ~gpt
    none = np.zeros(len(rows), dtype=bool)
    return Workload(
        layers=layers,
        hidden=column("hidden"),
        heads=column("heads"),
        kv_hidden=column("hidden") * column("kv_heads") / column("heads"),
        ffn_hidden=column("ffn_hidden"),
        ffn_matrices=np.where(gpt, 2.0, 3.0),
        vocabulary=column("vocab"),
        sequence_length=column("seq"),
        tied_embeddings=gpt,
        rotary=~gpt,
        fused_attention=np.asarray(fused, dtype=bool),
        bytes_per_value=np.full(len(rows), 4.0 if precision == "fp32" else 2.0),
        tensor_parallel=column("tp"),
        pipeline_parallel=ways,
        context_parallel=column("cp"),
        data_parallel=column("dp"),
        virtual_stages=column("vpp"),
        micro_batch_seqs=column("mbs"),
        accumulation=column("gas"),
        sharding_parameters=np.where(zero >= 3, copies, 1),
        sharding_gradients=np.where(zero >= 2, copies, 1),
        sharding_optimizer=np.where(zero >= 1, copies, 1),
        recompute_full=(rows.recompute == "full").to_numpy(bool),
        recompute_selective=(rows.recompute == "selective").to_numpy(bool),
        sequence_parallel=((rows.seq_parallel == 1) & (rows.tp > 1)).to_numpy(bool),
        gradient_sync_each=none,
        loss_chunks=np.ones(len(rows)),
        feed_forward_tiled=none,
        bytes_per_optimizer_state=np.full(len(rows), 4.0),
        layers_first=first,
        layers_middle=middle,
        layers_last=last,
        head_on_first=ways == 1,
        split_backward=none,
        keeps_all=none,
        compiled=rows.compiled.to_numpy(bool),
    )
