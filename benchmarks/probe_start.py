"""How soon a probe's first step is done: ranks forked from the warm server against another start.

    python benchmarks/probe_start.py --recipes 6                    # a cold torchrun for each
    python benchmarks/probe_start.py --recipes 20 --steps 6         # whole probes, as of a campaign
    python benchmarks/probe_start.py --recipes 8 --against ray      # a warm Ray cluster of this
                                                                    # machine

Recipes of examples/laptop.toml are probed both ways, in turns, by the same job files; times are
from the order to the end of the first step, and of the whole probe. Ray's probes run once more
without shared files.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

from frontrunner.config.campaign import read_campaign_file
from frontrunner.evaluators.nodes.settings import DispatchSettings
from frontrunner.evaluators.programs.jobs import probe_job
from frontrunner.evaluators.programs.rank_replay import torchrun
from frontrunner.evaluators.programs.ranks import RankProgram, rank_environment
from frontrunner.evaluators.protocol import Evaluator, ProbeOrder, ProbeSetup
from frontrunner.evaluators.registry import training_probe
from frontrunner.evaluators.runs.probes import probes_on
from frontrunner.evaluators.runs.run_folder import StepCounter
from frontrunner.results.outcome import Measurement
from frontrunner.search.spec import CampaignSpec
from frontrunner.spaces.recipe import ENGINES, Recipe

EXAMPLE = Path(__file__).parent.parent / "examples" / "laptop.toml"
POLL_S = 0.01
FORKED = "forked"
RAY = {
    "ray": DispatchSettings(backend="ray", address="local"),
    "ray, files sent": DispatchSettings(backend="ray", address="local", shared_files=False),
}

Times = tuple[float, float]
"""Seconds from the order to the end of the first step, and to the end of the probe."""
Way = Callable[[Recipe, Path], Times]
"""Probes a recipe in a new run folder."""


def watched(folder: Path, start: float, is_over: Callable[[], bool]) -> Times:
    """Return the times of a probe that began at `start`."""
    steps, first = StepCounter(folder), None
    while True:
        over = is_over()
        steps.advance()
        if first is None and steps.steps_done:
            first = time.perf_counter() - start
        if over:
            return (first if first is not None else float("nan")), time.perf_counter() - start
        time.sleep(POLL_S)


def measured(evaluator: Evaluator, order: ProbeOrder) -> Measurement:
    """Run a probe to its end."""
    evaluator.start(order)
    while not (ended := evaluator.finished(1.0)):
        pass
    if not isinstance(outcome := ended[0].outcome, Measurement):
        raise SystemExit(f"the probe failed: {outcome}")
    return outcome


def warm(evaluator: Evaluator, recipe: Recipe, folder: Path) -> Times:
    """Probe a recipe by an evaluator whose servers are up."""
    start = time.perf_counter()
    evaluator.start(ProbeOrder(token=folder.name, recipe=recipe, run_folder=folder))

    def is_over() -> bool:
        ended = evaluator.finished(POLL_S)
        if ended and not isinstance(ended[0].outcome, Measurement):
            raise SystemExit(f"the probe failed: {ended[0].outcome}")
        return bool(ended)

    return watched(folder, start, is_over)


def cold(setup: ProbeSetup, program: RankProgram, recipe: Recipe, folder: Path) -> Times:
    """Probe a recipe by a torchrun of its own."""
    folder.mkdir(parents=True)
    job = probe_job(setup, recipe, folder, program.tokens)
    (folder / "job.json").write_text(job.to_json())
    environment = {**os.environ, "PYTHONSAFEPATH": "1", **rank_environment(setup)}
    start = time.perf_counter()
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            torchrun(recipe.devices, recipe.devices, folder / "job.json"),
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        found = watched(folder, start, lambda: process.poll() is not None)
    if process.returncode:
        raise SystemExit((folder / "log").read_text())
    return found


@contextmanager
def ways(spec: CampaignSpec, against: str, first: Recipe) -> Iterator[dict[str, tuple[Way, Path]]]:
    """Yield the ways to start a probe, each with its folder, once the servers are up."""
    root = Path(spec.run_root)
    setup = spec.probe_setup()
    program = RankProgram(setup)
    with closing(probes_on(None, program)) as forked:
        found: dict[str, tuple[Way, Path]] = {FORKED: (partial(warm, forked), setup.work_folder)}
        evaluators = []
        if against == "torchrun":
            found["torchrun"] = (partial(cold, setup, program), root / "cold")
        for number, (name, dispatch) in enumerate(RAY.items() if against == "ray" else ()):
            own = dataclasses.replace(spec, run_root=str(root / f"{number}"), dispatch=dispatch)
            evaluators.append(training_probe(own.probe_setup()))
            found[name] = (partial(warm, evaluators[-1]), own.probe_setup().work_folder)
        try:
            for way, folder in found.values():
                if way.func is warm:
                    way(first, folder / "first")
            yield found
        finally:
            for evaluator in evaluators:
                evaluator.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--recipes", type=int, default=6)
    parser.add_argument("--steps", type=int, default=1, help="measured steps of each probe")
    parser.add_argument("--against", choices=("torchrun", "ray"), default="torchrun")
    parser.add_argument("--engine", choices=ENGINES, default="torch")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    spec = read_campaign_file(EXAMPLE).spec
    space = dataclasses.replace(spec.space, engine=(chosen.engine,))
    recipes = space.survey(spec.problem).recipes
    recipes = recipes[:: max(1, len(recipes) // chosen.recipes)][: chosen.recipes]
    probe = dataclasses.replace(spec.probe, warm_up_steps=0, measured_steps=chosen.steps)
    rows: list[dict[str, Times]] = []
    with tempfile.TemporaryDirectory() as root:
        spec = dataclasses.replace(spec, space=space, run_root=root, probe=probe)
        with ways(spec, chosen.against, recipes[0]) as found:
            for number, recipe in enumerate(recipes):
                rows.append(
                    {
                        name: way(recipe, folder / f"{number}")
                        for name, (way, folder) in found.items()
                    }
                )
                told = (f"{name} {row[0]:5.2f} s" for name, row in rows[-1].items())
                print(f"{recipe.describe():<45} first step: {', '.join(told)}", flush=True)
    for name in rows[0]:
        first_s, whole_s = ([row[name][place] for row in rows] for place in (0, 1))
        later = [row[name][0] - row[FORKED][0] for row in rows]
        ratio = statistics.median(row[name][0] / row[FORKED][0] for row in rows)
        print(
            f"{name}: first step after {statistics.median(first_s):.2f} s in the median,"
            f" {ratio:.1f} times {FORKED}, {statistics.median(later):+.2f} s (at most"
            f" {max(later):+.2f} s); whole probes {sum(whole_s):.0f} s"
        )
    if chosen.json:
        told = [
            {"recipe": recipe.describe(), **row} for recipe, row in zip(recipes, rows, strict=True)
        ]
        chosen.json.write_text(json.dumps(told, indent=2))


if __name__ == "__main__":
    main()
