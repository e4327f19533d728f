"""Rows of a table of measurements as the model's arrays."""

from __future__ import annotations

from typing import cast

import numpy as np
import pandas as pd

from frontrunner.evaluators.analytic.workload import Workload, ends
from frontrunner.spaces.stages import even_layers

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
    shape = zip(layers.astype(int).tolist(), ways.astype(int).tolist(), heads.tolist(), strict=True)
    held = [ends(balanced_layers(n, p, head) if balances_head else even_layers(n, p)) for n, p, head in shape]
    first, middle, last = np.array(held, dtype=float).reshape(-1, 3).T
    gpt = rows.two_matrices.to_numpy(bool)
    fused = rows.attention_kernel.str.lower().str.contains("flash") | (rows.seq >= LONG_SEQUENCE) | ~gpt
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
        layers_first=first,
        layers_middle=middle,
        layers_last=last,
        head_on_first=ways == 1,
        compile=rows.compiled.to_numpy(bool),
    )


def balanced_layers(layers: int, ranks: int, head: float) -> list[int]:
    """Split layers over ranks together with a head that costs as much as `head` layers.

    As nanotron's `build_model` does (models/base.py): a rank takes blocks until their sum, from the first block of the
    model on, passes its share of the whole.
    """
    share, rank, held = (layers + head) / ranks, 0, [0] * ranks
    for layer in range(1, layers + 1):
        held[rank] += 1
        if layer > share * (rank + 1) and rank + 1 < ranks:
            rank += 1
    return held
