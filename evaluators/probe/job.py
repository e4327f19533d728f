"""The job that the trainer's ranks read, as plain JSON: problem, recipe, settings, training tokens, offload folder.

`trainer/job.py` documents and checks the format.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from frontrunner.evaluators.probe.settings import TORCH_DEVICES, DataSettings, ProbeSettings
from frontrunner.evaluators.protocol import ProbeSetup
from frontrunner.evaluators.trainer.data import BYTE_VOCABULARY, builtin_text, write_token_file
from frontrunner.spaces.errors import bad_value
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import Recipe

JOB_VERSION = 2
DEADLINE_SHARE = 0.8
"""Assumed: the share of a probe's deadline after which an adaptive probe takes no further optional step."""
WEIGHT_DECAY = 0.1
BETAS = (0.9, 0.95)
MOMENTUM = 0.9
"""Optimizer settings of GPT-3 (arXiv 2005.14165, appendix B); momentum is for SGD."""
OPTIMIZER_STATES = {"adamw": 2, "sgd": 1}
"""Tensors that an optimizer keeps for each parameter: two moments, or the momentum."""

UINT16_VOCABULARY = 65_536
MIN_SEQUENCES = 40
"""A corpus holds at least this many sequences: a twentieth of it is held out for evaluation."""


@dataclass(frozen=True)
class Corpus:
    """A flat file of token ids; `dtype` is uint16 or uint32, little-endian."""

    path: Path
    dtype: str


def common_job(setup: ProbeSetup, recipe: Recipe, run_folder: Path, tokens: Corpus) -> dict[str, Any]:
    """Return what the jobs of a probe and of a replay have in common."""
    cluster = setup.problem.cluster
    return {
        "version": JOB_VERSION,
        "model": asdict(setup.problem.model),
        "sequence_length": setup.problem.sequence_length,
        "precision": setup.problem.precision,
        # A list, as JSON gives it back: a replay that goes on compares its job with the one in its folder.
        "recipe": asdict(recipe) | {"layers_per_stage": list(recipe.layers_per_stage)},
        "optimizer": {
            "name": setup.probe.optimizer,
            "learning_rate": setup.probe.learning_rate,
            "weight_decay": WEIGHT_DECAY if setup.probe.optimizer == "adamw" else 0.0,
            "beta1": BETAS[0],
            "beta2": BETAS[1],
            "momentum": MOMENTUM,
            "gradient_clip_norm": 1.0,
        },
        "data": {"path": str(tokens.path), "dtype": tokens.dtype},
        "seed": setup.seed,
        "device": TORCH_DEVICES[cluster.backend],
        "memory_limit_bytes_per_rank": cluster.memory_bytes_per_device if cluster.backend == "cpu" else None,
        "collective_timeout_s": setup.probe.deadline_s,
        "run_folder": str(run_folder),
        "disk": disk_table(setup, recipe, run_folder),
    }


def probe_job(setup: ProbeSetup, recipe: Recipe, run_folder: Path, tokens: Corpus) -> dict[str, Any]:
    """Return the job of a short measuring run."""
    settings = setup.probe
    probe: dict[str, Any] = {
        "warm_up_steps": settings.warm_up_steps,
        "measured_steps": settings.most_steps - settings.warm_up_steps,
    }
    if settings.is_adaptive:
        probe["adaptive"] = {
            "min_measured_steps": settings.min_measured_steps,
            "precision": settings.precision,
            "stop_after_s": DEADLINE_SHARE * settings.deadline_s,
            "best_step_time_s": None,
        }
    return common_job(setup, recipe, run_folder, tokens) | {"mode": "probe", "probe": probe, "train": None}


def profile_job(
    setup: ProbeSetup, recipe: Recipe, run_folder: Path, tokens: Corpus, *, steps: int, samples_host: bool
) -> dict[str, Any]:
    """Return the job of a probe that goes on to trace `steps` steps, and to sample as many on the host.

    It has no memory limit: the profiler's own records would count against the recipe's.
    """
    profile = {"traced_steps": steps, "sampled_steps": steps if samples_host else 0}
    job = probe_job(setup, recipe, run_folder, tokens)
    return job | {"profile": profile, "memory_limit_bytes_per_rank": None}


def dry_run_job(problem: Problem, probe: ProbeSettings, recipe: Recipe) -> dict[str, Any]:
    """Return the job of a dry run, which reads no data, writes no file and has no memory limit."""
    setup = ProbeSetup(problem=problem, probe=probe, data=DataSettings(), work_folder=Path(), seed=0)
    job = probe_job(setup, recipe, Path(), Corpus(Path(), "uint32"))
    return job | {"memory_limit_bytes_per_rank": None}


def disk_folder(setup: ProbeSetup, recipe: Recipe, run_folder: Path) -> Path | None:
    """Return the private folder for what a run offloads to a disk; None where its recipe offloads nothing there.

    The ranks create it. Whoever started them removes it when they have ended, and the fork server does if its driver
    ends first.
    """
    root = setup.problem.cluster.nvme_path
    if recipe.offload != "nvme" or root is None:
        return None
    return Path(root) / f"frontrunner-{hashlib.sha256(str(run_folder.resolve()).encode()).hexdigest()[:16]}"


def disk_table(setup: ProbeSetup, recipe: Recipe, run_folder: Path) -> dict[str, Any] | None:
    """Return the folder and the most that all ranks together write there.

    That is parameters x (4 (2 + states of the optimizer) + bytes per parameter as computed): weights, gradients and
    states of the optimizer in fp32. Embedding and head are whole on each tensor-parallel rank, as AutoTP has them.
    """
    folder = disk_folder(setup, recipe, run_folder)
    if folder is None:
        return None
    model = setup.problem.model
    tables = model.parameters - model.layers * model.matmul_parameters_per_layer
    held = model.parameters + (recipe.tensor_parallel - 1) * tables
    computed_bytes = 4 if setup.problem.precision == "fp32" else 2
    bytes_per_parameter = 4 * (2 + OPTIMIZER_STATES[setup.probe.optimizer]) + computed_bytes
    return {"folder": str(folder), "needed_bytes": held * bytes_per_parameter}


def remove_disk_folder(job: Mapping[str, Any]) -> None:
    """Remove the offload folder that a job names, if any."""
    if job.get("disk"):
        shutil.rmtree(job["disk"]["folder"], ignore_errors=True)


def corpus(data: DataSettings, work_folder: Path, problem: Problem) -> Corpus:
    """Return the token file of a campaign, created in `work_folder` where the data is text.

    Use a `.bin` file as it is: uint16, or uint32 where the model's vocabulary needs it. Read any other file as bytes,
    one token per byte. Raises `InvalidInput` if a token is outside the model's vocabulary, or if there are too few
    tokens for the sequence length.
    """
    found = _token_file(data, problem)
    if found is None:
        found = Corpus(_byte_tokens(data, work_folder, problem), "uint16")
    _check(found, data, problem)
    return found


def check_data(data: DataSettings, problem: Problem) -> None:
    """Raise what `corpus` would raise for unusable data; write nothing."""
    tokens = _token_file(data, problem)
    if tokens is not None:
        _check(tokens, data, problem)
        return
    _check_vocabulary(problem)
    size_bytes = len(builtin_text().encode()) if data.path is None else _size_bytes(Path(data.path))
    _check_length(size_bytes + 1, data, problem)  # one token per byte, and the end of the document


def _token_file(data: DataSettings, problem: Problem) -> Corpus | None:
    if data.path is None or not data.path.endswith(".bin"):
        return None
    return Corpus(Path(data.path), "uint16" if problem.model.vocabulary <= UINT16_VOCABULARY else "uint32")


def _size_bytes(path: Path) -> int:
    try:
        with path.open("rb") as file:
            return file.seek(0, os.SEEK_END)
    except OSError as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path | str, error: OSError) -> Exception:
    return bad_value("data.path", str(path), f"a file that can be read: {error.strerror}")


def _check_vocabulary(problem: Problem) -> None:
    if problem.model.vocabulary < BYTE_VOCABULARY:
        expected = f"at least {BYTE_VOCABULARY}: text is read as one token per byte"
        raise bad_value("model.vocabulary", problem.model.vocabulary, expected)


def _byte_tokens(data: DataSettings, work_folder: Path, problem: Problem) -> Path:
    _check_vocabulary(problem)
    text: str | bytes
    if data.path is None:
        text, name = builtin_text(), f"builtin-{platform.python_version()}"
    else:
        try:
            text = Path(data.path).read_bytes()
        except OSError as error:
            raise _unreadable(data.path, error) from None
        if not text:
            raise bad_value("data.path", data.path, "a file that is not empty")
        name = f"text-{hashlib.sha256(text).hexdigest()[:12]}"
    path = work_folder / f"{name}.bin"
    if not path.exists():
        write_token_file(text, path)
    return path


def _check(found: Corpus, data: DataSettings, problem: Problem) -> None:
    size_bytes, width = _size_bytes(found.path), np.dtype(found.dtype).itemsize
    if size_bytes % width:
        raise bad_value("data.path", data.path, f"tokens of {width} bytes each; the file has {size_bytes:,} bytes")
    _check_length(size_bytes // width, data, problem)
    highest = int(np.memmap(found.path, dtype=found.dtype, mode="r").max())
    if highest >= problem.model.vocabulary:
        expected = f"tokens below model.vocabulary = {problem.model.vocabulary}; it has {highest}"
        raise bad_value("data.path", data.path, expected)


def _check_length(count: int, data: DataSettings, problem: Problem) -> None:
    fewest = MIN_SEQUENCES * (problem.sequence_length + 1)
    if count >= fewest:
        return
    needed = f"at least {fewest:,} tokens, {MIN_SEQUENCES} sequences of {problem.sequence_length}"
    if data.path is None:
        raise bad_value("data.path", None, f"a text of {needed}; the built-in one has {count:,}")
    raise bad_value("data.path", data.path, f"{needed}; it has {count:,}")
