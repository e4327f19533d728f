"""Campaigns and replays on a real Ray cluster of three nodes, through the loss of a node and of the
driver.
"""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from frontrunner.evaluators.nodes.agent import StepFolder
from frontrunner.evaluators.runs.run_folder import RunFolder
from frontrunner.results.outcome import Failure, FailureKind, Measurement
from support.campaigns import (
    frontrunner,
    marked,
    run_folders,
    started,
    steps_written,
    tiny,
    wait_for,
    wait_until_none,
    write_toml,
)
from support.ray_cluster import KIND, RayCluster, ray_cluster

PROBES = 6
"""All recipes of three kinds of recompute on one and on two nodes."""
SPACE = {
    "tensor_parallel": [1],
    "pipeline_parallel": [1],
    "micro_batch_seqs": [1, 2, 4, 8],
    "recompute": ["none", "selective", "full"],
    "devices": [1, 2],
}


@pytest.fixture
def ray() -> Iterator[RayCluster]:
    with ray_cluster(3) as made:
        yield made
        wait_until_none(made.left)


def campaign(folder: Path, ray: RayCluster, **sections: dict[str, Any]) -> str:
    base: dict[str, Any] = {
        "cluster": {"nodes": 2, "devices_per_node": 1},
        "dispatch": {"backend": "ray", "address": ray.address, "network_interface": "lo"},
        "probe": {
            "deadline_s": 300,
            "step_deadline_s": 120,
        },  # three nodes share the processors with other tests
    }
    for name, section in sections.items():
        base[name] = {**base.get(name, {}), **section}
    return write_toml(folder / "tiny.toml", tiny(**base)).name


def outcomes(folder: Path) -> dict[str, Any]:
    return {path.name: RunFolder(path).outcome() for path in run_folders(folder)}


def wait_for_stepping(folder: Path, ray: RayCluster, measured: int) -> tuple[Path, str]:
    """A run folder whose ranks step, once so many probes have been measured, and a node of it
    beside the head.
    """

    def found() -> tuple[Path, str] | None:
        if sum(isinstance(one, Measurement) for one in outcomes(folder).values()) < measured:
            return None
        begun = (path for path in run_folders(folder) if RunFolder(path).outcome() is None)
        running = [path for path in begun if 0 < steps_written(path) < 50]
        return next(
            ((path, node) for path in running for node in node_ids(path, ray) if node != ray.head),
            None,
        )

    path, node = wait_for(found)
    return Path(path), str(node)


def node_ids(path: Path, ray: RayCluster) -> list[str]:
    """The Ray nodes of a run folder's step: the names of nodes of one host end with the beginning
    of their ids.
    """
    reports = [report for report in StepFolder(path).reports() if report is not None]
    return [
        node for report in reports for node in ray.raylets if report.host.endswith(f"-{node[:8]}")
    ]


@pytest.mark.nightly
def test_a_campaign_loses_nothing_with_a_node_and_its_driver(
    tmp_path: Path, ray: RayCluster
) -> None:
    name = campaign(
        tmp_path,
        ray,
        space=SPACE | {"micro_batch_seqs": [2]},
        search={"parallel_probes": 2, "strategy": "exhaustive"},
        budget={"probes": PROBES},
        probe={"measured_steps": 60},
        dispatch={"shared_files": False, "nodes_per_allocation": 2},
    )
    with started("launch", name, cwd=tmp_path) as process:
        hit, victim = wait_for_stepping(tmp_path, ray, 1)
        ray.kill(victim)
        lost = wait_for(lambda: RunFolder(hit).outcome())
        assert isinstance(lost, Failure)
        assert lost.kind is FailureKind.LOST
        assert victim[:8] in lost.message
        cut, _ = wait_for_stepping(tmp_path, ray, 2)
        process.send_signal(signal.SIGKILL)
        process.wait()
    known = {token: found for token, found in outcomes(tmp_path).items() if found is not None}
    wait_until_none(ray.processes)
    done = frontrunner("resume", "tiny", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = outcomes(tmp_path)
    assert all(found[token] == outcome for token, outcome in known.items())
    failures = [one for one in found.values() if isinstance(one, Failure)]
    assert {one.kind for one in failures} == {FailureKind.LOST}, failures
    trials = [
        token.partition(".")[0] for token, one in found.items() if isinstance(one, Measurement)
    ]
    assert sorted(trials) == [f"{number:05d}" for number in range(1, PROBES + 1)], "each once"
    assert not isinstance(found[cut.name], Measurement), "its driver died early in it"
    assert {1, 2} <= {len(node_ids(path, ray)) for path in run_folders(tmp_path)}
    assert not list(tmp_path.glob("frontrunner-runs/tiny/0*/.*")), "no half file"


@pytest.mark.parametrize("head", ["lives", "killed"])
def test_nothing_of_a_killed_driver_is_left_on_any_node(
    head: str, tmp_path: Path, ray: RayCluster
) -> None:
    name = campaign(
        tmp_path,
        ray,
        probe={"measured_steps": 2000},
        dispatch={"shared_files": False, "resources": {KIND: 1}},  # not on the head
    )
    with started("launch", name, cwd=tmp_path) as process:
        wait_for(lambda: any(steps_written(path) for path in run_folders(tmp_path)))
        assert len(ray.agents()) == 4, "two agents and their guards"
        assert len(ray.files()) == 2
        if head == "killed":
            ray.kill_head()
        process.send_signal(signal.SIGKILL)
        process.wait()
    wait_until_none(ray.left, timeout_s=30)  # the other nodes end a minute after their head


@contextmanager
def losing_probes(node: str, ray: RayCluster) -> Iterator[None]:
    """Kill every fork server and every rank that starts on a node; its agent stays."""
    is_over = threading.Event()

    def kill() -> None:
        while not is_over.wait(0.1):
            of_node = {process.pid for process in marked("RAY_RAYLET_PID", str(ray.raylets[node]))}
            for process in ray.processes():
                if process.pid in of_node:
                    with suppress(psutil.NoSuchProcess):
                        process.kill()

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        yield
    finally:
        is_over.set()
        killer.join()


@pytest.mark.nightly
def test_a_node_that_loses_every_probe_uses_up_no_recipe(tmp_path: Path, ray: RayCluster) -> None:
    """It loses them faster than the first probe on another node is measured."""
    name = campaign(
        tmp_path,
        ray,
        space=SPACE | {"devices": [1], "micro_batch_seqs": [1, 2]},
        search={"parallel_probes": 3, "strategy": "exhaustive"},
        probe={"measured_steps": 200},
        dispatch={"shared_files": False, "nodes_per_allocation": 3},
    )
    bad = next(node for node in ray.raylets if node != ray.head)
    with losing_probes(bad, ray):
        done = frontrunner("launch", name, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    status = json.loads(frontrunner("status", "--json", cwd=tmp_path).stdout)
    assert status["trials"]["measured"] == PROBES
    (aside,) = status["nodes_aside"]
    assert aside["node"].endswith(f"-{bad[:8]}")
    assert [one["kind"] for one in aside["troubles"]] == ["lost", "lost"]
    steps = {path.name: StepFolder(path).step() for path in run_folders(tmp_path)}
    lost = [token for token, one in outcomes(tmp_path).items() if isinstance(one, Failure)]
    assert lost == [token for token, one in steps.items() if one and aside["node"] in one.hosts]
    assert len(lost) == 2


@pytest.mark.nightly
def test_a_campaign_goes_on_once_a_head_that_was_killed_is_back_and_a_request_to_end_ends_its_probe(
    tmp_path: Path,
) -> None:
    def measured() -> int:
        return sum(isinstance(one, Measurement) for one in outcomes(tmp_path).values())

    def steps() -> bool:
        return any(
            RunFolder(path).outcome() is None and steps_written(path)
            for path in run_folders(tmp_path)
        )

    with ray_cluster(1) as first:
        name = campaign(
            tmp_path,
            first,
            cluster={"nodes": 1},
            space=SPACE | {"devices": [1]},
            probe={"measured_steps": 200},
        )
        with started("launch", name, cwd=tmp_path) as process:
            wait_for(lambda: measured() and steps())
            first.kill_head()
            known = measured()
            with ray_cluster(1, int(first.address.rpartition(":")[2])) as again:
                wait_for(lambda: measured() > known and steps())
                for _ in range(2):
                    process.send_signal(signal.SIGTERM)
                    time.sleep(
                        0.2
                    )  # the first one lets the probe finish: it must still run at the second
                process.wait(600)
                wait_until_none(again.left)
    status = json.loads(frontrunner("status", "--json", cwd=tmp_path).stdout)
    assert status["campaign"]["state"] == "stopped"
    assert status["trials"]["queued"] == 1
    assert status["failures"]["lost"] >= 2, "by the head, and by the request"


def test_probes_run_on_nodes_with_the_resources_that_they_need(
    tmp_path: Path, ray: RayCluster
) -> None:
    name = campaign(
        tmp_path,
        ray,
        cluster={"nodes": 2},
        space=SPACE | {"micro_batch_seqs": [2], "recompute": ["none"], "devices": [1]},
        dispatch={"resources": {KIND: 1}},
    )
    done = frontrunner("launch", name, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    checked = frontrunner("doctor", name, "--json", cwd=tmp_path)
    (fitting,) = [
        check["found"] for check in json.loads(checked.stdout)["checks"] if check["name"] == "ray"
    ]
    assert f"2 of them with CPU 1, {KIND} 1" in fitting
    nodes = [node for path in run_folders(tmp_path) for node in node_ids(path, ray)]
    assert nodes
    assert ray.head not in nodes


def test_resume_looks_for_ray_only_where_something_is_left_to_run(tmp_path: Path) -> None:
    with ray_cluster(1) as ray:
        name = campaign(
            tmp_path,
            ray,
            cluster={"nodes": 1},
            space=SPACE | {"devices": [1]},
            budget={"probes": 1},
        )
        launched = frontrunner("launch", name, "--json", cwd=tmp_path)
        assert launched.returncode == 0, launched.stderr
    resumed = frontrunner("resume", "--json", cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    assert json.loads(resumed.stdout)["reason"] == json.loads(launched.stdout)["reason"]
    for arguments in (["--probes", "2"], []):
        refused = frontrunner("resume", *arguments, cwd=tmp_path)
        assert refused.returncode == 2
        assert f'dispatch.address = "{ray.address}": expected' in refused.stderr


@pytest.mark.parametrize("address", ["127.0.0.2:9", "auto"])
def test_a_cluster_that_is_not_there_is_named_before_anything_is_written(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.2:9")
    done = frontrunner(
        "launch", campaign(tmp_path, RayCluster(address=address, raylets={})), cwd=tmp_path
    )
    assert done.returncode == 2
    assert (
        f'dispatch.address = "{address}": expected the address of a Ray cluster; nothing responds'
        in done.stderr
    )
    assert not (tmp_path / "frontrunner.db").exists()
