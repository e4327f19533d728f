"""A space of 17.7 million points: processor time and memory of its survey, its plan, and a
strategy's first proposals.

python benchmarks/large_space.py
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from typing import TypeVar

from frontrunner.evaluators.analytic.estimates import plan
from frontrunner.results.outcome import Failure, FailureKind
from frontrunner.search.strategy import Told, make_strategy
from frontrunner.spaces.cluster import ByPrecision, Cluster
from frontrunner.spaces.model import Model
from frontrunner.spaces.problem import GlobalBatch, Problem
from frontrunner.spaces.space import Space

T = TypeVar("T")
PROBLEM = Problem(
    model=Model(
        name="bench",
        layers=96,
        hidden=12288,
        heads=96,
        kv_heads=96,
        ffn_hidden=49152,
        vocabulary=50304,
    ),
    cluster=Cluster(
        name="bench",
        device="H100",
        backend="cuda",
        nodes=128,
        devices_per_node=8,
        memory_gib_per_device=80,
        peak_tflops=ByPrecision(bf16=989),
    ),
    sequence_length=2048,
    global_batch=GlobalBatch(minimum=1024, maximum=1024),
    precision="bf16",
)
SPACE = Space(
    tensor_parallel=(1, 2, 4, 8),
    pipeline_parallel=(1, 2, 4, 8, 16, 32),
    context_parallel=(1, 2, 4),
    micro_batch_seqs=(1, 2, 4, 8),
    devices=(256, 512, 768, 1024),
    virtual_stages=(1, 2, 3, 4),
    schedule=("1f1b", "gpipe", "interleaved-1f1b", "zbv"),
    sharding=("none", "zero-1", "zero-2", "zero-3", "hybrid-8"),
    recompute=("none", "selective", "full"),
    sequence_parallel=(False, True),
    compile=(False, True),
    loss_chunks=(1, 4),
    layer_split=("even", "balanced"),
    rank_order=("tp-dp-pp", "tp-pp-dp"),
    activation_offload=(False, True),
)
STRATEGIES = ("guided", "random", "optuna-tpe")


def timed(what: str, work: Callable[[], T]) -> T:
    """Print what some work takes, and the most memory so far."""
    began_s = time.process_time()
    found = work()
    taken_s, memory_mb = (
        time.process_time() - began_s,
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000,
    )
    print(f"{what:40s} {taken_s:6.2f} s of processor time, {memory_mb:6.0f} MB", flush=True)
    return found


def main() -> None:
    survey = timed("survey", lambda: SPACE.survey(PROBLEM))
    print(f"{survey.points:,} points, {len(survey.recipes):,} legal recipes")
    timed("plan", lambda: plan(survey.recipes, PROBLEM))
    for name in STRATEGIES:
        strategy = timed(name, lambda name=name: make_strategy(name, survey, 0))
        for _ in range(3):
            recipe = timed("  ask", lambda strategy=strategy: strategy.ask(1))[0]
            failure = Failure(kind=FailureKind.OUT_OF_MEMORY, message="")
            strategy.tell(Told(recipe=recipe, outcome=failure))


if __name__ == "__main__":
    main()
