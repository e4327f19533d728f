"""Mixtures of experts: what the model counts, which recipes are legal, and what the formulas make
of them.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest

from frontrunner.evaluators.analytic.accuracy_bounds import log_bounds
from frontrunner.evaluators.analytic.advice import layouts
from frontrunner.evaluators.analytic.arrays import Rows
from frontrunner.evaluators.analytic.codes import FRONTRUNNER
from frontrunner.evaluators.analytic.estimates import plan
from frontrunner.evaluators.analytic.layer_time import LayerTime, layer_time
from frontrunner.evaluators.analytic.machine import Machine
from frontrunner.evaluators.analytic.memory import layer_memory, memory_of_ranks
from frontrunner.evaluators.analytic.operations import (
    Elementwise,
    MemoryPass,
    Product,
)
from frontrunner.evaluators.analytic.parts import layer as layer_part
from frontrunner.evaluators.analytic.parts import mixture
from frontrunner.evaluators.analytic.parts.setting import Setting
from frontrunner.evaluators.analytic.pricing import priced
from frontrunner.evaluators.analytic.step import step_time
from frontrunner.evaluators.analytic.training_code import TrainingCode
from frontrunner.evaluators.analytic.workload import Workload
from frontrunner.evaluators.runs.measure import measured_steps
from frontrunner.results.outcome import Telemetry
from frontrunner.spaces.document import recipe_id
from frontrunner.spaces.errors import InvalidInput
from frontrunner.spaces.legality import why_illegal
from frontrunner.spaces.model.model import Model
from frontrunner.spaces.model.positions import RotaryScaling
from frontrunner.spaces.sharding import Sharding
from frontrunner.views.columns import expert_balance
from support import legality
from support.analytic import (
    A100,
    PROBLEM,
    recipe,
    with_code,
    without_latency,
    without_losses,
    work,
)

MIXTRAL = Model.from_keys(
    name="m", layers=32, hidden=4096, heads=32, kv_heads=8, ffn_hidden=14336, vocabulary=32000,
    vocabulary_multiple=1,
    activation="swiglu", norm="rmsnorm", experts=8, experts_per_token=2,
)  # fmt: skip
DEEPSEEK_V3 = MIXTRAL.with_keys(
    layers=61, hidden=7168, heads=128, kv_heads=128, head_width=128, ffn_hidden=2048,
    vocabulary=129280,
    key_value_rank=512, query_rank=1536, rotary_width=64, experts=256, experts_per_token=8,
    shared_experts=1,
    dense_layers=3, dense_ffn_hidden=18432, router="sigmoid", router_groups=8, router_groups_kept=4,
    routed_scale=2.5,
)  # fmt: skip
DEEPSEEK_V2 = DEEPSEEK_V3.with_keys(
    layers=60, hidden=5120, ffn_hidden=1536, vocabulary=102400, experts=160,
    experts_per_token=6,
    shared_experts=2, dense_layers=1, dense_ffn_hidden=12288, router="softmax",
    router_groups_kept=3,
)  # fmt: skip
DEEPSEEK_V2_LITE = DEEPSEEK_V2.with_keys(
    layers=27, hidden=2048, heads=16, kv_heads=16, ffn_hidden=1408, query_rank=None,
    experts=64,
    dense_ffn_hidden=10944, router_groups=1, router_groups_kept=1,
)  # fmt: skip
ZERO_1, ZERO_3 = Sharding(optimizer=64), Sharding(parameters=64, gradients=64, optimizer=64)
Pass = Literal["forward", "backward", "kept"]
"""What a kernel's bytes are of."""
OURS = without_latency(Machine.of(A100, "bf16", FRONTRUNNER))


ON_A_NODE = {"devices": 8, "tensor_parallel": 1, "micro_batch_seqs": 8, "accumulation": 1}
"""Tokens of 8 sequences on each of 8 ranks of a node."""
SHORT = {"devices": 8, "tensor_parallel": 1, "micro_batch_seqs": 1, "accumulation": 8}
"""A sequence at a time on each of them."""


def of_experts(**changes: Any) -> Any:
    """Return a problem of MIXTRAL with changes; tokens are dealt to its experts in turn."""
    routing = "uniform" if changes.get("experts", 1) else "learned"
    model = MIXTRAL.with_keys(**{"routing": routing} | changes)
    return replace(PROBLEM, model=model, precision="bf16")


def computed(time: LayerTime) -> Rows:
    """Return the seconds of both passes without waits."""
    return time.forward + time.backward


def last_layer(base: Machine, rows: Workload) -> LayerTime:
    """Return the seconds of a layer of the model's last kind, that with experts."""
    return layer_time(base, rows, rows.model.kinds[-1][1])


def bytes_per_token(code: TrainingCode, rows: Workload, of: Pass) -> float:
    """Return the bytes that a layer's kernels outside products move, or keep, for each token."""
    total = 0.0
    for operation in layer_part.operations(rows.model.layers[-1], Setting(work=rows, code=code)):
        if isinstance(operation, Elementwise):
            _, eager = code.kernels.bytes_of(operation.kernel)
            total += float(operation.values[0] * getattr(eager, of))
    return total / float(rows.tokens[0])


def test_parameters_and_flops_are_those_of_the_released_model() -> None:
    assert MIXTRAL.parameters == 46_702_792_704
    assert MIXTRAL.active_parameters == 12_879_925_248
    dense = MIXTRAL.with_keys(
        experts=0, experts_per_token=0, ffn_hidden=2 * MIXTRAL.feed_forward.ffn_hidden
    )
    router = 2.0 * MIXTRAL.hidden * MIXTRAL.mixture.experts
    assert MIXTRAL.layer_flops_per_token(4096) == dense.layer_flops_per_token(4096) + router


@pytest.mark.parametrize(
    ("model", "parameters", "active"),
    [
        (DEEPSEEK_V3, 671_026_404_352, 37_552_282_624),
        (DEEPSEEK_V2, 235_741_434_880, 21_375_800_320),
        (DEEPSEEK_V2_LITE, 15_706_484_224, 2_661_150_208),
    ],
)
def test_shared_experts_dense_layers_and_latent_attention_are_counted(
    model: Model, parameters: int, active: int
) -> None:
    """DeepSeek-V3 has the 58 x 256 biases of its choice besides."""
    assert (model.parameters, model.active_parameters) == (parameters, active)


def test_flops_of_latent_attention_are_those_of_its_matrices() -> None:
    """DeepSeek-V3's 128 heads see 192 numbers of each position and return 128; a token goes through
    3 + 58 layers.
    """
    attention = 7168 * (1536 + 512 + 64) + 1536 * 128 * 192 + 512 * 128 * 256 + 128 * 128 * 7168
    dense, mixed = 3 * 7168 * 18432, 9 * 3 * 7168 * 2048 + 7168 * 256
    forward = 2 * (
        61 * attention + 3 * dense + 58 * mixed + 7168 * 129_280
    ) + 61 * 2 * 4096 * 128 * (192 + 128)
    assert DEEPSEEK_V3.model_flops_per_token(4096) == pytest.approx(3.0 * forward, rel=1e-12)


def test_the_first_layers_of_a_model_keep_one_with_experts() -> None:
    assert DEEPSEEK_V3.of_layers(4).kinds[0][0] == 3
    assert DEEPSEEK_V3.of_layers(3).dense_layers == 2
    assert DEEPSEEK_V3.of_layers(1).dense is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dense_layers": 61}, "model.dense_layers = 61: expected fewer than model.layers = 61"),
        (
            {"dense_layers": 0},
            "model.dense_ffn_hidden needs model.dense_layers > 0 (it is 0)",
        ),
        (
            {"dense_ffn_hidden": None},
            "model.dense_ffn_hidden is missing: expected the width of model.dense_layers",
        ),
        (
            {"router_groups": 3},
            "model.router_groups = 3: expected a divisor of model.experts = 256",
        ),
        ({"router_groups_kept": 9}, "model.router_groups_kept = 9: expected at most 8"),
        (
            {"router_groups": 64, "router_groups_kept": 1},
            "model.router_groups_kept = 1: expected at most 64 groups, with",
        ),
        (
            {"router_groups": 256, "router_groups_kept": 8},
            "model.router_groups = 256: expected groups of two experts",
        ),
        ({"router": "tanh"}, 'model.router = "tanh": expected one of softmax, sigmoid'),
        ({"routed_scale": 0.0}, "model.routed_scale = 0.0: expected above 0"),
        ({"kv_heads": 8}, "model.kv_heads = 8: expected model.heads = 128"),
        ({"rotary_width": 0}, "model.rotary_width = 0: expected an even number"),
        ({"positions": "learned"}, 'model.positions = "learned": expected "rotary"'),
        ({"qk_norm": True}, "model.qk_norm needs grouped attention"),
        (
            {"key_value_rank": None},
            "model.query_rank needs a model.key_value_rank",
        ),
        (
            {"experts": 0, "experts_per_token": 0},
            "model.shared_experts needs model.experts > 0 (it is 0)",
        ),
    ],
)
def test_what_makes_no_deepseek_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        DEEPSEEK_V3.with_keys(**changes)
    assert message in refused.value.message


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"experts_per_token": 9},
            "model.experts_per_token = 9: expected at least 1 and at most model.experts = 8",
        ),
        ({"experts_per_token": 0}, "model.experts_per_token = 0: expected at least 1"),
        ({"experts": 0}, "model.experts_per_token needs model.experts > 0 (it is 0)"),
        ({"biases": "all", "shared_experts": 1}, 'model.biases = "all": expected none or qkv'),
    ],
)
def test_what_makes_no_mixture_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        MIXTRAL.with_keys(**changes)
    assert message in refused.value.message


@pytest.mark.parametrize(
    ("choices", "code", "text"),
    [
        (
            {"expert_parallel": 3},
            "experts-divide",
            "expert_parallel 3 does not divide the 8 experts; 2 does",
        ),
        (
            {
                "devices": 12,
                "expert_parallel": 8,
                "micro_batch_seqs": 4,
                "pipeline_parallel": 3,
                "accumulation": 4,
            },
            "experts-ranks",
            (
                "expert_parallel 8 does not divide the 4 ranks of a pipeline stage; expert_parallel"
                " 4 does"
            ),
        ),
        (
            {
                "devices": 12,
                "expert_parallel": 2,
                "expert_tensor_parallel": 4,
                "micro_batch_seqs": 4,
            }
            | {"pipeline_parallel": 3, "accumulation": 4},
            "experts-ranks",
            (
                "expert_parallel 2 x expert_tensor_parallel 4 does not divide the 4 ranks of a"
                " pipeline stage; expert_parallel 1 does"
            ),
        ),
        (
            {"expert_tensor_parallel": 5},
            "experts-width",
            "expert_tensor_parallel 5 does not divide ffn_hidden",
        ),
        (
            {"tensor_parallel": 2},
            "experts-tensor",
            "tensor_parallel 2 needs sequence_parallel, and expert_parallel or",
        ),
        ({"engine": "deepspeed"}, "experts-engine", "use engine torch"),
        ({"compile": True, "recompute": "full"}, "experts-compile", "use recompute none"),
        ({"expert_parallel": 2, "replication": "ddp"}, "experts-ddp", "use replicate"),
        ({"expert_tensor_parallel": 2, "replication": "ddp"}, "experts-ddp", "use replicate"),
        (
            {"expert_parallel": 2, "sharding": Sharding(parameters=4, gradients=4, optimizer=4)},
            "experts-sharding",
            "expert_parallel takes none",
        ),
        (
            {"expert_tensor_parallel": 2}
            | {"sharding": Sharding(parameters=4, gradients=4, optimizer=4)},
            "experts-sharding",
            "expert_tensor_parallel takes none",
        ),
        (
            {
                "expert_parallel": 2,
                "sharding": Sharding.named("zero-3", 16),
                "offload": "optimizer+parameters",
            },
            "experts-offload",
            "offload",
        ),
    ],
)
def test_recipes_that_experts_do_not_allow(choices: dict[str, Any], code: str, text: str) -> None:
    problem = replace(
        legality.PROBLEM, model=legality.MODEL.with_keys(experts=8, experts_per_token=2)
    )
    reason = why_illegal(legality.recipe(**choices), problem)
    assert reason is not None
    assert (reason.code, text in reason.text) == (code, True)


BIASED = {"experts": 8, "experts_per_token": 2, "biases": "all"}


@pytest.mark.parametrize(
    ("model", "choices", "code"),
    [
        (
            {"key_value_rank": 16, "rotary_width": 8, "kv_heads": 24},
            {"engine": "deepspeed"},
            "latent-engine",
        ),
        (
            {"experts": 8, "experts_per_token": 2, "balancing": "loss"},
            {"feed_forward_tiles": 2},
            "experts-tiles",
        ),
        (
            {"experts": 8, "experts_per_token": 2, "balancing": "bias"},
            {"feed_forward_tiles": 2},
            None,
        ),
        ({"key_value_rank": 16, "rotary_width": 8, "kv_heads": 24}, {}, None),
        (BIASED, {"expert_tensor_parallel": 2}, "experts-biases"),
        (BIASED, {"expert_parallel": 2}, None),
        (BIASED, {"replication": "ddp"}, None),
        (BIASED, {"expert_parallel": 2, "sharding": Sharding.named("zero-1", 16)}, None),
    ],
)
def test_models_restrict_their_recipes(
    model: dict[str, Any], choices: dict[str, Any], code: str | None
) -> None:
    problem = replace(legality.PROBLEM, model=legality.MODEL.with_keys(**model))
    reason = why_illegal(legality.recipe(**choices), problem)
    assert (reason and reason.code) == code


@pytest.mark.parametrize(
    ("sizes", "etp", "text"),
    [
        ({"hidden": 4100}, 1, "hidden is 4100; 4096 and 4104 are"),
        ({"ffn_hidden": 1412}, 1, "an expert has ffn_hidden 1412; 1408 and 1416 are"),
        (
            {"ffn_hidden": 1416},
            4,
            "ffn_hidden 1416 / expert_tensor_parallel 4 = 354; expert_tensor_parallel 1 does",
        ),
        (
            {"ffn_hidden": 1412},
            2,
            "ffn_hidden 1412 / expert_tensor_parallel 2 = 706; 1408 and 1424 are",
        ),
        ({"ffn_hidden": 1408}, 4, None),
    ],
)
def test_experts_in_16_bits_have_widths_that_grouped_products_take(
    sizes: dict[str, int], etp: int, text: str | None
) -> None:
    model = MIXTRAL.with_keys(**{"head_width": 128} | sizes)
    problem = replace(legality.PROBLEM, model=model, precision="bf16")
    chosen = legality.recipe(expert_tensor_parallel=etp)
    reason = why_illegal(chosen, problem)
    assert (reason and reason.code) == (text and "experts-grouped")
    assert text is None or text in str(reason)
    for backend, precision in (("cuda", "fp32"), ("cpu", "bf16"), ("xpu", "bf16")):
        other = replace(
            problem, precision=precision, cluster=replace(problem.cluster, backend=backend)
        )
        assert why_illegal(chosen, other) is None
    on_rocm = replace(problem, cluster=replace(problem.cluster, backend="rocm"))
    assert why_illegal(chosen, on_rocm) == reason


def test_routing_is_part_of_what_was_measured() -> None:
    of_router, dealt = of_experts(routing="learned"), of_experts(routing="uniform")
    ids = {
        recipe_id(problem, recipe())
        for problem in (of_router, replace(of_router, model=MIXTRAL), dealt)
    }
    assert ids == {recipe_id(of_router, recipe()), recipe_id(dealt, recipe())}
    assert len(ids) == 2
    with pytest.raises(InvalidInput, match=r"model\.routing"):
        of_experts(experts=0, experts_per_token=0, routing="uniform")


def test_imbalance_is_told_with_how_tokens_were_routed() -> None:
    telemetry = Telemetry(
        routing="learned", expert_imbalance=(1.4, 1.3, 1.1), rank_imbalance=(1.0, 1.25, 1.25)
    )
    found = {"node_seconds": 1.0, "peak_memory_bytes": (1,), "telemetry": telemetry}
    measured = measured_steps(recipe(), of_experts(), (1.0,), **found)
    assert (
        expert_balance(measured)
        == "tokens by the router: fullest expert 1.30, fullest rank 1.25 times the mean"
    )
    assert expert_balance(replace(measured, telemetry=Telemetry())) is None


def test_a_dense_model_has_no_experts_to_share() -> None:
    reason = why_illegal(legality.recipe(expert_parallel=2), legality.PROBLEM)
    assert reason is not None
    assert reason.code == "experts-none"


@pytest.mark.parametrize(
    "degrees",
    [
        {},
        {"expert_parallel": 8},
        {"tensor_parallel": 4, "expert_parallel": 2},
        {"expert_parallel": 2, "expert_tensor_parallel": 4},
    ],
)
@pytest.mark.parametrize("sharding", [Sharding(), ZERO_1, ZERO_3])
def test_weights_are_on_ranks_as_often_as_there_are_replicas(
    degrees: dict[str, int], sharding: Sharding
) -> None:
    copies = 64 // degrees.get("tensor_parallel", 1)
    spread = Sharding(**{name: min(copies, degree) for name, degree in vars(sharding).items()})
    chosen = {
        "tensor_parallel": 1,
        "sequence_parallel": "tensor_parallel" in degrees,
        "micro_batch_seqs": 1,
    } | degrees
    of = work(recipe(**chosen, sharding=spread), problem=of_experts())
    (weights,) = layer_part.weights_of_kinds(of)
    for degree in (spread.parameters, spread.optimizer):
        held = float(weights.sharded(of, np.array([float(degree)]))[0]) / degree * 64
        experts = 3 * 4096 * 14336 * 8
        others = MIXTRAL.layers[-1].matmul_parameters - experts
        # The copies of what is no expert's, and of the experts, that are left.
        rest, own = (1, 1) if degree > 1 else (copies, 64 // of.degrees.expert_ranks.item())
        # The router's rows are counted as if tensor-parallel ranks shared them.
        router = 4096 * 8 * (1 - 1 / degrees.get("tensor_parallel", 1))
        assert held == pytest.approx(others * rest + experts * own, rel=1e-3 + router / others)


def test_layer_time_of_experts_is_what_their_tokens_need() -> None:
    """With many tokens and fast memory, a layer of experts takes the time of a dense one of equal
    FLOPs.
    """
    fast = replace(
        OURS, memory_bytes_per_s=1e18, efficiencies=replace(OURS.efficiencies, kernel_s=0.0)
    )
    degrees = ((1, 1), (8, 1), (1, 8), (2, 4))
    chosen = (
        recipe(**ON_A_NODE, expert_parallel=ranks, expert_tensor_parallel=ways)
        for ranks, ways in degrees
    )
    dense = of_experts(experts=0, experts_per_token=0, ffn_hidden=2 * 14336)

    mixed_s = computed(last_layer(fast, work(*chosen, problem=of_experts())))
    dense_s = computed(last_layer(fast, work(recipe(**ON_A_NODE), problem=dense)))

    assert mixed_s == pytest.approx(np.full(4, dense_s[0]), rel=0.02)


def test_expert_parallel_time_is_that_of_tokens_to_their_experts_and_back_in_both_passes() -> None:
    shape = SHORT | {"accumulation": 1}
    plans = (
        recipe(**shape, expert_parallel=8),
        recipe(**shape, expert_parallel=8, recompute="full"),
        recipe(**shape),
        recipe(**shape, expert_tensor_parallel=8),
    )

    times = last_layer(OURS, work(*plans, problem=of_experts())).expert_parallel

    sent = 2048 * 2 * 4096 * 2 * 7 / 8
    # Each rank that shares the matrices of all experts gets the tokens of all eight.
    assert times == pytest.approx(np.array([4, 6, 0, 4 * 8]) * sent / OURS.node_bytes_per_s)


@pytest.mark.parametrize(
    ("degrees", "attention", "rows"),
    [
        ({"expert_parallel": 8}, 4096 + 6144 + 4096 + 4096, 2 * 14336 + 4096 + 2 * 4096),
        (
            {"tensor_parallel": 8, "expert_parallel": 8},
            512 + 768 + 512 + 4096,
            (2 * 14336 + 4096 + 2 * 4096) / 8,
        ),
        (
            {"tensor_parallel": 4, "expert_tensor_parallel": 4},
            1024 + 1536 + 1024 + 4096,
            (2 * 14336 / 4 + 4096 + 2 * 4096) * 4 / 4,
        ),
    ],
)
def test_selective_recompute_keeps_what_experts_are_sent(
    degrees: dict[str, int], attention: float, rows: float
) -> None:
    """By hand, in values per token: a layer's input, queries, keys and values, attention, its
    projection; then for each of two experts a gate's two products, the last one, and two
    all-to-alls. Four ranks hold the rows of all four.
    """
    plan = recipe(**{"tensor_parallel": 1, "micro_batch_seqs": 1, "accumulation": 1} | degrees,
        recompute="selective",
                  sequence_parallel="tensor_parallel" in degrees)  # fmt: skip
    kept = memory_of_ranks(OURS, work(plan, problem=of_experts()))[0].activations
    assert kept == pytest.approx(32 * 2048 * 2 * (attention + 2 * rows))


def test_expert_parallel_time_is_across_nodes_where_ranks_of_other_stages_fill_them() -> None:
    """By hand: of a stage's eight ranks a node has one, and its eight devices send 7 / 8 through
    its ports.
    """
    shape = SHORT | {"pipeline_parallel": 8, "schedule": "1f1b", "devices": 64}
    near, far = (
        recipe(**shape, expert_parallel=8, rank_order=order) for order in ("tp-dp-pp", "tp-pp-dp")
    )
    times = last_layer(OURS, work(near, far, problem=of_experts())).expert_parallel

    sent = 4 * 2048 * 2 * 4096 * 2 * 7 / 8
    speeds = [OURS.node_bytes_per_s, OURS.network_bytes_per_s_per_node / 8]
    assert times == pytest.approx(sent / np.array(speeds))


def test_expert_parallel_time_of_tokens_sent_once_is_of_each_node_that_they_reach() -> None:
    shape = SHORT | {"accumulation": 1, "devices": 16}
    rows = work(
        recipe(**shape, expert_parallel=16), problem=of_experts(experts=16, experts_per_token=4)
    )
    slow = replace(OURS, network_bytes_per_s_per_node=1e9)
    once = with_code(slow, experts__dispatches_once=True)

    times = [last_layer(base, rows).expert_parallel[0] for base in (once, slow)]

    # Of 16 experts the other node has 8: all four of a token's are at home in 70 of 1820 cases.
    assert times[0] / times[1] == pytest.approx((1 - 70 / 1820) / (4 * 8 / 16))


def test_expert_parallel_time_is_of_nodes_of_the_groups_that_the_router_keeps() -> None:
    plan = recipe(**SHORT | {"accumulation": 1, "devices": 64}, expert_parallel=64)
    slow = replace(OURS, network_bytes_per_s_per_node=1e9)
    once = with_code(slow, experts__dispatches_once=True)
    groups = {"router_groups": 8, "router_groups_kept": 4}
    anywhere_s, near_s = (
        last_layer(
            once, work(plan, problem=of_experts(experts=256, experts_per_token=8, **of))
        ).expert_parallel[0]
        for of in ({}, groups)
    )
    reached = 1 - math.prod((256 - 32 - taken) / (256 - taken) for taken in range(8))
    assert near_s / anywhere_s == pytest.approx(0.5 / reached)


def test_layer_time_is_that_of_the_fullest_rank() -> None:
    rows = work(recipe(**ON_A_NODE, expert_parallel=8), problem=of_experts())
    even, full = (
        last_layer(
            replace(
                OURS,
                efficiencies=replace(OURS.efficiencies, rank_imbalance=most, elementwise=0.0),
            ),
            rows,
        )
        for most in (1.0, 1.5)
    )
    assert full.expert_parallel == pytest.approx(1.5 * even.expert_parallel)
    more_s = 0.5 * 2 * 3 * 4096 * 14336 * 2 * 8 * 2048 / OURS.matmul_flops
    assert full.forward - even.forward == pytest.approx(more_s, rel=0.1)
    with pytest.raises(InvalidInput, match=r"rank_imbalance = 0\.5: expected at least 1"):
        Machine.of(replace(A100, efficiencies={"rank_imbalance": 0.5}), "bf16", FRONTRUNNER)


def test_imbalance_of_a_router_is_less_the_more_experts_a_rank_holds() -> None:
    plans = [recipe(**ON_A_NODE, expert_parallel=ranks) for ranks in (1, 2, 8)]
    routed, dealt, biased = (
        of_experts(**changes)
        for changes in ({"routing": "learned"}, {}, {"routing": "learned", "balancing": "bias"})
    )

    def uneven(problem: Any, stated: float | None = None) -> Rows:
        rows = work(*plans, problem=problem)
        setting = Setting(work=rows, code=FRONTRUNNER, rank_imbalance=stated)
        return mixture.imbalance(problem.model.mixture, setting)

    # Of 8 normals the largest is 1.424 deviations above the mean, of 2 it is 1 over the root of pi.
    expected = [1, 1 + 0.26 / 2 / math.pi**0.5, 1 + 0.26 * 1.424]
    assert uneven(routed) == pytest.approx(expected, rel=1e-3)
    assert uneven(dealt) == 1
    assert uneven(biased).max() < 1.04
    assert uneven(routed, stated=1.1) == 1.1
    times, even = (
        last_layer(OURS, work(*plans, problem=problem)).expert_parallel
        for problem in (routed, dealt)
    )
    assert times[1:] == pytest.approx((uneven(routed) * even)[1:])


def test_layer_time_has_the_biases_of_experts_as_passes_over_their_rows() -> None:
    plain, biased = (
        work(recipe(**ON_A_NODE, expert_parallel=8), problem=of_experts(biases=kind))
        for kind in ("none", "all")
    )
    rows, value_s = 2 * 8 * 2048, OURS.efficiencies.elementwise / OURS.memory_bytes_per_s

    def more_bytes(**traits: Any) -> float:
        base = with_code(OURS, **traits)
        more_s = computed(last_layer(base, biased)) - computed(last_layer(base, plain))
        return float(more_s[0]) / (rows * value_s)

    repeated = (8 + 4) * 2 * 14336
    assert more_bytes() == pytest.approx(repeated + (8 + 4) * 4096)
    assert more_bytes(experts__biases="singly") == pytest.approx((12 + 16) * 4096)
    assert more_bytes(experts__biases="weighted", experts__dispatches_once=True) == pytest.approx(
        repeated + (28 + 40) * 4096
    )


def test_gate_that_is_clamped_before_its_kernel_passes_over_its_inputs_again() -> None:
    gated, clamped = (
        work(recipe(**ON_A_NODE), problem=of_experts(activation=kind))
        for kind in ("swiglu", "swiglu_clamped")
    )
    once, apart = (
        FRONTRUNNER.changed(kernels__gate="fused", kernels__clamps_before_gate=before)
        for before in (False, True)
    )
    expected: dict[Pass, int] = {"forward": 16, "backward": 20, "kept": 4}
    for of, more in expected.items():
        assert bytes_per_token(once, gated, of) == bytes_per_token(once, clamped, of)
        found = bytes_per_token(apart, clamped, of) - bytes_per_token(once, clamped, of)
        assert found == pytest.approx(more * 2 * 14336)


def test_layer_memory_has_no_results_of_experts_that_the_gate_weighed() -> None:
    rows = work(recipe(**ON_A_NODE), problem=of_experts())
    after, before = (
        layer_memory(
            with_code(OURS, kernels__weighs_in_gate=weighs), rows, rows.model.layers[-1]
        ).kept
        for weighs in (False, True)
    )
    # Of two experts, in 16 bits.
    assert (after - before) / rows.tokens == pytest.approx(2 * 2 * 4096)


def test_permutation_on_ranks_that_share_each_expert_holds_the_results_of_all_of_them() -> None:
    """Half of what it moves are a rank's own rows, half what four ranks find for theirs."""
    plans = (recipe(**ON_A_NODE, expert_tensor_parallel=ways) for ways in (1, 4))
    rows = work(*plans, problem=of_experts())
    operations = mixture.operations(rows.model.mixture, Setting(work=rows, code=FRONTRUNNER))
    (values,) = (
        operation.values
        for operation in operations
        if isinstance(operation, Elementwise) and operation.kernel == "permutation"
    )
    assert values / (rows.tokens * 4096) == pytest.approx([2, 2 * (1 + 4) / 2])


def test_rotations_that_no_fused_kernel_takes_are_eager() -> None:
    stretched = of_experts(
        rotary_scaling=RotaryScaling(factor=32, kind="yarn", original_positions=4096)
    )
    plain, yarn = (work(recipe(**SHORT), problem=problem) for problem in (of_experts(), stretched))
    any_kind, plainly = (
        FRONTRUNNER.changed(kernels__rotary="fused", kernels__fused_rotary_is_plain=only)
        for only in (False, True)
    )
    assert bytes_per_token(plainly, plain, "forward") == bytes_per_token(any_kind, yarn, "forward")
    expected: dict[Pass, int] = {"forward": 16, "backward": 26}
    for of, more in expected.items():
        found = bytes_per_token(plainly, yarn, of) - bytes_per_token(plainly, plain, of)
        assert found == pytest.approx(more * (4096 + 1024))
    any_kind_s, plainly_s = (
        step_time(Machine.of(A100, "bf16", code.changed(host_layer_s=0.05)), yarn).compute[0]
        for code in (any_kind, plainly)
    )
    assert plainly_s - any_kind_s == pytest.approx(8 * 32 * 0.05 * (26 / 44 + 16 / 88), rel=0.01)


SMALL = {"hidden": 256, "heads": 8, "kv_heads": 8, "ffn_hidden": 256}
"""A shape whose kernels are done before the host has started them."""


def test_host_starts_each_expert_s_bias() -> None:
    base = Machine.of(A100, "bf16", FRONTRUNNER.changed(experts__biases="singly"))
    plans = (recipe(**SHORT, expert_parallel=ranks) for ranks in (1, 2))
    alone_s, shared_s = step_time(
        base, work(*plans, problem=of_experts(**SMALL, biases="all"))
    ).compute
    of_expert_s = 8 * 32 * (2 / 44 + 9 / 88) * base.code.host_layer_s
    collectives_s = 8 * 32 * 2 * 3 * base.code.host_collective_s
    assert alone_s - shared_s + collectives_s == pytest.approx((8 - 4) * of_expert_s, rel=0.01)


def test_host_starts_more_for_layers_with_experts() -> None:
    base = Machine.of(A100, "bf16", FRONTRUNNER.changed(experts__host_factor=2.0))
    mixed_s, dense_s = (
        step_time(base, work(recipe(**SHORT), problem=of_experts(**SMALL, **changes))).compute[0]
        for changes in ({}, {"experts": 0, "experts_per_token": 0})
    )
    assert mixed_s / dense_s == pytest.approx(2, rel=0.1)


def test_expert_parallel_time_is_hidden_by_another_micro_batch() -> None:
    rows = work(recipe(**SHORT | {"accumulation": 4}, expert_parallel=8), problem=of_experts())
    overlapping = with_code(OURS, experts__overlaps_dispatch=True)
    waits_s, hidden_s = (step_time(base, rows).expert_parallel[0] for base in (OURS, overlapping))
    assert hidden_s == pytest.approx(0.05 * waits_s)


def test_products_that_add_to_gradients_save_passes_over_them() -> None:
    rows = work(recipe(**ON_A_NODE | {"accumulation": 4}), problem=of_experts())
    fusing = with_code(OURS, products__fuses_accumulation=True)
    apart_s, fused_s = (last_layer(base, rows).backward[0] for base in (OURS, fusing))
    moved = MIXTRAL.layers[-1].matmul_parameters * (2 + 2 * 4)
    # They are a little slower for it.
    assert 0.75 < (apart_s - fused_s) / (moved / OURS.memory_bytes_per_s) < 1


def test_data_parallel_time_has_no_experts_without_replicas() -> None:
    alone, shared = (recipe(**ON_A_NODE, expert_parallel=ranks) for ranks in (1, 8))
    exposed = with_code(OURS, gradient_overlap=0.0)
    time = step_time(exposed, work(alone, shared, problem=of_experts()))
    experts = 32 * 3 * 4096 * 14336 * 8
    assert time.data_parallel[1] / time.data_parallel[0] == pytest.approx(
        1 - experts / MIXTRAL.parameters, rel=0.1
    )


def test_pipeline_layers_are_of_the_kinds_that_each_rank_has() -> None:
    """Three leading layers without experts are on the first of 16 ranks; in 32 stages, two and one
    on its neighbor.
    """
    problem = replace(PROBLEM, model=DEEPSEEK_V3, precision="bf16")
    shape = {
        "tensor_parallel": 1,
        "micro_batch_seqs": 1,
        "accumulation": 64,
        "devices": 64,
        "pipeline_parallel": 16,
    }
    plain, looped = recipe(**shape), recipe(**shape, virtual_stages=2, schedule="interleaved-1f1b")
    of = work(plain, looped, problem=problem)
    dense, mixed = (
        [ranks[kind].tolist() for ranks in (of.layers.first, of.layers.middle, of.layers.last)]
        for kind in (0, 1)
    )
    assert mixed == [[1, 2], [4, 4], [3, 3]]
    assert dense == [[3, 2], [0, 0], [0, 0]]
    table = DEEPSEEK_V3.embedding.padded_vocabulary * DEEPSEEK_V3.hidden
    (_, of_dense), (_, of_mixed) = DEEPSEEK_V3.kinds
    counts = 3 * of_dense.matmul_parameters + of_mixed.matmul_parameters + table
    assert memory_of_ranks(OURS, of)[0].parameters[0] == pytest.approx(2 * counts, rel=1e-3)


def test_step_time_of_two_kinds_of_layers_is_that_of_each() -> None:
    """Seconds of three layers, one without experts: those of its kind and of two of the other."""
    three = DEEPSEEK_V3.with_keys(layers=3, dense_layers=1)
    kinds = [three, *(replace(three, layers=(kind,) * 3) for _, kind in three.kinds)]
    plan = recipe(**SHORT | {"accumulation": 1, "devices": 1})
    both_s, dense_s, mixed_s = (
        step_time(OURS, work(plan, problem=replace(PROBLEM, model=kind, precision="bf16"))).compute[
            0
        ]
        for kind in kinds
    )
    assert both_s == pytest.approx(dense_s / 3 + 2 * mixed_s / 3, rel=1e-9)
    assert dense_s != pytest.approx(mixed_s, rel=0.01)


def test_layer_time_of_latent_attention_is_that_of_its_products() -> None:
    """With fast memory, a layer takes the time of its FLOPs: those of products, and half of
    attention's.
    """
    ideal = without_losses(with_code(OURS, activations__pads_values=False))
    fast = replace(
        ideal,
        memory_bytes_per_s=1e18,
        efficiencies=replace(ideal.efficiencies, fused_attention_forward=1.0),
        attention_scale=1.0,
    )
    dense = DEEPSEEK_V3.layers[0]
    plan = recipe(tensor_parallel=1, micro_batch_seqs=1, accumulation=1, devices=1)
    rows = work(plan, problem=replace(PROBLEM, model=DEEPSEEK_V3))
    flops = dense.flops_per_token(PROBLEM.sequence_length)
    halved = flops - dense.attention.flops_per_token(PROBLEM.sequence_length) / 2
    expected = halved * PROBLEM.sequence_length / fast.matmul_flops
    assert layer_time(fast, rows, dense).forward[0] == pytest.approx(expected, rel=1e-6)


def test_memory_of_ranks_that_share_experts_is_less() -> None:
    shape = {"tensor_parallel": 1, "micro_batch_seqs": 1, "accumulation": 8, "devices": 8}
    alone, shared = (
        memory_of_ranks(OURS, work(recipe(**shape, expert_parallel=e), problem=of_experts()))
        for e in (1, 8)
    )
    experts = 32 * 3 * 4096 * 14336 * 8
    for part, each in (("parameters", 2), ("gradients", 4), ("optimizer", 12)):
        saved = getattr(alone[0], part)[0] - getattr(shared[0], part)[0]
        assert saved == pytest.approx(experts * 7 / 8 * each, rel=1e-6)


def test_advice_has_layouts_that_share_experts() -> None:
    found = layouts(of_experts(), 64)
    legal = {layout.name: layout.legal for layout in found}
    assert (
        min(
            legal[name] for name in ("expert parallel", "tensor parallel", "tensor x pipeline (3D)")
        )
        > 0
    )
    (shared,) = (layout for layout in found if layout.name == "expert parallel")
    assert shared.fits
    assert shared.estimate is not None
    assert shared.estimate.recipe.expert_parallel > 1
    assert "expert parallel" not in {layout.name for layout in layouts(PROBLEM, 64)}


def test_log_bounds_of_experts_are_wider_and_more_so_where_a_router_deals() -> None:
    shape = {"tensor_parallel": 1, "micro_batch_seqs": 8, "accumulation": 8, "devices": 8}
    problems = [
        of_experts(experts=0, experts_per_token=0),
        of_experts(),
        of_experts(routing="learned"),
    ]
    stated = replace(A100, efficiencies={"rank_imbalance": 1.2})
    problems.append(replace(problems[-1], cluster=stated))
    dense, dealt, routed, measured = (
        log_bounds(
            one.cluster, "bf16", FRONTRUNNER, work(recipe(**shape), problem=one), np.array([False])
        )[1][0]  # the slow end: the fast one ends at the products' own time
        for one in problems
    )
    assert dense < dealt < routed
    assert dealt**2 - (1.96 * 0.15) ** 2 == pytest.approx(dense**2, rel=0.12)
    assert routed**2 - (1.96 * 0.25) ** 2 == pytest.approx(dealt**2, rel=0.05)
    assert measured == pytest.approx(dealt, rel=0.05)


def router_s(base: Machine, rows: Workload) -> tuple[float, float]:
    """Return the seconds of a router's product and conversions, forward and backward."""
    experts, setting = rows.model.mixture.experts, Setting(work=rows, code=base.code)
    router = [
        operation
        for operation in mixture.operations(rows.model.mixture, setting)
        if isinstance(operation, MemoryPass)
        or (isinstance(operation, Product) and operation.outputs == (experts,))
    ]
    time = priced(base, rows, router, Product) + priced(base, rows, router, MemoryPass)
    return time.forward[0], time.backward[0]


def test_router_takes_the_rate_of_fp32_and_the_conversions() -> None:
    """A sixteenth of bf16's where the cluster states no rate in fp32; in fp32 nothing changes."""
    problem = replace(of_experts(), model=DEEPSEEK_V3)
    rows = work(recipe(tensor_parallel=1), problem=problem)
    stated = replace(A100, peak_tflops=replace(A100.peak_tflops, fp32=40.0))
    flops = 2 * rows.tokens[0] * 7168 * 256
    for cluster, peak in ((A100, 19.5e12), (stated, 40e12)):
        base = without_losses(Machine.of(cluster, "bf16", FRONTRUNNER))
        product_s = flops / (0.86 * peak)
        converted_s = 6 * rows.tokens[0] * 7168 / base.memory_bytes_per_s
        expected = (product_s + converted_s, 2 * product_s + 2 * converted_s)
        assert router_s(base, rows) == pytest.approx(expected)
    in_fp32 = work(recipe(tensor_parallel=1), problem=replace(problem, precision="fp32"))
    whole = Machine.of(stated, "fp32", FRONTRUNNER)
    narrow = with_code(whole, experts__widens_router=False)
    assert router_s(whole, in_fp32) == pytest.approx(router_s(narrow, in_fp32))


def test_estimates_of_experts_are_marked() -> None:
    chosen = recipe(tensor_parallel=1, micro_batch_seqs=1, accumulation=1, expert_parallel=8)
    found = plan([chosen], of_experts())
    assert "mixtures of experts" in found.estimates[0].unjudged
    assert "mixtures of experts" in found.trust.accuracy_in_words
    routed = plan([chosen], of_experts(routing="learned"))
    unevenly = [
        any("unequally many tokens" in remark for remark in one.trust.remarks)
        for one in (found, routed)
    ]
    assert unevenly == [False, True]
    assert routed.estimates[0].step_time_s > found.estimates[0].step_time_s
