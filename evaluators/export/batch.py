"""Batch scripts for Slurm and PBS: of a recipe's full training, and of a campaign's driver.

They run on the nodes of their job, in a working folder that all nodes see, and submit themselves
again if the job's time ended before they were done (`JobEnds`), so often at most. A recipe's script
holds the recipe file, and replays it by frontrunner's own trainer or by the command in the file; a
campaign's launches the campaign file, or resumes the campaign of its name.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from frontrunner.evaluators.export.base import END_OF_FILE, TrainingJob, comments
from frontrunner.evaluators.nodes.settings import DispatchSettings
from frontrunner.spaces.cluster import Cluster
from frontrunner.spaces.document import recipe_id
from frontrunner.spaces.errors import JobEnds, bad_value

_FIND_SCRIPT_OF_PBS = """\
SCRIPT="${{SCRIPT:-{job}.pbs.sh}}"  # where this script is, to be submitted again: qsub -v SCRIPT=PATH PATH
if [ ! -f "$SCRIPT" ]; then echo "no script at SCRIPT=$SCRIPT, which is to be submitted again" >&2; exit 2; fi
"""  # noqa: E501
SCHEDULERS: dict[str, dict[str, Any]] = {
    "slurm": {
        "directives": (
            """\
#SBATCH --job-name=frontrunner-{job}
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --time={walltime}
#SBATCH --requeue
#SBATCH --open-mode=append
"""
        ),
        "whole_nodes": "#SBATCH --exclusive\n",
        "gpus": "#SBATCH --gpus-per-node={per_node}\n",
        "request": {
            "account": "#SBATCH --account={}\n",
            "queue": "#SBATCH --partition={}\n",
            "qos": "#SBATCH --qos={}\n",
            "constraint": "#SBATCH --constraint={}\n",
        },
        "folder": "",
        "check": "",
        "starts": 'STARTS="${{SLURM_RESTART_COUNT:-0}}"\n',
        "again": (
            'scontrol requeue "$SLURM_JOB_ID" && sleep 300  # Slurm ends this script, and starts it'
            " again"
        ),
    },
    "pbs": {
        "directives": (
            """\
#PBS -N fr-{job}
#PBS -l select={nodes}:{kind}={per_node}
#PBS -l walltime={walltime}
"""
        ),
        "whole_nodes": "#PBS -l place=scatter:excl\n",
        "gpus": "",
        "request": {"account": "#PBS -A {}\n", "queue": "#PBS -q {}\n"},
        "folder": (
            'cd "$PBS_O_WORKDIR"\n'
        ),  # PBS starts jobs in the home folder, Slurm where they were submitted
        "check": _FIND_SCRIPT_OF_PBS,
        "starts": 'STARTS="${{STARTS:-0}}"\n',
        "again": 'qsub -v "SCRIPT=$SCRIPT,STARTS=$((STARTS + 1)),MOST=$MOST,{variables}" "$SCRIPT"',
    },
}
BODY = """\
{setup}set -euo pipefail
{folder}{check}{starts}MOST="${{MOST:-100}}"
{prepare}
export PYTHONSAFEPATH=1
status=0
{command} || status=$?
if [ "$status" = {job_ends} ]; then  # before the time was up
  if [ "$STARTS" -lt "$MOST" ]; then
    {again}
  else
    echo "not submitted again: this was submission $((STARTS + 1)), and MOST=$MOST; by hand, this script goes on" >&2
  fi
fi
exit "$status"
"""  # noqa: E501
REPLAY = {
    "variables": "STEPS=$STEPS,FOLDER=$FOLDER,DATA=${{DATA:-}}",
    "prepare": (
        """\
STEPS="${{STEPS:-{steps}}}"
FOLDER="${{FOLDER:-$PWD/frontrunner-{job}}}"

mkdir -p "$FOLDER"
cat > "$FOLDER/recipe.json" <<'{end}'
{recipe_file}{end}
"""
    ),
    "command": (
        """\
python -m frontrunner.cli replay "$FOLDER/recipe.json" --steps "$STEPS" ${{DATA:+--data "$DATA"}} \\
  --folder "$FOLDER/run\""""
    ),
}
COMMAND = REPLAY | {
    "variables": "STEPS=$STEPS,FOLDER=$FOLDER",
    "command": (
        """\
python -m frontrunner.cli replay "$FOLDER/recipe.json" --steps "$STEPS" \\
  --folder "$FOLDER/run\""""
    ),
}
"""Of another trainer's recipe, whose command names its data."""
CAMPAIGN = {
    "variables": "STORE=${{STORE:-}}",
    "prepare": "FILE={file}\n",
    "command": 'python -m frontrunner.cli launch "$FILE" --or-resume ${{STORE:+--store "$STORE"}}',
}
AN_HOUR = "01:00:00"
YOURS = (
    "Account, queue, time, STEPS and DATA (a file instead of the recipe's data) are yours to set;"
    " run it where python -m frontrunner.cli works on all nodes, with Parsl (frontrunner[hpc]) for"
    " several."
)
YOURS_OF_COMMAND = (
    (
        "Account, queue, time and STEPS are yours to set; run it where python -m frontrunner.cli"
        " and the trainer work"
    ),
    (
        "on all nodes, with Parsl (frontrunner[hpc]) where [dispatch] has started the trainer on"
        " each node of its probes."
    ),
    (
        "To go on from its own checkpoint is the trainer's part: FRONTRUNNER_ATTEMPT is 1 in its"
        " first start."
    ),
)
YOURS_OF_CAMPAIGN = (
    (
        "Account, queue, time and STORE are yours to set. Each job may run on another node: STORE"
        " is a postgresql:// URL,"
    ),
    (
        "or a file that all nodes see, which needs FRONTRUNNER_NETWORK_STORE=1, and that only this"
        " script's jobs open."
    ),
    (
        "The driver starts no probe that may outlast its job. MOST=100 is how often the script"
        " submits itself again."
    ),
)


def batch_script(
    scheduler: str, job: TrainingJob, *, dispatch: DispatchSettings | None = None
) -> str:
    """Return a script for sbatch or qsub that trains with a recipe.

    What its campaign's `dispatch` requests of the same scheduler it requests, too.
    """
    (nodes, per_node), identity = job.launch(scheduler), recipe_id(job.problem, job.recipe)
    figures: dict[str, Any] = {"nodes": nodes, "per_node": per_node, "job": identity}
    figures |= {"recipe_file": job.recipe_file, "steps": job.steps}
    request, setup = dict[str, str | None](), job.setup
    if dispatch is not None and dispatch.scheduler == scheduler:
        figures["walltime"] = dispatch.walltime
        request = {key: getattr(dispatch, key) for key in SCHEDULERS[scheduler]["request"]}
        setup = (
            *dispatch.scheduler_options,
            *setup,
        )  # which a batch system reads up to the first command
    kind, yours = (COMMAND, YOURS_OF_COMMAND) if job.by_command else (REPLAY, (YOURS,))
    backend, header = job.problem.cluster.backend, (*job.header, *yours)
    return _script(scheduler, kind, figures, header, setup, backend=backend, request=request)


def campaign_script(
    scheduler: str,
    name: str,
    cluster: Cluster | None,
    dispatch: DispatchSettings,
    file: Path,
    header: Sequence[str],
) -> str:
    """Return a script for sbatch or qsub that drives the campaign of a file until it is over.

    `cluster` is None where outcomes are computed or looked up, which needs no nodes.
    """
    requests_nodes = dispatch.backend == "parsl"
    if dispatch.backend not in (None, "local", "allocation", "parsl"):
        expected = "allocation or parsl, for a driver in a job of a batch system"
        raise bad_value(
            "dispatch.backend",
            dispatch.backend,
            expected,
            hint="examples/kubernetes has a driver on Ray",
        )
    if requests_nodes and dispatch.scheduler != scheduler:
        raise bad_value(
            "dispatch.scheduler",
            dispatch.scheduler,
            f"{scheduler}, which the driver's own job is for",
        )
    given: dict[str, Any] = {"job": name, "file": shlex.quote(str(file.absolute()))}
    backend, request = None, dict[str, str | None]()
    if cluster is None or requests_nodes:
        given |= {"nodes": 1, "per_node": 2}
        request = {key: getattr(dispatch, key) for key in ("account", "queue")}
    else:
        given |= {"nodes": cluster.nodes, "per_node": cluster.devices_per_node}
        backend = cluster.backend
    yours = (*header, *YOURS_OF_CAMPAIGN)
    return _script(
        scheduler, CAMPAIGN, given, yours, dispatch.worker_init, backend=backend, request=request
    )


def _script(  # noqa: PLR0913 - what the two kinds of scripts differ in
    scheduler: str,
    kind: Mapping[str, str],
    figures: Mapping[str, Any],
    header: Sequence[str],
    setup: Sequence[str],
    *,
    backend: str | None,
    request: Mapping[str, str | None],
) -> str:
    """Return a script; `backend` is that of its nodes, None for a driver alone, `request` words for
    its job's head.
    """
    known, has_gpus = SCHEDULERS[scheduler], backend not in (None, "cpu")
    given = {
        "walltime": AN_HOUR,
        **figures,
        "kind": "ngpus" if has_gpus else "ncpus",
        "end": END_OF_FILE,
    }
    words = {key: text.format(**given) for key, text in kind.items()}
    words |= {
        key: text.format(**given, **words) for key, text in known.items() if isinstance(text, str)
    }
    directives = words["directives"] + (words["gpus"] if has_gpus else "")
    directives += words["whole_nodes"] if backend is not None else ""
    for key, value in request.items():
        directives += known["request"][key].format(value) if value else ""
    commands = "".join(f"{command}\n" for command in setup)
    body = BODY.format(**words, setup=commands, job_ends=JobEnds.exit_code)
    return f"#!/bin/bash\n{directives}{comments(header)}\n{body}"
