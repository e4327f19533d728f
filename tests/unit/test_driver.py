"""The driver over simulated and scripted evaluators: budgets, retries, pauses, recovery, and what
is told to whom.
"""

import gc
import os
import time
from pathlib import Path
from typing import Any

import pytest

from frontrunner.evaluators.analytic.simulated import simulate
from frontrunner.evaluators.protocol import QUEUED, Finished, ProbeOrder, ProbeSetup, Progress
from frontrunner.evaluators.runs.run_folder import RunFolder
from frontrunner.planning import plan_of
from frontrunner.results.outcome import Failure, FailureKind, Measurement, Outcome
from frontrunner.results.process_identity import acting_user, this_host
from frontrunner.results.records import Attempt, Campaign, Trial
from frontrunner.results.states import CampaignState, TrialState
from frontrunner.results.store import Store, open_store
from frontrunner.search import campaign_setup as setup
from frontrunner.search import job_time, tried
from frontrunner.search.attempts import MAX_ATTEMPTS
from frontrunner.search.listener import Ended, Listener, View
from frontrunner.search.spec import CampaignSpec
from frontrunner.spaces.document import recipe_id
from frontrunner.spaces.errors import AlreadyDriven, FrontrunnerError, StoreUnusable
from frontrunner.spaces.recipe import Recipe
from frontrunner.views.history import noticed
from frontrunner.views.live import outcome_line
from support.campaigns import spec_of, tiny, tiny_recipe
from support.drivers import LEGAL, Campaigns, Recorder, Scripted, failure

STATE_AFTER = {"stop": CampaignState.STOPPED, "pause": CampaignState.PAUSED}


def test_a_campaign_without_limits_tries_every_legal_recipe_once(campaigns: Campaigns) -> None:
    record, spec = campaigns.create()
    conclusion = campaigns.driver(record, spec).run()
    assert (conclusion.state, conclusion.reason) == (
        CampaignState.FINISHED,
        "every legal recipe has been tried",
    )
    trials = campaigns.store.trials(record.id)
    assert len({trial.recipe for trial in trials}) == len(trials) == conclusion.measured == LEGAL
    stored = campaigns.store.campaign(record.name)
    assert (stored.state, stored.driver, stored.outcomes) == (CampaignState.FINISHED, None, LEGAL)
    assert stored.driver_seconds > 0


@pytest.mark.parametrize("strategy", ["exhaustive", "random"])
def test_the_budget_of_probes_ends_a_campaign_and_shows_as_it_is_used(
    campaigns: Campaigns, strategy: str
) -> None:
    record, spec = campaigns.create(budget={"probes": 4}, search={"strategy": strategy})
    heard = Recorder()
    conclusion = campaigns.driver(record, spec, heard).run()
    assert conclusion.reason == "the budget is used up: 4 of 4 probes"
    assert heard.probes_seen == [1, 2, 3, 4]
    assert campaigns.states(record) == {TrialState.MEASURED: 4}


class Counting(Listener):
    """Counts what the process holds when some probes have ended, and when many have."""

    def __init__(self) -> None:
        self.ended_probes = 0
        self.held: dict[int, int] = {}

    def probe_ended(self, view: View, ended: Ended) -> None:
        self.ended_probes += 1
        if self.ended_probes in (20, 60):
            self.held[self.ended_probes] = objects_of(Measurement, Recipe, Trial, Attempt)


@pytest.mark.parametrize("strategy", ["exhaustive", "random"])
def test_driver_keeps_nothing_of_each_trial(
    campaigns: Campaigns, strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tried, "ROWS_KEPT", 4)
    choices = {"recompute": ["none", "selective", "full"], "loss_chunks": [1, 2, 4]}
    space = {**tiny()["space"], **choices}
    record, spec = campaigns.create(
        space=space, search={"strategy": strategy}, budget={"probes": 60}
    )
    heard = Counting()
    campaigns.driver(record, spec, heard).run()
    assert heard.held[60] <= heard.held[20] + 2  # the best may be one of those shown, or not


def objects_of(*kinds: type) -> int:
    """The number of objects of these classes that something holds."""
    gc.collect()
    return sum(type(one) in kinds for one in gc.get_objects())


def test_probes_in_flight_count_against_the_budget(campaigns: Campaigns, scripted: Any) -> None:
    made = scripted(lambda recipe, attempt: None, seconds=0.03)
    record, spec = campaigns.create("scripted", budget={"probes": 5}, search={"parallel_probes": 3})
    conclusion = campaigns.driver(record, spec).run()
    assert made.most_at_a_time == 3
    assert conclusion.measured == campaigns.store.campaign(record.name).outcomes == 5


class NoRoom(Scripted):
    """Has nodes for one order at a time; the others wait."""

    seconds = 0.3
    withdrawn = 0

    def __init__(self, setup: ProbeSetup) -> None:
        super().__init__(setup)
        self._line: list[ProbeOrder] = []
        type(self).withdrawn = 0

    def start(self, order: ProbeOrder) -> None:
        self._line.append(order)

    def finished(self, timeout_s: float) -> list[Finished]:
        if not self._running and self._line:
            super().start(self._line.pop(0))
        return super().finished(timeout_s)

    def progress(self, token: str) -> Progress | None:
        if token not in [order.token for order in self._line]:
            return None
        return Progress(phase=QUEUED, steps_done=0, steps_total=1, node_seconds=0.0)

    def withdraw(self, token: str) -> bool:
        before = len(self._line)
        self._line = [order for order in self._line if order.token != token]
        type(self).withdrawn += before - len(self._line)
        return len(self._line) < before


@pytest.mark.parametrize("ask", ["stop", "pause", "hours"])
def test_probes_that_wait_for_nodes_are_withdrawn_when_no_more_may_begin(
    campaigns: Campaigns, scripted: Any, ask: str
) -> None:
    made = scripted(
        lambda recipe, attempt: failure(FailureKind.OUT_OF_MEMORY, node_seconds=9.0), base=NoRoom
    )
    budget = {"node_hours": 0.001} if ask == "hours" else {}
    record, spec = campaigns.create("scripted", budget=budget, search={"parallel_probes": 4})
    heard = Recorder(lambda view, ended: None if ask == "hours" else getattr(driver, ask)())
    driver = campaigns.driver(record, spec, heard)
    conclusion = driver.run()
    assert conclusion.state is (CampaignState.FINISHED if ask == "hours" else STATE_AFTER[ask])
    assert sum(made.attempts.values()) + made.withdrawn >= 4
    assert sum(made.attempts.values()) <= 2, "the one that ran, and one that was about to"
    states = campaigns.states(record)
    assert states[TrialState.QUEUED] == made.withdrawn > 0
    assert campaigns.store.campaign(record.name).node_seconds_spent <= 18.0


def test_a_budget_of_probes_is_used_by_those_that_wait_for_nodes(
    campaigns: Campaigns, scripted: Any
) -> None:
    made = scripted(lambda recipe, attempt: None, base=NoRoom, seconds=0.02)
    record, spec = campaigns.create("scripted", budget={"probes": 5}, search={"parallel_probes": 4})
    assert campaigns.driver(record, spec).run().measured == 5
    assert made.withdrawn == 0


def test_the_budget_of_node_hours_counts_failures_too(campaigns: Campaigns, scripted: Any) -> None:
    scripted(lambda recipe, attempt: failure(FailureKind.OUT_OF_MEMORY, node_seconds=9.0))
    record, spec = campaigns.create(
        "scripted", budget={"node_hours": 0.006}, search={"identical_failures": 99}
    )
    conclusion = campaigns.driver(record, spec).run()
    assert "node-hours" in conclusion.reason
    assert campaigns.states(record) == {TrialState.FAILED: 3}
    assert campaigns.store.campaign(record.name).node_seconds_spent == 27.0


def test_the_budget_of_minutes_is_the_drivers_time_over_all_its_runs(
    campaigns: Campaigns, scripted: Any
) -> None:
    scripted(lambda recipe, attempt: None, seconds=0.2)
    record, spec = campaigns.create("scripted", budget={"minutes": 0.01})
    conclusion = campaigns.driver(record, spec).run()
    assert "minutes" in conclusion.reason
    again = campaigns.driver(record, spec).run()
    assert "minutes" in again.reason
    assert again.measured == conclusion.measured, (
        "resumed with nothing left to spend, it starts nothing"
    )


def test_a_hard_budget_of_node_hours_is_never_passed(
    campaigns: Campaigns, scripted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted(lambda recipe, attempt: None, seconds=600)
    monkeypatch.setattr("frontrunner.search.budget.CUT_S", 0.5)
    allowed_s = 2.0
    budget = {"node_hours": allowed_s / 3600, "hard": True}
    record, spec = campaigns.create("scripted", budget=budget, search={"parallel_probes": 2})
    conclusion = campaigns.driver(record, spec).run()
    assert "node-hours" in conclusion.reason
    assert conclusion.state is CampaignState.FINISHED
    assert 0 < campaigns.store.campaign(record.name).node_seconds_spent < allowed_s
    assert campaigns.states(record) == {TrialState.QUEUED: 2}, "cut off, not failed"


def test_failed_attempts_are_tried_again_as_their_kind_says(
    campaigns: Campaigns, scripted: Any
) -> None:
    kinds = (FailureKind.CRASHED, FailureKind.OUT_OF_MEMORY, FailureKind.LOST)
    spec = spec_of(tiny())
    recipes = spec.space.survey(spec.problem).recipes
    doomed = dict(zip(recipes, kinds, strict=False))
    made = scripted(lambda recipe, attempt: failure(doomed[recipe]) if recipe in doomed else None)
    record, spec = campaigns.create("scripted", budget={"probes": LEGAL})
    heard = Recorder()
    conclusion = campaigns.driver(record, spec, heard).run()
    assert [made.attempts[recipe] for recipe in recipes[:4]] == [2, 1, 4, 1]
    assert conclusion.measured == LEGAL - 3
    assert conclusion.reason == "the budget is used up: 9 of 9 probes", "attempts are no probes"
    assert sum(ended.will_retry for ended in heard.endings) == 1 + 0 + 3
    assert campaigns.store.campaign(record.name).node_seconds_spent > 7.0


def test_a_failure_that_passes_is_measured_in_the_end(campaigns: Campaigns, scripted: Any) -> None:
    scripted(lambda recipe, attempt: failure(FailureKind.HUNG) if attempt == 1 else None)
    record, spec = campaigns.create("scripted")
    assert campaigns.driver(record, spec).run().measured == LEGAL


def test_failing_alike_pauses_before_the_first_measurement_only(
    campaigns: Campaigns, scripted: Any
) -> None:
    scripted(lambda recipe, attempt: failure(FailureKind.CRASHED))
    record, spec = campaigns.create("scripted", search={"identical_failures": 3})
    conclusion = campaigns.driver(record, spec).run()
    assert conclusion.state is CampaignState.PAUSED
    assert conclusion.reason == "3 probes failed alike before any was measured: crashed"
    assert conclusion.last_failure is not None
    assert conclusion.last_failure.log_tail == "the tail"
    scripted(lambda recipe, attempt: None)  # mended
    assert campaigns.driver(record, spec).run().measured == LEGAL - 3


def test_running_out_of_memory_as_the_formulas_predict_does_not_pause(
    campaigns: Campaigns, scripted: Any
) -> None:
    _, whole = campaigns.create(name="whole")
    peaks = sorted(found.peak_memory_bytes for found in plan_of(whole).estimates)
    limits = {
        "memory_gib_per_device": peaks[2] / 2**30
    }  # three of the recipes are estimated to fit
    fitting: set[Recipe] = set()
    scripted(
        lambda recipe, attempt: None if recipe in fitting else failure(FailureKind.OUT_OF_MEMORY)
    )
    record, spec = campaigns.create("scripted", cluster=limits, search={"identical_failures": 2})
    fitting.update(found.recipe for found in plan_of(spec).fastest(LEGAL))
    assert len(fitting) == 3
    conclusion = campaigns.driver(record, spec).run()
    assert (conclusion.state, conclusion.measured) == (CampaignState.FINISHED, 3)

    surprising, spec = campaigns.create(
        "scripted", cluster=limits, search={"identical_failures": 2}, name="surprising"
    )
    scripted(lambda recipe, attempt: failure(FailureKind.OUT_OF_MEMORY))
    paused = campaigns.driver(surprising, spec).run()
    assert paused.reason == "2 probes failed alike before any was measured: out-of-memory"
    tried = [trial.recipe for trial in campaigns.store.trials(surprising.id)]
    assert len(fitting.intersection(tried)) == 2 < len(tried)


def test_a_search_ends_with_what_surely_does_not_fit_untried(
    campaigns: Campaigns, scripted: Any
) -> None:
    large = {"hidden": 4096, "ffn_hidden": 16384}
    _, whole = campaigns.create(name="whole", model=large)
    least = min(found.peak_memory_bytes for found in plan_of(whole).estimates)
    scripted(lambda recipe, attempt: None)
    record, spec = campaigns.create(
        "scripted",
        model=large,
        cluster={"memory_gib_per_device": least / 2**30},
        search={"strategy": "random"},
    )
    heard = Recorder()
    conclusion = campaigns.driver(record, spec, heard).run()
    left = LEGAL - len(campaigns.store.trials(record.id))
    assert 0 < left < LEGAL
    untried = f"but for {left} that surely do not fit (search.prune_infeasible)"
    assert (heard.notices, conclusion.reason) == (
        ["pruned"],
        f"every legal recipe has been tried, {untried}",
    )


def test_failures_of_different_kinds_do_not_pause(campaigns: Campaigns, scripted: Any) -> None:
    kinds = iter([FailureKind.OUT_OF_MEMORY, FailureKind.NOT_FINITE] * LEGAL)
    scripted(lambda recipe, attempt: failure(next(kinds)))
    record, spec = campaigns.create("scripted", search={"identical_failures": 2})
    conclusion = campaigns.driver(record, spec).run()
    assert (conclusion.state, conclusion.measured) == (CampaignState.FINISHED, 0)


def test_a_request_to_stop_lets_running_probes_finish(campaigns: Campaigns, scripted: Any) -> None:
    scripted(lambda recipe, attempt: None, seconds=0.05)
    record, spec = campaigns.create("scripted", search={"parallel_probes": 2})
    heard = Recorder(lambda view, ended: driver.stop())
    driver = campaigns.driver(record, spec, heard)
    conclusion = driver.run()
    assert conclusion.state is CampaignState.STOPPED
    assert heard.notices == ["stopping"]
    assert campaigns.states(record) == {TrialState.MEASURED: conclusion.measured}
    assert campaigns.driver(record, spec).run().measured == LEGAL


def test_a_request_to_end_queues_what_was_running(campaigns: Campaigns, scripted: Any) -> None:
    scripted(lambda recipe, attempt: None, seconds=3600)
    record, spec = campaigns.create("scripted", search={"parallel_probes": 2})

    class Impatient(Listener):
        def ticked(self, view: View) -> None:
            driver.kill()

    driver = campaigns.driver(record, spec, Impatient())
    conclusion = driver.run()
    assert (conclusion.state, conclusion.reason) == (CampaignState.STOPPED, "canceled by request")
    assert campaigns.states(record) == {TrialState.QUEUED: 2}
    began, ended = campaigns.store.events(record.id)
    by = {"driver": f"{this_host()}:{os.getpid()}", "user": acting_user()}
    assert (began.kind, began.data) == ("launched", by)
    assert (ended.kind, ended.data) == (
        "stopping",
        {"leaves": "stopped", "probes_to_finish": 0, "probes_ended": 2},
    )
    assert campaigns.store.open_attempts(record.id) == []
    scripted(lambda recipe, attempt: None)
    assert campaigns.driver(record, spec).run().measured == LEGAL
    assert len(campaigns.store.trials(record.id)) == LEGAL
    assert "resumed" in [event.kind for event in campaigns.store.events(record.id)]


def test_what_probes_wait_for_is_reported_and_stored_once(
    campaigns: Campaigns, scripted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = scripted(lambda recipe, attempt: None)
    monkeypatch.setattr(made, "waits_for", "1 of Ray's 1 nodes have CPU 1", raising=False)
    record, spec = campaigns.create("scripted")
    heard = Recorder()
    campaigns.driver(record, spec, heard).run()
    assert heard.notices == ["nodes-awaited"]
    (event,) = [
        event for event in campaigns.store.events(record.id) if event.kind == "nodes-awaited"
    ]
    assert noticed(event.kind, event.data) == "probes wait for nodes: 1 of Ray's 1 nodes have CPU 1"


def test_the_same_seed_goes_on_where_it_was_stopped(campaigns: Campaigns) -> None:
    whole, spec = campaigns.create(name="whole")
    campaigns.driver(whole, spec).run()
    parts, spec = campaigns.create(name="parts")
    for _ in range(LEGAL + 1):
        campaigns.stopped_after_a_probe(parts, spec)
    tried = [
        [trial.recipe for trial in campaigns.store.trials(record.id)] for record in (whole, parts)
    ]
    assert tried[0] == tried[1]


def left_open(
    campaigns: Campaigns, outcome: Outcome | None
) -> tuple[Campaign, CampaignSpec, Recipe]:
    """A campaign whose driver died with one attempt under way, which left an outcome on disk or
    none.
    """
    record, spec = campaigns.create()
    recipe = spec.space.survey(spec.problem).recipes[-1]
    lease = campaigns.store.acquire_lease(record.id, host=this_host(), pid=2**22 + 1)
    writer = campaigns.store.drive(lease)
    writer.set_state(CampaignState.RUNNING, reason="")
    trial = writer.propose(recipe_id(spec.problem, recipe), recipe)
    folder = spec.run_folder / "00001.1"
    folder.mkdir(parents=True)
    writer.start_attempt(trial, run_folder=str(folder))
    if outcome is not None:
        RunFolder(folder).write_outcome(outcome)
    return record, spec, recipe


def test_an_outcome_on_disk_of_a_driver_that_died_is_harvested_once(campaigns: Campaigns) -> None:
    spec = spec_of(tiny(), campaigns.folder)
    recipe = spec.space.survey(spec.problem).recipes[-1]
    measured = simulate(recipe, spec.probe_setup())
    record, spec, recipe = left_open(campaigns, measured)
    heard = Recorder()
    assert campaigns.driver(record, spec, heard).run().measured == LEGAL
    assert heard.notices == ["harvested"]
    assert dict(campaigns.store.final_outcomes(record.id))[recipe] == measured
    assert recipe not in {ended.recipe for ended in heard.endings}, "not probed again"
    assert campaigns.store.campaign(record.name).node_seconds_spent >= measured.node_seconds


def test_an_attempt_that_left_nothing_is_made_again(campaigns: Campaigns) -> None:
    record, spec, recipe = left_open(campaigns, None)
    heard = Recorder()
    assert campaigns.driver(record, spec, heard).run().measured == LEGAL
    assert heard.notices == ["lost"]
    assert heard.endings[0].recipe == recipe, "first of all"
    assert len(campaigns.store.trials(record.id)) == LEGAL


def test_a_harvested_failure_is_tried_again_as_its_kind_says(campaigns: Campaigns) -> None:
    record, spec, recipe = left_open(campaigns, failure(FailureKind.CRASHED))
    heard = Recorder()
    assert campaigns.driver(record, spec, heard).run().measured == LEGAL
    assert heard.endings[0].recipe == recipe


def test_a_recipe_that_takes_its_driver_along_is_given_up_in_the_end(campaigns: Campaigns) -> None:
    record, spec, _ = left_open(campaigns, None)
    for _ in range(
        MAX_ATTEMPTS + 1
    ):  # each driver finds the attempt lost, and is killed while it makes the next
        lease = campaigns.store.acquire_lease(record.id, host=this_host(), pid=2**22 + 1)
        (trial,) = campaigns.store.trials(record.id)
        if trial.state is TrialState.QUEUED:
            campaigns.store.drive(lease).start_attempt(
                trial, run_folder=str(spec.run_folder / "gone")
            )
        campaigns.store.drive(lease).release(CampaignState.STOPPED, reason="")
        campaigns.stopped_at_once(record, spec)
    assert campaigns.states(record) == {TrialState.FAILED: 1}
    conclusion = campaigns.driver(record, spec).run()
    assert conclusion.measured == LEGAL - 1, "and it is not proposed again"


def test_a_trial_that_was_lost_for_good_is_left_alone_on_resume(
    campaigns: Campaigns, scripted: Any
) -> None:
    spec = spec_of(tiny())
    doomed = spec.space.survey(spec.problem).recipes[0]
    made = scripted(lambda recipe, attempt: failure(FailureKind.LOST) if recipe == doomed else None)
    record, spec = campaigns.create(
        "scripted", search={"strategy": "exhaustive"}, budget={"probes": 3}
    )
    campaigns.driver(record, spec).run()
    assert made.attempts[doomed] == 4
    larger = spec_of(
        tiny(evaluator="scripted", search={"strategy": "exhaustive"}), campaigns.folder
    )
    conclusion = campaigns.driver(record, larger).run()
    assert conclusion.measured == LEGAL - 1
    assert made.attempts[doomed] == 0, "counted anew by the second driver's evaluator"


def test_a_second_driver_is_refused_and_takes_over_when_told(
    campaigns: Campaigns, scripted: Any
) -> None:
    scripted(lambda recipe, attempt: None, seconds=0.02)
    record, spec = campaigns.create("scripted")
    seen: list[str] = []

    def rival(view: View, ended: Ended) -> None:
        if not seen:
            with pytest.raises(AlreadyDriven, match=f"{this_host()}:{os.getpid()}") as caught:
                campaigns.driver(record, spec).run()
            seen.append(caught.value.message)
            campaigns.driver(record, spec).run(take_over=True)

    with pytest.raises(AlreadyDriven, match=r"given back|taken over"):
        campaigns.driver(record, spec, Recorder(rival)).run()
    assert campaigns.states(record) == {TrialState.MEASURED: LEGAL}
    assert campaigns.store.campaign(record.name).state is CampaignState.FINISHED, (
        "the fenced driver changed nothing"
    )


def test_two_stores_may_share_a_folder_for_runs(campaigns: Campaigns, tmp_path: Path) -> None:
    record, spec = campaigns.create()
    campaigns.driver(record, spec).run()
    with open_store(str(tmp_path / "other.db")) as other:
        others = Campaigns(other, campaigns.folder)
        second, spec = others.create()
        others.driver(second, spec).run()
        folders = [
            a.run_folder
            for s, r in ((campaigns.store, record), (other, second))
            for a in _attempts(s, r)
        ]
    assert len(set(folders)) == len(folders) == 2 * LEGAL


def _attempts(store: Store, record: Campaign) -> list[Any]:
    from sqlalchemy import select

    from frontrunner.results.schema import AttemptRow

    with store.database.read() as connection:
        return list(
            connection.execute(select(AttemptRow).where(AttemptRow.campaign_id == record.id))
        )


def test_an_evaluator_that_fails_leaves_a_campaign_that_can_be_resumed(
    campaigns: Campaigns, scripted: Any
) -> None:
    def broken_disk(recipe: Recipe, attempt: int) -> Outcome | None:
        raise OSError(5, "Input/output error")

    scripted(broken_disk)
    record, spec = campaigns.create("scripted")
    with pytest.raises(FrontrunnerError, match="Input/output error") as caught:
        campaigns.driver(record, spec).run()
    assert "frontrunner resume tiny" in str(caught.value.hint)
    stored = campaigns.store.campaign(record.name)
    assert (stored.state, stored.driver) == (CampaignState.FAILED, None)
    assert "OSError" in stored.state_reason
    scripted(lambda recipe, attempt: None)
    assert campaigns.driver(record, spec).run().measured == LEGAL


class BatchJob:
    """A batch job that the driver is in, as its batch system reports it: `left_s` before its
    end.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, left_s: float) -> None:
        self.left_s = left_s
        monkeypatch.setattr(job_time, "end_of_job", lambda: time.monotonic() + self.left_s)
        monkeypatch.setattr(job_time, "LOOK_AT_JOB_S", 0.01)


def test_a_driver_stops_before_its_job_ends_and_another_job_s_goes_on(
    campaigns: Campaigns, scripted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = BatchJob(monkeypatch, left_s=1000.0)

    def end_soon(view: View, ended: Ended) -> None:
        if view.measured == 3:
            job.left_s = 44.0  # below what the driver itself needs at the end

    scripted(lambda recipe, attempt: None, seconds=0.05)
    record, spec = campaigns.create("scripted")
    conclusion = campaigns.driver(record, spec, Recorder(end_soon)).run()
    assert (conclusion.state, conclusion.job_ends) == (CampaignState.STOPPED, True)
    assert "its job ends in 4" in conclusion.reason
    assert 3 <= conclusion.measured < LEGAL
    assert set(campaigns.states(record)) == {TrialState.MEASURED}, "what ran has ended"
    job.left_s = 1000.0
    again = campaigns.driver(record, spec).run()
    assert (again.state, again.job_ends, again.measured) == (CampaignState.FINISHED, False, LEGAL)


def test_a_job_too_short_for_a_probe_pauses_the_campaign(
    campaigns: Campaigns, scripted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    BatchJob(monkeypatch, left_s=100.0)
    scripted(lambda recipe, attempt: None)
    record, spec = campaigns.create(
        "scripted"
    )  # whose probes may take 60 s, and 45 s are for the driver's end
    conclusion = campaigns.driver(record, spec).run()
    assert (conclusion.state, conclusion.job_ends) == (CampaignState.PAUSED, False)
    assert conclusion.reason.endswith("a probe needs up to 645 s; no probe has run in it")


class OneEnds(Scripted):
    """Ends its first order, and none of the others."""

    def finished(self, timeout_s: float) -> list[Finished]:
        time.sleep(min(timeout_s, 0.002))
        return [] if self.attempts else [self._scripted(self._running[0][1])]


def test_what_outlasts_the_job_is_cut_off_and_tried_again(
    campaigns: Campaigns, scripted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = BatchJob(monkeypatch, left_s=1000.0)
    scripted(
        lambda recipe, attempt: setattr(job, "left_s", 20.0), OneEnds
    )  # which moves the job's end
    record, spec = campaigns.create("scripted", search={"parallel_probes": 9})
    conclusion = campaigns.driver(record, spec).run()
    assert (conclusion.state, conclusion.job_ends) == (CampaignState.STOPPED, True)
    states = campaigns.states(record)
    assert states[TrialState.MEASURED] >= 1
    assert states[TrialState.QUEUED] == LEGAL - states[TrialState.MEASURED] > 0


@pytest.mark.parametrize(
    ("harm", "what"),
    [("unlink", "was removed"), ("replace", "was replaced by another file")],
)
def test_driver_stops_when_its_store_s_file_is_gone(
    tmp_path: Path, campaigns: Campaigns, harm: str, what: str
) -> None:
    """Else SQLite would acknowledge every later outcome into a file that nobody finds again."""
    path = campaigns.store.database.address.path
    assert path is not None

    def lose(view: View, ended: Ended) -> None:
        if harm == "unlink":
            path.unlink()
        else:
            open_store(str(tmp_path / "other.db"), create=True).close()
            (tmp_path / "other.db").replace(path)

    record, spec = campaigns.create()
    recorder = Recorder(lose)
    with pytest.raises(StoreUnusable, match=f"{what} while it was in use") as stopped:
        campaigns.driver(record, spec, recorder).run()
    assert stopped.value.exit_code == 4
    assert f"frontrunner store recover {spec.run_folder}" in (stopped.value.hint or "")
    assert len(recorder.endings) == 1, "nothing is acknowledged afterwards"


def test_the_line_of_a_failure_ends_after_a_whole_word() -> None:
    message = "node n7 was lost:\nthe actor is " + 9 * "temporarily unavailable "
    recipe = tiny_recipe()
    ended = Ended(
        number=1,
        recipe=recipe,
        recipe_id="r",
        outcome=Failure(kind=FailureKind.LOST, message=message),
        will_retry=True,
    )
    line = outcome_line(ended)
    assert line.startswith("lost: node n7 was lost: the actor is temporarily")
    told, _, rest = line.partition(" ...")
    assert told.rpartition(" ")[2] in {"temporarily", "unavailable"}
    assert rest == ", will be tried again"
    assert len(line) < 150


def test_a_finished_campaign_is_over_until_a_changed_budget_or_a_trial_gives_it_something_to_run(
    campaigns: Campaigns,
) -> None:
    store = campaigns.store
    created, _ = campaigns.create(budget={"probes": 2})

    def is_over() -> bool:
        record = store.campaign(created.name)
        return setup.is_over(store, record, setup.stored_spec(record))

    def drive() -> None:
        record = store.campaign(created.name)
        campaigns.driver(record, setup.stored_spec(record)).run()

    assert not is_over()
    drive()
    assert is_over(), "its budget is used up"
    setup.change_budget(store, store.campaign(created.name), {"probes": 99})
    assert not is_over()
    drive()
    assert is_over(), "every recipe has been tried"
    writer = store.drive(store.acquire_lease(created.id, host=this_host(), pid=os.getpid()))
    writer.repeat(store.trials(created.id)[0])
    writer.release(CampaignState.FINISHED, reason="")
    assert not is_over()
    drive()
    assert is_over()
    campaigns.stopped_at_once(store.campaign(created.name), setup.stored_spec(created))
    assert not is_over(), "it was stopped"
