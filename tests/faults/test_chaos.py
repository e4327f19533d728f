"""The campaign of chaos, small: what `benchmarks/chaos.py` does for hours, for seconds."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

from support.campaigns import environment

CHAOS = Path(__file__).parents[2] / "benchmarks" / "chaos.py"


@pytest.mark.slow
@pytest.mark.parametrize(("evaluator", "campaigns", "kills"), [("simulated", 2, 120), ("probe", 1, 12)])
def test_killed_at_random_nothing_is_lost_doubled_or_left(evaluator: str, campaigns: int, kills: int) -> None:
    asked = [
        "--campaigns",
        campaigns,
        "--kills-per-minute",
        kills,
        "--most-kills",
        4,
        "--seed",
        1,
        "--evaluator",
        evaluator,
    ]
    command = [sys.executable, "-P", str(CHAOS), *map(str, asked)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    tally = json.loads(done.stdout)
    assert tally["campaigns"] == campaigns
    assert tally["outcomes"] >= campaigns * 8


@pytest.fixture
def chaos(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("chaos", CHAOS)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "chaos", module)
    spec.loader.exec_module(module)
    return module


def test_a_driver_that_hangs_is_ended_and_one_that_fails_untouched_is_counted(chaos: ModuleType) -> None:
    audit = chaos.Chaos(kills_per_minute=1.0, most_kills=0, seed=1)
    hung = os.posix_spawnp("sleep", ["sleep", "60"], os.environ)
    assert not audit.watch(hung, give_up=time.monotonic())
    assert not Path(f"/proc/{hung}").exists()
    assert not audit.watch(os.posix_spawnp("false", ["false"], os.environ), give_up=time.monotonic() + 60)
    assert audit.watch(os.posix_spawnp("true", ["true"], os.environ), give_up=time.monotonic() + 60)
    assert audit.tally.failed_unkilled == 1
    assert not audit.tally.is_clean
