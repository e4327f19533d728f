"""`evaluator = "probe"`: training on this machine, or on the nodes that [dispatch] tells of."""

from __future__ import annotations

from frontrunner.evaluators.cluster.sources import node_source
from frontrunner.evaluators.protocol import Evaluator, ProbeSetup


def training_probe(setup: ProbeSetup) -> Evaluator:
    """The evaluator that trains, where the campaign's nodes are; raises as `node_source` does."""
    source = node_source(setup.dispatch, setup.problem.cluster)
    if source is None:
        from frontrunner.evaluators.probe.training_probe import TrainingProbe

        return TrainingProbe(setup)
    from frontrunner.evaluators.cluster.probe import DispatchedProbe

    return DispatchedProbe(setup, source)
