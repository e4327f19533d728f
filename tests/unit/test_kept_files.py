"""Files of the repository that are made from the code, the pins or a campaign are current."""

from __future__ import annotations

import re

import pytest

from support.kept_files import KEPT, ROOT

pytestmark = pytest.mark.kept


@pytest.mark.parametrize("name", KEPT)
def test_kept_file_is_what_the_code_makes(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    assert text == KEPT[name](text), "run: make kept"


def test_kept_hashes_are_those_of_the_pinned_versions() -> None:
    _, *entries = re.split(
        r"\n(?=[^ #])", (ROOT / "requirements-hashed.txt").read_text(encoding="utf-8")
    )
    digests = re.compile(r"--hash=sha256:[0-9a-f]{64}(?= |$)", re.MULTILINE)
    hashed = {entry.split(" ", 1)[0]: digests.findall(entry) for entry in entries}
    pinned = re.findall(
        r"^[^#\s]+==\S+$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert list(hashed) == pinned, "run: make hashes"
    assert all(hashed.values())
