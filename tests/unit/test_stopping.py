"""What is left to gain: when it ends a campaign, and how it is told."""

from __future__ import annotations

import io
import math
import re
from dataclasses import replace

import pytest
from rich.console import Console
from rich.live import Live

from frontrunner.evaluators.protocol import Progress
from frontrunner.results.prior_results import REUSED
from frontrunner.results.records import COPIED, IMPORTED, UNARCHIVED
from frontrunner.results.states import CampaignState
from frontrunner.search.budget import (
    IN_A_ROW,
    LEAST_MEASURED,
    STOPPING,
    Limit,
    StopRule,
    outlook_in_words,
)
from frontrunner.search.listener import View
from frontrunner.search.running_attempt import RunningProbe
from frontrunner.search.strategy import Outlook
from frontrunner.views.live import Lines, Panel, panel
from frontrunner.views.results import print_outlook
from support.campaigns import tiny_recipe

LITTLE = Outlook(expected_improvement=0.0042, gap=0.0, gap_at_most=0.12)
MUCH = replace(LITTLE, expected_improvement=0.01)
LIMITS = (Limit(name="probes", used=28, allowed=40), Limit(name="minutes", used=5.0, allowed=4.0))


def heard(
    *outlooks: Outlook | None, measured: int = LEAST_MEASURED, below: float = 0.01
) -> str | None:
    rule = StopRule(below)
    for outlook in outlooks:
        rule.hear(outlook, measured=measured)
    return rule.why_stop(LIMITS)


def test_little_to_gain_ends_a_campaign_after_as_many_outcomes_in_a_row() -> None:
    assert IN_A_ROW == 2
    assert heard(LITTLE, LITTLE) is not None
    assert heard(LITTLE, MUCH, LITTLE) is None
    assert heard(LITTLE, None, LITTLE) is None
    assert heard(MUCH, MUCH) is None, "at the threshold it goes on"


def test_nothing_ends_a_campaign_of_which_little_is_known() -> None:
    assert heard(*[LITTLE] * 9, measured=LEAST_MEASURED - 1) is None
    assert heard() is None
    assert heard(*[LITTLE] * 9, below=0.0) is None


def test_the_reason_holds_the_numbers_and_what_was_not_used() -> None:
    assert (
        heard(LITTLE, LITTLE)
        == "the next probe is expected to gain 0.42 %, under 1 %; the best is estimated to be 0 %"
        " below the best of the whole space (95 %: at most 11 %); 12 of 40 probes, 0 of 4"
        " minutes unused"
    )


def test_what_is_left_of_a_front_is_said_of_the_front() -> None:
    front = replace(LITTLE, of_front=True)
    assert (
        heard(front, front)
        == "the next probe is expected to add 0.42 % to the front, under 1 %; the front is"
        " estimated to cover 0 % less than that of the whole space (95 %: at most 11 %); 12 of"
        " 40 probes, 0 of 4 minutes unused"
    )


def test_a_best_is_as_far_below_the_spaces_best_as_a_ranking_would_call_it() -> None:
    best_possible, ours, most_possible = 238.0, 100.0, 500.0
    outlook = replace(LITTLE, gap=best_possible / ours - 1, gap_at_most=most_possible / ours - 1)
    assert outlook.share_below == pytest.approx(1 - ours / best_possible)
    assert outlook_in_words(outlook).endswith(
        "the best is estimated to be 58 % below the best of the whole space (95 %: at most 80 %)"
    )
    assert replace(LITTLE, gap=math.inf).share_below == 1.0


def test_a_gain_of_next_to_nothing_is_printed_without_an_exponent() -> None:
    words = outlook_in_words(replace(LITTLE, expected_improvement=1.3e-7))
    assert words.startswith("the next probe is expected to gain 0.00 %; ")


@pytest.mark.parametrize("width", [80, 100, 160])
def test_panel_shows_the_outlook_on_one_line(width: int) -> None:
    view = View(name="c", strategy="s", legal_recipes=9, outlook=replace(LITTLE, gap=0.034))
    screen = Console(width=width, record=True, force_terminal=False)
    with screen.capture() as captured:
        screen.print(panel(view, width=width))
    (line,) = (line for line in captured.get().splitlines() if line.startswith("outlook"))
    assert line.rstrip().endswith(
        "next probe +0.4 %; best 3.3 % (at most 10.7 %) below the space's"
    )


@pytest.mark.parametrize(
    ("progress", "line"),
    [
        (None, "3 s"),
        (Progress(phase="stepping", steps_done=2, steps_total=9), "3 s, step 2 of at most 9"),
        (Progress(phase="building", steps_done=0, steps_total=9), "3 s, building"),
    ],
)
def test_panel_shows_how_far_a_probe_is(progress: Progress | None, line: str) -> None:
    probe = RunningProbe(number=1, recipe=tiny_recipe(), seconds=3.0, progress=progress)
    screen = Console(width=100, file=io.StringIO(), record=True)
    screen.print(panel(View(name="c", strategy="s", legal_recipes=9, running=(probe,)), width=100))
    assert f"  {line}\n" in re.sub(" +\n", "\n", screen.export_text())


def test_panel_prints_notices_as_they_are() -> None:
    screen = Console(width=100, file=io.StringIO(), record=True)
    view = View(name="c", strategy="s", legal_recipes=9)
    Panel(Live(console=screen)).noticed(view, "lost", {"trial": 4, "recipe": "[red]tp1[/red]"})
    assert screen.export_text() == "probe 4 was cut off with its driver: [red]tp1[/red]\n"


def test_print_outlook_shows_the_unused_budget(capsys: pytest.CaptureFixture[str]) -> None:
    print_outlook(None, LIMITS)
    assert capsys.readouterr().out == ""
    print_outlook(LITTLE, LIMITS)
    outlook, unused = capsys.readouterr().out.splitlines()
    assert outlook.startswith(
        "outlook: the next probe is expected to gain 0.42 %; the best is estimated"
    )
    assert unused == "unused budget: 12 of 40 probes, 0 of 4 minutes"


def test_an_end_that_the_command_reports_is_printed_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for state in (CampaignState.PAUSED, CampaignState.STOPPED, CampaignState.FINISHED):
        Lines().ended(View(name="c", strategy="s", legal_recipes=9), state, "so")
    assert capsys.readouterr().err == "campaign c finished: so\n"


@pytest.mark.parametrize(
    ("kind", "data", "line"),
    [
        (
            STOPPING,
            {"leaves": "stopped", "probes_to_finish": 1},
            "finishing 1 running probe; press Ctrl-C again to end it now",
        ),
        (
            STOPPING,
            {"leaves": "stopped", "probes_to_finish": 0, "probes_ended": 2},
            "ending 2 running probes",
        ),
        (
            STOPPING,
            {"leaves": "paused", "probes_to_finish": 0},
            "stopping; then the campaign is paused",
        ),
        ("lost", {"trial": 4, "recipe": "tp1 mb2"}, "probe 4 was cut off with its driver: tp1 mb2"),
        (
            REUSED,
            {
                "trial": 1,
                "recipe": "tp1 mb2",
                "campaign": "a",
                "its_trial": 5,
                "measured_at": "2026-03-01T12:30:45+00:00",
            },
            "probe 1 takes the result of probe 5 of campaign a, measured 2026-03-01 12:30: tp1 mb2",
        ),
        (
            IMPORTED,
            {"file": "a.csv", "rows": 4, "sha256": "0f", "left out: a time is negative": 1},
            "imported from a.csv, a table of 4 rows; left out: 1 x a time is negative",
        ),
        ("overtime", {"seconds": 3.21}, "3.2 s were driven beyond the budget's minutes"),
        (
            UNARCHIVED,
            {"attempts": 4, "file": "a.jsonl", "sha256": "0f"},
            "unarchived from a.jsonl; attempts: 4",
        ),
        (
            COPIED,
            {"attempts": 4, "campaign": "a", "store": "/a.db", "user": "me"},
            "copied from campaign a of /a.db; attempts: 4",
        ),
    ],
)
def test_notices_are_sentences(
    kind: str,
    data: dict[str, str | int | float | None],
    line: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    Lines().noticed(View(name="c", strategy="s", legal_recipes=9), kind, data)
    assert capsys.readouterr().err == line + "\n"
