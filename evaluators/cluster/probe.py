"""The training probe on many nodes: the same ranks and the same verdicts, as steps of allocations."""

from __future__ import annotations

import itertools
import os
import re
import time
from dataclasses import dataclass, replace
from pathlib import Path

from frontrunner.evaluators.cluster.allocations import HeldAllocation
from frontrunner.evaluators.cluster.lifeline import Heart
from frontrunner.evaluators.cluster.packing import Waiting
from frontrunner.evaluators.cluster.pool import Pool
from frontrunner.evaluators.cluster.sources import NodeSource
from frontrunner.evaluators.cluster.step import Step, StepFolder
from frontrunner.evaluators.cluster.under_way import START_TIMEOUT_S, StepWatch
from frontrunner.evaluators.probe.concluding import conclude, harvested, write_job
from frontrunner.evaluators.probe.corpus import corpus
from frontrunner.evaluators.probe.disk import disk_folder
from frontrunner.evaluators.probe.jobs import probe_job
from frontrunner.evaluators.probe.measure import nodes_used
from frontrunner.evaluators.probe.training_probe import rank_environment
from frontrunner.evaluators.protocol import QUEUED, Finished, ProbeOrder, ProbeSetup, Progress
from frontrunner.results.outcome import Failure, Measurement
from frontrunner.spaces.errors import bad_value

POLL_S = 0.25
CLOSING_S = 10.0
"""How long steps that are cancelled at the end have to leave their nodes before these are given back."""
_PLAIN_PATH = re.compile(r"[\w@%+=:,./-]+", re.ASCII)
LONGER_SHARE = 1.5
"""Assumed: a probe is expected to take at most so much longer than the longest before it."""


@dataclass(frozen=True)
class Queued:
    """An order that waits for nodes, `arrival` in the line."""

    order: ProbeOrder
    arrival: int


class DispatchedProbe:
    """The `Evaluator` that trains on the nodes of a source; orders wait in it until there is room."""

    def __init__(self, setup: ProbeSetup, source: NodeSource) -> None:
        """Make the token file if it is not there yet; nodes are asked for when there is an order.

        Raises `InvalidInput` for a folder whose name Parsl could not pass on to a batch system.
        """
        self._setup = setup
        self._source = source
        self.measures_here = source.held is not None  # the driver may be on one of its own job's nodes
        setup.work_folder.mkdir(parents=True, exist_ok=True)
        self.tokens = corpus(setup.data, setup.work_folder, setup.problem)
        folder = setup.work_folder.resolve() / "dispatch" / f"{time.strftime('%Y%m%dT%H%M%S')}-{os.getpid()}"
        _refuse_for_shells(folder)
        self._heart = Heart(folder / "lifeline")
        self._lifeline = folder / "lifeline"
        self._pool = Pool(source, folder)
        self._arrivals = itertools.count()
        self._queued: dict[str, Queued] = {}
        self._under_way: dict[str, StepWatch] = {}
        self._longest_s: float | None = None

    def start(self, order: ProbeOrder) -> None:
        """Take an order; it begins when there are nodes for it."""
        self._queued[order.token] = Queued(order, next(self._arrivals))

    def finished(self, timeout_s: float) -> list[Finished]:
        """Place and watch probes for up to `timeout_s`, or until one of them has ended.

        Raises `NodesUnavailable` where allocations are refused, or wait longer than the campaign lets them.
        """
        end_s = time.monotonic() + timeout_s
        while True:
            self._place()
            for watch in self._under_way.values():
                watch.follow()
            ended = [token for token, watch in self._under_way.items() if watch.has_ended]
            left_s = end_s - time.monotonic()
            if ended or left_s <= 0:
                return [self._conclude(self._under_way.pop(token)) for token in ended]
            time.sleep(min(POLL_S, left_s))

    def _place(self) -> None:
        waiting = [
            Waiting(
                token=token,
                nodes=nodes_used(queued.order.recipe, self._setup.problem),
                expected_s=self._expected_s,
                arrival=queued.arrival,
            )
            for token, queued in self._queued.items()
        ]
        for token, allocation in self._pool.place(waiting, time.monotonic()).items():
            self._begin(self._queued.pop(token).order, allocation)

    @property
    def _expected_s(self) -> float:
        """How long a probe is expected to hold its nodes: by those before it, else its deadline, at most."""
        deadline_s = self._setup.probe.deadline_s
        return deadline_s if self._longest_s is None else min(deadline_s, LONGER_SHARE * self._longest_s)

    def _begin(self, order: ProbeOrder, allocation: HeldAllocation) -> None:
        nodes = nodes_used(order.recipe, self._setup.problem)
        write_job(order, probe_job(self._setup, order.recipe, order.run_folder, self.tokens), self._setup)
        StepFolder(order.run_folder).prepare(nodes)
        step = self._step(order, nodes)
        step.write()
        expected_end_s = time.monotonic() + self._expected_s
        placed = self._pool.start(step.path, allocation, nodes=nodes, expected_end_s=expected_end_s)
        self._under_way[order.token] = StepWatch(order, self._setup.probe, placed, nodes)

    def _step(self, order: ProbeOrder, nodes: int) -> Step:
        setup, settings = self._setup, self._setup.dispatch
        scratch = disk_folder(setup, order.recipe, order.run_folder)
        environment = rank_environment(setup)
        if nodes > 1:
            environment.pop("GLOO_SOCKET_IFNAME", None)  # the loopback joins nobody but this node's ranks
        if settings.network_interface is not None:
            names = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
            environment |= dict.fromkeys(names, settings.network_interface)
        return Step(
            token=order.token,
            run_folder=str(order.run_folder.resolve()),
            world_size=order.recipe.devices,
            nodes=nodes,
            ranks_per_node=setup.problem.cluster.devices_per_node,
            engines=setup.engines,
            environment=environment,
            deadline_s=setup.probe.deadline_s + START_TIMEOUT_S,
            lifeline=str(self._lifeline),
            silence_s=settings.silence_s,
            scratch=None if scratch is None else str(scratch),
        )

    def _conclude(self, watch: StepWatch) -> Finished:
        """The outcome, on disk."""
        if watch.lost is None:
            self._longest_s = max(self._longest_s or 0.0, watch.seconds)
        log = StepFolder(watch.order.run_folder).launcher_log if watch.lost else None
        return replace(conclude(watch, self._setup, log=log), is_cut=watch.is_cut)

    def progress(self, token: str) -> Progress | None:
        """Phase and steps of a probe under way, and what it has spent; one that waits has spent nothing."""
        watch = self._under_way.get(token)
        if watch is not None:
            nodes = nodes_used(watch.order.recipe, self._setup.problem)
            return replace(watch.progress, node_seconds=nodes * watch.seconds)
        if token in self._queued:
            total = self._setup.probe.most_steps
            return Progress(phase=QUEUED, steps_done=0, steps_total=total, node_seconds=0.0)
        return None

    def withdraw(self, token: str) -> bool:
        """Take an order back that waits for nodes; with the last of them go the requests for more nodes."""
        if self._queued.pop(token, None) is None:
            return False
        if not self._queued:
            self._pool.forgo()
        return True

    def harvest(self, order: ProbeOrder) -> Measurement | Failure | None:
        """The outcome on disk, or what its ranks had finished measuring when their driver died."""
        return harvested(order, self._setup)

    def close(self) -> None:
        """Have every step end, and give the nodes back."""
        for watch in self._under_way.values():
            watch.cancel()
        end_s = time.monotonic() + CLOSING_S
        while time.monotonic() < end_s and not all(w.placed.future.done() for w in self._under_way.values()):
            time.sleep(POLL_S)
        self._heart.stop()
        self._pool.close()


def _refuse_for_shells(folder: Path) -> None:
    """Parsl submits its scripts through a shell, by their unquoted paths: no path may say more than a path there."""
    if not _PLAIN_PATH.fullmatch(str(folder)):
        expected = "a path of letters, digits and _@%+=:,./-, which Parsl hands to a shell as it is"
        raise bad_value("store.run_folder", str(folder), expected)
