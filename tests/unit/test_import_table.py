"""Importing a table: whose column is which, units that cannot be meant, and what becomes of each
row.
"""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import frontrunner as api
from frontrunner import TableForm
from frontrunner.exchange import Import
from frontrunner.spaces.errors import InvalidInput, NotFound
from frontrunner.spaces.model.feed_forward import ACTIVATIONS
from frontrunner.store import LocalStore
from frontrunner.views.columns import COLUMNS, briefly
from support.imports import ROWS, row, write_table


def imported(
    folder: Path, rows: Any = ROWS, rename: dict[str, str] | None = None, **options: Any
) -> Import:
    table = write_table(folder / "sweep.csv", rows, rename)
    return api.import_table(table, store=str(folder / "s.db"), **options)


def in_unit(factor: float) -> list[dict[str, Any]]:
    return [
        one | {"step_time_s": one["step_time_s"] and one["step_time_s"] * factor} for one in ROWS
    ]


def test_rows_become_outcomes_that_questions_show(tmp_path: Path) -> None:
    found = imported(tmp_path)
    assert (found.rows, found.taken_rows, found.known_rows, found.left_out) == (5, 5, 0, ())
    assert [(one.campaign, one.rows, one.recipes, one.failed) for one in found.problems] == [
        ("sweep", 5, 5, 1)
    ]
    ranking = api.best("sweep", store=str(tmp_path / "s.db"))
    assert [one.standing.step_time_s_median for one in ranking] == [0.8, 0.9, 1.1, 1.2]
    assert {one.figures for one in ranking} == {"imported"}
    best = ranking[0]
    assert (best.recipe.data_parallel, best.recipe.micro_batch_seqs, best.recipe.accumulation) == (
        8,
        2,
        4,
    )
    assert best.standing.tokens_per_s == pytest.approx(64 * 2048 / 0.8)
    assert best.standing.peak_memory_bytes_max_rank == int(31.5 * 2**30)
    [failed] = api.failures("sweep", store=str(tmp_path / "s.db"))
    assert (failed.failure.kind, failed.run_folder) == ("out-of-memory", "sweep.csv row 3")
    frame = api.dataframe("sweep", store=str(tmp_path / "s.db"))
    assert set(frame["figures"]) == {"imported"}
    assert sorted(frame["run_folder"]) == [f"sweep.csv row {number}" for number in range(1, 6)]


def test_a_peak_that_the_table_does_not_state_is_unknown(tmp_path: Path) -> None:
    imported(tmp_path)
    store = str(tmp_path / "s.db")
    stated, *others = api.best("sweep", store=store)
    assert {one.standing.peak_memory_bytes_max_rank for one in others} == {None}
    for ranking in (
        api.best("sweep", store=store, by="memory"),
        api.best("sweep", store=store, max_memory_gb=1e6),
        api.pareto("sweep", store=store),
        [one.ranked for one in api.front("sweep", store=store, objectives=("tokens", "memory"))],
        LocalStore(store).recipes("sweep", by="memory").items,
        LocalStore(store).recipes("sweep", max_memory_gb=1e6).items,
    ):
        assert [one.recipe_id for one in ranking] == [stated.recipe_id]
    cells = {column.key: column.cell(others[0]) for column in COLUMNS}
    assert (cells["peak_memory_bytes_max_rank"], cells["step_time_spread"]) == ("-", "-")
    assert briefly(others[0].standing).endswith("900 ms/step")


def test_a_table_is_kept_once_and_what_is_new_in_it_is_added(tmp_path: Path) -> None:
    imported(tmp_path)
    again = imported(tmp_path)
    assert (again.taken_rows, again.known_rows, again.problems) == (0, 5, ())
    more = imported(tmp_path, (row(4, 1, 1.5), *ROWS))
    assert (more.taken_rows, more.known_rows) == (1, 5)
    names = [one.name for one in api.campaigns(store=str(tmp_path / "s.db"))]
    assert names == ["sweep-2", "sweep"]


def test_import_knows_rows_that_an_earlier_version_stored(tmp_path: Path) -> None:
    """It stored a table's peak once for each of the eight ranks."""
    imported(tmp_path)
    with closing(sqlite3.connect(tmp_path / "s.db")) as store, store:
        found = store.execute("SELECT attempt_id, peak_memory_bytes_json FROM measurements")
        earlier = [(json.dumps(json.loads(peaks) * 8), attempt) for attempt, peaks in found]
        update = "UPDATE measurements SET peak_memory_bytes_json = ? WHERE attempt_id = ?"
        store.executemany(update, earlier)
    again = imported(tmp_path)
    assert (again.taken_rows, again.known_rows) == (0, 5)


def test_a_preview_says_the_same_and_writes_nothing(tmp_path: Path) -> None:
    found = imported(tmp_path, preview=True)
    assert (found.is_preview, found.taken_rows, found.problems[0].campaign) == (True, 5, "sweep")
    assert [path.name for path in tmp_path.iterdir()] == ["sweep.csv"]


def test_a_preview_names_campaigns_as_an_import_does(tmp_path: Path) -> None:
    rows = (*ROWS, row(1, 1, 0.5, layers=8))
    preview, done = (imported(tmp_path, rows, preview=preview) for preview in (True, False))
    names = [one.campaign for one in preview.problems]
    assert names == [one.campaign for one in done.problems]
    assert len(set(names)) == 2


def test_other_names_units_and_constants(tmp_path: Path) -> None:
    rows = [
        {key: value for key, value in one.items() if key != "hardware"} for one in in_unit(1000.0)
    ]
    rows[1]["peak_mem_gb"] = 31.5 * 1024
    form = TableForm(
        columns={"step_time_s": "iter: ms:ms", "tp": "TP", "peak_mem_gb": "mem:MiB"},
        constants={"hardware": "a100"},
        ignore=("comment",),
    )
    rows = [one | {"comment": "kept in a lab book"} for one in rows]
    renamed = {"step_time_s": "iter: ms", "tp": "TP", "peak_mem_gb": "mem"}
    found = imported(tmp_path, rows, renamed, form=form)
    assert found.taken_rows == 5
    best = api.best("sweep", top=1, store=str(tmp_path / "s.db"))[0]
    assert best.standing.step_time_s_median == pytest.approx(0.8)
    assert best.standing.peak_memory_bytes_max_rank == int(31.5 * 2**30)


def test_rows_of_several_problems_become_a_campaign_each(tmp_path: Path) -> None:
    found = imported(
        tmp_path,
        (*ROWS, row(1, 1, 0.5, gpus=16, dp=16), row(1, 1, 0.9, model="other", hidden=1024)),
    )
    names = {one.campaign: one.rows for one in found.problems}
    assert names == {
        "sweep-llama-1b-8x-s2048-b64": 5,
        "sweep-llama-1b-16x-s2048-b64": 1,
        "sweep-other-8x-s2048-b64": 1,
    }


def test_what_cannot_be_is_left_out_with_its_reason_and_row(tmp_path: Path) -> None:
    bad = (
        row(1, 1, -0.9),
        row(1, 2, "fast"),
        row(1, 4, 0.7, dp=4),  # 4 x 1 of 8 devices
        row(2, 3, 0.9),  # does not divide the batch
        row(8, 1, 0.0001),  # above the peak
        row(4, 1, None, status="unmeasured"),
        *ROWS[:1],
        row(4, 2, 0.5, precision="FP8"),
        row(4, 2, 0.5, hardware=""),
        row(4, 2, 0.5, activation="silu"),
    )
    found = imported(tmp_path, (*ROWS, *bad))
    assert found.taken_rows == 5
    reasons = {left.reason: (left.rows, left.first_row) for left in found.left_out}
    assert reasons["step_time_s is negative"] == (1, 6)
    assert reasons["step_time_s is not a number"] == (1, 7)
    assert reasons["faster than the device's peak"] == (1, 10)
    assert reasons["another row says the same"] == (1, 12)
    assert reasons["tp x pp x cp x dp is not the number of devices"][0] == 1
    assert reasons["status unmeasured"][0] == 1
    assert reasons["no peak in fp8 for A100"] == (1, 13)
    assert reasons["no hardware"] == (1, 14)
    assert reasons[f"activation silu is none of {', '.join(ACTIVATIONS)}"] == (1, 15)
    assert sum(rows for rows, _ in reasons.values()) == len(bad)


def test_rows_that_disagree_are_kept_as_repeats_and_said(tmp_path: Path) -> None:
    found = imported(tmp_path, (*ROWS, row(1, 1, 0.92), row(2, 2, 1.9)))
    [repeats] = found.disagreeing
    assert (repeats.rows, repeats.step_times_s) == ((5, 7), (1.1, 1.9))
    ranking = api.best("sweep", store=str(tmp_path / "s.db"))
    assert {
        one.standing.step_time_s_median: one.standing.repeats for one in ranking
    } == pytest.approx({0.8: 1, 0.91: 2, 1.2: 1, 1.5: 2})


MISTAKES: dict[str, tuple[Any, dict[str, str], TableForm, str, str]] = {
    "milliseconds": (
        in_unit(1000.0),
        {},
        TableForm(),
        "step_time_s in s cannot be meant",
        "step_time_s:UNIT, of s, ms, us, min",
    ),
    "seconds called milliseconds": (
        ROWS,
        {"step_time_s": "t"},
        TableForm(columns={"step_time_s": "t:ms"}),
        "t in ms cannot be meant: 4 of 4 timed rows are above their device's peak",
        "--column step_time_s=t:UNIT",
    ),
    "a peak in MiB": (
        [one | {"peak_mem_gb": 31_500} for one in ROWS],
        {},
        TableForm(),
        "peak_mem_gb in GiB cannot be meant: every peak is 398 times",
        "--column peak_mem_gb=peak_mem_gb:UNIT",
    ),
    "unknown column": (
        ROWS,
        {"step_time_s": "step_time"},
        TableForm(),
        "not of the table form: step_time",
        "--column",
    ),
    "unknown name": (
        ROWS,
        {},
        TableForm(columns={"step": "x"}),
        "column of the table form before the =",
        "",
    ),
    "unknown unit": (
        ROWS,
        {},
        TableForm(columns={"step_time_s": "step_time_s:msec"}),
        "s, ms, us, min",
        "'ms'",
    ),
    "no such column": (
        ROWS,
        {},
        TableForm(columns={"tp": "hiden"}),
        "after the =",
        "did you mean 'hidden'",
    ),
    "nothing to ignore": (
        ROWS,
        {},
        TableForm(ignore=("sed",)),
        '--ignore = "sed"',
        "did you mean 'seq'",
    ),
    "given twice": (
        ROWS,
        {},
        TableForm(constants={"seq": "1"}),
        "the table has a column seq",
        "--ignore seq",
    ),
    "named twice": (
        ROWS,
        {},
        TableForm(columns={"seq": "seq"}, constants={"seq": "1"}),
        "seq is given twice",
        "",
    ),
    "a column is missing": (
        ROWS,
        {"seq": "note"},
        TableForm(),
        "the table has no column seq",
        "--set seq=NUMBER",
    ),
    "no usable row": ([row(3, 1, 0.9)], {}, TableForm(), "none of the 1 rows", ""),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_message_and_nothing_is_written(mistake: str, tmp_path: Path) -> None:
    rows, rename, form, message, hint = MISTAKES[mistake]
    with pytest.raises(InvalidInput) as raised:
        imported(tmp_path, rows, rename, form=form)
    assert message in raised.value.message
    assert hint in (raised.value.hint or "")
    assert [path.name for path in tmp_path.iterdir()] == ["sweep.csv"]


def test_a_slow_table_is_taken_where_its_unit_is_said(tmp_path: Path) -> None:
    form = TableForm(columns={"step_time_s": "step_time_s:s"})
    assert imported(tmp_path, in_unit(1000.0), form=form).taken_rows == 5


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not a CSV table: it is empty"),
        (b"a\n1\n1,2\n", "row 2 has more cells"),
        (b"seq,tp\n", "no rows"),
        (b'a,b\n1,"2\n', "CSV"),
        (b"\xff\xfe\x00", "CSV"),
    ],
)
def test_files_that_are_no_tables(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_bytes(content)
    with pytest.raises(InvalidInput, match=message):
        api.import_table(tmp_path / "x.csv", store=str(tmp_path / "s.db"))
    with pytest.raises(NotFound, match="no such file"):
        api.import_table(tmp_path / "none.csv", store=str(tmp_path / "s.db"))
    with pytest.raises(NotFound, match="it is a folder"):
        api.import_table(tmp_path, store=str(tmp_path / "s.db"))
    assert not (tmp_path / "s.db").exists()


def test_rows_without_hardware_are_of_the_given_cluster(tmp_path: Path) -> None:
    bare = [{key: value for key, value in one.items() if key != "hardware"} for one in ROWS]
    found = imported(tmp_path, bare, cluster="dgx-h100")
    assert found.problems[0].problem["device"] == "h100-80gb"
    mfu = api.best("sweep", top=1, store=str(tmp_path / "s.db"))[0].standing.mfu
    (tmp_path / "other").mkdir()
    on_a100 = imported(tmp_path / "other")
    assert on_a100.taken_rows == 5
    slower = api.best("sweep", top=1, store=str(tmp_path / "other" / "s.db"))[0].standing.mfu
    assert mfu is not None
    assert slower is not None
    assert mfu < slower, "the same speed is a smaller share of a faster device's peak"
    elsewhere = imported(
        tmp_path / "other", (*ROWS, row(4, 1, 1.0)), cluster="dgx-a100-80gb", name="mine"
    )
    assert (elsewhere.taken_rows, elsewhere.known_rows) == (1, 5)
    with pytest.raises(InvalidInput, match="measured on a100-80gb, not on h100"):
        imported(tmp_path / "other", cluster="dgx-h100")


def test_what_imported_campaigns_cannot_do_is_said(tmp_path: Path) -> None:
    imported(tmp_path)
    store = str(tmp_path / "s.db")
    recipe = api.best(store=store)[0].recipe_id
    with pytest.raises(InvalidInput, match="holds an imported table"):
        api.resume(store=store)
    with pytest.raises(InvalidInput, match="of an imported table"):
        api.profile(recipe, store=store)
    with pytest.raises(InvalidInput, match="is imported"):
        api.fit_campaign(store=store)
