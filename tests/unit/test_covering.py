"""The choice of rows that hold every pair, against plain loops."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.covering import Row, covering

FULL = [dict(zip("abcd", values, strict=True)) for values in itertools.product(range(3), repeat=4)]


def met(rows: list[Row]) -> set[tuple[object, ...]]:
    """Each two values that stand together in a row."""
    return {(f, row[f], g, row[g]) for row in rows for f in row for g in row if f < g}


def test_four_factors_of_three_values_need_few_more_than_nine_of_81_rows() -> None:
    """Nine is the least there is: an orthogonal array of strength two."""
    chosen = covering(FULL)

    assert met([FULL[position] for position in chosen]) == met(FULL)
    assert 9 <= len(chosen) <= 12


@given(st.lists(st.sampled_from(FULL), min_size=1), st.lists(st.sampled_from(FULL), max_size=3))
def test_whatever_rows_are_allowed_each_pair_of_theirs_is_covered(
    rows: list[Row], covered: list[Row]
) -> None:
    chosen = [rows[position] for position in covering(rows, covered=covered)]

    assert met(rows) <= met(chosen + covered)
    for position, row in enumerate(chosen):
        assert met([row]) - met(chosen[:position] + covered), "no row is chosen for nothing"


@pytest.mark.parametrize("rows", [FULL, FULL[::-1]])
def test_the_same_rows_give_the_same_choice(rows: list[Row]) -> None:
    assert covering(rows) == covering(list(rows))


def test_nothing_is_chosen_where_all_is_covered() -> None:
    assert covering(FULL, covered=FULL) == []
    assert covering([]) == []


def test_values_of_one_factor_may_be_of_several_types() -> None:
    rows: list[Row] = [{"a": 1, "b": "one"}, {"a": True, "b": "one"}, {"a": "1", "b": False}]

    assert covering(rows) == [0, 2]  # 1 and True are equal
