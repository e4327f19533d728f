"""How many probes the guided strategy needs on measured tables, with and without what a table says
of smaller runs.

    python benchmarks/warm_start.py TABLE.csv... [--seeds N] [--budget N] [--least-rows N] [--json
    OUT] python benchmarks/warm_start.py TABLE.csv... --transfer 2 [--unseen] [--seeds N] [--json
    OUT]

A problem and its probes are those of `search_efficiency.py`. A warm search remembers, by the rules
that a campaign follows (`warm_start.py`), the rows of the table's other problems: models of close
shape on at most as many devices. Rows that failed for an unknown reason are no evidence. `to_5pct`
and `to_1pct` are means over seeds of the probes until the best found is within 5 % and 1 % of the
true best, budget + 1 where it never is.

--transfer asks how far one model's rows teach the constants of a code and cluster for another: the mean errors of a
model's step times by the formulas alone, and by guided after so many rows, drawn at random, of each other model of the
table on devices of this kind. With --unseen the formulas' constants are fitted to the other tables named.
"""  # noqa: E501

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

import numpy as np
from search_runs import CLOSE, CLOSER, Case, Run, errors_of, run_of
from table_accuracy import SOURCED, fitted

from frontrunner.evaluators.tables.rows import TableProblem, read_problems
from frontrunner.evaluators.tables.workloads import read
from frontrunner.results.outcome import FailureKind, Measurement, Outcome
from frontrunner.search.guided.strategy import Guided
from frontrunner.search.strategy import Evidence
from frontrunner.search.warm_start import MOST_EVIDENCE, distance, is_close

Figures = dict[str, float | int]


def evidence_for(target: TableProblem, problems: tuple[TableProblem, ...]) -> list[Evidence]:
    """The rows of close models on at most as many devices, the nearest problems' first."""
    found = []
    for problem in problems:
        fewer = problem.rows[0].recipe.devices <= target.rows[0].recipe.devices
        if (
            problem is target
            or not fewer
            or not is_close(problem.problem.model, target.problem.model)
        ):
            continue
        away = distance(problem.problem, target.problem)
        found += [
            (
                away,
                Evidence(
                    problem=problem.problem, recipe=recipe, outcome=outcome, origin=problem.name
                ),
            )
            for recipe, outcome in problem.outcomes().items()
            if _is_known(outcome)
        ]
    return [piece for _, piece in sorted(found, key=lambda pair: pair[0])[:MOST_EVIDENCE]]


def _is_known(outcome: Outcome) -> bool:
    return isinstance(outcome, Measurement) or outcome.kind is FailureKind.OUT_OF_MEMORY


def search(case: Case, evidence: list[Evidence], *, seed: int, budget: int) -> Run:
    """Ask, look up and tell until the budget is used up or nothing is left."""
    strategy = Guided(case.survey, seed)
    strategy.remember(evidence)
    return run_of(strategy, case, budget=budget, stop=0.0)


def figures(case: Case, evidence: list[Evidence], seeds: int, budget: int) -> Figures:
    """Means over seeds."""
    runs = [search(case, evidence, seed=seed, budget=budget) for seed in range(seeds)]
    return {
        "evidence": len(evidence),
        "to_5pct": statistics.fmean(run.probes_to(CLOSE, budget) for run in runs),
        "to_1pct": statistics.fmean(run.probes_to(CLOSER, budget) for run in runs),
        "ask_s": statistics.fmean(run.ask_s for run in runs),
    }


def transferred(cases: list[Case], rows: int, seeds: int) -> Figures | None:
    """Mean errors over models, on cases of one kind of device; None for a single model."""
    by_model: dict[tuple[int, int], list[Case]] = {}
    for case in cases:
        by_model.setdefault(
            (case.survey.problem.model.layers, case.survey.problem.model.hidden), []
        ).append(case)
    told: list[tuple[float, float]] = []
    for model in by_model if len(by_model) > 1 else ():
        for seed in range(seeds):
            random = np.random.default_rng(seed)
            evidence: list[Evidence] = []
            for of in (of for other, of in by_model.items() if other != model):
                known = [
                    Evidence(
                        problem=case.survey.problem,
                        recipe=recipe,
                        outcome=outcome,
                        origin=case.name,
                    )
                    for case in of
                    for recipe, outcome in case.outcomes.items()
                    if isinstance(outcome, Measurement)
                ]
                evidence += [known[place] for place in random.permutation(len(known))[:rows]]
            found: list[tuple[float, float]] = []
            for case in by_model[model]:
                strategy = Guided(case.survey, seed)
                strategy.remember(evidence)
                found += [error] if (error := errors_of(strategy, case, set())) is not None else []
            told += [
                (
                    statistics.fmean(after for after, _ in found),
                    statistics.fmean(cold for _, cold in found),
                )
            ]
    if not told:
        return None
    after, cold = (statistics.fmean(each) for each in zip(*told, strict=True))
    worst = max(one - without for one, without in told)
    return {"models": len(by_model), "cold": cold, "after": after, "most_worse": worst}


def transfer(paths: list[Path], rows: int, seeds: int, *, unseen: bool) -> dict[str, Figures]:
    """The figures of each table and kind of device that hold several models."""
    tables = {path: read(path) for path in paths} if unseen else {}
    found: dict[str, Figures] = {}
    for path in paths:
        others = [other for key, other in tables.items() if key != path and other.rows]
        constants = fitted(others, SOURCED) if others else None
        kinds: dict[str, list[Case]] = {}
        for problem in read_problems(path).problems:
            if (case := Case.of(problem, constants=constants)) is not None:
                kinds.setdefault(problem.problem.cluster.device, []).append(case)
        for device, cases in kinds.items():
            if (one := transferred(cases, rows, seeds)) is not None:
                found[f"{path.stem}: {device}"] = one
                print(
                    f"{path.stem}, {device}, {one['models']} models: {one['cold']:.1%} ->"
                    f" {one['after']:.1%}",
                    flush=True,
                )
    return found


def main() -> None:
    """Search every problem that has evidence, cold and warm."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tables", nargs="+", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--budget", type=int, default=25)
    parser.add_argument("--least-rows", type=int, default=20)
    parser.add_argument("--transfer", type=int, metavar="ROWS")
    parser.add_argument("--unseen", action="store_true")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    if chosen.transfer:
        told = transfer(chosen.tables, chosen.transfer, chosen.seeds, unseen=chosen.unseen)
        if chosen.json:
            chosen.json.write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
        return
    found: dict[str, dict[str, Figures]] = {}
    for path in chosen.tables:
        table = read_problems(path)
        for problem in table.problems:
            evidence = evidence_for(problem, table.problems)
            case = Case.of(problem) if evidence and len(problem.rows) >= chosen.least_rows else None
            if case is not None:
                cold, warm = (
                    figures(case, known, chosen.seeds, chosen.budget) for known in ([], evidence)
                )
                found[f"{path.stem}: {problem.name}"] = {"cold": cold, "warm": warm}
                print(
                    f"{problem.name}: to 5 % {cold['to_5pct']:.1f} -> {warm['to_5pct']:.1f}",
                    flush=True,
                )
    summary = {
        f"{name}_{key}_geomean": statistics.geometric_mean(one[name][key] for one in found.values())
        for name in ("cold", "warm")
        for key in ("to_5pct", "to_1pct")
        if found
    }
    for name, value in summary.items():
        print(f"{name} {value:.3g}")
    if chosen.json:
        chosen.json.write_text(
            json.dumps({"problems": found, "summary": summary}, indent=2) + "\n", encoding="utf-8"
        )


if __name__ == "__main__":
    main()
