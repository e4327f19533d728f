"""What choosing costs: processor time of ask and tell per trial, by strategy and number of outcomes
told before.

    python benchmarks/strategy_overhead.py [--json OUT] [--only guided --told 5000]
    python benchmarks/strategy_overhead.py --memory [--only guided]
    python benchmarks/strategy_overhead.py --large-space

With --memory it prints how many bytes each strategy keeps of an outcome that it is told.
Every third outcome is an out-of-memory failure. With --large-space the space has 17.7 million
points, and its survey, its plan, and the start and first proposals of strategies are timed, with
the most memory so far. Compare figures of one run with one another: they depend on the machine and
on what else it does.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import resource
import statistics
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

from frontrunner.evaluators.analytic.estimates import plan
from frontrunner.results.outcome import Failure, FailureKind, Measurement
from frontrunner.search.strategy import Strategy, Told, make_strategy
from frontrunner.spaces.cluster import ByPrecision, Cluster
from frontrunner.spaces.model.model import Model
from frontrunner.spaces.problem import GlobalBatch, Problem
from frontrunner.spaces.recipe import Recipe
from frontrunner.spaces.space import Space, Survey

T = TypeVar("T")
LISTED = ("random", "exhaustive")
GUIDED = ("guided", "deephyper", "optuna-tpe", "optuna-nsga2", "optuna-gp")
TRIALS_TIMED = {"random": 2000, "exhaustive": 2000, "optuna-gp": 3}
TRIALS_TIMED_OTHERWISE = 20
MEMORY_MARKS = (1000, 3000)
"""Outcomes told before memory is looked at, at the beginning and at the end."""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Processor times of one strategy after `told` outcomes; the rebuild is telling those and
    asking once.
    """

    strategy: str
    told: int
    rebuild_s: float
    trial_ms_median: float
    trial_ms_max: float
    most_memory_mb: float


def large_survey() -> Survey:
    """A space of more than 10,000 legal recipes."""
    model = Model.from_keys(
        name="bench",
        layers=64,
        hidden=8192,
        heads=64,
        kv_heads=64,
        ffn_hidden=32768,
        vocabulary=51200,
    )
    cluster = Cluster(
        name="bench",
        device="gpu",
        backend="cuda",
        nodes=64,
        devices_per_node=8,
        memory_gib_per_device=64,
    )
    batch = GlobalBatch(minimum=1, maximum=8192)
    problem = Problem(model=model, cluster=cluster, sequence_length=2048, global_batch=batch)
    space = Space(
        tensor_parallel=(1, 2, 4, 8, 16),
        pipeline_parallel=(1, 2, 4, 8, 16, 32),
        micro_batch_seqs=(1, 2, 4, 8, 16),
        accumulation=(8, 16, 32, 64, 128, 256),
        devices=(128, 256, 512),
        schedule=("1f1b", "gpipe"),
        sharding=("none", "zero-1", "zero-2", "zero-3"),
        recompute=("none", "selective", "full"),
        sequence_parallel=(False, True),
    )
    return space.survey(problem)


def told(recipe: Recipe) -> Told:
    """An outcome made up from the recipe: choosing takes as long for made-up numbers."""
    speed = (
        recipe.micro_batch_seqs / (1 + recipe.micro_batch_seqs) / (1 + 0.1 * recipe.tensor_parallel)
    )
    memory = int(2**30 * recipe.micro_batch_seqs / recipe.pipeline_parallel) + 1
    outcome = Measurement(
        step_times_s=(1 / speed,),
        tokens_per_step=2048,
        tokens_per_s=2048 * speed,
        model_tflops_per_device=100 * speed,
        hardware_tflops_per_device=100 * speed,
        mfu=None,
        peak_memory_bytes=(memory,),
        losses=(1.0,),
        node_seconds=1.0,
        build_time_s=1.0,
        first_step_time_s=1.0,
    )
    return Told(recipe=recipe, outcome=outcome)


def failed(recipe: Recipe) -> Told:
    """A recipe that ran out of memory."""
    return Told(recipe=recipe, outcome=Failure(kind=FailureKind.OUT_OF_MEMORY, message=""))


def one_trial_s(strategy: Strategy) -> float:
    """The processor time of one ask and one tell."""
    started = time.process_time()
    (recipe,) = strategy.ask(1)
    asked = time.process_time()
    outcome = told(recipe)
    resumed = time.process_time()
    strategy.tell(outcome)
    return asked - started + time.process_time() - resumed


def cost(name: str, survey: Survey, told_before: int) -> Cost:
    """Tell a new strategy that many outcomes, then time trials one by one."""
    strategy = make_strategy(name, survey, seed=0)
    recipes = make_strategy("random", survey, seed=1).ask(told_before)
    outcomes = [
        told(recipe) if place % 3 else failed(recipe) for place, recipe in enumerate(recipes)
    ]
    started = time.process_time()
    for outcome in outcomes:
        strategy.tell(outcome)
    strategy.ask(1)
    rebuild_s = time.process_time() - started
    times_s = [one_trial_s(strategy) for _ in range(TRIALS_TIMED.get(name, TRIALS_TIMED_OTHERWISE))]
    return Cost(
        strategy=name,
        told=told_before,
        rebuild_s=rebuild_s,
        trial_ms_median=1e3 * statistics.median(times_s),
        trial_ms_max=1e3 * max(times_s),
        most_memory_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000,
    )


def bytes_kept(name: str, survey: Survey) -> float:
    """Return how many bytes a strategy keeps of each outcome, from the first to the last mark."""
    strategy = make_strategy(name, survey, seed=0)
    recipes = iter(make_strategy("random", survey, seed=1).ask(MEMORY_MARKS[-1]))
    held = []
    tracemalloc.start()
    for before, mark in itertools.pairwise((0, *MEMORY_MARKS)):
        for place in range(before, mark):
            recipe = next(recipes)
            strategy.tell(told(recipe) if place % 3 else failed(recipe))
        strategy.ask(1)
        gc.collect()
        held.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    return (held[-1] - held[0]) / (MEMORY_MARKS[-1] - MEMORY_MARKS[0])


def largest_space() -> tuple[Problem, Space]:
    """A problem on 1,024 devices, and a space of 17.7 million points."""
    model = Model.from_keys(
        name="bench",
        layers=96,
        hidden=12288,
        heads=96,
        kv_heads=96,
        ffn_hidden=49152,
        vocabulary=50304,
    )
    cluster = Cluster(
        name="bench",
        device="H100",
        backend="cuda",
        nodes=128,
        devices_per_node=8,
        memory_gib_per_device=80,
        peak_tflops=ByPrecision(bf16=989),
    )
    problem = Problem(
        model=model,
        cluster=cluster,
        sequence_length=2048,
        global_batch=GlobalBatch(minimum=1024, maximum=1024),
        precision="bf16",
    )
    space = Space(
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
    return problem, space


def timed(what: str, work: Callable[[], T]) -> T:
    """Print what some work takes, and the most memory so far."""
    began_s = time.process_time()
    found = work()
    taken_s = time.process_time() - began_s
    memory_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    print(f"{what:40s} {taken_s:6.2f} s of processor time, {memory_mb:6.0f} MB", flush=True)
    return found


def time_largest_space() -> None:
    """Print what surveying, planning and beginning to search the largest space take."""
    problem, space = largest_space()
    survey = timed("survey", lambda: space.survey(problem))
    print(f"{survey.points:,} points, {len(survey.recipes):,} legal recipes")
    timed("plan", lambda: plan(survey.recipes, problem))
    for name in ("guided", "random", "optuna-tpe"):
        strategy = timed(name, lambda name=name: make_strategy(name, survey, 0))
        for _ in range(3):
            (recipe,) = timed("  ask", lambda strategy=strategy: strategy.ask(1))
            strategy.tell(failed(recipe))


def main() -> None:
    """Print the table, and write it as JSON where asked to."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, metavar="OUT", help="write the figures here, too")
    parser.add_argument("--only", choices=(*LISTED, *GUIDED), help="one strategy")
    parser.add_argument(
        "--told", type=int, action="append", metavar="N", help="with --only: outcomes told before"
    )
    parser.add_argument("--large-space", action="store_true", help="time a very large space")
    parser.add_argument(
        "--memory", action="store_true", help="bytes that strategies keep of an outcome"
    )
    given = parser.parse_args()
    if given.memory:
        survey = large_survey()
        for name in [given.only] if given.only else (*LISTED, *GUIDED):
            print(f"{name:14}{bytes_kept(name, survey):>8,.0f} bytes an outcome", flush=True)
        return
    if given.large_space:
        time_largest_space()
        return
    out: Path | None = given.json
    survey = large_survey()
    cases = [(name, count) for name in LISTED for count in (10, 1000, 10_000)]
    cases += [(name, count) for name in GUIDED for count in (10, 100, 1000)]
    if given.only:
        cases = [(given.only, count) for count in given.told or (10, 100, 1000)]
    print(f"{len(survey.recipes):,} legal recipes of {survey.points:,} points\n")
    print(
        f"{'strategy':14}{'told':>8}{'rebuild s':>12}{'ms a trial':>12}{'slowest ms':>12}"
        f"{'memory MB':>12}"
    )
    costs = []
    for name, count in cases:
        found = cost(name, survey, count)
        costs.append(asdict(found))
        print(
            f"{name:14}{count:>8,}{found.rebuild_s:>12.3f}{found.trial_ms_median:>12.3f}{found.trial_ms_max:>12.3f}"
            f"{found.most_memory_mb:>12.0f}",
            flush=True,
        )
    if out is not None:
        out.write_text(
            json.dumps({"legal_recipes": len(survey.recipes), "costs": costs}, indent=2) + "\n"
        )


if __name__ == "__main__":
    main()
