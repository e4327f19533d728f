"""From a table to a campaign that learns from it, and outcomes that a campaign takes from an
earlier one.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import frontrunner as api
from frontrunner.evaluators.analytic.simulated import simulate
from frontrunner.results.outcome import Measurement
from frontrunner.results.prior_results import REUSED, campaign_results, trials_noted
from frontrunner.results.states import CampaignState
from frontrunner.results.store import Store
from frontrunner.search.driver import Driver
from frontrunner.search.warm_start import PriorResults, ReusableResult
from frontrunner.spaces.document import recipe_id
from frontrunner.views.charts.marks import collect
from frontrunner.views.report import facts_of
from support.campaigns import frontrunner, spec_of, tiny, write_toml
from support.drivers import LEGAL, Campaigns, Recorder
from support.imports import ROWS, row, write_table

CAMPAIGN = {
    "evaluator": "simulated",
    "name": "warm",
    "model": {
        "layers": 16,
        "hidden": 2048,
        "heads": 16,
        "kv_heads": 16,
        "ffn_hidden": 5504,
        "vocabulary": 32000,
    }
    | {"activation": "swiglu", "norm": "rmsnorm"},
    "cluster": {"preset": "dgx-a100-80gb"},
    "problem": {"sequence_length": 2048, "global_batch": 64, "precision": "bf16"},
    "space": {"tensor_parallel": [1, 2, 4], "micro_batch_seqs": [1, 2, 4], "sharding": ["zero-1"]},
    "search": {"strategy": "guided"},
    "budget": {"probes": 2},
}
"""The problem of the table's rows, on the preset that their hardware stands for."""


def test_a_table_is_imported_and_a_campaign_begins_with_it(tmp_path: Path) -> None:
    write_table(tmp_path / "sweep.csv", (*ROWS, row(4, 1, -1.0), row(1, 1, 0.5, hardware="H100")))
    preview = frontrunner("import", "sweep.csv", "--preview", cwd=tmp_path)
    assert preview.returncode == 0, preview.stderr
    assert "sweep.csv: 6 of 7 rows would be kept in frontrunner.db" in preview.stdout
    assert "1 x step_time_s is negative (first: row 6)" in preview.stdout
    assert not (tmp_path / "frontrunner.db").exists()
    done = frontrunner("import", "sweep.csv", "--json", cwd=tmp_path)
    assert [one["rows"] for one in json.loads(done.stdout)["problems"]] == [5, 1]
    write_toml(tmp_path / "warm.toml", CAMPAIGN)
    launched = frontrunner("launch", "warm.toml", cwd=tmp_path)
    assert launched.returncode == 0, launched.stderr
    [line] = [line for line in launched.stderr.splitlines() if line.startswith("warm start")]
    assert line == "warm start: 5 usable outcomes of sweep.csv; left out: 1 of another device"
    told = api.status("warm", store=str(tmp_path / "frontrunner.db")).last_events
    assert [event.data["learned_from"] for event in told if event.kind == "evidence"] == [5]
    write_toml(
        tmp_path / "cold.toml", CAMPAIGN | {"name": "cold", "search": {"strategy": "random"}}
    )
    assert (
        "7 that the strategy does not learn from"
        in frontrunner("launch", "cold.toml", cwd=tmp_path).stderr
    )
    write_toml(
        tmp_path / "cold.toml",
        CAMPAIGN | {"name": "none", "search": {"warm_start": False, "reuse": False}},
    )
    assert "warm start" not in frontrunner("launch", "cold.toml", cwd=tmp_path).stderr
    shown = frontrunner("best", "sweep-llama-1b-8x-s2048-b64", cwd=tmp_path).stdout
    assert "Imported: these figures come from a table" in shown.replace("\n", " ")


def test_an_answer_takes_no_probe_and_nothing_of_the_budget(store: Store, tmp_path: Path) -> None:
    campaigns = Campaigns(store, tmp_path / "runs")
    record, spec = campaigns.create(budget={"probes": 3})
    recipes = spec.space.survey(spec.problem).recipes
    outcomes = [simulate(recipe, spec.probe_setup()) for recipe in recipes[: LEGAL - 4]]
    answers = {
        recipe_id(spec.problem, recipe): ReusableResult(
            recipe=recipe,
            outcome=replace(outcome, node_seconds=0.0),
            campaign="before",
            trial_number=number,
            measured_at="2026-03-01T12:00:00+00:00",
            run_folder=f"/runs/before/{number}",
        )
        for number, (recipe, outcome) in enumerate(zip(recipes, outcomes, strict=False), start=1)
    }

    elsewhere = replace(recipes[0], micro_batch_seqs=2**20)
    answers["of another space"] = replace(next(iter(answers.values())), recipe=elsewhere)

    def driver(recorder: Recorder, budget: int = 3) -> Driver:
        current = store.campaign(record.name)
        bounded = replace(spec, budget=replace(spec.budget, probes=budget))
        known = PriorResults(reusable=answers)
        return Driver(store=store, campaign=current, spec=bounded, listener=recorder, prior=known)

    first = Recorder()
    conclusion = driver(first).run()
    assert len(first.endings) == 3
    (began,) = store.events(record.id, kind="evidence")
    assert began.data["answers"] == LEGAL - 4, "what the space does not have answers nothing"
    assert "3 of 3 probes" in conclusion.reason
    reused = trials_noted(store, record.id, REUSED)
    assert first.notices.count(REUSED) == len(reused) > 0
    second = Recorder()
    ended = driver(second, budget=10).run()
    assert "every legal recipe" in ended.reason
    assert (len(second.endings), ended.measured) == (1, LEGAL), "4 recipes were probed, once each"
    assert len(trials_noted(store, record.id, REUSED)) == LEGAL - 4
    assert len(campaign_results(store, record.id)) == 4, (
        "what was answered is not this campaign's own knowledge"
    )
    told = facts_of(collect(store, store.campaign(record.name), spec.survey()), spec)
    assert told["spent"].startswith(
        f"4 probes, {LEGAL - 4} recipes reused from earlier campaigns, "
    )
    spent = sum(
        outcome.node_seconds
        for _, outcome in store.final_outcomes(record.id)
        if isinstance(outcome, Measurement)
    )
    assert store.campaign(record.name).node_seconds_spent == pytest.approx(spent)


def test_an_answer_does_not_hide_that_nothing_runs_here(store: Store, tmp_path: Path) -> None:
    campaigns = Campaigns(store, tmp_path / "runs")
    sections = {"search": {"strategy": "exhaustive", "identical_failures": 3}}
    record, spec = campaigns.create(cluster={"memory_gib_per_device": 0.000001}, **sections)
    first = spec.survey().recipes[0]
    answer = ReusableResult(
        recipe=first,
        outcome=simulate(first, replace(spec, problem=spec_of(tiny()).problem).probe_setup()),
        campaign="before",
        trial_number=1,
        measured_at="2026-03-01T12:00:00+00:00",
        run_folder="/runs/before/1",
    )
    known = PriorResults(reusable={recipe_id(spec.problem, first): answer})
    ended = Driver(store=store, campaign=record, spec=spec, prior=known).run()
    assert (ended.state, ended.measured) == (CampaignState.PAUSED, 1), ended.reason


@pytest.mark.nightly
def test_a_second_campaign_answers_from_the_first_what_was_steady(tmp_path: Path) -> None:
    """Real probes: what the first campaign measured without noise is no probe of the second."""
    table = tiny(
        space={"tensor_parallel": [1, 2], "pipeline_parallel": [1], "micro_batch_seqs": [4]}
    )
    write_toml(tmp_path / "tiny.toml", table | {"probe": table["probe"] | {"measured_steps": 8}})
    assert frontrunner("launch", "tiny.toml", cwd=tmp_path).returncode == 0
    ranking = json.loads(frontrunner("best", "tiny", "--json", cwd=tmp_path).stdout)
    steady = [one for one in ranking if not one["standing"]["is_noisy"]]
    again = frontrunner("launch", "tiny.toml", "--name", "again", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert again.stderr.count(" takes the result of probe ") == len(steady)
    assert len(json.loads(frontrunner("best", "again", "--json", cwd=tmp_path).stdout)) == 2
