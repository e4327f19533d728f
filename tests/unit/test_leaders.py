"""Which recipes may be the fastest, and lack a full measurement."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from frontrunner.results.outcome import Measurement, ProbeEnding, Telemetry
from frontrunner.search.leaders import Cost, cost_of, unconfirmed_leaders
from support.rankings import measurement

DISTURBED = Telemetry(foreign_limit=0.1, foreign_share=(0.4,), foreign_processes=("make 7",))


def cut(*times_s: float) -> Measurement:
    return replace(measurement(times_s, 1), ended=ProbeEnding.SLOWER)


def full(*times_s: float) -> Measurement:
    return replace(measurement(times_s, 1), ended=ProbeEnding.KNOWN)


def leaders(*measured: Sequence[Measurement], divisors: Sequence[float] = (1, 1, 1)) -> list[int]:
    """The places of the unconfirmed leaders among three recipes."""
    places = [place for place, found in enumerate(measured) if found]
    costs = np.array([cost_of(measured[place], divisors[place]) for place in places])
    is_full = [any(one.is_full for one in measured[place]) for place in places]
    found = unconfirmed_leaders(Cost(*costs.reshape(-1, 3).T), np.array(is_full, dtype=bool))
    return [places[place] for place in found]


@pytest.mark.parametrize(
    ("measured", "expected"),
    [
        pytest.param([], [], id="nothing measured"),
        pytest.param([[full(1.0, 1.0)], [cut(2.0, 2.0)]], [], id="cut, and clearly slower"),
        pytest.param([[full(2.0, 2.0)], [cut(1.0, 1.0)]], [1], id="cut, and now the first"),
        pytest.param([[full(1.0, 1.3, 1.1)], [cut(1.2, 1.2)]], [1], id="intervals overlap"),
        pytest.param([[full(1.0)], [cut(1.2)]], [], id="single steps have no interval"),
        pytest.param([[cut(1.0, 1.0), full(1.1, 1.1)], [full(2.0, 2.0)]], [], id="confirmed"),
        pytest.param([[], [cut(1.0, 1.0)]], [1], id="another recipe failed"),
        pytest.param(
            [[replace(full(1.0, 1.0), telemetry=DISTURBED)], [full(2.0, 2.0)]], [0], id="disturbed"
        ),
        pytest.param(
            [[cut(1.2, 1.2)], [cut(1.0, 1.2)], [full(1.1, 1.2)]], [1, 0], id="the fastest first"
        ),
    ],
)
def test_unconfirmed_leaders(measured: list[list[Measurement]], expected: list[int]) -> None:
    assert leaders(*measured) == expected


def test_unconfirmed_leaders_compares_what_the_campaign_seeks() -> None:
    measured = [full(2.0, 2.0)], [cut(1.0, 1.0)]
    assert leaders(*measured) == [1]
    assert leaders(*measured, divisors=(1, 4, 1)) == []
