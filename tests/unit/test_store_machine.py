"""Any sequence of a driver's calls, crashes and take-overs included, against a model in plain
Python.

What a driver shows as it goes has to be what one shows that reads the store anew, and what the
ranking says.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from frontrunner.results.outcome import Failure, FailureKind, Measurement, Telemetry
from frontrunner.results.ranking import best
from frontrunner.results.records import Attempt, Trial
from frontrunner.results.states import TrialState
from frontrunner.results.store import open_store
from frontrunner.search.listener import Ended, View
from frontrunner.search.stored_outcomes import StoredOutcomes
from frontrunner.spaces.recipe import Recipe
from support.campaigns import spec_of, tiny

STEP_TIMES_S = (0.25, 0.5, 1.0)
DISTURBED = Telemetry(foreign_limit=0.1, foreign_share=(0.4,), foreign_processes=("make 7",))


@dataclass
class ModelTrial:
    """What one trial should look like."""

    trial: Trial
    state: TrialState = TrialState.QUEUED
    running: Attempt | None = None
    outcomes: list[Measurement | Failure] = field(default_factory=list)

    @property
    def judged(self) -> list[Measurement | Failure]:
        return [
            o for o in self.outcomes if isinstance(o, Measurement) or o.kind is not FailureKind.LOST
        ]

    @property
    def measured(self) -> list[Measurement]:
        """The measurements that count."""
        all_of_them = [o for o in self.outcomes if isinstance(o, Measurement)]
        return [one for one in all_of_them if one.telemetry is None] or all_of_them


def measurement(step_time_s: float) -> Measurement:
    return Measurement(
        step_times_s=(step_time_s,) * 2,
        tokens_per_step=64,
        tokens_per_s=64 / step_time_s,
        model_tflops_per_device=1 / step_time_s,
        hardware_tflops_per_device=1 / step_time_s,
        mfu=None,
        peak_memory_bytes=(1,),
        losses=(1.0, 0.5),
        node_seconds=2.0,
        build_time_s=0.0,
        first_step_time_s=0.0,
    )


def ended(trial: Trial, outcome: Measurement | Failure, *, will_retry: bool = False) -> Ended:
    return Ended(
        number=trial.number,
        recipe=trial.recipe,
        recipe_id=trial.recipe_id,
        outcome=outcome,
        will_retry=will_retry,
    )


class Driver(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.url = str(Path(self.folder.name) / "store.db")
        self.store = open_store(self.url)
        self.campaign = self.store.create_campaign(
            name="c", spec_json="{}", legal_recipes=9, problem_summary={}
        )
        self.model: dict[str, ModelTrial] = {}
        self.final = 0
        self.log: list[tuple[str, Measurement | Failure]] = []
        self.spent = 0.0
        self.live = self.view()
        self.lead()

    def view(self) -> View:
        problem = spec_of(tiny()).problem
        stored = StoredOutcomes(self.store, self.campaign.id, problem)
        return View(name="c", strategy="s", legal_recipes=9, pooled=stored.pooled)

    def teardown(self) -> None:
        self.store.close()
        self.folder.cleanup()

    def lead(self) -> None:
        lease = self.store.acquire_lease(
            self.campaign.id, host="another-host.example", pid=1, take_over=True
        )
        self.writer = self.store.drive(lease)

    @rule(number=st.integers(0, 5))
    def propose(self, number: int) -> None:
        recipe_id = f"{number:04x}"
        trial = self.writer.propose(
            recipe_id, Recipe(devices=1, micro_batch_seqs=number + 1, accumulation=1)
        )
        known = self.model.setdefault(recipe_id, ModelTrial(trial))
        assert (trial.id, trial.number, trial.state) == (
            known.trial.id,
            known.trial.number,
            known.state,
        )

    @precondition(lambda self: any(m.state is TrialState.QUEUED for m in self.model.values()))
    @rule(data=st.data())
    def start(self, data: st.DataObject) -> None:
        queued = sorted(name for name, m in self.model.items() if m.state is TrialState.QUEUED)
        chosen = self.model[data.draw(st.sampled_from(queued))]
        chosen.running = self.writer.start_attempt(chosen.trial, run_folder="r")
        assert chosen.running.number == len(chosen.outcomes) + 1
        chosen.state = TrialState.RUNNING

    @precondition(lambda self: any(m.running for m in self.model.values()))
    @rule(
        data=st.data(),
        outcome=st.one_of(
            st.sampled_from(STEP_TIMES_S).map(measurement),
            st.sampled_from(STEP_TIMES_S).map(
                lambda time_s: replace(measurement(time_s), telemetry=DISTURBED)
            ),
            st.sampled_from(FailureKind).map(
                lambda kind: Failure(kind=kind, message="m", node_seconds=0.5)
            ),
        ),
        retry=st.booleans(),
        twice=st.booleans(),
    )
    def finish(
        self, data: st.DataObject, outcome: Measurement | Failure, retry: bool, twice: bool
    ) -> None:
        name = data.draw(
            st.sampled_from(sorted(name for name, m in self.model.items() if m.running))
        )
        chosen = self.model[name]
        assert chosen.running is not None
        self.writer.finish_attempt(chosen.running, outcome, retry=retry)
        if twice:
            self.writer.finish_attempt(chosen.running, measurement(0.125), retry=not retry)
        chosen.running = None
        chosen.outcomes.append(outcome)
        self.log.append((name, outcome))
        self.spent += outcome.node_seconds
        self.live.count(ended(chosen.trial, outcome, will_retry=retry))
        lost = isinstance(outcome, Failure) and outcome.kind is FailureKind.LOST
        if retry:
            chosen.state = TrialState.QUEUED
            return
        measured = isinstance(outcome, Measurement) or (lost and bool(chosen.measured))
        chosen.state = TrialState.MEASURED if measured else TrialState.FAILED
        self.final += 1

    @precondition(lambda self: any(m.state is TrialState.MEASURED for m in self.model.values()))
    @rule(data=st.data())
    def repeat(self, data: st.DataObject) -> None:
        measured = sorted(name for name, m in self.model.items() if m.state is TrialState.MEASURED)
        chosen = self.model[data.draw(st.sampled_from(measured))]
        assert self.writer.repeat(chosen.trial).state is TrialState.QUEUED
        chosen.state = TrialState.QUEUED

    @rule()
    def crash_and_take_over(self) -> None:
        self.store.close()
        self.store = open_store(self.url)
        self.lead()

    @invariant()
    def the_store_says_what_the_model_says(self) -> None:
        trials = self.store.trials(self.campaign.id)
        assert {t.recipe_id: t.state for t in trials} == {
            name: m.state for name, m in self.model.items()
        }
        told = [outcome for _, outcome in self.store.final_outcomes(self.campaign.id)]
        assert told == [outcome for name, outcome in self.log if self.is_told(name, outcome)]
        running = {m.running.id for m in self.model.values() if m.running}
        assert {attempt.id for attempt in self.store.open_attempts(self.campaign.id)} == running
        campaign = self.store.campaign(None)
        assert (campaign.node_seconds_spent, campaign.outcomes) == (self.spent, self.final)

    def is_told(self, name: str, outcome: Measurement | Failure) -> bool:
        model = self.model[name]
        return any(outcome is one for one in model.measured) or (
            model.state is TrialState.FAILED and bool(model.judged) and outcome is model.judged[-1]
        )

    @invariant()
    def the_ranking_pools_what_was_measured(self) -> None:
        medians = {
            name: float(np.median([m.step_time_s_median for m in model.measured]))
            for name, model in self.model.items()
            if model.measured and model.state is not TrialState.FAILED
        }
        ranked = best(self.store, None, by="step-time", top=None)
        assert [row.recipe_id for row in ranked] == sorted(
            medians, key=lambda name: (medians[name], name)
        )
        assert [row.standing.repeats for row in ranked] == [
            len(self.model[row.recipe_id].measured) for row in ranked
        ]

    @invariant()
    def a_driver_shows_what_its_successor_will_and_the_ranking_does(self) -> None:
        resumed = self.view()
        trials = {trial.recipe: trial for trial in self.store.trials(self.campaign.id)}
        for recipe, outcome in self.store.final_outcomes(self.campaign.id):
            resumed.count(ended(trials[recipe], outcome))
        ranked = best(self.store, None, top=None)
        assert self.live.measured == resumed.measured == len(ranked)
        figures = [one and one.tokens_per_s for one in (self.live.best, resumed.best)]
        assert figures == [ranked[0].standing.tokens_per_s if ranked else None] * 2


TestDriver = Driver.TestCase
TestDriver.settings = settings(
    max_examples=12,
    stateful_step_count=15,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
