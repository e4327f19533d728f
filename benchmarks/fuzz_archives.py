"""Archives for the fuzzing of inputs: one of a small campaign, its damaged kin with right hashes,
and reading them.
"""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

from fuzz_damage import tree_damaged

from frontrunner import api
from frontrunner.api import archive, check_store, unarchive
from frontrunner.evaluators.analytic.simulated import simulate
from frontrunner.evaluators.protocol import ProbeSetup
from frontrunner.results.outcome import Failure, FailureKind
from frontrunner.results.process_identity import this_host
from frontrunner.results.provenance import collect
from frontrunner.results.states import CampaignState
from frontrunner.results.store import open_store
from frontrunner.results.transfer import Chain
from frontrunner.search.campaign_setup import problem_summary
from frontrunner.search.spec import CampaignSpec
from frontrunner.spaces.document import canonical_json, recipe_id
from frontrunner.spaces.recipe import Recipe
from frontrunner.spaces.validation import dump_json

INNER = ("spec_json", "problem_json", "recipe_json", "step_times_s_json", "peak_memory_bytes_json",
    "losses_json",
         "data_json", "provenance_json")  # fmt: skip
"""Columns that hold JSON, whose insides are damaged too."""


def archive_of(folder: Path, spec: CampaignSpec) -> list[bytes]:
    """The lines of the archive of a campaign with a measurement, a failure and an event."""
    url = str(folder / "whole.db")
    recipe = Recipe(devices=8, tensor_parallel=2, micro_batch_seqs=2, accumulation=4)
    with open_store(url) as store:
        campaign = store.create_campaign(
            name="small",
            spec_json=dump_json(spec),
            legal_recipes=9,
            problem_summary=problem_summary(spec),
        )
        writer = store.drive(store.acquire_lease(campaign.id, host=this_host(), pid=os.getpid()))
        writer.set_state(CampaignState.RUNNING, reason="start")
        writer.record_provenance(collect("test"))
        setup = ProbeSetup(
            problem=spec.problem, probe=spec.probe, data=spec.data, work_folder=folder, seed=0
        )
        crash = Failure(
            kind=FailureKind.CRASHED, message="it crashed", log_tail="the end", node_seconds=2.0
        )
        for place, outcome in enumerate((simulate(recipe, setup), crash)):
            tried = Recipe(devices=8, tensor_parallel=2, micro_batch_seqs=2, accumulation=4 + place)
            attempt = writer.start_attempt(
                writer.propose(recipe_id(spec.problem, tried), tried), run_folder=str(place)
            )
            writer.finish_attempt(attempt, outcome, retry=False)
        writer.release(CampaignState.FINISHED, reason="done")
    archive("small", folder / "whole.jsonl", store=url)
    return (folder / "whole.jsonl").read_bytes().splitlines(keepends=True)


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


def unarchived(path: Path) -> None:
    """Add an archive to a new store; what was added must be sound, be told of, and be archived
    again.
    """
    store = str(path.parent / "store.db")
    unarchive(path, store=store)
    found = check_store(store)
    if not found.is_sound:
        raise AssertionError(f"an unsound campaign was added: {found.findings}"[:600])
    archive(None, path.parent / "again.jsonl", store=store)
    for question in (api.campaigns, api.status, api.failures, api.dataframe, api.best):
        question(store=store)
    with open_store(store, read_only=True) as opened:
        told = {trial.recipe_id for trial in opened.trials(opened.campaign(None).id)}
    for identity in told:
        api.show(identity, store=store)
