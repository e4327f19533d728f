"""The strategy `guided`: proposes what is expected to improve most for its cost, and says what is
left to gain.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from frontrunner.evaluators.analytic.codes import coded
from frontrunner.evaluators.analytic.fit import are_of_one_machine, refit, samples_of_problems
from frontrunner.evaluators.analytic.machine import fit_of
from frontrunner.evaluators.runs.measure import nodes_used
from frontrunner.results.outcome import FailureKind, Measurement, Outcome
from frontrunner.results.predictions import Expected
from frontrunner.search.guided.acquisition import Allowances, Front, mean_loss
from frontrunner.search.guided.feasibility import FeasibilityModel, Trial
from frontrunner.search.guided.prior import (
    CandidateTable,
    Places,
    Prior,
    Rows,
    most_promising,
    prior_of,
)
from frontrunner.search.guided.speed import Observation, SpeedModel, amplitudes_of
from frontrunner.search.strategies.candidates import Candidates, Listed
from frontrunner.search.strategy import TOKENS_ALONE, Evidence, Outlook, Told
from frontrunner.spaces.cluster import FittedCode
from frontrunner.spaces.columns import each
from frontrunner.spaces.document import recipe_id
from frontrunner.spaces.pareto import pareto_front
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import Recipe
from frontrunner.spaces.space import Survey

MOST_ROWS = 200_000
"""Recipes that are candidates: of more, half are those of the highest estimates, half an even
selection of the others. The rest comes when these are used up.
"""
LOOKED_AT = 3000
"""Open recipes that are judged in full at each ask: those that a linear correction finds most
promising.
"""
CLOSE_CALL = 0.005
"""Recipes whose worth differs by about this share are ordered by the seed: the formulas cannot tell
them apart.
"""
LEAST_WORTH = 1e-3
"""An improvement that is not sought: where less is expected, recipes come in the order of their
chances to run.
"""
ALMOST_NONE = 1e-9
DRAWS, DRAWN, DRAWN_AGAIN = 256, 400, 100
"""Joint draws of speeds for the gap to the best, of how many promising recipes, and of how many
measured ones.
"""
SAME_PROBLEM_SPREAD, OTHER_PROBLEM_SPREAD = 0.05, 0.03
"""Noise of remembered measurements besides a measurement's own; assumed."""
MOST_REPEATS = 3
STEPS_OF_A_PROBE = 7
"""Assumed; a strategy does not see a campaign's own settings."""
START_S = 30.0
LACKED_MEMORY = {FailureKind.OUT_OF_MEMORY: True, FailureKind.CRASHED: None, FailureKind.HUNG: None}
"""Whether a failure was for want of memory, None where it may have been; the others took steps, or
were refused.
"""
MEDIAN_OVER_MEAN = 1.25
"""The standard error of a median over that of a mean, of many normal values: sqrt(pi / 2)."""


@dataclass(kw_only=True)
class Observations:
    """Outcomes by row; `log_speeds`, `spreads` and `log_peaks` are the campaign's own, unless the
    row failed since.
    """

    memory_bytes: float
    log_speeds: dict[int, list[float]] = field(default_factory=dict)
    spreads: dict[int, list[float]] = field(default_factory=dict)
    log_peaks: dict[int, float] = field(default_factory=dict)
    observations: list[Observation] = field(default_factory=list)
    trials: list[Trial] = field(default_factory=list)

    def add(self, row: int, outcome: Outcome, table: CandidateTable) -> None:
        """Take in an outcome of this campaign; one that the machine is to blame for teaches
        nothing.
        """
        spread = 0.0
        if isinstance(outcome, Measurement):
            self.log_speeds.setdefault(row, []).append(math.log(outcome.tokens_per_s))
            if peak := outcome.peak_memory_bytes_max_rank:
                self.log_peaks[row] = max(
                    math.log(peak / self.memory_bytes), self.log_peaks.get(row, -math.inf)
                )
            # The standard error of its median step, as a share.
            spread = (
                MEDIAN_OVER_MEAN * outcome.step_time_spread / math.sqrt(len(outcome.step_times_s))
            )
            self.spreads.setdefault(row, []).append(spread)
        elif outcome.policy.counts_against_recipe:
            for known in (self.log_speeds, self.spreads, self.log_peaks):
                known.pop(row, None)
        self.learn(row, outcome, table, spread=spread, memory_bytes=self.memory_bytes)

    def learn(
        self,
        row: int,
        outcome: Outcome,
        table: CandidateTable,
        *,
        spread: float,
        memory_bytes: float,
    ) -> None:
        """Take in an outcome of whatever origin, on a device of `memory_bytes`."""
        if isinstance(outcome, Measurement):
            ratio = math.log(outcome.tokens_per_s) - float(table.log_speed[row])
            self.observations.append(Observation(row=row, log_ratio=ratio, spread=spread))
            peak = outcome.peak_memory_bytes_max_rank
            self.trials.append(
                Trial(row=row, ran=True, log_peak=math.log(peak / memory_bytes) if peak else None)
            )
        elif outcome.policy.counts_against_recipe:
            self.trials.append(
                Trial(row=row, ran=False, lacked_memory=LACKED_MEMORY.get(outcome.kind, False))
            )

    def forget(self, rows: Collection[int]) -> None:
        """Unlearn what was learned of these rows."""
        self.observations = [seen for seen in self.observations if seen.row not in rows]
        self.trials = [trial for trial in self.trials if trial.row not in rows]

    def noise(self) -> float:
        """Return the standard deviation of a measured logarithm: from repeats, else what probes say
        of themselves.
        """
        repeated = [values for values in self.log_speeds.values() if len(values) > 1]
        if repeated:
            squares = sum(statistics.variance(values) * (len(values) - 1) for values in repeated)
            return math.sqrt(squares / sum(len(values) - 1 for values in repeated))
        return float(np.median(list(itertools.chain(*self.spreads.values())) or [0.0]))

    def deviations(self) -> Rows:
        """Return the standard error of each measured row's mean logarithm, from its probes' spreads
        and all repeats.
        """
        between = (
            self.noise() if any(len(values) > 1 for values in self.log_speeds.values()) else 0.0
        )
        counted = ((spreads, len(spreads)) for spreads in self.spreads.values())
        own = (math.hypot(*spreads, between * count**0.5) / count for spreads, count in counted)
        return np.fromiter(own, dtype=np.float64)


class Guided:
    """The `Forecaster` that starts from the analytic model and learns how it errs."""

    def __init__(
        self,
        survey: Survey,
        seed: int,
        prior: Prior | None = None,
        objectives: Sequence[str] = TOKENS_ALONE,
    ) -> None:
        """`prior` is that of the survey's recipes where it is not the model's own.

        Speeds are of the rate that is sought: tokens/s, unless the objective is another of
        `pareto.RATES`.
        """
        whole, self._left_out = survey.recipes, Listed(())
        if prior is None and len(whole) > MOST_ROWS:
            rows = most_promising(whole, survey.problem, objectives[0], MOST_ROWS)
            self._left_out = Listed(whole, np.delete(np.arange(len(whole)), rows).tolist())
            survey = survey.keep(rows)
        self._candidates = Candidates(survey, seed)
        self._problem, self._seed, self._custom = survey.problem, seed, dict(survey.custom)
        self._has_own_prior = prior is not None
        self._nodes = each(
            survey.recipes, lambda recipe: nodes_used(recipe, survey.problem), np.float64
        )
        self._allowances = Allowances(objectives, self._nodes)
        self._closeness = np.exp(
            CLOSE_CALL * np.random.default_rng(seed).standard_normal(len(survey.recipes))
        )
        self._seen = Observations(memory_bytes=survey.problem.cluster.memory_bytes_per_device)
        self._pending: dict[int, Expected] = {}
        self._remembered: dict[str, list[int]] = {}
        self._log_divisors = np.log(
            each(
                survey.recipes,
                lambda recipe: survey.problem.divisor(objectives[0], recipe),
                np.float64,
            )
        )
        self._know(self._own_rows(prior or prior_of(survey.recipes, survey.problem)))

    def _own_rows(self, prior: Prior) -> CandidateTable:
        table = CandidateTable.of(self._candidates.recipes, prior, custom=self._custom)
        return replace(table, log_speed=table.log_speed - self._log_divisors)

    def _know(self, table: CandidateTable) -> None:
        self._table, self._is_news = table, True
        self._speed = SpeedModel(table, amplitudes_of(self._problem))
        self._feasible = FeasibilityModel(
            table, peaks_are_allocated=self._problem.software.code is None
        )

    def remember(self, evidence: Sequence[Evidence]) -> None:
        """Learn outcomes of earlier campaigns; called once, before any ask or tell.

        Of other models' and sequence lengths' outcomes on this cluster by this code the constants
        take their most probable values, about which what is left unknown of them is learned: the
        fit of `calibrate --from-store`. That of the cluster itself stays where it rests on as many
        rows. Outcomes of recipes of the same id may be told again.
        """
        of_others = [
            (piece.problem, piece.recipe, piece.outcome)
            for piece in evidence
            if self._is_of_here(piece.problem)
            and recipe_id(piece.problem, piece.recipe) != recipe_id(self._problem, piece.recipe)
        ]
        fits = self._problem.cluster.fitted
        if (fit := refit(samples_of_problems(of_others))) and not self._has_own_prior:
            earlier = fit_of(
                self._problem.cluster, self._problem.precision, coded(self._problem.software)
            )
            fits = (fit,) if earlier is None or earlier.rows < fit.rows else fits
            self._know(
                self._own_rows(prior_of(self._candidates.recipes, _with(fits, self._problem)))
            )
        problems: list[Problem] = []  # in the order of first occurrence; they are not hashable
        for piece in evidence:
            if piece.problem not in problems:
                problems.append(piece.problem)
        table, numbers = self._table, itertools.count(1)
        learned: list[tuple[int, Evidence]] = []
        for problem in problems:
            known = [piece for piece in evidence if piece.problem == problem]
            learned += zip(itertools.count(len(table)), known, strict=False)
            number = 0 if problem == self._problem else next(numbers)
            is_fitted = self._is_of_here(problem) and not self._has_own_prior
            fitted = _with(fits, problem) if is_fitted else problem
            table = table.with_rows([piece.recipe for piece in known], fitted, number, self._custom)
        self._know(table)
        for row, piece in learned:
            spread = OTHER_PROBLEM_SPREAD if table.problem[row] else SAME_PROBLEM_SPREAD
            memory = piece.problem.cluster.memory_bytes_per_device
            self._remembered.setdefault(recipe_id(piece.problem, piece.recipe), []).append(row)
            self._seen.learn(row, piece.outcome, table, spread=spread, memory_bytes=memory)

    def _is_of_here(self, problem: Problem) -> bool:
        return are_of_one_machine(problem, self._problem)

    def ask(self, count: int) -> list[Recipe]:
        """Return up to `count` legal recipes; pending ones are taken to run as fast as expected
        meanwhile.
        """
        chosen: list[Recipe] = []
        while len(chosen) < count and self._candidates.open_count:
            row, expected = self._choose()
            self._candidates.take(row)
            self._pending[row] = expected
            chosen.append(self._candidates.recipes[row])
        return chosen + self._left_out.ask(count - len(chosen))

    def tell(self, told: Told) -> None:
        """Learn of an outcome; what was remembered of the recipe is forgotten, as it may be the
        same measurement.
        """
        row = self._candidates.row(told.recipe)
        if row is None:
            self._left_out.tell(told)
            return
        self._candidates.take(row)
        self._pending.pop(row, None)
        if isinstance(told.outcome, Measurement) or told.outcome.policy.counts_against_recipe:
            self._seen.forget(self._remembered.pop(recipe_id(self._problem, told.recipe), ()))
        self._seen.add(row, told.outcome, self._table)
        self._is_news = True

    def expected(self, recipe: Recipe) -> Expected | None:
        """Return what made a proposed recipe the most promising one; None before and after it is
        pending.
        """
        row = self._candidates.row(recipe)
        return None if row is None else self._pending.get(row)

    def outlook(self) -> Outlook | None:
        """Return the expected gain; None before a measurement, and until each node count was
        tried.
        """
        if not self._seen.log_speeds or self._untried():
            return None
        self._learn()
        speeds, held = self._measured()
        front = Front(self._allowances, speeds, held)
        rows = self._promising(self._candidates.open_rows(), front)
        mean, deviation = self._speed.predict(rows)
        chance, demands = self._feasible.chance(rows), self._demands(rows)
        gains = front.gain(mean, deviation, demands) * chance
        few = np.argsort(-gains, kind="stable")[:DRAWN]
        best = np.array(pareto_front(np.column_stack([-held, speeds]).tolist()))
        again = np.union1d(best, np.argsort(-speeds, kind="stable")[:DRAWN_AGAIN])
        measured = np.fromiter(self._seen.log_speeds, dtype=np.intp)[again]
        drawn = self._speed.draws(np.concatenate([measured, rows[few]]), DRAWS, self._seed)
        random = np.random.default_rng(self._seed)
        runs = random.random((len(few), DRAWS)) < chance[few, None]
        # A measured speed is as true as its noise is small against what the model cannot learn of
        # one recipe.
        noise, own = self._speed.noise, self._seen.deviations()[again, None]
        true = (noise**2 * speeds[again, None] + own**2 * drawn[: len(again)]) / (noise**2 + own**2)
        true += noise * own / np.hypot(noise, own) * random.standard_normal(true.shape)
        # Of a best that was measured badly the model may be too sure: half of the draws take its
        # measurement alone.
        alone = np.isin(again, best)[:, None] & (np.arange(DRAWS) % 2 == 0)
        true = np.where(alone, speeds[again, None] + own * random.standard_normal(true.shape), true)
        joined = (
            np.concatenate([true, np.where(runs, drawn[len(again) :], -np.inf)]) - front.log_worth
        )
        present = np.isin(again, best)
        worths = self._allowances.worth(joined[: len(again)][present], held[again][present])
        gaps = (
            self._allowances.worth(joined, np.concatenate([held[again], demands[few]])) / worths - 1
        )
        gap = max(float(gaps.mean()), 0.0)  # of a small chance of much it is above the percentile
        at_most, several = max(gap, float(np.quantile(gaps, 0.95))), self._allowances.are_several
        return Outlook(
            expected_improvement=float(gains.max(initial=0.0)),
            gap=gap,
            gap_at_most=at_most,
            of_front=several,
        )

    def forecasts(self) -> dict[Recipe, Expected]:
        """Return what is expected of each recipe, or of the most promising `LOOKED_AT`.

        It is empty before any outcome was remembered or told.
        """
        if not self._seen.observations:
            return {}
        self._learn()
        rows = self._promising(np.arange(len(self._nodes)), None)
        tokens_per_s = np.exp(self._speed.predict(rows)[0] + self._log_divisors[rows])
        chance = self._feasible.chance(rows)
        return {
            self._candidates.recipes[row]: Expected(
                tokens_per_s=float(tokens_per_s[at]),
                chance=float(chance[at]),
                expected_improvement=None,
            )
            for at, row in enumerate(rows)
        }

    def worth_repeating(self) -> Recipe | None:
        """Return the less measured of the two best, where confusing them costs more than a probe
        should gain.
        """
        if self._allowances.are_several:
            return None
        measured = sorted(
            self._seen.log_speeds.items(), key=lambda item: -statistics.fmean(item[1])
        )[:2]
        if len(measured) < 2:
            return None
        (first, fast), (second, slow) = measured
        row, values = (first, fast) if len(fast) <= len(slow) else (second, slow)
        deviation = self._seen.noise() * (1 / len(fast) + 1 / len(slow)) ** 0.5
        loss = mean_loss(statistics.fmean(fast) - statistics.fmean(slow), deviation)
        outlook = self.outlook()
        if (
            len(values) >= MOST_REPEATS
            or loss == 0
            or (outlook and loss < outlook.expected_improvement)
        ):
            return None
        return self._candidates.recipes[row]

    def peak_memory_bytes(self) -> dict[Recipe, float]:
        """Return the expected peak of each recipe, as it is measured: by the formulas, and by what
        peaks showed.
        """
        self._learn()
        needed = (
            np.exp(self._feasible.log_need(np.arange(len(self._candidates.recipes))))
            * self._seen.memory_bytes
        )
        return dict(zip(self._candidates.recipes, needed.tolist(), strict=True))

    def _learn(self) -> None:
        """Fit both models to what was told, and to pending proposals as if they ran as expected."""
        if self._is_news:
            self._speed.learn(self._seen.observations)
            self._feasible.learn(self._seen.trials)
            self._is_news = False
        elif self._seen.observations:
            self._speed.update(self._seen.observations)
        if self._pending and self._seen.observations:
            rows = np.fromiter(self._pending, dtype=np.intp)
            ratios = self._speed.predict(rows)[0] - self._table.log_speed[rows]
            guesses = [
                Observation(row=int(r), log_ratio=float(g))
                for r, g in zip(rows, ratios, strict=True)
            ]
            self._speed.update([*self._seen.observations, *guesses])

    def _measured(self) -> tuple[Rows, Rows]:
        measured, peaks = self._seen.log_speeds, self._seen.log_peaks
        rows = np.fromiter(measured, dtype=np.intp)
        speeds = np.fromiter(map(statistics.fmean, measured.values()), dtype=np.float64)
        known = np.fromiter((peaks.get(row, np.nan) for row in measured), dtype=np.float64)
        fill = np.where(np.isnan(known), self._feasible.log_need(rows), known)
        return speeds, self._allowances.demands(fill, self._nodes[rows])

    def _demands(self, rows: Places) -> Rows:
        return self._allowances.demands(self._feasible.log_need(rows), self._nodes[rows])

    def _front(self) -> Front | None:
        """Return the measured front; with several objectives pending rows count as if they ran as
        expected.
        """
        if not self._seen.log_speeds:
            return None
        speeds, demands = self._measured()
        if self._allowances.are_several and self._pending:
            rows = np.fromiter(self._pending, dtype=np.intp)
            speeds = np.concatenate([speeds, self._speed.predict(rows)[0]])
            demands = np.concatenate([demands, self._demands(rows)])
        return Front(self._allowances, speeds, demands, self._untried())

    def _untried(self) -> frozenset[float]:
        """Return the node counts sought that no probe has had: scaling with nodes is not left to
        the formulas alone.
        """
        return self._allowances.untried(self._nodes[self._tried])

    @property
    def _tried(self) -> list[int]:
        return [
            *(trial.row for trial in self._seen.trials if trial.row < len(self._nodes)),
            *self._pending,
        ]

    def _promising(self, rows: Places, front: Front | None) -> Places:
        if len(rows) <= LOOKED_AT:
            return rows
        worth, demands = self._speed.linear_mean()[rows], self._demands(rows)
        if front is None:
            worth = worth + np.log(self._allowances.reach(demands))
        elif self._allowances.are_several:
            worth = np.log(front.rough_gain(worth, demands) + ALMOST_NONE)
        worth = worth + np.log(self._feasible.rough_chance()[rows] + ALMOST_NONE)
        return rows[np.argpartition(-worth, LOOKED_AT)[:LOOKED_AT]]

    def _choose(self) -> tuple[int, Expected]:
        self._learn()
        front = self._front()
        rows = self._promising(self._candidates.open_rows(), front)
        mean, deviation = self._speed.predict(rows)
        chance, demands = self._feasible.chance(rows), self._demands(rows)
        if front is None:
            gain = np.exp(mean - mean.max()) * self._allowances.reach(demands)
        else:
            gain = front.gain(mean, deviation, demands)
        step_time_s = self._table.step_time_s[rows] * np.exp(self._table.log_speed[rows] - mean)
        # A probe that fails counts as much: some fail at once and others when their deadline has
        # passed.
        cost = self._nodes[rows] * (START_S + STEPS_OF_A_PROBE * step_time_s)
        worth = (gain + LEAST_WORTH) * chance / cost * self._closeness[rows]
        best = int(np.argmax(worth))
        row = int(rows[best])
        return row, Expected(
            tokens_per_s=float(np.exp(mean[best] + self._log_divisors[row])),
            chance=float(chance[best]),
            expected_improvement=None if front is None else float(gain[best] * chance[best]),
            of_front=self._allowances.are_several,
        )


def _with(fits: tuple[FittedCode, ...], problem: Problem) -> Problem:
    """Return the problem on its cluster with these fits."""
    return replace(problem, cluster=replace(problem.cluster, fitted=fits))
