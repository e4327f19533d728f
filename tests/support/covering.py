"""Few rows of many that hold every pair of values that any row holds: pairwise testing, for rows
with rules.

Most faults of combinations need no more than two values to meet (Kuhn, Wallace and Gallo, IEEE TSE
30(6), 2004). Generators of such rows take the factors and a rule that refuses rows, and cannot know
which pairs the rule leaves possible. Here the rows that the rules allow are all there already, so
that what can be covered is covered.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence

Row = Mapping[str, int | str | bool]
Pair = tuple[tuple[str, int | str | bool], tuple[str, int | str | bool]]


def pairs_of(row: Row) -> tuple[Pair, ...]:
    """Each two (factor, value) of the row, the factors in alphabetical order."""
    return tuple(itertools.combinations(sorted(row.items()), 2))


def covering(rows: Sequence[Row], *, covered: Iterable[Row] = ()) -> list[int]:
    """The positions of the chosen rows, in the order of choice.

    Together with the rows in `covered` they hold every pair that one of `rows` holds. Greedy: the
    next is the row with the most new pairs, the first of equals, so that the same rows give the
    same choice.
    """
    numbers: dict[Pair, int] = {}
    for row in rows:
        for pair in pairs_of(row):
            numbers.setdefault(pair, len(numbers))
    # A set of pairs is the bits of a whole number: the next row is looked for by counting bits.
    sets = [_bits(row, numbers) for row in rows]
    missing = (1 << len(numbers)) - 1
    for row in covered:
        missing &= ~_bits(row, numbers)
    chosen = []
    while missing:
        gains = [(held & missing).bit_count() for held in sets]
        best = gains.index(max(gains))
        chosen.append(best)
        missing &= ~sets[best]
    return chosen


def _bits(row: Row, numbers: Mapping[Pair, int]) -> int:
    """The set of the row's pairs that have a number."""
    return sum(1 << numbers[pair] for pair in pairs_of(row) if pair in numbers)
