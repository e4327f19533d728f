"""A rank's place within its node: in everybody's words, its device, and the processors near it."""

from __future__ import annotations

import os
import sys
from multiprocessing import Pipe
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from frontrunner.evaluators.nodes.environment import launched_rank
from frontrunner.evaluators.nodes.fork_server import (
    RAISED,
    ForkRequest,
    ForkServer,
    Output,
    _run_rank,
)
from frontrunner.evaluators.trainer.rendezvous import (
    _set_allocator,
    near_cores,
    rank_device,
    set_local_rank_env,
)
from frontrunner.evaluators.trainer.telemetry import allocator_settings

PALS = {
    "PMI_RANK": "1",
    "PMI_SIZE": "2",
    "PMIX_RANK": "1",
    "PALS_LOCAL_RANKID": "0",
    "CCL_PROCESS_LAUNCHER": "pmix",
}
"""What mpiexec gives to an agent that it started as the only process of the second node."""


def test_the_launcher_s_words_for_an_agent_do_not_reach_its_ranks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "CCL_LOCAL_RANK", "CCL_LOCAL_SIZE"):
        monkeypatch.setenv(name, "stale")
    for name, value in PALS.items():
        monkeypatch.setenv(name, value)
    set_local_rank_env(7, 12)
    assert {name: os.environ[name] for name in ("CCL_PROCESS_LAUNCHER", "CCL_LOCAL_RANK",
    "CCL_LOCAL_SIZE")} == {
        "CCL_PROCESS_LAUNCHER": "none", "CCL_LOCAL_RANK": "7", "CCL_LOCAL_SIZE": "12",
    }  # fmt: skip
    told = {name: os.environ[name] for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE")}
    place = launched_rank(
        told | {"RANK": "19", "WORLD_SIZE": "24", "MASTER_ADDR": "h", "MASTER_PORT": "1"}
    )
    assert place is not None
    assert (place.local_rank, place.local_world_size) == (7, 12)


def test_fork_server_passes_the_local_world_size_of_its_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The third rank of a node with four, of eight ranks on two nodes."""
    found: dict[str, object] = {}
    entry = SimpleNamespace(run_rank=lambda job, **given: found.update(given))
    monkeypatch.setitem(
        sys.modules, "frontrunner.evaluators.trainer.entry", entry
    )  # which imports torch
    monkeypatch.setattr("frontrunner.evaluators.trainer.job.Job.from_json", lambda text: text)
    for name in (
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "CCL_PROCESS_LAUNCHER",
        "CCL_LOCAL_RANK",
        "CCL_LOCAL_SIZE",
    ):
        monkeypatch.setenv(name, "stale")
    (tmp_path / "job.json").write_text("{}")
    _run_rank(ForkRequest(token="a", folder=str(tmp_path), world_size=8, first=4, count=4), 6)
    assert (os.environ["LOCAL_RANK"], os.environ["LOCAL_WORLD_SIZE"]) == ("2", "4")
    assert found == {
        "rank": 6,
        "world_size": 8,
        "init_method": f"frontrunner-rendezvous://{tmp_path}",
        "local_rank": 2,
    }


NODES = {
    "two sockets, two devices each": (
        {"00": "0-3,8-11", "01": "0-3,8-11", "80": "4-7,12-15", "81": "4-7,12-15"},
        8,
    ),
    "one die each, and not in the order of the devices": (
        {"c1": "0-1,8-9", "c6": "4-5,12-13", "d1": "2-3,10-11"},
        8,
    ),
    "a machine that states no place": ({"00": "0-15", "01": "0-15"}, 8),
}


@pytest.fixture
def sysfs(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """The kernel's tree of a node with devices, by bus, and a network adapter; cores have two
    hardware threads.
    """
    devices, cores = NODES[request.param]
    cpus = tmp_path / "devices/system/cpu"
    for cpu in range(2 * cores):
        (cpus / f"cpu{cpu}/topology").mkdir(parents=True)
        (cpus / f"cpu{cpu}/topology/thread_siblings_list").write_text(
            f"{cpu % cores},{cpu % cores + cores}\n"
        )
    (cpus / "online").write_text(f"0-{2 * cores - 1}\n")
    adapter = {"05": next(iter(devices.values()))}
    for bus, near in (devices | adapter).items():
        place = tmp_path / f"bus/pci/devices/0000:{bus}:00.0"
        place.mkdir(parents=True)
        (place / "vendor").write_text("0x10de\n" if bus in devices else "0x15b3\n")
        (place / "device").write_text("0x2330\n" if bus in devices else "0x1021\n")
        (place / "local_cpulist").write_text(near + "\n")
    return tmp_path


def near(sysfs: Path, bus: str, allowed: set[int] | None = None, ranks: int = 4) -> set[int] | str:
    return near_cores(
        f"0000:{bus}:00.0", set(range(16)) if allowed is None else allowed, sysfs, local_ranks=ranks
    )


@pytest.mark.parametrize("sysfs", ["two sockets, two devices each"], indirect=True)
def test_devices_share_the_cores_near_them_whole(sysfs: Path) -> None:
    found = [near(sysfs, bus) for bus in ("00", "01", "80", "81")]
    assert found == [{0, 1, 8, 9}, {2, 3, 10, 11}, {4, 5, 12, 13}, {6, 7, 14, 15}]
    assert near(sysfs, "01", set(range(4)) | {8, 9, 10}) == {
        2,
        3,
        10,
    }, "of those that the rank may use"
    assert near(sysfs, "00", {0, 1, 8, 9}) == "its launcher gave it 4 of 16 already"
    why = near(sysfs, "80", {0, 1, 2, 4, 12}, ranks=8)
    assert why == "1 of its processors are near the device, which 2 devices share"


@pytest.mark.parametrize(
    "sysfs", ["one die each, and not in the order of the devices"], indirect=True
)
def test_the_nearest_die_is_the_kernel_s_not_the_number_s(sysfs: Path) -> None:
    assert [near(sysfs, bus) for bus in ("c1", "c6", "d1")] == [
        {0, 1, 8, 9},
        {4, 5, 12, 13},
        {2, 3, 10, 11},
    ]


@pytest.mark.parametrize("sysfs", ["a machine that states no place"], indirect=True)
def test_an_unknown_topology_leaves_a_rank_as_it_is(sysfs: Path, tmp_path: Path) -> None:
    assert (
        near_cores(None, set(range(16)), sysfs, local_ranks=2)
        == "torch does not state where the device is on the PCI bus"
    )
    assert "is unknown" in str(near(sysfs, "99"))
    (sysfs / "bus/pci/devices/0000:00:00.0/local_cpulist").write_text("all\n")
    assert "is unknown" in str(near(sysfs, "00"))


@pytest.mark.parametrize(
    ("visible", "local_rank", "number"),
    [(8, 5, 5), (1, 5, 0), (2, 5, 1)],
    ids=["whole node", "one device per task", "two devices per task"],
)
def test_a_rank_takes_one_of_the_devices_that_it_sees(
    monkeypatch: pytest.MonkeyPatch, visible: int, local_rank: int, number: int
) -> None:
    chosen: list[int] = []
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: visible)
    monkeypatch.setattr(torch.accelerator, "set_device_index", chosen.append)
    module = SimpleNamespace(get_device_properties=lambda device: None)
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    monkeypatch.setattr(torch, "set_num_threads", lambda number: None)
    monkeypatch.setattr(torch._C, "_accelerator_setAllocatorSettings", lambda _: None)
    assert (rank_device("cuda", local_rank), chosen) == (torch.device("cuda", number), [number])


@pytest.mark.parametrize(
    ("stated", "in_force"),
    [
        ({}, "expandable_segments:True"),
        ({"PYTORCH_ALLOC_CONF": "max_split_size_mb:512"}, "max_split_size_mb:512"),
        (
            {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
            | {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:256"},
            "max_split_size_mb:256",
        ),
        ({"PYTORCH_ALLOC_CONF": ""}, ""),
    ],
)
def test_the_allocator_of_a_rank_has_its_settings_although_torch_is_imported(
    monkeypatch: pytest.MonkeyPatch, stated: dict[str, str], in_force: str
) -> None:
    """The environment's of the recipe, too, which is set for the rank alone."""
    before = allocator_settings()
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"):
        monkeypatch.setenv(name, "")  # so that it is as it was after the test
        monkeypatch.delenv(name)
    for name, value in stated.items():
        monkeypatch.setenv(name, value)
    try:
        _set_allocator("cuda")
        assert allocator_settings() == in_force
    finally:
        torch._C._accelerator_setAllocatorSettings(before)


def test_fork_server_s_rank_leaves_the_traceback_of_what_ended_it_in_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(request: object, rank: int) -> None:
        raise RuntimeError(f"rank {rank} cannot begin")

    monkeypatch.setattr("frontrunner.evaluators.nodes.fork_server._run_rank", fail)
    here, there = Pipe()
    server, output = ForkServer(there), Output(tmp_path / "rank-3.log")
    (tmp_path / "job.json").touch()
    with os.fdopen(2, "w", closefd=False) as errors:
        monkeypatch.setattr(sys, "stderr", errors)  # which pytest has put elsewhere
        pid = os.fork()
        if pid == 0:
            server._become(ForkRequest(token="a", folder=str(tmp_path)), 3, output)
        _, status = os.waitpid(pid, 0)
        os.close(output.writer)
        output.close()
    here.close()
    there.close()
    log = (tmp_path / "rank-3.log").read_text()
    assert os.waitstatus_to_exitcode(status) == RAISED
    assert log.startswith("Traceback (most recent call last):")
    assert log.endswith("RuntimeError: rank 3 cannot begin\n")
