"""Small campaigns with chosen outcomes, for charts and reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from frontrunner.results.outcome import Failure, FailureKind, Measurement
from frontrunner.results.states import CampaignState
from frontrunner.results.store import open_store
from frontrunner.results.writer import CampaignWriter
from frontrunner.search.campaign_setup import problem_summary
from frontrunner.search.spec import CampaignSpec
from frontrunner.spaces.document import recipe_id
from frontrunner.spaces.recipe import Recipe
from frontrunner.spaces.validation import dump_json
from frontrunner.views.charts.marks import Collected, collect
from support.campaigns import spec_of, tiny

NODE_SECONDS = 36.0
GIB = 2**30


def spec(**sections: Any) -> CampaignSpec:
    """`tiny` with the peak of its devices, sections changed and a folder for files that nobody
    writes.
    """
    cluster = {"peak_tflops": {"fp32": 0.1}} | sections.get("cluster", {})
    return spec_of(tiny(**sections | {"cluster": cluster}), Path("/runs"))


def measured(
    tokens_per_s: float, memory_gib: float = 0.5, *, steps: Sequence[float] = (1.0, 1.0, 1.0)
) -> Measurement:
    return Measurement(
        step_times_s=tuple(steps),
        tokens_per_step=256,
        tokens_per_s=tokens_per_s,
        model_tflops_per_device=0.25,
        hardware_tflops_per_device=0.25,
        mfu=None,
        peak_memory_bytes=(int(memory_gib * GIB / 2), int(memory_gib * GIB)),
        losses=(5.0,),
        node_seconds=NODE_SECONDS,
        build_time_s=1.0,
        first_step_time_s=1.0,
    )


def failed(kind: FailureKind = FailureKind.OUT_OF_MEMORY, **more: Any) -> Failure:
    return Failure(**({"kind": kind, "message": "ended", "node_seconds": NODE_SECONDS} | more))


def add_trial(
    writer: CampaignWriter,
    campaign: CampaignSpec,
    recipe: Recipe,
    outcomes: Sequence[Measurement | Failure],
) -> None:
    """Record a trial of the recipe with an attempt per outcome, the last one final."""
    trial = writer.propose(recipe_id(campaign.problem, recipe), recipe)
    for place, outcome in enumerate(outcomes, start=1):
        attempt = writer.start_attempt(trial, run_folder="/runs/x")
        writer.finish_attempt(attempt, outcome, retry=place < len(outcomes))


def recorded(
    path: Path,
    campaign: CampaignSpec,
    outcomes: Sequence[tuple[Recipe, Sequence[Measurement | Failure]]],
) -> Collected:
    """Record one trial per recipe, whose last outcome is final, in a store at `path`; return the
    data of its charts.
    """
    survey = campaign.space.survey(campaign.problem)
    with open_store(str(path)) as store:
        made = store.create_campaign(
            name=campaign.name,
            spec_json=dump_json(campaign),
            legal_recipes=len(survey.recipes),
            problem_summary=problem_summary(campaign),
        )
        writer = store.drive(store.acquire_lease(made.id, host="another-host.example", pid=1))
        writer.set_state(CampaignState.RUNNING, reason="")
        for recipe, row in outcomes:
            add_trial(writer, campaign, recipe, row)
        writer.release(CampaignState.FINISHED, reason="the budget is used up")
        return collect(store, store.campaign(campaign.name), survey)


def renamed(campaign: CampaignSpec, model: str) -> CampaignSpec:
    """The campaign with another name of its model."""
    return replace(
        campaign,
        problem=replace(campaign.problem, model=replace(campaign.problem.model, name=model)),
    )
