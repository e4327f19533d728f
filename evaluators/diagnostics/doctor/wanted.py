"""What a campaign would ask of the machine: the part of doctor's questions that a campaign file answers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Where outcomes are kept, and what probes need.

    `store_path` is None for a store on a database server. `backend` and `devices_per_node` are those of the campaign's
    cluster, None where no campaign is named; `disk_folder` is what its recipes may offload to. `packages` are optional
    ones that it needs, `scheduler` the batch system that it asks for nodes, so that this machine need not be one.
    """

    store_path: Path | None
    run_folder: Path
    nodes: int = 1
    backend: str | None = None
    devices_per_node: int | None = None
    packages: tuple[str, ...] = ()
    scheduler: str | None = None
    compiles: bool = False
    disk_folder: Path | None = None
