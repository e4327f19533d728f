"""Where a campaign stands, on the terminal: what is said of failures, of lost attempts and of what
was spent.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from frontrunner.cli.run import _printer, _raise_unless_done
from frontrunner.results.outcome import Failure, FailureKind, ProbeEnding
from frontrunner.results.ranking import best
from frontrunner.results.states import CampaignState
from frontrunner.results.status import failures, status
from frontrunner.results.store import open_store
from frontrunner.search.driver import Conclusion
from frontrunner.spaces.errors import CampaignFailed
from frontrunner.views.results import (
    _detail,
    print_campaigns,
    print_next_commands,
    print_ranking,
    print_status,
)
from support.page_stores import page_store
from support.rankings import measurement, record, start

LOST = Failure(kind=FailureKind.LOST, message="its node went away")
HUNG = Failure(kind=FailureKind.HUNG, message="it stood still")
DONE = measurement((1.0,), 1_000)


def told(folder: Path, capsys: pytest.CaptureFixture[str], *outcomes: Failure) -> dict[str, str]:
    """The lines by their first words, after attempts at one recipe of which the last is
    measured.
    """
    with open_store(str(folder / "s.db"), create=True) as store:
        writer = start(store, "c")
        record(writer, f"{1:012x}", *outcomes, DONE)
        assert not failures(store, None), "no recipe has failed"
        capsys.readouterr()
        print_status(status(store, None))
    return {line.split()[0]: line.rstrip() for line in capsys.readouterr().out.splitlines()}


def test_show_counts_an_attempt_s_node_time_as_other_commands_do() -> None:
    assert str(_detail(replace(DONE, node_seconds=7_200.0))).endswith("; 2 node-hours")


def test_show_states_steps_in_milliseconds() -> None:
    assert "250 500 ms" in str(_detail(measurement((0.25, 0.5), 1_000)))


def test_replay_tells_a_loss_that_is_not_finite_from_one_that_is_not_known(
    capsys: pytest.CaptureFixture[str],
) -> None:
    say = _printer(3)
    for loss in ({"loss": 5.25}, {"loss": None}, {}):
        say({"event": "step", "step": 1, "time_s": 0.5} | loss)
    say({"event": "checkpoint", "step": 3, "time_s": 0.123456})
    said = [line.split() for line in capsys.readouterr().err.splitlines()]
    assert [line[line.index("loss") + 1] for line in said[:3]] == ["5.2500", "not", "-"]
    assert said[3] == ["checkpoint", "step", "3", "time_s", "0.1235"]


def test_status_lists_lost_attempts_apart_from_failures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = told(tmp_path, capsys, LOST)
    assert "failures" not in lines
    assert lines["lost"] == "lost      1 attempt, interrupted or withdrawn"


def test_status_points_to_failures_only_if_a_recipe_failed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert told(tmp_path, capsys, HUNG)["failures"] == "failures  1 hung"
    with open_store(str(tmp_path / "t.db"), create=True) as store:
        record(start(store, "c"), f"{2:012x}", HUNG)
        print_status(status(store, None))
    assert "failures  1 hung  (frontrunner failures c)" in capsys.readouterr().out


@pytest.mark.parametrize("log_path", [None, "/runs/7/rank-0.log"])
def test_launch_paused_by_failures_names_the_log(log_path: str | None) -> None:
    failure = replace(HUNG, log_path=log_path)
    paused = Conclusion(
        state=CampaignState.PAUSED, reason="3 failed in a row", measured=0, last_failure=failure
    )
    with pytest.raises(CampaignFailed) as ended:
        _raise_unless_done(paused, "c", stopped=1)
    once = "fix the cause, then: frontrunner resume c"
    assert ended.value.hint == (once if log_path is None else f"full log: {log_path}; {once}")


def test_status_shows_node_seconds_and_nothing_for_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "10 node-seconds in probes" in told(tmp_path, capsys)["spent"]
    page_store(tmp_path, ("table",), figures="imported")
    with open_store(str(tmp_path / "store.db")) as store:
        print_status(status(store, None))
        print_campaigns(store.campaigns())
    out = capsys.readouterr().out
    assert "spent  " not in out.partition("campaign ")[0]
    assert "node-" not in out


@pytest.mark.parametrize(("width", "lines"), [("80", 3), ("68", 6)])
def test_comments_of_commands_stand_all_beside_or_all_above_them(
    width: str,
    lines: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", width)
    with open_store(str(tmp_path / "s.db"), create=True) as store:
        record(start(store, "c"), f"{1:012x}", DONE)
        winner = best(store, None)[0]
    print_next_commands("c", winner)
    printed = capsys.readouterr().out.split("next:\n")[1].splitlines()
    assert len(printed) == lines


def test_ranking_says_first_that_its_first_place_is_not_confirmed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with open_store(str(tmp_path / "s.db"), create=True) as store:
        record(start(store, "c"), "a" * 12, replace(DONE, ended=ProbeEnding.SLOWER))
        ranking = best(store, "c")
    print_ranking(ranking)
    assert capsys.readouterr().out.startswith(f"! The place of {'a' * 12} is not confirmed")
    print_next_commands("c", ranking[0])
    following = capsys.readouterr().out.partition("next:")[2].split()
    assert following[:4] == ["frontrunner", "measure", "--confirm", "5"]
