"""Who holds which sequences and positions under context parallelism."""

from collections.abc import Iterator

import pytest
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from frontrunner.evaluators.trainer.layout import make_layout
from support.trainer_runs import SEQUENCE_LENGTH, small_recipe

RANKS = 8


@pytest.fixture(params=range(RANKS))
def rank(request: pytest.FixtureRequest) -> Iterator[int]:
    """One process stands for each rank in turn; its collectives move nothing."""
    dist.init_process_group("fake", store=FakeStore(), rank=request.param, world_size=RANKS)
    yield request.param
    dist.destroy_process_group()


@pytest.mark.parametrize("sharding", [(1, 1, 1), (1, 4, 4), (2, 2, 2), (1, 2, 4)])
def test_context_ranks_are_next_to_tensor_ranks_and_share_a_replicas_sequences(
    rank: int, sharding: tuple[int, int, int]
) -> None:
    """Ranks 0-3 are the first replica, of which ranks 0 and 1 hold the first half of the
    positions.
    """
    recipe = small_recipe(tensor_parallel=2, context_parallel=2, data_parallel=2, sharding=sharding)

    layout = make_layout(recipe, device_type="cpu")

    half, batch = SEQUENCE_LENGTH // 2, recipe.micro_batch_seqs * recipe.accumulation
    first_sequence, first_position = batch * (rank // 4), half * (rank // 2 % 2)
    assert layout.context is not None
    assert layout.replica_sequences == slice(first_sequence, first_sequence + batch)
    assert layout.context.positions(SEQUENCE_LENGTH) == slice(first_position, first_position + half)


def test_without_context_parallelism_sequences_are_whole(rank: int) -> None:
    layout = make_layout(small_recipe(tensor_parallel=2, data_parallel=4), device_type="cpu")

    assert layout.context is None
