"""Campaigns whose processes are disturbed at moments that nobody chose, and an audit of what is
left.

    python benchmarks/chaos.py --campaigns 200 --kills-per-minute 300 --seed 1
    python benchmarks/chaos.py --campaigns 10 --kills-per-minute 12 --seed 1 --evaluator probe

Each driver is a process of its own. It, its fork server and its ranks are killed, stopped, paused
and made to stand still while others take their place (`chaos_driving.py`); what a person would
restart is restarted. Up to three campaigns share a store: simulated ones are driven at once, real
ones one after another, so that later ones are answered by earlier ones. They differ in strategy,
budget and more (`chaos_campaigns.py`). `--store URL` puts all into one PostgreSQL store.

In the end each store is gone through by the rules of `frontrunner store check` and held against
what its drivers had said was stored (`chaos_audit.py`), and processes, ports, files and shared
memory are looked for (`chaos_leftovers.py`).
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from chaos_audit import Fault, faults, outcomes_of
from chaos_campaigns import PROBES, STRATEGIES, spec_of
from chaos_driving import Campaign, Counts, Limits
from chaos_leftovers import Surroundings

import frontrunner
from frontrunner.results.address import parse_address
from frontrunner.results.store import Store, open_store
from frontrunner.search.campaign_setup import create
from frontrunner.search.strategy import STRATEGIES as KNOWN

FAULTS = (
    "lost",
    "doubled",
    "misattributed",
    "over_budget",
    "unfinished",
    "failed_untouched",
    "not_fenced",
    "broken_rules",
    "unheard_outcome_files",
    "orphans",
    "ports_left",
    "files_left",
    "shared_memory_left",
)
"""What is counted, and should be 0."""
MOST_AT_ONCE = 3
LOOK_S = 0.2
"""Between two looks at the processes and their sockets."""


class Chaos:
    """Runs campaigns, a group with one store at a time, and keeps count of what happened and what
    is wrong.
    """

    def __init__(self, asked: argparse.Namespace, folder: Path, surroundings: Surroundings) -> None:
        self._asked, self._folder, self._surroundings = asked, folder, surroundings
        self._draw = random.Random(asked.seed)
        self.counts = Counts()
        self.figures = Counter[str]()
        self.faults: list[Fault] = []
        self._told = 0

    def run(self) -> Iterator[dict[str, Any]]:
        """Run as many campaigns as were asked for; the report so far after each group."""
        while (left := self._asked.campaigns - self.figures["campaigns"]) > 0:
            self._group(min(left, self._draw.randint(1, MOST_AT_ONCE)))
            yield self._report()

    def _group(self, count: int) -> None:
        first = self.figures["campaigns"]
        folder = self._folder / str(first)
        folder.mkdir()
        url = self._asked.store or str(folder / "store.db")
        campaigns = [
            self._campaign(url, folder, first + number, is_alone=count == 1)
            for number in range(count)
        ]
        together = (
            [campaigns]
            if self._asked.evaluator == "simulated"
            else [[campaign] for campaign in campaigns]
        )
        for group in together:
            self._drive(group)
        self._look_for_leftovers(folder)
        with open_store(url, read_only=True) as store:
            for campaign in campaigns:
                self._audit(store, campaign)
        self.faults += [("not_fenced", what) for what in self.counts.not_fenced]
        self.counts.not_fenced.clear()
        shutil.rmtree(folder)
        self.figures["campaigns"] += count
        self._tell()

    def _campaign(self, url: str, folder: Path, number: int, *, is_alone: bool) -> Campaign:
        draw = random.Random(f"{self._asked.seed} {number}")
        spec = spec_of(f"chaos-{self._asked.seed}-{number}", self._asked.evaluator, folder, draw)
        with open_store(url) as store:
            create(store, spec, len(spec.survey().recipes))
        its_folder = folder / spec.name
        its_folder.mkdir()
        is_sqlite = (
            parse_address(url).path is not None
        )  # there a driver that stands still keeps its campaign
        limits = Limits(
            per_minute=self._asked.kills_per_minute,
            most_disturbances=self._asked.most_kills,
            may_outwait=is_alone and not is_sqlite,
        )
        return Campaign(url, spec, its_folder, limits=limits, draw=draw, counts=self.counts)

    def _drive(self, campaigns: list[Campaign]) -> None:
        """Drive campaigns at once until each has ended."""
        look_at = 0.0
        while any(not campaign.has_ended for campaign in campaigns):
            for campaign in campaigns:
                campaign.step(self._surroundings.driver_ended)
            if time.monotonic() >= look_at:
                self._surroundings.look({pid for campaign in campaigns for pid in campaign.drivers})
                look_at = time.monotonic() + LOOK_S
            time.sleep(0.004)

    def _look_for_leftovers(self, folder: Path) -> None:
        left = self._surroundings.left()
        self.faults += [("orphans", process) for process in left.processes]
        self.faults += [("ports_left", port) for port in left.ports]
        self.faults += [("files_left", file) for file in left.files]
        self.faults += [("shared_memory_left", name) for name in left.shared_memory]
        self.faults += [("files_left", str(path)) for path in folder.glob("store.db?*")]
        self.figures["sockets_seen"] += left.sockets_seen

    def _audit(self, store: Store, campaign: Campaign) -> None:
        spec, errors = campaign.spec, campaign.folder / "errors"
        outcomes, reused = outcomes_of(store, spec.name)
        self.figures.update(
            outcomes=outcomes, reused=reused, **{f"strategy {spec.search.strategy}": 1}
        )
        found = list(
            faults(
                store,
                spec,
                campaign.folder / "acknowledged",
                was_taken_over=campaign.was_taken_over,
            )
        )
        if not campaign.has_finished:
            found.append(("unfinished", store.campaign(spec.name).state))
        self.faults += [(kind, f"{spec.name}: {what}") for kind, what in found]
        if errors.exists():
            sys.stderr.write(errors.read_text())

    def _tell(self) -> None:
        for kind, what in self.faults[self._told :]:
            sys.stderr.write(f"{kind}: {what}\n")
        self._told = len(self.faults)

    def _report(self) -> dict[str, Any]:
        """Everything that was counted; `faults` are 0 each where nothing is wrong."""
        found = Counter(kind for kind, _ in self.faults)
        found.update(failed_untouched=self.counts.failed_untouched)
        return {
            **{
                name: self.figures[name]
                for name in ("campaigns", "outcomes", "reused", "sockets_seen")
            },
            "drivers": self.counts.drivers,
            "disturbances": dict(sorted(self.counts.disturbances.items())),
            "failed_after_a_kill": self.counts.failed_after_a_kill,
            "strategies": {
                key.split()[1]: n
                for key, n in sorted(self.figures.items())
                if key.startswith("strategy ")
            },
            "faults": {name: found[name] for name in FAULTS},
        }


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--campaigns", type=int, default=40)
    parser.add_argument(
        "--kills-per-minute", type=float, default=300.0, help="disturbances of other kinds included"
    )
    parser.add_argument("--most-kills", type=int, default=40, help="in one campaign [default: 40]")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--evaluator", choices=sorted(PROBES), default="simulated")
    parser.add_argument(
        "--store",
        help="one store for all campaigns, such as a PostgreSQL URL [default: a file each]",
    )
    parser.add_argument(
        "--json", type=Path, metavar="OUT", help="keep what was counted so far in this file"
    )
    return parser.parse_args()


def warm_up(folder: Path) -> None:
    """Drive a campaign undisturbed here, and import every strategy: drivers are forked with what
    this leaves behind.
    """
    url = str(folder / "warm-up.db")
    spec = spec_of("warm-up", "simulated", folder, random.Random(0))
    with open_store(url) as store:
        create(store, spec, 1)
    frontrunner.resume(spec.name, store=url)
    for strategy in STRATEGIES:
        import_module(KNOWN[strategy].partition(":")[0])


def main() -> int:
    asked, began_s = arguments(), time.monotonic()
    about = {
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        **{key: value for key, value in vars(asked).items() if key not in ("json", "store")},
        "database": "sqlite" if asked.store is None else asked.store.partition(":")[0],
    }
    report: dict[str, Any] = {"faults": {}}
    with tempfile.TemporaryDirectory(prefix="chaos-") as name:
        folder, temporary = Path(name) / "c", Path(name) / "t"
        folder.mkdir()
        temporary.mkdir()
        warm_up(folder)
        with Surroundings(temporary) as surroundings:
            for so_far in Chaos(asked, folder, surroundings).run():
                report = {**about, **so_far, "seconds": round(time.monotonic() - began_s, 1)}
                if asked.json is not None:
                    asked.json.write_text(f"{json.dumps(report, indent=2)}\n")
    print(json.dumps(report, indent=2))
    return 1 if any(report["faults"].values()) else 0


if __name__ == "__main__":
    sys.exit(main())
