"""Ten thousand probes on a thousand nodes: what the driver costs, what is lost, and how full the
nodes are.

    python benchmarks/scale_simulation.py [--probes 10000] [--nodes 1000] [--profile] [--json OUT]

The driver, the store and the packing are the real ones; the cluster is simulated
(`simulated_cluster.py`): its nodes are in five allocations of one to four hours, each followed by
another, which end under what runs. Probes of 1 to 64 nodes are expected to take 1 to 10 minutes; 3
% crash, 1 % lose a node and 2 % take four times as long as expected.

    driver_cpu_ms     CPU of this process for each outcome, less the simulation's own (which holds
    the packing's) ..._of_tenths     the same for each tenth of the attempts: what grows with them
    shows memory_mb         the most that this process held; store_mb is the store's file
    cpu_ms_of_questions   CPU of an answer over the whole campaign, and of one of its figures
    packing_cpu_ms    CPU of placing what waits, for each outcome utilisation       node-seconds
    that probes held, over nodes times the time to the last outcome perfect           the most that
    any packer could reach: the work needs at least its node-seconds over all nodes, and
                      no less than its longest probe takes. It would know all probes beforehand, cut
                      none, and lose nothing at the ends of allocations
    lost              orders without exactly one outcome, attempts left open, outcomes that the
    store does not have
"""

from __future__ import annotations

import argparse
import cProfile
import itertools
import json
import pstats
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

from simulated_cluster import ClusterSettings, Record, SimulatedCluster

import frontrunner
from frontrunner.evaluators.protocol import ProbeSetup
from frontrunner.evaluators.registry import EVALUATORS, EvaluatorKind
from frontrunner.evaluators.runs.settings import ProbeSettings
from frontrunner.results.states import TrialState
from frontrunner.results.store import open_store
from frontrunner.search.spec import Budget, CampaignSpec, SearchSettings
from frontrunner.spaces.cluster import ByPrecision, Cluster
from frontrunner.spaces.model.model import Model
from frontrunner.spaces.problem import GlobalBatch, Problem
from frontrunner.spaces.space import Space
from frontrunner.store import LocalStore

NAME = "simulated-cluster"
DEVICES_PER_NODE = 8
LOOK_AHEAD = 3
"""Orders in flight for each that runs on average: those that wait are what a packer chooses
from.
"""
MEAN_NODES = 8
TOP, TENTHS = 30, 10


@dataclass(frozen=True, kw_only=True)
class Found:
    """A simulated campaign's figures."""

    outcomes: int
    measured: int
    failed: int
    attempts: int
    cut_by_walltime: int
    lost_nodes: int
    lost: int
    driver_cpu_ms: float
    packing_cpu_ms: float
    wall_s: float
    simulated_hours: float
    utilisation: float
    perfect: float
    driver_cpu_ms_of_tenths: tuple[float, ...] = ()
    memory_mb: float = 0.0
    store_mb: float = 0.0
    cpu_ms_of_questions: dict[str, float] = field(default_factory=dict)

    @property
    def of_perfect(self) -> float:
        """Utilisation / perfect."""
        return self.utilisation / self.perfect


def campaign(probes: int, nodes: int) -> CampaignSpec:
    """Recipes on 1 to 64 nodes each, more than are probed, in random order."""
    model = Model.from_keys(
        name="bench",
        layers=96,
        hidden=4096,
        heads=64,
        kv_heads=64,
        ffn_hidden=16384,
        vocabulary=50304,
    )
    cluster = Cluster(
        name="bench",
        device="simulated",
        backend="cuda",
        nodes=nodes,
        devices_per_node=DEVICES_PER_NODE,
        memory_gib_per_device=64,
        peak_tflops=ByPrecision(bf16=191.5),
    )
    return CampaignSpec(
        name="bench",
        problem=Problem(
            model=model,
            cluster=cluster,
            sequence_length=2048,
            global_batch=GlobalBatch(minimum=1, maximum=1 << 16),
            precision="bf16",
        ),
        space=Space(
            devices=(8, 16, 32, 64, 128, 256, 512),
            tensor_parallel=(1, 2, 4, 8),
            pipeline_parallel=(1, 2, 4, 8),
            micro_batch_seqs=(1, 2, 4, 8),
            accumulation=(8, 16, 32, 64, 128),
            loss_chunks=(1, 2, 4, 8),
            rank_order=("tp-dp-pp", "tp-pp-dp"),
            sharding=("none", "zero-1", "zero-3"),
            recompute=("none", "selective", "full"),
            sequence_parallel=(False, True),
        ),
        search=SearchSettings(
            strategy="random",
            identical_failures=probes,
            parallel_probes=max(4, LOOK_AHEAD * nodes // MEAN_NODES),
            warm_start=False,
            reuse=False,
        ),
        budget=Budget(probes=probes),
        probe=ProbeSettings(measured_steps=5),
        evaluator=NAME,
    )


def register(settings: ClusterSettings) -> tuple[Record, list[SimulatedCluster]]:
    """Make the simulated cluster an evaluator of this process; what it does is found in what is
    returned.
    """
    record, made = Record(), list[SimulatedCluster]()

    def make(setup: ProbeSetup) -> SimulatedCluster:
        made.append(SimulatedCluster(setup, settings, record))
        return made[-1]

    module = ModuleType("simulated_cluster_evaluator")
    vars(module)["make"] = make
    sys.modules[module.__name__] = module
    EVALUATORS[NAME] = EvaluatorKind(factory=f"{module.__name__}:make")
    return record, made


def simulated(probes: int, settings: ClusterSettings, store: str) -> Found:
    """Run the campaign and judge it."""
    record, made = register(settings)
    spec = campaign(probes, settings.nodes)
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    ended = 0
    marks: list[float] = []

    def count() -> None:
        nonlocal ended
        if ended % max(1, probes // TENTHS) == 0:
            marks.append(time.process_time() - record.cpu_s)
        ended += 1

    record.on_end = count
    conclusion = frontrunner.launch(spec, store=store)
    wall_s, cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
    counted, lost = stored(store, record, probes)
    end_s = made[0].now_s
    work_s = record.node_seconds_held / settings.nodes
    return Found(
        outcomes=probes,
        measured=conclusion.measured,
        failed=counted[TrialState.FAILED],
        attempts=len(record.finished),
        cut_by_walltime=record.cut_by_walltime,
        lost_nodes=record.lost_nodes,
        lost=lost,
        driver_cpu_ms=1000 * (cpu_s - record.cpu_s) / probes,
        packing_cpu_ms=1000 * record.packing_s / probes,
        wall_s=wall_s,
        simulated_hours=end_s / 3600,
        utilisation=work_s / end_s,
        perfect=work_s / max(work_s, record.longest_probe_s),
        driver_cpu_ms_of_tenths=tuple(
            round(1000 * (after - before) / max(1, probes // TENTHS), 2)
            for before, after in itertools.pairwise(marks)
        ),
        memory_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000,
        store_mb=Path(store).stat().st_size / 1e6,
        cpu_ms_of_questions={name: asked(question) for name, question in questions(store).items()},
    )


def questions(store: str) -> dict[str, Callable[[], object]]:
    """What a user asks of the campaign, each in a newly opened store."""
    local = LocalStore(store)
    return {
        "best": local.best,
        "status": local.status,
        "pareto": local.pareto,
        "recipes": lambda: local.recipes(page=3),
        "trials": lambda: local.trials(page=9),
        "figure": lambda: local.plot(figure="history", out=Path(store).with_name("history.svg")),
    }


def asked(question: Callable[[], object]) -> float:
    """Return the milliseconds of processor time that an answer takes."""
    began_s = time.process_time()
    question()
    return round(1000 * (time.process_time() - began_s), 1)


def stored(store: str, record: Record, probes: int) -> tuple[Counter[TrialState], int]:
    """The store's trials by state, and how much was lost on the way."""
    with open_store(store, create=False, read_only=True) as opened:
        found = opened.campaign(None)
        trials = Counter(trial.state for trial in opened.trials(found.id))
        is_open = len(opened.open_attempts(found.id))
        spent = (
            abs(found.node_seconds_spent - record.node_seconds_held)
            > 1e-6 * record.node_seconds_held
        )
    twice_or_never = len(Counter(record.started) - Counter(record.finished)) + (
        len(record.finished) - len(set(record.finished))
    )
    ended = trials[TrialState.MEASURED] + trials[TrialState.FAILED]
    return trials, is_open + twice_or_never + abs(ended - probes) + int(spent)


def main() -> None:
    """Simulate, and print what was found."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--probes", type=int, default=10_000)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    profiler = cProfile.Profile() if chosen.profile else None
    with tempfile.TemporaryDirectory() as folder:
        if profiler is not None:
            profiler.enable()
        found = simulated(chosen.probes, ClusterSettings(nodes=chosen.nodes), f"{folder}/scale.db")
        if profiler is not None:
            profiler.disable()
            pstats.Stats(profiler).sort_stats("tottime").print_stats(TOP)
    figures = {name: getattr(found, name) for name in (*Found.__dataclass_fields__, "of_perfect")}
    print(json.dumps(figures, indent=1))
    if chosen.json:
        chosen.json.write_text(json.dumps(figures, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
