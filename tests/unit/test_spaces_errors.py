"""How values, keys and names are shown and taken."""

from __future__ import annotations

import sys
from datetime import date
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frontrunner.spaces.errors import (
    CAMPAIGN_NAME,
    MOST_CHARACTERS,
    bad_value,
    campaign_name_from,
    did_you_mean,
    installing,
    shown,
    shown_key,
)
from frontrunner.spaces.validation import Config, inlined_schema


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "true"),
        (3, "3"),
        (2.5, "2.5"),
        (float("nan"), "nan"),
        ('say "no"', '"say \\"no\\""'),
        ("a\nb\tc\x1b[31m", '"a\\nb\\tc\\u001b[31m"'),
        ([1, "x", False], '[1, "x", false]'),
        ({"a": {"b c": 1}}, '{a = {"b c" = 1}}'),
        (date(2024, 2, 29), "2024-02-29"),
    ],
)
def test_values_are_shown_as_toml_writes_them(value: object, text: str) -> None:
    assert shown(value) == text


SCALARS = st.text() | st.integers() | st.floats() | st.booleans() | st.none()
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=10
)


@given(value=VALUES)
def test_whatever_is_shown_is_one_short_printable_line(value: object) -> None:
    text = shown(value)
    assert len(text) <= MOST_CHARACTERS
    assert text.isprintable()


@pytest.mark.parametrize(
    "value",
    ["x" * 10**6, 16**10_000, [[1] * 1000] * 1000, {str(n): n for n in range(10_000)}],
    ids=["text", "number", "list", "table"],
)
def test_long_values_are_cut(value: object) -> None:
    assert len(shown(value)) <= MOST_CHARACTERS


def test_keys_that_toml_must_quote_are_quoted() -> None:
    assert shown_key("model.layers") == "model.layers"
    assert shown_key("my key") == '"my key"'
    assert shown_key("\x1b[2J") == '"\\u001b[2J"'


def test_nothing_given_reads_as_missing() -> None:
    complaint = bad_value("model.max_positions", None, "a number")
    assert complaint.message == "model.max_positions is missing: expected a number"


def test_hints_name_the_nearest_word_or_all() -> None:
    assert did_you_mean("layer", ["layers", "hidden"]) == "did you mean 'layers'?"
    assert did_you_mean("zzz", ["layers", "hidden"]) == "known: hidden, layers"
    assert did_you_mean("zzz", []) is None
    assert did_you_mean("moe", ["model"]) == "a mixture's experts are counted by model.experts"
    assert "`dualpipev`" in (did_you_mean("chimera", ["1f1b"]) or "")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("laptop", "laptop"),
        ("22B run (2)", "22b-run-2"),
        ("...", "campaign"),
        ("x" * 100, "x" * 64),
        ("Größe", "gr-e"),
    ],
)
def test_a_name_is_made_from_a_file_name(text: str, name: str) -> None:
    assert campaign_name_from(text) == name


@given(text=st.text())
def test_a_name_made_from_any_text_is_legal(text: str) -> None:
    assert CAMPAIGN_NAME.fullmatch(campaign_name_from(text))


@pytest.mark.parametrize(
    ("found", "command"),
    [
        (object(), "'/of mine/bin/python' -m pip install{constraints} 'frontrunner[report]'"),
        (None, "uv pip install --python '/of mine/bin/python'{constraints} 'frontrunner[report]'"),
    ],
)
def test_a_package_is_installed_in_the_environment_at_hand(
    found: object, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", "/of mine/bin/python")
    monkeypatch.setattr(
        "frontrunner.spaces.errors.PathFinder.find_spec", lambda name: {"pip": found}[name]
    )
    monkeypatch.setattr("frontrunner.spaces.errors.CONSTRAINTS", tmp_path / "c.txt")
    assert installing("frontrunner[report]") == command.format(constraints="")
    (tmp_path / "c.txt").touch()
    assert installing("frontrunner[report]") == command.format(constraints=f" -c {tmp_path}/c.txt")


def test_telling_how_a_package_is_installed_warns_of_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(
        sys.modules, "distutils", ModuleType("distutils")
    )  # setuptools warns where pip is looked for
    assert "'frontrunner[report]'" in installing("frontrunner[report]")


class Leaf(Config):
    """A table without tables."""

    size: int = 1


class Tree(Config):
    """A table that may hold tables of its own kind."""

    left: Leaf = Leaf()
    right: Leaf = Leaf()
    branches: tuple[Tree, ...] = ()


def test_the_schema_of_a_table_that_holds_its_own_kind_ends() -> None:
    """Its own kind is any table there; another kind is written out wherever it stands."""
    found = inlined_schema(Tree)["properties"]
    assert found["branches"]["items"] == {"type": "object"}
    for side in ("left", "right"):
        assert found[side]["properties"]["size"]["type"] == "integer"
    assert "$ref" not in str(found)
