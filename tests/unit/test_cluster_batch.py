"""What batch systems are asked for: the submit scripts that follow from [dispatch], line by line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from frontrunner.evaluators.cluster.batch import LSF_NODES, UNIQUE_PBS_NODES, make_provider
from frontrunner.evaluators.cluster.settings import DispatchSettings, NodeSource, node_source
from support.campaigns import spec_of, tiny

ANSWERS = {"sbatch": "Submitted batch job 7", "qsub": "7.pbs", "bsub": "Job <7> is submitted to queue <batch>."}

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
LSF = f"""\
#!/bin/bash
#BSUB -W 90
#BSUB -J name.TIME
#BSUB -o FOLDER/name.TIME.submit.stdout
#BSUB -e FOLDER/name.TIME.submit.stderr
#BSUB -alloc_flags smt1
#BSUB -P ABC123
#BSUB -q batch
#BSUB -nnodes 4
module load spectrum-mpi
{LSF_NODES}
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
    "lsf": (
        {
            "queue": "batch",
            "account": "ABC123",
            "scheduler_options": ["#BSUB -alloc_flags smt1"],
            "worker_init": ["module load spectrum-mpi"],
        },
        LSF,
    ),
}


def source_of(scheduler: str, keys: dict[str, object]) -> NodeSource:
    asked = {"backend": "parsl", "scheduler": scheduler, "walltime": "01:30:00", "nodes_per_allocation": 4, **keys}
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
    lines = [line for line in re.sub(r"name\.[\d.]+\d", "name.TIME", text).splitlines() if line.strip()]
    assert lines == expected.splitlines()
    if scheduler == "pbs":
        assert arguments[:-1] == ["-q", "prod", "-A", "ABC123"]


def test_settings_are_kept_with_the_campaign() -> None:
    keys, _ = REQUESTS["slurm"]
    source = source_of("slurm", keys)
    assert isinstance(source.settings, DispatchSettings)
    assert (source.launcher, source.settings.walltime_s, source.nodes, source.allocations) == ("srun", 5400.0, 4, 1)
