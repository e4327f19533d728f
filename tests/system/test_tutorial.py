"""The tutorial, as a reader follows it: its file, and each of its commands in their order."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from support.campaigns import frontrunner

TUTORIAL = (Path(__file__).parents[2] / "docs" / "tutorial.md").read_text(encoding="utf-8")


@pytest.mark.timeout(2400)
def test_each_command_of_the_tutorial_works_in_its_place(tmp_path: Path) -> None:
    (campaign,) = re.findall(r"```toml\n(.*?)```", TUTORIAL, re.DOTALL)
    (tmp_path / "first.toml").write_text(campaign)
    lines = re.findall(r"^\$ (.+)$", TUTORIAL, re.MULTILINE)
    assert len(lines) >= 14
    recipe = ""
    for line in lines:
        if "RECIPE" in line.split() and not recipe:
            best = frontrunner("best", "--json", cwd=tmp_path)
            recipe = json.loads(best.stdout)[0]["recipe_id"]
        program, *arguments = shlex.split(line)
        assert program == "frontrunner"
        done = frontrunner(*[recipe if word == "RECIPE" else word for word in arguments], cwd=tmp_path, timeout_s=900)
        assert done.returncode == 0, f"{line}\n{done.stderr}"
        if arguments[0] == "space":
            (legal,) = re.findall(r"`space` counts (\d+) legal recipes", TUTORIAL)
            assert f"{legal} legal recipes" in done.stdout
    names = {path.name for path in tmp_path.iterdir()}
    assert {"first.html", "winner.json", "winner.torchtitan.sh", "mine.toml"} <= names
    assert "6 of 10 probes" not in frontrunner("budget", cwd=tmp_path).stdout, "resume has used what was added"
