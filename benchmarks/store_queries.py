"""How long the questions take over a large store, and how long a driver's writes take.

    python benchmarks/store_queries.py [--measurements 100000] [--repeats 2] [--trials 1000]
    [--folder FOLDER]

Builds a store of that many measurements by bulk insert, then asks each question in a newly opened
store, as a command would, and prints the median and the worst of several tries. Then drives a
second store the way a campaign does (propose and start in one transaction, finish and tell in
another), without probes.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sqlalchemy import insert

from frontrunner.results.outcome import Measurement, pool
from frontrunner.results.process_identity import this_host
from frontrunner.results.ranking import RankBy, best, pareto
from frontrunner.results.rows import outcome_to_columns
from frontrunner.results.schema import (
    AttemptRow,
    MeasurementRow,
    StandingRow,
    TrialRow,
    recipe_to_json,
)
from frontrunner.results.status import explain, status
from frontrunner.results.store import Store, open_store
from frontrunner.spaces.recipe import Recipe

CHUNK = 5000
TRIES = 7


def sample(dice: random.Random) -> Measurement:
    """A measurement of a size as real ones have: 5 steps, 8 ranks."""
    mean = dice.uniform(0.1, 5.0)
    times = tuple(mean * dice.gauss(1.0, 0.02) for _ in range(5))
    step = statistics.median(times)
    return Measurement(
        step_times_s=times,
        tokens_per_step=65536,
        tokens_per_s=65536 / step,
        model_tflops_per_device=50 / step,
        hardware_tflops_per_device=60 / step,
        mfu=0.05 / step,
        peak_memory_bytes=tuple(dice.randrange(10**9, 64 * 10**9) for _ in range(8)),
        losses=tuple(dice.uniform(5, 11) for _ in range(7)),
        node_seconds=30.0,
        build_time_s=2.0,
        first_step_time_s=1.0,
    )


def rows(campaign_id: int, trials: int, repeats: int) -> Iterator[dict[type, list[dict[str, Any]]]]:
    """The rows of all tables for a few trials at a time."""
    dice = random.Random(0)
    for begin in range(0, trials, CHUNK):
        tables: dict[type, list[dict[str, Any]]] = {
            TrialRow: [],
            AttemptRow: [],
            MeasurementRow: [],
            StandingRow: [],
        }
        for number in range(begin + 1, min(begin + CHUNK, trials) + 1):
            recipe = Recipe(devices=8, tensor_parallel=2, micro_batch_seqs=number, accumulation=4)
            recipe_id = f"{dice.getrandbits(48):012x}"
            key = {"campaign_id": campaign_id, "recipe_id": recipe_id}
            final = {"number": number, "state": "measured", "outcome_number": number}
            tables[TrialRow].append(
                {"id": number, **key, **final, "recipe_json": recipe_to_json(recipe)}
            )
            measured = [sample(dice) for _ in range(repeats)]
            tables[StandingRow].append({"trial_id": number, **key, **asdict(pool(measured))})
            for repeat, measurement in enumerate(measured, start=1):
                attempt_id = (number - 1) * repeats + repeat
                tables[AttemptRow].append(attempt_row(attempt_id, campaign_id, number, repeat))
                tables[MeasurementRow].append(
                    {"attempt_id": attempt_id, **outcome_to_columns(measurement)}
                )
        yield tables


def attempt_row(attempt_id: int, campaign_id: int, trial_id: int, repeat: int) -> dict[str, Any]:
    moment = "2026-01-01T00:00:00.000000+00:00"
    return {
        "id": attempt_id,
        "campaign_id": campaign_id,
        "trial_id": trial_id,
        "number": repeat,
        "state": "measured",
        "run_folder": f"runs/bench/{trial_id}-{repeat}",
        "started_at": moment,
        "finished_at": moment,
    }


def build(path: Path, trials: int, repeats: int) -> None:
    with open_store(str(path)) as store:
        campaign = store.create_campaign(
            name="bench", spec_json="{}", legal_recipes=trials, problem_summary={}
        )
        for tables in rows(campaign.id, trials, repeats):
            with store.database.write() as connection:
                for table, values in tables.items():
                    connection.execute(insert(table), values)


def ask(path: Path, name: str, question: Callable[[Store], object]) -> None:
    """Time the question over and over, each time with the opening of the store."""
    times_s = []
    for _ in range(TRIES):
        began = time.perf_counter()
        with open_store(str(path), create=False, read_only=True) as store:
            question(store)
        times_s.append(time.perf_counter() - began)
    print(
        f"{name:28s} median {statistics.median(times_s) * 1e3:8.1f} ms   worst"
        f" {max(times_s) * 1e3:8.1f} ms"
    )


def ask_all(path: Path) -> None:
    with open_store(str(path), read_only=True) as store:
        somewhere = best(store, None, top=1000)[-1].recipe_id
    for by in RankBy:
        ask(path, f"best --by {by}", lambda store, by=by: best(store, None, by=by))
    ask(path, "best --max-memory-gb 8", lambda store: best(store, None, max_memory_gb=8))
    ask(path, "pareto", lambda store: pareto(store, None))
    ask(path, "explain", lambda store: explain(store, somewhere))
    ask(path, "status", lambda store: status(store, None))
    ask(path, "campaigns", lambda store: store.campaigns())


def drive(path: Path, trials: int) -> None:
    dice = random.Random(1)
    samples = [sample(dice) for _ in range(trials)]
    with open_store(str(path)) as store:
        campaign = store.create_campaign(
            name="driven", spec_json="{}", legal_recipes=trials, problem_summary={}
        )
        writer = store.drive(store.acquire_lease(campaign.id, host=this_host(), pid=os.getpid()))
        began, began_cpu = time.perf_counter(), time.process_time()
        for number, measurement in enumerate(samples):
            recipe = Recipe(
                devices=8, tensor_parallel=2, micro_batch_seqs=number + 1, accumulation=4
            )
            with writer.together():
                attempt = writer.start_attempt(
                    writer.propose(f"{number:012x}", recipe), run_folder=f"runs/{number}"
                )
            with writer.together():
                writer.finish_attempt(attempt, measurement, retry=False)
                writer.event(
                    "probe_finished",
                    recipe_id=f"{number:012x}",
                    tokens_per_s=measurement.tokens_per_s,
                )
        wall_s, cpu_s = time.perf_counter() - began, time.process_time() - began_cpu
        began = time.perf_counter()
        store.final_outcomes(campaign.id)
        told_s = time.perf_counter() - began
    print(
        f"writes: {wall_s / trials * 1e3:.2f} ms a trial ({cpu_s / trials * 1e3:.2f} ms of it"
        " processor time)"
    )
    print(f"told, to rebuild a strategy: {told_s * 1e3:.0f} ms for {trials} outcomes")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--measurements", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=2, help="measurements of each recipe")
    parser.add_argument("--trials", type=int, default=1000, help="trials to drive")
    parser.add_argument(
        "--folder", type=Path, default=None, help="where to build the stores (a temporary folder)"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        path = Path(folder) / "questions.db"
        build(path, options.measurements // options.repeats, options.repeats)
        size_mb = path.stat().st_size / 1e6
        print(
            f"{options.measurements} measurements, {options.repeats} of each recipe, {size_mb:.0f}"
            " MB, one campaign"
        )
        ask_all(path)
        drive(Path(folder) / "driven.db", options.trials)


if __name__ == "__main__":
    main()
