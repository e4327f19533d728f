"""What a replay's driver does while ranks train: alerts, stops in time, and where nodes come from."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from frontrunner.evaluators.cluster.batch import seconds_left
from frontrunner.evaluators.cluster.settings import DispatchSettings
from frontrunner.evaluators.probe import replay
from frontrunner.evaluators.probe.preflight import source_for
from frontrunner.evaluators.probe.replay import WATCHED_STEPS, Follower, ReplayPlan, ReplaySettings, plan
from frontrunner.evaluators.trainer.job import STOP
from frontrunner.spaces.errors import InvalidInput
from support.campaigns import setup_of, tiny_recipe

PARSL = DispatchSettings(
    backend="parsl",
    scheduler="slurm",
    walltime="00:10:00",
    nodes_per_allocation=8,
    allocations=4,
    worker_init=("true",),
)


def planned(folder: Path, **changes: Any) -> ReplayPlan:
    """A replay whose probe measured 1000 tokens/s."""
    settings = ReplaySettings(steps=1000, folder=folder, **changes)
    folder.mkdir(exist_ok=True)
    return plan(
        recipe_id="0123456789ab",
        recipe=tiny_recipe(),
        setup=setup_of(folder / "runs"),
        measured_tokens_per_s=1000.0,
        settings=settings,
        anyway=True,
    )


def test_throughput_under_nine_tenths_of_the_probe_s_is_reported_once_until_it_recovers(tmp_path: Path) -> None:
    chosen, events = planned(tmp_path / "r"), list[Any]()
    follower = Follower(chosen, events.append)
    for share in (0.92, 0.88, 0.5, 0.93, 0.97, 0.91):
        lines = [{"event": "step", "step": 1, "time_s": chosen.tokens_per_step / (1000.0 * share)}] * WATCHED_STEPS
        lines[0] = lines[0] | {"time_s": 60.0}  # one that something has held up
        with (chosen.folder / "progress.jsonl").open("a") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
        follower.read()
    alerts = [event for event in events if event["event"] != "step"]
    assert [(found["event"], found["share"]) for found in alerts] == [
        ("slower than the probe", pytest.approx(0.88)),
        ("as fast as the probe again", pytest.approx(0.97)),
    ]
    assert [json.loads(line) for line in chosen.log.read_text().splitlines()] == alerts


@pytest.mark.parametrize(("stated_s", "needed_s"), [(None, replay.STOP_MARGIN_S + 3 * 10.0 + 2 * 4.0), (77.0, 77.0)])
def test_ranks_are_stopped_when_what_is_left_is_just_enough_for_a_checkpoint(
    stated_s: float | None, needed_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = planned(tmp_path / "r", stop_margin_s=stated_s)
    (chosen.folder / "progress.jsonl").touch()
    follower = Follower(chosen, None)
    events = [{"event": "checkpoint", "step": 1, "time_s": 10.0}, {"event": "step", "step": 2, "time_s": 4.0}]
    (chosen.folder / "progress.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    follower.begin()
    follower.read()
    monkeypatch.setattr(replay.time, "monotonic", lambda: 1000.0)
    for end_s in (None, 1000.0 + needed_s + 0.1):
        follower.stop_before(end_s)
        assert (chosen.folder / STOP).read_bytes() == b""
    follower.stop_before(1000.0 + needed_s - 0.1)
    assert (chosen.folder / STOP).read_bytes() != b""
    follower.begin()
    assert (chosen.folder / STOP).read_bytes() == b"", "another start is not stopped by it"


def test_a_recipe_takes_the_nodes_that_it_uses_from_its_campaign_s_batch_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    pytest.importorskip("parsl")
    setup = setup_of(tmp_path, cluster={"nodes": 4, "devices_per_node": 1})
    setup = replace(setup, dispatch=PARSL)
    source = source_for("0123456789ab", tiny_recipe(), setup, doing="replay")
    assert source is not None
    assert (source.nodes, source.allocations, source.held) == (2, 1, None)
    elsewhere = replace(setup, dispatch=DispatchSettings())
    with pytest.raises(InvalidInput, match="needs 2 devices on nodes of 1: this process is in no job") as refused:
        source_for("0123456789ab", tiny_recipe(), elsewhere, doing="replay")
    assert "export 0123456789ab --to slurm" in str(refused.value.hint)
    with pytest.raises(InvalidInput) as refused:
        source_for("0123456789ab", tiny_recipe(), elsewhere, doing="replay", named="r.json")
    assert "export r.json --to slurm" in str(refused.value.hint), "its id may be in no store"
    for key, value in {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-3]"}.items():
        monkeypatch.setenv(key, value)
    held = source_for("0123456789ab", tiny_recipe(), elsewhere, doing="replay")
    assert held is not None
    assert held.held is not None
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n1")
    with pytest.raises(InvalidInput, match="slurm job 7 has 1"):
        source_for("0123456789ab", tiny_recipe(), elsewhere, doing="replay")


@pytest.mark.parametrize("walltime", ["00:01:00", "1 h", "00:10:30"])
def test_a_walltime_that_no_start_fits_in_is_refused(walltime: str, tmp_path: Path) -> None:
    setup = replace(setup_of(tmp_path), dispatch=PARSL)
    options: dict[str, Any] = {"measured_tokens_per_s": None, "anyway": True, "recipe_id": "0123456789ab"}
    settings = ReplaySettings(steps=5, walltime=walltime)
    with pytest.raises(InvalidInput, match=r"walltime = .*(at least 120 s|whole minutes)"):
        plan(recipe=tiny_recipe(), setup=setup, settings=settings, **options)
    local = setup_of(tmp_path)
    with pytest.raises(InvalidInput, match=r"no walltime where .* is not .parsl"):
        plan(recipe=tiny_recipe(), setup=local, settings=replace(settings, walltime="01:00:00"), **options)


def test_what_is_left_of_a_pbs_job_is_its_walltime_less_what_it_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = {"Resource_List": {"walltime": "02:00:00"}, "resources_used": {"walltime": "00:30:10"}}
    program = tmp_path / "qstat"
    program.write_text(f"#!{sys.executable}\nprint({json.dumps({'Jobs': {'1.pbs': job}})!r})\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert seconds_left("pbs", "1.pbs") == 2 * 3600 - 1810


@pytest.mark.parametrize(("shown", "left_s"), [("119:05 L", 119 * 3600 + 300.0), ("0:12 E", None), ("-", None)])
def test_what_is_left_of_an_lsf_job_is_up_to_its_limit_and_no_estimate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shown: str, left_s: float | None
) -> None:
    program = tmp_path / "bjobs"
    program.write_text(
        f"#!{sys.executable}\nimport sys\nassert sys.argv[-2:] == ['time_left', '7']\nprint({shown!r})\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert seconds_left("lsf", "7") == left_s
