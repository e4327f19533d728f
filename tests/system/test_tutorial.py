"""The tutorial, as a reader follows it: its file, and each of its commands in their order."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.campaigns import environment, frontrunner

ROOT = Path(__file__).parents[2]
TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
FIRST_HOUR = ROOT / "examples" / "first-hour.sh"
CONFIG = {
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 352,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 512,
    "max_position_embeddings": 512,
}


@pytest.mark.nightly
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
        done = frontrunner(
            *[recipe if word == "RECIPE" else word for word in arguments],
            cwd=tmp_path,
        )
        assert done.returncode == 0, f"{line}\n{done.stderr}"
        if arguments[0] == "space":
            (legal,) = re.findall(r"`space` counts (\d+) legal recipes", TUTORIAL)
            assert f"{legal} legal recipes" in done.stdout
    names = {path.name for path in tmp_path.iterdir()}
    assert {"first.html", "winner.json", "winner.torchtitan.sh", "mine.toml"} <= names
    assert "6 of 10 probes" not in frontrunner("budget", cwd=tmp_path).stdout, (
        "resume has used what was added"
    )


@pytest.mark.skipif(
    shutil.which("curl") is None, reason="there is no curl, which stands for a browser"
)
@pytest.mark.nightly
def test_a_stranger_s_first_hour_ends_with_the_exported_winner_of_a_model_of_one_s_own(
    tmp_path: Path,
) -> None:
    text = FIRST_HOUR.read_text(encoding="utf-8")
    installing = re.findall(r"git clone|-m venv|pip install", text)
    following = re.findall(r"^[^#\n]*?\b(frontrunner|curl) ", text, re.MULTILINE)
    assert (len(installing), following.count("curl")) == (3, 2)
    assert 6 <= following.count("frontrunner") <= 12 - 3 - 2
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    folder = Path(sys.executable).parent
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [FIRST_HOUR, "config.json"],
        cwd=tmp_path,
        env=environment() | {"PATH": path},
        capture_output=True,
        text=True,
        timeout=840,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    best = json.loads(frontrunner("best", "mine", "--json", cwd=tmp_path).stdout)
    winner = json.loads((tmp_path / "winner.json").read_text())
    assert winner["content"]["recipe_id"] == best[0]["recipe_id"]
    assert "4 of 4 probes" in done.stderr
