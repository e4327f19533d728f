"""A campaign as a table, and the table as a file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from frontrunner.results.frames import COLUMN_TYPES, frame, write_frame
from frontrunner.results.outcome import Failure, FailureKind
from frontrunner.results.store import Store
from frontrunner.results.writer import CampaignWriter
from frontrunner.spaces.errors import InvalidInput, NotFound
from support.limits import fill, small_disk
from support.rankings import TOKENS_PER_STEP, measurement, recipe, record, start


@pytest.fixture
def writer(store: Store) -> CampaignWriter:
    return start(store, "ranked")


class TestFrame:
    @pytest.fixture
    def filled(self, store: Store, writer: CampaignWriter) -> Store:
        record(
            writer,
            "aaaa",
            measurement((0.5, 0.7), 10**9),
            measurement((0.6, 0.6), 2 * 10**9),
            number=1,
        )
        record(
            writer,
            "bbbb",
            Failure(kind=FailureKind.HUNG, message="no step in 120 s, then killed", node_seconds=4),
        )
        writer.start_attempt(writer.propose("cccc", recipe(3)), run_folder="running")
        return store

    def test_one_row_for_each_finished_attempt(self, filled: Store) -> None:
        table = frame(filled, None)
        assert list(table.columns) == list(COLUMN_TYPES)
        assert list(table["recipe_id"]) == ["aaaa", "aaaa", "bbbb"]
        assert list(table["attempt_number"]) == [1, 2, 1]
        assert list(table["peak_memory_bytes_max_rank"][:2]) == [10**9, 2 * 10**9]
        assert table["tokens_per_s"][0] == pytest.approx(TOKENS_PER_STEP / 0.6)
        assert table["data_parallel"][0] == 4
        assert table["micro_batch_seqs"][0] == 2
        assert table["failure_kind"][2] == "hung"
        assert table[["tokens_per_s", "tokens_per_step", "loss_last"]].iloc[2].isna().all()

    def test_a_campaign_without_outcomes_has_the_columns_all_the_same(
        self, store: Store, writer: CampaignWriter
    ) -> None:
        table = frame(store, None)
        assert (len(table), list(table.columns)) == (0, list(COLUMN_TYPES))

    @pytest.mark.parametrize("suffix", [".csv", ".parquet"])
    def test_what_is_written_reads_back(self, filled: Store, tmp_path: Path, suffix: str) -> None:
        import pandas as pd

        table = frame(filled, None)
        path = tmp_path / f"out{suffix}"
        path.write_text("an older file")
        write_frame(table, path)
        if suffix == ".csv":
            read = pd.read_csv(path, parse_dates=["started_at", "finished_at"]).astype(COLUMN_TYPES)
        else:
            read = pd.read_parquet(path)
        pd.testing.assert_frame_equal(read, table)
        assert sorted(
            file.name for file in tmp_path.iterdir() if file.name.startswith((".", "out"))
        ) == [path.name]

    def test_what_cannot_be_written_is_refused_and_leaves_nothing(
        self, filled: Store, tmp_path: Path
    ) -> None:
        table = frame(filled, None)
        with pytest.raises(InvalidInput, match=r"\.csv or \.parquet"):
            write_frame(table, tmp_path / "out.xlsx")
        with pytest.raises(NotFound, match="no folder"):
            write_frame(table, tmp_path / "absent" / "out.csv")
        assert [file.name for file in tmp_path.iterdir() if "out" in file.name] == []


def test_parquet_without_pyarrow_names_the_extra(tmp_path: Path) -> None:
    """In a process of its own, where pyarrow is kept from being imported before pandas looks for
    it.
    """
    script = """
import sys
sys.modules["pyarrow"] = None
import pandas
from pathlib import Path
from frontrunner.results.frames import write_frame
from frontrunner.spaces.errors import InvalidInput
try:
    write_frame(pandas.DataFrame({"a": [1]}), Path(sys.argv[1]) / "out.parquet")
except InvalidInput as error:
    print(error.message, "|", error.hint)
"""
    done = subprocess.run(
        [sys.executable, "-P", "-c", script, tmp_path], capture_output=True, text=True, check=True
    )
    assert "frontrunner[parquet]" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_told_with_the_file_s_name(
    writer: CampaignWriter, store: Store, tmp_path: Path
) -> None:
    record(writer, "aaaa", measurement((0.5,), 10**9))
    table = frame(store, None)
    with small_disk(tmp_path / "small", mib=1) as disk:
        fill(disk)
        with pytest.raises(
            InvalidInput, match=r"small/x\.csv cannot be written: No space left on device"
        ):
            write_frame(table, disk / "x.csv")
        assert [path.name for path in disk.iterdir()] == ["ballast"]
