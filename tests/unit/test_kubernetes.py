"""Manifests for Kubernetes: what the interfaces of Kubernetes, JobSet and KubeRay require, and what
they start.
"""

from __future__ import annotations

import re
import subprocess
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from frontrunner.cli.main import frontrunner as command_line
from frontrunner.config.campaign import read_campaign_file
from frontrunner.config.recipe_file import Origin, RecipeFile, Training, read, to_text
from frontrunner.evaluators.programs.corpus import training_data
from frontrunner.evaluators.runs.settings import DataSettings
from frontrunner.exchange import exported
from frontrunner.results.provenance import TrainingData
from frontrunner.spaces.document import recipe_id
from frontrunner.spaces.errors import InvalidInput
from frontrunner.spaces.recipe import Recipe
from frontrunner.store import LocalStore
from support.kubernetes_api import require_valid

EXAMPLES = Path(__file__).parents[2] / "examples"
TEXT = TrainingData(path="/shared/text/corpus.bin", size_bytes=3 * 2**40, head_sha256="0" * 64)


def recipe_file(
    folder: Path, *, backend: str = "cuda", data: TrainingData = TEXT, devices: int = 16
) -> str:
    spec = read_campaign_file(EXAMPLES / "sites" / "slurm.toml").spec
    problem = replace(spec.problem, cluster=replace(spec.problem.cluster, backend=backend))
    recipe = Recipe(devices=devices, micro_batch_seqs=1, accumulation=64 // devices)
    file = RecipeFile(
        recipe_id=recipe_id(problem, recipe),
        problem=problem,
        recipe=recipe,
        training=Training(data=(data,)),
        measured=None,
        origin=Origin(written_by="test", written_at="2026-01-01T00:00:00+00:00"),
    )
    (folder / "recipe.json").write_text(to_text(file))
    return str(folder / "recipe.json")


def documents(text: str) -> dict[str, Any]:
    return {document["kind"]: document for document in yaml.safe_load_all(text)}


def differences(given: Any, known: Any, place: str = "") -> list[str]:
    """Where a published model does not give a manifest's values back: keys that it lacks."""
    if isinstance(given, dict) and isinstance(known, dict):
        return [
            line
            for key in given
            for line in differences(given[key], known.get(key), f"{place}.{key}")
        ]
    if isinstance(given, list) and isinstance(known, list) and len(given) == len(known):
        pairs = enumerate(zip(given, known, strict=True))
        return [line for number, pair in pairs for line in differences(*pair, f"{place}[{number}]")]
    return [] if given == known else [f"{place}: {given!r}, not {known!r}"]


def check(kind: str, document: Any) -> None:
    """Hold a document against a model of Kubeflow's package, of JobSet and of Kubernetes itself:
    their keys.
    """
    models = pytest.importorskip("kubeflow_trainer_api.models")
    found = getattr(models, kind).from_dict(document)
    assert differences(document, found.to_dict()) == []


def job_set(folder: Path, **changes: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The manifest of a recipe, and its pod's container."""
    found = documents(exported(LocalStore(), recipe_file(folder, **changes), to="kubernetes"))
    (job,) = found["JobSet"]["spec"]["replicatedJobs"]
    (container,) = job["template"]["spec"]["template"]["spec"]["containers"]
    return found, container


def test_a_job_set_and_its_pods_are_of_the_published_api(tmp_path: Path) -> None:
    found, _ = job_set(tmp_path)
    for document in found.values():
        require_valid(document)
    check("JobsetV1alpha2JobSet", found["JobSet"])
    misspelled = found["JobSet"]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"][
        "spec"
    ]
    misspelled["volumes"][0]["configmap"] = misspelled["volumes"][0].pop("configMap")
    with pytest.raises(AssertionError, match=r"volumes\[0\].configmap"):
        check("JobsetV1alpha2JobSet", found["JobSet"])


def set_to(document: Any, path: str, value: Any) -> None:
    """Replace what is at a path of keys and places, or remove it where the value is `REMOVED`."""
    *keys, last = [int(key) if key.isdecimal() else key for key in path.split(".")]
    for key in keys:
        document = document[key]
    if value is REMOVED:
        del document[last]
    else:
        document[last] = value


REMOVED = object()
JOB = "spec.replicatedJobs.0"
POD = f"{JOB}.template.spec.template.spec"


@pytest.mark.parametrize(
    ("kind", "path", "value"),
    [
        ("JobSet", "apiVersion", "jobset.x-k8s.io/v1"),
        ("JobSet", "spec.failurePolicy.rules.0.action", "Nonsense"),
        ("JobSet", "spec.failurePolicy.rules.0.name", "nodes-taken-away"),
        ("JobSet", f"{JOB}.name", REMOVED),
        ("JobSet", f"{JOB}.template.spec.completions", -3),
        ("JobSet", f"{JOB}.template.spec.podFailurePolicy.rules.0.action", "Nonsense"),
        ("JobSet", f"{POD}.restartPolicy", "OnFailure"),
        ("JobSet", f"{POD}.containers.0.env.0.value", 1000),
        ("JobSet", f"{POD}.volumes.0.name", "other"),
        ("ConfigMap", "metadata.name", "Recipe"),
        ("PersistentVolumeClaim", "spec.resources.requests.storage", "3 GB"),
        ("PersistentVolumeClaim", "spec.accessModes", ["ReadWriteAll"]),
    ],
)
def test_what_the_api_would_refuse_is_noticed(
    kind: str, path: str, value: Any, tmp_path: Path
) -> None:
    document = deepcopy(job_set(tmp_path)[0][kind])
    set_to(document, path, value)
    with pytest.raises(ValidationError):
        require_valid(document)


def test_a_job_set_s_names_lead_to_its_volume_its_recipe_and_its_first_node(tmp_path: Path) -> None:
    found, container = job_set(tmp_path)
    name, spec = found["JobSet"]["metadata"]["name"], found["JobSet"]["spec"]
    job = spec["replicatedJobs"][0]
    volumes = {one["name"]: one for one in job["template"]["spec"]["template"]["spec"]["volumes"]}
    assert volumes["recipe"]["configMap"]["name"] == found["ConfigMap"]["metadata"]["name"]
    assert (
        volumes["volume"]["persistentVolumeClaim"]["claimName"]
        == found["PersistentVolumeClaim"]["metadata"]["name"]
    )
    assert {mount["name"] for mount in container["volumeMounts"]} == set(volumes)
    assert container["command"][-1].rpartition("/")[2] in found["ConfigMap"]["data"]
    first = next(one["value"] for one in container["env"] if one["name"] == "FIRST_NODE")
    assert first == f"{name}-{job['name']}-0-0.{spec['network']['subdomain']}", "of job 0, index 0"
    (tmp_path / "again.json").write_text(found["ConfigMap"]["data"]["recipe.json"])
    assert read(tmp_path / "again.json") == read(tmp_path / "recipe.json")


@pytest.mark.parametrize(
    ("backend", "devices", "resource", "nodes"),
    [
        ("cuda", 16, "nvidia.com/gpu", 2),
        ("rocm", 4, "amd.com/gpu", 1),
        ("xpu", 8, "gpu.intel.com/i915", 1),
    ],
)
def test_each_pod_takes_a_node_s_devices(
    backend: str, devices: int, resource: str, nodes: int, tmp_path: Path
) -> None:
    found, container = job_set(tmp_path, backend=backend, devices=devices)
    per_node = devices // nodes
    assert container["resources"]["limits"] == {resource: per_node}
    spec = found["JobSet"]["spec"]["replicatedJobs"][0]["template"]["spec"]
    assert (spec["completions"], spec["parallelism"]) == (nodes, nodes)
    assert f"--nnodes {nodes} --nproc-per-node {per_node}" in found["ConfigMap"]["data"]["train.sh"]


def test_the_volume_holds_data_and_checkpoints_and_data_keep_their_paths(tmp_path: Path) -> None:
    found, container = job_set(tmp_path)
    size = found["PersistentVolumeClaim"]["spec"]["resources"]["requests"]["storage"]
    parameters = read(tmp_path / "recipe.json").problem.model.parameters
    assert int(size.removesuffix("Gi")) == -(-(TEXT.size_bytes + 3 * 12 * parameters) // 2**30)
    assert {"name": "volume", "mountPath": "/shared/text", "subPath": "data-0"} in container[
        "volumeMounts"
    ]
    (built_in,) = training_data(DataSettings())
    _, container = job_set(tmp_path, data=built_in)
    assert not [mount for mount in container["volumeMounts"] if "subPath" in mount]


def test_a_backend_without_a_trainer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        InvalidInput, match=r'cluster\.backend = "hpu": expected one of cpu, cuda, rocm, xpu'
    ):
        job_set(tmp_path, backend="hpu")


def test_the_example_of_a_ray_cluster_is_of_the_published_api_and_fits_its_campaign() -> None:
    found = documents((EXAMPLES / "kubernetes" / "rayjob.yaml").read_text())
    for document in found.values():
        require_valid(document)
    job = found["RayJob"]["spec"]
    pins = re.findall(r"^ray==(\S+)$", (EXAMPLES.parent / "constraints.txt").read_text(), re.M)
    assert job["rayClusterSpec"]["rayVersion"] == pins[0]
    head, (workers,) = (
        job["rayClusterSpec"]["headGroupSpec"],
        job["rayClusterSpec"]["workerGroupSpecs"],
    )
    for group in (head, workers):
        check("IoK8sApiCoreV1PodTemplateSpec", group["template"])
    spec = read_campaign_file(EXAMPLES / "kubernetes" / "campaign.toml").spec
    cluster, (worker,) = spec.problem.cluster, workers["template"]["spec"]["containers"]
    assert {workers[key] for key in ("replicas", "minReplicas", "maxReplicas")} == {cluster.nodes}
    assert worker["resources"]["limits"] == {"nvidia.com/gpu": cluster.devices_per_node}
    assert spec.survey().recipes
    volumes = {one["name"]: one for one in head["template"]["spec"]["volumes"]}
    mounted = {
        mount["mountPath"]: volumes[mount["name"]]
        for mount in head["template"]["spec"]["containers"][0]["volumeMounts"]
    }
    shell, script, file = job["entrypoint"].split()
    assert (shell, Path(script).name) == ("bash", *found["ConfigMap"]["data"])
    assert (
        mounted[str(Path(script).parent)]["configMap"]["name"]
        == found["ConfigMap"]["metadata"]["name"]
    )
    assert str(Path(file).parent) in mounted


@pytest.mark.parametrize(
    ("status", "expected"), [(0, 0), (2, 0), (6, 0), (1, 1), (75, 75), (137, 137)]
)
def test_the_example_s_driver_fails_only_where_another_cluster_may_help(
    status: int, expected: int, tmp_path: Path
) -> None:
    found = documents((EXAMPLES / "kubernetes" / "rayjob.yaml").read_text())
    (tmp_path / "drive.sh").write_text(found["ConfigMap"]["data"]["drive.sh"])
    (tmp_path / "python").write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/given\nexit {status}\n')
    (tmp_path / "python").chmod(0o755)
    done = subprocess.run(
        ["bash", str(tmp_path / "drive.sh"), str(EXAMPLES / "kubernetes" / "campaign.toml")],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == expected
    assert ("is not started again" in done.stdout) == (status in (2, 6))
    option, module, command, *arguments = (tmp_path / "given").read_text().split()
    assert (option, module) == ("-m", "frontrunner.cli")
    command_line.load(command).make_context(command, arguments)
