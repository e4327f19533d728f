"""What recipes are exported to: the tools, which they are imported from too, and batch systems.

A batch script trains by frontrunner's own trainer on the nodes of a Slurm or PBS job. It holds the recipe file, and
replays it from the job's first node; the working folder has to be one that all nodes see. If training ends with the
job's time, the script submits itself again.
"""

from __future__ import annotations

from collections.abc import Sequence

from frontrunner.evaluators.export.accelerate import Accelerate
from frontrunner.evaluators.export.base import END_OF_FILE, Tool, comments, launch_of, why_no_launch
from frontrunner.evaluators.export.deepspeed import DeepSpeed
from frontrunner.evaluators.export.megatron import MegatronBridge, MegatronDeepSpeed, MegatronLM
from frontrunner.evaluators.export.nanotron import Nanotron
from frontrunner.evaluators.export.torchtitan import Torchtitan
from frontrunner.evaluators.probe.replay import ReplayStopped
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
#SBATCH --requeue
#SBATCH --open-mode=append
""",
        "gpus": "#SBATCH --gpus-per-node={per_node}\n",
        "folder": "",
        "check": "",
        "again": 'scontrol requeue "$SLURM_JOB_ID" && sleep 300  # Slurm ends this script, and starts it again',
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
        "check": """\
SCRIPT="${{SCRIPT:-{recipe_id}.pbs.sh}}"  # where this script is, to be submitted again: qsub -v SCRIPT=PATH
if [ ! -f "$SCRIPT" ]; then echo "no script at SCRIPT=$SCRIPT, which is to be submitted again" >&2; exit 2; fi
""",
        "again": 'qsub -v "SCRIPT=$SCRIPT,STEPS=$STEPS,FOLDER=$FOLDER,DATA=${{DATA:-}}" "$SCRIPT"',
    },
}
YOURS = (
    "Account, queue, time, STEPS and DATA (a file instead of the recipe's data) are yours to set; "
    "run it where python -m frontrunner.cli works on all nodes, with Parsl (frontrunner[hpc]) for several."
)
BODY = """\
{setup}set -euo pipefail
{folder}{check}STEPS="${{STEPS:-1000}}"
FOLDER="${{FOLDER:-$PWD/frontrunner-{recipe_id}}}"

mkdir -p "$FOLDER"
cat > "$FOLDER/recipe.json" <<'{end}'
{recipe_file}{end}

export PYTHONSAFEPATH=1
status=0
python -m frontrunner.cli replay "$FOLDER/recipe.json" --steps "$STEPS" ${{DATA:+--data "$DATA"}} \\
  --folder "$FOLDER/run" || status=$?
if [ "$status" = {stopped} ]; then  # before the time was up, with a checkpoint
  {again}
fi
exit "$status"
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
    body = BODY.format(
        **figures, **words, setup=commands, end=END_OF_FILE, recipe_file=recipe_file, stopped=ReplayStopped.exit_code
    )
    return f"#!/bin/bash\n{directives}{comments((*header, YOURS))}\n{body}"
