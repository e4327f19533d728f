"""Archives for the fuzzing of inputs: damaged kin of a stored one, with right hashes, and reading
them.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from fuzz_damage import tree_damaged

from frontrunner import api
from frontrunner.results.archives import Chain
from frontrunner.results.store import open_store
from frontrunner.spaces.document import canonical_json

WHOLE = Path(__file__).parents[1] / "tests" / "stores" / "archive.jsonl"
"""The archive of a campaign with measurements, a failure and an event."""
INNER = ("spec_json", "problem_json", "recipe_json", "step_times_s_json", "peak_memory_bytes_json",
    "losses_json",
         "data_json", "provenance_json")  # fmt: skip
"""Columns that hold JSON, whose insides are damaged too."""


def rechained(lines: list[dict[str, Any]], rng: random.Random) -> bytes:
    """The lines with damage in one of them, or in their order, and the hashes of what they say
    then.
    """
    for _ in range(rng.choice((1, 1, 2, 3))):
        place = rng.randrange(len(lines))
        match rng.randrange(8):
            case 0:
                del lines[place]
            case 1:
                lines.insert(rng.randrange(len(lines) + 1), lines[place])
            case 2:
                other = rng.randrange(len(lines))
                lines[place], lines[other] = lines[other], lines[place]
            case 3 | 4 | 5 if isinstance(lines[place], dict) and lines[place].get("content"):
                _damage_inside(lines[place]["content"], rng)
            case _:
                lines[place] = tree_damaged(lines[place], rng)
        if not lines:
            break
    return b"".join(_line(line, chain) for chain in [Chain()] for line in lines)


def _damage_inside(content: Any, rng: random.Random) -> None:
    inner = [
        key for key in INNER if isinstance(content, dict) and isinstance(content.get(key), str)
    ]
    if not inner:
        tree_damaged(content, rng)
        return
    key = rng.choice(inner)
    try:
        content[key] = json.dumps(tree_damaged(json.loads(content[key]), rng))
    except ValueError:
        content[key] = "{"


def _line(line: Any, chain: Chain) -> bytes:
    try:
        sha256 = chain.add(line["kind"], line["content"])
        return (
            canonical_json(
                {"kind": line["kind"], "content": line["content"], "sha256": sha256}
            ).encode()
            + b"\n"
        )
    except (KeyError, TypeError, ValueError):
        return json.dumps(line).encode() + b"\n"


def imported(path: Path) -> None:
    """Add an archive to a new store; what was added must be sound, and be told of."""
    store = str(path.parent / "store.db")
    api.import_archive(path, store=store)
    found = api.check_store(store)
    if not found.is_sound:
        raise AssertionError(f"an unsound campaign was added: {found.findings}"[:600])
    for question in (api.campaigns, api.status, api.failures, api.dataframe, api.best):
        question(store=store)
    with open_store(store, read_only=True) as opened:
        told = {trial.recipe_id for trial in opened.trials(opened.campaign(None).id)}
    for identity in told:
        api.show(identity, store=store)
