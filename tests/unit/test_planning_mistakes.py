"""What cannot be planned is refused by every planning command with one message: the key and the numbers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from frontrunner.cli.main import frontrunner as command
from frontrunner.spaces.errors import InvalidInput, NothingLegal
from support.campaign_files import campaign_toml, written

MISTAKES = {
    "a figure that is missing": ({"cluster.memory_gib_per_device": None}, "cluster.memory_gib_per_device is missing"),
    "a figure that cannot be": ({"cluster.memory_gib_per_device": "-1"}, "cluster.memory_gib_per_device = -1"),
    "another unit": ({"cluster.memory_gib_per_device": "81920000"}, "81920000.0: expected at most 100,000"),
    "a share above 1": ({"cluster.matmul_share": "86"}, "matmul_share = 86.0: expected a share above 0 and at most 1"),
    "heads": ({"model.heads": "7"}, "model.heads = 7: expected a divisor of model.hidden = 128"),
    "positions": (
        {"model.positions": '"learned"', "model.max_positions": "64"},
        "problem.sequence_length = 128: expected at most model.max_positions = 64",
    ),
}


@pytest.mark.parametrize("arguments", [["plan"], ["plan", "--nodes", "1,2"], ["explain", "--campaign"], ["advise"]])
@pytest.mark.parametrize("name", MISTAKES)
def test_a_file_that_cannot_be_is_one_message(name: str, arguments: list[str], tmp_path: Path) -> None:
    changes, message = MISTAKES[name]
    file = written(tmp_path / "c.toml", campaign_toml(changes))
    with pytest.raises(InvalidInput, match=re.escape(message)):
        command([*arguments, str(file)], standalone_mode=False)


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ("devices=8", "8 devices of 4 in the cluster"),
        ("tensor_parallel=3", "tensor_parallel 3 x pipeline_parallel 1 does not divide 4 devices"),
    ],
)
def test_a_recipe_for_another_number_of_devices_is_refused(choice: str, message: str, tmp_path: Path) -> None:
    file = written(tmp_path / "c.toml", campaign_toml({"space.pipeline_parallel": "1"}))
    with pytest.raises(NothingLegal, match=message):
        command(["explain", "--campaign", str(file), choice], standalone_mode=False)
