"""The trainer's own steps in this process, for benchmarks that time them against something else.

The trainer is this repository's, installed or not: it needs torch and numpy alone.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

ROOT = Path(__file__).resolve().parent.parent
BACKENDS = {"cpu": "gloo", "cuda": "nccl", "xpu": "xccl"}
TOKENS = 4_000_000
SEED = 1

LEARNING_RATE, WEIGHT_DECAY, BETAS, CLIP_NORM = 3e-4, 0.1, (0.9, 0.95), 1.0
"""AdamW as probes have it."""


@contextlib.contextmanager
def one_rank(device: torch.device) -> Iterator[Path]:
    """A process group of one rank, with the trainer importable; yields a run folder, removed
    afterwards.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sys.path.insert(0, str(ROOT / "src"))
        from frontrunner.evaluators.trainer.rendezvous import rank_device

        rank_device(device.type, 0)  # as a rank sets its allocator, processors and threads
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        dist.init_process_group(
            BACKENDS[device.type],
            init_method=f"file://{folder}/rendezvous",
            rank=0,
            world_size=1,
            device_id=None if device.type == "cpu" else device,
        )
        try:
            yield folder
        finally:
            dist.destroy_process_group()
            sys.path.remove(str(ROOT / "src"))


def with_package() -> str:
    """PYTHONPATH for a process that imports this repository's package, and what this one's has."""
    return os.pathsep.join(filter(None, (str(ROOT / "src"), os.environ.get("PYTHONPATH"))))


def write_tokens(folder: Path, vocabulary: int) -> Path:
    """Write random token ids, low ones more often, as in text; returns the file."""
    draws = np.random.default_rng(SEED).random(TOKENS)
    path = folder / "tokens.bin"
    (vocabulary * draws**4).astype("<u2").tofile(path)
    return path


def job_text(
    device: torch.device,
    folder: Path,
    *,
    model: dict[str, Any],
    recipe: dict[str, Any],
    **settings: Any,
) -> str:
    """A job file's text; `model`, `recipe` and `settings` replace values of the job's model, recipe
    and of the job.
    """
    table = job_table(device, folder) | settings
    return json.dumps(table | {"model": table["model"] | model, "recipe": table["recipe"] | recipe})


class Trainer:
    """One rank's steps as a probe runs them, its log included; takes what `job_text` takes."""

    def __init__(self, device: torch.device, folder: Path, **job_values: Any) -> None:
        from frontrunner.evaluators.trainer.data import TokenFile
        from frontrunner.evaluators.trainer.device_checks import check_job
        from frontrunner.evaluators.trainer.job import Job
        from frontrunner.evaluators.trainer.layout import make_layout
        from frontrunner.evaluators.trainer.run import ProgressLog, RunContext
        from frontrunner.evaluators.trainer.torch_engine import make_stepper

        # Through JSON, so that a job here is checked as one from a file is.
        job = Job.from_json(job_text(device, folder, **job_values))
        check_job(job, world_size=dist.get_world_size())
        layout = make_layout(job.recipe, device_type=job.device)
        data = TokenFile(
            job.data_path, dtype=job.data.dtype, sequence_length=job.sequence_length, seed=job.seed
        )
        self.stepper = make_stepper(job, layout, data, device)
        self.attention = self.stepper.telemetry.attention
        log = ProgressLog(folder / "progress.jsonl", append=False)
        self._context = RunContext(job=job, rank=0, stepper=self.stepper, log=log, build_time_s=0.0)
        self._steps_done = 0

    def run(self, steps: int) -> float:
        """Train and return the last loss."""
        loss = math.nan
        for _ in range(steps):
            self._steps_done += 1
            outcome, _ = self._context.timed_step(self._steps_done)
            loss = outcome.loss
        return loss


def job_table(device: torch.device, folder: Path) -> dict[str, Any]:
    """A job of one rank for a model like GPT-2."""
    return {
        "version": 2,
        "mode": "probe",
        "model": {
            "name": "gpt2",
            "layers": 12,
            "hidden": 768,
            "heads": 12,
            "kv_heads": 12,
            "ffn_hidden": 3072,
            "vocabulary": 50304,
            "positions": "learned",
            "max_positions": 8192,
            "activation": "gelu",
            "norm": "layernorm",
            "tied_embeddings": True,
            "attention": "flash",
        },
        "sequence_length": 1024,
        "precision": "bf16",
        "recipe": recipe_table(),
        "optimizer": {
            "name": "adamw",
            "learning_rate": LEARNING_RATE,
            "weight_decay": WEIGHT_DECAY,
            "beta1": BETAS[0],
            "beta2": BETAS[1],
            "momentum": 0.9,
            "gradient_clip_norm": CLIP_NORM,
        },
        "data": {"path": "tokens.bin", "dtype": "uint16"},
        "seed": SEED,
        "device": device.type,
        "memory_limit_bytes_per_rank": None,
        "collective_timeout_s": 60.0,
        "run_folder": str(folder),
        "probe": {"warm_up_steps": 1, "measured_steps": 1},
        "train": None,
    }


def recipe_table() -> dict[str, Any]:
    """A recipe of one rank, every lever off."""
    return {"devices": 1, "micro_batch_seqs": 1, "accumulation": 1}
