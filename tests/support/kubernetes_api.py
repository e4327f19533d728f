"""What the interfaces of Kubernetes, JobSet and KubeRay require of our manifests: keys, types,
words and bounds.

It has the keys that our manifests use, and forbids others. From the documentation of core/v1 and
batch/v1, of jobset.x-k8s.io/v1alpha2 (failure policies, with what its webhook checks of their
names) and of ray.io/v1.
"""
# ruff: noqa: N815 - fields are named as the documents' keys

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, model_validator

Label = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=63)]
Quantity = (
    Annotated[str, Field(pattern=r"^\d+(\.\d+)?([kMGTPE]i?|m)?$")] | Annotated[int, Field(ge=0)]
)
ResourceName = Annotated[
    str, Field(pattern=r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[a-z0-9A-Z]([-\w.]*[a-z0-9A-Z])?$")
]
ConfigKey = Annotated[str, Field(pattern=r"^[-._a-zA-Z0-9]+$", max_length=253)]
Path = Annotated[str, Field(pattern=r"^/[^:]*$")]
Count = Annotated[int, Field(ge=0)]


class Strict(BaseModel):
    """A part of a document: without other keys, and without conversion of types."""

    model_config = ConfigDict(extra="forbid", strict=True)


class OneOf(Strict):
    """A part of which exactly one of the keys beside the name is given."""

    @model_validator(mode="after")
    def _has_one(self) -> OneOf:
        if len(self.model_fields_set - {"name"}) != 1:
            raise ValueError(
                f"one of {sorted(type(self).model_fields.keys() - {'name'})} is required"
            )
        return self


class Metadata(Strict):
    name: Label


class Named(Strict):
    name: Label


class Claimed(Strict):
    claimName: Label


class EmptyFolder(Strict):
    medium: Literal["", "Memory"]


class Volume(OneOf):
    name: Label
    configMap: Named | None = None
    persistentVolumeClaim: Claimed | None = None
    emptyDir: EmptyFolder | None = None


class Mount(Strict):
    name: Label
    mountPath: Path
    subPath: Annotated[str, Field(pattern=r"^[^/]")] | None = None


class FieldPath(Strict):
    fieldPath: Annotated[
        str,
        Field(
            pattern=r"^(metadata\.labels\['[a-z./-]+'\]|spec\.nodeName|metadata\.name|status\.(pod|host)IP)$"
        ),
    ]


class ValueFrom(Strict):
    fieldRef: FieldPath


class Variable(OneOf):
    name: Annotated[str, Field(pattern=r"^[-._a-zA-Z][-._a-zA-Z0-9]*$")]
    value: str | None = None
    valueFrom: ValueFrom | None = None


class Resources(Strict):
    limits: dict[ResourceName, Quantity] = {}
    requests: dict[ResourceName, Quantity] = {}


class Container(Strict):
    name: Label
    image: Annotated[str, Field(min_length=1)]
    command: list[str] = []
    env: list[Variable] = []
    resources: Resources = Resources()
    volumeMounts: list[Mount] = []


class Pod(Strict):
    containers: Annotated[list[Container], Field(min_length=1)]
    volumes: list[Volume] = []
    restartPolicy: Literal["Always", "OnFailure", "Never"] = "Always"

    @model_validator(mode="after")
    def _has_what_it_mounts(self) -> Pod:
        mounted = {mount.name for container in self.containers for mount in container.volumeMounts}
        if missing := mounted - {volume.name for volume in self.volumes}:
            raise ValueError(f"no volume {', '.join(sorted(missing))}")
        return self


class PodTemplate(Strict):
    spec: Pod


class OnPodCondition(Strict):
    type: Annotated[str, Field(min_length=1)]
    status: Literal["True", "False", "Unknown"] = "True"


class PodFailureRule(Strict):
    action: Literal["FailJob", "FailIndex", "Ignore", "Count"]
    onPodConditions: Annotated[list[OnPodCondition], Field(min_length=1, max_length=20)]


class PodFailurePolicy(Strict):
    rules: Annotated[list[PodFailureRule], Field(min_length=1, max_length=20)]


class Job(Strict):
    completionMode: Literal["Indexed", "NonIndexed"] = "NonIndexed"
    completions: Count | None = None
    parallelism: Count | None = None
    backoffLimit: Count | None = None
    podFailurePolicy: PodFailurePolicy | None = None
    template: PodTemplate

    @model_validator(mode="after")
    def _agrees(self) -> Job:
        if self.completionMode == "Indexed" and self.completions is None:
            raise ValueError("completions is required with Indexed")
        allowed = ("Never",) if self.podFailurePolicy is not None else ("Never", "OnFailure")
        if self.template.spec.restartPolicy not in allowed:
            raise ValueError(f"restartPolicy must be one of {allowed}")
        return self


class JobTemplate(Strict):
    spec: Job


class ReplicatedJob(Strict):
    name: Label
    replicas: Count = 1
    template: JobTemplate


class JobSetFailureRule(Strict):
    name: Annotated[str, Field(pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$", max_length=128)]
    action: Literal[
        "FailJobSet",
        "RestartJobSet",
        "RestartJobSetAndIgnoreMaxRestarts",
        "RestartJob",
        "RestartJobAndIgnoreMaxRestarts",
    ]
    onJobFailureReasons: list[
        Literal[
            "BackoffLimitExceeded",
            "DeadlineExceeded",
            "FailedIndexes",
            "MaxFailedIndexesExceeded",
            "PodFailurePolicy",
        ]
    ] = []


class JobSetFailurePolicy(Strict):
    maxRestarts: Count = 0
    rules: Annotated[list[JobSetFailureRule], Field(max_length=20)] = []


class Network(Strict):
    enableDNSHostnames: bool = True
    subdomain: Label | None = None


class JobSetSpec(Strict):
    replicatedJobs: Annotated[list[ReplicatedJob], Field(min_length=1)]
    failurePolicy: JobSetFailurePolicy | None = None
    network: Network | None = None


class JobSet(Strict):
    apiVersion: Literal["jobset.x-k8s.io/v1alpha2"]
    kind: Literal["JobSet"]
    metadata: Metadata
    spec: JobSetSpec

    @model_validator(mode="after")
    def _has_short_host_names(self) -> JobSet:
        for job in self.spec.replicatedJobs:  # Kubernetes makes labels of them
            if (
                len(
                    f"{self.metadata.name}-{job.name}-{job.replicas}-{job.template.spec.completions}"
                )
                > 63
            ):
                raise ValueError("pods' host names are too long")
        return self


class ConfigMap(Strict):
    apiVersion: Literal["v1"]
    kind: Literal["ConfigMap"]
    metadata: Metadata
    data: dict[ConfigKey, str]

    @model_validator(mode="after")
    def _fits(self) -> ConfigMap:
        if sum(map(len, self.data.values())) > 2**20:
            raise ValueError("at most 1 MiB")
        return self


class ClaimSpec(Strict):
    accessModes: Annotated[
        list[Literal["ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod"]],
        Field(min_length=1),
    ]
    resources: Resources

    @model_validator(mode="after")
    def _asks_for_storage(self) -> ClaimSpec:
        if self.resources.requests.keys() != {"storage"}:
            raise ValueError("resources.requests.storage is required")
        return self


class PersistentVolumeClaim(Strict):
    apiVersion: Literal["v1"]
    kind: Literal["PersistentVolumeClaim"]
    metadata: Metadata
    spec: ClaimSpec


class RayGroup(Strict):
    rayStartParams: dict[str, str] = {}
    template: PodTemplate


class RayWorkers(RayGroup):
    groupName: Label
    replicas: Count = 0
    minReplicas: Count
    maxReplicas: Count

    @model_validator(mode="after")
    def _is_in_order(self) -> RayWorkers:
        if not self.minReplicas <= self.replicas <= self.maxReplicas:
            raise ValueError("minReplicas <= replicas <= maxReplicas is required")
        return self


class RayClusterSpec(Strict):
    rayVersion: str
    headGroupSpec: RayGroup
    workerGroupSpecs: list[RayWorkers] = []


class RayJobSpec(Strict):
    entrypoint: Annotated[str, Field(min_length=1)]
    backoffLimit: Count = 0
    shutdownAfterJobFinishes: bool = False
    rayClusterSpec: RayClusterSpec


class RayJob(Strict):
    apiVersion: Literal["ray.io/v1"]
    kind: Literal["RayJob"]
    metadata: Metadata
    spec: RayJobSpec

    @model_validator(mode="after")
    def _has_a_short_name(self) -> RayJob:
        if len(self.metadata.name) > 47:  # KubeRay adds to it
            raise ValueError("at most 47 characters")
        return self


_DOCUMENT: TypeAdapter[Any] = TypeAdapter(
    Annotated[JobSet | ConfigMap | PersistentVolumeClaim | RayJob, Field(discriminator="kind")]
)


def require_valid(document: Any) -> None:
    """Raise `ValidationError` where the API server, or a controller's webhook, would refuse a
    document.
    """
    _DOCUMENT.validate_python(document)
