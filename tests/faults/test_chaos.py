"""The campaign of chaos, small: what `benchmarks/chaos.py` does for hours, for seconds; and its
audit finds faults.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import frontrunner
from frontrunner.results.store import open_store
from frontrunner.search.attempts import OVERTIME
from frontrunner.search.campaign_setup import create
from frontrunner.search.spec import Budget, CampaignSpec
from support.campaigns import environment, spec_of, tiny

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
LEAVER = Path(__file__).parents[1] / "support" / "leaver.py"
SEED = os.environ.get("FRONTRUNNER_TEST_SEED", "1")
"""Draws the moments of kills: the same in CI, another each night."""
NOTHING = {"processes": [], "ports": [], "files": [], "shared_memory": []}


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, [str(BENCHMARKS), os.environ.get("PYTHONPATH")]))
    asked = [sys.executable, "-P", *map(str, command)]
    env = environment() | {"PYTHONPATH": path}
    return subprocess.run(asked, env=env, capture_output=True, text=True, timeout=900, check=False)


@pytest.mark.parametrize(
    ("evaluator", "campaigns", "kills"),
    [("simulated", 2, 120), pytest.param("probe", 1, 12, marks=pytest.mark.nightly)],
)
def test_killed_at_random_nothing_is_lost_doubled_or_left(
    evaluator: str, campaigns: int, kills: int
) -> None:
    asked = {
        "campaigns": campaigns,
        "kills-per-minute": kills,
        "most-kills": 4,
        "seed": SEED,
        "evaluator": evaluator,
    }
    done = run(BENCHMARKS / "chaos.py", *(f"--{key}={value}" for key, value in asked.items()))
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["campaigns"] == campaigns
    assert report["outcomes"] >= campaigns * 8
    assert not any(report["faults"].values())


@pytest.fixture(scope="module")
def chaos() -> Iterator[SimpleNamespace]:
    """The benchmark's modules."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        yield SimpleNamespace(
            **{name: importlib.import_module(f"chaos_{name}") for name in ("audit", "driving")}
        )


@pytest.mark.parametrize("what", ["nothing", "process", "file", "memory", "others"])
def test_what_a_program_leaves_behind_is_found_and_cleared_away(what: str, tmp_path: Path) -> None:
    (tmp_path / "temporary").mkdir()
    done = run(LEAVER, tmp_path / "temporary", what)
    assert done.returncode == 0, done.stderr
    left, again = json.loads(done.stdout)
    assert left.pop("sockets_seen") == 1
    assert again.pop("sockets_seen") == 0
    found = {key for key, value in left.items() if value}
    expected = {"process": {"processes", "ports"}, "file": {"files"}, "memory": {"shared_memory"}}
    assert found == expected.get(what, set())
    assert again == NOTHING


@pytest.fixture(scope="module")
def driven(
    tmp_path_factory: pytest.TempPathFactory, chaos: SimpleNamespace
) -> tuple[Path, CampaignSpec]:
    """The folder of a simulated campaign of six outcomes, as its driver has left it and said so."""
    folder = tmp_path_factory.mktemp("driven")
    spec = spec_of(tiny(evaluator="simulated", budget={"probes": 6}), run_root=folder / "runs")
    with open_store(str(folder / "store.db")) as store:
        create(store, spec, 1)
    frontrunner.resume(
        store=str(folder / "store.db"),
        listener=chaos.driving.Acknowledging(folder / "acknowledged"),
    )
    return folder, spec


Find = Callable[[CampaignSpec], set[str]]


@pytest.fixture
def found(driven: tuple[Path, CampaignSpec], tmp_path: Path, chaos: SimpleNamespace) -> Find:
    """What the audit finds wrong with a copy of that campaign's store and of what its driver
    said.
    """
    for name in ("store.db", "acknowledged"):
        shutil.copy(driven[0] / name, tmp_path / name)

    def find(spec: CampaignSpec) -> set[str]:
        with open_store(str(tmp_path / "store.db"), read_only=True) as store:
            faults = chaos.audit.faults(
                store, spec, tmp_path / "acknowledged", was_taken_over=False
            )
            return {kind for kind, _ in faults}

    return find


DAMAGES = {
    "measurements": "UPDATE measurements SET node_seconds = node_seconds + 1 WHERE attempt_id = 2",
    "folders": (
        "UPDATE attempts SET run_folder = (SELECT MIN(run_folder) FROM attempts) WHERE id = 3"
    ),
    "step times": "UPDATE measurements SET step_times_s_json = '[1.0]' WHERE attempt_id = 2",
    "counts": "UPDATE campaigns SET outcomes = 5",
}


@pytest.mark.parametrize(
    ("damage", "kind"),
    [
        ("measurements", "lost"),
        ("folders", "doubled"),
        ("step times", "misattributed"),
        ("counts", "broken_rules"),
    ],
)
def test_a_damaged_store_is_found_out(
    damage: str, kind: str, driven: tuple[Path, CampaignSpec], found: Find, tmp_path: Path
) -> None:
    assert found(driven[1]) == set()
    with closing(sqlite3.connect(tmp_path / "store.db")) as connection, connection:
        assert connection.execute(DAMAGES[damage]).rowcount > 0
    assert kind in found(driven[1])


def test_a_lost_outcome_and_files_that_are_left_are_found_out(
    driven: tuple[Path, CampaignSpec], found: Find, tmp_path: Path
) -> None:
    with (tmp_path / "acknowledged").open("a") as acknowledged:
        acknowledged.write('["0123456789ab", null, 1.0, 1.0]\n')
    assert found(driven[1]) == {"lost"}
    for name, kind in {
        ".outcome.json.17": "files_left",
        "outcome.json": "unheard_outcome_files",
    }.items():
        folder = driven[1].run_folder / "00099.1"
        folder.mkdir()
        (folder / name).write_text("{}")
        assert found(driven[1]) == {"lost", kind}
        shutil.rmtree(folder)


def test_a_budget_that_was_passed_is_found_out(
    driven: tuple[Path, CampaignSpec], found: Find, tmp_path: Path
) -> None:
    with open_store(str(tmp_path / "store.db"), read_only=True) as store:
        hours = store.campaign("tiny").node_seconds_spent / 3600
    for budget in (
        Budget(probes=5),
        Budget(node_hours=hours / 2),
        Budget(node_hours=hours * 0.999, hard=True),
    ):
        assert found(replace(driven[1], budget=budget)) == {"over_budget"}
    for budget in (
        Budget(probes=6),
        Budget(node_hours=hours * 0.999),
        Budget(node_hours=hours * 1.001, hard=True),
    ):
        assert found(replace(driven[1], budget=budget)) == set()


def test_hard_minutes_that_were_passed_are_found_out(
    driven: tuple[Path, CampaignSpec], found: Find, tmp_path: Path
) -> None:
    with open_store(str(tmp_path / "store.db"), read_only=True) as store:
        minutes = store.campaign("tiny").driver_seconds / 60
    assert found(replace(driven[1], budget=Budget(minutes=minutes / 2, hard=True))) == {
        "over_budget"
    }
    enough = replace(driven[1], budget=Budget(minutes=minutes * 1.001, hard=True))
    assert found(enough) == set()
    overtime = (
        f"INSERT INTO events SELECT 1000, id, updated_at, '{OVERTIME}', '{{\"seconds\": 0.5}}' FROM"
        " campaigns"
    )
    with closing(sqlite3.connect(tmp_path / "store.db")) as connection, connection:
        connection.execute(overtime)
    assert found(enough) == {"over_budget"}


@pytest.mark.parametrize(("program", "untouched"), [("false", True), ("sleep", False)])
def test_a_driver_that_hangs_is_ended_and_one_that_fails_untouched_is_counted(
    program: str,
    *,
    untouched: bool,
    tmp_path: Path,
    chaos: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def start(*_: object, **__: object) -> int:
        return os.posix_spawnp(program, [program, "600"], os.environ)

    monkeypatch.setattr(chaos.driving, "start_driver", start)
    monkeypatch.setattr(chaos.driving, "LONGEST_RUN_S", 1.0)
    counts, limits = (
        chaos.driving.Counts(),
        chaos.driving.Limits(per_minute=1, most_disturbances=0, may_outwait=False),
    )
    spec = spec_of(tiny(evaluator="simulated"), run_root=tmp_path)
    campaign = chaos.driving.Campaign(
        "", spec, tmp_path, limits=limits, draw=random.Random(1), counts=counts
    )
    ended: list[int] = []
    while not campaign.has_ended:
        campaign.step(ended.append)
        time.sleep(0.01)
    assert not campaign.has_finished
    assert not [pid for pid in ended if Path(f"/proc/{pid}").exists()]
    assert (counts.failed_untouched > 0) == untouched
