"""The campaign of chaos, small: what `benchmarks/chaos.py` does for hours, for seconds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

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
