"""The page of guarantees names tests that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")


def names_in(path: Path) -> set[str]:
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    defined = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    return defined | set(re.findall(r"^(Test\w+) = ", path.read_text(encoding="utf-8"), re.MULTILINE))


def test_every_named_test_exists() -> None:
    named = re.findall(r"`(tests/\S+?)::(\w+)`", PAGE)
    assert len(named) >= 25
    for file, test in named:
        assert test in names_in(ROOT / file), f"{file}::{test}"


def test_every_guarantee_names_a_test() -> None:
    for line in PAGE.splitlines():
        if re.match(r"\| \d \|", line):
            assert "::test_" in line, line
