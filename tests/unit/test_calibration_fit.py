"""Constants fitted to step times: those that made them come back, and the error told is that of rows held back."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import frontrunner
from frontrunner.config.campaign import read_cluster_file
from frontrunner.evaluators.analytic.fit import FEWEST_ROWS, Samples, StepFit, fit_steps, samples_of_outcomes
from frontrunner.evaluators.analytic.machine import Machine
from frontrunner.evaluators.analytic.priors import DEVIATIONS
from frontrunner.evaluators.analytic.step import step_time
from frontrunner.evaluators.tables.workloads import read, samples_of_tables
from frontrunner.results.outcome import Failure, FailureKind
from frontrunner.results.provenance import Provenance
from frontrunner.results.states import CampaignState
from frontrunner.results.store import Store, open_store
from frontrunner.spaces.errors import InvalidInput
from frontrunner.spaces.validation import dump_json
from support.analytic import A100, PROBLEM, recipe
from support.campaigns import spec_of, tiny
from support.rankings import measurement
from support.store_contract import RAN_WITH

COLUMNS = (
    "model", "layers", "hidden", "heads", "seq", "vocab", "hardware", "gpus", "gpus_per_node", "tp", "pp", "dp", "mbs",
    "gbs", "zero", "recompute", "precision", "step_time_s", "status",
)  # fmt: skip
TRUE = {"matmul": 0.8, "memory": 0.6, "elementwise": 3.0, "node_links": 0.5, "gradient_overlap": 0.8}


def table(path: Path, hardware: str = "A100-80GB", constants: dict[str, float] | None = None, **changes: str) -> Path:
    """Six problems of one model on 8 to 16 devices, with step times by the formulas under other constants."""
    rows = [
        dict(zip(COLUMNS, ["gpt-1.3b", "24", "2048", "16", "1024", "51200", hardware, str(tp * pp * dp), "8", str(tp),
                           str(pp), str(dp), str(mbs), str(batch), "1", again, "fp16", "1.0", "ok"], strict=True))
        for batch in (32, 128, 512)
        for tp, pp, dp in ((1, 1, 8), (2, 1, 4), (4, 1, 2), (8, 1, 1), (2, 2, 2), (4, 2, 2), (1, 2, 8))
        for mbs in (1, 4)
        for again in ("none", "full")
    ]  # fmt: skip
    written(path, [row | changes for row in rows])
    if constants is not None:
        for places, part in read(path).parts:
            machine = Machine.of(replace(A100, nodes=1, efficiencies=constants), part.precision, part.software)
            for place, seconds in zip(places, step_time(machine, part.work).total, strict=True):
                rows[place]["step_time_s"] = repr(float(seconds))
        written(path, rows)
    return path


def written(path: Path, rows: list[dict[str, str]]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> tuple[StepFit, Path]:
    """A fit to times of a machine with other constants, and the cluster file that came of it."""
    folder = tmp_path_factory.mktemp("fit")
    source, out = table(folder / "rows.csv", constants=TRUE), folder / "fitted.toml"
    return frontrunner.fit_tables([source], out=out), out


def test_the_constants_that_made_the_times_tell_them_again(fitted: tuple[StepFit, Path]) -> None:
    found, _ = fitted

    assert (found.rows, found.problems, found.by_problem, found.folds) == (84, 6, True, 5)
    assert found.error_before > 0.15
    assert found.error_after < 0.02
    assert found.expected_error.fp16 == pytest.approx(found.error_after)
    assert found.expected_error.bf16 is None
    assert set(TRUE) - {"gradient_overlap"} <= set(found.efficiencies)


def test_a_fitted_constant_states_what_it_may_still_be(tmp_path: Path) -> None:
    truth = {"matmul": 0.92, "elementwise": 2.3, "node_links": 0.72}
    found = frontrunner.fit_tables([table(tmp_path / "rows.csv", constants=truth)])
    known = {constant.name: constant for constant in found.constants}
    for name, value in truth.items():
        low, high = known[name].range_95
        assert low <= value <= high
        assert known[name].deviation < DEVIATIONS[name]
    unfelt = known["fused_attention_forward"]
    assert unfelt.deviation == DEVIATIONS[unfelt.name]


def test_constants_that_no_row_feels_stay_and_are_told(fitted: tuple[StepFit, Path]) -> None:
    found, out = fitted
    held = {constant.name: constant for constant in found.constants if constant.held}

    assert {"fused_attention_forward", "fused_attention_backward"} <= set(held)
    assert all(constant.before == constant.after and constant.rows < FEWEST_ROWS for constant in held.values())
    assert not set(held) & set(read_cluster_file(out).efficiencies)


def test_the_file_that_is_written_tells_the_rows_and_states_its_error(fitted: tuple[StepFit, Path]) -> None:
    found, out = fitted
    cluster = read_cluster_file(out)

    assert cluster.device == "a100-80gb"
    assert cluster.expected_error.fp16 == pytest.approx(found.error_after, rel=1e-4)
    assert "to 84 rows of rows.csv" in cluster.source
    measured = samples_of_tables([read(out.with_name("rows.csv"))], cluster)
    assert fit_steps(measured).error_before < 0.03


def test_a_fit_is_the_same_at_every_call(tmp_path: Path) -> None:
    source = table(tmp_path / "rows.csv", constants=TRUE)

    assert frontrunner.fit_tables([source]) == frontrunner.fit_tables([source])


def test_held_back_error_is_not_that_of_the_fit() -> None:
    """Times that have nothing to do with the recipes cannot be told, and the fit does not claim it."""
    recipes = [
        recipe(micro_batch_seqs=m, accumulation=8 // m, recompute=r) for m in (1, 2, 4, 8) for r in ("none", "full")
    ]
    told = [(one, measurement((float(10 ** (place % 3)),), 1)) for place, one in enumerate(recipes)]

    found = fit_steps(samples_of_outcomes(told, PROBLEM))

    assert not found.by_problem
    assert found.error_after > 0.5


def test_rows_of_other_hardware_are_left_out_and_counted(tmp_path: Path) -> None:
    here, there = table(tmp_path / "a.csv"), table(tmp_path / "v.csv", hardware="V100-32GB")
    nameless = table(tmp_path / "n.csv", hardware="")

    found = samples_of_tables([read(path, A100) for path in (here, there, nameless)], A100)

    assert found.rows == 168
    assert found.refused == {"measured on V100-32GB, not on a100-80gb": 84}


def test_outcomes_that_tell_no_time_are_left_out_and_counted() -> None:
    failed = Failure(kind=FailureKind.OUT_OF_MEMORY, message="no memory")
    told = [(recipe(), measurement((1.0, 3.0, 2.0), 1)), (recipe(micro_batch_seqs=8, accumulation=1), failed)]

    found = samples_of_outcomes(told, PROBLEM)

    assert found.samples[0].step_time_s.tolist() == [2.0]
    assert found.refused == {"failed: out-of-memory": 1}
    with pytest.raises(InvalidInput, match="1 rows can be fitted to, of at least 5: 1 x failed: out-of-memory"):
        fit_steps(found)
    with pytest.raises(InvalidInput, match="0 rows can be fitted to"):
        fit_steps(Samples(samples=(), refused={}))


def measured_campaign(store: Store, name: str, ran_with: Provenance, **sections: Any) -> int:
    """Store a campaign whose steps take 20 ms per micro-batch; return its number of recipes."""
    spec = spec_of(tiny(name=name, **sections))
    recipes = spec.space.survey(spec.problem).recipes
    campaign = store.create_campaign(
        name=name, spec_json=dump_json(spec), legal_recipes=len(recipes), problem_summary={"figures": "measured"}
    )
    writer = store.drive(store.acquire_lease(campaign.id, host="another-host.example", pid=1, take_over=True))
    writer.set_state(CampaignState.RUNNING, reason="")
    writer.record_provenance(ran_with)
    for place, one in enumerate(recipes):
        attempt = writer.start_attempt(writer.propose(f"{place:012x}", one), run_folder="/runs")
        writer.finish_attempt(attempt, measurement((0.02 * one.accumulation,), 1), retry=False)
    writer.release(CampaignState.FINISHED, reason="done")
    return len(recipes)


def test_a_store_s_campaigns_of_one_machine_are_fitted_to_together(tmp_path: Path) -> None:
    another_torch = replace(RAN_WITH, versions=RAN_WITH.versions | {"torch": "1.0.0"})
    with open_store(str(tmp_path / "s.db"), create=True) as store:
        deeper = measured_campaign(store, "deeper", RAN_WITH, model={"layers": 4})
        measured_campaign(store, "elsewhere", RAN_WITH, cluster={"device": "another", "name": "other"})
        measured_campaign(store, "half", RAN_WITH, problem={"precision": "bf16"})
        measured_campaign(store, "before", another_torch, model={"layers": 4})
        newest = measured_campaign(store, "newest", RAN_WITH)
    url = str(tmp_path / "s.db")
    together = frontrunner.fit_campaign(store=url, out=tmp_path / "fitted.toml")
    assert together.rows == newest + deeper
    assert together.problems == 2
    assert "campaign newest, campaign deeper" in (tmp_path / "fitted.toml").read_text()
    assert frontrunner.fit_campaign("newest", store=url).rows == newest


def test_a_campaign_s_measurements_are_fitted_to(tmp_path: Path) -> None:
    with open_store(str(tmp_path / "s.db"), create=True) as store:
        count = measured_campaign(store, "tiny", RAN_WITH)

    found = frontrunner.fit_campaign(store=str(tmp_path / "s.db"), out=tmp_path / "fitted.toml")

    assert found.rows == count
    assert found.error_after < found.error_before
    assert read_cluster_file(tmp_path / "fitted.toml").expected_error.fp32 == pytest.approx(found.error_after, rel=1e-4)
    with pytest.raises(InvalidInput, match="expected 2 cpu devices, on which campaign tiny measured"):
        frontrunner.fit_campaign(store=str(tmp_path / "s.db"), cluster="frontier")


def test_a_table_without_the_columns_of_the_formulas_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("a,b\n1,2\n")
    with pytest.raises(InvalidInput, match=r"0 rows can be fitted to.*1 x no layers, hidden, heads"):
        frontrunner.fit_tables([tmp_path / "x.csv"])


def test_rows_of_two_machines_need_a_name(tmp_path: Path) -> None:
    tables = [table(tmp_path / "a.csv"), table(tmp_path / "v.csv", hardware="V100-32GB")]

    with pytest.raises(InvalidInput, match="the rows' devices are a100-80gb, v100-32gb: expected one"):
        frontrunner.fit_tables(tables, out=tmp_path / "out.toml")

    assert np.isfinite(frontrunner.fit_tables(tables).error_after)
