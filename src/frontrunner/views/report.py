"""Report of a campaign as one HTML file that needs no network and no other file.

The script that draws the charts is part of the page. A content security policy keeps whatever runs there from loading
or sending anything, and allows that script alone, by its hash: text from logs and files is escaped, and could not run
even if it were not.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files

from frontrunner import __version__
from frontrunner.results.outcome import Measurement, ProbeEnding
from frontrunner.results.predictions import outlook_of
from frontrunner.results.ranking import RankedRecipe
from frontrunner.results.records import IMPORTED, Campaign
from frontrunner.results.status import FailedTrial
from frontrunner.search.budget import outlook_in_words
from frontrunner.search.spec import Budget, CampaignSpec
from frontrunner.spaces.problem import Problem
from frontrunner.text import count, node_time, percent, plain, seconds, thousands
from frontrunner.views.charts import FIGURES
from frontrunner.views.charts.data import Chart, Collected, Missing, Table
from frontrunner.views.charts.landscape import ranking_table
from frontrunner.views.charts.render import javascript
from frontrunner.views.columns import ORIGINS, figures_in_words

TOP = 10
MOST_FAILURES = 200
"""Failed recipes that are listed with their logs; the commands list all."""
MOST_ROWS = 500
"""Of a chart's table."""
LONG_WORDS = 16
"""Columns with longer text stay broad, whatever the page's width."""


@dataclass(frozen=True, kw_only=True)
class Elsewhere:
    """Option of the commands that a report names, if they do not find its store by default: a store, or a service."""

    store: str | None = None
    server: str | None = None

    @property
    def option(self) -> str:
        """The option with a blank before it."""
        if self.server is not None:
            return f" --server {shlex.quote(self.server)}"
        return f" --store {shlex.quote(self.store)}" if self.store else ""


def report_page(
    collected: Collected, spec: CampaignSpec, charts: Mapping[str, Chart | Missing], elsewhere: Elsewhere
) -> str:
    """Return the whole page; `charts` are those of `FIGURES` by name."""
    script = javascript()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    style = files("frontrunner.views").joinpath("report.css").read_text(encoding="utf-8")
    links = "".join(f'<a href="#{name}">{_text(FIGURES[name][0])}</a>' for name in charts)
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>frontrunner: {_text(collected.campaign.name)}</title>",
            f"<style>{style}</style>",
            "</head>",
            "<body>",
            "<main>",
            *_header(collected, spec, elsewhere),
            f'<nav aria-label="figures">{links}<a href="#failures">Failures</a></nav>',
            *(part for name, chart in charts.items() for part in _figure(name, chart)),
            *_failures(collected.failed),
            f"<footer>frontrunner {_text(__version__)}. Formulas of the figures: docs/reports.md.</footer>",
            "</main>",
            f"<script>{script}</script>",
            "</body>",
            "</html>",
            "",
        ]
    )


def _text(words: str) -> str:
    """Escape text from outside."""
    return html.escape(plain(words))


def _header(collected: Collected, spec: CampaignSpec, elsewhere: Elsewhere) -> Iterator[str]:
    campaign, ranking = collected.campaign, collected.ranking
    reason = f": {campaign.state_reason}" if campaign.state_reason else ""
    yield f'<header><h1>{_text(campaign.name)}</h1><p class="quiet">{_text(f"{campaign.state}{reason}")}</p>'
    if campaign.figures in ORIGINS:
        yield f'<p class="warning"><b>{ORIGINS[campaign.figures]}</b></p>'
    if ranking:
        yield from _best(ranking[0], collected.problem, elsewhere)
    yield from (f'<p class="warning">{_text(warning)}</p>' for warning in warnings(collected))
    facts = "".join(f"<dt>{what}</dt><dd>{_text(value)}</dd>" for what, value in facts_of(collected, spec).items())
    yield f"<dl>{facts}</dl>"
    if ranking:
        yield f"<h2>Fastest recipes</h2>{_table(ranking_table(ranking[:TOP]))}"
    yield "</header>"


def _best(best: RankedRecipe, problem: Problem, elsewhere: Elsewhere) -> Iterator[str]:
    figures = figures_in_words(best.standing, problem.cluster.memory_bytes_per_device)
    shown = "".join(f"<div><b>{_text(value)}</b><span>{_text(what)}</span></div>" for value, what in figures)
    purposes, commands = zip(*_commands(best, elsewhere), strict=True)
    yield f'<div class="best"><h2>Best recipe: {_text(f"{best.recipe_id}  {best.recipe.describe()}")}</h2>'
    yield f'<div class="figures">{shown}</div><p class="quiet">{"; ".join(purposes).capitalize()}:</p>'
    yield "<pre>" + _text("\n".join(commands)) + "</pre></div>"


def _commands(best: RankedRecipe, elsewhere: Elsewhere) -> Iterator[tuple[str, str]]:
    """Yield what a command is for, and the command; imported rows cannot be replayed, nor can a service replay."""
    recipe, option = best.recipe_id, elsewhere.option
    if best.figures != "imported" and elsewhere.server is not None:
        yield "keep it as a file", f"frontrunner export {recipe} --to recipe --out {recipe}.json{option}"
        yield "train with it", f"frontrunner replay {recipe}.json --steps 1000"
    elif best.figures != "imported":
        yield "train with it", f"frontrunner replay {recipe} --steps 1000{option}"
        yield "print the command of its ranks", f"frontrunner replay {recipe} --steps 1000 --print-command{option}"
    yield "see why it ranks first", f"frontrunner show {recipe}{option}"


def warnings(collected: Collected) -> Iterator[str]:
    """Yield what a reader should know before trusting the first place."""
    if not collected.ranking:
        yield "No recipe has been measured, so there is none to recommend."
        return
    first, *others = (row.standing for row in collected.ranking[:2])
    if first.is_noisy:
        yield (
            f"The best recipe's step times spread by {percent(first.step_time_spread)}: measure again before relying "
            "on small gaps."
        )
    for second in others:
        gap, spread = collected.ranking[1].gap_percent, 100 * max(first.step_time_spread, second.step_time_spread)
        if gap <= spread:
            yield (
                f"The second recipe, {collected.ranking[1].recipe_id}, is {gap:.1f} % behind, within the spread of "
                f"{spread:.1f} %: another measurement could reverse their order."
            )
    outcomes = (ended.outcome for ended in collected.attempts)
    rough = sum(isinstance(found, Measurement) and found.ended is ProbeEnding.SLOWER for found in outcomes)
    if rough:
        yield (
            f"{rough} probe{'s' if rough > 1 else ''} ended early, clearly slower than the best recipe: the figures of "
            "slow recipes are rough."
        )
    if not collected.problem.global_batch.is_fixed:
        yield "The global batch is a range: recipes with other batches do not train the same mathematics."


def facts_of(collected: Collected, spec: CampaignSpec) -> dict[str, str]:
    """Return the facts under the best recipe: what was asked, what was done, and what is left to gain."""
    campaign, problem = collected.campaign, collected.problem
    model, cluster = problem.model, problem.cluster
    peak = cluster.peak_flops(problem.precision)
    kinds = Counter(row.failure.kind.value for row in collected.failed)
    failed = ", ".join(f"{number} {kind}" for kind, number in kinds.most_common()) or "none failed"
    nodes = f"{cluster.nodes:,} node{'s' if cluster.nodes > 1 else ''}"
    facts = {
        "model": f"{model.name}: {count(model.parameters)} parameters, {model.layers} layers of width {model.hidden:,}",
        "problem": f"sequences of {problem.sequence_length:,} tokens, global batch {problem.global_batch}, "
        f"{problem.precision}",
        "machine": f"{cluster.name}: {nodes} of {cluster.devices_per_node} x {cluster.device}, "
        f"{cluster.memory_gib_per_device:g} GiB each"
        + ("" if peak is None else f", peak {thousands(peak / 1e12)} TFLOPS in {problem.precision}"),
        "search": f"{campaign.strategy} over {campaign.legal_recipes:,} legal recipes, seed {spec.search.seed}",
        "tried": f"{len(collected.ranking)} recipes measured, {failed}",
        "budget": _budget(spec.budget),
        "spent": _spent(campaign, collected),
        "dates": f"begun {_minute(campaign.created_at)}, last changed {_minute(campaign.updated_at)}",
    }
    if collected.outlook is not None:
        facts["left to gain"] = outlook_in_words(outlook_of(collected.outlook)[0])
    return facts


def _spent(campaign: Campaign, collected: Collected) -> str:
    if campaign.figures == IMPORTED:
        return "nothing here: the table's rows were measured elsewhere"
    words = f"{collected.reused} recipes reused from earlier campaigns, " if collected.reused else ""
    probes = f"{len(collected.attempts) - collected.reused} probes, {words}"
    return f"{probes}{node_time(campaign.node_seconds_spent)}, {seconds(campaign.driver_seconds)} of driving"


def _budget(budget: Budget) -> str:
    limits = {"probes": budget.probes, "minutes": budget.minutes, "node-hours": budget.node_hours}
    return ", ".join(f"{value:,g} {what}" for what, value in limits.items() if value is not None) or "no limit"


def _minute(moment: str) -> str:
    return f"{moment[:16].replace('T', ' ')} UTC"


def _figure(name: str, chart: Chart | Missing) -> Iterator[str]:
    title = FIGURES[name][0]
    yield f'<section id="{name}"><h2>{_text(title)}</h2>'
    if isinstance(chart, Missing):
        yield f'<p class="absent">Not drawn: {_text(chart.reason)}</p></section>'
        return
    yield f"<p>{_text(' '.join((chart.reading, *chart.remarks)))}</p>"
    label = _text(f"{title}. {chart.reading}")
    spec = html.escape(json.dumps(chart.spec, allow_nan=False, separators=(",", ":")))
    yield f'<div class="plot" id="plot-{name}" data-chart="{spec}" role="img" aria-label="{label}"></div>'
    yield f"<details><summary>As a table</summary>{_table(chart.table)}</details></section>"


def _table(table: Table) -> str:
    """Return a table; columns of numbers are aligned to the right."""
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
    if all(_is_number(cell) for cell in column):
        return ' class="number"'
    return ' class="words"' if max(map(len, column)) > LONG_WORDS else ""


def _is_number(cell: str) -> bool:
    return re.fullmatch(r"-|[+-]?[\d.,]+(e[+-]?\d+)?( (%|s|ms))?", cell) is not None


def _failures(failed: Sequence[FailedTrial]) -> Iterator[str]:
    yield '<section id="failures"><h2>Failures</h2>'
    if failed:
        yield f"<p>{len(failed)} recipes ended with a failure. Each opens to its message and the end of its log.</p>"
    else:
        yield "<p>No recipe of this campaign ended with a failure.</p>"
    yield from (_failure(row) for row in failed[:MOST_FAILURES])
    if len(failed) > MOST_FAILURES:
        yield f"<p>{len(failed) - MOST_FAILURES} more: frontrunner failures lists them all.</p>"
    yield "</section>"


def _failure(row: FailedTrial) -> str:
    failure, tries = row.failure, f", {row.attempts} attempts" if row.attempts > 1 else ""
    recipe = _text(f"{row.trial.recipe_id} {row.trial.recipe.describe()}{tries}")
    tail = f"<pre>{_text(failure.log_tail)}</pre>" if failure.log_tail else ""
    path = f'<p class="quiet">log: {_text(failure.log_path)}</p>' if failure.log_path else ""
    cost = f'<p class="quiet">{node_time(failure.node_seconds)} in the last attempt</p>'
    return (
        f'<details class="failure"><summary><b>{_text(failure.kind.value)}</b> {recipe}</summary>'
        f"<p>{_text(failure.message)}</p>{tail}{path}{cost}</details>"
    )
