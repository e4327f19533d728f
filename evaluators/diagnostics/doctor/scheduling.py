"""The batch system: its programs, the allocation that is held, the launcher of this process, the devices it told."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass

from frontrunner.evaluators.cluster.environment import JobEnvironment, job_environment
from frontrunner.evaluators.diagnostics.doctor.checks import Check, Status, Titled, examination
from frontrunner.evaluators.diagnostics.doctor.wanted import Wanted
from frontrunner.evaluators.probe.this_machine import detect

SECTION = "job"
LONGEST_S = 20.0
PROGRAMS = {
    "slurm": ("sbatch", "--version"),
    "pbs": ("qsub", "--version"),
    "lsf": ("bsub", "-V"),
    "flux": ("flux", "version"),
}
"""By scheduler, the command that submits to it or knows it, asked for its version."""
MOST_NAMED = 4
"""Nodes that are named in a sentence; the rest is counted."""


@dataclass(frozen=True, kw_only=True)
class Scheduler:
    """A batch system whose program is on PATH, with the first line that it says of its version; None for no answer."""

    name: str
    version: str | None


def job_checks(wanted: Wanted) -> list[Titled]:
    """The examinations of this file."""
    return [
        examination(SECTION, "scheduler", gather_schedulers, lambda found: judge_schedulers(found, wanted.scheduler)),
        examination(SECTION, "allocation", gather_job, lambda job: judge_job(job, wanted)),
    ]


def gather_schedulers() -> tuple[Scheduler, ...]:
    """The batch systems whose programs are here."""
    return tuple(
        Scheduler(name=name, version=_first_line(command))
        for name, command in PROGRAMS.items()
        if shutil.which(command[0])
    )


def _first_line(command: tuple[str, ...]) -> str | None:
    """What a command says first, on either stream; None for one that fails, says nothing or takes too long."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = (done.stdout.strip() or done.stderr.strip()).splitlines()
    return lines[0].strip() if lines and done.returncode == 0 else None


def judge_schedulers(found: tuple[Scheduler, ...], wanted: str | None) -> Iterable[Check]:
    """Which there are; none is fine for one machine, but a campaign's own must be here."""
    if wanted is not None and wanted not in [each.name for each in found]:
        words = f"the campaign asks {wanted} for nodes, and {PROGRAMS[wanted][0]} is not on PATH"
        remedy = f"start it where {PROGRAMS[wanted][0]} works: on a login node of the cluster"
        yield Check(section=SECTION, name="scheduler", status=Status.PROBLEM, found=words, remedy=remedy)
    elif not found:
        remedy = "nothing to do for one machine; on a cluster, run this on a login node or inside a job"
        yield Check(section=SECTION, name="scheduler", status=Status.NOTE, found="none is on PATH", remedy=remedy)
    for each in found:
        if each.version is None:
            words, remedy = f"{each.name}: its program does not tell its version", "look whether it works at all"
            yield Check(section=SECTION, name="scheduler", status=Status.NOTE, found=words, remedy=remedy)
        else:
            yield Check(section=SECTION, name="scheduler", status=Status.OK, found=f"{each.name}: {each.version}")


def gather_job() -> JobEnvironment:
    """The job that this process is part of."""
    return job_environment(os.environ, detect())


def judge_job(job: JobEnvironment, wanted: Wanted) -> Iterable[Check]:
    """The allocation, the launcher, and whether the devices that the batch system told are there."""
    yield _allocation(job, wanted)
    if job.launched is not None:
        place = job.launched
        found = f"{place.launcher}: rank {place.rank} of {place.world_size}, {place.local_world_size} a node"
        yield Check(
            section=SECTION, name="launcher", status=Status.OK, found=f"{found}, rank 0 on {job.master_address}"
        )
    if job.masked_by is not None:
        found = f"{job.masked_by} shows this process {job.visible_devices} devices"
        yield Check(section=SECTION, name="visible devices", status=Status.NOTE, found=found)
    told = job.stated_devices_per_node
    if told and job.backend == "cpu":
        found = f"the batch system gave this node {told} devices, and none is seen here"
        remedy = "look at the checks of torch and of the driver, and start this on a compute node (srun, mpiexec)"
        yield Check(section=SECTION, name="devices", status=Status.PROBLEM, found=found, remedy=remedy)


def _allocation(job: JobEnvironment, wanted: Wanted) -> Check:
    if job.allocation is None:
        short = wanted.nodes > 1
        return Check(
            section=SECTION,
            name="allocation",
            status=Status.NOTE,
            found="none is held",
            remedy=f"its probes need {wanted.nodes} nodes: submit jobs, or start inside one" if short else None,
        )
    held = job.allocation
    named = ", ".join(held.nodes[:MOST_NAMED]) + (", ..." if len(held.nodes) > MOST_NAMED else "")
    found = f"{held.scheduler} job {held.job_id}: {len(held.nodes)} nodes, {named}"
    if len(held.nodes) < wanted.nodes:
        remedy = f"ask for {wanted.nodes} nodes, or probe recipes of fewer"
        return Check(section=SECTION, name="allocation", status=Status.WARNING, found=found, remedy=remedy)
    return Check(section=SECTION, name="allocation", status=Status.OK, found=found)
