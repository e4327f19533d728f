"""Problems and random legal recipes for the exchange with other tools."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from frontrunner.spaces.cluster import Cluster
from frontrunner.spaces.legality import why_illegal
from frontrunner.spaces.model.model import KEYS, Model
from frontrunner.spaces.model.positions import RotaryScaling
from frontrunner.spaces.problem import GlobalBatch, Problem
from frontrunner.spaces.recipe import (
    DIMENSIONS,
    ENGINES,
    LOOPED_SCHEDULES,
    OFFLOADS,
    RANK_ORDERS,
    RECOMPUTES,
    SCHEDULES,
    Recipe,
)
from frontrunner.spaces.sharding import Sharding
from frontrunner.spaces.stages import balanced_layers, even_layers

MODEL_KEYS = KEYS.keys()


def problem(**changes: Any) -> Problem:
    """A small Llama on 4 nodes of 4 devices; `changes` are fields of the model, the cluster or the
    problem.
    """
    model = {
        "name": "small",
        "layers": 12,
        "hidden": 256,
        "heads": 8,
        "kv_heads": 4,
        "ffn_hidden": 512,
    }
    model |= {
        "vocabulary": 1000,
        "activation": "swiglu",
        "norm": "rmsnorm",
        "experts": 0,
        "experts_per_token": 0,
    }
    model |= {
        "renormalized_experts": True,
        "max_positions": None,
        **dict.fromkeys(changes.keys() & MODEL_KEYS),
    }
    cluster = {
        "name": "test",
        "device": "test",
        "backend": "cuda",
        "nodes": 4,
        "devices_per_node": 4,
    }
    cluster |= {"memory_gib_per_device": 16.0, "nvme_path": "/fast"}
    fields: dict[str, Any] = {"sequence_length": 256, "precision": "bf16"}
    for key, value in changes.items():
        next(table for table in (model, cluster, fields) if key in table or table is fields)[
            key
        ] = value
    return Problem(
        model=Model.from_keys(**model),
        cluster=Cluster(**cluster),
        global_batch=GlobalBatch(minimum=1, maximum=4096),
        **fields,
    )


def deepseek() -> Problem:
    """A small model of DeepSeek-V3's form: latent attention, shared experts, a dense layer, groups,
    a bias.
    """
    return problem(
        kv_heads=8, head_width=32, key_value_rank=64, query_rank=96, rotary_width=16,
        value_width=48, experts=8,
        experts_per_token=4, shared_experts=1, dense_layers=1, dense_ffn_hidden=1024,
        router="sigmoid", router_groups=4,
        router_groups_kept=2, routed_scale=2.5, balancing="bias",
        rotary_scaling=RotaryScaling(kind="yarn", factor=40.0, original_positions=4096,
            attention_factor=1.0,
                                     score_factor=1.873854207093),
    )  # fmt: skip


def gpt_oss() -> Problem:
    """A small model of gpt-oss's form, without its rotary scaling: windows, sinks, biases and a
    clamped activation.
    """
    return problem(
        activation="swiglu_clamped", biases="all", attention_window=128, full_attention_every=2,
        attention_sinks=True,
        experts=8, experts_per_token=2,
    )  # fmt: skip


@st.composite
def recipes(draw: Callable[[Any], Any], of: Problem) -> Recipe:
    """A random legal recipe that uses whole nodes or a part of one."""
    powers = st.sampled_from([1, 1, 2, 4])
    tp, pp, cp, dp = draw(powers), draw(powers), draw(powers), draw(powers)
    schedule = (
        "none" if pp == 1 else draw(st.sampled_from([word for word in SCHEDULES if word != "none"]))
    )
    virtual = draw(st.sampled_from([2, 2, 3])) if schedule in LOOPED_SCHEDULES else 1
    copies, has_experts = dp * cp, of.model.mixture is not None
    names = [
        "none",
        "zero-1",
        "zero-1",
        "zero-2",
        "zero-3",
        *(f"hybrid-{k}" for k in (2, 4) if copies % k == 0),
    ]
    found = Recipe(
        engine="torch" if has_experts else draw(st.sampled_from(ENGINES)),
        devices=tp * pp * cp * dp,
        tensor_parallel=tp,
        pipeline_parallel=pp,
        context_parallel=cp,
        virtual_stages=virtual,
        schedule=schedule,
        micro_batch_seqs=draw(st.integers(1, 4)),
        accumulation=draw(st.sampled_from([1, 4, 8, 12])),
        sharding=Sharding.named(draw(st.sampled_from(names)), copies),
        recompute=draw(st.sampled_from(RECOMPUTES)),
        sequence_parallel=tp > 1 and (has_experts or draw(st.booleans())),
        expert_parallel=draw(st.sampled_from([1, 2, 4, 8])) if has_experts else 1,
        expert_tensor_parallel=draw(st.sampled_from([1, 1, 2, 4])) if has_experts else 1,
    )
    found = _with_levers(draw, found)
    if draw(st.booleans()) and found.stages <= len(of.model.layers):
        balanced = balanced_layers(found, of)
        even = even_layers(len(of.model.layers), found.stages)
        found = replace(found, layers_per_stage=() if balanced == even else balanced)
    return found if why_illegal(found, of) is None else draw(recipes(of))


def _with_levers(draw: Callable[[Any], Any], recipe: Recipe) -> Recipe:
    """At most one of the levers that few tools have, so that most recipes can travel somewhere."""
    levers: list[dict[str, Any]] = [
        {"compile": True},
        {"loss_chunks": 2},
        {"feed_forward_tiles": 2},
        {"optimizer_state": "bf16"},
        {"activation_offload": True},
        {"compile": True, "async_tensor_parallel": True},
        {"offload": draw(st.sampled_from(OFFLOADS))},
        {"gradient_sync": draw(st.sampled_from(DIMENSIONS["gradient_sync"].values))},
        {"secondary_partition": 2},
        {"quantized_weights": True},
        {"quantized_gradients": True},
        {"rank_order": draw(st.sampled_from(RANK_ORDERS))},
        {"fp8": draw(st.sampled_from(DIMENSIONS["fp8"].values))},
    ]
    return replace(recipe, **draw(st.sampled_from([{}, {}, {}, *levers])))
