"""A rank's place within its node, in everybody's words."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from frontrunner.evaluators.cluster.environment import launched_rank
from frontrunner.evaluators.probe.fork_server import _run
from frontrunner.evaluators.trainer.rendezvous import set_local_rank_env

PALS = {"PMI_RANK": "1", "PMI_SIZE": "2", "PMIX_RANK": "1", "PALS_LOCAL_RANKID": "0", "CCL_PROCESS_LAUNCHER": "pmix"}
"""What mpiexec gives to an agent that it started as the only process of the second node."""


def test_the_launcher_s_words_for_an_agent_do_not_reach_its_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "CCL_LOCAL_RANK", "CCL_LOCAL_SIZE"):
        monkeypatch.setenv(name, "stale")
    for name, value in PALS.items():
        monkeypatch.setenv(name, value)
    set_local_rank_env(7, 12)
    assert {name: os.environ[name] for name in ("CCL_PROCESS_LAUNCHER", "CCL_LOCAL_RANK", "CCL_LOCAL_SIZE")} == {
        "CCL_PROCESS_LAUNCHER": "none", "CCL_LOCAL_RANK": "7", "CCL_LOCAL_SIZE": "12",
    }  # fmt: skip
    told = {name: os.environ[name] for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE")}
    place = launched_rank(told | {"RANK": "19", "WORLD_SIZE": "24", "MASTER_ADDR": "h", "MASTER_PORT": "1"})
    assert place is not None
    assert (place.local_rank, place.local_world_size) == (7, 12)


def test_fork_server_passes_the_local_world_size_of_its_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The third rank of a node with four, of eight ranks on two nodes."""
    found: dict[str, object] = {}
    entry = SimpleNamespace(run_rank=lambda job, **given: found.update(given))
    monkeypatch.setitem(sys.modules, "frontrunner.evaluators.trainer.entry", entry)  # which imports torch
    monkeypatch.setattr("frontrunner.evaluators.trainer.job.Job.from_json", lambda text: text)
    for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "CCL_PROCESS_LAUNCHER", "CCL_LOCAL_RANK", "CCL_LOCAL_SIZE"):
        monkeypatch.setenv(name, "stale")
    (tmp_path / "job.json").write_text("{}")
    request = {"start": "a", "job": str(tmp_path / "job.json"), "world_size": 8, "ranks": [4, 4]}
    _run(request, 6)
    assert (os.environ["LOCAL_RANK"], os.environ["LOCAL_WORLD_SIZE"]) == ("2", "4")
    assert found == {"rank": 6, "world_size": 8, "init_method": f"frontrunner-rendezvous://{tmp_path}", "local_rank": 2}
