"""Queue of next recipes: trials that wait for another attempt, repeats, then the strategy's
proposals.

A strategy that raises is replaced by random order, so that the campaign goes on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from frontrunner.evaluators.analytic.estimates import surely_too_large
from frontrunner.results.outcome import Measurement, Outcome
from frontrunner.results.predictions import Expected
from frontrunner.results.records import Trial
from frontrunner.search.spec import MOST_MEASUREMENTS, SearchSettings
from frontrunner.search.stored_outcomes import KnownOutcomes
from frontrunner.search.strategy import (
    LOOK_AT_ALL,
    TOKENS_ALONE,
    Evidence,
    Forecaster,
    Outlook,
    Strategy,
    Told,
    make_strategy,
)
from frontrunner.search.tried import TriedRecipes
from frontrunner.spaces.errors import FrontrunnerError
from frontrunner.spaces.recipe import Recipe
from frontrunner.spaces.space import Survey

FALLBACK = "random"

Notice = Callable[..., None]


class Proposals:
    """The queue of a campaign's next recipes. Used by the driver's thread."""

    def __init__(
        self,
        *,
        search: SearchSettings,
        survey: Survey,
        told: Sequence[tuple[Recipe, Outcome]],
        known: KnownOutcomes,
        notice: Notice,
        evidence: Sequence[Evidence] = (),
    ) -> None:
        """`told` are the outcomes from before, which are not kept: `known` has these and those that
        it is told of later.
        """
        self._survey, self._search, self._notice, self._evidence = survey, search, notice, evidence
        self._known = known
        self._tried = TriedRecipes(survey.recipes)
        self._waiting: deque[Trial] = deque()
        self._unconfirmed: Sequence[Recipe] | None = None  # None: to be determined again
        self._keep_all(told)
        self.pruned = 0
        self._baseline = search.baseline
        self._name = search.strategy
        self._strategy = self._made(told)

    @property
    def remembers(self) -> bool:
        """Whether the strategy learns from evidence of earlier campaigns."""
        return isinstance(self._strategy, Forecaster)

    def put_back(self, trial: Trial) -> None:
        """Queue a trial for another attempt; it comes before any new proposal."""
        self._waiting.append(trial)
        self._tried.propose(trial.recipe)
        if self._tried.measurements(trial.recipe):
            self._tried.allow_repeat(trial.recipe, allowed=False)

    def leave_out(self, recipe: Recipe) -> None:
        """Never propose a recipe whose trial has ended without an outcome to tell."""
        self._tried.propose(recipe)

    def tell(self, recipe: Recipe, outcome: Outcome) -> bool:
        """Pass an outcome to the strategy, and return whether it counts: failures of the machine
        teach nothing.

        A disturbed measurement of a recipe that has an undisturbed one is not passed on. The first
        undisturbed one takes the place of those before: the strategy is made anew, as after a
        restart, and does not hear of them.
        """
        was_disturbed = self._tried.is_disturbed(recipe)
        counts, is_measured = self._keep(recipe, outcome), isinstance(outcome, Measurement)
        if is_measured and not counts:
            return False
        if is_measured and was_disturbed and not self._tried.is_disturbed(recipe):
            self._strategy = self._made(self._known.told())
        else:
            self._call("tell", self._told(recipe, outcome))
        return counts

    def _told(self, recipe: Recipe, outcome: Outcome) -> Told:
        if isinstance(outcome, Measurement):
            outcome = replace(outcome, tokens_per_s=outcome.tokens_per_s / self._divisor(recipe))
        return Told(recipe=recipe, outcome=outcome)

    def _keep(self, recipe: Recipe, outcome: Outcome) -> bool:
        """Note an outcome of a recipe, and return whether it counts."""
        before = self._tried.measurements(recipe)
        self._tried.propose(recipe)
        if isinstance(outcome, Measurement):
            was_disturbed = self._tried.is_disturbed(recipe)
            counts = before == 0 or was_disturbed or not outcome.is_disturbed
            if counts:
                is_alone = before == 0 or (was_disturbed and not outcome.is_disturbed)
                counting = [outcome] if is_alone else self._known.measurements(recipe)
                self._tried.measured(recipe, counting, self._divisor(recipe))
        else:
            counts = outcome.policy.counts_against_recipe
            if counts:
                self._tried.failed(recipe)
        self._unconfirmed = None
        # One that was lost or disturbed would be wanted, and lost or disturbed, again without end.
        self._tried.allow_repeat(recipe, allowed=counts or not before)
        return counts

    def _keep_all(self, told: Iterable[tuple[Recipe, Outcome]]) -> None:
        """Note what was told before; all measurements among it count."""
        counting: dict[Recipe, list[Measurement]] = {}
        for recipe, outcome in told:
            self._tried.propose(recipe)
            if isinstance(outcome, Measurement):
                counting.setdefault(recipe, []).append(outcome)
            elif outcome.policy.counts_against_recipe:
                counting.pop(recipe, None)
        for recipe, measurements in counting.items():
            self._tried.measured(recipe, measurements, self._divisor(recipe))

    def again(self) -> Trial | Recipe | None:
        """Return a trial that waits for another attempt, or a measured recipe that the strategy
        wants repeated.
        """
        if self._waiting:
            return self._waiting.popleft()
        recipe = self._measured_too_little()
        if recipe is None and self.remembers:
            recipe = self._call("worth_repeating")
        if recipe is None:
            return None
        if not isinstance(recipe, Recipe) or not self._tried.measurements(recipe):
            self._replace(f"it wants to repeat a recipe that was not measured: {recipe}")
            return None
        is_enough = self._tried.measurements(recipe) >= MOST_MEASUREMENTS
        if is_enough or not self._tried.may_repeat(recipe):
            return None
        self._tried.allow_repeat(recipe, allowed=False)
        return recipe

    @property
    def unconfirmed(self) -> Sequence[Recipe]:
        """The leading recipes that are to be measured in full, the fastest first; see
        `frontrunner.search.leaders`.

        Each is handed out once by `confirm`, so that a machine on which every measurement is
        disturbed does not repeat one without end.
        """
        if self._unconfirmed is None:
            # With several objectives no probe ends early.
            is_sought = len(self._search.objectives) == 1
            self._unconfirmed = self._tried.unconfirmed_leaders() if is_sought else ()
        return self._unconfirmed

    def confirm(self) -> Recipe | None:
        """Return the fastest of `unconfirmed` to be measured in full; None where there is none."""
        if not self.unconfirmed:
            return None
        recipe = self.unconfirmed[0]
        self._tried.confirm(recipe)
        self._tried.allow_repeat(recipe, allowed=False)
        self._unconfirmed = None
        return recipe

    def _divisor(self, recipe: Recipe) -> float:
        return self._survey.problem.divisor(self._search.objectives[0], recipe)

    def _measured_too_little(self) -> Recipe | None:
        """Return a recipe with fewer measurements than `search.repeats` asks for, or None."""
        if self._search.repeats == 1:
            return None
        return self._tried.measured_less_than(self._search.repeats)

    def expected(self, recipe: Recipe) -> Expected | None:
        """Return what the strategy expected of a recipe that it proposed; None where it predicts
        nothing.
        """
        expected: Expected | None = self._call("expected", recipe) if self.remembers else None
        return expected

    def outlook(self) -> Outlook | None:
        """Return the strategy's expected gain from further probes; None where it predicts none."""
        outlook: Outlook | None = self._call("outlook") if self.remembers else None
        return outlook

    def new(self) -> Recipe | None:
        """Return a legal recipe that was not tried, the baseline first, or None when none is
        left.
        """
        baseline, self._baseline = self._baseline, None
        if baseline is not None and not self._tried.is_proposed(baseline):
            self._tried.propose(baseline)
            return baseline
        # None where the strategy raised and was replaced; a recipe that was proposed before is
        # passed over.
        while (proposed := self._call("ask", 1)) is None or len(proposed):
            if proposed and not self._tried.is_proposed(proposed[0]):
                recipe: Recipe = proposed[0]
                self._tried.propose(recipe)
                return recipe
        return None

    def _call(self, method: str, *arguments: object) -> Any:
        try:
            return getattr(self._strategy, method)(*arguments)
        except Exception as error:
            self._replace(f"{method} raised {type(error).__name__}: {error}")
            return None

    def _replace(self, why: str) -> None:
        """Continue in random order; a fault of random order itself is ours and is raised."""
        if self._name == FALLBACK:
            raise RuntimeError(f"strategy {FALLBACK}: {why}")
        self._name = FALLBACK
        self._notice("strategy-replaced", why=why[:500], by=FALLBACK)
        self._strategy = self._made(self._known.told())

    def _made(self, told: Iterable[tuple[Recipe, Outcome]]) -> Strategy:
        name = self._name
        sought = TOKENS_ALONE if name == FALLBACK else self._search.objectives
        settings = self._search.deephyper if name == "deephyper" else None
        survey = (
            self._survey
            if name in LOOK_AT_ALL or not self._search.prune_infeasible
            else self._pruned_survey
        )
        self.pruned = len(self._survey.recipes) - len(survey.recipes)
        try:
            strategy = make_strategy(name, survey, self._search.seed, sought, settings)
            if self._evidence and isinstance(strategy, Forecaster):
                strategy.remember(self._evidence)
            for recipe, outcome in told:
                if recipe in survey.recipes:
                    strategy.tell(self._told(recipe, outcome))
        except FrontrunnerError:
            raise  # a mistake of the user, such as an unknown name
        except Exception as error:
            self._replace(f"it could not begin: {type(error).__name__}: {error}")
            return self._strategy
        return strategy

    @cached_property
    def _pruned_survey(self) -> Survey:
        """The survey without what surely does not fit; all of it where nothing else would be
        left.
        """
        too_large = surely_too_large(self._survey.recipes, self._survey.problem)
        if not too_large.any() or too_large.all():
            return self._survey
        return self._survey.keep(~too_large)


class Asked:
    """The queue of a driver that measures given recipes, each as often as it is listed, and nothing
    else.
    """

    remembers, pruned = False, 0
    unconfirmed: Sequence[Recipe] = ()

    def __init__(self, recipes: Iterable[Recipe]) -> None:
        self._recipes = list(recipes)
        self._waiting: deque[Trial] = deque()
        self._running: set[Recipe] = set()

    def put_back(self, trial: Trial) -> None:
        """Queue a trial for another attempt."""
        self._running.discard(trial.recipe)
        self._waiting.append(trial)

    def leave_out(self, recipe: Recipe) -> None:
        """Do nothing: what is asked for is measured whatever became of it before."""

    def tell(self, recipe: Recipe, outcome: Outcome) -> bool:
        """Take in that a probe of the recipe has ended; return True, as whatever was asked for
        counts.
        """
        del outcome
        self._running.discard(recipe)
        return True

    def again(self) -> Trial | Recipe | None:
        """Return what is next, but no recipe whose probe still runs."""
        chosen: Trial | Recipe | None = None
        if self._waiting:
            chosen = self._waiting.popleft()
        elif (
            free := next((one for one in self._recipes if one not in self._running), None)
        ) is not None:
            self._recipes.remove(free)
            chosen = free
        if chosen is not None:
            self._running.add(chosen if isinstance(chosen, Recipe) else chosen.recipe)
        return chosen

    def confirm(self) -> None:
        """Return None: only what is asked for is measured."""

    def new(self) -> None:
        """Return None: nothing is proposed."""

    def expected(self, recipe: Recipe) -> None:
        """Return None: nothing is predicted."""

    def outlook(self) -> None:
        """Return None: nothing is predicted."""
