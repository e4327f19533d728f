"""Whether this machine can offload to a disk: what is asked of it, and what is said where something
is missing.
"""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest

from frontrunner.evaluators.export.base import TrainingJob
from frontrunner.evaluators.nodes.settings import DispatchSettings
from frontrunner.evaluators.programs.jobs import offload_disk, probe_job
from frontrunner.evaluators.programs.preflight import prepare_disk, prepare_here
from frontrunner.evaluators.trainer.deepspeed_disk import OPERATORS, built_folder
from frontrunner.spaces.cluster import Cluster
from frontrunner.spaces.errors import FrontrunnerError, InvalidInput
from support.campaigns import setup_of, tiny_recipe

needs_deepspeed = pytest.mark.skipif(
    importlib.util.find_spec("deepspeed") is None, reason="deepspeed is an extra"
)


def cluster(folder: Path | None, *, backend: str = "cpu") -> Cluster:
    path = None if folder is None else str(folder)
    return Cluster(
        name="c",
        device="d",
        backend=backend,
        nodes=1,
        devices_per_node=2,
        memory_gib_per_device=1.0,
        nvme_path=path,
    )


@pytest.fixture
def no_operator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user without a compiled operator; the folder holds what programs a test puts there."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    programs = tmp_path / "programs"
    programs.mkdir()
    return programs


def compiler(folder: Path, script: str) -> str:
    path = folder / "compiler"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def test_nothing_is_asked_where_no_recipe_can_use_a_disk(tmp_path: Path) -> None:
    prepare_disk(cluster(tmp_path / "missing"), ("none", "optimizer"))
    prepare_disk(cluster(None), ("nvme",))


def test_a_folder_that_is_not_there_or_not_to_be_written_is_named() -> None:
    with pytest.raises(
        InvalidInput,
        match=r'^cluster\.nvme_path = "/missing": .*; here: No such file or directory$',
    ):
        prepare_disk(cluster(Path("/missing")), ("nvme",))
    with pytest.raises(
        InvalidInput, match=r'^cluster\.nvme_path = "/proc": expected a folder on a disk .*; here: '
    ):
        prepare_disk(cluster(Path("/proc")), ("nvme",))


@needs_deepspeed
@pytest.mark.parametrize(
    ("script", "words"),
    [
        (None, "there is no C++ compiler"),
        ("cat >/dev/null; exit 1", "there is no libaio to compile against"),
    ],
)
def test_what_is_missing_to_compile_is_named_with_the_remedy(
    script: str | None,
    words: str,
    tmp_path: Path,
    no_operator: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(
        "CXX", compiler(no_operator, script) if script else str(no_operator / "none")
    )
    with pytest.raises(InvalidInput) as caught:
        prepare_disk(cluster(tmp_path), ("nvme",))
    assert words in caught.value.message
    assert caught.value.hint is not None
    assert "apt-get install libaio-dev ninja-build g++" in caught.value.hint


@needs_deepspeed
@pytest.mark.usefixtures("no_operator")
def test_on_rocm_the_operator_comes_with_deepspeed(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput) as caught:
        prepare_disk(cluster(tmp_path, backend="rocm"), ("nvme",))
    assert "DS_BUILD_AIO=1" in str(caught.value.hint)


@needs_deepspeed
@pytest.mark.system  # imports torch and deepspeed in a process of its own
def test_a_build_that_fails_leaves_its_log_and_nothing_built(
    tmp_path: Path, no_operator: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compiler that finds libaio and then compiles nothing, as one without Python's headers
    does.
    """
    script = (
        'case "$*" in *-laio*) cat >/dev/null; exit 0;; *) echo "no Python.h" >&2; exit 1;; esac'
    )
    monkeypatch.setenv("CXX", compiler(no_operator, script))
    with pytest.raises(FrontrunnerError, match="operator was not compiled: ") as caught:
        prepare_disk(cluster(tmp_path), ("nvme",))
    name = built_folder("cpu").name
    left = {path.name: path for path in built_folder("cpu").parent.iterdir()}
    assert left.keys() == {f"{name}.lock", f"{name}.log"}
    assert caught.value.hint == f"see {left[f'{name}.log']}"


@needs_deepspeed
@pytest.mark.usefixtures("no_operator")
def test_a_compiled_operator_is_not_compiled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "no-compiler")
    for name in OPERATORS:
        (built_folder("cpu") / name).mkdir(parents=True)
        (built_folder("cpu") / name / f"{name}.so").touch()
    prepare_disk(cluster(tmp_path), ("nvme",))


def test_a_job_names_a_folder_of_its_own_and_what_it_takes(tmp_path: Path) -> None:
    on_disk = {"cluster": {"nvme_path": "/scratch"}}
    setup = setup_of(
        tmp_path, **on_disk, probe={"optimizer": "adamw"}, problem={"precision": "bf16"}
    )
    recipe = tiny_recipe(offload="nvme")
    first, second = (
        offload_disk(setup, recipe, tmp_path / token) for token in ("00001.1", "00001.2")
    )

    assert first is not None
    assert second is not None
    assert first.needed_bytes == 18 * setup.problem.model.parameters
    split = offload_disk(setup, tiny_recipe(devices=2, tensor_parallel=2, offload="nvme"), tmp_path)
    assert split is not None
    assert split.needed_bytes > first.needed_bytes  # embedding and head are on both ranks
    assert first.folder != second.folder
    assert Path(first.folder).parent == Path("/scratch")
    assert offload_disk(setup, tiny_recipe(), tmp_path) is None


def test_layers_that_predict_further_tokens_are_refused_where_the_built_in_trainer_would_train(
    tmp_path: Path,
) -> None:
    setup = setup_of(tiny_recipe())
    problem = replace(setup.problem, model=setup.problem.model.with_keys(mtp_layers=1))
    reason = r"model\.mtp_layers = 1: expected 0 for the built-in trainer"
    with pytest.raises(InvalidInput, match=reason):
        prepare_here(problem, DispatchSettings(), engines=("torch",), offloads=(), fp8=())
    with pytest.raises(InvalidInput, match=reason):
        probe_job(replace(setup, problem=problem), tiny_recipe(), tmp_path, ())
    job = TrainingJob(problem=problem, recipe=tiny_recipe(), header=(), recipe_file="{}")
    with pytest.raises(InvalidInput, match=reason):
        job.launch("slurm")
    assert replace(job, by_command=True).launch("slurm") == (1, 2)


def test_a_device_that_no_engine_runs_on_is_refused_for_probes_alone(tmp_path: Path) -> None:
    setup = setup_of(tiny_recipe())
    problem = replace(setup.problem, cluster=cluster(None, backend="hpu"))
    with pytest.raises(
        InvalidInput,
        match=r'cluster\.backend = "hpu": expected one of cpu, cuda, rocm, xpu for probes',
    ):
        prepare_here(problem, DispatchSettings(), engines=("torch",), offloads=(), fp8=())
