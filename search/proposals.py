"""Which recipe comes next: trials that wait for another attempt, then the strategy's proposals.

A strategy is somebody else's library behind a promise. Here the promise is checked: a proposal that was
tried before is answered from what is stored, and a strategy that raises, proposes what is illegal, repeats
itself, or gives up while recipes are left is replaced by random order, so that the campaign goes on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence

from frontrunner.results.outcome import Outcome
from frontrunner.results.records import Trial
from frontrunner.search.strategy import Evidence, Forecaster, Strategy, Told, make_strategy
from frontrunner.spaces.errors import FrontrunnerError
from frontrunner.spaces.recipe import Recipe
from frontrunner.spaces.space import Survey

FALLBACK = "random"
MAX_REPEATS = 20
"""So many proposals in a row that were made before cost a strategy its place."""

Notice = Callable[..., None]
"""Called as notice(kind, **data)."""


class Proposals:
    """The queue of a campaign's next recipes. Used by the driver's thread."""

    def __init__(
        self,
        *,
        name: str,
        survey: Survey,
        seed: int,
        told: Iterable[tuple[Recipe, Outcome]],
        notice: Notice,
        evidence: Sequence[Evidence] = (),
    ) -> None:
        """Make the strategy, let it remember what was known before the campaign, and tell it what was stored."""
        self._survey = survey
        self._seed = seed
        self._notice = notice
        self._evidence = evidence
        self._legal = set(survey.recipes)
        self._stored = dict(told)
        self._handed_out: set[Recipe] = set()
        self._waiting: deque[Trial] = deque()
        self._is_fallback = name == FALLBACK
        self._strategy = self._made(name)

    @property
    def remembers(self) -> bool:
        """Whether the strategy learns from what was known before the campaign."""
        return isinstance(self._strategy, Forecaster)

    def put_back(self, trial: Trial) -> None:
        """Queue a trial for another attempt; it comes before any new proposal."""
        self._waiting.append(trial)
        self._handed_out.add(trial.recipe)

    def leave_out(self, recipe: Recipe) -> None:
        """Never propose a recipe whose trial has ended without an outcome that could be told."""
        self._handed_out.add(recipe)

    def tell(self, recipe: Recipe, outcome: Outcome) -> None:
        """Pass a final outcome on to the strategy, which learns nothing from one that the machine is to blame for."""
        self._stored[recipe] = outcome
        try:
            self._strategy.tell(Told(recipe=recipe, outcome=outcome))
        except Exception as error:
            self._replace(f"tell raised {type(error).__name__}: {error}")

    def next(self) -> Trial | Recipe | None:
        """A trial to attempt again, or a new legal recipe, or None when nothing is left."""
        if self._waiting:
            return self._waiting.popleft()
        repeats = 0
        while (recipe := self._ask()) is not None:
            if not self._was_proposed(recipe):
                self._handed_out.add(recipe)
                return recipe
            if recipe in self._stored:
                self._notice("answered-from-store", recipe=recipe.describe())
                self.tell(recipe, self._stored[recipe])
            repeats += 1
            if repeats == MAX_REPEATS and not self._is_fallback:
                self._replace(f"it made {MAX_REPEATS} proposals in a row that it had made before")
        return None

    def _was_proposed(self, recipe: Recipe) -> bool:
        return recipe in self._stored or recipe in self._handed_out

    def _ask(self) -> Recipe | None:
        """One legal proposal; what goes wrong on the way costs the strategy its place, not the campaign its life."""
        while True:  # at most twice: a fault of random order itself is raised by `_replace`
            try:
                proposed = self._strategy.ask(1)
                fault = self._fault_of(proposed)
            except Exception as error:
                fault = f"ask raised {type(error).__name__}: {error}"
            if fault is None:
                return proposed[0] if proposed else None
            self._replace(fault)

    def _fault_of(self, proposed: list[Recipe]) -> str | None:
        """What is wrong with a strategy's answer, or None."""
        if proposed:
            return None if proposed[0] in self._legal else f"it proposed an illegal recipe: {proposed[0]}"
        left = sum(not self._was_proposed(recipe) for recipe in self._legal)
        return f"it proposed nothing while {left} legal recipes were left" if left else None

    def _replace(self, why: str) -> None:
        """Go on in random order; a fault of random order itself is ours and is raised."""
        if self._is_fallback:
            raise RuntimeError(f"strategy {FALLBACK}: {why}")
        self._is_fallback = True
        self._notice("strategy-replaced", why=why[:500], by=FALLBACK)
        self._strategy = self._made(FALLBACK)

    def _made(self, name: str) -> Strategy:
        try:
            return self._informed(make_strategy(name, self._survey, self._seed))
        except FrontrunnerError:
            raise  # a person's mistake, such as an unknown name
        except Exception as error:
            self._replace(f"it could not begin: {type(error).__name__}: {error}")
            return self._strategy

    def _informed(self, strategy: Strategy) -> Strategy:
        """The strategy, told of the legal recipes among the stored outcomes; first a forecaster remembers."""
        if self._evidence and isinstance(strategy, Forecaster):
            strategy.remember(self._evidence)
        for recipe, outcome in self._stored.items():
            if recipe in self._legal:
                strategy.tell(Told(recipe=recipe, outcome=outcome))
        return strategy
