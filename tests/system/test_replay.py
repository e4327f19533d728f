"""Replays of a measured recipe: killed in every way, each goes on at its newest checkpoint as if
nothing had been.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest

import frontrunner as api
from frontrunner.evaluators.nodes.child_processes import FOLDER_TAG
from frontrunner.evaluators.runs.training import ReplaySettings, ReplayStopped
from frontrunner.evaluators.trainer.job import STOP
from frontrunner.spaces.errors import InvalidInput
from support.campaigns import (
    assert_same_rows,
    environment,
    frontrunner,
    launched,
    marked,
    metrics,
    spec_of,
    started,
    steps_written,
    tiny,
    wait_for,
)

STEPS = 120
OPTIONS = ("--anyway", "--checkpoint-every", "10", "--evaluate-every", "40", "--steps", str(STEPS))


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder with a store, and the id of its one measured recipe: two ranks."""
    folder = tmp_path_factory.mktemp("measured")
    space = {"tensor_parallel": [1], "pipeline_parallel": [1], "micro_batch_seqs": [4]}
    return folder, launched(folder, tiny(space=space, budget={"probes": 1}))["best"][0]["recipe_id"]


@pytest.fixture(scope="module")
def uninterrupted(measured: tuple[Path, str]) -> tuple[Path, dict[str, Any]]:
    """The folder and the answer of a replay that nothing happened to."""
    folder, recipe = measured
    done = frontrunner("replay", recipe, *OPTIONS, "--folder", "whole", "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder / "whole", json.loads(done.stdout)


def checkpoints(folder: Path) -> list[int]:
    found = (folder / "checkpoints").glob("step-*/.metadata")
    return sorted(int(path.parent.name.removeprefix("step-")) for path in found)


def assert_same_run(folder: Path, other: Path) -> None:
    mine = metrics(folder)
    assert_same_rows(mine, metrics(other), STEPS)
    assert [row["evaluation_loss"] for row in mine].count("") == STEPS - 3


def ranks_in(folder: Path) -> list[psutil.Process]:
    """The ranks of a replay: what the fork servers of its drivers have forked."""
    return [one for one in of_replay(folder) if one.ppid() in {o.pid for o in of_replay(folder)}]


def of_replay(folder: Path) -> list[psutil.Process]:
    """The fork server of a replay and its ranks."""
    return marked(FOLDER_TAG, str(folder.resolve()))


def server_in(folder: Path) -> psutil.Process:
    ranks = {rank.pid for rank in ranks_in(folder)}
    (found,) = (one for one in of_replay(folder) if one.pid not in ranks)
    return found


def test_it_trains_past_the_probe_and_says_how_fast(
    uninterrupted: tuple[Path, dict[str, Any]],
) -> None:
    folder, answer = uninterrupted
    rows = metrics(folder)
    assert answer["final_step"] == STEPS == len(rows)
    assert float(rows[-1]["loss"]) < float(rows[0]["loss"]) - 0.5, "it learns"
    assert answer["final_loss"] == pytest.approx(float(rows[-1]["loss"]))
    assert answer["ratio_to_probe"] == pytest.approx(
        answer["tokens_per_s"] / answer["measured_tokens_per_s"]
    )
    stepping_s = sum(float(row["step_time_s"]) for row in rows)
    tokens = float(rows[0]["tokens_per_s"]) * float(rows[0]["step_time_s"]) * STEPS
    assert 0.2 < answer["sustained_tokens_per_s"] / (tokens / stepping_s) < 1
    assert set(answer["evaluation_losses"]) == {"40", "80", "120"}
    assert checkpoints(folder) == [STEPS - 10, STEPS]
    assert json.loads((folder / "provenance.json").read_text())["recipe_id"] == answer["recipe_id"]
    peak = max(float(row["learning_rate"]) for row in rows)
    assert float(rows[9]["learning_rate"]) == peak == pytest.approx(3e-4)
    assert float(rows[-1]["learning_rate"]) == pytest.approx(3e-5)


def strike_everything_but_ranks(folder: Path, command: subprocess.Popen[str]) -> None:
    server = server_in(folder)
    server.suspend()  # so that it cannot end its ranks in answer to the end of its driver
    command.kill()


def strike_between_the_parts_of_a_checkpoint(folder: Path, command: subprocess.Popen[str]) -> None:
    """Kill everything while a checkpoint has the part of a rank and not yet what makes it whole."""
    ranks = ranks_in(folder)
    for _ in range(100):
        wait_for(lambda: parts_without_a_whole(folder), pause_s=0.0)
        for rank in ranks:
            os.kill(rank.pid, signal.SIGSTOP)
        if parts_without_a_whole(folder):
            break
        for rank in ranks:  # too late: it was whole before they stood still
            os.kill(rank.pid, signal.SIGCONT)
    assert parts_without_a_whole(folder), "no checkpoint was caught while it was written"
    command.kill()
    for process in (*ranks, *of_replay(folder)):
        with contextlib.suppress(psutil.NoSuchProcess):  # it ended with the one before
            process.kill()


def parts_without_a_whole(folder: Path) -> list[Path]:
    """The files of a checkpoint that is being written, before the one that says what they hold."""
    for partial in (folder / "checkpoints").glob("step-*"):
        with contextlib.suppress(FileNotFoundError):  # removed meanwhile
            parts = sorted(partial.iterdir())
            if parts and not (partial / ".metadata").exists():
                return parts
    return []


@pytest.mark.nightly
def test_a_replay_starts_again_with_the_same_losses_when_its_server_is_killed(
    measured: tuple[Path, str], uninterrupted: tuple[Path, dict[str, Any]]
) -> None:
    home, recipe = measured
    folder = home / "without-server"
    with started("replay", recipe, *OPTIONS, "--folder", folder.name, cwd=home) as command:
        wait_for(lambda: steps_written(folder) > 25)
        server_in(folder).kill()
        assert command.wait(timeout=600) == 0
    assert resumed_at(folder)[0] >= 20, "it went on from the newest checkpoint"
    assert_same_run(folder, uninterrupted[0])
    said = (home / "stderr").read_text()
    assert said.index("failed  kind lost") < said.index("start  number 2  from_checkpoint")
    assert not of_replay(folder)


@pytest.mark.parametrize(
    "strike",
    [
        strike_between_the_parts_of_a_checkpoint,
        pytest.param(strike_everything_but_ranks, marks=pytest.mark.nightly),
    ],
)
def test_killed_in_the_middle_it_goes_on_with_the_same_losses(
    strike: Any, measured: tuple[Path, str], uninterrupted: tuple[Path, dict[str, Any]]
) -> None:
    home, recipe = measured
    folder = home / strike.__name__
    arguments = ("replay", recipe, *OPTIONS, "--folder", folder.name)
    with started(*arguments, cwd=home) as command:
        wait_for(lambda: steps_written(folder) > 25)
        strike(folder, command)
        assert command.wait(timeout=600) == -signal.SIGKILL
    if strike is strike_everything_but_ranks:
        assert len(ranks_in(folder)) == 2, "they are left to the next run"
    else:
        wait_for(lambda: not of_replay(folder))
    reached = checkpoints(folder)[-1]
    assert 20 <= reached < STEPS
    again = frontrunner(*arguments, cwd=home)
    assert again.returncode == 0, again.stderr
    assert "resumed" in again.stderr
    assert resumed_at(folder)[0] >= reached, "it went on from the newest checkpoint"
    assert_same_run(folder, uninterrupted[0])
    assert not of_replay(folder)


def resumed_at(folder: Path) -> list[int]:
    """The steps at which the starts of a replay went on, of which there is one."""
    events = [json.loads(line) for line in (folder / "progress.jsonl").read_text().splitlines()]
    found = [event["step"] for event in events if event["event"] == "resumed"]
    assert len(found) == 1
    return found


@pytest.mark.parametrize("by", ["signal", pytest.param("file", marks=pytest.mark.nightly)])
def test_a_stop_ends_it_with_a_checkpoint_that_it_goes_on_from(
    by: str, measured: tuple[Path, str], uninterrupted: tuple[Path, dict[str, Any]]
) -> None:
    home, recipe = measured
    folder, arguments = (
        home / f"stopped-{by}",
        ("replay", recipe, *OPTIONS, "--folder", f"stopped-{by}"),
    )
    with started(*arguments, cwd=home) as command:
        wait_for(lambda: steps_written(folder) > 15)
        if by == "file":
            (folder / STOP).write_text("1")
        else:
            command.send_signal(signal.SIGTERM)
        assert command.wait(timeout=600) == ReplayStopped.exit_code
    (stopped,) = metrics(folder)[-1:]
    assert checkpoints(folder)[-1] == int(stopped["step"]) < STEPS
    assert (
        f"stopped after step {stopped['step']}, with a checkpoint" in (home / "stderr").read_text()
    )
    again = frontrunner(*arguments, cwd=home)
    assert again.returncode == 0, again.stderr
    assert f"resumed  step {stopped['step']}" in again.stderr
    assert_same_run(folder, uninterrupted[0])


@pytest.mark.nightly
def test_an_interrupt_ends_it_with_everything_behind_it(measured: tuple[Path, str]) -> None:
    home, recipe = measured
    folder = home / "interrupted"
    with started("replay", recipe, *OPTIONS, "--folder", folder.name, cwd=home) as command:
        wait_for(lambda: steps_written(folder) > 5)
        os.kill(command.pid, signal.SIGINT)
        assert command.wait(timeout=600) == 130
        assert not of_replay(folder)
    said = (home / "stderr").read_text()
    assert "Traceback" not in said
    assert "checkpoint" in said


@pytest.mark.nightly
def test_a_folder_has_one_replay_at_a_time(measured: tuple[Path, str]) -> None:
    home, recipe = measured
    folder = home / "twice"
    more_steps = str(100 * STEPS)  # than are done until a second one has begun
    arguments = ("replay", recipe, *OPTIONS, "--steps", more_steps, "--folder", folder.name)
    with started(*arguments, cwd=home) as first:
        wait_for(lambda: steps_written(folder) > 2)
        second = frontrunner(*arguments, cwd=home)
        assert second.returncode == 2
        assert f"a replay is running in {folder}" in second.stderr
        assert first.poll() is None
        first.send_signal(signal.SIGINT)
        first.wait(timeout=600)


def test_a_folder_of_another_run_is_refused_and_left_as_it_is(
    measured: tuple[Path, str], uninterrupted: tuple[Path, dict[str, Any]]
) -> None:
    home, recipe = measured
    folder, _ = uninterrupted
    before = (folder / "job.json").read_bytes()
    other = frontrunner(
        "replay", recipe, *OPTIONS, "--folder", "whole", "--learning-rate", "0.1", cwd=home
    )
    assert other.returncode == 2
    assert "holds a run that differs in optimizer" in other.stderr
    assert "--folder" in other.stderr
    assert (folder / "job.json").read_bytes() == before


def test_a_run_that_is_complete_is_not_run_again(
    measured: tuple[Path, str], uninterrupted: tuple[Path, dict[str, Any]]
) -> None:
    home, recipe = measured
    before = metrics(uninterrupted[0])
    again = frontrunner("replay", recipe, *OPTIONS, "--folder", "whole", cwd=home)
    assert again.returncode == 0, again.stderr
    assert f"already trained to step {STEPS}" in again.stdout
    assert metrics(uninterrupted[0]) == before


@pytest.mark.nightly
def test_data_that_changed_since_the_campaign_are_refused_unless_named(tmp_path: Path) -> None:
    text = tmp_path / "mine.txt"
    text.write_text("words of mine " * 3000)
    space = {"tensor_parallel": [1], "pipeline_parallel": [1], "micro_batch_seqs": [4]}
    mine = tiny(
        space=space, budget={"probes": 1}, data={"path": "mine.txt"}, probe={"learning_rate": 0.01}
    )
    recipe = launched(tmp_path, mine)["best"][0]["recipe_id"]
    exported = frontrunner("export", recipe, "--to", "recipe", "--out", "r.json", cwd=tmp_path)
    assert exported.returncode == 0, exported.stderr
    text.write_text("others' words " * 3000)
    for named in (recipe, "r.json"):
        refused = frontrunner("replay", named, "--steps", "2", "--anyway", cwd=tmp_path)
        assert refused.returncode == 2
        assert "mine.txt" in refused.stderr
        assert "--data FILE" in refused.stderr
    done = frontrunner(
        "replay",
        "r.json",
        "--steps",
        "2",
        "--anyway",
        "--data",
        "mine.txt",
        "--folder",
        "f",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert float(metrics(tmp_path / "f")[-1]["learning_rate"]) == pytest.approx(0.01 * 2 / 10), (
        "the campaign's"
    )


def test_other_hardware_is_refused_unless_told_anyway(measured: tuple[Path, str]) -> None:
    home, recipe = measured
    refused = frontrunner("replay", recipe, "--steps", "5", "--folder", "refused", cwd=home)
    assert refused.returncode == 2
    assert "device test-cpu there" in refused.stderr
    assert "--anyway" in refused.stderr
    assert not (home / "refused").exists()


def test_the_printed_command_runs_the_same_training(measured: tuple[Path, str]) -> None:
    home, recipe = measured
    options = ("--anyway", "--steps", "4", "--folder", "printed", "--print-command")
    printed = frontrunner("replay", recipe, *options, cwd=home)
    assert printed.returncode == 0, printed.stderr
    (line,) = printed.stdout.splitlines()
    assert steps_written(home / "printed") == 0
    done = subprocess.run(
        shlex.split(line), cwd=home, env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert len(metrics(home / "printed")) == 4


def test_from_python(
    measured: tuple[Path, str], uninterrupted: tuple[Path, dict[str, Any]]
) -> None:
    home, recipe = measured
    store = str(home / "frontrunner.db")
    with pytest.raises(InvalidInput, match="other hardware"):
        api.replay(recipe, steps=3, store=store)
    settings = ReplaySettings(steps=1, checkpoint_every_steps=2, folder=home / "python")
    result = api.replay(recipe[:6], steps=3, store=store, anyway=True, settings=settings)
    assert (result.recipe_id, result.final_step) == (recipe, 3)
    assert result.tokens_per_s is not None
    assert result.final_loss is not None
    assert [row["step"] for row in metrics(home / "python")] == ["1", "2", "3"]


def test_a_recipe_that_nobody_measured(measured: tuple[Path, str]) -> None:
    unknown = frontrunner("replay", "abcdefabcdef", "--steps", "5", cwd=measured[0])
    assert unknown.returncode == 2
    assert "abcdefabcdef" in unknown.stderr


def test_a_simulated_figure_is_nothing_to_compare_with(
    measured: tuple[Path, str], tmp_path: Path
) -> None:
    folder, recipe = measured
    store = tmp_path / "both.db"
    shutil.copy(folder / "frontrunner.db", store)
    [real] = api.best(store=str(store))
    space = {"tensor_parallel": [1], "pipeline_parallel": [1], "micro_batch_seqs": [4]}
    rehearsal = spec_of(tiny(evaluator="simulated", space=space, budget={"probes": 1}))
    api.launch(rehearsal, store=str(store), name="rehearsal")
    api.launch(rehearsal, store=str(tmp_path / "simulated.db"))
    settings = ReplaySettings(steps=2)

    beside_a_probe = api.plan_replay(recipe, settings, store=str(store), anyway=True)
    alone = api.plan_replay(recipe, settings, store=str(tmp_path / "simulated.db"), anyway=True)

    assert [row.figures for row in api.best(store=str(store))] == ["simulated"], (
        "the rehearsal is the newest"
    )
    assert beside_a_probe.measured_tokens_per_s == real.standing.tokens_per_s
    assert alone.measured_tokens_per_s is None
