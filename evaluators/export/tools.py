"""What recipes are exported to: the tools, which they are imported from too, and batch systems.

A batch script trains by frontrunner's own trainer: torchrun on every node of a Slurm or PBS job. It holds the recipe
file. On the first node it writes the job that the ranks read; the working folder has to be one that all nodes see.
"""

from __future__ import annotations

from collections.abc import Sequence

from frontrunner.evaluators.export.accelerate import Accelerate
from frontrunner.evaluators.export.base import END_OF_FILE, Tool, comments, launch_of, why_no_launch
from frontrunner.evaluators.export.deepspeed import DeepSpeed
from frontrunner.evaluators.export.megatron import MegatronBridge, MegatronDeepSpeed, MegatronLM
from frontrunner.evaluators.export.nanotron import Nanotron
from frontrunner.evaluators.export.torchtitan import Torchtitan
from frontrunner.spaces.document import recipe_id
from frontrunner.spaces.errors import InvalidInput, bad_value, did_you_mean
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import Recipe

KINDS = (MegatronLM, MegatronDeepSpeed, DeepSpeed, MegatronBridge, Torchtitan, Nanotron, Accelerate)
TOOLS: dict[str, Tool] = {kind.name: kind() for kind in KINDS}
SCHEDULERS = {
    "slurm": {
        "directives": """\
#SBATCH --job-name=frontrunner-{recipe_id}
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --time=01:00:00
""",
        "gpus": "#SBATCH --gpus-per-node={per_node}\n",
        "folder": "",
        "master": 'MASTER_ADDR="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)"',
        "start": "srun --nodes {nodes} --ntasks {nodes} --ntasks-per-node 1",
        "job_id": "$SLURM_JOB_ID",
    },
    "pbs": {
        "directives": """\
#PBS -N fr-{recipe_id}
#PBS -l select={nodes}:{kind}={per_node}
#PBS -l place=scatter:excl
#PBS -l walltime=01:00:00
""",
        "gpus": "",
        "folder": 'cd "$PBS_O_WORKDIR"\n',  # PBS starts jobs in the home folder, Slurm where they were submitted
        "master": 'MASTER_ADDR="$(head -n 1 "$PBS_NODEFILE")"',
        "start": "mpiexec -n {nodes} --ppn 1",
        "job_id": "$PBS_JOBID",
    },
}
YOURS = (
    "Account, queue, time, STEPS and DATA (a file instead of the recipe's data) are yours to set; "
    "run it where python -m frontrunner.cli works on all nodes."
)
BODY = """\
{setup}set -euo pipefail
{folder}STEPS="${{STEPS:-1000}}"
FOLDER="${{FOLDER:-$PWD/frontrunner-{recipe_id}}}"

mkdir -p "$FOLDER"
cat > "$FOLDER/recipe.json" <<'{end}'
{recipe_file}{end}

{master}
export PYTHONSAFEPATH=1 OMP_NUM_THREADS="${{OMP_NUM_THREADS:-1}}"
python -m frontrunner.cli replay "$FOLDER/recipe.json" --steps "$STEPS" ${{DATA:+--data "$DATA"}} \\
  --folder "$FOLDER/run" --print-command
{start} python -m torch.distributed.run \\
  --nnodes {nodes} --nproc-per-node {per_node} \\
  --rdzv-backend c10d --rdzv-id "{job_id}" --rdzv-endpoint "$MASTER_ADDR:29500" \\
  -m frontrunner.evaluators.trainer "$FOLDER/run/job.json"
"""


def tool_named(name: str) -> Tool:
    """Return the named tool; raise `InvalidInput` for an unknown name."""
    if name not in TOOLS:
        raise bad_value("format", name, "a known tool", hint=did_you_mean(name, TOOLS))
    return TOOLS[name]


def batch_script(
    scheduler: str, problem: Problem, recipe: Recipe, header: Sequence[str], recipe_file: str, setup: Sequence[str] = ()
) -> str:
    """Return a script for sbatch or qsub, which runs the commands of `setup` first."""
    if (reason := why_no_launch(problem, recipe)) is not None:
        raise InvalidInput(f"{scheduler} cannot start this recipe: {reason}")
    if own := recipe.custom_arguments():
        what = f"{scheduler} scripts train by the built-in trainer, which does not take {' '.join(own)}"
        raise InvalidInput(what, hint="export it to the trainer's own arguments: --to megatron-lm")
    (nodes, per_node), has_gpus = launch_of(problem, recipe), problem.cluster.backend != "cpu"
    figures = {"nodes": nodes, "per_node": per_node, "recipe_id": recipe_id(problem, recipe)}
    figures["kind"] = "ngpus" if has_gpus else "ncpus"
    words = {name: text.format(**figures) for name, text in SCHEDULERS[scheduler].items()}
    directives = words["directives"] + (words["gpus"] if has_gpus else "")
    commands = "".join(f"{command}\n" for command in setup)
    body = BODY.format(**figures, **words, setup=commands, end=END_OF_FILE, recipe_file=recipe_file)
    return f"#!/bin/bash\n{directives}{comments((*header, YOURS))}\n{body}"
