"""Searches over measured tables: one strategy on one problem, its probes answered by the table's
rows.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from frontrunner.evaluators.analytic.estimates import surely_too_large
from frontrunner.evaluators.analytic.simulated import simulate
from frontrunner.evaluators.tables.rows import TableProblem
from frontrunner.results.outcome import FailureKind, Measurement, Outcome
from frontrunner.search.guided.prior import Prior, prior_of
from frontrunner.search.guided.strategy import Guided
from frontrunner.search.spec import CampaignSpec, DeepHyperSettings
from frontrunner.search.strategies.candidates import Listed
from frontrunner.search.strategy import Evidence, Forecaster, Strategy, Told, make_strategy
from frontrunner.search.warm_start import MOST_EVIDENCE, distance, is_close
from frontrunner.spaces.columns import Places, RecipeColumns
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import DIMENSIONS, Choice, Recipe
from frontrunner.spaces.space import Space, Survey

CLOSE, CLOSER = 1.05, 1.01
CHECKPOINTS = (3, 5, 10, 20, 40)
ERRORS_AFTER = (0, 1, 3, 5)
"""Probes after which the error of the predictions of rows that were not probed is told."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A problem with its recipes, outcomes and predictions; `best` is the highest measured
    tokens/s, `evidence` what a warm search remembers.
    """

    name: str
    survey: Survey
    outcomes: dict[Recipe, Outcome]
    rows: int
    prior: Prior
    best: float
    evidence: Sequence[Evidence] = ()

    @classmethod
    def of(
        cls,
        table: TableProblem,
        *,
        constants: Mapping[str, float] | None = None,
        evidence: Sequence[Evidence] = (),
    ) -> Case | None:
        """None for a problem without a success; `constants` take the place of those that ship."""
        cluster = replace(
            table.problem.cluster,
            efficiencies={**table.problem.cluster.efficiencies, **(constants or {})},
        )
        table = replace(table, problem=replace(table.problem, cluster=cluster))
        outcomes = table.outcomes()
        speeds = [
            outcome.tokens_per_s
            for outcome in outcomes.values()
            if isinstance(outcome, Measurement)
        ]
        if not speeds:
            return None
        survey = survey_of(outcomes, table.problem)
        prior = prior_of(survey.recipes, table.problem)
        return cls(
            name=table.name,
            survey=survey,
            outcomes=outcomes,
            rows=len(table.rows),
            prior=prior,
            best=max(speeds),
            evidence=evidence,
        )

    @classmethod
    def simulated(cls, spec: CampaignSpec) -> Case:
        """The outcomes of a campaign's legal recipes by the evaluator `simulated`."""
        survey, setup = spec.survey(), replace(spec, run_root="").probe_setup()
        outcomes: dict[Recipe, Outcome] = {
            recipe: simulate(recipe, setup) for recipe in survey.recipes
        }
        return cls(
            name=spec.name,
            survey=survey,
            outcomes=outcomes,
            rows=len(outcomes),
            prior=prior_of(survey.recipes, survey.problem),
            best=max(one.tokens_per_s for one in outcomes.values() if isinstance(one, Measurement)),
        )


def evidence_for(target: TableProblem, problems: Iterable[TableProblem]) -> list[Evidence]:
    """The rows of close models on at most as many devices, the nearest problems' first.

    Rows that failed for an unknown reason are no evidence.
    """
    found = []
    for problem in problems:
        fewer = problem.rows[0].recipe.devices <= target.rows[0].recipe.devices
        close = is_close(problem.problem.model, target.problem.model)
        if problem is target or not fewer or not close:
            continue
        away = distance(problem.problem, target.problem)
        for recipe, outcome in problem.outcomes().items():
            if isinstance(outcome, Measurement) or outcome.kind is FailureKind.OUT_OF_MEMORY:
                evidence = Evidence(
                    problem=problem.problem, recipe=recipe, outcome=outcome, origin=problem.name
                )
                found.append((away, evidence))
    return [piece for _, piece in sorted(found, key=lambda pair: pair[0])[:MOST_EVIDENCE]]


def survey_of(recipes: Iterable[Recipe], problem: Problem) -> Survey:
    """Return the space of exactly these recipes, which is not checked again: a recipe in no row
    costs no probe.
    """
    found, neutral = list(recipes), Space().dimensions(problem.cluster)
    points = [
        {name: _choice(recipe, name, values[0]) for name, values in neutral.items()}
        for recipe in found
    ]
    dimensions = {name: tuple(dict.fromkeys(point[name] for point in points)) for name in neutral}
    places = Places.of(dimensions, points)
    return Survey(
        problem=problem, dimensions=dimensions, recipes=RecipeColumns.of(found), places=places
    )


def _choice(recipe: Recipe, name: str, neutral: Choice) -> Choice:
    """Return the choice of a dimension that names the recipe; accumulation follows from the fixed
    global batch.
    """
    dimension = DIMENSIONS[name]
    return dimension.of(recipe) if name != "accumulation" and dimension.matters(recipe) else neutral


@dataclass(frozen=True, kw_only=True)
class Run:
    """One search: the best share of the true best after each probe, which probes failed, and
    seconds an ask.

    `ends` is the number of probes after which the strategy's own forecast would have ended the
    search; `errors` are the mean errors of step times, of successes not probed yet, after some
    numbers of probes and before any.
    """

    shares: tuple[float, ...]
    failures: tuple[bool, ...]
    ends: int
    ask_s: float
    errors: dict[int, tuple[float, float]]

    def share_after(self, probes: int) -> float:
        """The best share found within so many probes; where nothing was left before, what it ended
        with.
        """
        return self.shares[min(probes, len(self.shares)) - 1] if self.shares else 0.0

    def probes_to(self, factor: float, budget: int) -> int:
        """Probes until the best found times `factor` reaches the true best; budget + 1 where it
        never does.
        """
        reached = (
            number
            for number, share in enumerate(self.shares, start=1)
            if share * factor >= 1 - 1e-12
        )
        return next(reached, budget + 1)


def made(name: str, case: Case, seed: int) -> Strategy:
    """A strategy over a case; those that know the model get the case's predictions.

    After the name: `:warm`, for guided, with the case's evidence; `:pruned`, without what surely
    does not fit; and `:failures=mean`, a setting of deephyper.
    """
    if name in ("guided", "guided:warm"):
        guided = Guided(case.survey, seed, case.prior)
        if name == "guided:warm":
            guided.remember(case.evidence)
        return guided
    if name == "model-order":
        fits = case.prior.log_fill <= 0
        order = np.lexsort((np.where(fits, -case.prior.log_speed, case.prior.log_fill), ~fits))
        return Listed([case.survey.recipes[row] for row in order])
    name, *more = name.split(":")
    too_large = surely_too_large(case.survey.recipes, case.survey.problem) & ("pruned" in more)
    survey = case.survey.keep(~too_large)
    own = dict(one.split("=") for one in more if "=" in one)
    return make_strategy(name, survey, seed, settings=DeepHyperSettings(**own) if own else None)  # type: ignore[arg-type]


def search(name: str, case: Case, *, seed: int, budget: int, stop: float) -> Run:
    """A search by a named strategy; see `run_of`."""
    return run_of(made(name, case, seed), case, budget=budget, stop=stop)


def run_of(strategy: Strategy, case: Case, *, budget: int, stop: float) -> Run:
    """Ask, look up and tell until the budget is used up or nothing is left, whatever a forecast
    says.
    """
    shares: list[float] = []
    ask_s: list[float] = []
    failures: list[bool] = []
    best, ends = 0.0, None
    asked_for: set[Recipe] = set()
    errors: dict[int, tuple[float, float]] = {}
    while len(shares) < budget:
        if (
            len(shares) in ERRORS_AFTER
            and (error := errors_of(strategy, case, asked_for)) is not None
        ):
            errors[len(shares)] = error
        started = time.perf_counter()
        asked = strategy.ask(1)
        ask_s.append(time.perf_counter() - started)
        if not asked:
            break
        asked_for.add(asked[0])
        outcome = case.outcomes[asked[0]]
        strategy.tell(Told(recipe=asked[0], outcome=outcome))
        failures.append(not isinstance(outcome, Measurement))
        best = max(best, outcome.tokens_per_s if isinstance(outcome, Measurement) else 0.0)
        shares.append(best / case.best)
        if ends is None and _promises_less(strategy, stop):
            ends = len(shares)
    return Run(
        shares=tuple(shares),
        failures=tuple(failures),
        ends=ends or len(shares),
        ask_s=statistics.fmean(ask_s or [0.0]),
        errors=errors,
    )


def errors_of(strategy: Strategy, case: Case, probed: set[Recipe]) -> tuple[float, float] | None:
    """The mean errors of step times, of successes not probed: by the strategy's forecast, and by
    the formulas alone.
    """
    if not isinstance(strategy, Guided):
        return None
    recipes, outcomes = case.survey.recipes, case.outcomes
    cold = dict(zip(recipes, np.exp(case.prior.log_speed).tolist(), strict=True))
    forecasts = strategy.forecasts()
    now = {recipe: expected.tokens_per_s for recipe, expected in forecasts.items()} or cold
    speeds = {
        one: found.tokens_per_s
        for one in recipes
        if isinstance(found := outcomes[one], Measurement)
    }
    left = [recipe for recipe in speeds if recipe in now and recipe not in probed]
    if not left:
        return None
    now_off, cold_off = (
        statistics.fmean(abs(speeds[one] / told[one] - 1) for one in left) for told in (now, cold)
    )
    return now_off, cold_off


def _promises_less(strategy: Strategy, stop: float) -> bool:
    outlook = strategy.outlook() if isinstance(strategy, Forecaster) else None
    return outlook is not None and outlook.expected_improvement < stop


def figures(runs: Sequence[Run], case: Case, budget: int) -> dict[str, object]:
    """Means over the runs of one strategy on one problem; what counts probes is a number of
    them.
    """
    return {
        "rows": case.rows,
        "best_at": {
            str(n): statistics.fmean(run.share_after(n) for run in runs)
            for n in CHECKPOINTS
            if n <= budget
        },
        "to_5pct": statistics.fmean(run.probes_to(CLOSE, budget) for run in runs),
        "to_1pct": statistics.fmean(run.probes_to(CLOSER, budget) for run in runs),
        "error_after": {
            str(n): [statistics.fmean(each) for each in zip(*known, strict=True)]
            for n in ERRORS_AFTER
            if (known := [run.errors[n] for run in runs if n in run.errors])
        },
        "failed": statistics.fmean(sum(run.failures[: run.ends]) for run in runs),
        "ends": statistics.fmean(run.ends for run in runs),
        "best_at_end": statistics.fmean(run.share_after(run.ends) for run in runs),
        "failed_in_budget": statistics.fmean(sum(run.failures) for run in runs),
        "probes": statistics.fmean(len(run.shares) for run in runs),
        "ask_s": statistics.fmean(run.ask_s for run in runs),
    }
