"""The model's first weights: the same whatever the parallel form.

Each parameter is drawn from a generator seeded by the job's seed and the parameter's name in the whole model, and a
rank keeps its shard of the draw. GPT-2's rule: normal with deviation 0.02, the projections that add to the residual
stream scaled by 1 / sqrt(2 * layers); norms start at 1.
"""

import hashlib
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Placement

DEVIATION = 0.02
_RESIDUAL_PROJECTIONS = ("attention.output.weight", "feed_forward.down.weight")


@torch.no_grad()
def initialise(parameters: Iterable[tuple[str, nn.Parameter]], *, seed: int, layers: int) -> None:
    """Fill the materialised `parameters`, given with their names in the whole model of `layers` layers."""
    for name, parameter in parameters:
        if "norm" in name.rsplit(".", 2)[-2]:
            parameter.fill_(1.0)
            continue
        deviation = DEVIATION
        if name.endswith(_RESIDUAL_PROJECTIONS):
            deviation /= (2 * layers) ** 0.5
        generator = torch.Generator(parameter.device).manual_seed(_seed_of(seed, name))
        whole = torch.empty(parameter.shape, device=parameter.device)
        whole.normal_(0.0, deviation, generator=generator)
        if isinstance(parameter, DTensor):
            parameter.to_local().copy_(local_part(whole, parameter))
        else:
            parameter.copy_(whole)


def local_part(whole: Tensor, like: DTensor) -> Tensor:
    """The part of `whole` that this rank holds of a DTensor `like` of the same shape.

    Mesh dimensions split from the outermost to the innermost, but for strided ones, which split what those have left:
    tensor parallelism is applied before FSDP2 shards, and stands further in.
    """
    part = whole
    coordinate = like.device_mesh.get_coordinate()
    if coordinate is None:
        raise RuntimeError("this rank holds no part of the tensor: it is not in the tensor's mesh")
    for dimension in sorted(range(like.device_mesh.ndim), key=lambda number: _is_strided(like.placements[number])):
        split_along = getattr(like.placements[dimension], "dim", None)
        if split_along is None:
            continue
        chunks = part.chunk(like.device_mesh.size(dimension), dim=split_along)
        index = coordinate[dimension]
        part = chunks[index] if index < len(chunks) else chunks[0].narrow(split_along, 0, 0)
    return part


def _is_strided(placement: Placement) -> bool:
    return hasattr(placement, "split_factor")


def _seed_of(seed: int, name: str) -> int:
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
