"""The Pareto front, held against its definition."""

from __future__ import annotations

import random

import pytest

from frontrunner.spaces.pareto import pareto_front


@pytest.mark.parametrize("coordinates", [1, 2, 3])
def test_the_front_is_what_nothing_dominates_and_of_equals_the_first(coordinates: int) -> None:
    dice = random.Random(coordinates)
    points = [tuple(float(dice.randrange(6)) for _ in range(coordinates)) for _ in range(60)]
    expected = [
        index
        for index, point in enumerate(points)
        if point not in points[:index]
        and not any(
            other != point and all(a >= b for a, b in zip(other, point, strict=True))
            for other in points
        )
    ]
    assert pareto_front(points) == expected
    assert pareto_front([]) == []
