"""Runs the trainer's ranks for tests: jobs with small defaults, a warm parent that forks ranks, a plain reference."""

import atexit
import functools
import json
import math
import os
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from frontrunner.evaluators.trainer.data import TokenFile, write_token_file
from frontrunner.evaluators.trainer.job import Data, Job, Optimizer, Probe
from frontrunner.evaluators.trainer.model import Gpt, initialize
from frontrunner.spaces.model import Model
from frontrunner.spaces.recipe import Recipe
from frontrunner.spaces.sharding import Sharding

SEQUENCE_LENGTH = 32
GLOBAL_BATCH_SEQS = 8


def small_model(**changes: Any) -> Model:
    """Rotary, SwiGLU, RMSNorm, grouped heads; 4 layers of width 64."""
    shape: dict[str, Any] = {
        "name": "small",
        "layers": 4,
        "hidden": 64,
        "heads": 4,
        "kv_heads": 4,
        "ffn_hidden": 128,
        "vocabulary": 384,
        "vocabulary_multiple": 1,
        "activation": "swiglu",
        "norm": "rmsnorm",
    }
    if changes.get("positions") == "learned":
        shape["max_positions"] = 4096
    return Model(**(shape | changes))


def small_recipe(**changes: Any) -> Recipe:
    """One rank, one micro-batch of the whole global batch, unless changed; accumulation follows the other degrees."""
    changes = dict(changes)
    replicas = changes.pop("data_parallel", 1)
    ranks = math.prod(changes.get(f"{kind}_parallel", 1) for kind in ("tensor", "pipeline", "context"))
    micro_batch = changes.setdefault("micro_batch_seqs", GLOBAL_BATCH_SEQS // replicas)
    changes.setdefault("accumulation", GLOBAL_BATCH_SEQS // replicas // micro_batch)
    degrees = zip(("parameters", "gradients", "optimizer"), changes.pop("sharding", (1, 1, 1)), strict=True)
    return Recipe(devices=replicas * ranks, sharding=Sharding(**dict(degrees)), **changes)


def small_job(folder: Path, **changes: Any) -> Job:
    """A probe of 5 steps with SGD with momentum, whose losses show a wrong scale of the gradients."""
    job = Job(
        version=2,
        mode="probe",
        model=small_model(),
        sequence_length=SEQUENCE_LENGTH,
        precision="fp32",
        recipe=small_recipe(),
        optimizer=Optimizer(
            name="sgd",
            learning_rate=0.1,
            weight_decay=0.0,
            beta1=0.9,
            beta2=0.95,
            momentum=0.9,
            gradient_clip_norm=None,
        ),
        data=Data(path="tokens.bin", dtype="uint16"),
        seed=7,
        device="cpu",
        memory_limit_bytes_per_rank=None,
        collective_timeout_s=60.0,
        run_folder=str(folder),
        probe=Probe(warm_up_steps=1, measured_steps=4),
        train=None,
    )
    return replace(job, **changes)


def job_text(job: Job) -> str:
    """Return the text of the job's file."""
    return json.dumps(asdict(job), indent=1)


def prepare(job: Job) -> Path:
    """Write the job file and a short token file into the run folder; returns the job file's path."""
    folder = Path(job.run_folder)
    folder.mkdir(parents=True, exist_ok=True)
    if not job.data_path.exists():
        write_token_file(" ".join(str(number**2 % 977) for number in range(8000)), job.data_path)
    path = folder / "job.json"
    path.write_text(job_text(job), encoding="utf-8")
    return path


def reference_losses(job: Job, *, learning_rate_scale: float = 1.0) -> list[float]:
    """The probe's losses by one process: a plain model, the whole global batch at once, torch's own optimizer."""
    assert job.probe is not None
    steps = job.probe.warm_up_steps + job.probe.measured_steps
    torch.set_num_threads(1)
    model = Gpt(job.model, sequence_length=job.sequence_length, layers=range(job.model.layers))
    initialize(model.named_parameters(), seed=job.seed, layers=job.model.layers)
    options = job.optimizer
    optimizer = torch.optim.SGD(
        model.parameters(),
        lr=options.learning_rate * learning_rate_scale,
        momentum=options.momentum,
        weight_decay=options.weight_decay,
    )
    data = TokenFile(job.data_path, dtype=job.data.dtype, sequence_length=job.sequence_length, seed=job.seed)
    size = job.recipe.global_batch_seqs
    losses = []
    for step in range(1, steps + 1):
        batch = data.training_batch(step, sequences=slice(0, size), global_batch_seqs=size)
        loss = functional.cross_entropy(model(batch.inputs).flatten(0, 1), batch.targets.flatten())
        loss.backward()
        if options.gradient_clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), options.gradient_clip_norm)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def _path() -> dict[str, str]:
    """The environment in which a program finds this folder's package."""
    tests = str(Path(__file__).parents[1])
    return {"PYTHONPATH": os.pathsep.join(filter(None, (tests, os.environ.get("PYTHONPATH"))))}


class WarmParent:
    """A process that has imported an engine and forks the ranks of one job after another: see `forked_ranks`."""

    def __init__(self, engine: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(Path(__file__).with_name("forked_ranks.py")), engine],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "DS_ACCELERATOR": "cpu"} | _path(),
        )

    def start(
        self, job: Job, *, count_collectives: bool = False, unchecked: bool = False, look: str | None = None
    ) -> None:
        """Have the job's ranks forked, without waiting for them; `look` is a name in `looks.LOOKS`."""
        assert self._process.stdin is not None
        order: dict[str, Any] = {"job": str(prepare(job)), "count_collectives": count_collectives}
        order |= {"unchecked": unchecked, "look": look}
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()

    def wait(self) -> list[int]:
        """The exit statuses of the started job's ranks, in rank order (negative: killed by that signal)."""
        assert self._process.stdout is not None
        statuses: list[int] = json.loads(self._process.stdout.readline())
        return statuses

    def run(self, job: Job) -> list[int]:
        """Run the job's ranks to their end; see `wait`."""
        self.start(job)
        return self.wait()

    def close(self) -> None:
        """End the parent."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:  # on a crowded machine
            self._process.kill()
            self._process.wait()


@functools.cache
def warm_parent(engine: str = "torch") -> WarmParent:
    """The one warm parent of this test process for the engine's jobs, started at first use."""
    parent = WarmParent(engine)
    atexit.register(parent.close)
    return parent


def run_job(job: Job) -> dict[str, Any]:
    """Run the job's ranks from the warm parent and return its result; see `read_result`."""
    statuses = warm_parent(job.recipe.engine).run(job)
    if any(statuses):
        logs = sorted(Path(job.run_folder).glob("rank-*.log"))
        tails = [f"{path.name}: {path.read_text(errors='replace')[-1000:]}" for path in logs if path.stat().st_size]
        raise AssertionError(f"the ranks ended with {statuses}\n" + "\n".join(tails))
    return read_result(job)


def run_unchecked(job: Job) -> dict[str, Any]:
    """Run a job that the trainer refuses past its refusal, to see what would come of it."""
    parent = warm_parent(job.recipe.engine)
    parent.start(job, unchecked=True)
    parent.wait()
    return read_result(job)


def read_progress(job: Job) -> list[dict[str, Any]]:
    """The events that the job has logged so far; a half-written last line is left out."""
    path = Path(job.run_folder) / "progress.jsonl"
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def read_result(job: Job) -> dict[str, Any]:
    """The job's result, or an AssertionError with the ranks' errors."""
    folder = Path(job.run_folder)
    errors = [json.loads(path.read_text())["traceback"] for path in sorted(folder.glob("rank-*.error.json"))]
    if errors:
        raise AssertionError("\n".join(errors))
    result: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return result


def count_collectives(job: Job) -> dict[str, int]:
    """Run the job's ranks and return how often rank 0 called each collective operator of torch."""
    warm_parent().start(job, count_collectives=True)
    warm_parent().wait()
    read_result(job)
    counts: dict[str, int] = json.loads((Path(job.run_folder) / "rank-0.collectives.json").read_text())
    return counts


def look(job: Job, name: str) -> list[Any]:
    """Fork the job's ranks to be looked at, and return what each answers, in rank order: see `looks.LOOKS`."""
    warm_parent().start(job, look=name)
    statuses = warm_parent().wait()
    folder = Path(job.run_folder)
    logs = [(folder / f"rank-{rank}.log").read_text() for rank in range(job.recipe.devices)]
    assert not any(statuses), "\n".join(logs)[-3000:]
    return [json.loads((folder / f"rank-{rank}.{name}.json").read_text()) for rank in range(job.recipe.devices)]


def received_bytes(job: Job, rank: int) -> dict[str, int]:
    """What `rank` received by operator and group in the last `count_collectives` of the job: see `forked_ranks`."""
    received: dict[str, int] = json.loads((Path(job.run_folder) / f"rank-{rank}.bytes.json").read_text())
    return received
