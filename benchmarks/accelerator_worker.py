"""The process of `accelerator.py` that holds the device: it measures cells, and may be lost with
one.
"""

from __future__ import annotations

import gc
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from accelerator_cells import LLAMA_1B, LLAMA_8B, Cell
from one_device import Device, describe
from trainer_side import Trainer, job_text, one_rank, with_package, write_tokens

ROUNDS, WARM_UP_STEPS = 5, 3
TOKEN_IDS = 500
"""No more than the smallest vocabulary; a loss over more ids takes the same time."""
DRY_RUN_DEADLINE_S = 120
FILLED = 0.9
"""Share of the memory that a cell with `fits` may take by the formulas."""


def serve(requests: Connection, kind: str) -> None:
    """Describe the device, then answer each cell, given with the seconds of a round, by its row."""
    device = Device(kind)
    with one_rank(device.device) as folder, kernels(device.device):
        write_tokens(folder, TOKEN_IDS)
        described = describe(device)
        requests.send(described)
        while (request := requests.recv()) is not None:
            requests.send(attempt(*request, device, described["cluster"], folder))


def kernels(device: torch.device) -> Any:
    """The trainer's order of attention kernels, for all sides alike."""
    from frontrunner.evaluators.trainer.parts.attention_kernels import attention_order

    return attention_order(device)


def attempt(
    cell: Cell, round_s: float, device: Device, cluster: dict[str, Any], folder: Path
) -> dict[str, Any]:
    """Return the cell's row; a cell that fails is a row that says so."""
    start = time.perf_counter()
    try:
        row = {"status": "measured", **measure(cell, round_s, device, cluster, folder)}
    except Exception as error:
        row = {
            "status": "out-of-memory" if is_out_of_memory(error) else "failed",
            "error": str(error)[:500],
        }
    release(device)  # after the handler: until then the error's traceback holds the tensors
    return row | {"cell_s": time.perf_counter() - start}


def is_out_of_memory(error: BaseException) -> bool:
    from frontrunner.evaluators.runs.classify import OUT_OF_MEMORY_SIGNS

    return OUT_OF_MEMORY_SIGNS.search(f"{type(error).__name__}: {error}") is not None


def release(device: Device) -> None:
    """Give back what was held, compiled code included."""
    torch._dynamo.reset()
    gc.collect()
    device.forget_peak(empty_cache=True)


def measure(
    cell: Cell, round_s: float, device: Device, cluster: dict[str, Any], folder: Path
) -> dict[str, Any]:
    """Measure the trainer, the plain loop and, for Llama, torchtitan's model; beside them the dry
    run and the plan.
    """
    from plain_loop import PlainLoop, torchtitan_model

    model, estimate = planned(cell, cluster)
    values = {
        "model": model.plain_keys(),
        "recipe": cell.recipe,
        "sequence_length": cell.sequence_length,
        "precision": cell.precision,
    }

    def plain(own: Callable[[], Any]) -> Any:
        return PlainLoop(cell, model, device.device, folder / "tokens.bin", own())

    sides: dict[str, Any] = {
        "trainer": lambda: Trainer(device.device, folder, **values),
        "plain": lambda: plain(lambda: None),
    }
    if cell.model in (LLAMA_1B, LLAMA_8B):
        sides["torchtitan"] = lambda: plain(lambda: torchtitan_model(cell, model, device.device))
    with dry_run(cell, job_text(device.device, folder, **values)) as traced:
        found = measured_sides(sides, round_s, device, traced)
    step_s, peak = (found["trainer"][key] for key in ("step_time_s_median", "peak_allocated_bytes"))
    length, rate = cell.sequence_length, cell.tokens_per_step / step_s
    flops = {
        "mfu": model.model_flops_per_token(length),
        "mfu_megatron": model.model_flops_per_token(length, causal=True),
    }
    device_tflops = cluster["peak_tflops"].get(cell.precision)
    return {
        "layers": len(model.layers),
        "parameters": model.parameters,
        "tokens_per_s": rate,
        "model_tflops": rate * flops["mfu"] / 1e12,
        **{
            key: device_tflops and rate * count / 1e12 / device_tflops
            for key, count in flops.items()
        },
        "sides": found,
        "trainer_over": {
            name: step_s / side["step_time_s_median"]
            for name, side in found.items()
            if name != "trainer" and "error" not in side
        },
        "dry_run": compare(traced(), "peak_bytes", peak),
        "plan": compare(compare(estimate, "step_time_s", step_s), "peak_memory_bytes", peak),
    }


def compare(found: dict[str, Any], key: str, measured: float | None) -> dict[str, Any]:
    """Add the ratio of `found[key]` to what was measured; None where one is not known."""
    value = found.get(key)
    return found | {f"{key}_over_measured": value / measured if value and measured else None}


def planned(cell: Cell, cluster_table: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return the cell's model and what `frontrunner plan` predicts of its recipe."""
    from frontrunner.evaluators.analytic.estimates import estimate_many
    from frontrunner.spaces.cluster import ByPrecision, Cluster
    from frontrunner.spaces.document import read_plain
    from frontrunner.spaces.model.model import Model
    from frontrunner.spaces.presets import model_preset
    from frontrunner.spaces.problem import GlobalBatch, Problem
    from frontrunner.spaces.recipe import Recipe

    table = model_preset(cell.model) | dict(cell.changes)
    table = {"kv_heads": table["heads"], "ffn_hidden": 4 * table["hidden"]} | table
    sequences = cell.micro_batch_seqs * cell.accumulation

    def estimate(layers: int) -> tuple[Model, Any]:
        problem = Problem(
            model=read_plain(Model, table | {"layers": layers}, "model"),
            cluster=Cluster(
                **cluster_table | {"peak_tflops": ByPrecision(**cluster_table["peak_tflops"])}
            ),
            sequence_length=cell.sequence_length,
            global_batch=GlobalBatch(minimum=sequences, maximum=sequences),
            precision=cell.precision,
        )
        return problem.model, estimate_many([Recipe(devices=1, **cell.recipe)], problem)[0]

    room = FILLED * cluster_table["memory_gib_per_device"] * 2**30
    choices = map(estimate, range(table["layers"], 0, -1) if cell.fits else [table["layers"]])
    model, found = next(
        (pair for pair in choices if not cell.fits or pair[1].peak_memory_bytes <= room),
        (None, None),
    )
    if model is None:
        raise MemoryError(f"out of memory: not one layer of {cell.model} fits by the formulas")
    return model, {"step_time_s": found.step_time_s, "peak_memory_bytes": found.peak_memory_bytes}


@contextmanager
def dry_run(cell: Cell, job: str) -> Iterator[Callable[[], dict[str, Any]]]:
    """Trace the job in a process of its own, on one processor; yields how to wait for the peak that
    it predicts.
    """
    if cell.compile:
        yield lambda: {"error": "a compiled step cannot be traced"}
        return
    micro_batches = str(
        min(2, cell.accumulation)
    )  # as `frontrunner dryrun` chooses them without a pipeline
    command = [
        sys.executable,
        "-P",
        "-m",
        "frontrunner.evaluators.trainer.dry_run",
        "0",
        micro_batches,
    ]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    process = subprocess.Popen(
        command, text=True, env=os.environ | {"PYTHONPATH": with_package()}, **pipes
    )

    @cache
    def ended() -> dict[str, Any]:
        try:
            out, errors = process.communicate(job, timeout=DRY_RUN_DEADLINE_S)
        except subprocess.TimeoutExpired:
            return {"error": f"no trace after {DRY_RUN_DEADLINE_S} s"}
        if process.returncode:
            return {"error": (errors.strip().splitlines() or ["no message"])[-1]}
        return {"peak_bytes": sum(json.loads(out.splitlines()[-1])["memory_bytes"].values())}

    try:
        yield ended
    finally:
        process.kill()
        process.wait()


def measured_sides(
    makers: dict[str, Callable[[], Any]],
    round_s: float,
    device: Device,
    before_timing: Callable[[], Any],
) -> dict[str, Any]:
    """Time each side's rounds: in turns where all fit into the memory together, else one side after
    another.

    What fails of a side is its row, except for the first one's, the trainer's, which is raised.
    """
    found: dict[str, dict[str, Any]] = {}
    held: dict[str, Any] = {}
    steps, in_turns = 1, True
    for name, make in makers.items():
        try:
            side, row = warmed_up(make, device)
        except Exception as error:
            if not found:
                raise
            why = "not installed" if isinstance(error, ImportError) else type(error).__name__
            found[name] = {"error": f"{why}: {error}"[:500]}
            release(device)
            continue
        if not found:
            steps = max(2, min(50, round(round_s / row["warm_step_s"])))
            needed, total = row["peak_allocated_bytes"], device.total_bytes()
            if needed is not None and total is not None:
                in_turns = needed + (len(makers) - 1) * row["resident_bytes"] < 0.85 * total
            before_timing()
        found[name] = row | {"in_turns": in_turns, "steps_per_round": steps, "step_times_s": []}
        held[name] = side
        del side
        if not in_turns:
            time_rounds(held, found, steps, device)
            held.clear()
            release(device)
    time_rounds(held, found, steps, device)
    return found


def warmed_up(make: Callable[[], Any], device: Device) -> tuple[Any, dict[str, Any]]:
    """Build a side and warm it up; the seconds of its first step, compiling included, its memory
    and a warm step.
    """
    device.forget_peak(empty_cache=True)
    before = device.allocated_bytes()
    side = make()
    first_s = device.seconds(lambda: side.run(1))
    side.run(WARM_UP_STEPS - 1)
    device.forget_peak()
    warm_s = device.seconds(lambda: side.run(1))
    peak = device.peak_bytes()
    return side, {
        "first_step_s": first_s,
        "warm_step_s": warm_s,
        "peak_allocated_bytes": None if peak is None else peak - before,
        "resident_bytes": device.allocated_bytes() - before,
    }


def time_rounds(
    held: dict[str, Any], found: dict[str, dict[str, Any]], steps: int, device: Device
) -> None:
    from frontrunner.evaluators.trainer.telemetry import device_state

    retries = device.retries()
    gc.collect()
    gc.disable()  # as ranks do
    for number in range(ROUNDS):
        for name in sorted(held, reverse=number % 2 == 0):
            found[name]["step_times_s"].append(
                device.seconds(partial(held[name].run, steps)) / steps
            )
    gc.enable()
    for name, side in held.items():
        times = found[name]["step_times_s"]
        median = statistics.median(times)
        spread = (max(times) - min(times)) / median
        found[name] |= {
            "step_time_s_median": median,
            "spread": spread,
            "allocator_retries": device.retries() - retries,
        }
        found[name] |= {
            "last_loss": side.run(1),
            "device": device_state(device.device),
        }  # right after a step
        found[name] |= {"attention": getattr(side, "attention", None)}
