"""Whole weights, of one rank alone or of each replica: fp32 masters, and gradients that are summed
in buckets.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from frontrunner.evaluators.trainer.data_parallel import WholeReplicas


def one_weight(value: float) -> tuple[nn.Linear, WholeReplicas]:
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, value)
    return model, WholeReplicas(model, "bf16", None)


def test_the_model_computes_with_rounded_weights_and_the_whole_ones_stay() -> None:
    fine = 1.001  # bf16 has nothing between 1 and 1.0078
    model, masters = one_weight(fine)

    assert model(torch.ones(1, 1, dtype=torch.bfloat16)).item() == 1.0
    ((name, master),) = masters.named_parameters()
    assert (name, master.dtype, round(master.item(), 6)) == ("weight", torch.float32, fine)


def test_updates_too_small_for_the_rounded_weights_add_up() -> None:
    model, masters = one_weight(1.0)
    ((_, master),) = masters.named_parameters()

    for _ in range(8):
        with torch.no_grad():
            master += 0.001
        masters.publish()

    assert model.weight.item() == 1.0078125


def test_gradients_of_micro_batches_are_summed_in_fp32() -> None:
    model, masters = one_weight(1.0)
    ((_, master),) = masters.named_parameters()

    for value in (256.0, 1.0, 1.0):
        model(torch.full((1, 1), value, dtype=torch.bfloat16)).sum().backward()
    masters.finish_step()

    assert master.grad is not None
    assert (
        master.grad.item() == 258.0
    )  # bf16 has nothing between 256 and 258: 256 + 1 + 1 would stay 256
    assert model.weight.grad is None


def test_a_parameter_without_a_gradient_is_an_error() -> None:
    model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
    replicas = WholeReplicas(model, "fp32", None)
    model[1](torch.ones(1, 1)).sum().backward()

    with pytest.raises(RuntimeError, match="no gradient"):
        replicas.finish_step()


@pytest.fixture
def two_copies() -> Iterator[dist.ProcessGroup]:
    """The group of two copies, whose other rank is nowhere: collectives return at once."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    group = dist.group.WORLD
    assert group is not None
    yield group
    dist.destroy_process_group()


class _Calls(TorchDispatchMode):
    """The matrix products and the elements of each all-reduce, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str | int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__ == "mm":
            self.seen.append("product")
        if func.overloadpacket.__name__ == "allreduce_":
            self.seen.append(args[0][0].numel())
        return func(*args, **(kwargs or {}))


def test_buckets_are_reduced_while_the_last_backward_pass_goes_on(
    two_copies: dist.ProcessGroup,
) -> None:
    """The last layer alone fills the small first bucket."""
    model = nn.Sequential(*(nn.Linear(724, 724, bias=False) for _ in range(3)))
    layer = 724**2
    replicas = WholeReplicas(model, "fp32", two_copies)

    seen = {}
    for last in (False, True):
        replicas.before_backward(last=last)
        loss = model(torch.ones(1, 724)).sum()
        with _Calls() as calls:
            torch.autograd.backward(loss)
        seen[last] = calls.seen

    products = 5  # two for each layer, but for the first, whose input needs no gradient
    assert seen[False] == ["product"] * products
    assert seen[True] == ["product"] * 2 + [layer] + ["product"] * 3 + [2 * layer]
