"""What stands at the top of a report: the best recipe and how to run it, the problem, the budget and what was spent."""

from __future__ import annotations

import shlex
from collections import Counter
from dataclasses import dataclass

from frontrunner.evaluators.insight.collected import Collected
from frontrunner.results.outcome import Measurement, Outcome, ProbeEnding
from frontrunner.results.predictions import outlook_shares
from frontrunner.results.ranking import RankedRecipe
from frontrunner.results.records import IMPORTED, Campaign
from frontrunner.search.spec import Budget, CampaignSpec
from frontrunner.search.stopping import outlook_in_words
from frontrunner.search.strategy import Outlook
from frontrunner.spaces.problem import Problem
from frontrunner.text import count, node_time, percent, seconds, thousands
from frontrunner.views.charts.chart import Table
from frontrunner.views.charts.landscape import ranking_table
from frontrunner.views.columns import ORIGINS, figures_in_words

TOP = 10


@dataclass(frozen=True, kw_only=True)
class Head:
    """Plain text throughout: whoever draws it escapes it.

    `notice` says where the figures come from if this campaign did not measure them. `facts` are (what, how much);
    `figures` and `commands` (what it is for, the command) are of the best recipe, empty before the first measurement.
    """

    campaign: str
    state: str
    notice: str
    warnings: tuple[str, ...]
    facts: tuple[tuple[str, str], ...]
    best: str
    figures: tuple[tuple[str, str], ...]
    commands: tuple[tuple[str, str], ...]
    ranking: Table


@dataclass(frozen=True, kw_only=True)
class Elsewhere:
    """What the commands of a report name, where they would not find it themselves: a store, or a service's URL."""

    store: str | None = None
    server: str | None = None

    @property
    def option(self) -> str:
        """What is added to a command, with a blank before it."""
        if self.server is not None:
            return f" --server {shlex.quote(self.server)}"
        return f" --store {shlex.quote(self.store)}" if self.store else ""


def head(collected: Collected, spec: CampaignSpec, elsewhere: Elsewhere) -> Head:
    """The head of a campaign's report."""
    campaign, ranking = collected.campaign, collected.ranking
    best = ranking[0] if ranking else None
    reason = f": {campaign.state_reason}" if campaign.state_reason else ""
    return Head(
        campaign=campaign.name,
        state=f"{campaign.state}{reason}",
        notice=ORIGINS.get(campaign.figures, ""),
        warnings=tuple(_warnings(collected)),
        facts=tuple(_facts(collected, spec)),
        best="" if best is None else f"{best.recipe_id}  {best.recipe.describe()}",
        figures=() if best is None else _figures(best, collected),
        commands=() if best is None else _commands(best, elsewhere),
        ranking=ranking_table(ranking[:TOP]),
    )


def _warnings(collected: Collected) -> list[str]:
    """What a reader should know before trusting the first place."""
    ranking, found = collected.ranking, []
    if not ranking:
        return ["No recipe has been measured, so there is none to recommend."]
    first = ranking[0].standing
    if first.is_noisy:
        found.append(
            f"The best recipe's step times spread by {percent(first.step_time_spread)}: measure again before relying "
            "on small gaps."
        )
    if len(ranking) > 1:
        spread = 100 * max(first.step_time_spread, ranking[1].standing.step_time_spread)
        if ranking[1].gap_percent <= spread:
            found.append(
                f"The second recipe, {ranking[1].recipe_id}, is {ranking[1].gap_percent:.1f} % behind, within the "
                f"spread of {spread:.1f} %: another measurement could turn the two round."
            )
    rough = sum(_is_rough(ended.outcome) for ended in collected.attempts)
    if rough:
        found.append(
            f"{rough} probe{'s' if rough > 1 else ''} ended early, clearly slower than the best recipe: such figures "
            "are rough, and so is what the page tells of slow recipes."
        )
    if not collected.problem.global_batch.is_fixed:
        found.append("The global batch is a range: recipes with other batches do not train the same mathematics.")
    return found


def _is_rough(outcome: Outcome) -> bool:
    return isinstance(outcome, Measurement) and outcome.ended is ProbeEnding.SLOWER


def _figures(best: RankedRecipe, collected: Collected) -> tuple[tuple[str, str], ...]:
    return tuple(figures_in_words(best.standing, collected.problem.cluster.memory_bytes_per_device))


def _commands(best: RankedRecipe, elsewhere: Elsewhere) -> tuple[tuple[str, str], ...]:
    """Commands with what each is for; what a table says cannot be replayed, and no replay asks a service."""
    recipe, named = best.recipe_id, elsewhere.option
    show = ("see why it ranks first", f"frontrunner show {recipe}{named}")
    if best.figures == "imported":
        return (show,)
    if elsewhere.server is not None:
        kept = f"frontrunner export {recipe} --to recipe --out {recipe}.json{named}"
        return (show, ("keep it as a file", kept), ("train with it", f"frontrunner replay {recipe}.json --steps 1000"))
    replay = f"frontrunner replay {recipe} --steps 1000"
    return (
        ("train with it", f"{replay}{named}"),
        ("print the command of its ranks", f"{replay} --print-command{named}"),
        show,
    )


def _facts(collected: Collected, spec: CampaignSpec) -> list[tuple[str, str]]:
    campaign = collected.campaign
    kinds = Counter(row.failure.kind.value for row in collected.failed)
    failed = ", ".join(f"{number} {kind}" for kind, number in kinds.most_common()) or "none failed"
    probes, answers = len(collected.attempts) - collected.answers, collected.answers
    answered = f"{answers} recipes answered from earlier campaigns, " if answers else ""
    facts = [
        *_problem(collected.problem),
        ("search", f"{campaign.strategy} over {campaign.legal_recipes:,} legal recipes, seed {spec.search.seed}"),
        ("tried", f"{len(collected.ranking)} recipes measured, {failed}"),
        ("budget", _budget(spec.budget)),
        ("spent", _spent(campaign, f"{probes} probes, {answered}")),
        ("dates", f"begun {_minute(campaign.created_at)}, last changed {_minute(campaign.updated_at)}"),
    ]
    if collected.outlook is not None:
        facts.append(("left to gain", outlook_in_words(Outlook(**outlook_shares(collected.outlook)))))
    return facts


def _spent(campaign: Campaign, probes: str) -> str:
    if campaign.figures == IMPORTED:
        return "nothing here: the table's rows were measured elsewhere"
    return f"{probes}{node_time(campaign.node_seconds_spent)}, {seconds(campaign.driver_seconds)} of driving"


def _problem(problem: Problem) -> list[tuple[str, str]]:
    model, cluster = problem.model, problem.cluster
    peak = cluster.peak_flops(problem.precision)
    peak_words = "" if peak is None else f", peak {thousands(peak / 1e12)} TFLOPS in {problem.precision}"
    return [
        (
            "model",
            f"{model.name}: {count(model.parameters)} parameters, {model.layers} layers of width {model.hidden:,}",
        ),
        (
            "problem",
            f"sequences of {problem.sequence_length:,} tokens, global batch {problem.global_batch}, "
            f"{problem.precision}",
        ),
        (
            "machine",
            f"{cluster.name}: {_nodes(cluster.nodes)} of {cluster.devices_per_node} x {cluster.device}, "
            f"{cluster.memory_gib_per_device:g} GiB each{peak_words}",
        ),
    ]


def _nodes(nodes: int) -> str:
    return f"{nodes:,} node{'s' if nodes > 1 else ''}"


def _budget(budget: Budget) -> str:
    limits = {"probes": budget.probes, "minutes": budget.minutes, "node-hours": budget.node_hours}
    return ", ".join(f"{value:,g} {what}" for what, value in limits.items() if value is not None) or "no limit"


def _minute(moment: str) -> str:
    return f"{moment[:16].replace('T', ' ')} UTC"
