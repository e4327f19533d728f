"""A JobSet for Kubernetes: the full training with a recipe, by torchrun on each node.

JobSet rather than a TrainJob of Kubeflow Trainer, which is built on it: one manifest is the whole
job, volumes and the restart of all nodes together are of its own API, and no runtime has to be
installed that states the same again. The manifest holds the recipe file, and a volume claim that
keeps checkpoints; a JobSet that starts all its pods again continues from the newest of them, as a
replay does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from frontrunner.evaluators.export.base import TrainingJob, comments
from frontrunner.spaces.document import recipe_id
from frontrunner.spaces.errors import bad_value

RESOURCES = {
    "cpu": "cpu",
    "cuda": "nvidia.com/gpu",
    "rocm": "amd.com/gpu",
    "xpu": "gpu.intel.com/i915",
}
"""What the device plug-ins of Kubernetes call a node's devices."""
VOLUME = "/frontrunner"
RECIPE = "/recipe"
PORT = 29500
NODE = "node"
MAX_RESTARTS = 10
"""Restarts after failures of the training; those after a node was taken away, or drained, do not
count.
"""
STATE_BYTES = 12
"""Of a parameter in a checkpoint: weight and two moments in fp32."""
CHECKPOINTS = 3
"""In the volume at a time: two are kept while the next is written."""
YOURS = (
    (
        "image, STEPS, DATA (a file on the volume instead of the recipe's data), the volume's class"
        " and size, and the"
    ),
    (
        "namespace are yours to set. The image has Python with frontrunner:"
        " examples/kubernetes/Dockerfile."
    ),
    "Needs the JobSet controller 0.8 or later. Checked against its API; never run on a cluster.",
)
SCRIPT = """\
{setup}set -euo pipefail
export PYTHONSAFEPATH=1 FRONTRUNNER_RUNS={volume}/runs
FOLDER={volume}/{recipe_id}
mkdir -p "$FOLDER"
cd "$FOLDER"
if [ "$JOB_COMPLETION_INDEX" = 0 ]; then  # checks the data, and writes the job file that all ranks read
  rm -f result.json prepared-*
  python -m frontrunner.cli replay {recipe}/recipe.json --steps "$STEPS" ${{DATA:+--data "$DATA"}} \\
    --folder "$FOLDER" --print-command
  touch "prepared-$JOB_UID"  # each start of all nodes is a job of its own
else
  until [ -e "prepared-$JOB_UID" ]; do sleep 1; done
fi
python -m torch.distributed.run --nnodes {nodes} --nproc-per-node {per_node} --node-rank "$JOB_COMPLETION_INDEX" \\
  --master-addr "$FIRST_NODE" --master-port {port} -m frontrunner.evaluators.trainer job.json
if [ "$JOB_COMPLETION_INDEX" = 0 ]; then
  grep -q '"status": "trained"' result.json  # else the training has failed, whatever its ranks' exit codes are
fi
"""  # noqa: E501


def manifest(job: TrainingJob) -> str:
    """Return the YAML of a config map, a volume claim and a JobSet that trains with a recipe.

    The folders of the files to train on become folders of the volume.
    """
    import yaml

    (nodes, per_node), problem = job.launch("kubernetes"), job.problem
    if (backend := problem.cluster.backend) not in RESOURCES:
        raise bad_value(
            "cluster.backend",
            backend,
            f"one of {', '.join(RESOURCES)}, which the trainer trains on",
        )
    identity = recipe_id(problem, job.recipe)
    name = f"frontrunner-{identity}"
    script = SCRIPT.format(
        setup="".join(f"{command}\n" for command in job.setup),
        volume=VOLUME,
        recipe=RECIPE,
        recipe_id=identity,
        nodes=nodes,
        per_node=per_node,
        port=PORT,
    )
    variables = {"STEPS": str(job.steps), "DATA": "", "FIRST_NODE": f"{name}-{NODE}-0-0.{name}"}
    if job.network_interface is not None:
        variables |= dict.fromkeys(
            ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"), job.network_interface
        )
    stored = CHECKPOINTS * STATE_BYTES * problem.model.parameters + sum(
        size for _, size in job.data
    )
    folders = {str(Path(path).parent): f"data-{place}" for place, (path, _) in enumerate(job.data)}
    mounts = [
        {"name": "volume", "mountPath": path, "subPath": folder} for path, folder in folders.items()
    ]
    copies = [
        f"Data: copy what is in {path} to the folder {folder} of the volume."
        for path, folder in folders.items()
    ]
    documents = (
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name},
            "data": {"recipe.json": job.recipe_file, "train.sh": script},
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": name},
            "spec": {
                "accessModes": ["ReadWriteMany"],
                "resources": {"requests": {"storage": f"{math.ceil(stored / 2**30)}Gi"}},
            },
        },
        _job_set(name, nodes, {RESOURCES[backend]: per_node}, variables, mounts),
    )
    dumped = yaml.dump_all(documents, Dumper=_dumper(), sort_keys=False, width=120)
    return f"{comments((*job.header, *YOURS, *copies))}{dumped}"


def _job_set(
    name: str,
    nodes: int,
    devices: Mapping[str, int],
    variables: Mapping[str, str],
    mounts: Sequence[Mapping[str, str]],
) -> dict[str, Any]:
    environment: list[dict[str, Any]] = [
        {"name": key, "value": value} for key, value in variables.items()
    ]
    path = "metadata.labels['batch.kubernetes.io/controller-uid']"
    environment.append({"name": "JOB_UID", "valueFrom": {"fieldRef": {"fieldPath": path}}})
    container = {
        "name": "trainer",
        "image": "frontrunner:latest",
        "command": ["bash", f"{RECIPE}/train.sh"],
        "env": environment,
        "resources": {"limits": dict(devices)},
        "volumeMounts": [
            {"name": "recipe", "mountPath": RECIPE},
            {"name": "volume", "mountPath": VOLUME},
            *map(dict, mounts),
            {
                "name": "shared-memory",
                "mountPath": "/dev/shm",  # noqa: S108 - where NCCL's buffers are
            },
        ],
    }
    pod = {
        "restartPolicy": "Never",  # of one pod alone: the others would wait for it in a collective
        "containers": [container],
        "volumes": [
            {"name": "recipe", "configMap": {"name": name}},
            {"name": "volume", "persistentVolumeClaim": {"claimName": name}},
            {"name": "shared-memory", "emptyDir": {"medium": "Memory"}},
        ],
    }
    taken_away = {
        "action": "FailJob",
        "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
    }
    job = {
        "completionMode": "Indexed",
        "completions": nodes,
        "parallelism": nodes,
        "backoffLimit": 0,
        "podFailurePolicy": {"rules": [taken_away]},
        "template": {"spec": pod},
    }
    restart = {"name": "nodes_taken_away", "action": "RestartJobSetAndIgnoreMaxRestarts"}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name},
        "spec": {
            "failurePolicy": {
                "maxRestarts": MAX_RESTARTS,
                "rules": [restart | {"onJobFailureReasons": ["PodFailurePolicy"]}],
            },
            "network": {"enableDNSHostnames": True, "subdomain": name},
            "replicatedJobs": [{"name": NODE, "replicas": 1, "template": {"spec": job}}],
        },
    }


def _dumper() -> type[Any]:
    """Return a dumper that writes texts of several lines as blocks."""
    import yaml

    class Dumper(yaml.SafeDumper):  # type: ignore[misc]
        """Writes lists within their parents."""

        def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002
            super().increase_indent(flow, indentless=False)

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
        style = "|" if "\n" in value else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)

    Dumper.add_representer(str, text)
    return Dumper
