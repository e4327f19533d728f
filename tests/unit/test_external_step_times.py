"""Step times from a log's lines: the log's own, from rates, by our clock; and what does not hang
together.
"""

import pytest

from frontrunner.evaluators.programs.command_watch import exceptions
from frontrunner.evaluators.programs.logs import (
    LoggedStep,
    measured,
    timed,
    verdict,
    why_inconsistent,
)
from frontrunner.evaluators.runs.measure import measurement
from frontrunner.evaluators.runs.settings import ProbeSettings
from frontrunner.results.outcome import Failure, FailureKind, ProbeEnding
from support.campaigns import spec_of, tiny, tiny_recipe

PROBLEM = spec_of(tiny()).problem  # 8 sequences of 32 tokens
RECIPE = tiny_recipe()  # two devices


def lines(*times_s: float | None, every: int = 1, pace_s: float = 1.0) -> list[LoggedStep]:
    """A line each `every` steps, which come `pace_s` a step."""
    return [
        LoggedStep(
            number=every * (place + 1),
            arrival_s=10 + every * (place + 1) * pace_s,
            time_s=seconds,
            loss=1.0,
        )
        for place, seconds in enumerate(times_s)
    ]


def times(steps: list[LoggedStep]) -> list[float | None]:
    return [step.time_s for step in timed(steps, RECIPE, PROBLEM)]


def test_the_log_s_own_time_comes_first() -> None:
    assert times(lines(0.9, 1.0, 1.1)) == [0.9, 1.0, 1.1]


@pytest.mark.parametrize(
    ("rates", "time_s"),
    [
        ({"tokens_per_s": 64.0}, 4.0),
        ({"tokens_per_s_per_device": 64.0}, 2.0),
        ({"samples_per_s": 4.0}, 2.0),
    ],
)
def test_else_the_time_follows_from_the_log_s_rate(rates: dict[str, float], time_s: float) -> None:
    step = LoggedStep(number=1, arrival_s=1.0, rates=rates)
    assert times([step]) == [time_s]  # 8 sequences of 32 tokens


def test_else_our_clock_measures_between_two_lines() -> None:
    assert times(lines(None, None, None, pace_s=0.5)) == [None, 0.5, 0.5]
    assert times(lines(None, None, every=10, pace_s=0.5)) == [None, 0.5]


def test_a_progress_bar_s_step_0_is_where_the_clock_starts() -> None:
    bar = [LoggedStep(number=number, arrival_s=1.0 + number * 0.25) for number in range(3)]
    assert times(bar) == [0.25, 0.25]


def test_warm_up_counts_steps_and_not_lines() -> None:
    every_ten = timed(lines(9.0, 1.0, 1.0, every=10), RECIPE, PROBLEM)
    assert measured(every_ten, 1) == [1.0, 1.0]
    assert measured(every_ten, 11) == [1.0]


def test_steps_whose_gradients_overflowed_do_not_count() -> None:
    steps = lines(9.0, 0.1, 1.0)
    steps[1].skipped_steps = 1
    assert measured(timed(steps, RECIPE, PROBLEM), 1) == [1.0]


def ended(
    settings: ProbeSettings, steps: list[LoggedStep], **more: float | None
) -> ProbeEnding | None:
    given = {"best_step_time_s": None, "spent_s": 0.0} | more
    return verdict(timed(steps, RECIPE, PROBLEM), settings, **given).ended  # type: ignore[arg-type]


def test_a_probe_ends_by_the_rules_of_our_own() -> None:
    steady = lines(9.0, 3.0, 1.0, 1.001, 0.999)
    assert ended(ProbeSettings(), steady) is ProbeEnding.KNOWN
    assert ended(ProbeSettings(), steady[:4]) is None
    assert ended(ProbeSettings(measured_steps=2), steady[:4]) is ProbeEnding.FIXED
    rough = lines(9.0, 9.0, 2.0, 2.2, 1.8, 2.1)
    assert ended(ProbeSettings(), rough, best_step_time_s=1.0) is ProbeEnding.SLOWER
    assert ended(ProbeSettings(), rough[:5], spent_s=299.0) is ProbeEnding.LIMIT


@pytest.mark.parametrize("impossible_s", [0.0, -1.0, float("inf")])
def test_a_probe_ends_at_once_with_a_time_that_no_step_takes(impossible_s: float) -> None:
    steps = timed(lines(9.0, 9.0, impossible_s, impossible_s, 1.0), RECIPE, PROBLEM)
    found = verdict(steps, ProbeSettings(), best_step_time_s=None, spent_s=0.0)
    assert found == ((impossible_s, impossible_s, 1.0), ProbeEnding.LIMIT)
    outcome = measurement(
        {
            "status": "measured",
            "step_times_s": found.times_s,
            "peak_memory_bytes": (1,),
            "losses": [],
            "build_time_s": 0.0,
            "first_step_time_s": 9.0,
        },
        RECIPE,
        PROBLEM,
        1.0,
    )
    assert isinstance(outcome, Failure)
    assert outcome.kind is FailureKind.IMPLAUSIBLE
    assert outcome.policy.max_attempts == 1


def test_a_gap_in_the_log_is_no_contradiction_to_the_clock() -> None:
    steps = lines(*[1.0] * 8, pace_s=10.0)
    assert "by our clock they took 70 s" in (why(steps) or "")
    for step in steps[1:]:
        step.is_after_gap = True
    assert why(steps) is None
    steps = lines(*[None] * 4)
    steps[2].is_after_gap = True
    assert times(steps) == [None, 1.0, None, 1.0]


def why(steps: list[LoggedStep]) -> str | None:
    return why_inconsistent(timed(steps, RECIPE, PROBLEM), RECIPE, PROBLEM)


def test_times_that_agree_with_rates_and_clock_pass() -> None:
    steps = lines(*[1.0] * 6)
    for step in steps:
        step.rates = {
            "tokens_per_s": 250.0
        }  # 256 by the step time: rounded, or without the reading of data
    assert why(steps) is None


def test_rates_are_compared_with_the_clock_like_times() -> None:
    steps = lines(*[None] * 6)
    for step in steps:
        step.rates = {"tokens_per_s": 256.0}
    assert why(steps) is None
    for step in steps:
        step.rates = {"tokens_per_s": 2560.0}
    assert "take 0.5 s, and by our clock they took 5 s" in (why(steps) or "")


def test_a_rate_of_another_batch_is_found() -> None:
    steps = lines(1.0, 1.0)
    for step in steps:
        step.rates = {"tokens_per_s": 1024.0}
    assert (
        why(steps)
        == "the log says 1024 tokens/s, and its step time gives 256 tokens/s with the recipe's 256"
        " tokens per step"
    )


LOGS = {
    "[rank0]: Traceback (most recent call last):\n[rank0]: torch.OutOfMemoryError: HIP": (
        "OutOfMemoryError"
    ),
    "pretrain_gpt.py: error: unrecognized arguments: --foo": "ValueError",
    "AssertionError: world size is not divisible": "ValueError",
    "worker-0: RuntimeError: no": "RuntimeError",
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n": None,
    "    raise ValueError('no')": None,
    "all went well": None,
}


@pytest.mark.parametrize(("text", "kind"), LOGS.items())
def test_the_exception_that_ended_a_rank_is_found(text: str, kind: str | None) -> None:
    found = exceptions(text, "starting")
    assert [error.type for error in found] == ([] if kind is None else [kind])
    if "Assertion" in text:
        assert exceptions(text, "stepping")[0].type == "AssertionError"
