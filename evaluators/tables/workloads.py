"""Rows of tables as the analytic model's arrays, for fits and for judging the model; others are
refused by reason.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from frontrunner.evaluators.analytic.fit import Sample, Samples
from frontrunner.evaluators.analytic.software import coded
from frontrunner.evaluators.analytic.workload import (
    BYTES_PER_VALUE,
    FP8_SCALINGS,
    LAYERS,
    ROUTED_DEVIATION,
    Split,
    Workload,
    ends,
    has_expert_biases,
    has_stretched_rotary,
    split_layers,
    with_mtp,
)
from frontrunner.evaluators.tables import schema
from frontrunner.evaluators.tables.rows import (
    MEMORY,
    head_width,
    is_elsewhere,
    is_fused,
    latent_of,
    layers_before_mtp,
    machine_of,
    preset_like,
    preset_of,
    routing_of,
    software_of,
    windows,
)
from frontrunner.evaluators.tables.schema import Refusals, Row
from frontrunner.spaces.cluster import PRECISIONS, Cluster
from frontrunner.spaces.model.attention import attended
from frontrunner.spaces.model.model import Model
from frontrunner.spaces.stages import leading


@dataclass(frozen=True)
class Table:
    """The rows of one file that the model can estimate, and how many others there are by reason."""

    name: str
    rows: tuple[Row, ...]
    refused: dict[str, int]
    default_cluster: Cluster | None = None

    @cached_property
    def parts(self) -> tuple[tuple[npt.NDArray[np.intp], Sample], ...]:
        """The places of rows of one machine, precision and training code, and what the formulas
        take of them.
        """
        groups: dict[tuple[object, ...], list[int]] = {}
        for place, row in enumerate(self.rows):
            # As text, since NaN differs from itself.
            machine = [str(getattr(row, name)) for name in schema.MACHINE_NUMBERS]
            groups.setdefault((row.hardware, *machine, row.precision, software_of(row)), []).append(
                place
            )
        return tuple(
            (np.array(places), self._sample([self.rows[p] for p in places]))
            for places in groups.values()
        )

    def _sample(self, rows: Sequence[Row]) -> Sample:
        first, stated = rows[0], software_of(rows[0])
        software = coded(stated)
        precision = first.precision or "bf16"
        own = self.default_cluster if preset_of(first.hardware) is None else None
        return Sample(
            cluster=own or machine_of(first),
            precision=precision,
            software=software,
            work=workload(
                rows, precision, split=software.pipeline_split, scaling=software.fp8_default
            ),
            step_time_s=np.array(
                [row.step_time_s if row.status == "ok" else math.nan for row in rows]
            ),
            problems=tuple(row.problem for row in rows),
        )


def read(path: Path, default_cluster: Cluster | None = None) -> Table:
    """Read a table; rows whose hardware has no preset are of `default_cluster`, or refused. Raises
    as `read_csv`.
    """
    left_out, rows = Refusals(), []
    found = [schema.complete(row) for row in schema.rows_of(schema.read_csv(path))]
    doubted = schema.mislabeled(found)
    for row in found:
        if reason := why_not_modeled(row, default_cluster) or (
            schema.MISLABELED if row.number in doubted else None
        ):
            left_out.add(reason, row.number)
        else:
            rows.append(row)
    return Table(path.stem, tuple(rows), left_out.counts, default_cluster)


def why_not_modeled(row: Row, default_cluster: Cluster | None) -> str | None:
    """Return why the model cannot estimate a completed row, or None."""
    missing = [name for name in schema.NEEDED if math.isnan(getattr(row, name))]
    if missing:
        return f"no {', '.join(missing)}"
    counts, least = (*schema.NEEDED, "cp", "vpp", "kv_heads", "gbs"), 1 - schema.BATCH_TOLERANCE
    low = [name for name in counts if getattr(row, name) < least]
    if low:
        return f"{', '.join(low)} below 1"
    if row.precision not in ("", *PRECISIONS):
        return f"precision {row.precision} is not modeled"
    if row.step_time_s <= 0 or math.isinf(row.step_time_s):
        return f"step time {row.step_time_s:g} s"
    if row.status not in ("ok", "oom"):
        return f"status {row.status or 'unknown'}"
    has_machine = default_cluster is not None and preset_of(row.hardware) is None
    impossible = schema.why_impossible(row, row.layers) or _why_no_latent(row)
    return impossible or (None if has_machine else _why_unknown(row))


def _why_no_latent(row: Row) -> str | None:
    try:
        latent_of(row)
    except ValueError as error:
        return str(error)
    return None


def _why_unknown(row: Row) -> str | None:
    name = row.hardware or "unnamed hardware"
    if preset_of(row.hardware) is None:
        if math.isnan(row.peak_tflops):
            return f"no preset for {name}"
        if math.isnan(row.memory_gib_per_device) and not MEMORY.search(row.hardware):
            return f"no memory size for {name}"
    if row.fp8 != "none" and machine_of(row).peak_flops("fp8") is None:
        return f"no peak in fp8 for {row.hardware}"
    if math.isnan(row.peak_tflops) and machine_of(row).peak_flops(row.precision or "bf16") is None:
        return f"no peak in {row.precision or 'bf16'} for {row.hardware}"
    impossible = [
        key
        for key in schema.MACHINE_NUMBERS
        if (value := getattr(row, key)) <= 0 or math.isinf(value)
    ]
    return f"{', '.join(impossible)} not above 0" if impossible else None


def _attended_share(row: Row) -> float:
    window = windows(row)
    if not window or math.isnan(row.seq):
        return 1.0
    every, size = window["full_attention_every"], window["attention_window"]
    windowed: float = attended(row.seq, size) / row.seq
    full_share = 1 / every if every else 0.0
    return windowed + full_share * (1 - windowed)


def _expert_deviation(row: Row, like: Model | None) -> float:
    """Return how uneven a router's choices are, balanced as that of a model with such layers."""
    if not row.experts or routing_of(row) == "uniform":
        return 0.0
    return ROUTED_DEVIATION[like.mixture.balancing if like and like.mixture else "loss"]


WIDTHS = ("query_rank", "key_value_rank", "rotary_width")
"""Of latent attention."""


def workload(
    rows: Sequence[Row], precision: str, *, split: Split = "even", scaling: str = "tensorwise"
) -> Workload:
    """Return the rows as the model's arrays; layers are split, and factors scaled to 8 bits, as the
    code does.
    """

    def column(name: str, default: float = 1.0) -> npt.NDArray[np.float64]:
        found = np.array([getattr(row, name) for row in rows], dtype=np.float64)
        return np.where(np.isnan(found), default, found)

    hidden, zero, copies = column("hidden"), column("zero", 0), column("dp") * column("cp")
    matrices = np.where([row.two_matrices for row in rows], 2.0, 3.0)
    experts = np.maximum(column("top_k"), 1)
    q_hidden = column("heads") * np.array([head_width(row) for row in rows])
    kv_hidden = q_hidden * column("kv_heads") / column("heads")
    latents, like = [latent_of(row) for row in rows], [preset_like(row) for row in rows]
    uneven = map(
        _expert_deviation, rows, (one or other for one, other in zip(latents, like, strict=True))
    )
    widths = {
        key: np.array([float((one and one.keys()[key]) or 0) for one in latents]) for key in WIDTHS
    }
    value_hidden = column("heads") * np.array(
        [float(one.attention.value_dim) if one else 0.0 for one in latents]
    )
    kv_hidden = np.where(value_hidden > 0, (q_hidden + value_hidden) / 2, kv_hidden)
    width = 2 * (q_hidden + kv_hidden) + experts * matrices * column("ffn_hidden")
    head = column("vocab") * hidden / (hidden * width)
    shapes = zip(column("layers").tolist(), column("pp").tolist(), head.tolist(), strict=True)
    whole = ((int(n), int(p), cost) for n, p, cost in shapes)
    further = column("mtp_layers", 0)
    counts: dict[str, Any] = {name: column(own) for name, own in schema.OF_RECIPES.items()}
    split_rows = (
        layers_before_mtp(n, p, int(more)) if more else split_layers(split, n, p, cost)
        for (n, p, cost), more in zip(whole, further.tolist(), strict=True)
    )
    dense = column("dense_layers", 0)
    held = [
        ends(with_mtp(one, int(more)), leading(one, int(first)))
        for one, first, more in zip(split_rows, dense.tolist(), further.tolist(), strict=True)
    ]
    counts |= zip(LAYERS, np.array(held, dtype=np.float64).reshape(-1, len(LAYERS)).T, strict=True)
    return Workload(
        layers=column("layers") + further,
        mtp_layers=further,
        hidden=hidden,
        heads=column("heads"),
        q_hidden=q_hidden,
        kv_hidden=kv_hidden,
        value_hidden=value_hidden,
        shared_experts=np.array([row.shared for row in rows]),
        router_groups=np.array(
            [float(one.keys()["router_groups"]) if one else 1.0 for one in latents]
        ),
        router_groups_kept=np.array(
            [float(one.keys()["router_groups_kept"]) if one else 1.0 for one in latents]
        ),
        dense_layers=dense,
        dense_ffn_hidden=np.where(dense > 0, column("dense_ffn_hidden"), 0.0),
        **widths,
        ffn_hidden=column("ffn_hidden"),
        ffn_matrices=matrices,
        attended_share=np.array([_attended_share(row) for row in rows]),
        norms=np.array([4.0 if one and one.layers[0].post_norms else 2.0 for one in like]),
        normed_heads=np.array(
            [
                float(one.attention.q_hidden + one.attention.kv_hidden)
                if one and one.attention.qk_norm
                else 0.0
                for one in like
            ]
        ),
        clamped_gate=np.array(
            [
                (row.activation or (one.feed_forward.activation if one else "")) == "swiglu_clamped"
                for row, one in zip(rows, like, strict=True)
            ]
        ),
        stretched_rotary=np.array([one is not None and has_stretched_rotary(one) for one in like]),
        expert_biases=np.array([one is not None and has_expert_biases(one) for one in like]),
        expert_deviation=np.array(list(uneven)),
        experts=column("experts", 0),
        experts_per_token=experts,
        vocabulary=column("vocab"),
        sequence_length=column("seq"),
        tied_embeddings=np.array([row.tied for row in rows]),
        rotary=np.array([not row.is_gpt for row in rows]),
        fused_attention=np.array([is_fused(row) for row in rows]),
        bytes_per_value=np.full(len(rows), BYTES_PER_VALUE.get(precision, 2.0)),
        data_parallel=column("dp"),
        sharding_parameters=np.where(zero >= 3, copies, 1),
        sharding_gradients=np.where(zero >= 2, copies, 1),
        sharding_optimizer=np.where(zero >= 1, copies, 1),
        recompute_full=np.array([row.recompute == "full" for row in rows]),
        recompute_selective=np.array([row.recompute == "selective" for row in rows]),
        sequence_parallel=np.array([row.seq_parallel == 1 and row.tp > 1 for row in rows]),
        head_on_first=column("pp") == 1,
        fp8=np.array(
            [
                float(FP8_SCALINGS.index(row.fp8 if row.fp8 != "default" else scaling))
                for row in rows
            ]
        ),
        compile=np.array([_is_compiled(row) for row in rows]),
        **counts,
    )


def _is_compiled(row: Row) -> bool:
    """Return whether a note says so, or torchtitan casts to 8 bits, which it documents for compiled
    models.
    """
    of_titan = row.fp8 != "none" and "torchtitan" in row.source.lower()
    return of_titan or re.search(r"\bcompiled?\b", row.note, re.IGNORECASE) is not None


def samples_of_tables(tables: Sequence[Table], cluster: Cluster | None) -> Samples:
    """Return the timed rows of tables, on `cluster` or else on the machine that they state."""
    refused: Counter[str] = Counter()
    found: list[Sample] = []
    for table in tables:
        refused.update(table.refused)
        for places, sample in table.parts:
            hardware = table.rows[places[0]].hardware
            if cluster is not None and is_elsewhere(hardware, cluster):
                refused[f"measured on {hardware}, not on {cluster.device}"] += len(places)
                continue
            timed = sample.step_time_s > 0
            if not timed.all():
                refused["no step time"] += int((~timed).sum())
            if timed.any():
                found.append(replace(sample.rows(timed), cluster=cluster or sample.cluster))
    return Samples(samples=tuple(found), refused=refused)
