"""Store what the analytic model says of many recipes, and compare it after a change of its code.

    python benchmarks/estimate_snapshot.py --write before.json [TABLE.csv...]
    python benchmarks/estimate_snapshot.py --compare before.json [TABLE.csv...]

The recipes are drawn with a fixed seed: about 60 for each model preset, on three clusters and under
five training codes. Of each the snapshot has the recipe's id, every part of its step time and of
its peak memory, the intervals, and the busy time and memory of its pipeline's ranks; of each model
its parameters and FLOPs; and of each row of the tables the parts of time and memory. `--compare`
prints the largest relative difference of each figure, and ends with 1 if one is above 1e-9.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import random
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from frontrunner.config.campaign import named_cluster, preset_model
from frontrunner.evaluators.analytic.breakdown import pipeline_ranks
from frontrunner.evaluators.analytic.estimates import estimate_many, not_modelled
from frontrunner.evaluators.analytic.machine import Machine
from frontrunner.evaluators.analytic.memory import log_deviation, peak_memory
from frontrunner.evaluators.analytic.step import step_time
from frontrunner.evaluators.tables.workloads import read
from frontrunner.spaces.presets import preset_names
from frontrunner.spaces.problem import GlobalBatch, Problem, SoftwareSettings
from frontrunner.spaces.space import usual_space

LARGEST_DIFFERENCE = 1e-9
RECIPES_PER_PROBLEM = 12
SETTINGS = (
    ("frontier", None, "bf16", 64),
    ("dgx-h100", None, "bf16", 4),
    ("dgx-h100", "nemo", "bf16", 8),
    ("dgx-a100-80gb", "unknown", "fp16", 2),
    ("dgx-b200", "torchtitan", "bf16", 1),
)
"""Cluster, training code, precision and nodes."""
VARIED: dict[str, tuple[Any, ...]] = {
    "compile": (False, True),
    "loss_chunks": (1, 4),
    "feed_forward_tiles": (1, 4),
    "optimizer_state": ("fp32", "bf16"),
    "activation_offload": (False, True),
    "gradient_sync": ("last", "each"),
    "fp8": ("none", "tensorwise", "rowwise", "mxfp8"),
    "context_parallel": (1, 2),
    "schedule": ("1f1b", "gpipe", "interleaved-1f1b", "interleaved-zero-bubble", "zbv"),
    "virtual_stages": (1, 2),
    "rank_order": ("tp-dp-pp", "tp-pp-dp"),
    "offload": ("none", "optimizer", "optimizer+parameters"),
}
"""What drawn recipes vary besides the usual space."""


def problems() -> Iterator[Problem]:
    """Yield the problems: each model preset in each of the settings."""
    for name in preset_names("models"):
        for cluster_name, code, precision, nodes in SETTINGS:
            cluster = named_cluster(cluster_name)
            assert cluster is not None
            yield Problem(
                model=preset_model(name),
                cluster=dataclasses.replace(cluster, nodes=nodes),
                sequence_length=1024,
                global_batch=GlobalBatch(minimum=512, maximum=512),
                precision=precision,
                tolerance="quantized",
                software=SoftwareSettings(code=code),
            )


def recipes_of(problem: Problem, generator: random.Random) -> list[Any]:
    """Return recipes of the usual space with further choices, drawn one after the other."""
    usual = usual_space(problem)
    found: list[Any] = []
    for _ in range(40):
        chosen = {
            key: (generator.choice(values),)
            for key, values in VARIED.items()
            if generator.random() < 0.3
        }
        survey = usual.with_choices(**chosen).survey(problem)
        legal = [one for one in survey.recipes if not_modelled(one) is None][:20_000]
        found += generator.sample(legal, min(len(legal), 3))
        if len(found) >= RECIPES_PER_PROBLEM:
            return found[:RECIPES_PER_PROBLEM]
    return found


def figures_of_presets() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the figures of every drawn recipe, under a name of its own."""
    generator = random.Random(1)
    for number, problem in enumerate(problems()):
        model = problem.model
        flops = {
            name: getattr(model, name)(1024)
            for name in (
                "attention_flops_per_token",
                "model_flops_per_token",
                "mtp_flops_per_token",
            )
        }
        counts = {name: getattr(model, name) for name in ("parameters", "active_parameters")}
        for recompute in ("none", "selective", "full"):
            flops[f"hardware {recompute}"] = model.hardware_flops_per_token(1024, recompute)
        yield f"{number} {model.name}", {**flops, **counts}
        recipes = recipes_of(problem, generator)
        for estimate in estimate_many(recipes, problem):
            figures = {
                "recipe_id": estimate.recipe_id,
                "step_time_s": estimate.step_time_s,
                "peak": estimate.peak_memory_bytes,
                "host": estimate.host_memory_bytes_per_rank,
                **{f"time {key}": value for key, value in estimate.step_parts_s.items()},
                **{f"memory {key}": value for key, value in estimate.memory_parts_bytes.items()},
                "bounds": estimate.step_time_bounds_s,
                "memory bounds": estimate.peak_memory_bounds_bytes,
            }
            for place, rank in enumerate(pipeline_ranks(estimate.recipe, problem)):
                figures[f"rank {place} busy"] = rank.busy_s
                figures[f"rank {place} peak"] = rank.peak_memory_bytes
            yield f"{number} {model.name} {estimate.recipe_id}", figures


def figures_of_tables(paths: list[Path]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the figures of every row of the tables that the model can estimate."""
    for path in paths:
        table = read(path)
        for places, sample in table.parts:
            machine = Machine.of(sample.cluster, sample.precision, sample.software)
            time, memory = step_time(machine, sample.work), peak_memory(machine, sample.work)
            deviation = log_deviation(machine, sample.work, memory)
            columns = {f"time {name}": column for name, column in vars(time).items()}
            columns |= {f"memory {name}": column for name, column in vars(memory).items()}
            columns["memory deviation"] = deviation
            whole = {name: np.broadcast_to(column, len(places)) for name, column in columns.items()}
            for at, place in enumerate(places):
                row = table.rows[place]
                yield (
                    f"{path.stem} {row.number}",
                    {name: float(column[at]) for name, column in whole.items()},
                )


def difference(before: Any, after: Any) -> float:
    """Return the relative difference of two figures, or of the worst of two lists of them."""
    if isinstance(before, list):
        return max(difference(one, other) for one, other in zip(before, after, strict=True))
    if before == after:
        return 0.0
    if not isinstance(before, float | int) or not isinstance(after, float | int):
        return math.inf
    return abs(after - before) / max(abs(before), abs(after))


def compare(before: dict[str, dict[str, Any]], after: dict[str, dict[str, Any]]) -> int:
    """Print the largest difference of each figure; return 1 if one is too large."""
    worst: dict[str, tuple[float, str]] = defaultdict(lambda: (0.0, ""))
    for name in sorted(before.keys() ^ after.keys()):
        print(f"only {'before' if name in before else 'after'}: {name}")
    for name in before.keys() & after.keys():
        for key in before[name].keys() | after[name].keys():
            off = difference(before[name].get(key), after[name].get(key))
            worst[key] = max(worst[key], (off, name))
    for key, (off, name) in sorted(worst.items()):
        print(f"{off:8.1e}  {key}{f'  ({name})' if off else ''}")
    too_large = any(off > LARGEST_DIFFERENCE for off, _ in worst.values())
    return int(too_large or before.keys() != after.keys())


def main() -> int:
    """Write or compare a snapshot."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("tables", nargs="*", type=Path, metavar="TABLE.csv")
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--write", type=Path, metavar="FILE")
    mode.add_argument("--compare", type=Path, metavar="FILE")
    args = parser.parse_args()
    found = dict([*figures_of_presets(), *figures_of_tables(args.tables)])
    found = json.loads(json.dumps(found))
    print(f"{len(found):,} recipes, models and rows", file=sys.stderr)
    if args.write:
        args.write.write_text(json.dumps(found))
        return 0
    return compare(json.loads(args.compare.read_text()), found)


if __name__ == "__main__":
    sys.exit(main())
