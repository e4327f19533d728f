"""Report of a campaign as one HTML file that needs no network and no other file."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from typing import Any

from frontrunner import __version__
from frontrunner.results.outcome import Measurement, ProbeEnding
from frontrunner.results.predictions import outlook_of
from frontrunner.results.ranking import RankedRecipe
from frontrunner.results.records import IMPORTED, Campaign
from frontrunner.search.budget import outlook_in_words
from frontrunner.search.spec import CampaignSpec
from frontrunner.text import count, counted, minute, node_time, percent, plain, seconds, thousands
from frontrunner.views.charts import FIGURES
from frontrunner.views.charts.data import Chart, Collected, Missing, Table
from frontrunner.views.charts.landscape import ranking_table
from frontrunner.views.charts.render import javascript
from frontrunner.views.columns import ORIGINS, figures_in_words

TOP = 10
MOST_FAILURES = 200
MOST_ROWS = 500
LONG_WORDS = 16
NUMBER = re.compile(r"-|[+-]?[\d.,]+(e[+-]?\d+)?( (%|s|ms))?")


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
    from jinja2 import Environment, PackageLoader, StrictUndefined

    campaign, ranking, script = collected.campaign, collected.ranking, javascript()
    templates = Environment(
        loader=PackageLoader("frontrunner", "views"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        finalize=lambda value: plain(value) if type(value) is str else value,  # not of what is escaped already
    )
    templates.filters |= {"json": partial(json.dumps, allow_nan=False, separators=(",", ":"))}
    templates.filters |= {"marks": _marks, "node_time": node_time}
    values: dict[str, Any] = {
        "digest": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        "style": files("frontrunner.views").joinpath("report.css").read_text(encoding="utf-8"),
        "titles": {name: title for name, (title, _) in FIGURES.items()},
        "origin": ORIGINS.get(campaign.figures),
        "warnings": list(warnings(collected)),
        "facts": facts_of(collected, spec),
        "version": __version__,
        "most_rows": MOST_ROWS,
        "most_failures": MOST_FAILURES,
    }
    if ranking:
        memory_bytes = collected.problem.cluster.memory_bytes_per_device
        values["figures"] = figures_in_words(ranking[0].standing, memory_bytes)
        values["commands"] = _commands(ranking[0], elsewhere)
        values["fastest"] = ranking_table(ranking[:TOP])
    return templates.get_template("report.html").render(
        campaign=campaign, ranking=ranking, failed=collected.failed, charts=charts, script=script, **values
    )


def _commands(best: RankedRecipe, elsewhere: Elsewhere) -> dict[str, str]:
    recipe, option = best.recipe_id, elsewhere.option
    found = {}
    if best.figures != "imported" and elsewhere.server is not None:
        found[f"frontrunner export {recipe} --to recipe --out {recipe}.json{option}"] = "keep it as a file"
        found[f"frontrunner replay {recipe}.json --steps 1000"] = "train with it"
    elif best.figures != "imported":
        train = f"frontrunner replay {recipe} --steps 1000"
        found |= {train + option: "train with it", f"{train} --print-command{option}": "print the command of its ranks"}
    return found | {f"frontrunner show {recipe}{option}": "see why it ranks first"}


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
            f"{counted(rough, 'probe')} ended early, clearly slower than the best recipe: the figures of "
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
    budget = spec.budget
    limits = {"probes": budget.probes, "minutes": budget.minutes, "node-hours": budget.node_hours}
    facts = {
        "model": f"{model.name}: {count(model.parameters)} parameters, {model.layers} layers of width {model.hidden:,}",
        "problem": f"sequences of {problem.sequence_length:,} tokens, global batch {problem.global_batch}, "
        f"{problem.precision}",
        "machine": f"{cluster.name}: {counted(cluster.nodes, 'node')} of {cluster.devices_per_node} x "
        f"{cluster.device}, {cluster.memory_gib_per_device:g} GiB each"
        + ("" if peak is None else f", peak {thousands(peak / 1e12)} TFLOPS in {problem.precision}"),
        "search": f"{campaign.strategy} over {campaign.legal_recipes:,} legal recipes, seed {spec.search.seed}",
        "tried": f"{len(collected.ranking)} recipes measured, {failed}",
        "budget": ", ".join(f"{value:,g} {what}" for what, value in limits.items() if value is not None) or "no limit",
        "spent": _spent(campaign, collected),
        "dates": f"begun {minute(campaign.created_at)} UTC, last changed {minute(campaign.updated_at)} UTC",
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


def _marks(table: Table) -> list[str]:
    columns = list(zip(*table.rows, strict=True)) or [()] * len(table.header)
    return [
        "number" if all(map(NUMBER.fullmatch, column)) else "words" if max(map(len, column)) > LONG_WORDS else ""
        for column in columns
    ]
