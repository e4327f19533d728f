"""Batch scripts that train with a recipe by frontrunner's own trainer: torchrun on every node of a Slurm or PBS job.

The script holds the recipe file. On the first node it writes the job that the ranks read; the working folder has to be
one that all nodes see.
"""

from __future__ import annotations

from collections.abc import Sequence

from frontrunner.evaluators.export.base import END_OF_FILE, Launch, comments, launch_of, why_no_launch
from frontrunner.spaces.document import recipe_id
from frontrunner.spaces.errors import InvalidInput
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import Recipe

SCHEDULERS = ("slurm", "pbs")
PORT = 29500
YOURS = "Account, queue, time and STEPS are yours to set; run it where python -m frontrunner.cli works on all nodes."

_BODY = """\
set -euo pipefail
{start_folder}STEPS="${{STEPS:-1000}}"
FOLDER="${{FOLDER:-$PWD/frontrunner-{recipe_id}}}"

mkdir -p "$FOLDER"
cat > "$FOLDER/recipe.json" <<'{end}'
{recipe_file}{end}

{master}
export PYTHONSAFEPATH=1 OMP_NUM_THREADS="${{OMP_NUM_THREADS:-1}}"
python -m frontrunner.cli replay "$FOLDER/recipe.json" --steps "$STEPS" --folder "$FOLDER/run" --print-command
{start} python -m torch.distributed.run \\
  --nnodes {nodes} --nproc-per-node {per_node} \\
  --rdzv-backend c10d --rdzv-id "${job_id}" --rdzv-endpoint "$MASTER_ADDR:{port}" \\
  -m frontrunner.evaluators.trainer "$FOLDER/run/job.json"
"""
_MASTER = {
    "slurm": 'MASTER_ADDR="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)"',
    "pbs": 'MASTER_ADDR="$(head -n 1 "$PBS_NODEFILE")"',
}
_START = {
    "slurm": "srun --nodes {nodes} --ntasks {nodes} --ntasks-per-node 1",
    "pbs": "mpiexec -n {nodes} --ppn 1",
}
_START_FOLDER = {"slurm": "", "pbs": 'cd "$PBS_O_WORKDIR"\n'}
"""PBS starts jobs in the home folder, Slurm where they were submitted."""
_JOB_ID = {"slurm": "SLURM_JOB_ID", "pbs": "PBS_JOBID"}


def batch_script(scheduler: str, problem: Problem, recipe: Recipe, header: Sequence[str], recipe_file: str) -> str:
    """Return a script for sbatch or qsub; raise `InvalidInput` where the recipe's devices fill no equal nodes."""
    launch, reason = launch_of(problem, recipe), why_no_launch(problem, recipe)
    if launch is None:
        raise InvalidInput(f"{scheduler} cannot start this recipe: {reason}")
    identity = recipe_id(problem, recipe)
    directives = _directives(scheduler, problem, launch, identity)
    body = _BODY.format(
        recipe_id=identity,
        start_folder=_START_FOLDER[scheduler],
        end=END_OF_FILE,
        recipe_file=recipe_file,
        master=_MASTER[scheduler],
        start=_START[scheduler].format(nodes=launch.nodes),
        nodes=launch.nodes,
        per_node=launch.per_node,
        job_id=_JOB_ID[scheduler],
        port=PORT,
    )
    return "#!/bin/bash\n" + "".join(f"{line}\n" for line in directives) + comments((*header, YOURS)) + "\n" + body


def _directives(scheduler: str, problem: Problem, launch: Launch, identity: str) -> tuple[str, ...]:
    has_gpus = problem.cluster.backend != "cpu"
    if scheduler == "slurm":
        lines = [f"#SBATCH --job-name=frontrunner-{identity}", f"#SBATCH --nodes={launch.nodes}"]
        lines += ["#SBATCH --ntasks-per-node=1", "#SBATCH --exclusive", "#SBATCH --time=01:00:00"]
        return (*lines, *([f"#SBATCH --gpus-per-node={launch.per_node}"] if has_gpus else []))
    chunk = f"select={launch.nodes}" + (f":ngpus={launch.per_node}" if has_gpus else f":ncpus={launch.per_node}")
    return f"#PBS -N fr-{identity}", f"#PBS -l {chunk}", "#PBS -l place=scatter:excl", "#PBS -l walltime=01:00:00"
