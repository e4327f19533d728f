"""Mixtures of experts: what the model counts, which recipes are legal, and what the formulas make of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from frontrunner.evaluators.analytic.communication import dispatch_s
from frontrunner.evaluators.analytic.compute import layer
from frontrunner.evaluators.analytic.estimates import plan
from frontrunner.evaluators.analytic.machine import Machine
from frontrunner.evaluators.analytic.memory import memory_of_ranks
from frontrunner.evaluators.analytic.software import FRONTRUNNER
from frontrunner.evaluators.analytic.step import step_time
from frontrunner.evaluators.export.tools import TOOLS
from frontrunner.spaces.errors import InvalidInput
from frontrunner.spaces.legality import why_illegal
from frontrunner.spaces.model import Model
from frontrunner.spaces.sharding import Sharding
from support import legality
from support.analytic import A100, PROBLEM, recipe, without_latency, work

MIXTRAL = Model(
    name="m", layers=32, hidden=4096, heads=32, kv_heads=8, ffn_hidden=14336, vocabulary=32000, vocabulary_multiple=1,
    activation="swiglu", norm="rmsnorm", experts=8, experts_per_token=2,
)  # fmt: skip
ZERO_1, ZERO_3 = Sharding(optimizer=64), Sharding(parameters=64, gradients=64, optimizer=64)
OURS = without_latency(Machine.of(A100, "bf16", FRONTRUNNER))


def of_experts(**changes: Any) -> Any:
    return replace(PROBLEM, model=replace(MIXTRAL, **changes), precision="bf16")


def test_parameters_and_flops_are_those_of_the_released_model() -> None:
    assert MIXTRAL.parameters == 46_702_792_704
    assert MIXTRAL.active_parameters == 12_879_925_248
    dense = replace(MIXTRAL, experts=0, experts_per_token=0, ffn_hidden=2 * MIXTRAL.ffn_hidden)
    router = 2.0 * MIXTRAL.hidden * MIXTRAL.experts
    assert MIXTRAL.layer_flops_per_token(4096) == dense.layer_flops_per_token(4096) + router


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"experts_per_token": 9}, "model.experts_per_token = 9: expected at least 1 and at most model.experts = 8"),
        ({"experts_per_token": 0}, "model.experts_per_token = 0: expected at least 1"),
        ({"experts": 0}, "model.experts = 0: expected some, of which a token goes through 2"),
        ({"biases": "all"}, 'model.biases = "all": expected none or qkv'),
    ],
)
def test_what_makes_no_mixture_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        replace(MIXTRAL, **changes)
    assert message in refused.value.message


@pytest.mark.parametrize(
    ("choices", "code", "text"),
    [
        ({"expert_parallel": 3}, "experts-divide", "expert_parallel 3 does not divide the 8 experts"),
        (
            {"devices": 12, "expert_parallel": 8, "micro_batch_seqs": 4, "pipeline_parallel": 3, "accumulation": 4},
            "experts-ranks",
            "expert_parallel 8 does not divide the 4 ranks of a pipeline stage",
        ),
        ({"tensor_parallel": 2}, "experts-tensor", "tensor_parallel 2 needs sequence_parallel and expert_parallel > 1"),
        ({"engine": "deepspeed"}, "experts-engine", "use engine torch"),
        ({"compile": True}, "experts-compile", "a compiled layer is one piece"),
        ({"expert_parallel": 2, "replication": "ddp"}, "experts-ddp", "use replicate"),
        (
            {"expert_parallel": 2, "sharding": Sharding(parameters=4, gradients=4, optimizer=4)},
            "experts-sharding",
            "not hybrid-4",
        ),
        (
            {"expert_parallel": 2, "sharding": Sharding(optimizer=16), "recompute": "selective"},
            "experts-selective",
            "use none or full",
        ),
        (
            {"expert_parallel": 2, "sharding": Sharding.named("zero-3", 16), "offload": "optimizer+parameters"},
            "experts-offload",
            "offload",
        ),
    ],
)
def test_recipes_that_experts_do_not_allow(choices: dict[str, Any], code: str, text: str) -> None:
    problem = replace(legality.PROBLEM, model=replace(legality.MODEL, experts=8, experts_per_token=2))
    reason = why_illegal(legality.recipe(**choices), problem)
    assert reason is not None
    assert (reason.code, text in reason.text) == (code, True)


def test_a_dense_model_has_no_experts_to_share() -> None:
    reason = why_illegal(legality.recipe(expert_parallel=2), legality.PROBLEM)
    assert reason is not None
    assert reason.code == "experts-none"


@pytest.mark.parametrize("degrees", [{}, {"expert_parallel": 8}, {"tensor_parallel": 4, "expert_parallel": 2}])
@pytest.mark.parametrize("sharding", [Sharding(), ZERO_1, ZERO_3])
def test_ranks_hold_all_parameters_as_often_as_there_are_replicas(degrees: dict[str, int], sharding: Sharding) -> None:
    copies = 64 // degrees.get("tensor_parallel", 1)
    spread = Sharding(**{name: min(copies, degree) for name, degree in vars(sharding).items()})
    chosen = {"tensor_parallel": 1, "sequence_parallel": "tensor_parallel" in degrees, "micro_batch_seqs": 1} | degrees
    of = work(recipe(**chosen, sharding=spread), problem=of_experts())
    for degree in (spread.parameters, spread.optimizer):
        held = float(of.layer_share_over(np.array([float(degree)]))[0]) / degree * 64
        experts = 3 * 4096 * 14336 * 8
        others = MIXTRAL.matmul_parameters_per_layer - experts
        # The copies of what is no expert's, and of the experts, that are left.
        rest, own = (1, 1) if degree > 1 else (copies, 64 // degrees.get("expert_parallel", 1))
        router = 4096 * 8 * (1 - 1 / degrees.get("tensor_parallel", 1))  # counted as if it were shared
        assert held == pytest.approx(others * rest + experts * own, rel=1e-3 + router / others)


def test_experts_compute_what_their_tokens_need() -> None:
    """With many tokens and fast memory, a layer of experts takes the time of a dense one of equal FLOPs."""
    fast = replace(OURS, memory_bytes_per_s=1e18, efficiencies=replace(OURS.efficiencies, kernel_s=0.0))
    shape = {"tensor_parallel": 1, "micro_batch_seqs": 8, "accumulation": 1, "devices": 8}
    mixed = work(recipe(**shape), recipe(**shape, expert_parallel=8), problem=of_experts())
    dense = of_experts(experts=0, experts_per_token=0, ffn_hidden=2 * 14336)
    times, expected = layer(fast, mixed).total, layer(fast, work(recipe(**shape), problem=dense)).total
    assert times == pytest.approx(np.full(2, expected[0]), rel=0.02)


def test_tokens_travel_to_their_experts_and_back_in_both_passes() -> None:
    shape = {"tensor_parallel": 1, "micro_batch_seqs": 1, "accumulation": 1, "devices": 8, "expert_parallel": 8}
    plain, again = recipe(**shape), recipe(**shape, recompute="full")
    sent = 2048 * 2 * 4096 * 2 * 7 / 8
    found = dispatch_s(OURS, work(plain, again, problem=of_experts()))
    assert found == pytest.approx(np.array([4, 6]) * sent / OURS.node_bytes_per_s)
    assert dispatch_s(OURS, work(replace(plain, expert_parallel=1), problem=of_experts())) == 0


def test_experts_that_have_no_replica_are_not_reduced() -> None:
    shape = {"tensor_parallel": 1, "micro_batch_seqs": 8, "accumulation": 1, "devices": 8}
    alone, shared = (recipe(**shape, expert_parallel=ranks) for ranks in (1, 8))
    found = replace(OURS, software=replace(FRONTRUNNER, gradient_overlap=0.0))
    time = step_time(found, work(alone, shared, problem=of_experts()))
    experts = 32 * 3 * 4096 * 14336 * 8
    assert time.data_parallel[1] / time.data_parallel[0] == pytest.approx(1 - experts / MIXTRAL.parameters, rel=0.1)


def test_shared_experts_take_less_memory() -> None:
    shape = {"tensor_parallel": 1, "micro_batch_seqs": 1, "accumulation": 8, "devices": 8}
    alone, shared = (
        memory_of_ranks(OURS, work(recipe(**shape, expert_parallel=e), problem=of_experts())) for e in (1, 8)
    )
    experts = 32 * 3 * 4096 * 14336 * 8
    for part, each in (("parameters", 2), ("gradients", 4), ("optimizer", 12)):
        saved = getattr(alone[0], part)[0] - getattr(shared[0], part)[0]
        assert saved == pytest.approx(experts * 7 / 8 * each, rel=1e-6)


def test_estimates_of_experts_are_marked_and_no_other_tool_gets_them() -> None:
    chosen = recipe(tensor_parallel=1, micro_batch_seqs=1, accumulation=1, expert_parallel=8)
    found = plan([chosen], of_experts())
    assert "mixtures of experts" in found.estimates[0].unjudged
    assert any("mixtures of experts" in remark for remark in found.trust.remarks)
    for tool in TOOLS.values():
        reason = tool.why_not(of_experts(), chosen)
        assert reason is not None
        assert reason.code == "experts-unsaid"
