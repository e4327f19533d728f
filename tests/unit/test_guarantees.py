"""The pages of guarantees and of faults name tests that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
FAULTS = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8")


def names_in(path: Path) -> set[str]:
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    defined = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    return defined | set(re.findall(r"^(Test\w+) = ", path.read_text(encoding="utf-8"), re.MULTILINE))


@pytest.mark.parametrize(("page", "least"), [(PAGE, 25), (FAULTS, 70)])
def test_every_named_test_exists(page: str, least: int) -> None:
    named = re.findall(r"`(tests/\S+?)::(\w+)`", page)
    assert len(named) >= least
    for file, test in named:
        assert test in names_in(ROOT / file), f"{file}::{test}"


def test_every_guarantee_names_a_test() -> None:
    for line in PAGE.splitlines():
        if re.match(r"\| \d \|", line):
            assert "::test_" in line, line


def test_every_fault_names_what_injects_it() -> None:
    rows = [line for line in FAULTS.splitlines() if line.startswith("| ") and not line.startswith("| fault |")]
    assert len(rows) >= 40
    for row in rows:
        assert re.search(r"`tests/\S+?::\w+`", row), row
