"""What the driver hands out when a strategy keeps its promise, and when it breaks it."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from frontrunner.evaluators.analytic.estimates import plan, surely_too_large
from frontrunner.evaluators.registry import EVALUATORS
from frontrunner.results.outcome import (
    Failure,
    FailureKind,
    Measurement,
    Outcome,
    Telemetry,
    pool,
    undisturbed,
)
from frontrunner.results.records import Trial
from frontrunner.results.states import TrialState
from frontrunner.results.store import open_store
from frontrunner.search.listener import Ended, View
from frontrunner.search.proposals import Proposals
from frontrunner.search.spec import SearchSettings
from frontrunner.search.strategy import STRATEGIES, Evidence, Outlook, Told
from frontrunner.spaces.errors import InvalidInput
from frontrunner.spaces.recipe import Recipe
from frontrunner.spaces.space import Survey
from support import doubles
from support.campaigns import spec_of, tiny
from support.doubles import as_evaluator
from support.drivers import Campaigns, Scripted
from support.drivers import failure as scripted_failure
from support.known import Known, PooledTrials
from support.rankings import measurement

SPEC = spec_of(tiny())
SURVEY = SPEC.space.survey(SPEC.problem)
FAILED = Failure(kind=FailureKind.CRASHED, message="no")


DISTURBED = Telemetry(foreign_limit=0.1, foreign_share=(0.4,), foreign_processes=("make 7",))
FAST, SLOW = measurement((1.0,), 1), measurement((2.0,), 1)
MEASUREMENTS = (FAST, SLOW, replace(FAST, telemetry=DISTURBED), replace(SLOW, telemetry=DISTURBED))


class Notices(list[tuple[str, dict[str, Any]]]):
    def __call__(self, kind: str, **data: Any) -> None:
        self.append((kind, data))

    @property
    def kinds(self) -> list[str]:
        return [kind for kind, _ in self]


class Misbehaving:
    """Keeps to the order of the space, unless a method is replaced."""

    def __init__(self, recipes: tuple[Recipe, ...]) -> None:
        self.left = list(recipes)

    def ask(self, count: int) -> list[Recipe]:
        return [self.left.pop(0) for _ in range(min(count, len(self.left)))]

    def tell(self, told: Told) -> None:
        pass


class Remembers(Misbehaving):
    """A forecaster that keeps what it hears, in order."""

    def __init__(self, recipes: tuple[Recipe, ...]) -> None:
        super().__init__(recipes)
        self.heard: list[str] = []
        self.outcomes: list[Outcome] = []

    def remember(self, evidence: Sequence[Evidence]) -> None:
        self.heard += [f"remember {known.origin}" for known in evidence]

    def tell(self, told: Told) -> None:
        self.heard.append(f"tell {told.recipe.describe()}")
        self.outcomes.append(told.outcome)

    def outlook(self) -> Outlook | None:
        return None

    def worth_repeating(self) -> Recipe | None:
        return None

    def expected(self, recipe: Recipe) -> None:
        return None


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Survey, int], Any]], str]:
    """Register a strategy of the test's own, under the name `bad`."""

    def follow(factory: Callable[[Survey, int], Any]) -> str:
        doubles.register(monkeypatch, STRATEGIES, "bad", factory)
        return "bad"

    return follow


def settings(name: str) -> SearchSettings:
    return SearchSettings(strategy=name, seed=1)


def proposals(name: str, notices: Notices, told: Any = (), known: Known | None = None) -> Proposals:
    return Proposals(
        search=settings(name),
        survey=SURVEY,
        told=told,
        known=known or Known(told),
        notice=notices,
    )


def following(found: Proposals) -> Trial | Recipe | None:
    return found.again() or found.new()


def drained(found: Proposals) -> list[Recipe]:
    """Every proposal, each told as failed."""
    recipes = []
    while (chosen := following(found)) is not None:
        assert isinstance(chosen, Recipe)
        recipes.append(chosen)
        found.tell(chosen, FAILED)
    return recipes


@pytest.mark.parametrize("name", ["exhaustive", "random"])
def test_each_legal_recipe_is_proposed_once(name: str) -> None:
    notices = Notices()
    assert sorted(map(repr, drained(proposals(name, notices)))) == sorted(map(repr, SURVEY.recipes))
    assert notices == []


@pytest.mark.parametrize("name", ["random", "optuna-tpe", "deephyper"])
def test_what_surely_does_not_fit_is_proposed_only_where_nothing_is_pruned(name: str) -> None:
    problem = replace(
        SPEC.problem, model=SPEC.problem.model.with_keys(hidden=4096, ffn_hidden=16384)
    )
    peaks = {one.recipe: one.peak_memory_bytes for one in plan(SURVEY.recipes, problem).estimates}
    limit = min(peaks.values()) / 2**30

    def survey(gib: float) -> Survey:
        cluster = replace(problem.cluster, memory_gib_per_device=gib)
        return SPEC.space.survey(replace(problem, cluster=cluster))

    def proposed(gib: float, *, prune: bool = True) -> tuple[set[Recipe], int]:
        search = SearchSettings(strategy=name, seed=1, prune_infeasible=prune)
        found = Proposals(
            search=search, survey=survey(gib), told=(), known=Known(), notice=Notices()
        )
        return set(drained(found)), found.pruned

    whole, few = set(SURVEY.recipes), proposed(limit)
    small = survey(limit)
    surely = set(itertools.compress(small.recipes, surely_too_large(small.recipes, small.problem)))
    assert 0 < len(surely) < len(whole)
    assert min(peaks[recipe] for recipe in surely) / 2**30 > 1.2 * limit, "what is close is tried"
    assert few == (whole - surely, len(surely))
    assert proposed(limit, prune=False) == (whole, 0)
    assert proposed(limit / 1000) == (whole, 0), "nothing would be left: the formulas may be wrong"


def test_a_trial_that_was_put_back_comes_first_and_its_recipe_no_more() -> None:
    found = proposals("exhaustive", Notices())
    trial = Trial(
        id=1,
        campaign_id=1,
        number=1,
        recipe_id="x",
        recipe=SURVEY.recipes[0],
        state=TrialState.QUEUED,
    )
    found.put_back(trial)
    assert following(found) is trial
    found.tell(trial.recipe, FAILED)
    assert drained(found) == list(SURVEY.recipes[1:])


def test_what_was_told_or_left_out_is_not_proposed() -> None:
    found = proposals("exhaustive", Notices(), told=[(SURVEY.recipes[1], FAILED)])
    found.leave_out(SURVEY.recipes[0])
    assert drained(found) == list(SURVEY.recipes[2:])


def test_stored_recipes_of_another_space_are_no_concern_of_the_strategy() -> None:
    stranger = replace(SURVEY.recipes[0], micro_batch_seqs=64)
    assert len(drained(proposals("random", Notices(), told=[(stranger, FAILED)]))) == len(
        SURVEY.recipes
    )


def test_a_forecaster_remembers_what_was_known_before_it_is_told_what_is_stored(
    register: Callable[..., str],
) -> None:
    forecaster = Remembers(SURVEY.recipes[1:])
    known = Evidence(
        problem=SPEC.problem, recipe=SURVEY.recipes[2], outcome=FAILED, origin="sweep.csv"
    )
    Proposals(
        search=settings(register(lambda _, __: forecaster)),
        survey=SURVEY,
        told=[(SURVEY.recipes[0], FAILED)],
        known=Known(),
        notice=Notices(),
        evidence=[known],
    )
    assert forecaster.heard == ["remember sweep.csv", f"tell {SURVEY.recipes[0].describe()}"]


def test_evidence_is_no_concern_of_a_strategy_that_predicts_nothing() -> None:
    known = Evidence(
        problem=SPEC.problem, recipe=SURVEY.recipes[2], outcome=FAILED, origin="sweep.csv"
    )
    found = Proposals(
        search=settings("exhaustive"),
        survey=SURVEY,
        told=(),
        known=Known(),
        notice=Notices(),
        evidence=[known],
    )
    assert drained(found) == list(SURVEY.recipes)


def _raises(*_: Any) -> Any:
    raise RuntimeError("out of ideas")


BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "ask raises": ({"ask": _raises}, "ask raised RuntimeError: out of ideas"),
    "tell raises": ({"tell": _raises}, "tell raised RuntimeError: out of ideas"),
    "cannot be made": ({"__init__": _raises}, "it could not begin: RuntimeError: out of ideas"),
}


@pytest.mark.parametrize(("methods", "why"), BROKEN.values(), ids=BROKEN)
def test_a_strategy_that_breaks_its_promise_is_replaced_once(
    methods: dict[str, Any], why: str, register: Callable[..., str]
) -> None:
    notices = Notices()
    strategy = type("Broken", (Misbehaving,), methods)
    found = proposals(register(lambda survey, _: strategy(survey.recipes)), notices)
    assert sorted(map(repr, drained(found))) == sorted(map(repr, SURVEY.recipes)), (
        "none lost, none twice"
    )
    replaced = [data for kind, data in notices if kind == "strategy-replaced"]
    assert len(replaced) == 1
    assert why in replaced[0]["why"]
    assert replaced[0]["by"] == "random"


def test_what_is_being_tried_is_not_proposed_by_the_replacement(
    register: Callable[..., str],
) -> None:
    class RaisesLater(Misbehaving):
        def ask(self, count: int) -> list[Recipe]:
            if len(self.left) < len(SURVEY.recipes) - 2:
                raise RuntimeError("done")
            return super().ask(count)

    found = proposals(register(lambda survey, _: RaisesLater(survey.recipes)), Notices())
    running = [
        following(found) for _ in range(len(SURVEY.recipes))
    ]  # none is told: all are in flight
    assert len(set(running)) == len(SURVEY.recipes)
    assert following(found) is None


def test_a_strategy_that_fails_on_what_is_stored_is_replaced(register: Callable[..., str]) -> None:
    notices = Notices()
    strategy = type("Broken", (Misbehaving,), {"tell": _raises})
    told = [(SURVEY.recipes[0], FAILED)]
    found = proposals(register(lambda survey, _: strategy(survey.recipes)), notices, told)
    assert len(drained(found)) == len(SURVEY.recipes) - 1
    assert notices.kinds == ["strategy-replaced"]


@pytest.mark.parametrize(
    "order", [list(order) for order in itertools.product(MEASUREMENTS, repeat=3)]
)
def test_what_others_disturbed_counts_for_a_running_driver_as_for_the_next_one(
    register: Callable[..., str], order: list[Measurement]
) -> None:
    """Three measurements of a recipe after one of another, each as its own object, as they come
    from a store.
    """
    made: list[Remembers] = []
    name = register(lambda survey, _: made.append(Remembers(survey.recipes)) or made[-1])
    of, other = SURVEY.recipes[:2]
    stored, trials = Known(), PooledTrials()
    found = proposals(name, Notices(), known=stored)
    view = View(name="c", strategy=name, legal_recipes=9, pooled=trials.pooled)
    told, known = [(other, replace(SLOW))], [replace(one) for one in order]
    stored.tell(found, *told[0])
    view.count(trials.add(ended(*told[0])))
    for number, outcome in enumerate(known, start=1):
        counting = undisturbed(known[:number])
        assert stored.tell(found, of, outcome) == any(outcome is one for one in counting)
        view.count(trials.add(ended(of, outcome, will_retry=outcome.is_disturbed)))
        told = [told[0], *((of, one) for one in counting)]
        live = made[-1]
        resumed = View(name="c", strategy=name, legal_recipes=9, pooled=trials.pooled)
        proposals(name, Notices(), told)
        assert live.outcomes == made.pop().outcomes
        for pair in told:
            resumed.count(ended(*pair))
        assert (view.best and view.best.outcome) == (resumed.best and resumed.best.outcome)
        assert view.best is not None
        assert view.best.tokens_per_s == max(SLOW.tokens_per_s, pool(known[:number]).tokens_per_s)
        assert view.measured == 2


def test_a_recipe_that_failed_after_measuring_counts_once_measured_again_as_in_the_ranking() -> (
    None
):
    recipe, trials = SURVEY.recipes[0], PooledTrials()
    view = View(name="c", strategy="random", legal_recipes=9, pooled=trials.pooled)
    shown = []
    for outcome in (FAST, FAILED, SLOW):
        view.count(trials.add(ended(recipe, outcome)))
        shown.append((view.measured, view.best and view.best.tokens_per_s))
    assert shown == [(1, FAST.tokens_per_s), (0, None), (1, pool([FAST, SLOW]).tokens_per_s)]


def ended(recipe: Recipe, outcome: Outcome, *, will_retry: bool = False) -> Ended:
    return Ended(
        number=1 + list(SURVEY.recipes).index(recipe),
        recipe=recipe,
        recipe_id=recipe.describe(),
        outcome=outcome,
        will_retry=will_retry,
    )


def test_a_repeat_that_others_disturbed_is_not_wanted_again() -> None:
    found = Proposals(
        search=replace(settings("exhaustive"), repeats=2),
        survey=SURVEY,
        told=(),
        known=Known(),
        notice=Notices(),
    )
    recipe = SURVEY.recipes[0]
    assert (following(found), found.tell(recipe, FAST), following(found)) == (recipe, True, recipe)
    assert not found.tell(recipe, MEASUREMENTS[2])
    assert following(found) == SURVEY.recipes[1]


def test_an_unknown_strategy_is_a_mistake_not_a_fault() -> None:
    with pytest.raises(InvalidInput, match=r"search\.strategy"):
        proposals("optuna-tp", Notices())


def test_asked_recipes_are_made_once_they_are_measured_and_a_failure_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver's count of three asked for, of which the second fails."""
    made = type("Mine", (Scripted,), {"script": staticmethod(lambda *_: None)})
    doubles.register(monkeypatch, EVALUATORS, "scripted", made, as_evaluator)
    asked = [SURVEY.recipes[0], *SURVEY.recipes[5:7]]
    with open_store(str(tmp_path / "store.db")) as store:
        campaigns = Campaigns(store, tmp_path / "runs")
        record, spec = campaigns.create(
            evaluator="scripted", search={"strategy": "exhaustive"}, budget={"probes": 1}
        )
        campaigns.driver(record, spec).run()
        made.script = staticmethod(  # type: ignore[attr-defined]
            lambda recipe, _: scripted_failure(FailureKind.HUNG) if recipe == asked[1] else None
        )

        found = campaigns.driver(record, spec, asked=asked).run()

    assert (found.unmade, found.reason) == (1, "2 of 3 measured as asked")
    assert found.last_failure is not None
    assert found.last_failure.kind is FailureKind.HUNG
