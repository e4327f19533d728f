"""The column table: what is shown where, on wide and narrow terminals."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from frontrunner.results.outcome import RecipeStats
from frontrunner.results.pages import HistoryPage
from frontrunner.results.ranking import RankedRecipe
from frontrunner.results.records import USER, Event
from frontrunner.results.status import Neighbor
from frontrunner.spaces.recipe import Recipe
from frontrunner.spaces.sharding import Sharding
from frontrunner.views.columns import (
    CHOICES,
    COLUMNS,
    IMPORTANT,
    Column,
    against,
    briefly,
    figures_in_words,
    used,
    words,
)
from frontrunner.views.history import noticed, print_history
from frontrunner.views.results import print_ranking
from frontrunner.views.terminal import Terminal, column_table, recorded, ruled_table

RECIPE = Recipe(
    devices=512, tensor_parallel=8, pipeline_parallel=16, schedule="1f1b", micro_batch_seqs=1,
    accumulation=64,
    recompute="selective", sharding=Sharding.named("zero-1", 4),
)  # fmt: skip
STANDING = RecipeStats(
    repeats=2, step_time_s_median=1.25, step_time_spread=0.08, tokens_per_s=123_456.0,
    model_tflops_per_device=81.2,
    hardware_tflops_per_device=90.0, mfu=None, peak_memory_bytes_max_rank=40 * 2**30,
)  # fmt: skip
ROW = RankedRecipe(
    rank=1, recipe_id="0123456789ab", recipe=RECIPE, trial_number=1, figures="measured",
    standing=STANDING,
    gap_percent=0.0,
)  # fmt: skip


def test_a_neighbor_is_faster_above_and_in_doubt_within_the_spread() -> None:
    apart = Neighbor(
        recipe_id="a" * 12, recipe=RECIPE, tokens_per_s=1.0, gap_percent=2.5, within_spread=False
    )
    told = [against(apart, "above"), against(apart, "below")]
    assert told == ["2.5 % faster", "2.5 % slower"]
    assert "could reverse" in against(replace(apart, within_spread=True), "below")


def lines(width: int, rows: list[RankedRecipe], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr("frontrunner.views.terminal.PIPED_WIDTH", width)
    with recorded() as html:
        print_ranking(rows, title="best")
        return [re.sub("<.*?>", "", line) for line in html().splitlines()]


@pytest.mark.parametrize("width", [40, 60, 80])
def test_ranking_on_a_narrow_terminal_keeps_the_mark_of_noise(
    width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = lines(width, [ROW, replace(ROW, rank=2)], monkeypatch)
    row = next(line for line in shown if "0123456789ab" in line)
    assert "8 % !" in row
    assert "123,456" in row
    assert ("tp8 pp16 dp4" in row) == (width > 40)
    assert all(len(line) <= width + 1 for line in shown if "tokens/s" in line and "#" in line)
    assert any("the order near such a row may change" in line for line in shown)


def test_ranking_leaves_out_columns_without_a_value(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not any("MFU" in line for line in lines(140, [ROW], monkeypatch))
    peak = replace(ROW, standing=replace(STANDING, mfu=0.4))
    assert any("MFU" in line for line in lines(140, [ROW, peak], monkeypatch))


def test_history_states_predictions_that_an_earlier_version_stored() -> None:
    data = {
        "recipe_id": "0123456789ab",
        "recipe": "{}",
        "tokens_per_s": 50000.0,
        "low": 40000.0,
        "high": 61000.4,
        "chance": 0.9,
    }
    said = "predicted from fewer nodes: 50,000 tokens/s (95 %: 40,000 to 61,000)"
    assert noticed("prediction", data) == f"{said} for recipe 0123456789ab"


def test_history_on_a_narrow_terminal_wraps_what_happened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("frontrunner.views.terminal.PIPED_WIDTH", 60)
    data = {"recipe": f"tp1 pp2 dp1 1f1b mb4 x2 layers={'9' * 60}", "trial": 7, USER: "ann"}
    event = Event(
        id=1, campaign_id=1, at="2026-03-01T12:30:45.123456+00:00", kind="repeat", data=data
    )
    with recorded() as html:
        print_history(HistoryPage(items=(event,), total=1))
        shown = re.sub("<.*?>", "", html())
    assert "2026-03-01 12:30:45  ann  probe 7 is measured again" in shown
    assert shown.count("9") == 60


def test_number_without_room_is_marked_as_cut(capsys: pytest.CaptureFixture[str]) -> None:
    table = ruled_table(None, "what", ("first", "right"), ("second", "right"))
    table.add_row("tokens/s", "102,024,459", "102,024,459")
    Terminal(width=30).print(table)
    assert len(re.findall(r"102,[\d,]*…", capsys.readouterr().out)) == 2


def test_column_of_a_part_is_a_dash_where_the_part_is_missing() -> None:
    columns: list[Column[RecipeStats | None]] = [
        column.of(lambda found: found) for column in COLUMNS[:1]
    ]
    assert columns[0].cell(None) == "-"
    assert not used(columns, [None])


def test_choices_show_context_ranks_and_what_they_are_sharded_over() -> None:
    spread = replace(
        RECIPE, devices=8, tensor_parallel=2, pipeline_parallel=1, schedule="none",
        context_parallel=4,
        sharding=Sharding.named("zero-3", 4),
    )  # fmt: skip
    shown = {column.key: column.cell(spread) for column in CHOICES}
    assert shown == {
        "layout": "tp2 pp1 dp1 cp4",
        "batch": "1 x 64",
        "sharding": "zero-3",
        "options": "recompute=selective",
    }


def test_figures_in_words_leave_out_what_is_unknown() -> None:
    found = {what: value for value, what in figures_in_words(STANDING, 64 * 2**30)}
    assert found["GiB at the peak, of 64.00"] == "40.00"
    assert found["step, ± 8 %"] == "1.25 s"
    assert "MFU" not in found
    assert briefly(STANDING) == "123,456 tok/s, 1.25 s/step, ± 8 %, 40.00 GiB"


def test_a_piped_table_is_as_wide_as_the_environment_states(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    print_ranking([ROW])
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 101


@pytest.mark.parametrize(
    ("width", "titles"),
    [
        (50, ["recipe", "choices", "MFU"]),
        (60, ["recipe", "layout", "options", "MFU"]),
        (80, ["recipe", "layout", "options", "MFU", "days"]),
    ],
)
def test_narrow_tables_join_choices_before_an_important_column_is_left_out(
    width: int, titles: list[str]
) -> None:
    choice = {"drop": IMPORTANT, "whole": "choices"}
    columns: list[Column[str]] = [
        words("recipe", "recipe", lambda row: f"recipe-{row}"),
        words("layout", "layout", lambda row: f"layout {row}", **choice),
        words("options", "options", lambda row: f"recompute=selective-{row}", **choice),
        words("mfu", "MFU", lambda row: "43.9 % or so", drop=IMPORTANT),
        words("days", "days", lambda row: "1,000.0 days", drop=2, is_doubtful="b".__eq__),
    ]
    table = column_table(None, columns, ["a", "b"], width=width)
    assert [column.header for column in table.columns] == titles
    cells = [list(map(str, column.cells)) for column in table.columns]
    if "choices" in titles:
        assert cells[1] == [f"layout {row}, recompute=selective-{row}" for row in "ab"]
    marked = cells[titles.index("days")] if "days" in titles else cells[0]
    assert [text.endswith("!") for text in marked] == [False, True]
