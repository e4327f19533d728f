"""What the formulas say of two published studies on Frontier, beside what was published. Nothing is
fitted to them.

    python benchmarks/frontier_predictions.py [--json OUT]

arXiv 2312.12705 trained GPT models of 22, 175 and 1,000 billion parameters with Megatron-DeepSpeed.
Its abstract states the share of 191.5 TFLOPS a device that each reached, FLOPs of recompute counted
as Megatron-LM does (arXiv 2104.04473, equation 3), and how the two larger ones scale. The recipes
are those of the authors' launch files; the batches of their scaling runs are assumed to be 8,000
and 8,016 sequences, and weak scaling to keep the launch file's for each replica.

arXiv 2501.04266 spreads parameters over a card's two devices, gradients over a node's eight and
optimizer states over all, and states its TFLOPS against ZeRO++'s for a model of 20 billion
parameters on 384 devices. Its micro-batch and accumulation are not known here: several are assumed,
and all are shown. The model is GPT-NeoX-20B, assumed too; and that three levels, which extend
ZeRO++ by their abstract, quantize as it does.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from frontrunner.evaluators.analytic.codes import MEGATRON_DEEPSPEED, with_traits
from frontrunner.evaluators.analytic.machine import Machine
from frontrunner.evaluators.analytic.step import step_time
from frontrunner.evaluators.analytic.workload import Workload
from frontrunner.spaces.cluster import ByPrecision, Cluster, Links
from frontrunner.spaces.document import read_plain
from frontrunner.spaces.model.model import Model
from frontrunner.spaces.presets import cluster_preset, model_preset
from frontrunner.spaces.problem import GlobalBatch, Problem, SoftwareSettings
from frontrunner.spaces.recipe import Recipe
from frontrunner.spaces.sharding import Sharding

STUDY_BAR, SCALING_BAR, LEVELS_BAR = 0.06, 0.10, 0.15
BATCHES = ((1, 1), (2, 1), (4, 1), (1, 4), (2, 4), (4, 4), (1, 16))
"""Micro-batch and accumulation."""
QUANTIZED = {"quantized_weights": True, "quantized_gradients": True}
CHOICES = {"zero-3": {}, "zero++": QUANTIZED | {"secondary_partition": 8}, "3-level-2/8": QUANTIZED}
FULL_SIZE = 384
SMALL_SIZE = 64
"""From how many devices on the scaling efficiency of the three-level partitioning is told;
assumed.
"""


@dataclass(frozen=True, kw_only=True)
class Line:
    """One published figure and the formulas' own."""

    name: str
    published: float
    told: float
    bar: float
    assumed: str = ""

    @property
    def off(self) -> float:
        """What is told over what was published, less 1."""
        return self.told / self.published - 1


@dataclass(frozen=True, kw_only=True)
class Launch:
    """A launch file of the Frontier study, and what the study published of its model."""

    preset: str
    sequence_length: int
    share: float
    tensor_parallel: int
    pipeline_parallel: int
    replicas: int
    accumulation: int
    sharding: str

    def problem(self, devices: int) -> Problem:
        """The model on so many devices."""
        return problem_of(self.preset, devices, self.sequence_length)

    def recipe(self, *, replicas: int | None = None, accumulation: int | None = None) -> Recipe:
        """The file's recipe, with other replicas or another accumulation."""
        copies = replicas or self.replicas
        return Recipe(
            devices=copies * self.tensor_parallel * self.pipeline_parallel,
            tensor_parallel=self.tensor_parallel,
            pipeline_parallel=self.pipeline_parallel,
            schedule="1f1b",
            micro_batch_seqs=1,
            accumulation=accumulation or self.accumulation,
            recompute="full",
            sharding=Sharding.named(self.sharding, copies),
        )


LAUNCHES = (
    Launch(preset="frontier-22b", sequence_length=2048, share=0.3838, tensor_parallel=1,
        pipeline_parallel=8,
           replicas=2, accumulation=320, sharding="none"),
    Launch(preset="frontier-175b", sequence_length=4096, share=0.3614, tensor_parallel=4,
        pipeline_parallel=16,
           replicas=2, accumulation=320, sharding="zero-1"),
    Launch(preset="frontier-1t", sequence_length=2048, share=0.3196, tensor_parallel=4,
        pipeline_parallel=128,
           replicas=2, accumulation=512, sharding="zero-1"),
)  # fmt: skip
SCALED = {"frontier-175b": (16, 8000, 0.89), "frontier-1t": (6, 8016, 0.87)}
"""Replicas of the largest run, sequences of its strong scaling (assumed), and its published
efficiency.
"""


def problem_of(name: str, devices: int, sequence_length: int) -> Problem:
    """A preset model on so many devices of Frontier in fp16; any batch."""
    table = model_preset(name)
    widths = {"kv_heads": table["heads"], "ffn_hidden": 4 * table["hidden"]}
    model = read_plain(Model, widths | table | {"max_positions": sequence_length}, "model")
    preset = cluster_preset("frontier")
    made = {"links": Links(**preset["links"]), "peak_tflops": ByPrecision(**preset["peak_tflops"])}
    cluster = Cluster(**preset | made | {"nodes": -(-devices // preset["devices_per_node"])})
    batch = GlobalBatch(minimum=1, maximum=10**6)
    return Problem(
        model=model,
        cluster=cluster,
        sequence_length=sequence_length,
        global_batch=batch,
        precision="fp16",
    )


def step_s(recipe: Recipe, problem: Problem) -> float:
    """The formulas' step time under Megatron-DeepSpeed in fp16."""
    software = with_traits(MEGATRON_DEEPSPEED, SoftwareSettings(dropout=True, gradients="16-bit"))
    machine = Machine.of(problem.cluster, problem.precision, software)
    return float(step_time(machine, Workload.of([recipe], problem)).total[0])


def tokens_per_s_per_device(recipe: Recipe, problem: Problem) -> float:
    """Tokens a second and device."""
    return (
        recipe.global_batch_seqs
        * problem.sequence_length
        / step_s(recipe, problem)
        / recipe.devices
    )


def study() -> list[Line]:
    """The Frontier study: the share of the peak, and scaling."""
    lines = []
    for launch in LAUNCHES:
        recipe = launch.recipe()
        problem = launch.problem(recipe.devices)
        model, length = problem.model, problem.sequence_length
        # As published: recompute is one more forward pass of every layer (arXiv 2104.04473,
        # equation 3).
        flops = model.model_flops_per_token(length) + len(
            model.layers
        ) * model.layer_flops_per_token(length)
        peak = problem.cluster.peak_flops("fp16") or 0.0
        told = tokens_per_s_per_device(recipe, problem) * flops / peak
        lines.append(
            Line(
                name=f"{launch.preset}: share of the peak",
                published=launch.share,
                told=told,
                bar=STUDY_BAR,
            )
        )
    for launch in LAUNCHES:
        if launch.preset in SCALED:
            lines.extend(scaling(launch))
    return lines


def scaling(launch: Launch) -> list[Line]:
    """Efficiencies of more replicas: at a batch that grows with them, and at one that stays."""
    replicas, sequences, efficiency = SCALED[launch.preset]
    small, large = launch.recipe(), launch.recipe(replicas=replicas)
    problem = launch.problem(large.devices)
    weak = tokens_per_s_per_device(large, problem) / tokens_per_s_per_device(small, problem)
    kept = [
        launch.recipe(replicas=n, accumulation=sequences // n) for n in (launch.replicas, replicas)
    ]
    strong = tokens_per_s_per_device(kept[1], problem) / tokens_per_s_per_device(kept[0], problem)
    name = f"{launch.preset}, {small.devices:,} to {large.devices:,}"
    return [
        Line(name=f"{name}: weak scaling", published=1.0, told=weak, bar=SCALING_BAR),
        Line(name=f"{name}: strong scaling", published=efficiency, told=strong, bar=SCALING_BAR,
             assumed=f"batch {sequences:,}"),
    ]  # fmt: skip


def levels() -> list[Line]:
    """The three-level partitioning against ZeRO++ and ZeRO-3."""
    lines = []
    for batch in BATCHES:
        assumed = "micro-batch {} x {}".format(*batch)
        whole, small = (
            {name: speed(name, devices, batch) for name in CHOICES}
            for devices in (FULL_SIZE, SMALL_SIZE)
        )
        lines += [
            Line(name="20B on 384: three levels / ZeRO++", published=1.71, bar=LEVELS_BAR,
                assumed=assumed,
                 told=whole["3-level-2/8"] / whole["zero++"]),
            Line(name="20B on 384: ZeRO++ / ZeRO-3", published=1.405, bar=LEVELS_BAR,
                assumed=assumed,
                 told=whole["zero++"] / whole["zero-3"]),
            Line(name=f"20B, {SMALL_SIZE} to 384: three levels, scaling", published=0.94,
                bar=LEVELS_BAR,
                 assumed=assumed, told=whole["3-level-2/8"] / small["3-level-2/8"]),
        ]  # fmt: skip
    return lines


def speed(sharding: str, devices: int, batch: tuple[int, int]) -> float:
    """Tokens a second and device of the 20B model; ZeRO++ is ZeRO-3 with all three of its parts."""
    recipe = Recipe(
        devices=devices,
        micro_batch_seqs=batch[0],
        accumulation=batch[1],
        recompute="full",
        sharding=Sharding.named(sharding.replace("++", "-3"), devices),
        **CHOICES[sharding],
    )
    return tokens_per_s_per_device(recipe, problem_of("gpt-neox-20b", devices, 2048))


def show(lines: list[Line]) -> None:
    """A line a figure."""
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("figure", "published", "told", "off", "bar", "", "assumed"):
        shown.add_column(name, justify="left" if name in ("figure", "", "assumed") else "right")
    for line in lines:
        verdict = "within" if abs(line.off) <= line.bar else "misses"
        shown.add_row(line.name, f"{line.published:.3g}", f"{line.told:.3g}", f"{line.off:+.0%}",
            f"{line.bar:.0%}",
                      verdict, line.assumed)  # fmt: skip
    Console(width=120).print(shown)


def main() -> None:
    """Print the predictions beside what was published."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    lines = study() + levels()
    show(lines)
    within = sum(abs(line.off) <= line.bar for line in lines)
    print(f"{within} of {len(lines)} within their bar")
    if options.json:
        found = [vars(line) | {"off": line.off} for line in lines]
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
