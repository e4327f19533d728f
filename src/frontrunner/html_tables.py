"""Small HTML tables of escaped text, without script or style: what notebooks show of our values."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from frontrunner.text import plain


def table(header: Sequence[str], rows: Iterable[Sequence[str]], *, caption: str = "") -> str:
    """A table; every cell is taken as text."""
    head = "".join(f"<th>{escaped(cell)}</th>" for cell in header)
    body = "".join("<tr>" + "".join(f"<td>{escaped(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    top = f"<caption>{escaped(caption)}</caption>" if caption else ""
    return f"<table>{top}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def facts(title: str, pairs: Iterable[tuple[str, str]]) -> str:
    """What is known of one thing, a line each."""
    rows = "".join(f"<tr><th>{escaped(name)}</th><td>{escaped(value)}</td></tr>" for name, value in pairs)
    return f"<table><caption>{escaped(title)}</caption><tbody>{rows}</tbody></table>"


def escaped(text: str) -> str:
    """Text from outside as HTML, control characters shown."""
    return html.escape(plain(text))
