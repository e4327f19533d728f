"""What a log states about its steps' times, compared with the arrival of its lines."""

import itertools
from collections.abc import Sequence

import pytest

from frontrunner.evaluators.programs.clock import LEAST_INTERVALS, StatedTime, compare

START_S = 3.0


def log(
    true_s: Sequence[float], *, states: float = 1.0, held_until: int = 1, pauses_s: float = 0.0
) -> list[StatedTime]:
    """Lines of steps that take `true_s`, each of which states `states` times that.

    Lines come `held_until` at a time. After the second step the trainer pauses.
    """
    ends = list(itertools.accumulate(true_s, initial=START_S))[1:]
    ends = [end + (pauses_s if place > 1 else 0.0) for place, end in enumerate(ends)]
    lines = []
    for place, seconds in enumerate(true_s):
        flush = min(len(ends) - 1, place - place % held_until + held_until - 1)
        lines.append(StatedTime(ends[flush], seconds * states))
    return lines


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param(log([2.0] * 4 + [0.1] * 6), id="slow steps at first"),
        pytest.param(log([0.05] * 8, pauses_s=5.0), id="a checkpoint"),
        pytest.param(log([0.05] * 3, pauses_s=5.0), id="a checkpoint among few steps"),
        pytest.param(log([0.05] * 24, held_until=8), id="eight lines at a time"),
        pytest.param(log([0.3, 0.2, 0.25], states=0.6), id="work beside the steps"),
        pytest.param(log([6.0] * 3), id="long steps"),
        pytest.param(log([0.001] * 40), id="short steps"),
        pytest.param(log([0.2] * 8, held_until=8), id="all lines at the end"),
    ],
)
def test_compare_believes_an_honest_log(lines: list[StatedTime]) -> None:
    assert compare(lines).contradiction is None


@pytest.mark.parametrize("step_s", [0.002, 0.02, 0.2, 6.0])
@pytest.mark.parametrize("factor", [0.1, 0.25, 0.45, 2.2, 4.0, 10.0])
def test_compare_finds_wrong_times_however_long_steps_are(step_s: float, factor: float) -> None:
    lines = log([5.0] + [step_s] * (40 if step_s < 0.01 else LEAST_INTERVALS), states=factor)
    check = compare(lines)
    assert check.contradiction is not None
    assert check.is_decided


def test_compare_finds_wrong_times_in_lines_that_come_together() -> None:
    assert compare(log([0.05] * 48, states=0.1, held_until=8)).contradiction is not None


def test_compare_states_both_sums_over_the_same_steps() -> None:
    check = compare(log([1.0] * 6, states=0.1))
    assert check.contradiction == (
        "the log's steps after the first take 0.5 s, and by our clock they took 5 s"
    )
    assert "take 4000 s in all, and came within 7 s" in str(compare(log([1.0] * 4, states=1e3)))


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param(log([0.1]), id="a single line"),
        pytest.param(log([0.1] * 9, held_until=9), id="a single burst"),
        pytest.param(log([0.1] * LEAST_INTERVALS, states=0.1), id="too fast, few lines"),
        pytest.param(log([0.1] * LEAST_INTERVALS, states=4), id="too slow, few lines"),
    ],
)
def test_compare_asks_for_more_lines_where_few_may_mislead(lines: list[StatedTime]) -> None:
    assert not compare(lines).is_decided


def test_compare_needs_no_more_lines_where_two_agree() -> None:
    assert compare(log([0.1, 0.1])).is_decided
