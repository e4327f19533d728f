"""The examples of other people's trainers, run as they are: DeepSpeed and Accelerate on this
machine's processors.
"""

import json
import re
from pathlib import Path

import pytest

from support.campaigns import frontrunner

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
NEEDS = {
    "command-deepspeed": "deepspeed",
    "command-accelerate": "accelerate",
    "command-trainer": "transformers",
    "command-torchtitan": "torchtitan",
}


BY_DAY = "command-accelerate"


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name == BY_DAY else pytest.mark.nightly) for name in NEEDS],
)
def test_an_example_measures_another_trainer_s_recipes(tmp_path: Path, name: str) -> None:
    pytest.importorskip(NEEDS[name])
    text = (EXAMPLES / f"{name}.toml").read_text()
    few = re.sub(r"(?m)^probes = \d+", "probes = 2", text)
    assert few != text
    campaign = tmp_path / f"{name}.toml"
    campaign.write_text(re.sub(r'"(command_\w+\.py)"', rf'"{EXAMPLES}/\1"', few))
    done = frontrunner("launch", str(campaign), "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    ranked = json.loads(done.stdout)["best"]
    assert len(ranked) == 2, done.stderr
    for row in ranked:
        assert 0 < row["standing"]["step_time_s_median"] < 60
        assert row["standing"]["peak_memory_bytes_max_rank"] > 50e6  # Python with torch
    recipe_id = ranked[0]["recipe_id"]
    replayed = frontrunner("replay", recipe_id, "--steps", "12", "--json", cwd=tmp_path)
    assert replayed.returncode == 0, replayed.stderr
    assert json.loads(replayed.stdout)["final_step"] == 12
