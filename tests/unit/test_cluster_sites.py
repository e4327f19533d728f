"""The ready campaign files of the sites: they read, have recipes, and make scripts that say what
they should.

No such machine is at hand. What can be tested here is everything up to the batch system: the submit
script as the provider writes it, run by bash with the site's own commands stubbed, and the command
that starts a node's agent.
"""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import pytest

from frontrunner.config.campaign import CampaignFile, read_campaign_file
from frontrunner.evaluators.nodes.backends import node_source
from frontrunner.evaluators.nodes.batch import launch_command, make_provider

ROOT = Path(__file__).parents[2]
SITES = sorted((ROOT / "examples" / "sites").glob("*.toml"))
DOCUMENT = (ROOT / "docs" / "clusters.md").read_text(encoding="utf-8")
ANSWERS = {"sbatch": "Submitted batch job 7", "qsub": "7.pbs"}
STUBS = "module() { :; }; conda() { :; }; source() { :; };"
SLINGSHOT = {"FI_CXI_DEFAULT_CQ_SIZE": "131072"}


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What a site's script and environment must hold, from its guide."""

    scheduler: str
    nodes: int
    per_node: int
    head: tuple[str, ...]
    environment: MappingProxyType[str, str]
    launch: str


EXPECTED = {
    "frontier": Expected(
        scheduler="slurm", nodes=8, per_node=8,
        head=("--nodes=8", "--time=120", "--partition=batch", "--account=ABC123",
            "--cpus-per-task=56", "--exclusive"),
        environment=MappingProxyType(SLINGSHOT | {"FI_MR_CACHE_MONITOR": "kdreg2",
            "NCCL_CROSS_NIC": "1",
                                                  "MIOPEN_USER_DB_PATH": "/tmp/miopen-me"}),
        launch="srun --nodes 2 --ntasks 2 --ntasks-per-node 1 --nodelist a,b",
    ),
    "polaris": Expected(
        scheduler="pbs", nodes=4, per_node=4,
        head=("-l walltime=01:00:00", "-l select=4:ncpus=64:ngpus=4", "-l filesystems=home:eagle",
            "-l place=scatter"),
        environment=MappingProxyType(SLINGSHOT | {"FI_MR_CACHE_MONITOR": "userfaultfd",
            "NCCL_NET": "AWS Libfabric",
                                                  "FI_CXI_DISABLE_HOST_REGISTER": "1"}),
        launch="mpiexec -n 2 -ppn 1 -hosts a,b --cpu-bind depth --depth=64",
    ),
    "aurora": Expected(
        scheduler="pbs", nodes=4, per_node=12,
        head=("-l walltime=01:00:00", "-l select=4:ncpus=208", "-l filesystems=home:flare"),
        environment=MappingProxyType({"ZE_FLAT_DEVICE_HIERARCHY": "FLAT",
            "CCL_ATL_TRANSPORT": "ofi",
            "CCL_ALLREDUCE_SCALEOUT": "direct:0-1048576;rabenseifner:1048577-max"}),
        launch="mpiexec -n 2 -ppn 1 -hosts a,b --cpu-bind=list:1-51,53-103,105-155,157-207",
    ),
    "perlmutter": Expected(
        scheduler="slurm", nodes=4, per_node=4,
        head=("--nodes=4", "--time=120", "--qos=regular", "--constraint=gpu", "--account=m1234_g",
              "--gpus-per-node=4", "--cpus-per-task=128"),
        environment=MappingProxyType(SLINGSHOT | {"FI_MR_CACHE_MONITOR": "userfaultfd"}),
        launch="srun --nodes 2 --ntasks 2 --ntasks-per-node 1 --nodelist a,b",
    ),
    "slurm": Expected(
        scheduler="slurm", nodes=2, per_node=8,
        head=("--nodes=2", "--time=120", "--partition=gpu", "--account=myaccount",
            "--gpus-per-node=8", "--mem=0"),
        environment=MappingProxyType({}),
        launch="srun --nodes 2 --ntasks 2 --ntasks-per-node 1 --nodelist a,b",
    ),
}  # fmt: skip


@pytest.fixture(params=SITES, ids=lambda path: path.stem)
def site(request: pytest.FixtureRequest) -> tuple[str, CampaignFile]:
    """Each file with its name."""
    return request.param.stem, read_campaign_file(request.param)


@pytest.fixture
def script(site: tuple[str, CampaignFile], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The submit script that the site's file leads to, as the batch system would be handed it."""
    for name, answer in ANSWERS.items():
        (tmp_path / name).write_text(
            f'#!/bin/sh\necho "# asked: $@" > {tmp_path}/arguments\necho "{answer}"\n'
        )
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    spec = site[1].spec
    source = node_source(spec.dispatch, spec.problem.cluster)
    assert source is not None
    make_provider(source, tmp_path).submit("THE_WORKERS", tasks_per_node=1, job_name="frontrunner")
    arguments = (tmp_path / "arguments").read_text()
    return Path(arguments.split()[-1]).read_text() + arguments


def test_every_site_has_its_expectations_and_its_place_in_the_documents() -> None:
    assert {path.stem for path in SITES} == set(EXPECTED)
    for path in SITES:
        assert f"examples/sites/{path.name}" in DOCUMENT


def test_a_site_s_file_has_legal_recipes_on_its_nodes(site: tuple[str, CampaignFile]) -> None:
    name, file = site
    expected, cluster = EXPECTED[name], file.spec.problem.cluster
    assert (cluster.nodes, cluster.devices_per_node) == (expected.nodes, expected.per_node)
    assert len(file.spec.space.survey(file.spec.problem).recipes) >= 12


def test_a_site_s_store_lies_on_no_shared_file_system(site: tuple[str, CampaignFile]) -> None:
    store = site[1].store
    assert store.url is not None
    assert store.run_folder is not None
    assert store.url.startswith(("/tmp/", "/var/tmp/"))
    assert not store.run_folder.startswith(("/tmp/", "/var/tmp/"))


def test_a_site_s_script_asks_for_what_its_guide_says(
    site: tuple[str, CampaignFile], script: str
) -> None:
    name, file = site
    expected, settings = EXPECTED[name], file.spec.dispatch
    prefix = {"slurm": "#SBATCH ", "pbs": "#PBS "}[expected.scheduler]
    asked = {line.removeprefix(prefix) for line in script.splitlines() if line.startswith(prefix)}
    assert set(expected.head) <= asked
    if expected.scheduler == "pbs":
        assert "# asked: -q debug-scaling -A MyProject" in script
    lines = script.splitlines()
    placed = [lines.index(line) for line in settings.worker_init]
    assert placed == sorted(placed)
    assert placed[-1] < next(number for number, line in enumerate(lines) if "THE_WORKERS" in line)


def test_a_site_s_script_is_bash_and_sets_its_environment(
    site: tuple[str, CampaignFile], script: str
) -> None:
    name, file = site
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0
    lines = "\n".join(file.spec.dispatch.worker_init)
    done = subprocess.run(
        ["bash", "-c", f"{STUBS}\nset -e\n{lines}\nenv -0"],
        env={"PATH": os.environ["PATH"], "USER": "me", "LD_LIBRARY_PATH": "/before",
            "ZE_AFFINITY_MASK": "0"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = dict(entry.partition("=")[::2] for entry in done.stdout.split("\0"))
    assert EXPECTED[name].environment.items() <= found.items()
    assert found["LD_LIBRARY_PATH"].endswith("/before")
    if name == "aurora":
        assert "ZE_AFFINITY_MASK" not in found


def test_a_site_s_agents_are_started_once_a_node(site: tuple[str, CampaignFile]) -> None:
    name, file = site
    source = node_source(file.spec.dispatch, file.spec.problem.cluster)
    assert source is not None
    command = launch_command(
        source.launcher, file.spec.dispatch.launcher_options, ["a", "b"], ["AGENT"]
    )
    assert " ".join(command).startswith(EXPECTED[name].launch)
    assert command[-1] == "AGENT"


@pytest.mark.parametrize("path", SITES, ids=lambda path: path.stem)
def test_a_site_s_file_says_where_it_is_from_and_when(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    comment = text.partition("[model]")[0]
    assert "https://" in comment
    assert f"examples/sites/{path.name}" in comment
    if path.stem != "slurm":
        assert re.search(r"read 20\d\d-\d\d-\d\d", comment)
        assert f"Not tried on {path.stem.capitalize()}" in comment
    assert tomllib.loads(text)["cluster"]["preset"]
