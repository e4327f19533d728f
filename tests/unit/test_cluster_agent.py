"""Where probes run: the keys of [dispatch], the jobs that are at hand, and how agents are
started.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from frontrunner.api import measure, resume
from frontrunner.evaluators.nodes.agent import Step, node_of
from frontrunner.evaluators.nodes.backends import node_source
from frontrunner.evaluators.nodes.batch import launch_command
from frontrunner.evaluators.nodes.batch_jobs import seconds_left, why_ended
from frontrunner.evaluators.nodes.settings import DispatchSettings
from frontrunner.spaces.errors import InvalidInput
from frontrunner.store import LocalStore
from support import charted
from support.campaigns import spec_of, tiny

NODES = {"nodes": 2, "devices_per_node": 1}
SLURM_JOB = {"SLURM_JOB_ID": "12", "SLURM_JOB_NODELIST": "n[1-2]"}
ASKED = {"backend": "parsl", "scheduler": "slurm", "walltime": "02:00:00"}
MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "unknown backend": (
        {"backend": "dask"},
        'dispatch.backend = "dask": expected one of local, allocation, parsl, ray',
    ),
    "no scheduler": ({"backend": "parsl", "walltime": "01:00:00"}, "dispatch.scheduler is missing"),
    "unknown scheduler": (
        ASKED | {"scheduler": "sge"},
        'dispatch.scheduler = "sge": expected one of slurm, pbs',
    ),
    "flux": (ASKED | {"scheduler": "flux"}, "start within a Flux job"),
    "lsf": (
        ASKED | {"scheduler": "lsf"},
        'dispatch.scheduler = "lsf": frontrunner requests no nodes from LSF any more',
    ),
    "kubernetes": (ASKED | {"scheduler": "kubernetes"}, "pods have none"),
    "no walltime": ({"backend": "parsl", "scheduler": "slurm"}, "dispatch.walltime is missing"),
    "seconds": (
        ASKED | {"walltime": "01:00:30"},
        'dispatch.walltime = "01:00:30": expected "HH:MM:00"',
    ),
    "too short": (ASKED | {"walltime": "00:02:00"}, "at least probe.deadline_s + 120 s = 720 s"),
    "a key of another scheduler": (
        ASKED | {"scheduler": "pbs", "qos": "debug"},
        'dispatch.qos = "debug": expected a key for pbs: account',
    ),
    "a key of another backend": (
        {"backend": "allocation", "queue": "batch"},
        'dispatch.queue = "batch": expected no such key unless dispatch.backend = "parsl"',
    ),
    "a key of both that request nodes": (
        {"backend": "allocation", "allocations": 2},
        'dispatch.allocations = 2: expected no such key unless dispatch.backend = "parsl" or "ray"',
    ),
    "a key that nothing reads": ({"backend": "local", "launcher": "srun"}, "dispatch.launcher"),
    "a request without a backend": (
        {"account": "ABC"},
        'dispatch.account = "ABC": expected no such key unless',
    ),
    "another scheduler's option": (
        ASKED | {"scheduler_options": ["#PBS -l x"]},
        "lines that begin with #SBATCH",
    ),
    "a shell in a word": (ASKED | {"queue": "batch; rm -rf ~"}, "one word, without blanks"),
    "a line's end in a word": (ASKED | {"account": "A\n#SBATCH --x"}, "one word, without blanks"),
    "two lines in one": (ASKED | {"worker_init": ["a\nb"]}, "a list of lines"),
    "few nodes": (ASKED | {"nodes_per_allocation": 1}, "at least cluster.nodes = 2"),
    "no nodes": (
        ASKED | {"nodes_per_allocation": 0},
        "dispatch.nodes_per_allocation = 0: expected at least 1",
    ),
    "an address without a port": (
        {"backend": "ray", "address": "ray://head"},
        'dispatch.address = "ray://head": expected auto, local, HOST:PORT or ray://HOST:PORT',
    ),
    "an address that Ray does not read": (
        {"backend": "parsl", "address": "auto"},
        "unless dispatch.backend = ",
    ),
    "a launcher under Ray": (
        {"backend": "ray", "launcher": "srun"},
        'dispatch.launcher = "srun": expected no such key unless dispatch.backend = "allocation"'
        ' or "parsl"',
    ),
    "unknown launcher": (ASKED | {"launcher": "ssh"}, "one of srun, mpiexec"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_names_key_value_and_what_was_expected(mistake: str) -> None:
    dispatch, message = MISTAKES[mistake]
    with pytest.raises(InvalidInput, match=re.escape(message)):
        spec_of(tiny(cluster=NODES, dispatch=dispatch))


def test_stored_campaign_of_lsf_is_read_and_ranked_but_not_resumed(tmp_path: Path) -> None:
    url = str(tmp_path / "s.db")
    plain = charted.spec()
    dispatch = DispatchSettings(
        backend="parsl",
        scheduler="lsf",
        walltime="01:00:00",
        scheduler_options=("#BSUB -alloc_flags smt1",),
    )
    spec = replace(plain, dispatch=dispatch)
    recipe = spec.space.survey(spec.problem).recipes[0]
    charted.recorded(tmp_path / "s.db", spec, [(recipe, [charted.measured(100.0, 0.5)])])

    assert LocalStore(url).status().campaign.name == spec.name
    assert [row.recipe for row in LocalStore(url).best()] == [recipe]
    refused = 'dispatch.scheduler = "lsf": frontrunner requests no nodes from LSF any more'
    with pytest.raises(InvalidInput, match=refused):
        measure(confirm=1, store=url)
    with pytest.raises(InvalidInput, match=refused):
        resume(store=url)


def source(dispatch: dict[str, Any], environment: dict[str, str], **cluster: int) -> Any:
    spec = spec_of(tiny(cluster=NODES | cluster, dispatch=dispatch))
    return node_source(spec.dispatch, spec.problem.cluster, environment)


def test_one_node_without_a_word_is_this_machine() -> None:
    assert source({}, {}, nodes=1) is None
    assert source({}, SLURM_JOB, nodes=1) is None


def test_several_nodes_are_those_of_the_job_at_hand() -> None:
    found = source({}, SLURM_JOB)
    assert (found.scheduler, found.nodes, found.launcher) == ("slurm", 2, "srun")
    assert found.held.nodes == ("n1", "n2")


def test_several_nodes_without_a_job_name_both_ways() -> None:
    with pytest.raises(InvalidInput, match=r"cluster\.nodes = 2: expected 1") as caught:
        source({}, {})
    assert caught.value.hint is not None
    assert "parsl" in caught.value.hint
    assert "salloc" in caught.value.hint


def test_a_job_of_fewer_nodes_is_refused() -> None:
    with pytest.raises(
        InvalidInput, match=re.escape("cluster.nodes = 3: expected at most the 2 of slurm job 12")
    ):
        source({}, SLURM_JOB, nodes=3)


def test_an_allocation_that_is_not_there_is_refused() -> None:
    with pytest.raises(InvalidInput, match="in no job"):
        source({"backend": "allocation"}, {})


def test_local_probes_do_not_reach_other_nodes() -> None:
    with pytest.raises(InvalidInput, match=r'dispatch.backend = "local"'):
        source({"backend": "local"}, SLURM_JOB)


def test_an_allocation_of_one_node_without_a_job_is_this_machine() -> None:
    found = source({"backend": "allocation"}, {}, nodes=1)
    assert (found.nodes, found.launcher, found.scheduler) == (1, "none", "this-machine")


RAY_SOURCES = {
    "CPU": ({"backend": "cpu"}, {"CPU": 4.0}),
    "GPU": ({"device": "h100", "backend": "cuda", "memory_gib_per_device": 80}, {"GPU": 4.0}),
}


@pytest.mark.parametrize("kind", RAY_SOURCES)
def test_ray_reserves_a_nodes_devices(kind: str) -> None:
    cluster, resources = RAY_SOURCES[kind]
    spec = spec_of(
        tiny(cluster=NODES | cluster | {"devices_per_node": 4}, dispatch={"backend": "ray"})
    )
    found = node_source(spec.dispatch, spec.problem.cluster, {})
    assert found is not None
    assert (found.nodes, found.node_resources, found.held) == (2, resources, None)


def test_ray_reserves_other_resources_beside_the_devices() -> None:
    found = source({"backend": "ray", "resources": {"accelerator_type:H100": 0.001}}, {})
    assert found.node_resources == {"CPU": 1.0, "accelerator_type:H100": 0.001}
    with pytest.raises(
        InvalidInput,
        match=r"dispatch\.resources\.CPU = 4\.0: expected no entry: cluster\.devices_per_node",
    ):
        source({"backend": "ray", "resources": {"CPU": 4}}, {})
    with pytest.raises(
        InvalidInput, match=r"dispatch\.resources\.x = 0\.0: expected an amount above 0"
    ):
        source({"backend": "ray", "resources": {"x": 0}}, {})


def test_a_local_ray_cluster_has_one_node() -> None:
    with pytest.raises(
        InvalidInput, match=r'cluster\.nodes = 2: expected 1 with dispatch\.address = "local"'
    ):
        source({"backend": "ray", "address": "local"}, {})


def test_commands_need_the_files_that_their_arguments_name() -> None:
    dispatch = {"backend": "ray", "shared_files": False}
    with pytest.raises(
        InvalidInput, match=r"dispatch\.shared_files = false: expected true with commands"
    ):
        spec_of(
            {"evaluator": "command"}
            | tiny(cluster=NODES, dispatch=dispatch, command={"arguments": ["train"]})
        )


LAUNCHES = {
    "srun": (
        "srun --nodes 2 --ntasks 2 --ntasks-per-node 1 --nodelist a,b --overlap --cpu-bind=none"
        " --mpi=none --kill-on-bad-exit=1 -x agent"
    ),
    "mpiexec": "mpiexec -n 2 -ppn 1 -hosts a,b -x agent",
    "mpirun": "mpirun -np 2 --map-by ppr:1:node --bind-to none --host a,b -x agent",
    "flux": "flux run -N 2 -n 2 --requires=hosts:a,b -o cpu-affinity=off -x agent",
}


@pytest.mark.parametrize("launcher", LAUNCHES)
def test_each_launcher_starts_one_agent_a_node(launcher: str) -> None:
    assert launch_command(launcher, ["-x"], ["a", "b"], ["agent"]) == LAUNCHES[launcher].split()


def test_no_launcher_serves_one_node_alone() -> None:
    assert launch_command("none", [], ["a"], ["agent"]) == ["agent"]
    with pytest.raises(ValueError, match="2 nodes need a launcher"):
        launch_command("none", [], ["a", "b"], ["agent"])


def test_agents_know_their_place_by_what_launchers_set() -> None:
    assert node_of({}, 1) == 0
    srun = {"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_LOCALID": "0", "SLURM_STEP_ID": "0"}
    assert node_of(srun | {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": "2"}, 2) == 1
    mpiexec = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "1"}
    assert node_of(mpiexec, 2) == 1
    with pytest.raises(InvalidInput, match="2 processes for a step of 3 nodes"):
        node_of(mpiexec, 3)
    with pytest.raises(InvalidInput, match=r"set dispatch\.launcher"):
        node_of({}, 2)


def two_nodes(folder: str, **changes: int) -> Step:
    values = {"world_size": 2, "nodes": 2, "ranks_per_node": 1} | changes
    return Step(
        token="1",
        run_folder=folder,
        engines=("torch",),
        environment={},
        deadline_s=1.0,
        lifeline="/l",
        silence_s=1.0,
        **values,
    )


def test_the_last_node_has_the_ranks_that_are_left() -> None:
    step = two_nodes("/r", world_size=6, ranks_per_node=4)
    assert [list(step.ranks_of(node)) for node in range(2)] == [[0, 1, 2, 3], [4, 5]]


def test_an_agent_without_its_place_says_what_to_set(tmp_path: Path) -> None:
    step = two_nodes(str(tmp_path))
    bare = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("PMI_", "SLURM_", "OMPI_"))
    }
    command = [sys.executable, "-P", "-m", step.agent, str(step.write())]
    agent = subprocess.run(command, env=bare, capture_output=True, text=True, check=False)
    assert agent.returncode == 1
    assert "dispatch.launcher" in agent.stderr
    assert "Traceback" not in agent.stderr


def test_schedulers_that_are_not_there_say_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    for scheduler in ("slurm", "pbs", "flux"):
        assert why_ended(scheduler, "1") is None
        assert seconds_left(scheduler, "1") is None


def test_a_node_needs_no_more_than_the_trainer_does() -> None:
    program = (
        "import sys; import frontrunner.evaluators.nodes.agent,"
        " frontrunner.evaluators.nodes.agent; print(*{name.partition('.')[0] for name in"
        " sys.modules})"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True
    )
    heavy = {
        "numpy",
        "pandas",
        "pydantic",
        "sqlalchemy",
        "parsl",
        "optuna",
        "click",
        "rich",
        "torch",
    }
    assert not heavy & set(done.stdout.split())


def test_an_interchange_whose_driver_is_gone_already_does_not_stay() -> None:
    command = [sys.executable, "-P", "-m", "frontrunner.evaluators.nodes.batch"]
    stranger = subprocess.run(
        [*command, "1"], stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=600
    )
    assert (stranger.returncode, stranger.stderr) == (1, b"")
