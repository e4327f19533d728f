"""Which recipe comes next: trials that wait for another attempt, then the strategy's proposals.

A strategy is somebody else's library behind a promise. Here the promise is checked: a proposal that was
tried before is answered from the store, one that is illegal is turned away, and a strategy that raises or
breaks its word twice in a row is replaced by random order, so that the campaign goes on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from frontrunner.results.outcome import Outcome
from frontrunner.results.records import Trial
from frontrunner.search.strategy import Strategy, Told, make_strategy
from frontrunner.spaces.recipe import Recipe
from frontrunner.spaces.space import Survey

FALLBACK = "random"
Notice = Callable[..., None]
"""Called as notice(kind, **data)."""


class Proposals:
    """The queue of a campaign's next recipes. Used by the driver's thread."""

    def __init__(
        self, *, name: str, survey: Survey, seed: int, told: Iterable[tuple[Recipe, Outcome]], notice: Notice
    ) -> None:
        """Make the strategy and tell it what was stored, in its order."""
        self._survey = survey
        self._seed = seed
        self._notice = notice
        self._legal = set(survey.recipes)
        self._stored = dict(told)
        self._handed_out: set[Recipe] = set()
        self._waiting: deque[Trial] = deque()
        self._is_fallback = name == FALLBACK
        self._strategy = self._made(name)

    def _made(self, name: str) -> Strategy:
        strategy = make_strategy(name, self._survey, self._seed)
        for recipe, outcome in self._stored.items():
            if recipe in self._legal:
                strategy.tell(Told(recipe=recipe, outcome=outcome))
        return strategy

    def put_back(self, trial: Trial) -> None:
        """Queue a trial for another attempt; it comes before any new proposal."""
        self._waiting.append(trial)
        self._handed_out.add(trial.recipe)

    def tell(self, recipe: Recipe, outcome: Outcome) -> None:
        """Pass a final outcome on to the strategy; one that does not count against the recipe is kept from it."""
        self._stored[recipe] = outcome
        try:
            self._strategy.tell(Told(recipe=recipe, outcome=outcome))
        except Exception as error:
            self._replace(f"tell raised {type(error).__name__}: {error}")

    def next(self) -> Trial | Recipe | None:
        """A trial to attempt again, or a new legal recipe, or None when nothing is left."""
        if self._waiting:
            return self._waiting.popleft()
        for _ in range(len(self._legal) + 1):
            recipe = self._ask()
            if recipe is None:
                return None
            if recipe in self._stored:
                self._notice("answered-from-store", recipe=recipe.describe())
                self.tell(recipe, self._stored[recipe])
            elif recipe not in self._handed_out:
                self._handed_out.add(recipe)
                return recipe
        self._replace("it repeats recipes that are being tried")
        return self._ask()

    def _ask(self) -> Recipe | None:
        """One legal proposal; what goes wrong on the way costs the strategy its place, not the campaign its life."""
        for _ in range(2):
            try:
                proposed = self._strategy.ask(1)
            except Exception as error:
                self._replace(f"ask raised {type(error).__name__}: {error}")
                continue
            if not proposed:
                return None
            if proposed[0] in self._legal:
                return proposed[0]
            self._replace(f"it proposed an illegal recipe: {proposed[0].describe()}")
        return None

    def _replace(self, why: str) -> None:
        """Go on in random order; a fault of random order itself is ours and is raised."""
        if self._is_fallback:
            raise RuntimeError(f"strategy {FALLBACK}: {why}")
        self._is_fallback = True
        self._notice("strategy-replaced", why=why[:500], by=FALLBACK)
        self._strategy = self._made(FALLBACK)
