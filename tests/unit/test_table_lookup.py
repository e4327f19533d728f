"""The evaluator that looks outcomes up: what is in a row, what is in none, and whose problem a
table holds.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from frontrunner import report
from frontrunner.api import launch
from frontrunner.cli.main import frontrunner as frontrunner_command
from frontrunner.config.campaign import parse_campaign
from frontrunner.evaluators.registry import make_evaluator
from frontrunner.evaluators.runs.run_folder import RunFolder
from frontrunner.results.outcome import Failure, FailureKind, Measurement
from frontrunner.results.store import open_store
from frontrunner.search.spec import CampaignSpec
from frontrunner.spaces.errors import InvalidInput
from frontrunner.spaces.problem import SoftwareSettings
from frontrunner.spaces.space import Survey
from frontrunner.views.report import reported
from support.campaigns import order, write_toml
from support.tables import row, write_table

CAMPAIGN: dict[str, Any] = {
    "evaluator": "table",
    "model": {"layers": 24, "hidden": 2048, "heads": 16, "vocabulary": 51200},
    "cluster": {"preset": "dgx-a100-80gb", "nodes": 1},
    "problem": {"sequence_length": 1024, "global_batch": 64, "precision": "fp16"},
    "space": {
        "tensor_parallel": [1, 2, 4, 8], "pipeline_parallel": [1, 2], "micro_batch_seqs": [1, 2],
        "sharding": ["none", "zero-1"], "recompute": ["full"],
    },
}  # fmt: skip
ROWS = (
    row(),
    row(tp=1, dp=8, gas=8, status="oom", step_time_s="", peak_mem_gb=""),
    row(tp=4, dp=2, gas=32, step_time_s=1.8),
    row(tp=2, pp=2, dp=2, mbs=2, step_time_s=1.4),
)


def spec_of(folder: Path, *rows: dict[str, Any], **table: str) -> CampaignSpec:
    write_table(folder / "rows.csv", *rows)
    campaign = CAMPAIGN | {"table": {"path": "rows.csv"} | table}
    spec = parse_campaign(campaign, default_name="looked-up", base=folder).spec
    return replace(spec, run_root=str(folder / "runs"))


def test_a_campaign_finds_the_best_row_and_probes_no_recipe_without_one(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, *ROWS)
    store = str(tmp_path / "store.db")
    launch(spec, store=store)
    with open_store(store, create=False) as found:
        told = found.final_outcomes(found.campaign("looked-up").id)
    assert len(told) == len(ROWS)
    best = max(
        (one for one in told if isinstance(one[1], Measurement)),
        key=lambda one: one[1].tokens_per_s,
    )
    assert best[0].describe() == "tp2 pp2 dp2 1f1b mb2 x16 zero-1 recompute=full"
    assert [outcome.kind for _, outcome in told if isinstance(outcome, Failure)] == [
        FailureKind.OUT_OF_MEMORY
    ]


def test_every_answer_says_that_a_table_says_so_and_none_offers_a_replay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_table(tmp_path / "rows.csv", *ROWS)
    file = write_toml(tmp_path / "looked-up.toml", CAMPAIGN | {"table": {"path": "rows.csv"}})
    frontrunner_command(["launch", str(file)], standalone_mode=False)
    told = capsys.readouterr()
    assert "legal recipes, imported" in told.err
    assert "frontrunner show" in told.out
    assert "replay" not in told.out
    frontrunner_command(["campaigns"], standalone_mode=False)
    assert "imported" in capsys.readouterr().out
    assert "frontrunner replay" not in report("looked-up").read_text(encoding="utf-8")


def test_what_is_in_no_row_is_illegal_and_says_so(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, *ROWS)
    survey, whole = spec.survey(), spec.space.survey(spec.problem)
    assert len(survey.recipes) == len(ROWS)
    assert survey.refusals["not-in-table"] == len(whole.recipes) - len(ROWS) > 0


def test_estimates_are_of_the_table_s_training_code_unless_the_campaign_names_one(
    tmp_path: Path,
) -> None:
    spec = spec_of(tmp_path, *(one | {"training_code": "nanotron"} for one in ROWS))
    assert spec.survey().problem.software.code == "nanotron"
    stated = replace(spec, problem=replace(spec.problem, software=SoftwareSettings(norm="eager")))
    assert stated.survey().problem.software == SoftwareSettings(code="nanotron", norm="eager")
    named = replace(
        spec, problem=replace(spec.problem, software=SoftwareSettings(code="megatron-lm"))
    )
    assert named.survey().problem.software.code == "megatron-lm"


def test_a_report_counts_as_legal_what_the_table_holds(tmp_path: Path) -> None:
    spec, store = spec_of(tmp_path, *ROWS), str(tmp_path / "store.db")
    launch(spec, store=store)
    with open_store(store) as found:
        surveys: dict[str, Survey] = {}
        for _ in range(2):
            assert (
                reported(found, "looked-up", surveys).collected.survey.recipes
                == spec.survey().recipes
            )
        ((first, kept),) = surveys.items()
        assert reported(found, "looked-up", surveys).collected.survey is kept
        assert first == found.campaign("looked-up").spec_json
        (tmp_path / "rows.csv").unlink()
        alone = reported(found, "looked-up").collected.survey
    assert alone.recipes == spec.space.survey(spec.problem).recipes


def test_an_outcome_is_on_disk_and_harvested(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, *ROWS)
    setup = spec.probe_setup()
    evaluator = make_evaluator("table", setup)
    orders = [
        order(setup, recipe, f"{place}.1")
        for place, recipe in enumerate(spec.space.survey(spec.problem).recipes)
    ]
    for one in orders:
        evaluator.start(one)
    outcomes = {finished.token: finished.outcome for finished in evaluator.finished(1.0)}
    assert set(outcomes) == {one.token for one in orders}
    for one in orders:
        assert RunFolder(one.run_folder).outcome() == evaluator.harvest(one) == outcomes[one.token]
    unknown = [outcome for outcome in outcomes.values() if isinstance(outcome, Failure)]
    assert FailureKind.ILLEGAL_FOR_ENGINE in {failure.kind for failure in unknown}


def test_a_table_of_other_problems_is_refused_with_those_it_holds(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no problem of 24 layers of 2048") as refusal:
        spec_of(tmp_path, row(seq=2048)).survey()
    assert "gpt-1.3B 2048 64 A100-80GB 8" in (refusal.value.hint or "")


def test_of_several_problems_that_fit_one_is_to_be_named(tmp_path: Path) -> None:
    rows = (*ROWS, row(hardware="H100-80GB", step_time_s=0.7))
    with pytest.raises(InvalidInput, match=r"table\.problem.*2 problems that fit"):
        spec_of(tmp_path, *rows).survey()
    with pytest.raises(InvalidInput, match=r"table\.problem = .nonsense"):
        spec_of(tmp_path, *rows, problem="nonsense").survey()
    assert (
        len(spec_of(tmp_path, *rows, problem="gpt-1.3B 1024 64 H100-80GB 8").survey().recipes) == 1
    )


def test_a_missing_table_is_refused_when_the_file_is_read(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"table\.path"):
        parse_campaign(CAMPAIGN, default_name="looked-up", base=tmp_path)
    with pytest.raises(InvalidInput, match=r"table\.path = .rows\.csv"):
        parse_campaign(
            CAMPAIGN | {"table": {"path": "rows.csv"}}, default_name="looked-up", base=tmp_path
        )
