"""What notebooks show: tables whose text from outside cannot become a part of them."""

from __future__ import annotations

import re
from pathlib import Path

import frontrunner
from frontrunner.results.outcome import Failure, FailureKind
from frontrunner.results.states import CampaignState
from frontrunner.results.status import FailureList
from frontrunner.search.conclusion import Conclusion
from frontrunner.spaces.recipe import Recipe
from frontrunner.spaces.sharding import Sharding
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


def test_what_the_functions_answer_is_shown_as_tables(tmp_path: Path) -> None:
    ids = page_store(tmp_path)
    store = str(tmp_path / "store.db")
    campaigns, failures = frontrunner.campaigns(store=store), frontrunner.failures("first", store=store)
    told, front = frontrunner.show(ids[0], store=store), frontrunner.front("first", store=store)
    apart = frontrunner.explain(ids[0], store=store)
    for value, header, rows in (
        (campaigns, "best tokens/s", 2),
        (failures, "why", 1),
        (front, "headroom GiB", len(front)),
        (told, "attempts", 2),  # in two campaigns
        (apart, "peak GiB", 2),  # estimated, measured
    ):
        shown = value._repr_html_()
        assert "<script" not in shown
        table = next(part for part in shown.split("<table>") if f"<th>{header}</th>" in part)
        assert table.count("<tr><td>") == rows, header
    assert "&lt;script&gt;" in failures._repr_html_()
    assert "failed (crashed)" in frontrunner.show(failures[0].trial.recipe_id, store=store)._repr_html_()
    assert campaigns == list(campaigns)
    assert front == tuple(front)
    assert "nothing failed" in FailureList()._repr_html_()


def test_a_recipe_is_shown_by_what_is_off_its_defaults() -> None:
    shown = Recipe(
        devices=8, tensor_parallel=2, micro_batch_seqs=4, accumulation=2, sharding=Sharding(optimizer=4)
    )._repr_html_()
    cells = dict(re.findall("<tr><th>(.*?)</th><td>(.*?)</td></tr>", shown))
    assert cells == {
        "devices": "8",
        "tensor_parallel": "2",
        "micro_batch_seqs": "4",
        "accumulation": "2",
        "sharding": "zero-1",
        "data_parallel": "4",
        "global_batch_seqs": "32",
    }


def test_a_ranking_is_still_a_list_and_says_what_was_not_measured(tmp_path: Path) -> None:
    page_store(tmp_path, names=("first",))
    ranking = frontrunner.best(store=str(tmp_path / "store.db"))
    assert ranking == list(ranking)
    assert "simulated" not in ranking._repr_html_()
    assert len(frontrunner.pareto(store=str(tmp_path / "store.db"))) == 1  # equal in memory: the fastest alone
