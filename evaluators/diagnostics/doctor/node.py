"""Check of a node that was set aside, `python -P -m frontrunner.evaluators.diagnostics.doctor.node
STEP.json`.

It runs there as a step of its own: the examination of `frontrunner doctor`, and all-reduces on as
many real ranks as a probe has on a node. What is not fine is the `trouble` of the node's report.
"""

from __future__ import annotations

import socket

from frontrunner.evaluators.diagnostics.doctor.check import Needs, Status
from frontrunner.evaluators.diagnostics.doctor.collective_test import (
    collective_checks,
    run_collective_test,
)
from frontrunner.evaluators.diagnostics.doctor.machine import examine
from frontrunner.evaluators.diagnostics.ranks import Place
from frontrunner.evaluators.nodes.agent import NodeAgent, main
from frontrunner.evaluators.runs.run_folder import RunFolder
from frontrunner.evaluators.runs.settings import TORCH_DEVICES
from frontrunner.spaces.errors import FrontrunnerError


class DoctorAgent(NodeAgent):
    """Checks the node that it is on; the order's job names the cluster's backend."""

    def _work(self) -> None:
        folder, ranks = self._folder.path, self._step.world_size
        backend = (RunFolder(folder).own("job.json") or {})["backend"]
        self._update(running=True)
        needs = Needs(store_path=None, run_folder=folder, backend=backend, devices_per_node=ranks)
        checks = list(examine(needs))
        where, host = Place(ranks=ranks, ranks_per_node=ranks), (socket.gethostname(),)
        tested = run_collective_test(
            where, device=TORCH_DEVICES[backend], deadline_s=self._step.deadline_s / 2, nodes=host
        )
        checks += collective_checks(tested) if tested is not None else ()
        if found := "; ".join(
            f"{one.name}: {one.found}" for one in checks if one.status is Status.PROBLEM
        ):
            raise FrontrunnerError(found)


if __name__ == "__main__":
    main(DoctorAgent)
