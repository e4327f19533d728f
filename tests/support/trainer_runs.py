"""Runs the trainer's ranks for tests: jobs with small defaults, a warm parent that forks ranks, a
plain reference.
"""

import atexit
import functools
import json
import math
import os
import subprocess
import sys
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint import FileSystemReader, load
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.nn import functional

from frontrunner.evaluators.trainer.data import TokenFile, write_token_file
from frontrunner.evaluators.trainer.job import Data, Job, Optimizer, Probe, Train
from frontrunner.evaluators.trainer.model import Gpt, initialize
from frontrunner.spaces.model.model import Model
from frontrunner.spaces.model.positions import RotaryScaling
from frontrunner.spaces.recipe import Recipe
from frontrunner.spaces.sharding import Sharding

SEQUENCE_LENGTH = 32
GLOBAL_BATCH_SEQS = 8
STEPS = 3
"""The first step shows wrong gradients, the second a wrong update, the third wrong momentum."""
BALANCING_STEPS = 5
"""Steps after which biases that balance experts have changed the choice of experts."""
TOLERANCE = 1e-6
"""Relative, in fp32. Rounding alone leaves up to 5e-7; a learning rate off by 1e-4 leaves 2e-5 of
the momentum.
"""
GPT2: dict[str, Any] = {
    "positions": "learned",
    "activation": "gelu_tanh",
    "norm": "layernorm",
    "biases": "all",
}
QWEN: dict[str, Any] = {
    "biases": "qkv",
    "qk_norm": True,
    "head_width": 32,
    "kv_heads": 2,
    "rotary_theta": 1e6,
}
QWEN |= {"rotary_scaling": RotaryScaling(factor=8.0, original_positions=64)}
"""Differences from the small model: GPT-2's form, and Qwen's of several generations with Llama
3.1's frequencies.
"""
GEMMA: dict[str, Any] = {
    "attention_window": 12,
    "full_attention_every": 3,
    "window_rotary_theta": 500.0,
}
GEMMA |= {"activation": "geglu", "post_norms": True, "scaled_embedding": True, "query_scalar": 20.0}
GEMMA |= {"attention_softcap": 2.0, "logits_softcap": 1.0, "attention_sinks": True}
"""Gemma's form, of both generations, with gpt-oss's sinks."""
EXPERTS: dict[str, Any] = {"experts": 4, "experts_per_token": 2, "ffn_hidden": 96}
LATENT: dict[str, Any] = {
    "key_value_rank": 24, "query_rank": 40, "head_width": 12, "rotary_width": 8, "value_width": 16
}  # fmt: skip
DEEPSEEK: dict[str, Any] = LATENT | {
    "experts": 8, "experts_per_token": 2, "ffn_hidden": 48, "shared_experts": 2, "dense_layers": 1,
    "dense_ffn_hidden": 128, "router": "sigmoid", "router_groups": 4, "router_groups_kept": 2,
    "routed_scale": 2.5,
    "balancing": "bias", "balancing_weight": 0.05,
}  # fmt: skip
"""DeepSeek-V3's form, with biases that move so far in five steps that the choice of experts
changes.
"""
BALANCED: dict[str, Any] = (
    LATENT | EXPERTS | {"balancing": "loss", "balancing_weight": 0.5, "shared_experts": 1}
)
Fault = tuple[str, str, str]
"""A file of the trainer, a text that it holds once, and the text that takes its place."""
CLIP_NORM = 0.2
NEVER_REACHED = 1000.0


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
    return Model.from_keys(**(shape | changes))


def small_recipe(**changes: Any) -> Recipe:
    """One rank, one micro-batch of the whole global batch, unless changed; accumulation follows the
    other degrees.
    """
    changes = dict(changes)
    replicas = changes.pop("data_parallel", 1)
    ranks = math.prod(
        changes.get(f"{kind}_parallel", 1) for kind in ("tensor", "pipeline", "context")
    )
    micro_batch = changes.setdefault("micro_batch_seqs", GLOBAL_BATCH_SEQS // replicas)
    changes.setdefault("accumulation", GLOBAL_BATCH_SEQS // replicas // micro_batch)
    degrees = zip(
        ("parameters", "gradients", "optimizer"), changes.pop("sharding", (1, 1, 1)), strict=True
    )
    return Recipe(devices=replicas * ranks, sharding=Sharding(**dict(degrees)), **changes)


def small_job(folder: Path, **changes: Any) -> Job:
    """A probe of 5 steps with SGD with momentum, whose losses show a wrong scale of the
    gradients.
    """
    job = Job(
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
        collective_timeout_s=300.0,
        run_folder=str(folder),
        probe=Probe(warm_up_steps=1, measured_steps=4),
        train=None,
    )
    return replace(job, **changes)


def prepare(job: Job) -> Path:
    """Write the job file and a short token file into the run folder; returns the job file's
    path.
    """
    folder = Path(job.run_folder)
    folder.mkdir(parents=True, exist_ok=True)
    if not job.data_path.exists():
        write_token_file(" ".join(chr(number**2 % 977) for number in range(8000)), job.data_path)
    path = folder / "job.json"
    path.write_text(job.to_json(), encoding="utf-8")
    return path


def training_job(job: Job, *, clip_norm: float | None = CLIP_NORM) -> Job:
    """Have `job` train for a few steps and leave a checkpoint.

    With `NEVER_REACHED` as norm, gradient norms are counted and nothing is clipped. The learning
    rate keeps steps small either way: after large steps another order of summation would show as
    a fault does.
    """
    rate = 0.02 if clip_norm == CLIP_NORM else 0.002
    mixture = job.model.mixture
    steps = BALANCING_STEPS if mixture and mixture.balancing == "bias" else STEPS
    train = Train(
        steps=steps,
        warm_up_steps=0,
        final_learning_rate_fraction=1.0,
        evaluation_every_steps=0,
        evaluation_batches=0,
        checkpoint_every_steps=steps,
        keep_checkpoints=1,
        metrics="csv",
    )
    optimizer = replace(job.optimizer, learning_rate=rate, gradient_clip_norm=clip_norm)
    return replace(job, mode="train", optimizer=optimizer, probe=None, train=train)


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What training leaves: each step's loss and gradient norm before clipping, and the tensors
    after the last step.

    Weights and momentum have the parameters' names in the whole model. A norm is None where nothing
    counted it.
    """

    losses: list[float]
    gradient_norms: list[float | None]
    weights: dict[str, Tensor]
    momentum: dict[str, Tensor]


def reference(job: Job, *, learning_rate_scale: float = 1.0) -> Trained:
    """Train by one process, in fp64: a plain model, the whole global batch at once, torch's own
    optimizer.
    """
    if job.train is not None:
        steps = job.train.steps
    else:
        assert job.probe is not None
        steps = job.probe.warm_up_steps + job.probe.measured_steps
    torch.set_num_threads(1)
    model = Gpt(job.model, sequence_length=job.sequence_length, layers=range(len(job.model.layers)))
    initialize(model.named_parameters(), seed=job.seed, layers=len(job.model.layers))
    model.double()
    options = job.optimizer
    optimizer = torch.optim.SGD(
        model.parameters(),
        lr=options.learning_rate * learning_rate_scale,
        momentum=options.momentum,
        weight_decay=options.weight_decay,
    )
    data = TokenFile(
        job.data_path, dtype=job.data.dtype, sequence_length=job.sequence_length, seed=job.seed
    )
    size = job.recipe.global_batch_seqs
    largest = math.inf if options.gradient_clip_norm is None else options.gradient_clip_norm
    losses: list[float] = []
    norms: list[float | None] = []
    for step in range(1, steps + 1):
        batch = data.training_batch(step, sequences=slice(0, size), global_batch_seqs=size)
        loss = functional.cross_entropy(model(batch.inputs).flatten(0, 1), batch.targets.flatten())
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), largest).item())
        optimizer.step()
        for mixture in model.mixtures.values():
            if (balance := mixture.balance) is not None:
                balance.move(balance.counted(passes=1))
        optimizer.zero_grad()
        losses.append(loss.item())
    weights = {name: weight.detach() for name, weight in model.named_parameters()}
    momentum = {
        name: optimizer.state[weight]["momentum_buffer"]
        for name, weight in model.named_parameters()
    }
    return Trained(losses=losses, gradient_norms=norms, weights=weights, momentum=momentum)


def reference_losses(job: Job, *, learning_rate_scale: float = 1.0) -> list[float]:
    """Return the losses of `reference`."""
    return reference(job, learning_rate_scale=learning_rate_scale).losses


def train(job: Job, fault: Fault | None = None) -> Trained:
    """Run a `training_job`'s ranks, with `fault` in their copy of the trainer.

    Weights and momentum come from the checkpoint; those of DeepSpeed from its ranks.
    """
    if job.recipe.engine == "deepspeed":
        seen = look(job, "deepspeed")[0]
        losses, norms = seen["loss"], seen["gradient_norm"]
        ranks = [
            torch.load(Path(job.run_folder) / f"rank-{rank}.weights")
            for rank in range(job.recipe.devices)
        ]
        tensors = {name: tensor for rank in ranks for name, tensor in rank.items()}
    else:
        tensors = _checkpointed(run_job(job, fault)["checkpoint"])
        steps = [event for event in read_progress(job) if event["event"] == "step"]
        losses, norms = [step["loss"] for step in steps], [step["gradient_norm"] for step in steps]
    kinds = {
        kind: {
            name.removeprefix(f"{kind} "): tensors[name]
            for name in tensors
            if name.startswith(kind)
        }
        for kind in ("weights", "momentum")
    }
    return Trained(losses=losses, gradient_norms=norms, **kinds)


def _checkpointed(folder: str) -> dict[str, Tensor]:
    reader = FileSystemReader(folder)
    tensors = {
        name: torch.empty(entry.size, dtype=entry.properties.dtype)
        for name, entry in reader.read_metadata().state_dict_metadata.items()
        if isinstance(entry, TensorStorageMetadata)
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that this is one process
        load(tensors, storage_reader=reader, no_dist=True)
    plain = {"model.": "weights ", "optimizer.": "momentum "}
    return {
        plain[kind] + name.removeprefix(kind).removesuffix(".momentum_buffer"): tensor
        for kind in plain
        for name, tensor in tensors.items()
        if name.startswith(kind)
    }


def differences(trained: Trained, right: Trained) -> dict[str, float]:
    """How far each kind of what training leaves is from what is right: the largest relative
    difference.

    Of a tensor that is the 2-norm of the difference over the 2-norm of the right one, which keeps
    to rounding where single elements, of which some are sums that cancel out, do not.
    """
    assert len(trained.losses) == len(right.losses)
    norms = [
        pair
        for pair in zip(trained.gradient_norms, right.gradient_norms, strict=True)
        if pair[0] is not None
    ]
    found = {
        "losses": max(_relative(*pair) for pair in zip(trained.losses, right.losses, strict=True))
    }
    found["gradient norms"] = max((_relative(*pair) for pair in norms), default=0.0)
    for kind in ("weights", "momentum"):
        tensors, right_ones = getattr(trained, kind), getattr(right, kind)
        if other_names := sorted(tensors.keys() ^ right_ones.keys()):
            found[f"{kind} missing or too many: {', '.join(other_names)}"] = math.inf
            continue
        worst, name = max((_of_tensor(name, tensors, right_ones), name) for name in right_ones)
        found[f"{kind} ({name})"] = worst
    return found


def _of_tensor(name: str, tensors: dict[str, Tensor], right: dict[str, Tensor]) -> float:
    # A bias of keys that are not rotated has no gradient: it adds the same to all scores of a
    # query.
    return _relative(
        tensors[name], right[name], scale=right[name.replace("key.bias", "query.bias")]
    )


def _relative(value: Any, right: Any, *, scale: Any = None) -> float:
    value, right = (torch.as_tensor(number, dtype=torch.float64) for number in (value, right))
    assert value.shape == right.shape
    difference = ((value - right).norm() / (right if scale is None else scale).norm()).item()
    return difference if math.isfinite(difference) else math.inf


def assert_trains_as_one_process(job: Job) -> None:
    """Assert that a `training_job` leaves what `reference` does, every number to `TOLERANCE`."""
    found = differences(train(job), reference(job))
    sizes = ", ".join(f"{kind} {size:.1e}" for kind, size in found.items())
    assert max(found.values()) < TOLERANCE, f"{job.recipe.describe()}: {sizes}"


def _path() -> dict[str, str]:
    """The environment in which a program finds this folder's package."""
    tests = str(Path(__file__).parents[1])
    return {"PYTHONPATH": os.pathsep.join(filter(None, (tests, os.environ.get("PYTHONPATH"))))}


class WarmParent:
    """A process that has imported an engine and forks the ranks of one job after another: see
    `forked_ranks`.
    """

    def __init__(self, engine: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(Path(__file__).with_name("forked_ranks.py")), engine],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ
            | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "DS_ACCELERATOR": "cpu"}
            | _path(),
        )

    def start(
        self,
        job: Job,
        *,
        count_collectives: bool = False,
        look: str | None = None,
        fault: Fault | None = None,
    ) -> None:
        """Have the job's ranks forked, without waiting for them.

        Args:
            job: What the ranks run.
            count_collectives: Whether each rank leaves its counts of collective operations.
            look: A name in `looks.LOOKS`.
            fault: A change of one line of the trainer that the ranks run.
        """
        assert self._process.stdin is not None
        order = {
            "job": str(prepare(job)),
            "count_collectives": count_collectives,
            "look": look,
            "fault": fault,
        }
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()

    def wait(self) -> list[int]:
        """The exit statuses of the started job's ranks, in rank order (negative: killed by that
        signal).
        """
        assert self._process.stdout is not None
        statuses: list[int] = json.loads(self._process.stdout.readline())
        return statuses

    def run(self, job: Job, fault: Fault | None = None) -> list[int]:
        """Run the job's ranks to their end; see `wait`."""
        self.start(job, fault=fault)
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


def run_job(job: Job, fault: Fault | None = None) -> dict[str, Any]:
    """Run the job's ranks from the warm parent and return its result; see `read_result`."""
    statuses = warm_parent(job.recipe.engine).run(job, fault)
    if any(statuses):
        logs = sorted(Path(job.run_folder).glob("rank-*.log"))
        tails = [
            f"{path.name}: {path.read_text(errors='replace')[-1000:]}"
            for path in logs
            if path.stat().st_size
        ]
        raise AssertionError(f"the ranks ended with {statuses}\n" + "\n".join(tails))
    return read_result(job)


def read_progress(job: Job) -> list[dict[str, Any]]:
    """The events that the job has logged so far; a half-written last line is left out."""
    path = Path(job.run_folder) / "progress.jsonl"
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def in_train_mode(job: Job, **changes: Any) -> Job:
    """The job as training by AdamW with evaluations, checkpoints and metrics; `changes` are of its
    `Train`.
    """
    options: dict[str, Any] = {
        "steps": 8,
        "warm_up_steps": 2,
        "final_learning_rate_fraction": 0.1,
        "evaluation_every_steps": 4,
        "evaluation_batches": 2,
        "checkpoint_every_steps": 2,
        "keep_checkpoints": 2,
        "metrics": "csv",
    }
    adamw = replace(
        job.optimizer, name="adamw", learning_rate=1e-3, weight_decay=0.1, gradient_clip_norm=1.0
    )
    return replace(
        job, mode="train", probe=None, train=Train(**(options | changes)), optimizer=adamw
    )


def logged_losses(job: Job) -> dict[int, float]:
    """Each step's loss, as last logged."""
    return {
        event["step"]: event["loss"] for event in read_progress(job) if event["event"] == "step"
    }


def read_result(job: Job) -> dict[str, Any]:
    """The job's result, or an AssertionError with the ranks' errors."""
    folder = Path(job.run_folder)
    errors = [
        json.loads(path.read_text())["traceback"]
        for path in sorted(folder.glob("rank-*.error.json"))
    ]
    if errors:
        raise AssertionError("\n".join(errors))
    result: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return result


def count_collectives(job: Job) -> dict[str, int]:
    """Run the job's ranks and return how often rank 0 called each collective operator of torch."""
    warm_parent().start(job, count_collectives=True)
    warm_parent().wait()
    read_result(job)
    counts: dict[str, int] = json.loads(
        (Path(job.run_folder) / "rank-0.collectives.json").read_text()
    )
    return counts


def look(job: Job, name: str) -> list[Any]:
    """Fork the job's ranks to be looked at, and return what each answers, in rank order: see
    `looks.LOOKS`.
    """
    parent = warm_parent(job.recipe.engine)
    parent.start(job, look=name)
    statuses = parent.wait()
    folder = Path(job.run_folder)
    logs = [(folder / f"rank-{rank}.log").read_text() for rank in range(job.recipe.devices)]
    assert not any(statuses), "\n".join(logs)[-3000:]
    return [
        json.loads((folder / f"rank-{rank}.{name}.json").read_text())
        for rank in range(job.recipe.devices)
    ]


def received_bytes(job: Job, rank: int) -> dict[str, int]:
    """What `rank` received by operator and group in the last `count_collectives` of the job: see
    `forked_ranks`.
    """
    received: dict[str, int] = json.loads(
        (Path(job.run_folder) / f"rank-{rank}.bytes.json").read_text()
    )
    return received
