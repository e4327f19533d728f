"""Measurements with chosen figures, and campaigns to record them in."""

from __future__ import annotations

import numpy as np

from frontrunner.results.outcome import Failure, Measurement
from frontrunner.results.store import Store
from frontrunner.results.writer import CampaignWriter
from frontrunner.spaces.recipe import Recipe

TOKENS_PER_STEP = 8192
FLOPS_PER_DEVICE_STEP = 3e12


def measurement(step_times_s: tuple[float, ...], memory_bytes: int) -> Measurement:
    median = float(np.median(step_times_s))
    return Measurement(
        step_times_s=step_times_s,
        tokens_per_step=TOKENS_PER_STEP,
        tokens_per_s=TOKENS_PER_STEP / median,
        model_tflops_per_device=FLOPS_PER_DEVICE_STEP / median / 1e12,
        hardware_tflops_per_device=1.3 * FLOPS_PER_DEVICE_STEP / median / 1e12,
        mfu=0.2 / median,
        peak_memory_bytes=(memory_bytes // 2, memory_bytes),
        losses=(5.0,) * len(step_times_s),
        node_seconds=10.0,
        build_time_s=1.0,
        first_step_time_s=1.0,
    )


def recipe(number: int) -> Recipe:
    return Recipe(devices=8, tensor_parallel=2, micro_batch_seqs=number + 1, accumulation=4)


def start(store: Store, name: str) -> CampaignWriter:
    campaign = store.create_campaign(
        name=name, spec_json="{}", legal_recipes=1, problem_summary={"model": name}
    )
    return store.drive(
        store.acquire_lease(campaign.id, host="another-host.example", pid=1, take_over=True)
    )


def record(
    writer: CampaignWriter, recipe_id: str, *outcomes: Measurement | Failure, number: int = 0
) -> None:
    """A trial whose last outcome is final."""
    trial = writer.propose(recipe_id, recipe(number))
    for place, outcome in enumerate(outcomes, start=1):
        attempt = writer.start_attempt(trial, run_folder=f"/runs/{recipe_id}-{place}")
        writer.finish_attempt(attempt, outcome, retry=place < len(outcomes))
