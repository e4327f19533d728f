"""Spaces to search and a made-up machine to answer with, for every strategy alike."""

from __future__ import annotations

from dataclasses import replace

import pytest

from frontrunner.results.outcome import Failure, FailureKind, Measurement, Outcome
from frontrunner.spaces.cluster import Cluster
from frontrunner.spaces.model.model import Model
from frontrunner.spaces.problem import GlobalBatch, Problem
from frontrunner.spaces.recipe import Recipe
from frontrunner.spaces.space import Space, Survey

GIB = 2**30
MODEL = Model.from_keys(
    name="toy", layers=16, hidden=1024, heads=16, kv_heads=16, ffn_hidden=4096, vocabulary=32000
)
CLUSTER = Cluster(
    name="toy", device="gpu", backend="cuda", nodes=4, devices_per_node=4, memory_gib_per_device=16
)
PROBLEM = Problem(
    model=MODEL,
    cluster=CLUSTER,
    sequence_length=1024,
    global_batch=GlobalBatch(minimum=64, maximum=64),
)


class Machine:
    """Answers at once what a probe might have said, by a rough cost model (not the product's).

    Speed: matrix products gain from larger micro-batches and lose to tensor parallelism's traffic,
    above all between nodes; a pipeline idles (stages - 1) / micro-batches of its time; gradients
    are exchanged once a step. Memory: weights, gradients and optimizer states as sharded,
    activations of the micro-batches in flight. Recipes above `memory_gib` fail.
    """

    def __init__(self, memory_gib: float) -> None:
        self.memory_gib = memory_gib

    def memory_bytes(self, recipe: Recipe) -> int:
        share = recipe.tensor_parallel * recipe.pipeline_parallel
        sharding = recipe.sharding
        state_bytes = 4 / sharding.parameters + 4 / sharding.gradients + 8 / sharding.optimizer
        at_once = recipe.accumulation
        in_flight = (
            at_once if recipe.schedule == "gpipe" else min(at_once, recipe.pipeline_parallel)
        )
        kept = (
            2 if recipe.recompute == "full" else 34
        )  # bytes an element of the hidden state: arXiv 2205.05198
        elements = (
            recipe.micro_batch_seqs * PROBLEM.sequence_length * MODEL.hidden * len(MODEL.layers)
        )
        return int(MODEL.parameters / share * state_bytes + elements / share * kept * in_flight)

    def step_time_s(self, recipe: Recipe) -> float:
        tensor, pipeline = recipe.tensor_parallel, recipe.pipeline_parallel
        traffic = 1 + 0.05 * (tensor - 1) * (3 if tensor > CLUSTER.devices_per_node else 1)
        efficiency = 0.5 * recipe.micro_batch_seqs / (recipe.micro_batch_seqs + 1) / traffic
        compute_s = self.flops_per_device(recipe) / (100e12 * efficiency)
        bubble = (pipeline - 1) / recipe.accumulation
        repeated = 4 / 3 if recipe.recompute == "full" else 1.0
        exchanged = (
            2
            * MODEL.parameters
            * 2
            / (tensor * pipeline)
            * (1.5 if recipe.sharding.parameters > 1 else 1)
        )
        return compute_s * (1 + bubble) * repeated + (
            exchanged / 50e9 if recipe.data_parallel > 1 else 0.0
        )

    def flops_per_device(self, recipe: Recipe) -> float:
        tokens = recipe.global_batch_seqs * PROBLEM.sequence_length
        return MODEL.model_flops_per_token(PROBLEM.sequence_length) * tokens / recipe.devices

    def probe(self, recipe: Recipe) -> Outcome:
        memory = self.memory_bytes(recipe)
        if memory > self.memory_gib * GIB:
            return Failure(kind=FailureKind.OUT_OF_MEMORY, message="too large")
        tokens, step_time_s = (
            recipe.global_batch_seqs * PROBLEM.sequence_length,
            self.step_time_s(recipe),
        )
        tflops = self.flops_per_device(recipe) / step_time_s / 1e12
        return Measurement(
            step_times_s=(step_time_s,),
            tokens_per_step=tokens,
            tokens_per_s=tokens / step_time_s,
            model_tflops_per_device=tflops,
            hardware_tflops_per_device=tflops,
            mfu=None,
            peak_memory_bytes=(memory // 2, memory),
            losses=(1.0,),
            node_seconds=1.0,
            build_time_s=1.0,
            first_step_time_s=1.0,
        )


@pytest.fixture
def machine() -> Machine:
    """A machine on which a third of the landscape's recipes run out of memory."""
    return Machine(memory_gib=1.8)


@pytest.fixture
def landscape() -> Survey:
    """416 legal recipes in six dimensions, with 544 points that are illegal or say the same."""
    space = Space(
        tensor_parallel=(1, 2, 4, 8, 16),
        pipeline_parallel=(1, 2, 4, 8),
        micro_batch_seqs=(1, 2, 4, 8),
        schedule=("gpipe", "1f1b"),
        sharding=("none", "zero-1", "zero-3"),
        recompute=("none", "full"),
    )
    return space.survey(PROBLEM)


@pytest.fixture
def small() -> Survey:
    """A space that is soon used up."""
    return Space(
        tensor_parallel=(8, 4, 2),
        pipeline_parallel=(1, 2, 3),
        micro_batch_seqs=(1, 2),
        sharding=("none", "zero-1"),
    ).survey(PROBLEM)


@pytest.fixture
def single() -> Survey:
    """One legal recipe, of several points."""
    return Space(
        tensor_parallel=(16, 3), micro_batch_seqs=(64,), sharding=("none", "zero-1")
    ).survey(PROBLEM)


@pytest.fixture
def barren() -> Survey:
    """Nothing legal."""
    return Space(tensor_parallel=(3, 5), micro_batch_seqs=(1, 2)).survey(PROBLEM)


@pytest.fixture
def stranger() -> Recipe:
    """A recipe that is in none of these spaces."""
    return Recipe(devices=16, tensor_parallel=1, micro_batch_seqs=64, accumulation=7)


@pytest.fixture
def flat(machine: Machine) -> Machine:
    """A machine on which every recipe is as good as any other."""

    class Flat(Machine):
        def probe(self, recipe: Recipe) -> Outcome:
            measurement = super().probe(recipe)
            assert isinstance(measurement, Measurement)
            return replace(
                measurement,
                tokens_per_s=1000.0,
                model_tflops_per_device=1.0,
                peak_memory_bytes=(GIB,),
            )

    return Flat(memory_gib=1e6)
