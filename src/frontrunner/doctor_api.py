"""The Python API of `frontrunner doctor`: looking at a machine, and at ranks that work together."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from frontrunner.config.campaign import CampaignFile, read_campaign_file
from frontrunner.config.settings import run_root, store_url
from frontrunner.evaluators.cluster.environment import JobEnvironment, job_environment
from frontrunner.evaluators.diagnostics.calibration.ranks import Place, allocated, this_machine
from frontrunner.evaluators.diagnostics.doctor.check import Check, Needs
from frontrunner.evaluators.probe.settings import TORCH_DEVICES
from frontrunner.evaluators.probe.this_machine import detect
from frontrunner.results.address import parse_address
from frontrunner.spaces.errors import bad_value

if TYPE_CHECKING:
    from frontrunner.evaluators.diagnostics.doctor.collective_test import TestResult

DEADLINE_S = 60.0
SHORTEST_S, LONGEST_S = 5.0, 3600.0
MOST_RANKS = 1024

OnStart = Callable[[Place], None]
"""Called once everything is checked, with the ranks that are about to start."""


def doctor(campaign: str | Path | None = None, *, store: str | None = None) -> tuple[Check, ...]:
    """Look at this machine, this job and this installation; with a campaign file, also at what that would need.

    `store` overrides the file's. Raises `InvalidInput` or `NotFound` for a file that cannot be read.
    """
    from frontrunner.evaluators.diagnostics.doctor.examine import examine

    return examine(_wanted(campaign, store))


def call_ranks(
    campaign: str | Path | None = None,
    *,
    ranks: int | None = None,
    deadline_s: float = DEADLINE_S,
    on_start: OnStart | None = None,
) -> TestResult | None:
    """Have ranks add up together: bandwidth by size, and who fails or lags.

    They are started here (`ranks` of them; a device each without), or are those of the launcher that started this
    process: then every process calls this, rank 0 gets the result, and the others None. `deadline_s` is the longest
    that a rank may take to come, or to go on. Raises `InvalidInput` for what this machine cannot do.
    """
    from frontrunner.evaluators.diagnostics.doctor.collective_test import run_collective_test

    if not SHORTEST_S <= deadline_s <= LONGEST_S:
        raise bad_value("--deadline", deadline_s, f"between {SHORTEST_S:g} and {LONGEST_S:g}")
    if ranks is not None and not 1 <= ranks <= MOST_RANKS:
        raise bad_value("--ranks", ranks, f"1 to {MOST_RANKS}")
    cluster = read_campaign_file(Path(campaign)).spec.problem.cluster if campaign is not None else None
    where = allocated(ranks)
    job = this_job()
    backend = cluster.backend if cluster is not None else job.backend
    where = where or this_machine(ranks or job.devices_per_node)
    if backend not in ("cpu", job.backend):
        raise bad_value("cluster.backend", backend, f"{job.backend}, which is what this machine has")
    if backend != "cpu" and where.ranks_per_node > job.devices_per_node:
        raise bad_value("--ranks", where.ranks_per_node, f"at most the {job.devices_per_node} devices found here")
    if on_start is not None:
        on_start(where)
    nodes = job.nodes if where.rank is not None else (socket.gethostname(),)
    return run_collective_test(where, device=TORCH_DEVICES[backend], deadline_s=deadline_s, nodes=nodes)


def this_job() -> JobEnvironment:
    """The job that this process is part of, with the devices that it sees."""
    return job_environment(os.environ, detect())


def _wanted(campaign: str | Path | None, store: str | None) -> Needs:
    file = read_campaign_file(Path(campaign)) if campaign is not None else None
    url = store_url(store, from_file=file.store.url if file else None)
    runs = run_root(url, from_file=file.store.run_folder if file else None)
    path = parse_address(url).path
    return _of_campaign(file, path, runs) if file else Needs(store_path=path, run_folder=runs)


def _of_campaign(file: CampaignFile, store_path: Path | None, run_folder: Path) -> Needs:
    problem, space, dispatch = file.spec.problem, file.spec.space, file.spec.dispatch
    engines = tuple(engine for engine in space.engine if engine != "torch")
    disk = problem.cluster.nvme_path if "nvme" in space.offload else None
    return Needs(
        store_path=store_path,
        run_folder=run_folder,
        nodes=problem.cluster.nodes,
        backend=problem.cluster.backend,
        devices_per_node=problem.cluster.devices_per_node,
        packages=engines + (("parsl",) if dispatch.backend in ("parsl", "allocation") else ()),
        scheduler=dispatch.scheduler if dispatch.backend == "parsl" else None,
        compiles=True in space.compile,
        disk_folder=Path(disk) if disk else None,
    )
