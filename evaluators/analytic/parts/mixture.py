"""Mixture of experts: a router sends each token to some of many feed-forward parts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from frontrunner.evaluators.analytic.arrays import Rows, number
from frontrunner.evaluators.analytic.kernels import ElementwiseKernel
from frontrunner.evaluators.analytic.operations import (
    Elementwise,
    ExpertDispatch,
    HostWork,
    MemoryPass,
    Operation,
    Product,
    TensorReduction,
    recomputed_as,
)
from frontrunner.evaluators.analytic.parts import feed_forward
from frontrunner.evaluators.analytic.parts.attention import LAYER_KERNELS
from frontrunner.evaluators.analytic.parts.setting import Setting
from frontrunner.evaluators.analytic.workload import Workload
from frontrunner.spaces.model.feed_forward import MixtureOfExperts

ROW_TILE = 128.0
"""Each expert's rows are padded to a multiple of this."""
ROUTED_DEVIATION = {"none": 0.26, "loss": 0.26, "bias": 0.02}
"""Standard deviation of an expert's tokens over the mean, by how a router is balanced.

The fullest of 64 experts had 1.72 and 1.52 times the mean in models of 1B and 3B parameters with an
auxiliary loss, 1.04 with biases (arXiv 2408.15664, table 2, over a validation set), and the largest
of 64 normals is 2.34 deviations above the mean. A router that is not balanced is taken to be as
even as with a loss, which it is at most.
"""
LARGEST_OF_NORMALS = (0.0, 0.564, 1.029, 1.424, 1.766, 2.070, 2.343, 2.594, 2.826)
"""The mean of the largest of 1, 2, 4 to 256 standard normals."""
BIAS_KERNELS = 2, 9
"""Kernels that the host starts for the weighted bias of an expert, where each is added by itself:
multiplied and added; backward converted, for bias and weight multiplied and summed, and added to
two biases' gradients, with a hook of the replicas' for each.
"""


def operations(part: MixtureOfExperts, setting: Setting) -> Iterator[Operation]:
    """Yield the operations of the block: router, dispatch, experts, and shared experts.

    Ranks split the experts (expert parallelism), and each expert's matrices (expert tensor
    parallelism); the latter compute the rows of all of them.
    """
    yield setting.block_input()
    yield from recomputed_as("experts", _block(part, setting))


def _block(part: MixtureOfExperts, setting: Setting) -> Iterator[Operation]:
    work, code = setting.work, setting.code
    yield from _router(part, setting)
    yield from _dispatch(part, setting)
    yield from _experts(part, setting)
    if part.shared_experts:
        width = part.ffn_hidden / work.degrees.tensor * part.shared_experts
        for product in feed_forward.products(part, setting, width):
            yield replace(
                product,
                may_be_narrow=code.products.transformer_engine,
                dropped_by_alternate=(),
            )
        yield TensorReduction(bytes=setting.block_result_bytes())
    yield from _elementwise(part, setting)
    yield HostWork(factor=code.experts.host_factor)


def weights(part: MixtureOfExperts, work: Workload) -> Rows:
    """Return a tensor-parallel rank's parameters besides the experts: router and shared experts."""
    shared = part.shared_experts * part.matrices * part.ffn_hidden
    return part.hidden * (part.experts + shared) / work.degrees.tensor


def expert_weights(part: MixtureOfExperts) -> int:
    """Return the parameters of all experts of a part."""
    return part.experts * part.hidden * part.matrices * part.ffn_hidden


def deviation(part: MixtureOfExperts) -> float:
    """Return how uneven a router's choices are; 0 where tokens are dealt in turn."""
    if part.routing != "learned":
        return 0.0
    return ROUTED_DEVIATION[part.balancing]


def imbalance(part: MixtureOfExperts, setting: Setting) -> Rows:
    """Return how many tokens the fullest rank gets for its experts, over the mean of the ranks that
    share them.

    It is as stated, or what normals give whose deviation is that of one expert over the root of a
    rank's experts.
    """
    if setting.rank_imbalance is not None:
        return number(setting.rank_imbalance)
    if not deviation(part):
        return number(1)
    ranks = setting.work.degrees.expert
    largest = np.interp(np.log2(ranks), np.arange(len(LARGEST_OF_NORMALS)), LARGEST_OF_NORMALS)
    return 1 + deviation(part) / np.sqrt(experts_on_rank(part, setting)) * largest


def experts_on_rank(part: MixtureOfExperts, setting: Setting) -> Rows:
    """Return the experts of a layer that a rank holds, whole or a share of each."""
    return np.maximum(part.experts / setting.work.degrees.expert, 1.0)


def _own_tokens(setting: Setting) -> Rows:
    """Return the tokens that a rank sends to experts: its own positions."""
    return setting.work.tokens / setting.work.sequence_shards


def _router(part: MixtureOfExperts, setting: Setting) -> Iterator[Operation]:
    work, tokens = setting.work, _own_tokens(setting)
    is_wide = setting.code.experts.widens_router
    if is_wide and work.bytes_per_value < 4:
        converted = (work.bytes_per_value + 4.0) * tokens * part.hidden
        yield MemoryPass(
            forward_bytes=converted,
            backward_bytes=2 * converted,
            repeated=setting.tiles_feed_forward,
        )
    yield Product(
        rows=tokens,
        inputs=part.hidden,
        outputs=(part.experts,),
        is_wide=is_wide,
        may_be_narrow=False,
        repeated=setting.tiles_feed_forward,
        kept_values=(np.zeros(1),),
    )


def _dispatch(part: MixtureOfExperts, setting: Setting) -> Iterator[Operation]:
    work, code = setting.work, setting.code
    ways, ranks = work.degrees.expert_tensor, work.degrees.expert
    yield HostWork(collectives=np.where(ranks > 1, 3.0, 0.0) + np.where(ways > 1, 3.0, 0.0))
    received: Rows | float = 0.0
    if code.activations.selective == "products" and not code.experts.dispatches_once:
        copies = part.experts_per_token * ((ranks > 1) + ways * (ways > 1))
        received = 2 * copies * setting.hidden_values
    yield ExpertDispatch(
        copy_bytes=setting.hidden_values * work.bytes_per_value * imbalance(part, setting),
        experts=part.experts,
        experts_per_token=part.experts_per_token,
        groups=part.router_groups,
        groups_kept=part.router_groups_kept,
        received_values=received,
    )


def _experts(part: MixtureOfExperts, setting: Setting) -> Iterator[Operation]:
    work, code = setting.work, setting.code
    ways, count = work.degrees.expert_tensor, experts_on_rank(part, setting)
    chosen = part.experts_per_token
    rows_of_rank = _own_tokens(setting) * chosen * imbalance(part, setting) * ways
    rows = np.ceil(rows_of_rank / count / ROW_TILE) * ROW_TILE
    width = part.ffn_hidden / ways
    up = part.matrices - 1
    values = work.tokens * chosen * part.ffn_hidden / work.degrees.tensor
    narrow = code.products.transformer_engine
    yield Product(
        rows=rows,
        inputs=part.hidden,
        outputs=(width,) * up,
        count=count,
        may_be_narrow=narrow,
        repeated=setting.tiles_feed_forward,
        kept_values=(values,) * up,
    )
    yield Product(
        rows=rows,
        inputs=width,
        outputs=(part.hidden,),
        count=count,
        may_be_narrow=narrow,
        repeated=setting.tiles_feed_forward,
        is_last=True,
        kept_values=(setting.hidden_values * chosen * ways,),
    )


def _elementwise(part: MixtureOfExperts, setting: Setting) -> Iterator[Operation]:
    """Yield activation, permutation and biases."""
    work, code = setting.work, setting.code
    chosen, uneven = part.experts_per_token, imbalance(part, setting)
    is_tiled = setting.tiles_feed_forward
    values = work.tokens * part.ffn_hidden / work.degrees.tensor
    kept_values = np.where(is_tiled, 0.0, values * (chosen + part.shared_experts))
    yield Elementwise(
        kernel=feed_forward.activation_kernel(part),
        values=values * (chosen * uneven + part.shared_experts),
        kept_values=kept_values,
        saved_bytes=np.where(setting.keeps_8_bit_inputs, kept_values, 0.0),
        again=frozenset({"activation"}),
        drops_result=True,
    )
    copies = setting.hidden_values * chosen
    # Half is the row's, which ranks that share each expert hold of all of them.
    rows = copies * (1 + work.degrees.expert_tensor) / 2
    yield Elementwise(kernel="permutation", values=rows * uneven, kept_values=rows)
    if code.experts.sorts_received and not code.experts.dispatches_once:
        yield Elementwise(kernel="sorting", values=copies * uneven, kept_values=copies)
    if part.has_biases:
        yield from _biases(part, setting, copies * uneven)


def _biases(part: MixtureOfExperts, setting: Setting, copies: Rows) -> Iterator[Operation]:
    code = setting.code.experts
    if code.biases != "singly":
        inner = copies * (part.matrices - 1) * part.ffn_hidden / part.hidden
        yield Elementwise(kernel="expert bias", values=inner)
    last: ElementwiseKernel = "expert bias"
    if code.biases != "repeated":
        last = "wide weighted expert bias" if code.dispatches_once else "weighted expert bias"
    yield Elementwise(kernel=last, values=copies)
    if code.biases == "singly":
        count = experts_on_rank(part, setting)
        yield HostWork(
            forward_share=count * BIAS_KERNELS[0] / LAYER_KERNELS[0],
            backward_share=count * BIAS_KERNELS[1] / LAYER_KERNELS[1],
        )
