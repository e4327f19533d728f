"""What a new campaign learns from a store: which outcomes are evidence, which answer, and why the
others are not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from frontrunner.evaluators.analytic.simulated import simulate
from frontrunner.results.outcome import Failure, FailureKind, Measurement, Outcome, Telemetry
from frontrunner.results.prior_results import REUSED, campaign_results
from frontrunner.results.provenance import Provenance
from frontrunner.results.states import CampaignState
from frontrunner.results.store import Store, open_store
from frontrunner.results.writer import CampaignWriter
from frontrunner.search.campaign_setup import problem_summary
from frontrunner.search.spec import CampaignSpec
from frontrunner.search.warm_start import MOST_EVIDENCE, RECENT, Earlier, PriorResults, gather
from frontrunner.spaces.custom import Custom
from frontrunner.spaces.document import recipe_id
from frontrunner.spaces.recipe import Recipe
from frontrunner.spaces.validation import dump_json
from support.campaigns import Table, spec_of, tiny
from support.store_contract import SettableClock

HERE = Provenance(
    versions={
        "python": "3.11.9",
        "torch": "2.13.0+cu124",
        "optuna": "5.0",
        "nvidia-driver": "550.54.15",
    },
    host="node1",
    platform="Linux",
    device="test-cpu",
    git_revision=None,
    git_dirty=None,
    command_line=(),
)


@pytest.fixture
def clock() -> SettableClock:
    return SettableClock()


@pytest.fixture
def store(tmp_path: Path, clock: SettableClock) -> Iterator[Store]:
    with open_store(str(tmp_path / "store.db"), clock=clock) as opened:
        yield opened


class Past:
    """Earlier campaigns, with outcomes that are recorded as a driver would."""

    def __init__(self, store: Store, folder: Path) -> None:
        self.store, self.folder = store, folder
        self.earlier: list[Earlier] = []

    def spec(self, **sections: Table | str) -> CampaignSpec:
        return spec_of(tiny(**sections), self.folder)  # type: ignore[arg-type]

    def add(
        self,
        *outcomes: tuple[Recipe, Outcome],
        provenance: Provenance | None = HERE,
        reused: tuple[int, ...] = (),
        **sections: Any,
    ) -> None:
        """A campaign with these outcomes, an attempt each; those of one recipe are its repeats."""
        spec = self.spec(name=f"c{len(self.earlier)}", **sections)
        record = self.store.create_campaign(
            name=spec.name,
            spec_json=dump_json(spec),
            legal_recipes=9,
            problem_summary=problem_summary(spec),
        )
        writer = self.store.drive(self.store.acquire_lease(record.id, host="h", pid=1))
        with writer.together():
            self._record(writer, spec, outcomes, provenance, reused)
        writer.release(CampaignState.FINISHED, reason="")
        self.earlier.append(Earlier(campaign=self.store.campaign(spec.name), spec=spec))

    @staticmethod
    def _record(
        writer: CampaignWriter,
        spec: CampaignSpec,
        outcomes: tuple[tuple[Recipe, Outcome], ...],
        provenance: Provenance | None,
        reused: tuple[int, ...],
    ) -> None:
        writer.set_state(CampaignState.RUNNING, reason="")
        if provenance is not None:
            writer.record_provenance(provenance)
        for recipe, outcome in outcomes:
            last = not any(
                other is recipe for other, _ in outcomes[outcomes.index((recipe, outcome)) + 1 :]
            )
            trial = writer.propose(recipe_id(spec.problem, recipe), recipe)
            attempt = writer.start_attempt(trial, run_folder=f"/runs/{spec.name}/{trial.number}")
            writer.finish_attempt(attempt, outcome, retry=not last)
            if trial.number in reused:
                writer.event(REUSED, trial=trial.number)

    def gather(self, here: Provenance = HERE, **sections: Any) -> PriorResults:
        return gather(self.store, self.spec(**sections), self.earlier, here)


@pytest.fixture
def past(store: Store, tmp_path: Path) -> Past:
    return Past(store, tmp_path / "runs")


def measured(spread: float = 0.0, step_time_s: float = 0.1) -> Measurement:
    times = (step_time_s * (1 - spread), step_time_s, step_time_s * (1 + spread))
    spec = spec_of(tiny())
    found = simulate(recipe(), replace(spec, run_root="/runs").probe_setup())
    assert isinstance(found, Measurement)
    return replace(found, step_times_s=times, tokens_per_s=8 * 32 / step_time_s, node_seconds=3.0)


def failed(kind: FailureKind) -> Failure:
    return Failure(kind=kind, message="it failed")


def recipe(**changes: Any) -> Recipe:
    return Recipe(**({"devices": 2, "micro_batch_seqs": 2, "accumulation": 2} | changes))


OTHER = recipe(micro_batch_seqs=4, accumulation=1)


def test_the_same_problem_is_evidence_and_answers(past: Past) -> None:
    past.add((recipe(), measured()), (OTHER, failed(FailureKind.OUT_OF_MEMORY)))
    found = past.gather()
    assert [(one.recipe, one.origin) for one in found.evidence] == [
        (recipe(), "campaign c0"),
        (OTHER, "campaign c0"),
    ]
    assert not found.left_out
    spec = past.spec()
    answer = found.reusable[recipe_id(spec.problem, recipe())]
    assert (answer.campaign, answer.trial_number, answer.run_folder) == ("c0", 1, "/runs/c0/1")
    assert answer.outcome == replace(measured(), node_seconds=0.0, mfu=None)
    assert isinstance(found.reusable[recipe_id(spec.problem, OTHER)].outcome, Failure)


def test_nothing_is_gathered_that_was_switched_off(past: Past) -> None:
    past.add((recipe(), measured()))
    assert past.gather(search={"reuse": False}).reusable == {}
    assert len(past.gather(search={"reuse": False}).evidence) == 1
    assert past.gather(search={"warm_start": False}).evidence == ()
    assert len(past.gather(search={"warm_start": False}).reusable) == 1


OTHER_SOFTWARE = {
    "of another torch": replace(HERE, versions=HERE.versions | {"torch": "2.12.1"}),
    "of another driver version": replace(HERE, versions=HERE.versions | {"nvidia-driver": "535.1"}),
}


@pytest.mark.parametrize("reason", OTHER_SOFTWARE)
def test_other_software_is_left_out(reason: str, past: Past) -> None:
    past.add((recipe(), measured()), provenance=OTHER_SOFTWARE[reason])
    found = past.gather()
    assert (found.evidence, found.left_out, found.reusable) == ((), {reason: 1}, {})


def test_unknown_software_is_left_out(past: Past) -> None:
    past.add((recipe(), measured()), provenance=None)
    assert past.gather().left_out == {"of software that was not recorded": 1}


def test_a_patch_of_torch_is_evidence_but_no_answer(past: Past) -> None:
    past.add(
        (recipe(), measured()),
        provenance=replace(HERE, versions=HERE.versions | {"torch": "2.13.1"}),
    )
    found = past.gather()
    assert (len(found.evidence), found.reusable) == (1, {})


OTHER_PROBLEMS: dict[str, dict[str, Any]] = {
    "simulated": {"evaluator": "simulated"},
    "of another trainer": {
        "evaluator": "command",
        "command": {"arguments": ["train"], "log_patterns": ["a"]},
    },
    "of another optimizer": {"probe": {"optimizer": "sgd"}},
    "looked up in a table": {"evaluator": "table", "table": {"path": __file__}},
    "of another device": {"cluster": {"device": "other-cpu"}},
    "of another precision": {"problem": {"precision": "bf16"}},
    "of a model of another shape": {"model": {"hidden": 256}, "cluster": {"name": "elsewhere"}},
}


@pytest.mark.parametrize("reason", OTHER_PROBLEMS)
def test_other_problems_are_left_out(reason: str, past: Past) -> None:
    past.add((recipe(), measured()), (OTHER, measured()), **OTHER_PROBLEMS[reason])
    found = past.gather()
    assert (found.evidence, found.left_out, found.reusable) == ((), {reason: 2}, {})


def test_a_rehearsal_may_learn_from_a_rehearsal(past: Past) -> None:
    past.add((recipe(), measured()), evaluator="simulated")
    found = past.gather(evaluator="simulated")
    assert (len(found.evidence), found.reusable) == (1, {})


def test_a_table_s_peak_teaches_no_memory_since_its_kind_is_not_stored(past: Past) -> None:
    past.add((recipe(), measured()))
    past.add((OTHER, measured()))
    table = past.earlier[-1].campaign
    table = replace(table, problem_summary={**table.problem_summary, "figures": "imported"})
    past.earlier[-1] = past.earlier[-1]._replace(campaign=table)
    theirs = replace(measured(), peak_memory_bytes=(0,))
    assert [one.outcome for one in past.gather().evidence] == [measured(), theirs]


@pytest.mark.parametrize("env", ["OVERLAP", "ELSEWHERE"])
def test_recipes_with_knobs_that_the_space_has_not_or_gives_otherwise_are_left_out(
    env: str, past: Past
) -> None:
    past.add(
        (recipe(), measured()),
        (recipe(custom=(Custom(name="overlap", value=1, env=env),)), measured()),
    )
    assert past.gather().left_out == {"of knobs that the space does not have": 1}
    found = past.gather(space={"custom": {"overlap": {"values": [0, 1], "env": "OVERLAP"}}})
    assert len(found.evidence) == (2 if env == "OVERLAP" else 1)


def test_the_nearest_problems_come_first(past: Past) -> None:
    past.add((recipe(), measured()), cluster={"name": "elsewhere", "nodes": 4})
    past.add(
        (recipe(), measured()), model={"hidden": 256}
    )  # of another shape, but of the same cluster
    past.add((recipe(), measured()), model={"layers": 3})
    past.add((recipe(), measured()))
    assert [one.origin for one in past.gather().evidence] == [
        f"campaign c{n}" for n in (3, 2, 0, 1)
    ]


def test_no_more_than_a_strategy_can_take(past: Past) -> None:
    recipes = [recipe(micro_batch_seqs=number + 1) for number in range(MOST_EVIDENCE + 3)]
    past.add(*((one, measured()) for one in recipes))
    found = past.gather()
    assert len(found.evidence) == MOST_EVIDENCE
    assert found.left_out == {f"further away than the nearest {MOST_EVIDENCE}": 3}


def test_of_failures_only_a_want_of_memory_is_evidence_elsewhere(past: Past) -> None:
    outcomes = ((recipe(), failed(FailureKind.CRASHED)), (OTHER, failed(FailureKind.OUT_OF_MEMORY)))
    past.add(*outcomes, model={"layers": 3})
    found = past.gather()
    assert [one.recipe for one in found.evidence] == [OTHER]
    assert found.left_out == {"failed for a reason that another problem need not share": 1}
    past.earlier.clear()
    past.earlier.append(Earlier(campaign=past.store.campaign("c0"), spec=past.spec(name="c0")))
    assert len(past.gather().evidence) == 2, "of the same problem both are"


def test_repeats_are_one_piece_of_evidence_unless_they_disagree(past: Past) -> None:
    same, apart = recipe(), OTHER
    past.add((same, measured(step_time_s=0.1)), (same, measured(step_time_s=0.11)))
    [piece] = past.gather().evidence
    assert isinstance(piece.outcome, Measurement)
    assert len(piece.outcome.step_times_s) == 6
    assert piece.outcome.tokens_per_s == pytest.approx((8 * 32 / 0.1 + 8 * 32 / 0.11) / 2)
    past.add((apart, measured(step_time_s=0.1)), (apart, measured(step_time_s=0.2)))
    found = past.gather()
    assert [one.recipe for one in found.evidence] == [same]
    assert found.left_out == {"repeats that differ by more than 25 %": 1}


def test_a_measurement_that_others_disturbed_counts_only_where_there_is_no_other(
    past: Past,
) -> None:
    load = Telemetry(foreign_share=(0.5,), foreign_processes=("make (7)",), foreign_limit=0.1)
    slow = replace(measured(step_time_s=0.3), telemetry=load)
    past.add((repeated := recipe(), slow), (repeated, measured()), (OTHER, slow))
    found = past.gather()
    assert [(one.recipe, one.outcome.step_times_s) for one in found.evidence] == [  # type: ignore[union-attr]
        (recipe(), measured().step_times_s),
        (OTHER, slow.step_times_s),
    ]
    assert set(found.reusable) == {recipe_id(past.spec().problem, recipe())}


def test_a_result_is_of_the_software_and_time_of_what_counts_of_it(past: Past) -> None:
    """It was measured with a former driver; a repeat with this one stayed disturbed."""
    load = Telemetry(foreign_share=(0.5,), foreign_processes=("make (7)",), foreign_limit=0.1)
    before = replace(HERE, host="node2")
    past.add((recipe(), measured()), provenance=before)
    store, record = past.store, past.earlier[0].campaign
    writer = store.drive(store.acquire_lease(record.id, host="h", pid=1))
    writer.record_provenance(HERE)
    (trial,) = store.trials(record.id)
    again = writer.start_attempt(writer.repeat(trial), run_folder="again")
    writer.finish_attempt(again, replace(measured(), telemetry=load), retry=False)
    assert not past.gather().reusable
    assert past.gather(here=before).reusable


def test_only_what_is_recent_steady_and_equal_answers(past: Past, clock: SettableClock) -> None:
    past.add((recipe(), measured()))
    assert past.gather().reusable
    assert not past.gather(here=replace(HERE, host="node2")).reusable
    assert past.gather(here=replace(HERE, versions=HERE.versions | {"optuna": "6.0"})).reusable
    assert past.gather(
        here=replace(HERE, versions=HERE.versions | {"nvidia-nccl-cu12": "2.28.9"})
    ).reusable, "earlier versions did not record it"
    assert not past.gather(probe={"optimizer": "sgd"}).reusable
    assert not past.gather(search={"parallel_probes": 2}).reusable
    assert not past.gather(dispatch={"backend": "allocation", "network_interface": "hsn0"}).reusable
    assert not past.gather(cluster={"memory_gib_per_device": 0.000001}).reusable
    assert not past.gather(evaluator="simulated").reusable
    clock.move(RECENT.total_seconds() + 1)
    assert not past.gather().reusable
    past.add((recipe(), measured(spread=0.2)))
    assert not past.gather().reusable, "noisy"


def test_another_library_or_a_device_that_was_slowed_down_is_no_answer(past: Past) -> None:
    known, other = (
        replace(HERE, versions=HERE.versions | {"nvidia-nccl-cu12": v})
        for v in ("2.28.9", "2.27.5")
    )
    past.add((recipe(), measured()), provenance=known)
    assert [bool(past.gather(here=here).reusable) for here in (known, HERE, other)] == [
        True,
        True,
        False,
    ]
    slow = replace(measured(), telemetry=Telemetry(slowed_by=("temperature",)))
    past.add((OTHER, slow))
    assert len(past.gather().reusable) == 1


def test_repeats_that_differ_are_no_answer_however_steady_each_is(past: Past) -> None:
    past.add(
        (repeated := recipe(), measured(step_time_s=0.1)), (repeated, measured(step_time_s=0.12))
    )
    assert [one.recipe for one in past.gather().evidence] == [repeated]
    assert not past.gather().reusable


def test_a_recipe_that_offloads_to_a_disk_is_answered_for_that_disk(past: Past) -> None:
    on_disk = recipe(engine="deepspeed", offload="nvme")
    past.add((recipe(), measured()), (on_disk, measured()), cluster={"nvme_path": "/fast"})
    ours = [recipe_id(past.spec().problem, one) for one in (recipe(), on_disk)]
    assert set(past.gather(cluster={"nvme_path": "/fast"}).reusable) == set(ours)
    assert set(past.gather(cluster={"nvme_path": "/slow"}).reusable) == {ours[0]}


def test_a_want_of_memory_answers_where_there_is_no_more_of_it(past: Past) -> None:
    past.add((recipe(), failed(FailureKind.OUT_OF_MEMORY)), (OTHER, failed(FailureKind.CRASHED)))
    assert set(past.gather().reusable) == {recipe_id(past.spec().problem, recipe())}
    assert not past.gather(cluster={"memory_gib_per_device": 4.0}).reusable


def test_what_was_answered_itself_is_not_counted_again(past: Past) -> None:
    past.add((recipe(), measured()), (OTHER, measured()), reused=(1,))
    assert [
        known.recipe for known in campaign_results(past.store, past.earlier[0].campaign.id)
    ] == [OTHER]
