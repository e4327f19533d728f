"""A campaign for several objectives over the command line, from a file to the front."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from support.campaigns import Table, frontrunner, launched, tiny, write_toml

SOUGHT = "tokens,memory,nodes"


def table(**search: Any) -> Table:
    """Four nodes of two devices, of which a recipe may use one, two or all."""
    return tiny(
        evaluator="simulated",
        cluster={"nodes": 4},
        problem={"global_batch": 16},
        space={"devices": [2, 4, 8], "sharding": ["none", "zero-3"], "recompute": ["none", "full"]},
        search={
            "strategy": "guided",
            "objectives": SOUGHT.split(","),
            "stop_below_improvement": 0.0,
        }
        | search,
        budget={"probes": 12},
    )


def test_a_campaign_for_several_objectives_ends_with_their_front(tmp_path: Path) -> None:
    write_toml(tmp_path / "tiny.toml", table())
    done = frontrunner("launch", "tiny.toml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Pareto front of tokens, memory and nodes" in done.stdout
    assert "to the front; the front is estimated to cover" in done.stdout
    assert "strategy-replaced" not in done.stderr
    asked = json.loads(frontrunner("pareto", "--objectives", SOUGHT, "--json", cwd=tmp_path).stdout)
    assert {row["nodes"] for row in asked} >= {1, 4}
    assert all(row["ranked"]["recipe_id"] in done.stdout for row in asked)
    status = frontrunner("status", cwd=tmp_path).stdout
    assert "to the front" in status


def test_the_json_answer_holds_objectives_and_front(tmp_path: Path) -> None:
    answer = launched(tmp_path, table())
    assert answer["objectives"] == SOUGHT.split(",")
    asked = json.loads(frontrunner("pareto", "--objectives", SOUGHT, "--json", cwd=tmp_path).stdout)
    assert answer["front"] == asked
    assert answer["outlook"]["of_front"] is True


def test_a_campaign_that_was_stored_without_objectives_is_resumed_for_speed(tmp_path: Path) -> None:
    write_toml(tmp_path / "tiny.toml", table(objectives=["tokens"]) | {"budget": {"probes": 4}})
    assert frontrunner("launch", "tiny.toml", cwd=tmp_path).returncode == 0
    with closing(sqlite3.connect(tmp_path / "frontrunner.db")) as database, database:
        (stored,) = database.execute("SELECT spec_json FROM campaigns").fetchone()
        spec = json.loads(stored)
        assert spec["search"].pop("objectives") == ["tokens"]
        spec["budget"]["probes"] = 6
        database.execute("UPDATE campaigns SET spec_json = ?", (json.dumps(spec),))
    done = frontrunner("resume", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert "front" not in answer
    assert answer["outlook"]["of_front"] is False
