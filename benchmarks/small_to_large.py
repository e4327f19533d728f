"""How well a campaign on few nodes predicts a large one, on tables that hold one model at several
node counts.

    python benchmarks/small_to_large.py TABLE.csv... [--factor 4] [--small-budget 20] [--budget 25]
    [--least-rows 20]
        [--seeds 3] [--json OUT]

A pair is a table's problem of at least --least-rows rows, and the problem of the same model,
sequence length, precision, machine and kernel on about --factor times fewer devices. A guided
campaign of at most --small-budget probes searches the small one, and ends as a campaign does. What
it measured, and nothing else, predicts the large one:

    rank        Spearman's rank correlation of predicted and measured tokens/s, over all measured
                rows
    error       the median of |predicted step time / measured - 1| over these rows, and over the
                predicted ten
    cold, warm  guided's probes at full scale to within 5 % of the best, without and with the small
                campaign

The formulas' own rank correlation, without any measurement, stands beside as `alone`. All are means
over the seeds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from scipy.stats import spearmanr
from search_runs import CLOSE, Case, run_of

from frontrunner.evaluators.tables.rows import TableProblem, read_problems
from frontrunner.results.outcome import Measurement
from frontrunner.results.predictions import Expected
from frontrunner.search.guided.prior import prior_of
from frontrunner.search.guided.strategy import Guided
from frontrunner.search.strategy import Evidence, Told
from frontrunner.spaces.recipe import Recipe

STOP = 0.003
LEAST_MEASURED = 3
TOP = 10
Figures = dict[str, float]


def pairs(
    problems: Iterable[TableProblem], factor: float, least_rows: int
) -> list[tuple[TableProblem, TableProblem]]:
    """Each large problem with the small one whose share of its devices is nearest to 1 / factor, at
    most a half.
    """
    by_devices = sorted(
        (
            problem
            for problem in problems
            if len(problem.rows) >= least_rows and Case.of(problem) is not None
        ),
        key=devices,
    )
    found = []
    for large in by_devices:
        smaller = [
            other
            for other in by_devices
            if alike(other) == alike(large) and 2 * devices(other) <= devices(large)
        ]
        if smaller:
            found.append((min(smaller, key=lambda other: distance(other, large, factor)), large))
    return found


def devices(problem: TableProblem) -> int:
    """The devices of its recipes, which all use as many."""
    return problem.rows[0].recipe.devices


def alike(problem: TableProblem) -> tuple[object, ...]:
    """What both problems of a pair have in common."""
    model, own = problem.problem.model, problem.problem
    return (
        model.layers,
        model.hidden,
        own.sequence_length,
        own.precision,
        own.cluster.device,
        model.attention,
    )


def distance(small: TableProblem, large: TableProblem, factor: float) -> float:
    """How far the ratios of devices and of batches are from the factor, as logarithms."""
    batches = large.problem.global_batch.maximum / small.problem.global_batch.maximum
    return abs(np.log(devices(large) / devices(small) / factor)) + 0.1 * abs(
        np.log(batches / factor)
    )


def small_campaign(case: Case, seed: int, budget: int) -> list[Evidence]:
    """What a guided campaign measures, until it expects less than `STOP` of the next probe twice in
    a row.
    """
    strategy = Guided(case.survey, seed)
    found: list[Evidence] = []
    measured = little = 0
    while len(found) < budget and little < 2 and (asked := strategy.ask(1)):
        outcome = case.outcomes[asked[0]]
        strategy.tell(Told(recipe=asked[0], outcome=outcome))
        found.append(
            Evidence(
                problem=case.survey.problem, recipe=asked[0], outcome=outcome, origin=case.name
            )
        )
        measured += isinstance(outcome, Measurement)
        outlook = strategy.outlook()
        promises_little = (
            outlook is not None
            and outlook.expected_improvement < STOP
            and measured >= LEAST_MEASURED
        )
        little = little + 1 if promises_little else 0
    return found


def judged(forecasts: Mapping[Recipe, Expected], case: Case) -> Figures:
    """Predictions against the large problem's measured rows."""
    rows = [
        (forecasts[recipe], outcome.tokens_per_s)
        for recipe, outcome in case.outcomes.items()
        if isinstance(outcome, Measurement) and recipe in forecasts
    ]
    rows.sort(key=lambda row: -row[0].tokens_per_s * row[0].chance)
    errors = [abs(measured / expected.tokens_per_s - 1) for expected, measured in rows]
    return {
        "rank": rank_correlation(
            [expected.tokens_per_s for expected, _ in rows], [measured for _, measured in rows]
        ),
        "error": statistics.median(errors),
        "error_of_top": statistics.median(errors[:TOP]),
    }


def rank_correlation(predicted: list[float], measured: list[float]) -> float:
    """Spearman's; 1 where either side has no order to tell."""
    found = float(spearmanr(predicted, measured).statistic)
    return found if np.isfinite(found) else 1.0


def alone(case: Case) -> float:
    """The rank correlation of the bare formulas."""
    recipes = case.survey.recipes
    prior = dict(zip(recipes, prior_of(recipes, case.survey.problem).log_speed, strict=True))
    measured = {
        recipe: found.tokens_per_s
        for recipe, found in case.outcomes.items()
        if isinstance(found, Measurement)
    }
    return rank_correlation([float(prior[recipe]) for recipe in measured], list(measured.values()))


def compared(small: Case, large: Case, seed: int, chosen: argparse.Namespace) -> Figures:
    """One pair under one seed."""
    evidence = small_campaign(small, seed, chosen.small_budget)
    warm, cold = Guided(large.survey, seed), Guided(large.survey, seed)
    warm.remember(evidence)
    found = judged(warm.forecasts(), large)
    runs = {
        name: run_of(strategy, large, budget=chosen.budget, stop=STOP).probes_to(
            CLOSE, chosen.budget
        )
        for name, strategy in (("cold", cold), ("warm", warm))
    }
    return (
        found
        | {"small_probes": len(evidence)}
        | {f"{name}_to_5pct": float(count) for name, count in runs.items()}
    )


def options() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tables", nargs="+", type=Path)
    parser.add_argument("--factor", type=float, default=4.0)
    parser.add_argument("--small-budget", type=int, default=20)
    parser.add_argument("--budget", type=int, default=25)
    parser.add_argument("--least-rows", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def main() -> None:
    """Judge every pair of every table."""
    chosen = options()
    found: dict[str, Figures] = {}
    for path in chosen.tables:
        for small, large in pairs(read_problems(path).problems, chosen.factor, chosen.least_rows):
            cases = Case.of(small), Case.of(large)
            if cases[0] is None or cases[1] is None:
                continue
            runs = [compared(cases[0], cases[1], seed, chosen) for seed in range(chosen.seeds)]
            own = large.problem
            name = f"{path.stem}: {own.model.layers}L{own.model.hidden} batch {own.global_batch} "
            name += f"{devices(small)}->{devices(large)}"
            means = {key: statistics.fmean(run[key] for run in runs) for key in runs[0]}
            found[name] = means | {"rank_alone": alone(cases[1])}
            show(name, found[name])
    if not found:
        sys.exit("small_to_large: these tables hold no model at several node counts")
    over_all = {
        key: statistics.fmean(one[key] for one in found.values())
        for key in next(iter(found.values()))
    }
    show("mean", over_all)
    if chosen.json:
        chosen.json.write_text(
            json.dumps({"pairs": found, "mean": over_all}, indent=1), encoding="utf-8"
        )


def show(name: str, one: Figures) -> None:
    """One line."""
    columns = {
        "rank": f"{one['rank']:.2f} (alone {one['rank_alone']:.2f})",
        "error": f"{100 * one['error']:3.0f} %, top {100 * one['error_of_top']:3.0f} %",
        "small": f"{one['small_probes']:4.1f}",
        "cold": f"{one['cold_to_5pct']:4.1f}",
        "warm": f"{one['warm_to_5pct']:4.1f}",
    }
    print(f"{name:45} " + "  ".join(f"{key} {value}" for key, value in columns.items()), flush=True)


if __name__ == "__main__":
    main()
