"""Campaigns on a real Slurm cluster of two nodes, through Parsl, and what Slurm does to them by
ending their jobs.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from frontrunner.evaluators.nodes.agent import AGENT, Step, StepFolder
from frontrunner.evaluators.nodes.supervisor import LOG, RUN_TAG, of_node, run_tag
from frontrunner.evaluators.runs.run_folder import RunFolder
from frontrunner.evaluators.runs.training import ReplayStopped
from frontrunner.results.outcome import Failure, FailureKind, Measurement
from support.campaigns import (
    assert_same_rows,
    command,
    frontrunner,
    marked,
    metrics,
    run_folders,
    started,
    steps_written,
    tiny,
    wait_for,
    wait_until_none,
    write_toml,
)
from support.slurm import SlurmCluster, missing_programs, slurm_cluster

pytestmark = [
    pytest.mark.skipif(
        bool(missing_programs()), reason=f"Slurm is not installed: {', '.join(missing_programs())}"
    ),
]
TWO_NODES = {
    "tensor_parallel": [1],
    "pipeline_parallel": [1],
    "micro_batch_seqs": [2],
    "devices": [2],
}
ASKED = {
    "backend": "parsl",
    "scheduler": "slurm",
    "walltime": "01:00:00",
    "network_interface": "lo",
    "driver_address": "127.0.0.1",
    "lifeline_s": 10,
}
REQUESTED = ("backend", "scheduler", "walltime", "driver_address")
"""Keys of [dispatch] that a campaign within a held job does not have."""
TRAINER = Path(__file__).parent.parent / "support" / "joined_trainer.py"
FLAGS = [
    "{replay?--ends}",
    "--steps",
    "{steps}",
    "--micro-batch",
    "{micro_batch_seqs}",
    "--node-rank",
    "{node_rank}",
]
JOINED = {
    "arguments": ["{python}", str(TRAINER), *FLAGS],
    "log_patterns": [r"^step (?P<step>\\d+): (?P<step_time_s>[\\d.]+) s loss (?P<loss>\\S+)"],
    "start_per": "rank",
}
"""Another trainer over both nodes, whose last rank logs the steps."""
LONG = {"measured_steps": 300, "deadline_s": 120, "step_deadline_s": 60}
"""Steps enough that a person, or Slurm, can come in between."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    with slurm_cluster(tmp_path_factory.mktemp("slurm")) as made:
        yield made


@pytest.fixture(autouse=True)
def slurm(cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmCluster]:
    """The cluster, with nothing on it before and after."""
    for key, value in cluster.environment.items():
        monkeypatch.setenv(key, value)
    yield cluster
    if jobs := cluster.jobs():
        cluster.run("scancel", *jobs)
    wait_until_none(cluster.jobs)
    wait_for(lambda: _is_usable(cluster))


def _is_usable(cluster: SlurmCluster) -> bool:
    return set(cluster.run("sinfo", "--noheader", "--Node", "--format=%t").split()) == {"idle"}


def campaign(folder: Path, **sections: dict[str, Any]) -> str:
    base: dict[str, Any] = {
        "cluster": {"nodes": 2, "devices_per_node": 1},
        "space": TWO_NODES,
        "dispatch": ASKED,
    }
    for name, section in sections.items():
        base[name] = {**base.get(name, {}), **section}
    return write_toml(folder / "tiny.toml", tiny(**base)).name


def held_campaign(folder: Path, **sections: dict[str, Any]) -> str:
    """A campaign that takes the nodes of the job that its driver is in."""
    name = campaign(folder, **sections)
    before, section, keys = (folder / name).read_text().partition("[dispatch]\n")
    kept = [line for line in keys.splitlines() if line.partition(" ")[0] not in REQUESTED]
    (folder / name).write_text("\n".join([before + section, *kept]))
    return name


def outcomes(folder: Path) -> list[Any]:
    return [RunFolder(path).outcome() for path in run_folders(folder)]


def wait_for_stepping(folder: Path) -> Path:
    """The first run folder whose ranks step on both nodes."""
    return Path(
        wait_for(lambda: next((p for p in run_folders(folder) if steps_written(p) > 3), None))
    )


def finish(process: subprocess.Popen[str], folder: Path, *, code: int = 0) -> None:
    assert process.wait(200) == code, (folder / "stderr").read_text()


def test_recipes_of_one_and_two_nodes_share_an_allocation(
    tmp_path: Path, slurm: SlurmCluster
) -> None:
    space = TWO_NODES | {"devices": [1, 2], "micro_batch_seqs": [2, 4]}
    name = campaign(
        tmp_path, space=space, search={"parallel_probes": 4}, probe={"measured_steps": 20}
    )
    done = frontrunner("launch", name, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    folders = run_folders(tmp_path)
    assert len(folders) == 4
    hosts: dict[int, list[str]] = {1: [], 2: []}
    for path in folders:
        found = [StepFolder(path).report(node) for node in range(2)]
        names = [report.host for report in found if report is not None]
        assert len(names) == len(set(names))
        hosts[len(names)] += names
    assert sorted(hosts[2]) == sorted([*slurm.nodes, *slurm.nodes])
    assert sorted(hosts[1]) == sorted(slurm.nodes), "side by side, on a node each"
    assert slurm.run("scontrol", "show", "jobs").count("JobId=") >= 1
    wait_until_none(slurm.jobs)  # the allocation is given back


@pytest.mark.nightly
def test_a_walltime_that_expires_costs_an_attempt(tmp_path: Path, slurm: SlurmCluster) -> None:
    name = campaign(tmp_path, probe=LONG | {"measured_steps": 3000, "deadline_s": 200})
    with started("launch", name, cwd=tmp_path) as process:
        wait_for_stepping(tmp_path)
        (job,) = slurm.running()
        slurm.run(
            "scontrol", "update", f"jobid={job}", "endtime=now"
        )  # its limit goes with it; Slurm looks each 30 s
        wait_for(lambda: any(isinstance(found, Failure) for found in outcomes(tmp_path)))
        process.send_signal(signal.SIGUSR2)  # end what runs
        process.wait(200)
    cut = outcomes(tmp_path)[0]
    assert cut.kind is FailureKind.LOST
    assert "TIMEOUT" in cut.message


@contextmanager
def losing_probes(node: str) -> Iterator[None]:
    """Kill every agent of a probe that starts on a node; checks of it are let be."""
    is_over = threading.Event()

    def kill() -> None:
        while not is_over.wait(0.1):
            for process in psutil.process_iter():
                with suppress(psutil.Error):
                    if (
                        AGENT in process.cmdline()[:4]
                        and process.environ().get("SLURMD_NODENAME") == node
                    ):
                        process.kill()

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        yield
    finally:
        is_over.set()
        killer.join()


@pytest.mark.nightly
def test_a_node_that_loses_every_probe_is_set_aside_and_the_campaign_goes_on_with_the_other(
    tmp_path: Path, slurm: SlurmCluster
) -> None:
    space = TWO_NODES | {
        "devices": [1],
        "micro_batch_seqs": [1, 2, 4],
        "recompute": ["none", "full"],
    }
    name = campaign(
        tmp_path,
        space=space,
        search={"parallel_probes": 2, "seed": 1},
    )
    bad = slurm.nodes[0]
    with losing_probes(bad):
        done = frontrunner("launch", name, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"node {bad} is set aside, until a check after" in done.stderr
    hosts = [Step.read(path / "step.json").hosts for path in run_folders(tmp_path)]
    lost = [isinstance(outcome, Failure) for outcome in outcomes(tmp_path)]
    assert lost == [host == (bad,) for host in hosts], "and nothing was lost on the other"
    assert hosts.count((bad,)) == 2
    status = json.loads(frontrunner("status", "--json", cwd=tmp_path).stdout)
    (aside,) = status["nodes_aside"]
    assert (aside["node"], aside["troubles"][0]["kind"]) == (bad, "lost")
    assert status["trials"]["measured"] == 6
    assert f"node {bad} was set aside from" in frontrunner("status", cwd=tmp_path).stdout
    assert frontrunner("report", "--out", "report.html", cwd=tmp_path).returncode == 0
    assert f"Node {bad} was set aside from" in (tmp_path / "report.html").read_text()


@pytest.mark.nightly
def test_too_few_nodes_pause_the_campaign_and_a_check_lets_the_next_driver_go_on(
    tmp_path: Path, slurm: SlurmCluster
) -> None:
    name = campaign(tmp_path, dispatch={"quarantine_after": 1, "quarantine_minutes": 0.02})
    bad = slurm.nodes[1]
    with losing_probes(bad):
        done = frontrunner("launch", name, cwd=tmp_path)
    assert done.returncode == 6, done.stderr
    assert "Requested node configuration is not available" in done.stderr, (
        "both nodes without the bad one"
    )
    assert f"; node {bad} is set aside since" in done.stderr
    resumed = frontrunner("resume", "tiny", cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    assert f"node {bad} was checked, is fine, and is used again" in resumed.stderr
    assert not isinstance(outcomes(tmp_path)[-1], Failure)


@pytest.mark.nightly
def test_a_campaign_within_a_held_job_uses_its_nodes(tmp_path: Path, slurm: SlurmCluster) -> None:
    name = held_campaign(tmp_path)
    launch = subprocess.list2cmdline(command("launch", name))
    slurm.run(
        "sbatch", "-N2", "--exclusive", f"--chdir={tmp_path}", "--output=out", f"--wrap={launch}"
    )
    wait_until_none(slurm.jobs)
    (measured,) = outcomes(tmp_path)
    assert not isinstance(measured, Failure), (tmp_path / "out").read_text()
    reports = [StepFolder(run_folders(tmp_path)[0]).report(node) for node in range(2)]
    assert [report.host for report in reports if report is not None] == list(slurm.nodes)


@pytest.mark.nightly
def test_a_driver_s_job_is_followed_by_others_until_the_campaign_is_over(
    tmp_path: Path, slurm: SlurmCluster
) -> None:
    """Whatever a job has measured when its time is cut is neither lost nor measured again by the
    next.
    """
    space = TWO_NODES | {"micro_batch_seqs": [1, 2, 4, 8], "recompute": ["none", "full"]}
    space["sharding"] = ["none", "zero-1", "zero-2", "zero-3"]
    probe = {"measured_steps": 150, "deadline_s": 600}
    name = held_campaign(tmp_path, space=space, probe=probe, problem={"global_batch": 16})
    exported = frontrunner("export", name, "--to", "slurm", cwd=tmp_path)
    assert exported.returncode == 0, exported.stderr
    script, said = tmp_path / "drive.sh", tmp_path / "out"
    script.write_text(exported.stdout.replace("\npython -m", f"\n{sys.executable} -m"))
    slurm.run("sbatch", "--time=20", f"--chdir={tmp_path}", "--output=out", str(script))

    def measured() -> int:
        slurm.shorten_holds()
        return sum(isinstance(found, Measurement) for found in outcomes(tmp_path))

    for stops in (1, 2):
        before = measured()
        wait_for(lambda before=before: measured() > before, 200, pause_s=0.5)
        (job,) = slurm.running()
        minutes = int(
            slurm.run("squeue", "--noheader", f"--job={job}", "--format=%M").rpartition(":")[0]
        )
        slurm.run(
            "scontrol", "update", f"jobid={job}", f"timelimit={minutes + 2}"
        )  # the driver looks every 30 s
        wait_for(
            lambda stops=stops: said.read_text().count("stopped: its job ends in") == stops,
            200,
            pause_s=0.5,
        )
        wait_until_none(slurm.running)
        wait_for(slurm.jobs)
        slurm.run("scontrol", "update", f"jobid={job}", "timelimit=20")
    wanted = measured() + 2
    assert frontrunner("budget", "tiny", "--probes", str(wanted), cwd=tmp_path).returncode == 0
    wait_for(lambda: measured() and "campaign tiny finished" in said.read_text(), 300, pause_s=0.5)
    wait_until_none(slurm.jobs)
    found = json.loads(frontrunner("status", "tiny", "--json", cwd=tmp_path).stdout)
    assert found["campaign"]["state"] == "finished", said.read_text()
    ranked = json.loads(frontrunner("best", "tiny", "--json", "--top", "40", cwd=tmp_path).stdout)
    assert measured() == len(ranked) == wanted < 32, "each recipe once"
    assert frontrunner("store", "check", cwd=tmp_path).returncode == 0


def test_a_refused_request_pauses_the_campaign_with_slurms_words(tmp_path: Path) -> None:
    done = frontrunner("launch", campaign(tmp_path, dispatch={"queue": "nosuch"}), cwd=tmp_path)
    assert done.returncode == 6
    assert "invalid partition" in done.stderr
    assert "frontrunner resume tiny" in done.stderr


def test_a_setup_that_fails_everywhere_pauses_the_campaign_with_its_last_words(
    tmp_path: Path,
) -> None:
    name = campaign(tmp_path, dispatch={"worker_init": ["echo no module named rocm >&2", "exit 3"]})
    done = frontrunner("launch", name, cwd=tmp_path)
    assert done.returncode == 6
    assert "no module named rocm" in done.stderr
    assert "Traceback" not in done.stderr


def commands(folder: Path, **sections: Any) -> str:
    sections["command"] = JOINED | sections.get("command", {})
    name = campaign(folder, **sections)
    (folder / name).write_text('evaluator = "command"\n' + (folder / name).read_text())
    return name


def tagged(folder: Path) -> list[psutil.Process]:
    """What commands of a folder's campaign still run, on any node."""
    return [
        process
        for path in run_folders(folder)
        for node in (0, 1)
        for process in marked(RUN_TAG, run_tag(path, node))
    ]


@pytest.mark.nightly
def test_a_command_s_ranks_run_on_every_node_and_end_with_it(
    tmp_path: Path, slurm: SlurmCluster
) -> None:
    done = frontrunner("launch", commands(tmp_path), "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (measured,) = outcomes(tmp_path)
    assert not isinstance(measured, Failure), measured
    assert 0.04 < measured.step_time_s_median < 1
    assert measured.losses[0] == 2.0, "of two ranks"
    (folder,) = run_folders(tmp_path)
    names = ",".join(slurm.nodes)
    for node in (0, 1):
        log = (folder / of_node(LOG, node)).read_text()
        assert f"rank {node} of 2 on node {node} of {names}" in log
    assert not tagged(tmp_path)
    recipe_id = json.loads(done.stdout)["best"][0]["recipe_id"]
    replayed = frontrunner("replay", recipe_id, "--steps", "40", "--json", cwd=tmp_path)
    assert replayed.returncode == 0, replayed.stderr
    found = json.loads(replayed.stdout)
    assert found["final_step"] == 40
    assert 0.5 < found["ratio_to_probe"] < 2
    wait_until_none(slurm.jobs)


@pytest.mark.nightly
def test_a_command_s_replay_takes_other_nodes_before_a_walltime_and_after_a_canceled_job(
    tmp_path: Path, slurm: SlurmCluster
) -> None:
    checkpoint, folder = tmp_path / "checkpoint", tmp_path / "long"
    flags = [
        "--steps",
        "{steps}",
        "{replay?--checkpoint}",
        f"{{replay?{checkpoint}}}",
        "--others",
        "{devices}",
    ]
    program = ["{python}", str(TRAINER.with_name("resuming_trainer.py"))]
    name = commands(
        tmp_path,
        command={"arguments": [*program, *flags], "start_per": "node"},
        space={"devices": [1]},
    )
    done = frontrunner("launch", name, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    recipe = json.loads(done.stdout)["best"][0]["recipe_id"]
    options = (
        "--folder",
        "long",
        "--steps",
        "1500",
        "--walltime",
        "00:02:00",
        "--stop-margin",
        "90",
    )
    with started("replay", recipe, *options, cwd=tmp_path) as process:
        wait_for(checkpoint.exists, 60, pause_s=0.1)
        slurm.run("scancel", *slurm.running())
        finish(process, tmp_path)
    assert "CANCELLED" in noted(folder, "failed")[0]["why"]
    assert noted(folder, "stopped"), "a walltime"
    logs = [path / LOG for path in sorted((folder / "starts").iterdir())]
    firsts = [int(re.search(r"step (\d+):", log.read_text())[1]) for log in logs]  # type: ignore[index]
    assert len(firsts) == len(noted(folder, "start")) >= 3
    assert firsts == sorted(set(firsts)), "each goes on from a later checkpoint"
    wait_until_none(slurm.jobs)  # the allocations are given back


# Replays of a recipe of two nodes.
STEPS = 600
REPLAY = ("--steps", str(STEPS), "--checkpoint-every", "20", "--evaluate-every", "300")
LARGER: dict[str, dict[str, Any]] = {
    "model": {"layers": 4, "hidden": 128},
    "problem": {"sequence_length": 64},
    "probe": {"measured_steps": 20},
}
"""A model whose steps take long enough that Slurm can come in between."""


@contextmanager
def using(cluster: SlurmCluster) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        for key, value in cluster.environment.items():
            patched.setenv(key, value)
        yield


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory, cluster: SlurmCluster) -> tuple[Path, str]:
    """A folder with a store, and the id of its one measured recipe, of two nodes."""
    folder = tmp_path_factory.mktemp("measured")
    with using(cluster):
        done = frontrunner("launch", campaign(folder, **LARGER), "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder, json.loads(done.stdout)["best"][0]["recipe_id"]


@pytest.fixture(scope="module")
def uninterrupted(measured: tuple[Path, str], cluster: SlurmCluster) -> list[dict[str, str]]:
    """The metrics of a replay that nothing happened to."""
    folder, recipe = measured
    with using(cluster):
        done = frontrunner("replay", recipe, *REPLAY, "--folder", "whole", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert json.loads((folder / "whole" / "result.json").read_text())["final_step"] == STEPS
    return metrics(folder / "whole")


def noted(folder: Path, event: str) -> list[dict[str, Any]]:
    """The events of a kind in a replay's own log."""
    lines = (
        (folder / "replay.log").read_text().splitlines() if (folder / "replay.log").exists() else []
    )
    return [found for line in lines if (found := json.loads(line))["event"] == event]


def wait_for_steps(folder: Path, more: int) -> None:
    """Wait until ranks that were started again have made so many steps."""
    before = steps_written(folder)
    wait_for(lambda: steps_written(folder) >= before + more, 120, pause_s=0.1)


@pytest.mark.nightly
@pytest.mark.timeout(1200)
def test_a_replay_goes_on_after_a_canceled_job_a_lost_node_and_a_stopped_and_a_killed_driver(
    measured: tuple[Path, str], uninterrupted: list[dict[str, str]], slurm: SlurmCluster
) -> None:
    home, recipe = measured
    folder, arguments = home / "struck", ("replay", recipe, *REPLAY, "--folder", "struck")
    with started(*arguments, cwd=home) as process:
        wait_for_steps(folder, 50)
        slurm.run("scancel", *slurm.running())
        wait_for(lambda: len(noted(folder, "start")) == 2)
        wait_for_steps(folder, 50)
        slurm.set_node(slurm.nodes[1], "down")
        wait_for(lambda: len(noted(folder, "failed")) == 2)
        slurm.set_node(slurm.nodes[1], "resume")
        wait_for(lambda: len(noted(folder, "start")) == 3)
        wait_for_steps(folder, 20)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=600) == ReplayStopped.exit_code
    wait_until_none(slurm.jobs)  # the allocation is given back
    stopped = json.loads((folder / "result.json").read_text())["final_step"]
    with started(*arguments, cwd=home) as process:
        wait_for_steps(folder, 20)
        process.send_signal(signal.SIGKILL)
        process.wait()
    again = frontrunner(*arguments, cwd=home)
    assert again.returncode == 0, again.stderr
    cancelled, down = (found["why"] for found in noted(folder, "failed"))
    assert "CANCELLED" in cancelled
    assert "NODE_FAIL" in down
    first, *others = [found["from_checkpoint"] for found in noted(folder, "start")]
    assert first == 0 < others[0]
    assert others[2] == stopped
    assert len(others) == 4
    assert_same_rows(metrics(folder), uninterrupted, STEPS)
    wait_until_none(slurm.jobs)  # the allocation is given back


@pytest.mark.nightly
def test_a_batch_script_submits_itself_again_until_the_replay_is_done(
    measured: tuple[Path, str],
    uninterrupted: list[dict[str, str]],
    slurm: SlurmCluster,
    tmp_path: Path,
) -> None:
    home, recipe = measured
    exported = frontrunner("export", recipe, "--to", "slurm", cwd=home)
    assert exported.returncode == 0, exported.stderr
    margin = '"$([ "${SLURM_RESTART_COUNT:-0}" -lt 2 ] && echo 95 || echo 20)"'  # of two minutes
    options = " ".join((*REPLAY[2:], "--anyway", "--stop-margin", margin))
    script = exported.stdout.replace('--steps "$STEPS"', f'--steps "$STEPS" {options}')
    (tmp_path / "replay.sh").write_text(script.replace("\npython -m", f"\n{sys.executable} -m"))
    export = f"--export=ALL,STEPS={STEPS},FOLDER={tmp_path}"
    slurm.run(
        "sbatch",
        "--time=2",
        export,
        f"--chdir={tmp_path}",
        "--output=out",
        str(tmp_path / "replay.sh"),
    )
    folder, said = tmp_path / "run", tmp_path / "out"
    wait_for(said.exists)

    def is_done() -> bool:
        slurm.shorten_holds()
        assert "too little is left" not in said.read_text(), "it took longer than 25 s to start"
        return f"trained to step {STEPS}" in said.read_text()

    wait_for(is_done, 800, pause_s=1.0)
    assert noted(folder, "stopping"), (
        "once on a fast machine, which needs two jobs, and more often on others"
    )
    assert not noted(folder, "failed"), "it stopped before its time was up"
    assert_same_rows(metrics(folder), uninterrupted, STEPS)


@pytest.mark.nightly
def test_a_profile_of_two_nodes_has_the_traces_of_both(
    measured: tuple[Path, str], tmp_path: Path
) -> None:
    home, recipe = measured
    done = frontrunner("profile", recipe, "--folder", str(tmp_path / "p"), "--json", cwd=home)
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["ranks"]) == 2
    reports = [StepFolder(tmp_path / "p").report(node) for node in range(2)]
    assert len({report.host for report in reports if report is not None}) == 2
