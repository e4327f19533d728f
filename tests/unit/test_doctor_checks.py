"""Doctor's judgements, over facts of machines that are not at hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest
from packaging.requirements import Requirement

from frontrunner.evaluators.diagnostics.doctor.check import Check, Needs, Status, run_checks
from frontrunner.evaluators.diagnostics.doctor.machine import (
    Accelerators,
    Limits,
    Package,
    Torch,
    check_collectives,
    check_devices,
    check_limits,
    check_needed_devices,
    check_packages,
    check_tools,
    check_torch,
    check_trainer,
    check_versions,
    gather_accelerators,
)
from frontrunner.evaluators.diagnostics.doctor.site import (
    Disk,
    Fabric,
    Mount,
    check_disk,
    check_fabric,
    check_host,
    check_job,
    check_ray,
    check_schedulers,
    gather_disk,
    mount_of,
)
from frontrunner.evaluators.nodes.environment import job_environment
from frontrunner.evaluators.nodes.settings import DispatchSettings, NodeSource
from frontrunner.spaces.errors import installing

GIB = 2**30
NOTHING_NEEDED = Needs(store_path=None, run_folder=Path("runs"))
MOUNTS = [
    Mount(PurePosixPath(folder), kind)
    for folder, kind in {
        "/": "ext4",
        "/ccs/home": "nfs4",
        "/lustre/orion": "lustre",
        "/tmp": "tmpfs",
    }.items()
]


def statuses(checks) -> list[tuple[str, str]]:
    return [(check.name, check.status.value) for check in checks]


def worst(checks) -> Status:
    return max((check.status for check in checks), key=list(Status).index)


@pytest.mark.parametrize(
    ("path", "kind", "is_network"),
    [
        ("/home/me/store.db", "ext4", False),
        ("/ccs/home/me/store.db", "nfs4", True),
        ("/ccs/homework/store.db", "ext4", False),
        ("/lustre/orion", "lustre", True),
        ("/tmp/x", "tmpfs", False),
    ],
)
def test_a_path_lies_on_the_deepest_mount_above_it(path, kind, is_network):
    found = mount_of(PurePosixPath(path), MOUNTS)
    assert found is not None
    assert (found.kind, found.place == "network") == (kind, is_network)


def test_of_two_mounts_on_one_folder_the_later_hides_the_earlier():
    found = mount_of(
        PurePosixPath("/a/b"), [Mount(PurePosixPath("/a"), kind) for kind in ("ext4", "lustre")]
    )
    assert found is not None
    assert found.kind == "lustre"


def disk(kind: str, free_gib: float = 100.0, *, writable: bool = True) -> Disk:
    mount = Mount(PurePosixPath("/scratch"), kind)
    return Disk(path=Path("/scratch/s.db"), folder=Path("/scratch"), mount=mount,
        free_bytes=int(free_gib * GIB),
                is_writable=writable)  # fmt: skip


def test_a_store_on_a_network_file_system_is_a_problem_with_a_remedy():
    found = list(check_disk("store", disk("lustre")))
    assert statuses(found) == [("store", "problem"), ("store's room", "ok")]
    assert "on lustre at /scratch" in found[0].found
    assert found[0].remedy is not None
    assert "postgresql://" in found[0].remedy
    assert worst(check_disk("store", disk("ext4"))) is Status.OK
    assert worst(check_disk("store", disk("tmpfs"))) is Status.WARNING


def test_run_folders_must_be_shared_where_there_are_several_nodes():
    assert worst(check_disk("run folder", disk("lustre"), nodes=8)) is Status.OK
    assert worst(check_disk("run folder", disk("xfs"), nodes=1)) is Status.OK
    assert worst(check_disk("run folder", disk("xfs"), nodes=8)) is Status.PROBLEM
    assert (
        worst(check_disk("run folder", disk("lustre", writable=False), nodes=8)) is Status.PROBLEM
    )


@pytest.mark.parametrize(("free_gib", "status"), [(0.05, "problem"), (0.5, "warning"), (5, "ok")])
def test_room_for_a_store(free_gib, status):
    assert statuses(check_disk("store", disk("ext4", free_gib)))[-1] == ("store's room", status)


def test_offload_to_a_network_file_system_is_a_warning():
    assert worst(check_disk("offload", disk("lustre"))) is Status.WARNING
    assert worst(check_disk("offload", disk("xfs"))) is Status.OK


def test_a_folder_that_is_not_there_yet_is_judged_by_the_one_above(tmp_path: Path):
    found = gather_disk(tmp_path / "a" / "b")
    assert (found.folder, found.is_writable) == (tmp_path, True)
    assert found.free_bytes > 0


CUDA_WORDS = {
    "version": "2.13.0+cu130", "cuda": "13.0", "hip": None, "xpu": None, "device_error": None,
    "nccl": "2.29.3",
    "devices": [{"name": "NVIDIA A100-SXM4-40GB", "memory_bytes": 42 * 10**9}] * 4,
    "collectives": ["gloo", "nccl"],
}  # fmt: skip
CUDA = Torch(**CUDA_WORDS)
CPU = replace(CUDA, cuda=None, nccl=None, devices=(), collectives=["gloo"])
ROCM = replace(CUDA, cuda=None, hip="6.2.4")
NO_SYSTEM, NVIDIA = (
    Accelerators(backend=None, driver=None),
    Accelerators(backend="cuda", driver="NVRM version: 580.82"),
)


def test_torch_as_its_answer_says():
    assert CUDA.platform == ("cuda", "13.0")
    assert ROCM.platform == ("rocm", "6.2.4")
    assert replace(CUDA, cuda=None, xpu="20250101").platform[0] == "xpu"
    assert worst(check_torch(CUDA, NVIDIA)) is Status.OK
    assert worst(check_torch(Torch(error="no module named torch"), NVIDIA)) is Status.PROBLEM


def test_a_build_of_torch_that_cannot_use_the_devices_is_a_problem():
    (found,) = check_torch(CPU, NVIDIA)
    assert found.status is Status.PROBLEM
    assert "built for cpu: it cannot use the NVIDIA devices" in found.found
    assert "a CUDA build" in (found.remedy or "")


def test_devices_that_torch_does_not_see_are_a_problem_with_its_own_words():
    blind = replace(CUDA, devices=(), device_error="CUDA driver version is insufficient")
    found, driver = check_devices(blind, NVIDIA)
    assert found.status is Status.PROBLEM
    assert (driver.status, driver.found) == (Status.OK, "NVRM version: 580.82")
    assert found.found.endswith("devices: CUDA driver version is insufficient")
    assert worst(check_devices(CPU, NO_SYSTEM)) is Status.NOTE


def test_devices_of_two_kinds_are_a_warning():
    mixed = replace(CUDA, devices=(*CUDA.devices, {"name": "NVIDIA T4", "memory_bytes": 16 * GIB}))
    found, _ = check_devices(mixed, NVIDIA)
    assert found.status is Status.WARNING
    assert found.found.startswith("4 x NVIDIA A100-SXM4-40GB, 39.1 GiB; 1 x NVIDIA T4")


def test_the_collective_library_is_the_platform_s():
    (found,) = check_collectives(CUDA)
    assert found.found == "NCCL 2.29.3, by torch's nccl"
    (found,) = check_collectives(ROCM)
    assert found.found == "RCCL 2.29.3, by torch's nccl"
    assert (
        worst(check_collectives(replace(CUDA, cuda=None, xpu="2025"))) is Status.PROBLEM
    )  # no xccl in it


@pytest.mark.parametrize(
    ("backend", "devices", "torch", "status"),
    [
        ("cuda", 4, CUDA, Status.OK), ("cuda", 8, CUDA, Status.PROBLEM),
        ("rocm", 8, CUDA, Status.PROBLEM),
        ("cuda", 4, CPU, Status.PROBLEM), ("cpu", 4, CUDA, Status.OK),
        ("cpu", 64, CPU, Status.WARNING),
    ],
)  # fmt: skip
def test_a_campaign_s_cluster_must_be_of_this_machine_s_kind(backend, devices, torch, status):
    wanted = replace(NOTHING_NEEDED, backend=backend, devices_per_node=devices)
    (found,) = check_needed_devices(torch, wanted, 4)
    assert found.status is status
    (found,) = check_needed_devices(
        torch, replace(wanted, scheduler="slurm"), 4
    )  # its nodes are elsewhere
    assert found.status is (Status.OK if status is Status.OK else Status.NOTE)


def test_accelerators_are_seen_by_their_device_files(tmp_path: Path):
    def made(path: str, text: str = "") -> None:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)

    assert gather_accelerators(tmp_path) == Accelerators(backend=None, driver=None)
    made("dev/dri/renderD128")
    made("sys/class/drm/renderD128/device/vendor", "0x1002\n")  # a graphics card of another maker
    assert gather_accelerators(tmp_path).backend is None
    made("sys/class/drm/renderD129/device/vendor", "0x8086\n")
    made("sys/module/i915/version", "1.25.3\n")
    assert gather_accelerators(tmp_path) == Accelerators(backend="xpu", driver="1.25.3")
    made("dev/kfd")
    made("sys/module/amdgpu/version", "6.8.5\n")
    assert gather_accelerators(tmp_path) == Accelerators(backend="rocm", driver="6.8.5")
    made("dev/nvidia0")
    made("proc/driver/nvidia/version", "NVRM version: 580\nGCC version: 12\n")
    assert gather_accelerators(tmp_path) == Accelerators(backend="cuda", driver="NVRM version: 580")


def package(line: str, installed: str | None, extra: str | None = None) -> Package:
    return Package(Requirement(line), installed, extra)


def test_packages_out_of_range_are_problems_and_extras_a_note():
    found = list(
        check_packages(
            [package("optuna>=5.0,<6", "4.9.0"), package("torch>=2.11", None),
                package("numpy>=1.26", "2.4.6"),
             package("deepspeed>=0.19", None, "deepspeed")],
            needed=(),
        )
    )  # fmt: skip
    assert statuses(found) == [("optuna", "problem"), ("torch", "problem"), ("extras", "note")]
    assert found[0].found == "optuna is 4.9.0: expected optuna<6,>=5.0"
    assert found[1].remedy == installing("torch>=2.11")


def test_a_package_that_the_campaign_needs_must_be_installed():
    parsl = package("parsl>=2026.10", None, "hpc")
    (found,) = check_packages([parsl], needed=("parsl",))
    assert (found.status, found.remedy) == (Status.PROBLEM, installing("frontrunner[hpc]"))
    assert (
        worst(check_packages([parsl._replace(installed="2026.10.12")], needed=("parsl",)))
        is Status.OK
    )


RAY_SOURCE = NodeSource(
    backend="ray", nodes=2, allocations=1, launcher="none",
    settings=DispatchSettings(backend="ray"),
    node_resources={"GPU": 8.0},
)  # fmt: skip
OURS = {"frontrunner": "0.1.0", "ray": "2.60.0", "torch": "2.13.0"}


def ray_node(gpus: float, versions: dict[str, str] | str = OURS) -> dict[str, object]:
    return {"resources": {"CPU": 64.0, "GPU": gpus}, "versions": versions}


def test_a_ray_cluster_has_enough_nodes_with_the_drivers_versions():
    fine = {
        "versions": OURS,
        "nodes": {"a": ray_node(8), "b": ray_node(8), "head": ray_node(0, "no frontrunner")},
    }
    assert statuses(check_ray(RAY_SOURCE, fine)) == [("ray", "ok")]
    small = {"versions": OURS, "nodes": {"a": ray_node(8), "b": ray_node(4)}}
    assert statuses(check_ray(RAY_SOURCE, small)) == [("ray", "warning")], (
        "an autoscaler may add the other"
    )
    others = {
        "a": ray_node(8, OURS | {"torch": "2.12.0"}),
        "b": ray_node(8, "No module named 'frontrunner'"),
    }
    found = list(check_ray(RAY_SOURCE, {"versions": OURS, "nodes": others}))
    assert statuses(found) == [("ray", "ok"), ("ray node", "problem"), ("ray node", "problem")]
    assert "torch 2.12.0; the driver" in found[1].found
    assert statuses(check_ray(RAY_SOURCE, "nothing responds there")) == [("ray", "problem")]


def test_versions_of_python_and_sqlite():
    assert worst(check_versions((3, 11, 0), (3, 35, 0))) is Status.OK
    assert statuses(check_versions((3, 10, 9), (3, 34, 1))) == [
        ("python", "problem"),
        ("sqlite", "problem"),
    ]


def test_a_compiler_is_a_note_unless_the_campaign_compiles():
    ninja, compiler = "/usr/bin/ninja", "/usr/bin/c++"
    assert worst(check_tools(None, ninja, NOTHING_NEEDED)) is Status.NOTE
    assert worst(check_tools(None, ninja, replace(NOTHING_NEEDED, compiles=True))) is Status.PROBLEM
    assert worst(check_tools(compiler, None, replace(NOTHING_NEEDED, compiles=True))) is Status.NOTE
    assert (
        worst(check_tools(compiler, None, replace(NOTHING_NEEDED, disk_folder=Path("/nvme"))))
        is Status.PROBLEM
    )


def test_host_names():
    assert worst(check_host("n1", ("10.0.0.7",), "")) is Status.OK
    assert worst(check_host("n1", ("127.0.1.1",), "")) is Status.NOTE
    assert worst(check_host("n1", (), "Name or service not known")) is Status.PROBLEM


def test_slingshot_without_plug_in_or_settings_is_warned_of():
    bare = Fabric(kinds=("Slingshot",), cards=4, plugin=None, environment={})
    assert statuses(check_fabric(bare, "rocm")) == [
        ("fabric", "ok"), ("plug-in", "warning"), ("settings", "warning"), ("settings", "warning"),
    ]  # fmt: skip
    settings = {"FI_MR_CACHE_MONITOR": "kdreg2", "FI_CXI_DEFAULT_CQ_SIZE": "131072"}
    assert (
        worst(check_fabric(bare._replace(plugin="/p/librccl-net.so", environment=settings), "rocm"))
        is Status.OK
    )
    assert worst(check_fabric(bare, "xpu")) is Status.OK  # oneCCL goes through MPI there
    assert list(check_fabric(Fabric(()), "cuda")) == []


def judged(
    limits: Limits, *, has_fabric: bool = True, has_devices: bool = True
) -> dict[str, Check]:
    return {
        check.name: check
        for check in check_limits(limits, has_fabric=has_fabric, has_devices=has_devices)
    }


def test_limits():
    wide = Limits(
        512 * GIB, 500 * GIB, {"memory.max": 4 * GIB, "ulimit -v": 2**62}, shared_bytes=8 * GIB
    )
    found = judged(wide)
    assert {
        name: check.status for name, check in found.items() if check.status is not Status.OK
    } == {"memory": Status.NOTE}
    assert found["memory"].found == "512.0 GiB, 500.0 GiB free; at most 4.0 GiB by memory.max"
    narrow = wide._replace(
        open_files=1024, most_open_files=524288, locked_bytes=65536, shared_bytes=64 * 2**20
    )
    found = judged(narrow)
    assert (found["open files"].status, found["open files"].remedy) == (
        Status.WARNING,
        "ulimit -n 4096",
    )
    assert found["locked memory"].status is found["shared memory"].status is Status.WARNING
    found = judged(narrow, has_fabric=False, has_devices=False)
    assert found["locked memory"].status is found["shared memory"].status is Status.OK


def test_the_job_and_its_scheduler():
    cores = {"backend": "cpu", "device": "a processor", "devices_per_node": 4}
    slurm = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-6]"}
    (found,) = check_job(job_environment(slurm, cores), NOTHING_NEEDED)
    assert (found.status, found.found) == (Status.OK, "slurm job 7: 6 nodes, n1, n2, n3, n4, ...")
    assert (
        worst(check_job(job_environment(slurm, cores), replace(NOTHING_NEEDED, nodes=8)))
        is Status.WARNING
    )
    blind = job_environment(slurm | {"SLURM_GPUS_ON_NODE": "8"}, cores)
    assert statuses(check_job(blind, NOTHING_NEEDED)) == [
        ("allocation", "ok"),
        ("devices", "problem"),
    ]
    slurm_here = {"slurm": "slurm 24.05"}
    assert worst(check_schedulers({}, None)) is Status.NOTE
    assert worst(check_schedulers(slurm_here, "slurm")) is Status.OK
    found, _ = check_schedulers(slurm_here, "pbs")
    assert (found.status, found.found) == (
        Status.PROBLEM,
        "the campaign requests nodes from pbs, and qsub is not on PATH",
    )


def test_a_check_that_fails_to_look_says_so_and_the_others_are_made():
    def broken() -> list[Check]:
        raise OSError("the device is on fire\nand more")

    found = run_checks([("s", "broken", broken), ("s", "fine", lambda: [Check("fine", "well")])])
    assert statuses(found) == [("broken", "warning"), ("fine", "ok")]
    assert found[0].found == "could not be checked: OSError: the device is on fire"


def test_a_trainer_that_was_never_run_is_a_warning() -> None:
    (never,) = check_trainer("megatron-lm")
    assert (never.status, never.found) == (
        Status.WARNING,
        "megatron-lm was never run by the project: it needs a GPU",
    )
    (ran,) = check_trainer("torchtitan")
    assert (ran.status, ran.remedy) == (Status.OK, None)
    assert list(check_trainer(None)) == []
