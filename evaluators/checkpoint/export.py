"""A checkpoint as a published model: weights in safetensors files of bounded size, `config.json`,
and the tokenizer.

One file's tensors and what they are made of are in memory at a time. The folder gets its name when
all is written.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from frontrunner.evaluators.checkpoint.reading import Checkpoint
from frontrunner.evaluators.checkpoint.weights import Weight, shapes_of, source_shapes, weights
from frontrunner.evaluators.trainer.optimizer import COMPUTE_TYPES
from frontrunner.spaces.document import write_bytes
from frontrunner.spaces.errors import (
    InvalidInput,
    bad_value,
    holds,
    require_extra,
    require_one_of,
    writing,
)
from frontrunner.spaces.hugging_face import config_of_model

FORMATS = ("safetensors",)

OnFile = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True)
class Exported:
    """An exported model; `tokenizer` is whether its folder has one."""

    folder: Path
    architecture: str
    step: int
    parameters: int
    size_bytes: int
    files: int
    tokenizer: bool


def export(
    checkpoint: Checkpoint,
    out: Path,
    *,
    dtype: str = "fp32",
    most_file_bytes: int = 5 * 10**9,
    tokenizer: Path | None = None,
    on_file: OnFile | None = None,
) -> Exported:
    """Write the folder `out`, which must not be there; raise `InvalidInput` for a model of no
    architecture.
    """
    require_extra("safetensors", "safetensors", "exporting")
    require_one_of("", "--dtype", dtype, COMPUTE_TYPES)
    if holds(out.exists):
        raise InvalidInput(
            f"{out} is there already", hint="name another folder by --out, or remove it first"
        )
    model, length = checkpoint.job.model, checkpoint.job.sequence_length
    positions = (
        length
        if model.embedding.positions == "learned"
        else max(length, model.embedding.max_positions or length)
    )
    config = config_of_model(model, positions=positions)
    config["dtype"] = str(COMPUTE_TYPES[dtype]).removeprefix("torch.")
    kind = config["model_type"]
    checkpoint.require(shapes_of(model, sequence_length=length))
    tokenizer = tokenizer or checkpoint.tokenizer
    if tokenizer is not None and not holds(tokenizer.is_file):
        raise bad_value("--tokenizer", str(tokenizer), "a tokenizer.json")
    config |= {"bos_token_id": None, "eos_token_id": checkpoint.end_of_document}
    shapes = source_shapes(kind, model, sequence_length=length)
    files = _in_files(weights(kind, model), shapes, COMPUTE_TYPES[dtype], most_file_bytes)
    partial = out.with_name(f".{out.name}.{os.getpid()}")
    with writing(out):
        try:
            partial.mkdir()
            sizes = _write_files(partial, checkpoint, files, shapes, COMPUTE_TYPES[dtype], on_file)
            write_bytes(partial / "config.json", (json.dumps(config, indent=2) + "\n").encode())
            if tokenizer is not None:
                shutil.copyfile(tokenizer, partial / "tokenizer.json")
                own = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": positions}
                write_bytes(
                    partial / "tokenizer_config.json", (json.dumps(own, indent=2) + "\n").encode()
                )
            partial.rename(out)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
    return Exported(
        folder=out,
        architecture=config["architectures"][0],
        step=checkpoint.step,
        parameters=sum(sizes.values()) // COMPUTE_TYPES[dtype].itemsize,
        size_bytes=sum(sizes.values()),
        files=len(files),
        tokenizer=tokenizer is not None,
    )


def _in_files(
    all_weights: Iterable[Weight],
    shapes: dict[str, torch.Size],
    dtype: torch.dtype,
    most_bytes: int,
) -> list[list[Weight]]:
    """Return the weights of each file: as many as fit in `most_bytes`, at least one."""
    files: list[list[Weight]] = []
    held = most_bytes
    for weight in all_weights:
        made = weight.make(*(torch.empty(shapes[name], device="meta") for name in weight.sources))
        size = made.numel() * dtype.itemsize
        if held + size > most_bytes:
            files.append([])
            held = 0
        files[-1].append(weight)
        held += size
    return files


def _write_files(
    folder: Path,
    checkpoint: Checkpoint,
    files: list[list[Weight]],
    shapes: dict[str, torch.Size],
    dtype: torch.dtype,
    on_file: OnFile | None,
) -> dict[str, int]:
    from safetensors.torch import save_file

    placed: dict[str, str] = {}
    sizes: dict[str, int] = {}
    for number, chosen in enumerate(files, start=1):
        name = (
            "model.safetensors"
            if len(files) == 1
            else f"model-{number:05d}-of-{len(files):05d}.safetensors"
        )
        tensors = _made(checkpoint, chosen, shapes, dtype)
        file = folder / name
        file.touch()
        readable_as = file.stat().st_mode  # by the umask; the library lets only its user read it
        save_file(tensors, file, metadata={"format": "pt"})
        file.chmod(readable_as)
        placed |= dict.fromkeys(tensors, name)
        sizes |= {key: tensor.nbytes for key, tensor in tensors.items()}
        if on_file is not None:
            on_file(number, len(files))
    if len(files) > 1:
        index: dict[str, Any] = {
            "metadata": {"total_size": sum(sizes.values())},
            "weight_map": placed,
        }
        write_bytes(
            folder / "model.safetensors.index.json", (json.dumps(index, indent=2) + "\n").encode()
        )
    return sizes


def _made(
    checkpoint: Checkpoint, chosen: list[Weight], shapes: dict[str, torch.Size], dtype: torch.dtype
) -> dict[str, Tensor]:
    """Return the tensors of one file; sources are read once, and dropped after the last tensor that
    needs them.
    """
    last = {source: weight.name for weight in chosen for source in weight.sources}
    found: dict[str, Tensor] = {}
    held: dict[str, Tensor] = {}
    for weight in chosen:
        missing = [source for source in weight.sources if source not in held]
        held |= checkpoint.read(source for source in missing if source in checkpoint.shapes)
        held |= {
            source: torch.zeros(shapes[source])
            for source in missing
            if source not in checkpoint.shapes
        }
        made = weight.make(*(held[source] for source in weight.sources)).to(dtype).contiguous()
        if (
            made.untyped_storage().nbytes() != made.nbytes
        ):  # a part of a larger one, which it would keep
            made = made.clone()
        found[weight.name] = made
        for source in weight.sources:
            if last[source] == weight.name:
                del held[source]
    return found
