"""What cannot be planned is refused by every planning command with one message: the key and the
numbers.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

import frontrunner
from frontrunner.cli.main import frontrunner as command
from frontrunner.spaces.errors import InvalidInput, NothingLegal
from support.campaign_files import campaign_toml, written


@pytest.mark.parametrize(
    "arguments", [["plan"], ["plan", "--nodes", "1,2"], ["explain", "--campaign"], ["advise"]]
)
def test_a_file_that_cannot_be_is_one_message(arguments: list[str], tmp_path: Path) -> None:
    file = written(tmp_path / "c.toml", campaign_toml({"model.heads": "7"}))
    with pytest.raises(
        InvalidInput, match=re.escape("model.heads = 7: expected a divisor of model.hidden = 128")
    ):
        command([*arguments, str(file)], standalone_mode=False)


def test_sections_as_a_dictionary_are_the_file(tmp_path: Path) -> None:
    file = written(tmp_path / "c.toml", campaign_toml())
    sections = tomllib.loads(file.read_text())
    assert frontrunner.survey(sections) == frontrunner.survey(file)
    with pytest.raises(InvalidInput, match=r"unknown key space\.tensor_paralel = 1"):
        frontrunner.plan(sections | {"space": {"tensor_paralel": 1}})


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ("devices=8", "8 devices of 4 in the cluster"),
        ("tensor_parallel=3", "tensor_parallel 3 x pipeline_parallel 1 does not divide 4 devices"),
    ],
)
def test_a_recipe_for_another_number_of_devices_is_refused(
    choice: str, message: str, tmp_path: Path
) -> None:
    file = written(tmp_path / "c.toml", campaign_toml({"space.pipeline_parallel": "1"}))
    with pytest.raises(NothingLegal, match=message):
        command(["explain", "--campaign", str(file), choice], standalone_mode=False)
