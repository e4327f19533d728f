"""Evaluator that looks outcomes up in a table of measured configurations, to evaluate any strategy
on it.

A recipe that is in no row is illegal (`rows_only`) and costs no probe. Where rows repeat, the
fastest counts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from frontrunner.evaluators.protocol import ImmediateEvaluator, ProbeSetup
from frontrunner.evaluators.tables import TableSettings
from frontrunner.evaluators.tables.rows import TableProblem, read_problems
from frontrunner.results.outcome import Failure, FailureKind, Outcome
from frontrunner.spaces.errors import InvalidInput, bad_value, did_you_mean
from frontrunner.spaces.legality import Reason
from frontrunner.spaces.problem import GlobalBatch, Problem
from frontrunner.spaces.recipe import Recipe
from frontrunner.spaces.space import Survey

NOT_IN_TABLE = "not-in-table"
NO_ROW = "the table has no row of the recipe"
MOST_NAMED = 5


class TableLookup(ImmediateEvaluator):
    """Evaluator that finds outcomes in a table instead of measuring them."""

    def __init__(self, setup: ProbeSetup) -> None:
        super().__init__()
        self._outcomes = chosen_problem(setup.table, setup.problem).outcomes()

    def _outcome(self, recipe: Recipe) -> Outcome:
        return self._outcomes.get(recipe) or Failure(
            kind=FailureKind.ILLEGAL_FOR_ENGINE, message=NO_ROW
        )


def rows_only(survey: Survey, settings: TableSettings) -> Survey:
    """Return the survey without the recipes that are in no row of the table, which count as
    refused.

    Its problem is of the table's training code, where the campaign names none.
    """
    found = chosen_problem(settings, survey.problem)
    outcomes = found.outcomes()
    if survey.problem.software.code is None:
        stated = {
            key: value for key, value in vars(survey.problem.software).items() if value is not None
        }
        software = replace(found.problem.software, **stated)
        survey = replace(survey, problem=replace(survey.problem, software=software))
    absent = Reason(NOT_IN_TABLE, NO_ROW)
    return survey.refuse(
        {row: absent for row, recipe in enumerate(survey.recipes) if recipe not in outcomes}
    )


def chosen_problem(settings: TableSettings, problem: Problem) -> TableProblem:
    """Return the table's problem with the campaign's model size, sequence, batch and devices;
    raises `InvalidInput`.
    """
    held = _problems(settings)
    fitting = {found.name: found for found in held if _fits(found, problem, problem.global_batch)}
    if settings.problem is not None and settings.problem not in fitting:
        expected = (
            f"one of the problems of {settings.path} that fit this campaign: {_some(list(fitting))}"
        )
        raise bad_value(
            "table.problem",
            settings.problem,
            expected,
            hint=did_you_mean(settings.problem, fitting),
        )
    if not fitting:
        raise _none_fits(settings, problem, held)
    if settings.problem is None and len(fitting) > 1:
        expected = f"the name of one of {len(fitting)} problems that fit: {_some(list(fitting))}"
        raise bad_value("table.problem", None, expected)
    return fitting[settings.problem or next(iter(fitting))]


def nearest_batch(settings: TableSettings, problem: Problem) -> GlobalBatch:
    """Return the batch of the table that is nearest to the problem's by ratio; raises
    `InvalidInput`.
    """
    held = _problems(settings)
    batches = [one.problem.global_batch for one in held if _fits(one, problem)]
    if not batches:
        raise _none_fits(settings, problem, held)
    wanted = problem.global_batch.maximum
    return min(batches, key=lambda batch: abs(math.log(batch.maximum / wanted)))


def _problems(settings: TableSettings) -> list[TableProblem]:
    if settings.path is None:
        raise bad_value("table.path", None, 'the path of a CSV file, for evaluator = "table"')
    return read_problems(Path(settings.path)).problems


def _fits(found: TableProblem, problem: Problem, batch: GlobalBatch | None = None) -> bool:
    """Return whether a table's problem is the campaign's, at one batch or any; clusters may be
    described otherwise.
    """
    own, other = problem.model, found.problem.model
    return (
        (len(own.layers), own.hidden) == (len(other.layers), other.hidden)
        and problem.sequence_length == found.problem.sequence_length
        and {row.recipe.devices for row in found.rows} == {problem.cluster.devices}
        and batch in (None, found.problem.global_batch)
    )


def _none_fits(
    settings: TableSettings, problem: Problem, held: Sequence[TableProblem]
) -> InvalidInput:
    return InvalidInput(
        f"table.path = {settings.path} holds no problem of {len(problem.model.layers)} layers of"
        f" {problem.model.hidden}, sequence {problem.sequence_length}, global batch"
        f" {problem.global_batch} on {problem.cluster.devices} devices",
        hint=(
            "it holds (model, sequence, batch, hardware, devices)"
            f" {_some([one.name for one in held])}"
        ),
    )


def _some(names: Sequence[str]) -> str:
    rest = f", and {len(names) - MOST_NAMED} others" if len(names) > MOST_NAMED else ""
    return ", ".join(map(repr, names[:MOST_NAMED])) + rest or "none"
