"""Campaigns that probe few nodes and predict the whole cluster, over the command line."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from frontrunner import predictions
from frontrunner.api import campaigns, launch, resume, status
from frontrunner.results.states import CampaignState
from frontrunner.results.store import open_store
from frontrunner.search.driver import Driver
from frontrunner.spaces.errors import InvalidInput
from frontrunner.stop_signals import stopped_by_signals
from frontrunner.store import LocalStore
from support.campaigns import Table, frontrunner, launched, spec_of, tiny, write_toml
from support.tables import row, write_table


def pair(**sections: Table) -> Table:
    """Four nodes of two devices, probed on one; rehearsed by formulas unless a section says
    otherwise.
    """
    search = {"strategy": "guided", "probe_nodes": 1} | sections.pop("search", {})
    defaults: dict[str, Any] = {
        "evaluator": "simulated",
        "model": {"layers": 4},
        "cluster": {"nodes": 4},
        "problem": {"global_batch": 32},
        "space": {"sharding": ["none", "zero-3"], "recompute": ["none", "full"]},
        "budget": {"probes": 12},
    }
    return tiny(**defaults | sections, search=search)


@pytest.fixture
def store(tmp_path: Path) -> str:
    return str(tmp_path / "store.db")


@pytest.mark.system
def test_a_pair_measures_small_predicts_large_and_confirms_the_best(tmp_path: Path) -> None:
    answer = launched(tmp_path, pair())
    scale = answer["small_scale"]
    assert (answer["campaign"], scale["small"], scale["nodes"]) == ("tiny", "tiny-small", 4)
    assert scale["small_measured"] > 0
    confirmed = [one for one in scale["predicted"] if one["confirmed"]]
    assert 1 <= len(answer["best"]) <= 3  # measurements at full scale alone
    assert all(len(row["recipe_id"]) for row in answer["best"])
    measured = {row["recipe_id"]: row["standing"]["tokens_per_s"] for row in answer["best"]}
    for one in confirmed:
        assert one["confirmed"]["tokens_per_s"] == measured[one["recipe_id"]]
        assert one["low"] <= one["tokens_per_s"] <= one["high"]
        assert one["error"] == pytest.approx(one["tokens_per_s"] / measured[one["recipe_id"]] - 1)
    unconfirmed = next(one for one in scale["predicted"] if not one["confirmed"])
    shown = frontrunner("show", unconfirmed["recipe_id"][:8], cwd=tmp_path)
    assert "not measured there" in shown.stdout, shown.stderr
    said = frontrunner("status", cwd=tmp_path).stdout
    for word in ("measured   ", "predicted  best on 4 nodes", "confirmed  "):
        assert word in said
    assert "predicted tokens/s on 4 nodes" in frontrunner("best", cwd=tmp_path).stdout


@pytest.mark.system
def test_probes_run_for_real_on_one_node_and_the_rest_is_a_prediction(tmp_path: Path) -> None:
    few = {"tensor_parallel": [1, 2], "pipeline_parallel": [1], "micro_batch_seqs": [2, 4]}
    write_toml(tmp_path / "tiny.toml", pair(evaluator="probe", space=few, budget={"probes": 2}))
    done = frontrunner("launch", "tiny.toml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "predicted tokens/s on 4 nodes" in done.stdout
    assert "predicted, not confirmed: cluster.nodes = 4" in done.stderr
    assert (
        json.loads(frontrunner("best", "--json", cwd=tmp_path).stdout) == []
    )  # nothing was measured at this scale
    assert len(json.loads(frontrunner("best", "tiny-small", "--json", cwd=tmp_path).stdout)) == 2
    again = frontrunner("resume", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert "not confirmed" in again.stderr


def test_resume_goes_on_in_either_part(tmp_path: Path, store: str) -> None:
    drivers: list[Driver] = []

    def stop_the_first(driver: Driver) -> None:
        drivers.append(driver)
        if len(drivers) == 1:
            driver.stop()

    def stop_the_last(driver: Driver) -> None:
        drivers.append(driver)
        if len(drivers) == 3:
            driver.stop()

    spec = spec_of(pair())
    assert launch(spec, store=store, on_driver=stop_the_first).state is CampaignState.STOPPED
    scale = predictions(store=store)
    assert scale is not None
    assert (scale.campaign, scale.small, scale.predicted) == ("tiny", "tiny-small", ())
    assert (
        resume(store=store, on_driver=stop_the_last).state is CampaignState.STOPPED
    )  # the small one ended meanwhile
    predicted = predictions(store=store)
    assert predicted is not None
    assert predicted.predicted
    assert not predicted.confirmed
    done = resume(store=store)
    assert (done.state, done.measured > 0) == (CampaignState.FINISHED, True)
    after = predictions(store=store)
    assert after is not None
    assert [one.tokens_per_s for one in after.predicted] == [
        one.tokens_per_s for one in predicted.predicted
    ]
    assert status("tiny-small", store=store).campaign.state is CampaignState.FINISHED


def test_predictions_are_kept_apart_from_measurements(store: str) -> None:
    launch(spec_of(pair(search={"confirm_probes": 0})), store=store)
    with open_store(store, create=False) as opened:
        assert opened.trials(opened.campaign("tiny").id) == []
        assert "search.confirm_probes is 0" in opened.campaign("tiny").state_reason
    scale = predictions("tiny", store=store)
    assert scale is not None
    (found,) = LocalStore(store).predictions_of(scale.predicted[0].recipe_id)
    assert found.predicted == scale.predicted[:1]
    assert predictions("tiny-small", store=store) is None


def test_a_name_that_is_taken_makes_neither_campaign(store: str) -> None:
    launch(spec_of(pair()), store=store)
    with pytest.raises(InvalidInput, match="exists already"):
        launch(spec_of(pair()), store=store)
    assert [found.name for found in campaigns(store=store)] == ["tiny", "tiny-small"]


def test_a_table_answers_at_both_scales(tmp_path: Path, store: str) -> None:
    """The table's small problem has another batch than a fourth of the large one's; the nearest one
    is taken.
    """

    def rows(devices: int, batch: int, factor: float) -> list[dict[str, Any]]:
        return [
            row(gpus=devices, tp=tp, pp=1, dp=devices // tp, mbs=mbs, gbs=batch,
                gas=batch // (devices // tp) // mbs,
                step_time_s=factor * tp**0.3 / mbs**0.1)
            for tp in (1, 2, 4, 8) for mbs in (1, 2)
        ]  # fmt: skip

    path = write_table(tmp_path / "sweep.csv", *rows(8, 64, 1.5), *rows(32, 128, 0.8))
    table = {
        "name": "looked-up",
        "evaluator": "table",
        "model": {"layers": 24, "hidden": 2048, "heads": 16, "vocabulary": 51200},
        "cluster": {"preset": "dgx-a100-80gb", "nodes": 4},
        "problem": {"sequence_length": 1024, "global_batch": 128, "precision": "fp16"},
        "space": {
            "tensor_parallel": [1, 2, 4, 8], "micro_batch_seqs": [1, 2],
            "sharding": ["none", "zero-1"],
            "recompute": ["full"],
        },
        "search": {"probe_nodes": 1},
        "table": {"path": str(path)},
    }  # fmt: skip
    done = launch(spec_of(table), store=store)
    scale = predictions(store=store)
    assert scale is not None
    assert scale.scale == "1 of 4 nodes, batch 64 of 128"
    assert done.measured == len(scale.confirmed) == 3
    best = max(
        scale.confirmed, key=lambda one: one.confirmed.tokens_per_s if one.confirmed else 0.0
    )
    assert best.recipe.tensor_parallel == 1


def test_ctrl_c_stops_whichever_part_runs_and_handlers_are_put_back() -> None:
    class Stoppable:
        stopped = 0

        def stop(self) -> None:
            self.stopped += 1

        def kill(self) -> None:
            raise AssertionError("the first signal drains")

    before = signal.getsignal(signal.SIGINT)
    small, large = Stoppable(), Stoppable()
    with stopped_by_signals() as on_driver:
        on_driver(small)  # type: ignore[arg-type]
        on_driver(large)  # type: ignore[arg-type]
        signal.raise_signal(signal.SIGINT)
    assert (small.stopped, large.stopped) == (0, 1)
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize(
    ("said", "heard"),
    [
        ([signal.SIGINT], ["stop"]),
        ([signal.SIGTERM, signal.SIGINT], ["stop", "kill"]),
        ([signal.SIGUSR1], ["pause"]),
        ([signal.SIGUSR2], ["kill"]),
    ],
)
def test_what_is_said_between_two_parts_holds_for_the_second(
    said: list[signal.Signals], heard: list[str]
) -> None:
    class Listening:
        def __init__(self) -> None:
            self.heard: list[str] = []

        def __getattr__(self, word: str) -> Callable[[], None]:
            return lambda: self.heard.append(word)

    small, large = Listening(), Listening()
    with stopped_by_signals() as on_driver:
        on_driver(small)  # type: ignore[arg-type]
        for number in said:
            signal.raise_signal(number)
        on_driver(large)  # type: ignore[arg-type]
    assert large.heard == heard
