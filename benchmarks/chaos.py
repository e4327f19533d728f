"""Campaigns under random kills, restarted as a person would restart them, and an audit of what they left.

    python benchmarks/chaos.py --campaigns 200 --kills-per-minute 30 --seed 1
    python benchmarks/chaos.py --campaigns 10 --evaluator probe --kills-per-minute 20 --seed 1

Real drivers run as processes of their own, two at a time. At exponentially distributed moments a random process among
them, their fork servers and their ranks is killed by SIGKILL. A campaign whose driver was killed is resumed, and one
that was killed before it was in the store is launched again. In the end `chaos_audit` counts outcomes that were lost,
doubled or misattributed, budgets that were overrun, and processes, files and shared memory that were left. The exit
status is 1 unless every count is 0.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from chaos_audit import Audit, audit_store, leftovers, shared_memory

STORE_CAMPAIGNS = 20
"""Campaigns of one store, so that drivers share one."""
MOST_RUNS = 200
"""Drivers of one campaign before it is held to be stuck."""
LONGEST_RUN_S = 300.0
SETTLE_S = 10.0
"""How long processes of a killed driver may take to end: guarantee 4 of docs/guarantees.md."""
PROBES = {"simulated": 300, "probe": 6}

SIMULATED = """
evaluator = "simulated"
[model]
layers = 16
hidden = 64
heads = 16
vocabulary = 257
[cluster]
device = "test-cpu"
backend = "cpu"
devices_per_node = 8
memory_gib_per_device = 2.0
[problem]
sequence_length = 32
global_batch = 64
precision = "fp32"
[space]
tensor_parallel = [1, 2, 4, 8]
pipeline_parallel = [1, 2, 4, 8]
micro_batch_seqs = [1, 2, 4, 8]
sharding = ["none", "zero-1", "zero-2", "zero-3"]
recompute = ["none", "selective", "full"]
"""
REAL = """
[model]
layers = 2
hidden = 64
heads = 4
vocabulary = 257
[cluster]
device = "test-cpu"
backend = "cpu"
devices_per_node = 2
memory_gib_per_device = 2.0
[problem]
sequence_length = 32
global_batch = 8
precision = "fp32"
[space]
tensor_parallel = [1, 2]
pipeline_parallel = [1, 2]
micro_batch_seqs = [1, 2, 4]
[probe]
warm_up_steps = 1
measured_steps = 20
deadline_s = 120
"""
FILES = {"simulated": SIMULATED, "probe": REAL}


@dataclass
class Chaos:
    """One run: its folder, the campaigns' live drivers, and what was done to them."""

    folder: Path
    evaluator: str
    seed: int
    drivers: set[int] = field(default_factory=set)
    kills: dict[str, int] = field(default_factory=dict)
    runs: int = 0
    stuck: list[str] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def environment(self) -> dict[str, str]:
        """Temporary files go into a folder of this run, so that what is left of them can be counted."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith("FRONTRUNNER_")}
        return kept | {"TMPDIR": str(self.folder / "tmp"), "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}

    def store_of(self, number: int) -> Path:
        """The store that a campaign shares with its neighbours."""
        return self.folder / f"store-{number // STORE_CAMPAIGNS}" / "frontrunner.db"


def run_campaign(chaos: Chaos, number: int) -> None:
    """Launch one campaign and resume it until it ends of its own accord."""
    name, store = f"chaos-{number}", chaos.store_of(number)
    store.parent.mkdir(parents=True, exist_ok=True)
    file = store.parent / f"{name}.toml"
    budget = f"[budget]\nprobes = {PROBES[chaos.evaluator]}\n"
    search = f'[search]\nstrategy = "random"\nseed = {chaos.seed + number}\nreuse = false\n'
    file.write_text(f'name = "{name}"\n{FILES[chaos.evaluator]}{budget}{search}', encoding="utf-8")
    said = ""
    for _ in range(MOST_RUNS):
        is_stored = store.exists() and is_in(store, name)
        words = ["resume", name] if is_stored else ["launch", str(file)]
        status, said = drive(chaos, [*words, "--store", str(store)], store.parent / f"{name}.log")
        if status == 0:
            return
        if status > 0:
            break
    with chaos.lock:
        chaos.stuck.append(f"{name}: {said}")


def is_in(store: Path, name: str) -> bool:
    """Whether the store knows a campaign, as a person would ask it."""
    command = [sys.executable, "-P", "-m", "frontrunner.cli", "status", name, "--store", str(store), "--json"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def drive(chaos: Chaos, arguments: list[str], log: Path) -> tuple[int, str]:
    """One driver from start to end: its exit status (minus the signal that killed it) and its last line."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "frontrunner.cli", *arguments],
            env=chaos.environment,
            cwd=log.parent,
            stdout=subprocess.DEVNULL,
            stderr=output,
        )
    with chaos.lock:
        chaos.drivers.add(process.pid)
        chaos.runs += 1
    try:
        status = process.wait(timeout=LONGEST_RUN_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        status = 1
    finally:
        with chaos.lock:
            chaos.drivers.discard(process.pid)
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return status, lines[-1] if lines else ""


def kill_at_random(chaos: Chaos, kills_per_minute: float) -> None:
    """Until the campaigns are over: kill a process of ours at exponentially distributed moments."""
    chance = random.Random(chaos.seed)
    while not chaos.over.wait(chance.expovariate(kills_per_minute / 60)):
        victims = living(chaos)
        if not victims:
            continue
        victim = chance.choice(sorted(victims, key=lambda process: process.pid))
        try:
            kind = kind_of(victim, chaos)
            if victim.status() == psutil.STATUS_ZOMBIE:
                continue
            victim.kill()
        except psutil.Error:
            continue
        chaos.kills[kind] = chaos.kills.get(kind, 0) + 1


def living(chaos: Chaos) -> list[psutil.Process]:
    """The drivers, and every process below them."""
    with chaos.lock:
        pids = tuple(chaos.drivers)
    found = []
    for pid in pids:
        try:
            driver = psutil.Process(pid)
            found += [driver, *driver.children(recursive=True)]
        except psutil.Error:
            continue
    return found


def kind_of(process: psutil.Process, chaos: Chaos) -> str:
    """What a process is: a driver, its fork server, or a rank."""
    if process.pid in chaos.drivers:
        return "driver"
    return "fork server" if process.ppid() in chaos.drivers else "rank"


def main() -> None:
    """Run the campaigns, audit what they left, and print the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--campaigns", type=int, default=200)
    parser.add_argument("--evaluator", choices=tuple(FILES), default="simulated")
    parser.add_argument("--kills-per-minute", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    (folder / "tmp").mkdir()
    chaos = Chaos(folder=folder, evaluator=given.evaluator, seed=given.seed)
    shared_before = shared_memory()
    start = time.monotonic()
    killer = threading.Thread(target=kill_at_random, args=(chaos, given.kills_per_minute))
    killer.start()
    try:
        with ThreadPoolExecutor(max_workers=2) as pool:
            list(pool.map(lambda number: run_campaign(chaos, number), range(given.campaigns)))
    finally:
        chaos.over.set()
        killer.join()
    seconds = time.monotonic() - start
    time.sleep(SETTLE_S)
    audit = Audit(stuck=chaos.stuck)
    for store in sorted(folder.glob("store-*/frontrunner.db")):
        audit_store(audit, store, most_outcomes=PROBES[given.evaluator])
    leftovers(audit, folder, shared_before)
    report(chaos, audit, seconds, given)
    if audit.findings:
        sys.exit(1)
    shutil.rmtree(folder)


def report(chaos: Chaos, audit: Audit, seconds: float, given: argparse.Namespace) -> None:
    """Print what was done, and what the audit found."""
    counts = audit.counts()
    document = {
        "campaigns": given.campaigns,
        "evaluator": chaos.evaluator,
        "drivers": chaos.runs,
        "kills": chaos.kills,
        "outcomes": audit.outcomes,
        "seconds": round(seconds, 1),
        **counts,
    }
    print(f"{given.campaigns} campaigns ({chaos.evaluator}), {audit.outcomes} outcomes, {seconds:.0f} s")
    print(f"drivers started {chaos.runs}, killed: {', '.join(f'{n} {kind}s' for kind, n in chaos.kills.items())}")
    for what, count in counts.items():
        print(f"{what:22}{count:6}")
    for finding in audit.findings:
        print(f"  {finding}")
    if audit.findings:
        print(f"left for a look: {chaos.folder}")
    if given.json:
        given.json.write_text(json.dumps(document | {"findings": audit.findings}, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
