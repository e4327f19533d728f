"""The global batch that a space with few legal recipes is told."""

import pytest

from frontrunner.spaces.batches import useful_batch
from support.campaigns import spec_of, tiny


@pytest.mark.parametrize(
    ("stated", "useful"),
    [(17, 16), (31, 32), (16, None), (32, None), (4097, 4096)],
)
def test_useful_batch_is_the_nearest_that_recipes_can_share(
    stated: int, useful: int | None
) -> None:
    spec = spec_of(tiny(problem={"global_batch": stated}, space={"micro_batch_seqs": [1, 2, 4, 8]}))
    assert useful_batch(spec.survey()) == useful
