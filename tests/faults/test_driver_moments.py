"""A simulated campaign whose driver is killed at moments that nobody chose, or loses its campaign
to another.
"""

from __future__ import annotations

import sqlite3
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from frontrunner.results.process_identity import this_host
from frontrunner.results.store import open_store
from frontrunner.spaces.validation import dump_json
from support.campaigns import (
    WIDE,
    frontrunner,
    processes_of,
    spec_of,
    started,
    steps_written,
    tiny,
    wait_for,
    write_toml,
)

PROBES = 60
FINAL = "SELECT recipe_id, state FROM trials WHERE state IN ('measured', 'failed')"
ATTEMPTS = "SELECT trial_id, state FROM attempts"


def rows(folder: Path, query: str) -> list[tuple[Any, ...]]:
    """What a query finds in the store, read past our own code."""
    with closing(sqlite3.connect(folder / "frontrunner.db")) as connection:
        return connection.execute(query).fetchall()


def create(folder: Path) -> None:
    """The simulated campaign, in the folder's store."""
    folder.mkdir(exist_ok=True)
    spec = spec_of(tiny(**WIDE, budget={"probes": PROBES}), run_root=folder / "frontrunner-runs")
    with open_store(str(folder / "frontrunner.db")) as store:
        store.create_campaign(
            name="wide", spec_json=dump_json(spec), legal_recipes=1, problem_summary={}
        )


def final_recipes(folder: Path) -> set[str]:
    """The recipes that have an outcome, after checks that hold at every moment."""
    found = rows(folder, FINAL)
    assert len({recipe for recipe, _ in found}) == len(found), "a recipe was tried twice"
    measured = Counter(trial for trial, state in rows(folder, ATTEMPTS) if state == "measured")
    assert all(count == 1 for count in measured.values()), "a recipe was measured twice"
    assert len(measured) == sum(state == "measured" for _, state in found)
    assert rows(folder, "SELECT count(*) FROM measurements") == [(len(measured),)]
    assert rows(folder, "SELECT outcomes FROM campaigns") == [(len(found),)]
    return {recipe for recipe, _ in found}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The recipes that the campaign tries when nothing happens to it."""
    folder = tmp_path_factory.mktemp("undisturbed")
    create(folder)
    assert frontrunner("resume", "wide", cwd=folder).returncode == 0
    return final_recipes(folder)


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in (1, 2))]
)
def test_killed_again_and_again_it_ends_as_if_nothing_had_been(
    seed: int, tmp_path: Path, undisturbed: set[str]
) -> None:
    create(tmp_path)
    for number in range(4):
        before = len(final_recipes(tmp_path))
        with started("resume", "wide", cwd=tmp_path) as driver:
            wait_for(lambda n=before: len(rows(tmp_path, FINAL)) >= n + 3)
            time.sleep(0.002 * ((seed * 7 + number * 3) % 10))
            driver.kill()
    assert len(final_recipes(tmp_path)) < PROBES, "it was killed before its end"
    resumed = frontrunner("resume", "wide", cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    assert final_recipes(tmp_path) == undisturbed
    assert len(undisturbed) == PROBES


def test_a_driver_that_was_taken_over_ends_its_probes_and_writes_nothing(tmp_path: Path) -> None:
    write_toml(tmp_path / "tiny.toml", tiny(probe={"measured_steps": 100_000}))
    with started("launch", "tiny.toml", cwd=tmp_path) as driver:
        wait_for(
            lambda: [
                run for run in tmp_path.glob("frontrunner-runs/tiny/*.*") if steps_written(run)
            ]
        )
        with open_store(str(tmp_path / "frontrunner.db")) as store:
            campaign = store.campaign("tiny")
            store.acquire_lease(campaign.id, host="elsewhere", pid=1, take_over=True)
        assert driver.wait(timeout=600) == 5
        assert processes_of(driver.pid) == []
    said = (tmp_path / "stderr").read_text()
    assert f"taken over by elsewhere:1 at {campaign_since(tmp_path)}" in said
    assert f"{this_host()}:{driver.pid} may no longer write" in said
    assert "Traceback" not in said
    assert rows(tmp_path, ATTEMPTS) == [(1, "running")]


def campaign_since(folder: Path) -> str:
    return str(rows(folder, "SELECT driven_since FROM campaigns")[0][0])


def test_a_folder_that_cannot_be_made_ends_the_driver_with_a_hint(
    tmp_path: Path, undisturbed: set[str]
) -> None:
    create(tmp_path)
    runs = tmp_path / "frontrunner-runs"
    runs.write_text("no folder can be made here")
    done = frontrunner("resume", "wide", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert "frontrunner resume wide" in done.stderr
    assert "Traceback" not in done.stderr
    assert rows(tmp_path, "SELECT state, driver_host FROM campaigns") == [("failed", None)]
    runs.unlink()
    assert frontrunner("resume", "wide", cwd=tmp_path).returncode == 0
    assert final_recipes(tmp_path) == undisturbed
