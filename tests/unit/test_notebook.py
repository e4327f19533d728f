"""What notebooks show: tables whose text from outside cannot become a part of them."""

from __future__ import annotations

from pathlib import Path

import frontrunner
from frontrunner.results.outcome import Failure, FailureKind
from frontrunner.results.states import CampaignState
from frontrunner.search.conclusion import Conclusion
from support.page_stores import SCRIPT, page_store


def test_values_are_tables_of_escaped_text(tmp_path: Path) -> None:
    ids = page_store(tmp_path, names=("first",))
    store = str(tmp_path / "store.db")
    ranking = frontrunner.best(store=store)
    status = frontrunner.status(store=store)
    failure = Failure(kind=FailureKind.CRASHED, message=SCRIPT)
    conclusion = Conclusion(state=CampaignState.PAUSED, reason=SCRIPT, measured=3, last_failure=failure)
    shown = [value._repr_html_() for value in (ranking, ranking[0], status, status.campaign, conclusion)]
    for text in shown:
        assert text.startswith("<table>")
        assert "<script" not in text
    assert shown[0].count("<tr>") == 4
    assert ids[0] in shown[1]
    assert "&lt;script&gt;" in shown[2]
    assert "1 crashed" in shown[2]


def test_a_ranking_is_still_a_list_and_says_what_was_not_measured(tmp_path: Path) -> None:
    page_store(tmp_path, names=("first",))
    ranking = frontrunner.best(store=str(tmp_path / "store.db"))
    assert ranking == list(ranking)
    assert "simulated" not in ranking._repr_html_()
    assert len(frontrunner.pareto(store=str(tmp_path / "store.db"))) == 1  # equal in memory: the fastest alone
