"""Rows of tables as the analytic model's arrays, for fits and for judging the model; others are
refused by reason.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from frontrunner.evaluators.analytic.arrays import Rows
from frontrunner.evaluators.analytic.codes import coded
from frontrunner.evaluators.analytic.fit import Sample, Samples
from frontrunner.evaluators.analytic.stage_layers import Counts, by_kind, ends, split_layers
from frontrunner.evaluators.analytic.training_code import LayerSplit
from frontrunner.evaluators.analytic.workload import (
    BYTES_PER_VALUE,
    FP8_SCALINGS,
    NAMED_PARTS,
    LayerChoices,
    ParallelDegrees,
    PipelineLayers,
    RecomputeRows,
    ScheduleRows,
    ShardingRows,
    StateRows,
    Workload,
)
from frontrunner.evaluators.tables import schema
from frontrunner.evaluators.tables.rows import (
    LATENT,
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
from frontrunner.spaces.model.model import Model


@dataclass(frozen=True)
class Table:
    """The rows of one file that the model can estimate, and how many others there are by reason."""

    name: str
    rows: tuple[Row, ...]
    refused: dict[str, int]
    default_cluster: Cluster | None = None

    @cached_property
    def parts(self) -> tuple[tuple[npt.NDArray[np.intp], Sample], ...]:
        """The places of rows of one machine, precision, training code and model, and what the
        formulas take of them.
        """
        groups: dict[tuple[object, ...], list[int]] = {}
        for place, row in enumerate(self.rows):
            # As text, since NaN differs from itself.
            machine = [str(getattr(row, name)) for name in schema.MACHINE_NUMBERS]
            code = (row.hardware, *machine, row.precision, software_of(row))
            kind = (modelled(row), is_fused(row))
            groups.setdefault((*code, *kind), []).append(place)
        return tuple(
            (np.array(places), self._sample([self.rows[p] for p in places]))
            for places in groups.values()
        )

    def _sample(self, rows: Sequence[Row]) -> Sample:
        first, stated = rows[0], software_of(rows[0])
        code = coded(stated)
        precision = first.precision or "bf16"
        own = self.default_cluster if preset_of(first.hardware) is None else None
        return Sample(
            cluster=own or machine_of(first),
            precision=precision,
            code=code,
            work=workload(
                rows, precision, split=code.pipeline.layer_split, scaling=code.products.fp8_default
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
    impossible = schema.why_impossible(row, row.layers) or _why_no_model(row)
    return impossible or (None if has_machine else _why_unknown(row))


def _why_no_model(row: Row) -> str | None:
    if unknown := sorted(set(row.recompute_modules.split()) - MODULES.keys()):
        return f"recompute of {', '.join(unknown)} is not modeled"
    try:
        modelled(row)
    except (ValueError, OverflowError) as error:
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


def modelled(row: Row) -> Model:
    """Return the model of a completed row as the formulas take it.

    Rows state its shape. What else its layers do is taken from the preset with such layers, if one
    has. Raises ValueError for an impossible shape.
    """
    if row.shared % 1:
        raise ValueError(
            f"shared experts {row.shared_experts} are of another width than the others"
        )
    latent, like = latent_of(row), preset_like(row)
    width = head_width(row)
    if width % 1:
        raise ValueError(f"hidden {row.hidden:.0f} is no multiple of heads {row.heads:.0f}")
    routed = latent or like
    keys: dict[str, Any] = {
        "name": row.model or "unnamed",
        "layers": int(row.layers),
        "hidden": int(row.hidden),
        "heads": int(row.heads),
        "kv_heads": int(row.kv_heads),
        "head_width": int(width),
        "ffn_hidden": int(row.ffn_hidden),
        "vocabulary": int(row.vocab),
        "vocabulary_multiple": 1,
        "tied_embeddings": row.tied,
        "positions": "learned" if row.is_gpt else "rotary",
        "activation": _activation(row, like),
        "mtp_layers": int(row.mtp_layers),
        **windows(row),
    }
    if latent:
        keys |= {name: latent.keys()[name] for name in LATENT}
    if like:
        keys |= {name: like.keys()[name] for name in ("post_norms", "qk_norm", "rotary_scaling")}
    if row.experts:
        keys |= {
            "experts": int(row.experts),
            "experts_per_token": max(int(row.top_k), 1),
            "shared_experts": int(row.shared),
            "routing": routing_of(row),
            "balancing": routed.mixture.balancing if routed and routed.mixture else "loss",
            "biases": "all" if like and like.mixture and like.mixture.has_biases else "none",
            "router_groups": latent.keys()["router_groups"] if latent else 1,
            "router_groups_kept": latent.keys()["router_groups_kept"] if latent else 1,
        }
        if row.dense_layers:
            keys["dense_layers"] = int(row.dense_layers)
            keys["dense_ffn_hidden"] = int(row.dense_ffn_hidden)
    return Model.from_keys(**keys)


def _activation(row: Row, like: Model | None) -> str:
    stated = row.activation or (like.feed_forward.activation if like else "")
    if row.two_matrices:
        return "gelu"
    return "swiglu_clamped" if stated == "swiglu_clamped" else "swiglu"


def workload(
    rows: Sequence[Row], precision: str, *, split: LayerSplit = "even", scaling: str = "tensorwise"
) -> Workload:
    """Return rows of one model and kind of attention as the formulas' arrays.

    Layers are split, and factors scaled to 8 bits, as the code does.
    """

    def column(name: str, default: float = 1.0) -> Rows:
        values = np.array([getattr(row, name) for row in rows], dtype=np.float64)
        return np.where(np.isnan(values), default, values)

    first = rows[0]
    model = modelled(first)
    zero, copies = column("zero", 0), column("dp") * column("cp")
    of_recipes = {name: column(own) for name, own in schema.OF_RECIPES.items()}
    fp8 = [row.fp8 if row.fp8 != "default" else scaling for row in rows]
    return Workload(
        model=model,
        sequence_length=column("seq"),
        bytes_per_value=BYTES_PER_VALUE.get(precision, 2.0),
        fused_attention=is_fused(first),
        degrees=ParallelDegrees(
            tensor=of_recipes["tensor_parallel"],
            pipeline=of_recipes["pipeline_parallel"],
            data=column("dp"),
            context=of_recipes["context_parallel"],
            expert=of_recipes["expert_parallel"],
            expert_tensor=of_recipes["expert_tensor_parallel"],
        ),
        sharding=ShardingRows(
            parameters=np.where(zero >= 3, copies, 1),
            gradients=np.where(zero >= 2, copies, 1),
            optimizer=np.where(zero >= 1, copies, 1),
        ),
        schedule=ScheduleRows(
            micro_batch_seqs=of_recipes["micro_batch_seqs"],
            accumulation=of_recipes["accumulation"],
            virtual_stages=of_recipes["virtual_stages"],
            head_on_first=column("pp") == 1,
        ),
        choices=LayerChoices(
            sequence_parallel=np.array([row.seq_parallel == 1 and row.tp > 1 for row in rows]),
            compile=np.array([_is_compiled(row) for row in rows]),
            fp8=np.array([float(FP8_SCALINGS.index(name)) for name in fp8]),
        ),
        recompute=_recompute(rows),
        states=StateRows(),
        layers=PipelineLayers.of(
            [_layers(row, model, split) for row in rows], kinds=len(model.kinds)
        ),
    )


MODULES: Mapping[str, tuple[str, ...]] = {
    "core_attn": ("attention",),
    "mla_up_proj": ("latents",),
    "layernorm": ("norms",),
    "moe_act": ("activation",),
    "mlp": ("dense",),
    "moe": ("experts",),
}
"""Modules of Megatron-core's `recompute_modules` -> the named parts of `RecomputeRows`."""


def _recompute(rows: Sequence[Row]) -> RecomputeRows:
    """Return what the rows compute again; modules that a row names stand in place of the code's own
    selective recompute.
    """
    modules = [row.recompute_modules.split() for row in rows]
    named = [{part for module in each for part in MODULES[module]} for each in modules]
    selective = [
        row.recompute == "selective" and not parts for row, parts in zip(rows, named, strict=True)
    ]
    return RecomputeRows(
        full=np.array([row.recompute == "full" for row in rows]),
        selective=np.array(selective),
        **{part: np.array([part in parts for parts in named]) for part in NAMED_PARTS},
    )


def _layers(row: Row, model: Model, split: LayerSplit) -> tuple[Counts, Counts, Counts]:
    """Return the layers of the pipeline's first, fullest between, and last rank."""
    ranks = int(row.pp) if row.pp == row.pp else 1
    if model.prediction.layers:
        counts: Sequence[int] = layers_before_mtp(len(model.layers), ranks, model.prediction.layers)
    else:
        counts = split_layers(split, len(model.layers), ranks, _head_layers(model))
    return ends(by_kind(counts, model))


def _head_layers(model: Model) -> float:
    """Return the head's parameters over those of a layer that a token goes through."""
    attention, feed_forward = model.attention, model.feed_forward
    chosen = model.mixture.experts_per_token if model.mixture else 1
    width = 2 * attention.q_hidden + attention.kv_heads * (attention.head_dim + attention.value_dim)
    width += chosen * feed_forward.matrices * feed_forward.ffn_hidden
    head: float = model.embedding.padded_vocabulary / width
    return head


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
