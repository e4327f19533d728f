"""A real Slurm cluster of two nodes on one machine, in a folder of its own, on loopback.

munge's key and socket, ports and the nodes' names are the cluster's own, so that several can run
side by side. Both nodes are this host: what differs is where steps run.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from support.starting import DidNotStart, retried

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol")

LEAST_HOLD_S = 15
"""Of a requeued job, whose new credential has to be younger than the revocation of its last one."""

CONFIGURATION = """\
ClusterName=frontrunner{port}
SlurmctldHost=localhost
SlurmctldPort={port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CryptoType=crypto/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ReturnToService=1
MpiDefault=none
KillWait=2
OverTimeLimit=0
SlurmdTimeout=30
SchedulerParameters=sched_interval=1,batch_sched_delay=0,sched_min_interval=0,bf_interval=2
JobRequeue=0
{nodes}
PartitionName=probes Nodes={names} Default=YES MaxTime=INFINITE State=UP OverSubscribe=EXCLUSIVE
"""


def missing_programs() -> list[str]:
    """What a cluster needs and is not installed."""
    return [name for name in PROGRAMS if shutil.which(name, path=_path()) is None]


def _path() -> str:
    return os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))


@dataclass(frozen=True)
class SlurmCluster:
    """A cluster under way; its commands need `environment`."""

    folder: Path
    nodes: tuple[str, ...]

    @property
    def environment(self) -> dict[str, str]:
        """What Slurm's commands read to find this cluster."""
        return {"SLURM_CONF": str(self.folder / "slurm.conf"), "PATH": _path()}

    def run(self, *command: str) -> str:
        """The output of one of Slurm's commands; raises where it fails."""
        environment = {**os.environ, **self.environment}
        try:
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, check=True, timeout=600
            )
        except subprocess.CalledProcessError as error:
            error.add_note(error.stderr)
            raise
        return done.stdout

    def jobs(self) -> list[str]:
        """The ids of the jobs that run or wait."""
        return self.run("squeue", "--noheader", "--format=%i").split()

    def running(self) -> list[str]:
        """The ids of the jobs that run."""
        return self.run("squeue", "--noheader", "--states=RUNNING", "--format=%i").split()

    def shorten_holds(self) -> None:
        """Let requeued jobs begin soon: Slurm holds them for two minutes, and revokes a job that
        starts at once.
        """
        for line in self.run(
            "squeue", "--noheader", "--states=PENDING", "--format=%i %S"
        ).splitlines():
            job, start = line.split()
            if (
                start != "N/A"
                and (datetime.fromisoformat(start) - datetime.now()).total_seconds()
                > 2 * LEAST_HOLD_S
            ):
                self.run("scontrol", "update", f"jobid={job}", f"starttime=now+{LEAST_HOLD_S}")

    def set_node(self, node: str, state: str) -> None:
        """Take a node down, or bring it back: `state` is "down" or "resume"."""
        self.run("scontrol", "update", f"nodename={node}", f"state={state}", "reason=test")


def slurm_cluster(folder: Path) -> AbstractContextManager[SlurmCluster]:
    """Start a cluster, and end its daemons and whatever they still run."""
    return retried("Slurm", lambda attempt: _cluster(folder / f"{attempt}"))


@contextmanager
def _cluster(folder: Path) -> Iterator[SlurmCluster]:
    folder.mkdir(parents=True, exist_ok=True)
    port, *node_ports = _free_ports(3)
    names = tuple(f"fr{port}n{number}" for number in (1, 2))
    lines = [
        f"NodeName={name} NodeHostname=localhost NodeAddr=127.0.0.1 Port={node_port} CPUs=1"
        " RealMemory=1000"
        for name, node_port in zip(names, node_ports, strict=True)
    ]
    text = CONFIGURATION.format(
        folder=folder, port=port, nodes="\n".join(lines), names=",".join(names)
    )
    (folder / "slurm.conf").write_text(text)
    (folder / "state").mkdir()
    cluster = SlurmCluster(folder, names)
    daemons = [_start_munge(folder)]
    try:
        daemons.append(_start(folder, "slurmctld", "-D"))
        daemons += [_start(folder, "slurmd", "-D", "-N", name) for name in names]
        _wait_until_idle(cluster)
        yield cluster
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
        for daemon in daemons:
            _end(daemon)


def _start_munge(folder: Path) -> subprocess.Popen[bytes]:
    munge = folder / "munge"
    munge.mkdir(mode=0o755)
    key = munge / "key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o400)
    options = [
        f"--{name}={munge / name}" for name in ("socket", "pid-file", "log-file", "seed-file")
    ]
    command = ["munged", "--foreground", "--force", f"--key-file={key}", *options]
    with (folder / "munged.log").open("wb") as log:
        daemon = subprocess.Popen(
            command, env={**os.environ, "PATH": _path()}, stdout=log, stderr=log
        )
    end_s = time.monotonic() + 60
    while not (munge / "socket").exists():
        if daemon.poll() is not None or time.monotonic() > end_s:
            raise DidNotStart(f"munged: {(folder / 'munged.log').read_text()}")
        time.sleep(0.05)
    return daemon


def _start(folder: Path, program: str, *options: str) -> subprocess.Popen[bytes]:
    with (folder / f"{program}{options[-1]}.out").open("wb") as log:
        return subprocess.Popen(
            [program, *options, "-f", str(folder / "slurm.conf")],
            env={**os.environ, "PATH": _path()},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def _wait_until_idle(cluster: SlurmCluster) -> None:
    end_s = time.monotonic() + 120
    while True:
        try:
            states = cluster.run("sinfo", "--noheader", "--Node", "--format=%t").split()
        except subprocess.SubprocessError:
            states = []
        if states == ["idle", "idle"]:
            return
        if time.monotonic() > end_s:
            raise DidNotStart(f"the nodes are {states}; see {cluster.folder}")
        time.sleep(0.2)


def _end(daemon: subprocess.Popen[bytes]) -> None:
    try:
        daemon.wait(15)
    except subprocess.TimeoutExpired:
        daemon.kill()
        daemon.wait()


def _free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now; Slurm's daemons must know each other's before they
    start.
    """
    held = [socket.socket() for _ in range(count)]
    for one in held:
        one.bind(("127.0.0.1", 0))
    ports = [int(one.getsockname()[1]) for one in held]
    for one in held:
        one.close()
    return ports
