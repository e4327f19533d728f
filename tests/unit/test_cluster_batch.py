"""What batch systems are asked for: the submit scripts that follow from [dispatch], and the scripts
of exports.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from frontrunner.api import launch
from frontrunner.evaluators.nodes.backends import node_source
from frontrunner.evaluators.nodes.batch import UNIQUE_PBS_NODES, make_provider
from frontrunner.evaluators.nodes.settings import DispatchSettings, NodeSource
from frontrunner.exchange import exported
from frontrunner.spaces.errors import InvalidInput
from frontrunner.store import LocalStore
from support.campaigns import spec_of, tiny, write_toml

ANSWERS = {"sbatch": "Submitted batch job 7", "qsub": "7.pbs"}

SLURM = """\
#!/bin/bash
#SBATCH --job-name=name.TIME
#SBATCH --output=FOLDER/name.TIME.stdout
#SBATCH --error=FOLDER/name.TIME.stderr
#SBATCH --nodes=4
#SBATCH --time=90
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
#SBATCH --partition=batch
#SBATCH --account=ABC123
#SBATCH --qos=debug
#SBATCH --constraint=nvme&gpu
#SBATCH --cpus-per-task=56
module load rocm
source env/bin/activate
export PARSL_CORES=56
export JOBNAME="name.TIME"
COMMAND
"""
PBS = f"""\
#!/bin/bash
#PBS -S /bin/bash
#PBS -N name.TIME
#PBS -m n
#PBS -l walltime=01:30:00
#PBS -l select=4:ncpus=32:ngpus=4
#PBS -o FOLDER/name.TIME.stdout
#PBS -e FOLDER/name.TIME.stderr
#PBS -l filesystems=home:eagle
module use /soft/modulefiles
{UNIQUE_PBS_NODES}
export JOBNAME="name.TIME"
COMMAND
"""
REQUESTS = {
    "slurm": (
        {
            "queue": "batch",
            "account": "ABC123",
            "qos": "debug",
            "constraint": "nvme&gpu",
            "processors_per_node": 56,
            "scheduler_options": ["#SBATCH --gpus-per-node=8"],
            "worker_init": ["module load rocm", "source env/bin/activate"],
        },
        SLURM,
    ),
    "pbs": (
        {
            "queue": "prod",
            "account": "ABC123",
            "processors_per_node": 32,
            "select_options": "ngpus=4",
            "scheduler_options": ["#PBS -l filesystems=home:eagle"],
            "worker_init": ["module use /soft/modulefiles"],
        },
        PBS,
    ),
}


def source_of(scheduler: str, keys: dict[str, object]) -> NodeSource:
    asked = {
        "backend": "parsl",
        "scheduler": scheduler,
        "walltime": "01:30:00",
        "nodes_per_allocation": 4,
        **keys,
    }
    spec = spec_of(tiny(cluster={"nodes": 4, "devices_per_node": 1}, dispatch=asked))
    found = node_source(spec.dispatch, spec.problem.cluster)
    assert found is not None
    return found


@pytest.mark.parametrize("scheduler", REQUESTS)
def test_a_submit_script_holds_what_the_campaign_asks_for(
    scheduler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, answer in ANSWERS.items():
        command = tmp_path / name
        command.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/arguments\necho "{answer}"\n')
        command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    keys, expected = REQUESTS[scheduler]
    provider = make_provider(source_of(scheduler, keys), tmp_path)
    assert provider.submit("COMMAND", 1, "name") in ("7", "7.pbs")
    arguments = (tmp_path / "arguments").read_text().split()
    text = Path(arguments[-1]).read_text().replace(str(tmp_path / "submit"), "FOLDER")
    lines = [
        line for line in re.sub(r"name\.[\d.]+\d", "name.TIME", text).splitlines() if line.strip()
    ]
    assert lines == expected.splitlines()
    if scheduler == "pbs":
        assert arguments[:-1] == ["-q", "prod", "-A", "ABC123"]


def test_settings_are_kept_with_the_campaign() -> None:
    keys, _ = REQUESTS["slurm"]
    source = source_of("slurm", keys)
    assert isinstance(source.settings, DispatchSettings)
    assert (source.launcher, source.settings.walltime_s, source.nodes, source.allocations) == (
        "srun",
        5400.0,
        4,
        1,
    )


# A campaign's own script: its driver ends with a status, and the script is submitted again, or is
# not.
AGAIN = {
    "slurm": "scontrol requeue 12",
    "pbs": "qsub -v SCRIPT=drive.pbs.sh,STARTS={},MOST=2,STORE= drive.pbs.sh",
}
STARTS = {"slurm": "SLURM_RESTART_COUNT", "pbs": "STARTS"}


def drive(folder: Path, scheduler: str, *, status: int, starts: int) -> tuple[list[str], str]:
    """Run a campaign's script whose driver ends with `status`; return the commands that it runs,
    and its stderr.
    """
    script = f"drive.{scheduler}.sh"
    (folder / script).write_text(exported(LocalStore(), str(tiny_file(folder)), to=scheduler))
    for name in ("python", "scontrol", "qsub", "sleep"):
        code = status if name == "python" else 0
        (folder / name).write_text(f'#!/bin/sh\necho {name} "$@" >> {folder}/ran\nexit {code}\n')
        (folder / name).chmod(0o755)
    variables = {
        "PATH": f"{folder}:{os.defpath}",
        "SLURM_JOB_ID": "12",
        "PBS_O_WORKDIR": str(folder),
        "MOST": "2",
    }
    variables[STARTS[scheduler]] = str(starts)
    done = subprocess.run(
        ["bash", script],
        cwd=folder,
        env=variables,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == status
    ran = (folder / "ran").read_text().splitlines()
    assert ran[0] == f"python -m frontrunner.cli launch {folder}/drive.toml --or-resume"
    return [line for line in ran[1:] if not line.startswith("sleep")], done.stderr


def tiny_file(folder: Path, **sections: dict[str, object]) -> Path:
    return write_toml(folder / "drive.toml", tiny(**sections) | {"name": "drive"})


@pytest.mark.parametrize("scheduler", AGAIN)
def test_a_driver_whose_job_ends_is_submitted_again_so_often_at_most(
    scheduler: str, tmp_path: Path
) -> None:
    assert drive(tmp_path, scheduler, status=75, starts=1) == ([AGAIN[scheduler].format(2)], "")
    (tmp_path / "ran").unlink()
    ran, said = drive(tmp_path, scheduler, status=75, starts=2)
    assert ran == []
    assert "not submitted again: this was submission 3, and MOST=2" in said


@pytest.mark.parametrize("status", [0, 2, 6, 143])
def test_a_driver_that_ends_otherwise_is_not_submitted_again(status: int, tmp_path: Path) -> None:
    assert drive(tmp_path, "slurm", status=status, starts=0) == ([], "")


@pytest.mark.parametrize("scheduler", ["slurm", "pbs"])
def test_the_job_of_a_driver_that_requests_nodes_is_small(scheduler: str, tmp_path: Path) -> None:
    asked = {
        "backend": "parsl",
        "scheduler": scheduler,
        "walltime": "01:00:00",
        "account": "ABC",
        "queue": "long",
    }
    accelerated = {"nodes": 4, "backend": "cuda", "devices_per_node": 8}
    file = str(tiny_file(tmp_path, cluster=accelerated, dispatch=asked))
    head = {
        line
        for line in exported(LocalStore(), file, to=scheduler).splitlines()
        if line.startswith(("#S", "#P"))
    }
    wanted = {
        "slurm": {"#SBATCH --nodes=1", "#SBATCH --account=ABC", "#SBATCH --partition=long"},
        "pbs": {"#PBS -l select=1:ncpus=2", "#PBS -A ABC", "#PBS -q long"},
    }
    assert wanted[scheduler] <= head
    assert not [line for line in head if "gpu" in line or "excl" in line]
    other = {"slurm": "pbs", "pbs": "slurm"}[scheduler]
    with pytest.raises(InvalidInput, match=f"expected {other}, which the driver's own job is for"):
        exported(LocalStore(), file, to=other)


def test_the_job_of_a_driver_that_holds_its_nodes_has_all_of_them(tmp_path: Path) -> None:
    file = tiny_file(tmp_path, cluster={"nodes": 4, "backend": "cuda", "devices_per_node": 8})
    head = exported(LocalStore(), str(file), to="slurm").splitlines()
    assert {"#SBATCH --nodes=4", "#SBATCH --gpus-per-node=8", "#SBATCH --exclusive"} <= set(head)
    head = exported(LocalStore(), str(file), to="pbs").splitlines()
    assert {"#PBS -l select=4:ngpus=8", "#PBS -l place=scatter:excl"} <= set(head)


def test_the_job_of_a_driver_without_probes_is_small(tmp_path: Path) -> None:
    accelerated = {"nodes": 4, "backend": "cuda", "devices_per_node": 8}
    file = write_toml(
        tmp_path / "drive.toml",
        tiny(cluster=accelerated, evaluator="simulated") | {"name": "drive"},
    )
    head = [
        line
        for line in exported(LocalStore(), str(file), to="slurm").splitlines()
        if line.startswith("#SBATCH")
    ]
    assert "#SBATCH --nodes=1" in head
    assert not [line for line in head if "gpu" in line or "exclusive" in line]


def test_the_name_of_a_campaign_is_no_recipe_and_its_file_is_named(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path / "store.db"))
    file = write_toml(
        tmp_path / "drive.toml",
        tiny(evaluator="simulated", budget={"probes": 1}) | {"name": "drive"},
    )
    launch(str(file), store=store.url)
    with pytest.raises(InvalidInput, match="drive is a campaign, not a recipe") as refused:
        exported(store, "drive", to="slurm")
    assert "the campaign's file" in str(refused.value.hint)
