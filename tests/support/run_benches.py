"""Each program on each place, as a probe and as a training: what `tests/contract/test_runs.py` runs
and disturbs.

A case sees what the evaluator and the replay show: orders, progress, outcomes, the files of an
attempt, and the processes that are left. As a program, this is a driver that does nothing but run
one probe or training, to be killed:

    python -m support.run_benches PROGRAM PLACE.json probe|training FOLDER
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import psutil
import pytest

from frontrunner.evaluators.nodes.settings import DispatchSettings
from frontrunner.evaluators.programs import command_replay, rank_replay
from frontrunner.evaluators.programs.command import Command, CommandRequest
from frontrunner.evaluators.programs.command_settings import CommandSettings
from frontrunner.evaluators.programs.trainers import configured
from frontrunner.evaluators.protocol import Finished, ProbeOrder, ProbeSetup, Progress
from frontrunner.evaluators.registry import command_probe, training_probe
from frontrunner.evaluators.runs.probes import Probes
from frontrunner.evaluators.runs.training import OnEvent, ReplayResult, ReplaySettings
from frontrunner.evaluators.trainer.job import complete_steps
from frontrunner.spaces.legality import Reason
from support import fake_pbs
from support.campaigns import Table, is_alive, setup_of, steps_written, tiny_recipe, wait_for
from support.ray_cluster import RayCluster, ray_cluster

ENDLESS = 1_000_000
"""Steps that no case waits for."""
TRAINER = Path(__file__).with_name("resuming_trainer.py")
MEASURED: Table = {
    "recipe_id": "a1b2c3",
    "recipe": tiny_recipe(),
    "measured_tokens_per_s": None,
}
"""What a training is of."""
RANK = re.compile(r"rank-(\d+)")
TWO_NODES = {"nodes": 2, "devices_per_node": 1}


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where programs run. Its two devices are on one node, or on two."""

    cluster: Table
    dispatch: Table

    def setup(self, folder: Path, **sections: Table) -> ProbeSetup:
        """What runs in this place share, with these changes of the campaign's sections."""
        cluster = self.cluster | sections.pop("cluster", {})
        setup = setup_of(folder, cluster=cluster, **sections)
        return replace(setup, dispatch=DispatchSettings(**self.dispatch))


@contextmanager
def this_machine(_: Path) -> Iterator[Place]:
    yield Place(cluster={"nodes": 1, "devices_per_node": 2}, dispatch={})


@contextmanager
def batch_system(folder: Path) -> Iterator[Place]:
    """Two nodes of a stand-in for PBS, which runs the real submit scripts."""
    dispatch = {"backend": "parsl", "scheduler": "pbs", "walltime": "01:00:00", "lifeline_s": 10}
    dispatch |= {"network_interface": "lo", "driver_address": "127.0.0.1"}
    dispatch |= {"launcher_options": ("-launcher", "fork")}
    with pytest.MonkeyPatch.context() as patched:
        for name, value in fake_pbs.install(folder / "pbs").items():
            patched.setenv(name, value)
        yield Place(cluster=TWO_NODES, dispatch=dispatch)


@dataclass(frozen=True, kw_only=True)
class RayPlace(Place):
    """Two nodes at a time of a Ray cluster that has more, so that some can be lost."""

    ray: RayCluster


@contextmanager
def ray_nodes(_: Path) -> Iterator[Place]:
    with ray_cluster(6) as ray:
        dispatch = {"backend": "ray", "address": ray.address, "lifeline_s": 10}
        dispatch |= {"network_interface": "lo"}
        yield RayPlace(cluster=TWO_NODES, dispatch=dispatch, ray=ray)


PLACES = {"this machine": this_machine, "batch system": batch_system, "Ray": ray_nodes}


class BuiltInTrainer:
    """The built-in trainer: two ranks of the tiny model. `CommandBench` has the same attributes."""

    behave = "well"
    """How a command behaves; the trainer does as its job says. Both store no checkpoint where they
    are to forget.
    """
    memory_failure: ClassVar[Table] = {"cluster": {"memory_gib_per_device": 0.1}}
    divergence: ClassVar[Table] = {
        "probe": {"optimizer": "sgd", "measured_steps": 20, "learning_rate": 2e9}
    }
    refused_recipe: ClassVar[Table] = {  # four stages of a model with two layers
        "pipeline_parallel": 2,
        "virtual_stages": 2,
        "schedule": "interleaved-1f1b",
        "accumulation": 4,
    }

    def evaluator(self, setup: ProbeSetup) -> Probes:
        return training_probe(setup)

    def train(self, setup: ProbeSetup, settings: ReplaySettings, *watched: Any) -> ReplayResult:
        """Run a training to its end; `watched` are what its events go to, and signals."""
        every = settings.steps if self.behave == "forgets" else 10
        often = replace(
            settings, checkpoint_every_steps=every, evaluation_every_steps=settings.steps
        )
        chosen = rank_replay.plan(setup=setup, settings=often, anyway=True, **MEASURED)
        return rank_replay.run(chosen, *watched)

    def number_of(self, process: psutil.Process, folder: Path) -> int | None:
        """The number of a process among those that train for a run in `folder`; None for others."""
        found = RANK.fullmatch(process.name())
        job = Path(f"/proc/{process.pid}/fd/0").readlink()
        return int(found[1]) if found and job.is_relative_to(folder) else None

    def log(self, run_folder: Path, number: int) -> Path:
        """The log of the process with this number."""
        return run_folder / f"rank-{number}.log"

    def checkpoint(self, folder: Path) -> int:
        """The step of a training's newest checkpoint; 0 where there is none."""
        return max(complete_steps(folder / "checkpoints"), default=0)

    def steps(self, run_folder: Path) -> int:
        """The steps that a probe has written down."""
        return steps_written(run_folder)


class CommandBench:
    """The fake trainer of `resuming_trainer.py`, started once per node."""

    behave = "well"
    memory_failure: ClassVar[Table] = {"behave": "no-memory"}
    divergence: ClassVar[Table] = {"behave": "diverges", "probe": {"measured_steps": 20}}
    refused_recipe: ClassVar[Table] = {"recompute": "full"}

    def _make(self, request: CommandRequest) -> Command | Reason:
        if request.recipe.recompute == "full":
            return Reason("recompute", "this trainer keeps every activation")
        checkpoint = str(request.run_folder / "checkpoint")
        arguments = ("{python}", str(TRAINER), "--steps", "{steps}", "--helper")
        settings = CommandSettings(
            arguments=(*arguments, "--behave", self.behave, "--checkpoint", checkpoint),
            log_patterns=(r"^step (?P<step>\d+): (?P<step_time_s>[\d.]+) s loss (?P<loss>\S+)",),
        )
        return configured(settings)(request)

    def evaluator(self, setup: ProbeSetup) -> Probes:
        return command_probe(setup, self._make)

    def train(self, setup: ProbeSetup, settings: ReplaySettings, *watched: Any) -> ReplayResult:
        chosen = command_replay.plan(
            setup=setup, settings=settings, make_command=self._make, **MEASURED
        )
        return command_replay.run(chosen, *watched)

    def number_of(self, process: psutil.Process, folder: Path) -> int | None:
        words = process.cmdline()
        if str(TRAINER) not in words[:3] or not _is_below(words[-1], folder):
            return None
        return int(process.environ()["NODE_RANK"])

    def log(self, run_folder: Path, number: int) -> Path:
        return run_folder / ("command.log" if number == 0 else f"command-{number}.log")

    def checkpoint(self, folder: Path) -> int:
        file = folder / "checkpoint"
        return int(file.read_text()) if file.exists() else 0

    def steps(self, run_folder: Path) -> int:
        return sum(log.read_text().count(" loss ") for log in run_folder.glob("command*.log"))


PROGRAMS = {"built-in trainer": BuiltInTrainer, "command": CommandBench}


def _is_below(text: str, folder: Path) -> bool:
    return text == str(folder) or text.startswith(f"{folder}/")


def processes_of_run(folder: Path) -> list[psutil.Process]:
    """Whatever runs for a run in this folder: what has the folder in its arguments or environment,
    or a file of it open.
    """
    found = []
    for process in psutil.process_iter():
        if process.pid == os.getpid():
            continue
        with suppress(psutil.Error, OSError):
            texts = [*process.cmdline(), *process.environ().values()]
            texts += [file.path for file in process.open_files()]
            if is_alive(process) and any(_is_below(text, folder) for text in texts):
                found.append(process)
    return found


class RunBench:
    """One program in one place, for all cases of this combination.

    `make_room` is called before a case takes nodes beside those of the warm evaluator.
    """

    def __init__(
        self,
        program: str,
        place: Place,
        folder: Path,
        make_room: Callable[[], None] = lambda: None,
    ) -> None:
        self.program = PROGRAMS[program]()
        self.place = place
        self.folder = folder
        self._make_room = make_room
        self._name = program
        self._evaluator: Probes | None = None
        self._count = 0

    def close(self) -> None:
        """End the warm evaluator; another one starts at the next use."""
        if self._evaluator is not None:
            self._evaluator.close()
            self._evaluator = None

    # Probes

    @property
    def evaluator(self) -> Probes:
        """The warm evaluator of all cases that leave it as it was."""
        if self._evaluator is None:
            self._evaluator = self.program.evaluator(self.place.setup(self.folder / "probes"))
        return self._evaluator

    def new_evaluator(self) -> Probes:
        """An evaluator of the case's own."""
        self._make_room()
        return self.program.evaluator(self.place.setup(self.folder / "probes"))

    def start(
        self,
        evaluator: Probes | None = None,
        *,
        behave: str = "well",
        recipe: Table | None = None,
        **sections: Table,
    ) -> ProbeOrder:
        """Start a probe with these changes of the campaign's sections, on the warm evaluator unless
        another is given.
        """
        evaluator = evaluator or self.evaluator
        evaluator.program.setup = self.place.setup(self.folder / "probes", **sections)
        self.program.behave = behave
        self._count += 1
        token = f"{self._count:05d}.1"
        order = ProbeOrder(
            token=token,
            recipe=tiny_recipe(**(recipe or {})),
            run_folder=self.folder / "probes" / token,
        )
        evaluator.start(order)
        return order

    def stepping(self, evaluator: Probes | None = None, **probe: Any) -> ProbeOrder:
        """Start a probe that has no end, and wait until it steps."""
        evaluator = evaluator or self.evaluator
        order = self.start(evaluator, probe={"measured_steps": ENDLESS, **probe})

        def steps() -> bool:
            assert evaluator.finished(0.02) == []
            progress = evaluator.progress(order.token)
            return progress is not None and progress.steps_done >= 2

        wait_for(steps, 120)
        return order

    def finish(
        self, order: ProbeOrder, seen: Callable[[Progress | None], Any] = lambda _: None
    ) -> Finished:
        """Wait for the end of an order, and pass on its progress."""
        found: list[Finished] = []

        def has_ended() -> bool:
            seen(self.evaluator.progress(order.token))
            found.extend(self.evaluator.finished(0.05))
            return bool(found)

        wait_for(has_ended, 120)
        (finished,) = found
        assert finished.token == order.token
        return finished

    def trains(self, folder: Path) -> list[psutil.Process]:
        """The processes that train for a run in `folder`, by their numbers."""
        numbered = {}
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                number = self.program.number_of(process, folder)
                if number is not None and is_alive(process):
                    numbered[number] = process
        return [numbered[number] for number in sorted(numbered)]

    # Trainings

    def train(
        self,
        folder: Path,
        on_event: OnEvent | None = None,
        *,
        steps: int,
        signals: list[str] | None = None,
        behave: str = "well",
        restarts: int = 3,
        **sections: Table,
    ) -> ReplayResult:
        """Run a training in `folder`."""
        self._make_room()
        self.program.behave = behave
        setup = self.place.setup(self.folder / "campaign", **sections)
        settings = ReplaySettings(steps=steps, folder=folder, restarts=restarts)
        return self.program.train(setup, settings, on_event, [] if signals is None else signals)

    # Drivers to be killed

    @contextmanager
    def driver(self, kind: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
        """A driver of its own process that runs an endless probe or training in `folder`."""
        self._make_room()
        place = folder.with_suffix(".json")
        place.write_text(json.dumps(asdict(Place(**_fields(self.place)))))
        command = [sys.executable, "-m", "support.run_benches", self._name, str(place), kind]
        path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
        with subprocess.Popen(
            [*command, str(folder)], env={**os.environ, "PYTHONPATH": path}
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    def order_of_driver(self, folder: Path) -> ProbeOrder:
        """The order of the probe of `driver`."""
        run_folder = folder / "probes" / "00001.1"
        return ProbeOrder(token="00001.1", recipe=tiny_recipe(), run_folder=run_folder)

    # Losses

    def lose_node(self, folder: Path) -> None:
        """End one of the two nodes of a run: under Ray as a machine ends that loses its power,
        under a batch system its agent, with which everything there has to end.
        """
        if isinstance(self.place, RayPlace):
            ray = self.place.ray
            raylets = {
                process.environ().get("RAY_RAYLET_PID") for process in processes_of_run(folder)
            }
            ray.kill(
                next(
                    node
                    for node, pid in ray.raylets.items()
                    if node != ray.head and str(pid) in raylets
                )
            )
            return
        self.node_agent(folder).kill()

    def node_agent(self, folder: Path) -> psutil.Process:
        """What the launcher of the batch system has started on the second node of a run."""
        (agent,) = (
            process
            for process in processes_of_run(folder)
            if process.environ().get("PMI_RANK") == "1"
            and process.parent().environ().get("PMI_RANK") is None
        )
        return agent

    def lose_allocation(self, folder: Path) -> None:
        """Have the batch system take the job away that a run is in."""
        jobs = {process.environ().get("PBS_JOBID") for process in processes_of_run(folder)}
        subprocess.run(["qdel", *filter(None, jobs)], check=True)


def _fields(place: Place) -> dict[str, Any]:
    return {"cluster": place.cluster, "dispatch": place.dispatch}


def main() -> None:
    """Be the driver of an endless probe or training, until killed."""
    program, place_file, kind, folder = sys.argv[1:]
    place = Place(**json.loads(Path(place_file).read_text()))
    bench = RunBench(program, place, Path(folder))
    if kind == "training":
        bench.train(Path(folder), steps=ENDLESS)
        return
    bench.start(probe={"measured_steps": ENDLESS})
    while True:
        assert bench.evaluator.finished(1.0) == []


if __name__ == "__main__":
    main()
