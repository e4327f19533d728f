"""A real Ray cluster on one machine, on loopback; as a program, the process that starts it and ends
it with its stdin.

All nodes are this host: what differs is whose processes run where. Ray is imported by the program
alone.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from frontrunner.evaluators.nodes.child_processes import HOST_TAG
from frontrunner.evaluators.nodes.ray_guard import PROGRAM as GUARD
from frontrunner.results.process_identity import machine_id
from support.campaigns import marked
from support.starting import DidNotStart, retried

ADDRESS = "127.0.0.2"
"""Ray replaces 127.0.0.1 by the host's other address."""
KIND = "kind-b"
"""A resource of the nodes beside the head."""
STORE_BYTES = 80 * 2**20


@dataclass(frozen=True)
class RayCluster:
    """A cluster under way, of nodes with one CPU each: `raylets` are their processes by Ray's node
    id.

    In `folder` are the temporary files of Ray, and of agents; `gcs` is the process that keeps the
    cluster's state.
    """

    address: str
    raylets: dict[str, int]
    folder: str = ""
    gcs: int = 0

    @property
    def head(self) -> str:
        """The node that drivers connect through."""
        return next(iter(self.raylets))

    def processes(self) -> list[psutil.Process]:
        """The fork servers and ranks on any of the nodes.

        Commands have other tags, and Ray's own workers have none of ours: Ray ends those when it
        likes.
        """
        ours = {process.pid for process in marked(HOST_TAG, machine_id())}
        return [
            process
            for pid in self.raylets.values()
            for process in marked("RAY_RAYLET_PID", str(pid))
            if process.pid in ours
        ]

    def agents(self) -> list[psutil.Process]:
        """The agents on any of the nodes, and their guards, also after the node itself has ended.

        Both write to a log in the folder. Ray replaces an agent's environment by its title.
        """
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                words = " ".join(process.cmdline())
                is_one = words.startswith("ray::RayAgent") or f" {GUARD} " in words
                logs = [file.path for file in process.open_files()] if is_one else []
                if any(path.startswith(self.folder) for path in logs):
                    found.append(process)
        return found

    def files(self) -> list[Path]:
        """The folders of agents."""
        return list(Path(self.folder).glob("frontrunner-*"))

    def left(self) -> list[psutil.Process | Path]:
        """What a driver that is gone should not have left on the nodes."""
        return [*self.agents(), *self.processes(), *self.files()]

    def kill(self, node_id: str) -> None:
        """End a node as a machine ends that loses its power."""
        raylet = psutil.Process(self.raylets[node_id])
        for process in [raylet, *raylet.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):
                process.kill()

    def kill_head(self) -> None:
        """End the head, and with it what keeps the cluster's state."""
        psutil.Process(self.gcs).kill()
        self.kill(self.head)


def ray_cluster(nodes: int, port: int = 0) -> AbstractContextManager[RayCluster]:
    """Start a cluster, at a port if one is named, and end it."""
    return retried("Ray", lambda _: _cluster(nodes, port))


@contextmanager
def _cluster(nodes: int, port: int) -> Iterator[RayCluster]:
    command = [sys.executable, "-P", "-m", "support.ray_cluster", str(nodes), str(port)]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        line = next((line for line in process.stdout if line.startswith("{")), "")
        if not line:
            raise DidNotStart(f"its program ended with status {process.wait()}")
        try:
            yield RayCluster(**json.loads(line))
        finally:
            process.stdin.close()
            process.stdout.read()


def main() -> None:
    import ray
    from ray.cluster_utils import Cluster

    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # short: sockets are in it
    os.environ["TMPDIR"] = folder
    Path(folder, "ray").mkdir()  # where Ray writes its address
    options = {"num_cpus": 1, "object_store_memory": STORE_BYTES, "node_ip_address": ADDRESS}
    head: dict[str, Any] = {"include_dashboard": False, "temp_dir": folder}
    head |= {"gcs_server_port": int(sys.argv[2])} if sys.argv[2] != "0" else {}
    cluster = Cluster(initialize_head=True, connect=False, head_node_args=options | head)
    added = [
        cluster.add_node(wait=False, **options, resources={KIND: 1})
        for _ in range(int(sys.argv[1]) - 1)
    ]
    cluster.wait_for_nodes()
    raylets = {
        node.node_id: node.all_processes["raylet"][0].process.pid
        for node in (cluster.head_node, *added)
    }
    gcs = cluster.head_node.all_processes["gcs_server"][0].process.pid
    found = {"address": cluster.address, "raylets": raylets, "folder": folder, "gcs": gcs}
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()
    sys.stdin.read()
    with suppress(Exception):  # nodes that a test has killed
        cluster.shutdown()
    ray.shutdown()
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
