"""A report as one HTML file that needs nothing else: no network, no other file.

Plotly's script is part of the page. A content security policy keeps whatever runs there from loading or sending
anything, and lets only the page's own three scripts run, which it names by their hashes: text that comes from logs and
files is escaped, and could not become a script if it were not.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Iterable, Sequence
from importlib.resources import files

from frontrunner.results.status import FailedTrial
from frontrunner.text import node_time, plain
from frontrunner.views.charts.catalogue import Drawn
from frontrunner.views.charts.chart import Chart, Table
from frontrunner.views.charts.head import Head
from frontrunner.views.charts.plotly_figure import plotly_figure

MOST_FAILURES = 200
"""So many failed recipes are listed with their logs; the commands list them all."""
MOST_ROWS = 500
"""Of a table beside a figure."""
LONG_WORDS = 16
"""Columns with longer text are kept broad, whatever the page's width."""


def page(head: Head, figures: Sequence[Drawn], failed: Sequence[FailedTrial], *, plotly_js: str, version: str) -> str:
    """The whole page."""
    data = {figure.name: plotly_figure(figure.chart) for figure in figures if isinstance(figure.chart, Chart)}
    scripts = {"": plotly_js, "draw": _shipped("page.js")}
    body = [_head(head), _contents(figures)]
    body += [_figure(figure) for figure in figures]
    body.append(_failures(failed))
    body.append(f"<footer>frontrunner {_text(version)}. Formulas of the figures: docs/reports.md.</footer>")
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_policy(scripts.values())}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>frontrunner: {_text(head.campaign)}</title>",
            f"<style>{_shipped('page.css')}</style>",
            "</head>",
            "<body>",
            "<main>",
            *body,
            "</main>",
            f'<script type="application/json" id="figures">{_json(data)}</script>',
            *(f"<script>{text}</script>" for text in scripts.values()),
            "</body>",
            "</html>",
            "",
        ]
    )


def _shipped(name: str) -> str:
    return files("frontrunner.views.charts").joinpath(name).read_text(encoding="utf-8")


def _policy(scripts: Iterable[str]) -> str:
    """Nothing from elsewhere; styles and these scripts of the page's own. Plotly compiles functions for WebGL."""
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in scripts
    )
    return (
        f"default-src 'none'; script-src {hashes} 'unsafe-eval'; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def _json(value: object) -> str:
    """JSON that cannot end the element that it stands in."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _text(words: str) -> str:
    """Text from outside as HTML."""
    return html.escape(plain(words))


def _head(head: Head) -> str:
    parts = ["<header>", f"<h1>{_text(head.campaign)}</h1>", f'<p class="quiet">{_text(head.state)}</p>']
    if head.notice:
        parts.append(f'<p class="warning"><b>{_text(head.notice)}</b></p>')
    if head.best:
        shown = "".join(f"<div><b>{_text(value)}</b><span>{_text(what)}</span></div>" for value, what in head.figures)
        parts.append(f'<div class="best"><h2>Best recipe: {_text(head.best)}</h2>')
        purposes = "; ".join(purpose for purpose, _ in head.commands).capitalize()
        parts.append(f'<div class="figures">{shown}</div><p class="quiet">{_text(purposes)}:</p>')
        parts.append(f"<pre>{_text(chr(10).join(command for _, command in head.commands))}</pre></div>")
    parts += [f'<p class="warning">{_text(warning)}</p>' for warning in head.warnings]
    facts = "".join(f"<dt>{_text(what)}</dt><dd>{_text(value)}</dd>" for what, value in head.facts)
    parts.append(f"<dl>{facts}</dl>")
    if head.ranking.rows:
        parts.append(f"<h2>Fastest recipes</h2>{_table(head.ranking)}")
    parts.append("</header>")
    return "\n".join(parts)


def _contents(figures: Sequence[Drawn]) -> str:
    links = "".join(f'<a href="#{figure.name}">{_text(figure.title)}</a>' for figure in figures)
    return f'<nav aria-label="figures">{links}<a href="#failures">Failures</a></nav>'


def _figure(figure: Drawn) -> str:
    parts = [f'<section id="{figure.name}">', f"<h2>{_text(figure.title)}</h2>"]
    if isinstance(figure.chart, Chart):
        reading = " ".join((figure.chart.reading, *figure.chart.remarks))
        parts.append(f"<p>{_text(reading)}</p>")
        label = f"{figure.title}. {figure.chart.reading}"
        parts.append(f'<div class="figure" id="plot-{figure.name}" role="img" aria-label="{_text(label)}"></div>')
        parts.append(f"<details><summary>As a table</summary>{_table(figure.chart.table)}</details>")
    else:
        parts.append(f'<p class="absent">Not drawn: {_text(figure.chart.reason)}</p>')
    parts.append("</section>")
    return "\n".join(parts)


def _table(table: Table) -> str:
    """A table; columns whose cells are all numbers are set to the right."""
    columns = list(zip(*table.rows, strict=True)) or [()] * len(table.header)
    marks = [_mark(column) for column in columns]
    header = "".join(
        f'<th scope="col"{mark}>{_text(name)}</th>' for name, mark in zip(table.header, marks, strict=True)
    )
    shown, more = table.rows[:MOST_ROWS], len(table.rows) - MOST_ROWS
    rest = f"<p>{more:,} more rows: frontrunner dataframe writes them all.</p>" if more > 0 else ""
    rows = "".join(
        "<tr>" + "".join(f"<td{mark}>{_text(cell)}</td>" for cell, mark in zip(row, marks, strict=True)) + "</tr>"
        for row in shown
    )
    return f'<div class="wide"><table><thead><tr>{header}</tr></thead><tbody>{rows}</tbody></table></div>{rest}'


def _mark(column: Sequence[str]) -> str:
    """The class of a column's cells."""
    if all(_is_number(cell) for cell in column):
        return ' class="number"'
    return ' class="words"' if max(map(len, column)) > LONG_WORDS else ""


def _is_number(cell: str) -> bool:
    return cell == "-" or (cell.lstrip("+-")[:1].isdigit() and not any(c.isalpha() for c in cell.replace("e", "")))


def _failures(failed: Sequence[FailedTrial]) -> str:
    parts = ['<section id="failures">', "<h2>Failures</h2>"]
    if not failed:
        return "\n".join([*parts, "<p>No recipe of this campaign ended with a failure.</p>", "</section>"])
    parts.append(
        f"<p>{len(failed)} recipes ended with a failure. Each opens to its message and the end of its log.</p>"
    )
    parts += [_failure(row) for row in failed[:MOST_FAILURES]]
    if len(failed) > MOST_FAILURES:
        parts.append(f"<p>{len(failed) - MOST_FAILURES} more: frontrunner failures lists them all.</p>")
    return "\n".join([*parts, "</section>"])


def _failure(row: FailedTrial) -> str:
    failure, tries = row.failure, f", {row.attempts} attempts" if row.attempts > 1 else ""
    title = (
        f"<b>{_text(failure.kind.value)}</b> {_text(row.trial.recipe_id)} {_text(row.trial.recipe.describe())}{tries}"
    )
    tail = f"<pre>{_text(failure.log_tail)}</pre>" if failure.log_tail else ""
    path = f'<p class="quiet">log: {_text(failure.log_path)}</p>' if failure.log_path else ""
    cost = f'<p class="quiet">{node_time(failure.node_seconds)} in the last attempt</p>'
    body = f"<p>{_text(failure.message)}</p>{tail}{path}{cost}"
    return f'<details class="failure"><summary>{title}</summary>{body}</details>'
