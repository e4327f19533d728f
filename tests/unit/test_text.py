"""Formats of numbers and outside text, and where the store is."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frontrunner.config.settings import run_root, store_url
from frontrunner.text import counted, gib, node_time, percent, plain, seconds, size, thousands


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0 ms"),
        (0.0081234, "8.12 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1 s"),
        (1.254, "1.25 s"),
        (99.4, "99.4 s"),
        (100.0, "1 min 40 s"),
        (200.0, "3 min 20 s"),
        (5999.9, "99 min 59 s"),
        (7500.0, "2 h 05 min"),
        (float("nan"), "-"),
        (float("inf"), "-"),
    ],
)
def test_seconds_formats_durations(value: float, text: str) -> None:
    assert seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.1234, "0.123"),
        (0.0000211, "0.0000211"),
        (0.0, "0"),
        (4.561, "4.56"),
        (99.96, "100"),
        (789.4, "789"),
        (12345.0, "12,345"),
        (float("nan"), "-"),
    ],
)
def test_thousands_formats_rates(value: float, text: str) -> None:
    assert thousands(value) == text


@pytest.mark.parametrize(
    ("node_seconds", "text"),
    [
        (0.0, "0 node-seconds"),
        (0.076, "0.076 node-seconds"),
        (35.9, "35.9 node-seconds"),
        (36.0, "0.01 node-hours"),
        (3600.0 * 12345, "12,345 node-hours"),
    ],
)
def test_node_time_changes_unit(node_seconds: float, text: str) -> None:
    assert node_time(node_seconds) == text


def test_percent_gib_size_and_counted() -> None:
    assert (percent(0.4051), percent(0.4051, 0), percent(None)) == ("40.5 %", "41 %", "-")
    assert gib(1.5 * 2**30) == "1.50"
    assert [size(number) for number in (100, 2**16, 1.5 * 2**20, 62 * 2**30)] == [
        "100 B",
        "64 KiB",
        "1.5 MiB",
        "62 GiB",
    ]
    assert (counted(1, "row"), counted(2000, "row")) == ("1 row", "2,000 rows")


@given(text=st.text())
def test_plain_leaves_no_control_characters(text: str) -> None:
    assert all(c.isprintable() or c == "\n" for c in plain(text))


def test_plain_keeps_what_is_readable() -> None:
    assert plain("größe\n\x1b[31mred\r") == "größe\n\\x1b[31mred\\r"


def test_store_url_is_flag_then_environment_then_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FRONTRUNNER_STORE", raising=False)
    assert store_url() == "frontrunner.db"
    assert store_url(from_file="file.db") == "file.db"
    monkeypatch.setenv("FRONTRUNNER_STORE", "environment.db")
    assert store_url(from_file="file.db") == "environment.db"
    assert store_url("flag.db", from_file="file.db") == "flag.db"
    assert store_url("") == ""  # refused where it is opened, not taken for no flag at all


@pytest.mark.parametrize("url", ["{}/s.db", "sqlite:///{}/s.db"])
def test_run_root_is_next_to_an_sqlite_store(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FRONTRUNNER_RUNS", raising=False)
    assert run_root(url.format(tmp_path)) == tmp_path.resolve() / "frontrunner-runs"


def test_run_root_of_another_database_is_in_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FRONTRUNNER_RUNS", raising=False)
    monkeypatch.chdir(tmp_path)
    assert run_root("postgresql://host/db") == Path.cwd() / "frontrunner-runs"
    assert run_root("s.db", from_file="runs") == Path.cwd() / "runs"
    monkeypatch.setenv("FRONTRUNNER_RUNS", str(tmp_path / "elsewhere"))
    assert run_root("s.db", from_file="runs") == (tmp_path / "elsewhere").resolve()
