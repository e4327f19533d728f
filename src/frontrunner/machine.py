"""Measuring and checking this machine: calibrate, fit_tables, fit_campaign, doctor, call_ranks."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from frontrunner.config.campaign import named_cluster, parse_cluster, read_campaign_file
from frontrunner.config.settings import run_root, store_url
from frontrunner.evaluators.analytic.fit import (
    Samples,
    StepFits,
    are_of_one_machine,
    fit_steps,
    samples_of_problems,
)
from frontrunner.evaluators.diagnostics.calibration import (
    Calibration,
    calibration,
    measure,
    write_fits,
    write_measured,
)
from frontrunner.evaluators.diagnostics.doctor.check import Check, Needs
from frontrunner.evaluators.diagnostics.doctor.machine import examine
from frontrunner.evaluators.diagnostics.ranks import Place, allocated
from frontrunner.evaluators.nodes.backends import backend_of, node_source
from frontrunner.evaluators.nodes.environment import JobEnvironment, job_environment
from frontrunner.evaluators.nodes.settings import BACKENDS, NodeSource
from frontrunner.evaluators.nodes.this_machine import detect, processors, share_processors
from frontrunner.evaluators.runs.settings import TORCH_DEVICES
from frontrunner.evaluators.tables.workloads import read, samples_of_tables
from frontrunner.results.address import parse_address
from frontrunner.results.prior_results import campaign_results
from frontrunner.results.records import Campaign
from frontrunner.results.store import Store
from frontrunner.search.campaign_setup import stored_spec
from frontrunner.search.spec import CampaignSpec
from frontrunner.search.strategy import Evidence
from frontrunner.search.warm_start import Earlier, gather
from frontrunner.spaces.cluster import Cluster
from frontrunner.spaces.errors import InvalidInput, StoreUnusable, bad_value
from frontrunner.store import opened

if TYPE_CHECKING:
    from frontrunner.evaluators.diagnostics.doctor.collective_test import TestResult

SHORTEST_S = 5.0
LONGEST_S = 3600.0
MOST_RANKS = 1024
DEADLINE_S = 60.0

OnStart = Callable[["Place"], None]
"""Called after all checks, with the ranks that are about to start."""


def calibrate(
    out: str | Path,
    *,
    ranks: int | None = None,
    device: str | None = None,
    seconds: float = 60.0,
    cluster: str | Cluster | None = None,
    on_start: OnStart | None = None,
) -> Calibration | None:
    """Measure this machine, or the allocation whose launcher started this process, into a cluster
    file.

    `cluster` (a preset, a cluster file, or a value; default: as detected) provides what is not
    measured. In an allocation every process calls this; rank 0 writes, and the others return None.
    """
    path = _writable(out)
    _check_limits("--seconds", seconds, ranks)
    where = allocated(ranks)
    base = _base(cluster, where.ranks_per_node if where else ranks, device)
    per_node = ranks or base.devices_per_node
    where = where or Place(ranks=per_node, ranks_per_node=per_node)
    _refuse_elsewhere(base.backend, where)
    taken_at, load_before = (
        datetime.now(UTC),
        os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
    )
    if on_start is not None:
        on_start(where)
    seen = measure(where, device=TORCH_DEVICES[base.backend], seconds=seconds)
    if seen is None:
        return None
    found = calibration(base, seen, taken_at, load_before)
    write_measured(path, found)
    return found


def fit_tables(
    tables: Sequence[str | Path],
    *,
    out: str | Path | None = None,
    cluster: str | Cluster | None = None,
) -> StepFits:
    """Fit the analytic model's constants to tables of step times, for `cluster` or the preset of
    the rows' hardware.

    Each training code is fitted to by itself.
    """
    path, base = _writable(out) if out is not None else None, named_cluster(cluster)
    measured = samples_of_tables([read(Path(table), base) for table in tables], base)
    if base is None and measured.samples:
        devices = {sample.cluster.device: sample.cluster for sample in measured.samples}
        if len(devices) != 1:
            found = ", ".join(sorted(devices))
            raise InvalidInput(
                f"the rows' devices are {found}: expected one", hint="name it with --cluster"
            )
        (base,) = devices.values()
    return _fitted(measured, path, base, ", ".join(Path(table).name for table in tables))


def fit_campaign(
    campaign: str | None = None,
    *,
    store: str | None = None,
    out: str | Path | None = None,
    cluster: str | Cluster | None = None,
) -> StepFits:
    """Fit the analytic model's constants to a campaign's measurements, for `cluster` or the
    campaign's own.

    With `campaign` None to those of the newest and of all others on its cluster with its code,
    precision and software.
    """
    path = _writable(out) if out is not None else None
    with opened(store) as found:
        record = found.campaign(campaign)
        spec = stored_spec(record)
        outcomes = [(spec.problem, *pair) for pair in found.final_outcomes(record.id)]
        others: list[Evidence] = []
        if campaign is None:
            others = _on_the_same_machine(found, record, spec)
    if spec.evaluator_kind.simulates:
        raise InvalidInput(
            f"campaign {record.name} is simulated: it measured nothing that could be fitted to"
        )
    if record.figures == "imported":
        raise InvalidInput(
            f"campaign {record.name} is imported, from training code that it does not name",
            hint="fit to the table itself: frontrunner calibrate --from-table CSV --out FILE",
        )
    own = spec.problem.cluster
    base = named_cluster(cluster) or own
    if (base.devices, base.backend) != (own.devices, own.backend):
        expected = f"{own.devices} {own.backend} devices, on which campaign {record.name} measured"
        raise bad_value("cluster", f"{base.devices} {base.backend} devices", expected)
    known = [*outcomes, *((one.problem, one.recipe, one.outcome) for one in others)]
    measured = samples_of_problems(
        [
            (replace(problem, cluster=replace(base, nodes=problem.cluster.nodes)), recipe, outcome)
            for problem, recipe, outcome in known
        ]
    )
    origins = dict.fromkeys([f"campaign {record.name}", *(one.origin for one in others)])
    return _fitted(measured, path, base, ", ".join(origins))


def _on_the_same_machine(store: Store, record: Campaign, spec: CampaignSpec) -> list[Evidence]:
    """Return what other campaigns measured on the same cluster, with the same code, precision and
    software.
    """
    ran_with = [
        one.provenance for one in campaign_results(store, record.id) if one.provenance is not None
    ]
    if not ran_with:
        return []
    earlier = []
    for other in (
        store.campaign(summary.name) for summary in store.campaigns() if summary.id != record.id
    ):
        with suppress(StoreUnusable, InvalidInput):  # of a version that this one cannot read
            earlier += (
                [Earlier(campaign=other, spec=stored_spec(other))]
                if other.figures == "measured"
                else []
            )
    wanted = replace(spec, search=replace(spec.search, warm_start=True, reuse=False))
    evidence = gather(store, wanted, earlier, ran_with[-1]).evidence
    return [one for one in evidence if are_of_one_machine(one.problem, spec.problem)]


def _fitted(measured: Samples, path: Path | None, base: Cluster | None, origin: str) -> StepFits:
    found = fit_steps(measured)
    if path is not None and base is not None:
        write_fits(path, base, found, origin=origin, taken_at=datetime.now(UTC))
    return found


def _writable(out: str | Path) -> Path:
    path = Path(out)
    if path.is_dir() or not os.access(path.parent, os.W_OK):
        raise bad_value("--out", str(out), "a file in a folder that exists and can be written to")
    return path


def _base(cluster: str | Cluster | None, ranks_per_node: int | None, device: str | None) -> Cluster:
    """Return the cluster that the file starts from; a detected CPU's memory and rate are divided
    among its ranks.
    """
    base = named_cluster(cluster)
    if base is None and device == "cpu":
        found = processors()
        base = parse_cluster(share_processors(found, ranks_per_node or found["devices_per_node"]))
    elif base is None:
        wanted = {"devices_per_node": ranks_per_node} if ranks_per_node else {}
        base = parse_cluster({"preset": "this-machine", **wanted})
    elif base.backend == "cpu" and ranks_per_node not in (None, base.devices_per_node):
        raise bad_value(
            "--ranks", ranks_per_node, f"{base.devices_per_node} per node, as {base.name} has"
        )
    if device is not None and (its_own := TORCH_DEVICES.get(base.backend, base.backend)) != device:
        raise bad_value("--device", device, f"{its_own}, as {base.name} has")
    return base


def _refuse_elsewhere(backend: str, where: Place) -> None:
    if backend == "cpu":
        return
    here = this_job()
    if here.backend != backend:
        expected = f"{here.backend}, which is what this machine has ({here.device_name})"
        raise bad_value("cluster.backend", backend, expected)
    if where.ranks_per_node > here.devices_per_node:
        raise bad_value(
            "--ranks",
            where.ranks_per_node,
            f"at most the {here.devices_per_node} devices found here",
        )


def _check_limits(flag: str, seconds: float, ranks: int | None) -> None:
    if not SHORTEST_S <= seconds <= LONGEST_S:
        raise bad_value(flag, seconds, f"between {SHORTEST_S:g} and {LONGEST_S:g}")
    if ranks is not None and not 1 <= ranks <= MOST_RANKS:
        raise bad_value("--ranks", ranks, f"1 to {MOST_RANKS}")


def doctor(campaign: str | Path | None = None, *, store: str | None = None) -> tuple[Check, ...]:
    """Check this machine, job and installation, and what a campaign file needs; `store` overrides
    the file's.
    """
    return examine(_needs(campaign, store))


def call_ranks(
    campaign: str | Path | None = None,
    *,
    ranks: int | None = None,
    deadline_s: float = DEADLINE_S,
    on_start: OnStart | None = None,
) -> TestResult | None:
    """Run all-reduces on real ranks: bandwidth by size, and ranks that fail or lag.

    In an allocation every process calls this; rank 0 gets the result, and the others None.
    `deadline_s` is how long a rank may take to join or to make progress.
    """
    from frontrunner.evaluators.diagnostics.doctor.collective_test import run_collective_test

    _check_limits("--deadline", deadline_s, ranks)
    cluster = (
        read_campaign_file(Path(campaign)).spec.problem.cluster if campaign is not None else None
    )
    where = allocated(ranks)
    job = this_job()
    backend = cluster.backend if cluster is not None else job.backend
    per_node = ranks or job.devices_per_node
    where = where or Place(ranks=per_node, ranks_per_node=per_node)
    _refuse_elsewhere(backend, where)
    if on_start is not None:
        on_start(where)
    nodes = job.nodes if where.rank is not None else (socket.gethostname(),)
    return run_collective_test(
        where, device=TORCH_DEVICES[backend], deadline_s=deadline_s, nodes=nodes
    )


def this_job() -> JobEnvironment:
    """Return the job that this process is part of, with the devices that it sees."""
    return job_environment(os.environ, detect())


def _needs(campaign: str | Path | None, store: str | None) -> Needs:
    file = read_campaign_file(Path(campaign)) if campaign is not None else None
    url = store_url(store, from_file=file.store.url if file else None)
    runs = run_root(url, from_file=file.store.run_folder if file else None)
    needs = Needs(store_path=parse_address(url).path, run_folder=runs)
    if file is None:
        return needs
    cluster, space, dispatch = file.spec.problem.cluster, file.spec.space, file.spec.dispatch
    engines = tuple(engine for engine in space.engine if engine != "torch")
    backend = dispatch.backend
    dispatcher = (backend_of(backend).package,) if backend in BACKENDS else ()
    disk = cluster.nvme_path if "nvme" in space.offload else None
    return replace(
        needs,
        nodes=cluster.nodes,
        backend=cluster.backend,
        devices_per_node=cluster.devices_per_node,
        packages=engines + dispatcher,
        scheduler=dispatch.scheduler,
        compiles=True in space.compile,
        disk_folder=Path(disk) if disk else None,
        trainer=file.spec.command.trainer if file.spec.evaluator_kind.has_section else None,
        ray=_ray_source(file.spec),
    )


def _ray_source(spec: CampaignSpec) -> NodeSource | None:
    """Return the nodes on Ray that the campaign asks for."""
    if spec.dispatch.backend != "ray" or find_spec("ray") is None:
        return None
    return node_source(spec.dispatch, spec.problem.cluster)
