"""Campaigns whose processes are killed at moments that nobody chose, and an audit of what is left.

    python benchmarks/chaos.py --campaigns 40 --kills-per-minute 120 --seed 1
    python benchmarks/chaos.py --campaigns 10 --kills-per-minute 12 --seed 1 --evaluator probe

Each driver is a process of its own; with real probes its fork server and ranks are killed as well. What a person would
restart is restarted, by `resume`. Then each campaign's store is gone through by the rules of `frontrunner store check`
and held against what its drivers had said was stored. `--store URL` puts the campaigns into one PostgreSQL store.
Left over processes, files and shared memory are looked for; ports that are still bound are not.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

import frontrunner
from frontrunner.campaign_file import parse_campaign
from frontrunner.evaluators.fork_client import MARKER
from frontrunner.evaluators.simulated import simulate
from frontrunner.results.audit.check import check
from frontrunner.results.outcome import Measurement
from frontrunner.results.states import CampaignState
from frontrunner.results.store import Store, open_store
from frontrunner.search.listener import Ended, Silent, View
from frontrunner.search.spec import CampaignSpec
from frontrunner.spaces.recipe import Recipe
from frontrunner.starting import problem_summary
from frontrunner.validation import dump_json

PROBES = {"simulated": 60, "probe": 8}
GRACE_S = 10.0
"""How long processes may outlive the driver that started them."""
LONGEST_RUN_S = 600.0
"""How long a campaign may take with all its drivers; one that hangs is killed then, and counts as unfinished."""


@dataclass(kw_only=True)
class Tally:
    """What happened, and what is wrong: all from `lost` on should be 0.

    A driver whose helpers were killed may end with an error (`failed_after_a_kill`); one that nobody touched may not
    (`failed_unkilled`).
    """

    campaigns: int = 0
    kills: int = 0
    drivers: int = 0
    outcomes: int = 0
    failed_after_a_kill: int = 0
    lost: int = 0
    doubled: int = 0
    misattributed: int = 0
    over_budget: int = 0
    unfinished: int = 0
    failed_unkilled: int = 0
    broken_rules: int = 0
    orphans: int = 0
    unheard_outcome_files: int = 0
    shared_memory_left: int = 0

    @property
    def is_clean(self) -> bool:
        counted = {"campaigns", "kills", "drivers", "outcomes", "failed_after_a_kill"}
        return not any(value for name, value in asdict(self).items() if name not in counted)


class Acknowledging(Silent):
    """Writes the recipe of each stored outcome to a file, past every buffer that a kill would empty."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def probe_ended(self, view: View, ended: Ended) -> None:
        del view
        if not ended.will_retry:
            os.write(self._file, f"{ended.recipe_id}\n".encode())


def spec_of(name: str, evaluator: str, folder: Path, seed: int) -> CampaignSpec:
    wide = evaluator == "simulated"
    table = {
        "evaluator": evaluator,
        "model": {"layers": 16 if wide else 2, "hidden": 64, "heads": 16 if wide else 4, "vocabulary": 257},
        "cluster": {
            "device": "chaos",
            "backend": "cpu",
            "devices_per_node": 8 if wide else 2,
            "memory_gib_per_device": 2.0,
        },
        "problem": {"sequence_length": 32, "global_batch": 64 if wide else 8, "precision": "fp32"},
        "space": {
            "tensor_parallel": [1, 2, 4, 8] if wide else [1, 2],
            "pipeline_parallel": [1, 2, 4, 8] if wide else [1, 2],
            "micro_batch_seqs": [1, 2, 4],
            "sharding": ["none", "zero-1", "zero-2", "zero-3"] if wide else ["none"],
        },
        "search": {"strategy": "random", "seed": seed, "identical_failures": 100},
        "budget": {"probes": PROBES[evaluator]},
        "probe": {"warm_up_steps": 1, "measured_steps": 2, "deadline_s": 60, "step_deadline_s": 30},
        "store": {"run_folder": str(folder / "runs")},
    }
    return CampaignSpec(
        **{**vars(parse_campaign(table, default_name=name, base=folder).spec), "run_root": str(folder / "runs")}
    )


def start_driver(url: str, name: str, acknowledged: Path) -> int:
    """A driver as a forked process, warm with what this one has imported; its exit code is 0 for a campaign's end."""
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        frontrunner.resume(name, store=url, listener=Acknowledging(acknowledged))
        code = 0
    except Exception as error:
        sys.stderr.write(f"driver of {name}: {error}\n")
    finally:
        os._exit(code)


def has_ended(pid: int) -> int | None:
    ended, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None


def processes_of(drivers: set[int]) -> Iterator[psutil.Process]:
    """Live processes that carry the mark of one of these drivers."""
    marks = {str(pid) for pid in drivers}
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and process.environ().get(MARKER) in marks:
                yield process
        except psutil.Error:
            continue


class Chaos:
    """Drives campaigns one by one and kills at random: exponential waits, so that no moment is spared."""

    def __init__(self, *, kills_per_minute: float, most_kills: int, seed: int) -> None:
        """After `most_kills` a campaign is let run to its end: on a slow machine it would never reach it."""
        self._random = random.Random(seed)
        self._mean_wait_s = 60.0 / kills_per_minute
        self._most_kills = self._kills_left = most_kills
        self.tally = Tally()

    def campaign(self, url: str, spec: CampaignSpec, folder: Path) -> None:
        """Create a campaign, drive it to its end through the kills, and audit it."""
        with open_store(url) as store:
            store.create_campaign(
                name=spec.name, spec_json=dump_json(spec), legal_recipes=1, problem_summary=problem_summary(spec)
            )
        acknowledged, drivers = folder / "acknowledged", set[int]()
        acknowledged.touch()
        give_up = time.monotonic() + LONGEST_RUN_S
        self._kills_left = self._most_kills
        has_ended_well = False
        while not has_ended_well and time.monotonic() < give_up:
            pid = start_driver(url, spec.name, acknowledged)
            drivers.add(pid)
            has_ended_well = self.watch(pid, give_up)
        self.tally.drivers += len(drivers)
        self._audit_processes(drivers)
        with open_store(url, read_only=True) as store:
            self._audit(store, spec, set(acknowledged.read_text().split()), has_ended_well=has_ended_well)

    def watch(self, driver: int, give_up: float) -> bool:
        """Kill one process of the driver's after another until it ends; whether it ended with its campaign.

        At `give_up`, of the monotonic clock, the driver itself is killed.
        """
        kills_before = self.tally.kills
        kill_at = self._next_kill()
        while (code := has_ended(driver)) is None:
            if time.monotonic() >= give_up:
                os.kill(driver, signal.SIGKILL)
                os.waitpid(driver, 0)
                return False
            if self._kills_left and time.monotonic() >= kill_at:
                self._kill_one(driver)
                kill_at = self._next_kill()
            time.sleep(0.002)
        if self.tally.kills == kills_before:
            self.tally.failed_unkilled += code != 0
        else:
            self.tally.failed_after_a_kill += code not in (0, -signal.SIGKILL)
        return code == 0

    def _next_kill(self) -> float:
        return time.monotonic() + self._random.expovariate(1 / self._mean_wait_s)

    def _kill_one(self, driver: int) -> None:
        victim = self._random.choice([driver, *(process.pid for process in processes_of({driver}))])
        try:
            os.kill(victim, signal.SIGKILL)
        except ProcessLookupError:  # it ended in between
            return
        self.tally.kills += 1
        self._kills_left -= 1

    def _audit_processes(self, drivers: set[int]) -> None:
        deadline = time.monotonic() + GRACE_S
        while (left := list(processes_of(drivers))) and time.monotonic() < deadline:
            time.sleep(0.05)
        self.tally.orphans += len(left)

    def _audit(self, store: Store, spec: CampaignSpec, acknowledged: set[str], *, has_ended_well: bool) -> None:
        tally, record = self.tally, store.campaign(spec.name)
        trials = {trial.recipe: trial.recipe_id for trial in store.trials(record.id)}
        told = store.told(record.id)
        counted = Counter(trials[recipe] for recipe, _ in told)
        tally.campaigns += 1
        tally.outcomes += len(told)
        tally.lost += len(acknowledged - set(counted))
        tally.doubled += sum(count - 1 for count in counted.values())
        tally.misattributed += sum(not belongs(recipe, outcome, spec) for recipe, outcome in told)
        tally.over_budget += max(0, record.outcomes - PROBES[spec.evaluator])
        tally.unfinished += not has_ended_well or record.state is not CampaignState.FINISHED
        with store.database.read() as connection:
            found = check(connection, store=store.url, campaign_id=record.id)
        tally.broken_rules += sum(finding.is_fault for finding in found.findings)
        tally.unheard_outcome_files += self._unheard(store, spec)

    @staticmethod
    def _unheard(store: Store, spec: CampaignSpec) -> int:
        """Outcomes on the disk in folders that the store has no attempt for."""
        table = frontrunner.dataframe(spec.name, store=store.url)
        known = set(table["run_folder"])
        return sum(str(path.parent) not in known for path in spec.run_folder.glob("*/outcome.json"))


def belongs(recipe: Recipe, outcome: object, spec: CampaignSpec) -> bool:
    """Whether an outcome can be that recipe's: the very one where it is simulated, else one of its ranks and tokens."""
    if spec.evaluator == "simulated":
        return outcome == simulate(recipe, spec.probe_setup())
    if not isinstance(outcome, Measurement):
        return True
    tokens = recipe.global_batch_seqs * spec.problem.sequence_length
    return outcome.tokens_per_step == tokens and len(outcome.peak_memory_bytes) == recipe.devices


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--campaigns", type=int, default=40)
    parser.add_argument("--kills-per-minute", type=float, default=120.0)
    parser.add_argument("--most-kills", type=int, default=40, help="in one campaign [default: 40]")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--evaluator", choices=sorted(PROBES), default="simulated")
    parser.add_argument("--store", help="one store for all campaigns, such as a PostgreSQL URL [default: a file each]")
    asked = parser.parse_args()
    chaos = Chaos(kills_per_minute=asked.kills_per_minute, most_kills=asked.most_kills, seed=asked.seed)
    shared_memory = Path("/dev/shm")
    before = {path.name for path in shared_memory.glob("*")}
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        for number in range(asked.campaigns):
            folder = Path(name) / str(number)
            folder.mkdir()
            spec = spec_of(f"chaos-{asked.seed}-{number}", asked.evaluator, folder, seed=asked.seed + number)
            chaos.campaign(asked.store or str(folder / "store.db"), spec, folder)
    mine = (path for path in shared_memory.glob("*") if path.name not in before and path.owner() == Path.home().owner())
    chaos.tally.shared_memory_left = sum(1 for path in mine if "torch" in path.name or "frontrunner" in path.name)
    print(json.dumps({**asdict(chaos.tally), "seconds": round(time.monotonic() - began, 1)}, indent=2))
    return 0 if chaos.tally.is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
