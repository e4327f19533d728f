"""What a trial costs the driver and the store, by processor time, memory and disk.

    python benchmarks/driver_overhead.py --trials 20000 [--nodes 128] [--profile] [--trace]

The campaign is `random` over simulated probes of 1,024 devices. Each line is one stretch of trials:

    cpu_ms       processor time of this process for each trial of the stretch
    simulated_ms processor time of it in which the outcome was computed, as no real evaluator does
    wall_ms      wall time for each trial of the stretch
    memory_mib   what the process holds in memory at its end
    store_mib    the store's file and its log at its end

`kib_held_per_trial` and `kb_stored_per_trial` are how fast memory and the store grow from the first
1,000 trials on. `--profile` prints the functions that take most of the processor time.
`--trace` prints the lines of code whose objects are still held at the end; it slows the campaign
down several times, so its times mean nothing.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import json
import pstats
import resource
import tempfile
import time
import tracemalloc
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import frontrunner
from frontrunner.evaluators.analytic.simulated import Simulated
from frontrunner.evaluators.registry import EVALUATORS, EvaluatorKind
from frontrunner.evaluators.runs.settings import ProbeSettings
from frontrunner.results.outcome import Outcome
from frontrunner.search.listener import Ended, Listener, View
from frontrunner.search.spec import Budget, CampaignSpec, SearchSettings
from frontrunner.spaces.cluster import ByPrecision, Cluster
from frontrunner.spaces.model.model import Model
from frontrunner.spaces.problem import GlobalBatch, Problem
from frontrunner.spaces.recipe import Recipe
from frontrunner.spaces.space import Space

MARKS = (0, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000)
"""Numbers of trials after which the campaign is looked at."""
WARMED_UP = 1_000
"""Trials until caches are full: memory that grows later grows with the trials."""
TOP = 40


@dataclass(frozen=True, kw_only=True)
class Mark:
    """The process and the store after a number of trials."""

    trials: int
    cpu_s: float
    simulated_s: float
    wall_s: float
    memory_bytes: int
    store_bytes: int


class TimedSimulation(Simulated):
    """The simulated evaluator, which also counts the processor time of its outcomes."""

    spent_s = 0.0

    def _outcome(self, recipe: Recipe) -> Outcome:
        began_s = time.process_time()
        outcome = super()._outcome(recipe)
        TimedSimulation.spent_s += time.process_time() - began_s
        return outcome


class Marks(Listener):
    """Looks at the process after certain numbers of outcomes."""

    def __init__(self, store: Path, trials: int) -> None:
        self._store = store
        self._due = {*(mark for mark in MARKS if mark <= trials), trials}
        self.ended_probes = 0
        self.found: list[Mark] = []

    def began(self, view: View) -> None:  # noqa: ARG002 - a listener's signature
        """Look at the process before the first trial."""
        self._look()

    def probe_ended(self, view: View, ended: Ended) -> None:  # noqa: ARG002
        """Count the outcome, and look at the process if it is one of the marks."""
        self.ended_probes += 1
        if self.ended_probes in self._due:
            self._look()

    def _look(self) -> None:
        beside = self._store.with_name(f"{self._store.name}-wal")
        mark = Mark(
            trials=self.ended_probes,
            cpu_s=time.process_time(),
            simulated_s=TimedSimulation.spent_s,
            wall_s=time.perf_counter(),
            memory_bytes=resident_bytes(),
            store_bytes=self._store.stat().st_size + beside.stat().st_size,
        )
        self.found.append(mark)
        for row in stretches(self.found[-2:]):
            print(json.dumps(row), flush=True)


def resident_bytes() -> int:
    """Return the memory that this process holds, from Linux's /proc."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize()


def campaign(trials: int, nodes: int, strategy: str) -> CampaignSpec:
    """A space of 209,088 legal recipes on 128 simulated nodes; 133,555 of them may fit."""
    model = Model.from_keys(
        name="bench",
        layers=96,
        hidden=8192,
        heads=64,
        kv_heads=64,
        ffn_hidden=32768,
        vocabulary=50304,
    )
    cluster = Cluster(
        name="bench",
        device="simulated",
        backend="cpu",
        nodes=nodes,
        devices_per_node=8,
        memory_gib_per_device=64,
        peak_tflops=ByPrecision(bf16=191.5),
    )
    return CampaignSpec(
        name="bench",
        problem=Problem(
            model=model,
            cluster=cluster,
            sequence_length=2048,
            global_batch=GlobalBatch(minimum=64, maximum=8192),
            precision="bf16",
        ),
        space=Space(
            tensor_parallel=(1, 2, 4, 8),
            pipeline_parallel=(1, 2, 4, 8, 16, 32),
            micro_batch_seqs=(1, 2, 4, 8),
            accumulation=(1, 2, 4, 8, 16, 32, 64, 128),
            loss_chunks=(1, 2, 4, 8, 16, 32),
            rank_order=("tp-dp-pp", "tp-pp-dp"),
            schedule=("1f1b", "gpipe"),
            sharding=("none", "zero-1", "zero-2", "zero-3"),
            recompute=("none", "selective", "full"),
            sequence_parallel=(False, True),
        ),
        search=SearchSettings(strategy=strategy, identical_failures=trials),
        budget=Budget(probes=trials),
        probe=ProbeSettings(measured_steps=5),
        evaluator="simulated",
    )


def stretches(marks: list[Mark]) -> list[dict[str, float]]:
    """Return the figures of each stretch between two marks."""
    found = []
    for before, after in pairwise(marks):
        trials = after.trials - before.trials
        row = {
            "from": before.trials,
            "to": after.trials,
            "cpu_ms": round(1000 * (after.cpu_s - before.cpu_s) / trials, 2),
            "simulated_ms": round(1000 * (after.simulated_s - before.simulated_s) / trials, 2),
            "wall_ms": round(1000 * (after.wall_s - before.wall_s) / trials, 2),
            "memory_mib": round(after.memory_bytes / 2**20, 1),
            "store_mib": round(after.store_bytes / 2**20, 1),
        }
        found.append(row)
    return found


def summary(marks: list[Mark]) -> dict[str, float]:
    """Return what a trial costs over the whole campaign."""
    first, last = marks[0], marks[-1]
    trials = last.trials - first.trials
    found = {
        "trials": last.trials,
        "cpu_ms_per_trial": round(1000 * (last.cpu_s - first.cpu_s) / trials, 2),
        "simulated_ms_per_trial": round(1000 * (last.simulated_s - first.simulated_s) / trials, 2),
        "wall_ms_per_trial": round(1000 * (last.wall_s - first.wall_s) / trials, 2),
    }
    warm = next((mark for mark in marks if mark.trials >= WARMED_UP), last)
    if (later := last.trials - warm.trials) > 0:
        held, stored = last.memory_bytes - warm.memory_bytes, last.store_bytes - warm.store_bytes
        found["kib_held_per_trial"] = round(held / later / 1024, 3)
        found["kb_stored_per_trial"] = round(stored / later / 1000, 2)
    return found


def main() -> None:
    """Run the campaign, and print what each stretch of it cost."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--nodes", type=int, default=128, help="of eight devices each")
    parser.add_argument("--strategy", default="random")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--trace", action="store_true")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    EVALUATORS["simulated"] = EvaluatorKind(
        factory=f"{TimedSimulation.__module__}:{TimedSimulation.__name__}", simulates=True
    )
    spec = campaign(chosen.trials, chosen.nodes, chosen.strategy)
    profiler = cProfile.Profile(time.process_time) if chosen.profile else None
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "bench.db"
        marks = Marks(store, chosen.trials)
        if chosen.trace:
            tracemalloc.start()
        if profiler is not None:
            profiler.enable()
        frontrunner.launch(spec, store=str(store), listener=marks)
        if profiler is not None:
            profiler.disable()
            pstats.Stats(profiler).sort_stats("cumulative").print_stats(TOP)
    if marks.ended_probes < chosen.trials:
        raise SystemExit(
            f"the campaign ended after {marks.ended_probes:,} trials, not {chosen.trials:,}: its"
            " space has no more recipes; name fewer --trials"
        )
    if chosen.trace:
        gc.collect()
        for line in tracemalloc.take_snapshot().statistics("lineno")[:TOP]:
            print(line)
    found = {"stretches": stretches(marks.found), "summary": summary(marks.found)}
    print(json.dumps(found["summary"], indent=1))
    if chosen.json:
        everything = found | {"marks": [asdict(mark) for mark in marks.found]}
        chosen.json.write_text(json.dumps(everything), encoding="utf-8")


if __name__ == "__main__":
    main()
