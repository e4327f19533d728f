"""Arithmetic of bash, computed without running it: the expression of `$((...))` or `((...))`.

The rules are bash's (its manual, section 6.5): whole numbers of 64 bits, division toward zero,
`010` is 8, and a name needs no `$`. A value that is not known is a text that says why. Bitwise
operators, assignments, `++` and variables that hold more than a number are not computed.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable

MAX_TOKENS = 100
"""Of one expression; more of them could be nested too deeply for this reader."""
_TOKEN = re.compile(r"\*\*|<=|>=|==|!=|&&|\|\||\+\+|--|[-+*/%<>!()?:]|\w+|\S", re.ASCII)
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_NUMBERS = {r"0[xX][0-9a-fA-F]{1,16}": 16, r"0[0-7]{0,22}": 8, r"[1-9][0-9]{0,18}": 10}
_UNKNOWN = re.compile(r"\$\{?\w+\}?|[$`].*", re.ASCII)
_LEVELS = {
    symbol: level
    for level, symbols in enumerate(
        ("||", "&&", "== !=", "< > <= >=", "+ -", "* / %", "**"), start=1
    )
    for symbol in symbols.split()
}


def computed(text: str, value_of: Callable[[str], str | None]) -> int | str:
    """Return the value of an expression, or why it is not known.

    `value_of` gives the text of a variable, or None for one that the script does not assign.
    """
    if unknown := _UNKNOWN.search(text):
        return f"{_brief(unknown[0])} is not known here"
    if not text.strip():
        return 0
    try:
        return _Expression(text, value_of).value()
    except _NotRead:
        return f'"{_brief(text)}" is not computed here'


def _brief(text: str) -> str:
    """Return the beginning of a text, on one line."""
    text = " ".join(text.split())
    return text if len(text) <= 60 else f"{text[:57]}..."


class _NotRead(Exception):
    """An expression that has something else than what is computed here."""


class _Expression:
    def __init__(self, text: str, value_of: Callable[[str], str | None]) -> None:
        self._tokens, self._at = _TOKEN.findall(text), 0
        self._value_of = value_of
        if len(self._tokens) > MAX_TOKENS:
            raise _NotRead

    def value(self) -> int | str:
        found = self._choice()
        if self._at < len(self._tokens):
            raise _NotRead
        return found

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _take(self, expected: str = "") -> str:
        token = self._peek()
        if not token or (expected and token != expected):
            raise _NotRead
        self._at += 1
        return token

    def _choice(self) -> int | str:
        test = self._binary(1)
        if self._peek() != "?":
            return test
        self._take()
        chosen = self._choice()
        self._take(":")
        otherwise = self._choice()
        if isinstance(test, str):
            return test
        return chosen if test else otherwise

    def _binary(self, least: int) -> int | str:
        left = self._operand()
        while (level := _LEVELS.get(self._peek(), 0)) >= least:
            symbol = self._take()
            is_left_first = symbol != "**"
            left = _applied(symbol, left, self._binary(level + is_left_first))
        return left

    def _operand(self) -> int | str:
        if self._peek() == "(":
            self._take()
            value = self._choice()
            self._take(")")
            return value
        symbol = self._take()
        if symbol in ("+", "-", "!"):
            value = self._operand()
            if isinstance(value, str):
                return value
            return {"+": value, "-": -value, "!": int(not value)}[symbol]
        return self._variable(symbol) if _NAME.fullmatch(symbol) else _number(symbol)

    def _variable(self, name: str) -> int | str:
        text = self._value_of(name)
        if text is None:
            return f"{name} is not assigned before"
        if unknown := _UNKNOWN.search(text):
            return f"{name} is {_brief(unknown[0])}, which is not known here"
        digits = text.strip() or "0"
        try:
            return -_number(digits[1:]) if digits.startswith("-") else _number(digits)
        except _NotRead:
            return f'{name} is "{_brief(text)}", which is no number'


def _number(token: str) -> int:
    for form, base in _NUMBERS.items():
        if re.fullmatch(form, token) and (value := int(token, base)) < 2**63:
            return value
    raise _NotRead


def _quotient(left: int, right: int) -> int:
    magnitude = abs(left) // abs(right)
    return magnitude if (left < 0) == (right < 0) else -magnitude


_COMPUTED: dict[str, Callable[[int, int], int]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
    "<=": operator.le,
    ">=": operator.ge,
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": _quotient,
    "%": lambda left, right: left - right * _quotient(left, right),
    "**": operator.pow,
}


def _applied(symbol: str, left: int | str, right: int | str) -> int | str:  # noqa: PLR0911
    if isinstance(left, str):
        return left
    if symbol in ("&&", "||") and bool(left) == (symbol == "||"):
        return int(bool(left))  # whatever the right side is
    if isinstance(right, str):
        return right
    if symbol in ("&&", "||"):
        return int(bool(right))
    if symbol in ("/", "%") and right == 0:
        return f"{left} {symbol} 0 divides by 0"
    if symbol == "**" and right < 0:
        return f"{left} ** {right} has a negative exponent"
    is_huge = symbol == "**" and abs(left) > 1 and right > 64
    value = 2**64 if is_huge else int(_COMPUTED[symbol](left, right))
    if not -(2**63) <= value < 2**63:
        return f"{left} {symbol} {right} does not fit in 64 bits"
    return value
