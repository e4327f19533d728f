"""Node agents: the ranks of a probe on two nodes, and every way in which they end."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from frontrunner.evaluators.nodes.agent import Heartbeat, Step, StepFolder
from frontrunner.evaluators.protocol import ProbeSetup
from frontrunner.evaluators.registry import make_evaluator
from frontrunner.evaluators.runs.run_folder import RunFolder
from support.agents import command_of, reports, start_agents, step_of
from support.campaigns import is_alive, order, setup_of, steps_written, tiny_recipe, wait_for

RECIPE = tiny_recipe(devices=2)


class Nodes:
    """Two nodes at work on a probe of one rank each, which steps until it is ended."""

    def __init__(self, folder: Path, **changes: object) -> None:
        self.setup = setup_of(
            folder, cluster={"nodes": 2, "devices_per_node": 1}, probe={"measured_steps": 100_000}
        )
        self.heart = Heartbeat(folder / "lifeline")
        self.one = order(self.setup, RECIPE)
        self.step = step_of(self.one, self.setup, nodes=2, lifeline=folder / "lifeline", **changes)
        self.folder = StepFolder(self.one.run_folder)
        self.agents = start_agents(self.step)

    def wait_until_stepping(self) -> None:
        wait_for(lambda: steps_written(self.one.run_folder) > 2 and len(reports(self.step)) == 2)

    def processes(self) -> list[psutil.Process]:
        return [
            p for agent in self.agents for p in psutil.Process(agent.pid).children(recursive=True)
        ]

    def wait_until_ended(self, timeout_s: float = 20.0) -> None:
        for agent in self.agents:
            agent.wait(timeout_s)

    def close(self) -> None:
        self.heart.stop()
        for agent in self.agents:
            agent.kill()
            agent.wait()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Nodes]]:
    made: list[Nodes] = []

    def start_nodes(*, until_stepping: bool = True, **changes: object) -> Nodes:
        made.append(Nodes(tmp_path, **changes))
        if until_stepping:
            made[-1].wait_until_stepping()
        return made[-1]

    yield start_nodes
    for nodes in made:
        nodes.close()


def test_two_nodes_compute_what_one_does(tmp_path: Path) -> None:
    setup = setup_of(tmp_path, cluster={"nodes": 2, "devices_per_node": 1})
    one = order(setup, RECIPE, "two")
    heart = Heartbeat(tmp_path / "lifeline")
    step = step_of(one, setup, nodes=2, lifeline=tmp_path / "lifeline")
    for agent in start_agents(step):
        assert agent.wait(90) == 0
    heart.stop()
    assert [report.statuses for report in reports(step)] == [{0: 0}, {1: 0}]
    assert all(report.ended and not report.killed for report in reports(step))
    there = RunFolder(one.run_folder).own("result.json")
    here = _on_one_machine(setup_of(tmp_path / "one"))
    assert there is not None
    assert there["losses"] == pytest.approx(here, rel=1e-6)


def _on_one_machine(setup: ProbeSetup) -> list[float]:
    evaluator = make_evaluator("probe", setup)
    one = order(setup, RECIPE)
    evaluator.start(one)
    wait_for(lambda: evaluator.finished(0.25))
    evaluator.close()
    result = RunFolder(one.run_folder).own("result.json")
    assert result is not None
    return list(result["losses"])


def test_a_cancelled_step_ends_on_every_node(start: Callable[..., Nodes]) -> None:
    nodes = start()
    processes = nodes.processes()
    assert len(processes) == 4, "a fork server and a rank for each node"
    nodes.folder.cancel()
    nodes.wait_until_ended()
    assert not any(map(is_alive, processes))
    told = reports(nodes.step)
    assert [sorted(report.statuses) for report in told] == [[0], [1]]
    assert (0,) in [report.killed for report in told] or (1,) in [report.killed for report in told]
    assert all(0 not in report.statuses.values() for report in told), (
        "the first that is killed may fail the other"
    )


def test_a_silent_driver_ends_the_ranks(start: Callable[..., Nodes]) -> None:
    nodes = start(silence_s=6.0)
    nodes.heart._stopped.set()  # the file stays and stands still, as when its driver was killed
    processes = nodes.processes()
    nodes.wait_until_ended()
    assert not any(map(is_alive, processes))


def test_a_rank_that_is_killed_on_one_node_ends_those_of_the_other(
    start: Callable[..., Nodes],
) -> None:
    nodes = start()
    processes = nodes.processes()
    server = psutil.Process(nodes.agents[1].pid).children()[0]
    os.kill(server.children()[0].pid, signal.SIGKILL)
    nodes.wait_until_ended()
    assert not any(map(is_alive, processes))
    first, second = reports(nodes.step)
    assert second.statuses == {1: -9}
    assert not second.killed, "somebody else killed it"
    assert first.statuses[0] != 0


@pytest.mark.nightly
def test_an_agent_that_is_told_to_end_says_so(start: Callable[..., Nodes]) -> None:
    nodes = start()
    for agent in nodes.agents:
        agent.terminate()
    nodes.wait_until_ended()
    assert [report.interrupted for report in reports(nodes.step)] == ["SIGTERM", "SIGTERM"]


@pytest.mark.nightly
def test_ranks_go_with_an_agent_that_is_killed(start: Callable[..., Nodes]) -> None:
    nodes = start()
    processes = nodes.processes()
    for agent in nodes.agents:
        agent.kill()
    wait_for(lambda: not any(map(is_alive, processes)))


def test_an_agent_without_its_place_says_what_to_set(tmp_path: Path) -> None:
    setup = setup_of(tmp_path, cluster={"nodes": 2, "devices_per_node": 1})
    step: Step = step_of(order(setup, RECIPE), setup, nodes=2, lifeline=tmp_path / "lifeline")
    bare = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("PMI_", "SLURM_", "OMPI_"))
    }
    agent = subprocess.run(command_of(step), env=bare, capture_output=True, text=True, check=False)
    assert agent.returncode == 1
    assert "dispatch.launcher" in agent.stderr
