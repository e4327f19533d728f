"""How many probes strategies need on measured tables: each probe is looked up in a row, which is
free.

    python benchmarks/search_efficiency.py TABLE.csv... [--strategies A,B] [--seeds N] [--budget N]
        [--stop SHARE] [--least-rows N] [--unseen] [--json OUT]

A problem is the rows of one model, sequence length, global batch, machine, number of devices and
attention kernel that has at least --least-rows rows and a success (evaluators/tables/rows.py). What
is in no row is illegal and never proposed; a failed row costs a probe; where rows repeat, the best
is the truth and what a probe finds. `model-order` is the analytic model's bare order: what fits by
speed, then the rest by memory. After the name of a strategy, `:pruned` leaves out the rows that
surely do not fit, and `:failures=mean` is a setting of deephyper. `guided:warm` remembers, by the
rules that a campaign follows, the rows of the table's other problems: models of close shape on at
most as many devices.

A campaign file (.toml) is searched as a table of what the evaluator `simulated` computes of its
legal recipes.

--unseen searches each table with constants fitted to all the others, from constants on that no table gave.
`error_after` are the mean errors of step times of successes not probed yet: by guided after so many probes, and by the
formulas alone.

`to_5pct` and `to_1pct` are probes until the best found is within 5 % and 1 % of the true best,
budget + 1 where it never is; for these every search goes on to the budget. A strategy that
forecasts would end its campaign once it expects less improvement of a probe than the share --stop:
after `ends` probes, with `best_at_end`. `failed` counts the probes that failed until then,
`failed_in_budget` all of `probes`; strategies that do not forecast end with the budget.
"""  # noqa: E501

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

from search_runs import CHECKPOINTS, ERRORS_AFTER, Case, evidence_for, figures, search
from table_accuracy import SOURCED, fitted

from frontrunner.config.campaign import read_campaign_file
from frontrunner.evaluators.tables.rows import read_problems
from frontrunner.evaluators.tables.workloads import read
from frontrunner.search.strategy import STRATEGIES
from frontrunner.spaces.errors import InvalidInput

LEAST_ROWS = 20
STOP = 0.003
Figures = dict[str, Any]


def options() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tables", nargs="+", type=Path)
    parser.add_argument("--strategies", default="guided,random,model-order")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--budget", type=int, default=40)
    parser.add_argument("--least-rows", type=int, default=LEAST_ROWS)
    parser.add_argument("--stop", type=float, default=STOP)
    parser.add_argument("--unseen", action="store_true")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    chosen.strategies = chosen.strategies.split(",")
    known = (*STRATEGIES, "model-order")
    unknown = [name for name in chosen.strategies if name.split(":")[0] not in known]
    if unknown or chosen.seeds < 1 or chosen.budget < 1:
        parser.error(
            f"unknown strategies: {', '.join(unknown)}"
            if unknown
            else "--seeds and --budget are at least 1"
        )
    return chosen


def cases(paths: list[Path], least_rows: int, *, unseen: bool) -> dict[str, Case]:
    """The problems of all tables by table and name; says on standard error what was left out."""
    found: dict[str, Case] = {}
    rows = {path: read(path) for path in paths if path.suffix != ".toml"} if unseen else {}
    for path in paths:
        if path.suffix == ".toml":
            found[path.stem] = Case.simulated(read_campaign_file(path).spec)
            continue
        table = read_problems(path)
        for reason, count in table.left_out.items():
            print(f"{path.stem}: {count} rows left out: {reason}", file=sys.stderr)
        others = [other for key, other in rows.items() if key != path and other.rows]
        constants = fitted(others, SOURCED) if others else None
        for problem in table.problems:
            case = (
                Case.of(
                    problem,
                    constants=constants,
                    evidence=evidence_for(problem, table.problems),
                )
                if len(problem.rows) >= least_rows
                else None
            )
            if case is not None:
                found[f"{path.stem}: {problem.name}"] = case
    return found


def summary(
    problems: dict[str, dict[str, Figures]], strategies: list[str], budget: int
) -> dict[str, Figures]:
    """Over all problems, each of which weighs the same."""
    found = {}
    for name in strategies:
        told = [problem[name] for problem in problems.values()]
        found[name] = {
            "to_5pct_geomean": statistics.geometric_mean(one["to_5pct"] for one in told),
            "to_5pct_mean": statistics.fmean(one["to_5pct"] for one in told),
            "to_5pct_worst": max(one["to_5pct"] for one in told),
            "to_1pct_geomean": statistics.geometric_mean(one["to_1pct"] for one in told),
            "failed_share": sum(one["failed"] for one in told) / sum(one["ends"] for one in told),
            "ends": statistics.fmean(one["ends"] for one in told),
            "best_at_end": statistics.fmean(one["best_at_end"] for one in told),
            "failed_in_budget_share": (
                sum(one["failed_in_budget"] for one in told) / sum(one["probes"] for one in told)
            ),
            "ask_s": statistics.fmean(one["ask_s"] for one in told),
            "best_at": {
                str(n): statistics.fmean(one["best_at"][str(n)] for one in told)
                for n in CHECKPOINTS
                if n <= budget
            },
        }
    return found


def show(problems: dict[str, dict[str, Figures]], found: dict[str, Figures]) -> None:
    """The figures on standard output."""
    width = max(len(name) for name in problems)
    print(f"probes to within 5 %\n{'':{width}}  rows " + "".join(f"{name:>13}" for name in found))
    for name, problem in problems.items():
        rows = next(iter(problem.values()))["rows"]
        print(
            f"{name:{width}}{rows:>6} "
            + "".join(f"{problem[one]['to_5pct']:>13.1f}" for one in found)
        )
    if told := {
        name: of["guided"]["error_after"] for name, of in problems.items() if "guided" in of
    }:
        by_table: dict[str, list[Figures]] = {}
        for name, errors in told.items():
            by_table.setdefault(name.split(":")[0], []).append(errors)
        print(
            "mean error of rows not probed, by guided after so many probes / by the formulas alone"
        )
        # Fmt: skip
        print(f"{'':{width}}       " + "".join(f"{count:>14}" for count in ERRORS_AFTER))
        for name, several in by_table.items():
            known = [[one[str(n)] for one in several if str(n) in one] for n in ERRORS_AFTER]
            means = (
                (
                    "{:>6.1%} /{:>5.1%}".format(*map(statistics.fmean, zip(*values, strict=True)))
                    if values
                    else f"{'-':>14}"
                )
                for values in known
            )
            print(f"{name:{width}}       " + "".join(means))
    for key in next(iter(found.values())):
        if key != "best_at":
            print(f"{key:{width}}       " + "".join(f"{found[one][key]:>13.3g}" for one in found))
    for count in next(iter(found.values()))["best_at"]:
        label = f"share of the best after {count} probes"
        print(
            f"{label:{width}}       "
            + "".join(f"{found[one]['best_at'][count]:>13.3f}" for one in found)
        )


def main() -> None:
    """Search every problem by every strategy, under every seed."""
    chosen = options()
    try:
        found = cases(chosen.tables, chosen.least_rows, unseen=chosen.unseen)
    except InvalidInput as error:
        sys.exit(f"search_efficiency: {error}")
    if not found:
        sys.exit(
            f"search_efficiency: no problem of at least {chosen.least_rows} rows and a success in"
            " these tables"
        )
    problems: dict[str, dict[str, Figures]] = {name: {} for name in found}
    for strategy in chosen.strategies:
        for name, case in found.items():
            made = [
                search(strategy, case, seed=seed, budget=chosen.budget, stop=chosen.stop)
                for seed in range(chosen.seeds)
            ]
            problems[name][strategy] = figures(made, case, chosen.budget)
    over_all = summary(problems, chosen.strategies, chosen.budget)
    show(problems, over_all)
    if chosen.json:
        settings = {key: getattr(chosen, key) for key in ("seeds", "budget", "least_rows", "stop")}
        told = {"settings": settings, "problems": problems, "summary": over_all}
        chosen.json.write_text(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
