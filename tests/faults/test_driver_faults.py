"""The command line's driver, killed and interrupted for real while a real probe runs."""

import json
import os
import signal
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from frontrunner.results.process_identity import this_host
from frontrunner.results.records import Trial
from frontrunner.results.store import open_store
from support.campaigns import (
    Table,
    command,
    environment,
    frontrunner,
    is_alive,
    processes_of,
    ranks_of,
    started,
    steps_written,
    tiny,
    wait_for,
    write_toml,
)

LONG = {"measured_steps": 60}
"""Probes of a second or two: time enough to be caught in one."""
PROBES = 3


def write_campaign(folder: Path, **sections: Table) -> Path:
    return write_toml(folder / "tiny.toml", tiny(budget={"probes": PROBES}, **sections))


def is_stepping(folder: Path, *, probe: int = 1) -> bool:
    """Whether the `probe`-th probe has done a step and is not over."""
    runs = sorted(folder.glob("frontrunner-runs/tiny/*.*/job.json"))
    if len(runs) < probe:
        return False
    run = runs[-1].parent
    return steps_written(run) >= 2 and not (run / "result.json").exists()


def trials(folder: Path) -> list[Trial]:
    with open_store(str(folder / "frontrunner.db"), create=False, read_only=True) as store:
        return store.trials(store.campaign("tiny").id)


def check_complete(folder: Path) -> None:
    """Nothing lost, nothing measured twice, no recipe tried twice."""
    done = trials(folder)
    assert Counter(str(trial.state) for trial in done) == {"measured": PROBES}
    assert len({trial.recipe for trial in done}) == PROBES
    answer = frontrunner("best", "--json", cwd=folder)
    ranking: list[dict[str, Any]] = json.loads(answer.stdout)
    assert len(ranking) == PROBES
    assert {row["standing"]["repeats"] for row in ranking} == {1}


def events(folder: Path) -> list[str]:
    with open_store(str(folder / "frontrunner.db"), create=False, read_only=True) as store:
        return [event.kind for event in store.events(store.campaign("tiny").id)]


def test_a_driver_killed_in_a_probe_leaves_no_process_and_is_resumed(tmp_path: Path) -> None:
    write_campaign(tmp_path, probe=LONG)
    with started("launch", "tiny.toml", cwd=tmp_path) as driver:
        wait_for(lambda: is_stepping(tmp_path, probe=2))
        family = processes_of(driver.pid)
        assert len(family) == 3, "the fork server and two ranks"
        before = {trial.recipe_id for trial in trials(tmp_path)}
        driver.send_signal(signal.SIGKILL)
        wait_for(lambda: not any(map(is_alive, family)))
        assert not processes_of(driver.pid)
    resumed = frontrunner("resume", cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    check_complete(tmp_path)
    assert before <= {trial.recipe_id for trial in trials(tmp_path)}
    assert {"lost", "harvested"} & {*events(tmp_path)}, (
        "the probe was lost, unless its ranks had just finished"
    )
    assert trials(tmp_path)[1].recipe_id in before, (
        "the probe that was cut off is made again, not replaced"
    )


@pytest.mark.nightly
def test_the_order_of_recipes_is_that_of_a_campaign_that_was_never_killed(tmp_path: Path) -> None:
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
        write_campaign(tmp_path / name, probe=LONG)
    assert frontrunner("launch", "tiny.toml", cwd=tmp_path / "whole").returncode == 0
    with started("launch", "tiny.toml", cwd=tmp_path / "killed") as driver:
        wait_for(lambda: is_stepping(tmp_path / "killed", probe=2))
        driver.send_signal(signal.SIGKILL)
    assert frontrunner("resume", cwd=tmp_path / "killed").returncode == 0
    whole, killed = ([t.recipe_id for t in trials(tmp_path / name)] for name in ("whole", "killed"))
    assert whole == killed


def test_a_result_that_was_finished_but_not_stored_is_harvested(tmp_path: Path) -> None:
    write_campaign(tmp_path)
    with started("launch", "tiny.toml", cwd=tmp_path) as driver:
        wait_for(
            lambda: list(tmp_path.glob("frontrunner-runs/tiny/*.*/rank-1.log"))
        )  # the ranks are forked
        driver.send_signal(signal.SIGSTOP)  # it sees nothing of its first probe's end
        run = tmp_path / "frontrunner-runs/tiny/00001.1"
        wait_for((run / "result.json").exists)
        assert not (run / "outcome.json").exists()
        driver.send_signal(signal.SIGKILL)
        wait_for(lambda: not processes_of(driver.pid))
    result = json.loads((run / "result.json").read_text())
    resumed = frontrunner("resume", cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    check_complete(tmp_path)
    assert "harvested" in events(tmp_path)
    assert not (run.parent / "00001.2").exists(), "not probed again"
    ranking = json.loads(
        frontrunner("show", trials(tmp_path)[0].recipe_id, "--json", cwd=tmp_path).stdout
    )
    assert str(result["step_times_s"][0])[:10] in json.dumps(ranking)


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.nightly)]
)
def test_one_signal_lets_the_probe_finish_and_says_how_to_go_on(
    tmp_path: Path, number: signal.Signals
) -> None:
    write_campaign(tmp_path, probe=LONG)
    with started("launch", "tiny.toml", cwd=tmp_path) as driver:
        wait_for(lambda: is_stepping(tmp_path))
        driver.send_signal(number)
        assert driver.wait(timeout=600) == 128 + number
    err = (tmp_path / "stderr").read_text()
    assert "stopped; continue with: frontrunner resume tiny" in err
    assert "Traceback" not in err
    assert Counter(str(trial.state) for trial in trials(tmp_path)) == {"measured": 1}
    assert not processes_of(driver.pid)
    resumed = frontrunner("resume", cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    check_complete(tmp_path)


@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGINT, marks=pytest.mark.nightly), signal.SIGTERM]
)
def test_two_signals_end_the_probe_at_once(tmp_path: Path, number: signal.Signals) -> None:
    write_campaign(tmp_path, probe={"measured_steps": 1_000_000, "deadline_s": 600})
    with started("launch", "tiny.toml", cwd=tmp_path) as driver:
        wait_for(lambda: is_stepping(tmp_path))
        driver.send_signal(number)
        wait_for(lambda: "press Ctrl-C again to end it now" in (tmp_path / "stderr").read_text())
        assert driver.poll() is None
        driver.send_signal(number)
        assert driver.wait(timeout=600) == 128 + number
    assert not processes_of(driver.pid)
    assert Counter(str(trial.state) for trial in trials(tmp_path)) == {"queued": 1}


def test_a_terminals_interrupt_reaches_the_driver_alone(tmp_path: Path) -> None:
    """Ctrl-C goes to a terminal's whole foreground group: ranks and fork server must not be in
    it.
    """
    write_campaign(tmp_path, probe={"measured_steps": 1_000_000, "deadline_s": 600})
    with started("launch", "tiny.toml", cwd=tmp_path) as driver:
        wait_for(lambda: is_stepping(tmp_path))
        groups = {os.getpgid(process.pid) for process in processes_of(driver.pid)}
        assert os.getpgid(driver.pid) not in groups
        assert len(groups) == 3


def test_a_second_driver_is_refused_by_name(tmp_path: Path) -> None:
    write_campaign(tmp_path, probe={"measured_steps": 1_000_000, "deadline_s": 600})
    with started("launch", "tiny.toml", cwd=tmp_path) as driver:
        wait_for(lambda: is_stepping(tmp_path))
        second = frontrunner("resume", "tiny", cwd=tmp_path)
        assert second.returncode == 5
        assert f"{this_host()}:{driver.pid}" in second.stderr
        assert "--take-over" in second.stderr
        assert driver.poll() is None
        assert len(ranks_of(driver.pid)) == 2, "the first goes on undisturbed"


def test_a_reader_that_leaves_does_not_end_the_campaign(tmp_path: Path) -> None:
    table = {"evaluator": "simulated", **tiny(budget={"probes": PROBES})}
    write_toml(tmp_path / "tiny.toml", table)
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run(
        command("launch", "tiny.toml"),
        cwd=tmp_path,
        env=environment(),
        stderr=write_end,
        stdout=subprocess.PIPE,
        check=False,
    )
    os.close(write_end)
    assert b"3 recipes" in done.stdout
    assert b"Simulated: " in done.stdout
    check_complete(tmp_path)
