"""A store for pages: a campaign whose every text from outside is a script, and a second one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from frontrunner.config.campaign import parse_campaign
from frontrunner.results.outcome import Failure, FailureKind
from frontrunner.results.predictions import PROPOSED, Expected
from frontrunner.results.states import CampaignState
from frontrunner.results.store import Store, open_store
from frontrunner.spaces.document import recipe_id
from frontrunner.spaces.validation import dump_json
from support.rankings import measurement

SCRIPT = "<script>alert(1)</script>"
TABLE: dict[str, Any] = {
    "evaluator": "probe",
    "model": {"name": SCRIPT, "layers": 4, "hidden": 128, "heads": 8, "vocabulary": 257},
    "cluster": {
        "name": SCRIPT,
        "device": SCRIPT,
        "backend": "cpu",
        "devices_per_node": 4,
        "memory_gib_per_device": 1.0,
        "peak_tflops": {"fp32": 0.1},
    },
    "problem": {"sequence_length": 128, "global_batch": 16, "precision": "fp32"},
    "space": {
        "tensor_parallel": [1, 2, 4],
        "pipeline_parallel": [1, 2],
        "micro_batch_seqs": [1, 2, 4],
    },
    "budget": {"probes": 12},
}
EXPECTED = Expected(tokens_per_s=3e9, chance=0.9, expected_improvement=0.1)


def page_store(
    folder: Path,
    names: tuple[str, ...] = ("first", "second"),
    *,
    figures: str = "measured",
    table: Mapping[str, Any] = TABLE,
) -> list[str]:
    """Fill `folder`/store.db; the ids of the recipes that each campaign measured, fastest first."""
    with open_store(str(folder / "store.db"), create=True) as store:
        first, *_ = [_campaign(store, name, figures, table) for name in names]
        return first


def _campaign(store: Store, name: str, figures: str, table: Mapping[str, Any]) -> list[str]:
    file = parse_campaign(table, default_name=name, base=Path())
    spec = replace(file.spec, run_root=file.store.run_folder)
    survey = spec.survey()
    problem = {"model": SCRIPT, "figures": figures}
    campaign = store.create_campaign(
        name=name,
        spec_json=dump_json(spec),
        legal_recipes=len(survey.recipes),
        problem_summary=problem,
    )
    writer = store.drive(store.acquire_lease(campaign.id, host=SCRIPT, pid=1, take_over=True))
    writer.set_state(CampaignState.RUNNING, reason="")
    ids = []
    for place, recipe in enumerate(survey.recipes[:4]):
        ids.append(recipe_id(spec.problem, recipe))
        trial = writer.propose(ids[-1], recipe)
        writer.event(PROPOSED, trial=trial.number, **asdict(EXPECTED))
        attempt = writer.start_attempt(trial, run_folder="/runs/1")
        failed = Failure(kind=FailureKind.CRASHED, message=SCRIPT, log_tail=f"\x1b[31m{SCRIPT}\n")
        times = ((0.1 + place / 10), (0.11 + place / 10))
        writer.finish_attempt(
            attempt, failed if place == 3 else measurement(times, 300_000_000), retry=False
        )
    writer.event("note", text=SCRIPT)
    writer.release(CampaignState.FINISHED, reason=SCRIPT)
    return ids[:3]
