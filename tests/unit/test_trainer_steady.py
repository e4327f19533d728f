"""When a step time is known: the interval against other sources, and probes simulated from known
distributions.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable

import pytest
from scipy import stats

from frontrunner.evaluators.trainer.step_time_stats import (
    CLEARLY,
    ending,
    half_width_after,
    interval,
    relative_half_width,
    settled,
)


@pytest.mark.parametrize("count", [2, 3, 5, 12, 21])
def test_few_quiet_steps_get_students_interval(count: int) -> None:
    """Evenly spread times, for which the mean's interval is the narrower one."""
    times = [1.0 + 0.001 * place for place in range(count)]
    wanted = stats.t.interval(0.95, count - 1, loc=statistics.fmean(times), scale=stats.sem(times))
    low, high = interval(times)
    assert high - low <= 1.001 * (wanted[1] - wanted[0])
    if count < 6:
        assert (low, high) == pytest.approx(wanted, rel=1e-4)


@pytest.mark.parametrize(("count", "place"), [(9, 2), (12, 3), (20, 6)])
def test_an_interrupted_step_does_not_widen_the_medians_interval(count: int, place: int) -> None:
    times = [1.0 + 0.001 * number for number in range(count - 1)] + [9.0]
    assert interval(times) == (times[place - 1], sorted(times)[-place])
    assert stats.binomtest(place - 1, count).pvalue <= 0.05 < stats.binomtest(place, count).pvalue


def test_one_step_says_nothing() -> None:
    assert interval([1.0]) == (0.0, float("inf"))
    assert ending([1.0], precision=0.5, best_step_time_s=0.1, most=14) is None


def test_slow_first_steps_are_warm_up() -> None:
    steady = [1.00, 1.01, 0.99, 1.00]
    assert settled([3.0, 1.4, *steady], most_dropped=5, tolerance=0.01) == steady
    assert settled([3.0, 1.4, *steady], most_dropped=1, tolerance=0.01) == [1.4, *steady]


def test_what_is_no_slower_than_the_others_stays() -> None:
    for times in (
        [1.0, 1.3, 0.8, 1.1, 0.9],
        [0.5, 1.0, 1.0, 1.01],
        [1.004, 1.0, 1.0, 1.0],
        [2.0, 1.0],
    ):
        assert settled(times, most_dropped=5, tolerance=0.01) == times


def test_a_slow_recipe_ends_before_its_time_is_known() -> None:
    rough = [2.0, 2.3, 2.1]
    assert ending(rough, precision=0.03, best_step_time_s=1.0, most=14) == "slower"
    assert ending(rough, precision=0.03, best_step_time_s=1.9, most=14) is None, (
        "the interval reaches the best"
    )
    assert ending(rough, precision=0.03, best_step_time_s=None, most=14) is None
    low = interval(rough)[0]
    assert (
        ending(rough, precision=0.03, best_step_time_s=1.001 * low / (1 + CLEARLY), most=14) is None
    )


def test_steps_that_vary_too_much_end_a_probe_and_a_single_interruption_does_not() -> None:
    noisy, interrupted = [1.0, 1.3, 0.8, 1.1, 1.4], [1.0, 1.02, 3.0, 0.99, 1.01]
    assert ending(noisy, precision=0.03, best_step_time_s=None, most=14) == "noisy"
    assert ending(noisy, precision=0.03, best_step_time_s=None, most=1000) is None, (
        "so many steps would help"
    )
    assert ending(noisy[:4], precision=0.03, best_step_time_s=None, most=14) is None
    assert ending(interrupted, precision=0.03, best_step_time_s=None, most=14) is None


def test_the_width_to_come_is_about_the_one_that_comes() -> None:
    draw = random.Random(3)
    expected, came = [], []
    for _ in range(400):
        times = [draw.gauss(1.0, 0.1) for _ in range(14)]
        expected.append(half_width_after(times[:7], 14))
        came.append(relative_half_width(times))
    assert statistics.median(expected) == pytest.approx(statistics.median(came), rel=0.3)


def quiet(draw: random.Random) -> float:
    return draw.gauss(1.0, 0.02)


def interrupted(draw: random.Random) -> float:
    return quiet(draw) + (draw.uniform(0.5, 2.0) if draw.random() < 0.1 else 0.0)


@pytest.mark.parametrize("step", [quiet, interrupted])
def test_simulated_probes_end_near_the_truth(step: Callable[[random.Random], float]) -> None:
    """The median is 1; looking after every step costs the interval some of its 95 %."""
    draw, spent, errors, covered = random.Random(5), [], [], []
    for _ in range(300):
        times = [4.0, 1.5] + [step(draw) for _ in range(3)]
        while (
            relative_half_width(kept := settled(times, most_dropped=8, tolerance=0.015)) > 0.03
            and len(times) < 30
        ):
            times.append(step(draw))
        low, high = interval(kept)
        spent.append(len(times))
        errors.append(abs(statistics.median(kept) - 1))
        covered.append(low <= 1 <= high)
    assert statistics.fmean(spent) < 11
    assert sorted(errors)[285] < 0.03, "19 of 20 probes end within the precision that was asked for"
    assert statistics.fmean(covered) > 0.85
