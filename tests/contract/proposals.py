"""Prints each strategy's first proposals over a small space, for a test that compares two
processes.
"""

import sys

from frontrunner.results.outcome import Failure, FailureKind, Measurement, Outcome
from frontrunner.search.strategy import STRATEGIES, Told, make_strategy
from frontrunner.spaces.cluster import Cluster
from frontrunner.spaces.model.model import Model
from frontrunner.spaces.problem import GlobalBatch, Problem
from frontrunner.spaces.recipe import Recipe
from frontrunner.spaces.space import Space


def probe(recipe: Recipe) -> Outcome:
    if recipe.tensor_parallel == 1:
        return Failure(kind=FailureKind.OUT_OF_MEMORY, message="too large")
    speed = 1000.0 * recipe.micro_batch_seqs / (recipe.tensor_parallel + recipe.pipeline_parallel)
    return Measurement(
        step_times_s=(1.0,),
        tokens_per_step=1,
        tokens_per_s=speed,
        model_tflops_per_device=speed,
        hardware_tflops_per_device=speed,
        mfu=None,
        peak_memory_bytes=(recipe.micro_batch_seqs * 1000 + recipe.tensor_parallel,),
        losses=(1.0,),
        node_seconds=1.0,
        build_time_s=1.0,
        first_step_time_s=1.0,
    )


def main() -> None:
    model = Model.from_keys(
        name="toy", layers=8, hidden=64, heads=8, kv_heads=8, ffn_hidden=256, vocabulary=512
    )
    cluster = Cluster(
        name="toy",
        device="gpu",
        backend="cuda",
        nodes=1,
        devices_per_node=8,
        memory_gib_per_device=16,
    )
    batch = GlobalBatch(minimum=64, maximum=64)
    problem = Problem(model=model, cluster=cluster, sequence_length=128, global_batch=batch)
    space = Space(
        tensor_parallel=(1, 2, 4, 8),
        pipeline_parallel=(1, 2, 4),
        micro_batch_seqs=(1, 2, 4),
        sharding=("none", "zero-1", "zero-2"),
    )
    for name in STRATEGIES:
        strategy = make_strategy(name, space.survey(problem), seed=3)
        for _ in range(14):
            (recipe,) = strategy.ask(1)
            strategy.tell(Told(recipe=recipe, outcome=probe(recipe)))
            sys.stdout.write(f"{name} {recipe.describe()}\n")


if __name__ == "__main__":
    main()
