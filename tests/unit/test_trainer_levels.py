"""What a rank holds under sharding by levels: a p-th of parameters, a g-th of gradients, an o-th of
masters.

One process stands for one of eight ranks. Its collectives move nothing, but its tensors have the
sizes of a real run.
"""

import gc
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from frontrunner.evaluators.trainer.data_parallel import LeveledReplicas, spread
from frontrunner.evaluators.trainer.layout import make_layout
from frontrunner.evaluators.trainer.model import Gpt
from support.trainer_runs import SEQUENCE_LENGTH, small_model, small_recipe

RANKS = 8
BF16, FP32 = 2, 4


@pytest.fixture(autouse=True)
def _one_of_eight_ranks() -> Iterator[None]:
    dist.init_process_group("fake", store=FakeStore(), rank=5, world_size=RANKS)
    yield
    dist.destroy_process_group()


def _stored_bytes() -> int:
    """The storage behind all tensors that are alive, without the fake ones that other tests' dry
    runs may have left.
    """
    gc.collect()
    alive = [thing for thing in gc.get_objects() if issubclass(type(thing), Tensor)]
    plain = [thing.to_local() if isinstance(thing, DTensor) else thing for thing in alive]
    real = [thing for thing in plain if not thing.is_meta and not isinstance(thing, FakeTensor)]
    storages = {thing.untyped_storage().data_ptr(): thing.untyped_storage() for thing in real}
    return sum(storage.nbytes() for storage in storages.values())


def _built(degrees: tuple[int, int, int]) -> tuple[Gpt, LeveledReplicas]:
    recipe = small_recipe(data_parallel=RANKS, sharding=degrees, micro_batch_seqs=1, accumulation=2)
    with torch.device("meta"):
        model = Gpt(
            small_model(), sequence_length=SEQUENCE_LENGTH, layers=range(len(small_model().layers))
        )
    replicas = spread(model, make_layout(recipe, device_type="cpu"), "bf16", torch.device("cpu"))
    assert isinstance(replicas, LeveledReplicas)
    return model, replicas


def _run_first_micro_batch(model: Gpt, replicas: LeveledReplicas) -> None:
    replicas.before_backward(last=False)
    logits = model(torch.zeros(1, SEQUENCE_LENGTH, dtype=torch.int64))
    torch.autograd.backward(logits.float().sum())


def _elements(replicas: LeveledReplicas) -> int:
    return sum(master.numel() for _, master in replicas.named_parameters())


@pytest.mark.parametrize("degrees", [(1, 2, 8), (2, 4, 8), (2, 8, 8), (4, 4, 8)])
def test_a_rank_holds_a_part_of_parameters_and_masters(degrees: tuple[int, int, int]) -> None:
    before = _stored_bytes()

    _, replicas = _built(degrees)

    share = BF16 / degrees[0] + FP32 / degrees[2]
    assert _stored_bytes() - before == pytest.approx(share * _elements(replicas), rel=0.01)


@pytest.mark.parametrize(
    ("degrees", "sizes"), [((1, 2, 8), (2, 4)), ((2, 8, 8), (2, 4)), ((2, 4, 8), (2, 2, 2))]
)
def test_masters_have_no_dimension_of_one_rank(
    degrees: tuple[int, int, int], sizes: tuple[int, ...]
) -> None:
    """Each dimension multiplies by about eight what DTensor weighs up at the first step."""
    _, replicas = _built(degrees)

    assert {
        master.device_mesh.shape
        for _, master in replicas.named_parameters()
        if isinstance(master, DTensor)
    } == {sizes}


@pytest.mark.system
def test_a_rank_holds_a_part_of_the_gradients_between_micro_batches() -> None:
    """FSDP2 holds buffers of its own beside them, the same for all g: the differences are the
    gradients.
    """
    grown = {}
    for g in (2, 4, 8):
        model, replicas = _built((2, g, 8))
        before = _stored_bytes()
        _run_first_micro_batch(model, replicas)
        grown[g] = _stored_bytes() - before
        elements = _elements(replicas)
        del model, replicas

    assert grown[2] - grown[4] == pytest.approx(FP32 * elements * (1 / 2 - 1 / 4), rel=0.01)
    assert grown[4] - grown[8] == pytest.approx(FP32 * elements * (1 / 4 - 1 / 8), rel=0.01)


def test_masters_have_gradients_after_the_last_micro_batch_only() -> None:
    model, replicas = _built((2, 4, 8))
    masters = [master for _, master in replicas.named_parameters()]
    _run_first_micro_batch(model, replicas)
    assert all(master.grad is None for master in masters)

    replicas.before_backward(last=True)
    torch.autograd.backward(model(torch.zeros(1, SEQUENCE_LENGTH, dtype=torch.int64)).float().sum())

    assert [master.grad.shape for master in masters if master.grad is not None] == [
        master.shape for master in masters
    ]
    assert all(parameter.grad is None for parameter in model.parameters())
