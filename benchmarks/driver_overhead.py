"""What a trial costs the driver itself: ask, tell and store, with `random` over simulated probes.

    python benchmarks/driver_overhead.py --trials 10000

The simulated evaluator answers at once, so all the time measured is the driver's and the store's.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import frontrunner
from frontrunner.evaluators.probe import ProbeSettings
from frontrunner.search.spec import Budget, CampaignSpec, SearchSettings
from frontrunner.spaces.cluster import ByPrecision, Cluster
from frontrunner.spaces.model import Model
from frontrunner.spaces.problem import GlobalBatch, Problem
from frontrunner.spaces.space import Space


def campaign(trials: int) -> CampaignSpec:
    """A space of some 19,000 legal recipes on 1,024 simulated devices."""
    model = Model(
        name="bench",
        layers=96,
        hidden=8192,
        heads=64,
        kv_heads=64,
        ffn_hidden=32768,
        vocabulary=50304,
    )
    cluster = Cluster(
        name="bench",
        device="simulated",
        backend="cpu",
        nodes=128,
        devices_per_node=8,
        memory_gib_per_device=64,
        peak_tflops=ByPrecision(bf16=191.5),
    )
    return CampaignSpec(
        name="bench",
        problem=Problem(
            model=model,
            cluster=cluster,
            sequence_length=2048,
            global_batch=GlobalBatch(minimum=64, maximum=8192),
            precision="bf16",
        ),
        space=Space(
            tensor_parallel=(1, 2, 4, 8),
            pipeline_parallel=(1, 2, 4, 8, 16, 32),
            micro_batch_seqs=(1, 2, 4, 8),
            accumulation=(1, 2, 4, 8, 16, 32, 64, 128),
            schedule=("1f1b", "gpipe"),
            sharding=("none", "zero-1", "zero-2", "zero-3"),
            recompute=("none", "selective", "full"),
            sequence_parallel=(False, True),
        ),
        search=SearchSettings(strategy="random", identical_failures=trials),
        budget=Budget(probes=trials),
        probe=ProbeSettings(measured_steps=5),
        evaluator="simulated",
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        spec = campaign(arguments.trials)
        legal = len(spec.space.survey(spec.problem).recipes)
        start, cpu = time.perf_counter(), time.process_time()
        frontrunner.launch(spec, store=f"{folder}/bench.db")
        wall, cpu = time.perf_counter() - start, time.process_time() - cpu
    found = {
        "trials": arguments.trials,
        "legal_recipes": legal,
        "wall_ms_per_trial": 1000 * wall / arguments.trials,
        "cpu_ms_per_trial": 1000 * cpu / arguments.trials,
    }
    print(json.dumps(found, indent=2))
    if arguments.json:
        arguments.json.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
