"""Constants fitted to step times: those that made them come back, and the error told is that of
rows held back.
"""

from __future__ import annotations

import csv
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import frontrunner
from frontrunner.config.campaign import read_cluster_file
from frontrunner.evaluators.analytic.codes import CODES
from frontrunner.evaluators.analytic.fit import (
    FEWEST_ROWS,
    Samples,
    StepFit,
    StepFits,
    fit_steps,
    samples_of_outcomes,
)
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
from frontrunner.views.diagnostics import print_fits
from support.analytic import A100, PROBLEM, recipe
from support.campaigns import spec_of, tiny
from support.rankings import measurement
from support.store_contract import RAN_WITH

COLUMNS = (
    "model", "layers", "hidden", "heads", "seq", "vocab", "hardware", "gpus", "gpus_per_node", "tp",
    "pp", "dp", "mbs",
    "gbs", "zero", "recompute", "precision", "step_time_s", "status",
)  # fmt: skip
TRUE = {
    "matmul": 0.8,
    "memory": 0.6,
    "elementwise": 3.0,
    "node_links": 0.5,
    "gradient_overlap": 0.8,
}


def table(
    path: Path,
    hardware: str = "A100-80GB",
    constants: dict[str, float] | None = None,
    **changes: str,
) -> Path:
    """Six problems of one model on 8 to 16 devices, with step times by the formulas under other
    constants.
    """
    rows = [
        dict(zip(COLUMNS, ["gpt-1.3b", "24", "2048", "16", "1024", "51200", hardware,
            str(tp * pp * dp), "8", str(tp),
                           str(pp), str(dp), str(mbs), str(batch), "1", again, "fp16", "1.0", "ok"],
                           strict=True))
        for batch in (32, 128, 512)
        for tp, pp, dp in ((1, 1, 8), (2, 1, 4), (4, 1, 2), (8, 1, 1), (2, 2, 2), (4, 2, 2),
            (1, 2, 8))
        for mbs in (1, 4)
        for again in ("none", "full")
    ]  # fmt: skip
    written(path, [row | changes for row in rows])
    if constants is not None:
        for places, part in read(path).parts:
            machine = Machine.of(
                replace(A100, nodes=1, efficiencies=constants), part.precision, part.code
            )
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
    (found,) = frontrunner.fit_tables([source], out=out).fits
    return found, out


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
    (found,) = frontrunner.fit_tables([table(tmp_path / "rows.csv", constants=truth)]).fits
    known = {constant.name: constant for constant in found.constants}
    for name, value in truth.items():
        low, high = known[name].range_95
        assert low <= value <= high
        assert known[name].deviation < DEVIATIONS[name]
    unfelt = known["fused_attention_forward"]
    assert unfelt.deviation == DEVIATIONS[unfelt.name]


def test_constants_that_no_row_feels_stay_and_are_told(
    fitted: tuple[StepFit, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    found, out = fitted
    held = {constant.name: constant for constant in found.constants if constant.held}

    assert {"fused_attention_forward", "fused_attention_backward"} <= set(held)
    assert all(
        constant.before == constant.after and constant.rows < FEWEST_ROWS
        for constant in held.values()
    )
    (of_file,) = read_cluster_file(out).fitted
    assert not set(held) & {one.name for one in of_file.constants}
    print_fits(StepFits(fits=(found,), refused={}), out)
    assert set(held) <= set(re.findall(r"\w+", capsys.readouterr().out))


def test_the_file_that_is_written_adds_the_fit_to_the_cluster(fitted: tuple[StepFit, Path]) -> None:
    found, out = fitted
    cluster = read_cluster_file(out)
    (of_file,) = cluster.fitted

    assert replace(cluster, fitted=()) == read(out.with_name("rows.csv")).parts[0][1].cluster
    assert (of_file.code, of_file.rows, of_file.problems, of_file.nodes) == (
        "megatron-lm-fp16",
        84,
        6,
        2,
    )
    assert of_file.error.fp16 == pytest.approx(found.error_after, rel=1e-4)
    assert of_file.source.startswith("rows.csv, ")
    assert {one.name: one.value for one in of_file.constants} == pytest.approx(
        found.efficiencies, rel=1e-4
    )
    known = {one.name: one for one in found.constants}
    for one in of_file.constants:
        assert one.deviation == pytest.approx(known[one.name].deviation, rel=1e-4)
        assert one.correlations == pytest.approx(known[one.name].correlations, abs=1e-3)


def test_a_fit_starts_from_the_cluster_s_own_constants(fitted: tuple[StepFit, Path]) -> None:
    found, out = fitted
    measured = samples_of_tables([read(out.with_name("rows.csv"))], read_cluster_file(out))
    (again,) = fit_steps(measured).fits
    assert again.error_before == pytest.approx(found.error_before)


def test_a_fit_is_used_for_its_own_code_and_precision_alone(fitted: tuple[StepFit, Path]) -> None:
    _, out = fitted
    cluster = read_cluster_file(out)
    (of_file,) = cluster.fitted
    bare = replace(cluster, fitted=())
    own = Machine.of(cluster, "fp16", CODES["megatron-lm-fp16"]).constants()
    assert {one.name: own[one.name] for one in of_file.constants} == {
        one.name: one.value for one in of_file.constants
    }
    for precision, code in (
        ("fp16", "nanotron"),
        ("fp16", "unknown"),
        ("bf16", "megatron-lm-fp16"),
    ):
        assert Machine.of(cluster, precision, CODES[code]) == Machine.of(
            bare, precision, CODES[code]
        )


@pytest.mark.nightly
def test_each_training_code_is_fitted_to_by_itself(tmp_path: Path) -> None:
    of_one = table(tmp_path / "a.csv", training_code="nanotron")
    few = table(tmp_path / "b.csv", training_code="torchtitan")
    with few.open() as file:
        written(few, list(csv.DictReader(file))[:3])
    alone = frontrunner.fit_tables([of_one])
    together = frontrunner.fit_tables(
        [of_one, table(tmp_path / "c.csv", constants=TRUE), few], out=tmp_path / "f.toml"
    )

    assert [one.code for one in together.fits] == ["nanotron", "megatron-lm-fp16"]
    assert together.fits[0] == alone.fits[0]
    assert together.refused == {"steps of torchtitan, of which a fit needs 5": 3}
    assert [one.code for one in read_cluster_file(tmp_path / "f.toml").fitted] == [
        "nanotron",
        "megatron-lm-fp16",
    ]


@pytest.mark.system
def test_a_fit_is_the_same_at_every_call(tmp_path: Path) -> None:
    source = table(tmp_path / "rows.csv", constants=TRUE)

    assert frontrunner.fit_tables([source]) == frontrunner.fit_tables([source])


def test_held_back_error_is_not_that_of_the_fit() -> None:
    """Times that have nothing to do with the recipes cannot be told, and the fit does not claim
    it.
    """
    recipes = [
        recipe(micro_batch_seqs=m, accumulation=8 // m, recompute=r)
        for m in (1, 2, 4, 8)
        for r in ("none", "full")
    ]
    told = [(one, measurement((float(10 ** (place % 3)),), 1)) for place, one in enumerate(recipes)]

    (found,) = fit_steps(samples_of_outcomes(told, PROBLEM)).fits

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
    told = [
        (recipe(), measurement((1.0, 3.0, 2.0), 1)),
        (recipe(micro_batch_seqs=8, accumulation=1), failed),
    ]

    found = samples_of_outcomes(told, PROBLEM)

    assert found.samples[0].step_time_s.tolist() == [2.0]
    assert found.refused == {"failed: out-of-memory": 1}
    with pytest.raises(
        InvalidInput, match=r"no training code has 5 rows .*out-of-memory; 1 x steps of frontrunner"
    ):
        fit_steps(found)
    with pytest.raises(InvalidInput, match="there are no rows"):
        fit_steps(Samples(samples=(), refused={}))


def measured_campaign(store: Store, name: str, ran_with: Provenance, **sections: Any) -> int:
    """Store a campaign whose steps take 20 ms per micro-batch; return its number of recipes."""
    spec = spec_of(tiny(name=name, **sections))
    recipes = spec.space.survey(spec.problem).recipes
    campaign = store.create_campaign(
        name=name,
        spec_json=dump_json(spec),
        legal_recipes=len(recipes),
        problem_summary={"figures": "measured"},
    )
    writer = store.drive(
        store.acquire_lease(campaign.id, host="another-host.example", pid=1, take_over=True)
    )
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
        measured_campaign(
            store, "elsewhere", RAN_WITH, cluster={"device": "another", "name": "other"}
        )
        measured_campaign(store, "half", RAN_WITH, problem={"precision": "bf16"})
        measured_campaign(store, "before", another_torch, model={"layers": 4})
        newest = measured_campaign(store, "newest", RAN_WITH)
    url = str(tmp_path / "s.db")
    (together,) = frontrunner.fit_campaign(store=url, out=tmp_path / "fitted.toml").fits
    assert together.rows == newest + deeper
    assert together.problems == 2
    assert "campaign newest, campaign deeper" in (tmp_path / "fitted.toml").read_text()
    (alone,) = frontrunner.fit_campaign("newest", store=url).fits
    assert alone.rows == newest


def test_a_campaign_s_measurements_are_fitted_to(tmp_path: Path) -> None:
    with open_store(str(tmp_path / "s.db"), create=True) as store:
        count = measured_campaign(store, "tiny", RAN_WITH)

    (found,) = frontrunner.fit_campaign(
        store=str(tmp_path / "s.db"), out=tmp_path / "fitted.toml"
    ).fits

    assert found.rows == count
    assert found.error_after < found.error_before
    (of_file,) = read_cluster_file(tmp_path / "fitted.toml").fitted
    assert of_file.error.fp32 == pytest.approx(found.error_after, rel=1e-4)
    with pytest.raises(
        InvalidInput, match="expected 2 cpu devices, on which campaign tiny measured"
    ):
        frontrunner.fit_campaign(store=str(tmp_path / "s.db"), cluster="frontier")


def test_a_table_without_the_columns_of_the_formulas_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("a,b\n1,2\n")
    with pytest.raises(
        InvalidInput, match=r"no training code has 5 rows .*1 x no layers, hidden, heads"
    ):
        frontrunner.fit_tables([tmp_path / "x.csv"])


def test_rows_of_two_machines_need_a_name(tmp_path: Path) -> None:
    tables = [table(tmp_path / "a.csv"), table(tmp_path / "v.csv", hardware="V100-32GB")]

    with pytest.raises(
        InvalidInput, match="the rows' devices are a100-80gb, v100-32gb: expected one"
    ):
        frontrunner.fit_tables(tables)
