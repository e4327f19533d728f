"""A campaign that the test itself drives, an outcome at a time, while a service shows it."""

from __future__ import annotations

import json
import os
import random
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from frontrunner.config.campaign import parse_campaign
from frontrunner.results.outcome import Failure, FailureKind, Measurement
from frontrunner.results.predictions import PROPOSED, Expected
from frontrunner.results.records import Attempt
from frontrunner.results.states import CampaignState
from frontrunner.results.store import open_store
from frontrunner.results.writer import CampaignWriter
from frontrunner.search.spec import CampaignSpec
from frontrunner.spaces.document import recipe_id
from frontrunner.spaces.recipe import Recipe
from frontrunner.spaces.validation import dump_json
from support.rankings import measurement

GIB = 2**30
TABLE = {
    "evaluator": "probe",
    "model": {"name": "wide", "layers": 48, "hidden": 1024, "heads": 16, "vocabulary": 50257},
    "cluster": {
        "device": "test",
        "backend": "cpu",
        "nodes": 4,
        "devices_per_node": 8,
        "memory_gib_per_device": 64.0,
    },
    "problem": {"sequence_length": 1024, "global_batch": 64, "precision": "bf16"},
    "space": {
        "tensor_parallel": [1, 2, 4, 8],
        "pipeline_parallel": [1, 2, 4, 8, 16],
        "micro_batch_seqs": [1, 2, 4, 8],
        "schedule": ["1f1b", "gpipe"],
        "recompute": ["none", "full"],
    },
}
"""Five degrees of pipeline parallelism, four of tensor parallelism and four micro-batches; five
knobs.
"""


def write_steps(folder: Path, steps: int) -> None:
    """Write what a probe's first rank has written after so many steps."""
    (folder / "job.json").write_text("{}", encoding="utf-8")
    events = [{"event": "built"}, *({"event": "step", "time_s": 1.5} for _ in range(steps))]
    (folder / "progress.jsonl").write_text(
        "".join(f"{json.dumps(one)}\n" for one in events), encoding="utf-8"
    )
    (folder / "rank-0.log").write_text(
        "".join(f"rank 0 says {n}\n" for n in range(40 + steps)), encoding="utf-8"
    )


@dataclass(kw_only=True)
class LiveCampaign:
    """A campaign of which this process is the driver; every fourth recipe runs out of memory."""

    writer: CampaignWriter
    spec: CampaignSpec
    recipes: list[Recipe]
    done: int = 0
    under_way: Attempt | None = None

    def go_on(self, outcomes: int = 1) -> int:
        """Record so many outcomes more; the number of the newest trial."""
        for _ in range(outcomes):
            recipe = self.recipes[self.done]
            trial = self.writer.propose(recipe_id(self.spec.problem, recipe), recipe)
            attempt = self.writer.start_attempt(trial, run_folder="/runs/1")
            self.done += 1
            self.writer.finish_attempt(attempt, self._outcome(), retry=False)
        return self.done

    def begin(self, expected: Expected | None = None) -> Path:
        """Start the next recipe's probe, chosen by a forecast where there is one, and return its
        run folder.
        """
        recipe = self.recipes[self.done]
        self.done += 1
        trial = self.writer.propose(recipe_id(self.spec.problem, recipe), recipe)
        if expected is not None:
            self.writer.event(PROPOSED, trial=trial.number, **asdict(expected))
        folder = self.spec.run_folder / f"{trial.number:05d}.1"
        folder.mkdir(parents=True)
        self.under_way = self.writer.start_attempt(trial, run_folder=str(folder))
        return folder

    def finish(self) -> None:
        """End the probe that was begun last."""
        assert self.under_way is not None
        self.writer.finish_attempt(self.under_way, self._outcome(), retry=False)

    def _outcome(self) -> Measurement | Failure:
        if self.done % 4 == 0:
            message = (
                "rank 3 of 32 wanted 2.1 GiB more than the 64.0 GiB that a device has, with trial"
                f" {self.done}"
            )
            return Failure(
                kind=FailureKind.OUT_OF_MEMORY, message=message, log_tail="the end\n" * 99
            )
        step_s = 0.5 + self.done * 37 % 101 / 101
        return measurement((step_s, 1.02 * step_s), int(step_s * 30 * GIB))


@contextmanager
def driven(folder: Path, name: str, **sections: object) -> Iterator[LiveCampaign]:
    """A campaign in the store of a folder; its lease is given back at the end, before others end
    what drives.
    """
    spec = replace(
        parse_campaign(TABLE | sections, default_name=name, base=Path()).spec,
        run_root=str(folder / "runs"),
    )
    recipes = list(spec.survey().recipes)
    random.Random(3).shuffle(recipes)
    with open_store(str(folder / "store.db"), create=True) as store:
        campaign = store.create_campaign(
            name=name,
            spec_json=dump_json(spec),
            legal_recipes=len(recipes),
            problem_summary={"model": "wide"},
        )
        writer = store.drive(
            store.acquire_lease(campaign.id, host=socket.gethostname(), pid=os.getpid())
        )
        writer.set_state(CampaignState.RUNNING, reason="")
        live = LiveCampaign(writer=writer, spec=spec, recipes=recipes)
        try:
            yield live
        finally:
            live.writer.release(CampaignState.STOPPED, reason="the test is over")
