"""The store that `service_load.py` serves, and the driver that writes to it meanwhile."""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from pathlib import Path
from typing import Any

from sqlalchemy import insert
from store_queries import rows, sample

from frontrunner.config.campaign import parse_campaign
from frontrunner.results.process_identity import this_host
from frontrunner.results.states import CampaignState
from frontrunner.results.store import open_store
from frontrunner.search.spec import CampaignSpec
from frontrunner.spaces.validation import dump_json

OUTCOMES_PER_S = 50
CAMPAIGN = {
    "model": {"preset": "frontier-22b"},
    "cluster": {"preset": "frontier", "nodes": 1},
    "problem": {"sequence_length": 2048, "global_batch": 32},
    "space": {
        "tensor_parallel": [1, 2, 4, 8],
        "pipeline_parallel": [1, 2, 4],
        "micro_batch_seqs": [1, 2, 4, 8],
        "sharding": ["none", "zero-1", "zero-2", "zero-3"],
    },
    "budget": {"probes": 100_000},
}
IDS = {"id", "trial_id", "attempt_id"}


def spec_of(name: str) -> CampaignSpec:
    """A campaign as its file would make it."""
    return parse_campaign(CAMPAIGN, default_name=name, base=Path()).spec


def spec_json(name: str) -> str:
    """What the store keeps of a campaign file, as its page reads it."""
    return dump_json(spec_of(name))


def build(path: Path, campaigns: int, measurements: int) -> str:
    """A store of so many campaigns of equal size; returns a recipe that each of them has."""
    each = measurements // campaigns
    with open_store(str(path)) as store:
        for place in range(campaigns):
            name = f"c{place}"
            made = store.create_campaign(
                name=name, spec_json=spec_json(name), legal_recipes=each, problem_summary={}
            )
            for tables in rows(made.id, each, 1):
                with store.database.write() as connection:
                    for table, values in tables.items():
                        connection.execute(
                            insert(table), [moved(value, place, each) for value in values]
                        )
        with store.database.read() as connection:
            recipe: str = connection.exec_driver_sql(
                "SELECT recipe_id FROM trials LIMIT 1"
            ).scalar_one()
    return recipe


def moved(row: dict[str, Any], place: int, each: int) -> dict[str, Any]:
    """A row of `store_queries` with ids of its own; of two campaigns that follow one another the
    recipes are shared.
    """
    ids = {key: value + place * each for key, value in row.items() if key in IDS}
    recipe = {"recipe_id": f"{place // 2:02x}{row['recipe_id'][2:]}"} if "recipe_id" in row else {}
    return row | ids | recipe


def drive(path: Path) -> None:
    """Write outcomes at a steady rate, as a driver does, until stdin ends: of the space's recipes
    again and again.

    Each counts as a new one, as if the space were larger than anything that is written. Prints a
    line when it begins, and then how many there were, and how late the latest was in seconds.
    """
    asked_to_end = threading.Event()

    def listen() -> None:
        sys.stdin.read()
        asked_to_end.set()

    threading.Thread(target=listen, daemon=True).start()
    dice, written, latest_s = random.Random(1), 0, 0.0
    recipes = spec_of("driven").survey().recipes
    with open_store(str(path)) as store:
        campaign = store.create_campaign(
            name="driven",
            spec_json=spec_json("driven"),
            legal_recipes=len(recipes),
            problem_summary={},
        )
        lease = store.acquire_lease(campaign.id, host=this_host(), pid=os.getpid(), duration_s=3600)
        writer = store.drive(lease)
        writer.set_state(CampaignState.RUNNING, reason="")
        print("begun", flush=True)
        began = time.monotonic()
        while not asked_to_end.is_set():
            now = time.monotonic() - began
            if written > now * OUTCOMES_PER_S:
                time.sleep(written / OUTCOMES_PER_S - now)
                continue
            latest_s = max(latest_s, now - written / OUTCOMES_PER_S)
            recipe = dice.choice(recipes)
            with writer.together():
                attempt = writer.start_attempt(
                    writer.propose(f"{written:012x}", recipe), run_folder=f"runs/{written}"
                )
            with writer.together():
                writer.finish_attempt(attempt, sample(dice), retry=False)
                writer.event("outlook", expected_improvement=0.1, measured=written)
            written += 1
    print(f"{written} {latest_s:.3f}")
