"""Checks of a job before anything is built. Each refusal is a ValueError with the numbers."""

from importlib.util import find_spec

from frontrunner.evaluators.trainer.deepspeed_engine.disk import check_disk
from frontrunner.evaluators.trainer.job import Job
from frontrunner.evaluators.trainer.loss import check_compiler
from frontrunner.spaces.cluster import Cluster
from frontrunner.spaces.legality import why_illegal
from frontrunner.spaces.problem import GlobalBatch, Problem


def check_job(job: Job, *, world_size: int) -> None:
    """Raise ValueError where the job asks for what its engine or this machine cannot do, or not correctly."""
    recipe = job.recipe
    if recipe.devices != world_size:
        raise ValueError(f"the recipe needs {recipe.devices} ranks, but {world_size} were started")
    reason = why_illegal(recipe, _problem(job))
    if reason is not None:
        raise ValueError(f"{recipe.describe()}: {reason}")
    if recipe.compile:
        check_compiler(job.device)
    if recipe.engine == "deepspeed" and find_spec("deepspeed") is None:
        raise ValueError("deepspeed is not installed; run: pip install deepspeed")
    if recipe.offload == "nvme":
        check_disk(job)


def _problem(job: Job) -> Problem:
    """Return the problem that the job's recipe solves; of the cluster only what rules of legality look at."""
    cluster = Cluster(
        name="job",
        device=job.device,
        backend="cuda",  # a CPU is a fair stand-in for a device with memory of its own: its copies are real
        nodes=1,
        devices_per_node=job.recipe.devices,
        memory_gib_per_device=1.0,
        nvme_path=job.disk.folder if job.disk is not None else None,
    )
    batch = job.recipe.global_batch_seqs
    return Problem(
        model=job.model,
        cluster=cluster,
        sequence_length=job.sequence_length,
        global_batch=GlobalBatch(minimum=batch, maximum=batch),
        precision=job.precision,
    )
