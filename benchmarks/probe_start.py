"""How soon a probe's first step is done: ranks forked from the warm server against a cold torchrun.

    python benchmarks/probe_start.py --recipes 6

Both run the same job files; times are from the order to the end of the first step, and of the whole
probe.
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
from collections.abc import Callable, Sequence
from pathlib import Path

from frontrunner.config.campaign import read_campaign_file
from frontrunner.evaluators.probe.files import write_json
from frontrunner.evaluators.probe.job import probe_job
from frontrunner.evaluators.probe.replay import torchrun
from frontrunner.evaluators.probe.run_folder import StepCounter
from frontrunner.evaluators.probe.watch import TrainingProbe, rank_environment
from frontrunner.evaluators.protocol import Evaluator, ProbeOrder, ProbeSetup
from frontrunner.results.outcome import Measurement
from frontrunner.search.spec import CampaignSpec
from frontrunner.spaces.recipe import ENGINES, Recipe

EXAMPLE = Path(__file__).parent.parent / "examples" / "laptop.toml"
POLL_S = 0.01


def watched(folder: Path, start: float, is_over: Callable[[], bool]) -> tuple[float, float]:
    """Seconds from `start` to the first step, and to the end."""
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


def warm(evaluator: TrainingProbe, recipe: Recipe, folder: Path) -> tuple[float, float]:
    start = time.perf_counter()
    evaluator.start(ProbeOrder(token=folder.name, recipe=recipe, run_folder=folder))
    return watched(folder, start, lambda: bool(evaluator.finished(POLL_S)))


def cold(
    setup: ProbeSetup, evaluator: TrainingProbe, recipe: Recipe, folder: Path
) -> tuple[float, float]:
    folder.mkdir(parents=True)
    write_json(folder / "job.json", probe_job(setup, recipe, folder, evaluator.tokens))
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


def chosen_recipes(
    description: str, *, default: int
) -> tuple[argparse.Namespace, CampaignSpec, Sequence[Recipe]]:
    """The command line, the example's campaign on the engine it names, and as many of its recipes,
    evenly apart.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--recipes", type=int, default=default)
    parser.add_argument("--engine", choices=ENGINES, default="torch")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    spec = read_campaign_file(EXAMPLE).spec
    spec = dataclasses.replace(
        spec, space=dataclasses.replace(spec.space, engine=(arguments.engine,))
    )
    recipes = spec.space.survey(spec.problem).recipes
    return (
        arguments,
        spec,
        recipes[:: max(1, len(recipes) // arguments.recipes)][: arguments.recipes],
    )


def main() -> None:
    arguments, spec, chosen = chosen_recipes(__doc__, default=6)
    rows = []
    with tempfile.TemporaryDirectory() as root:
        spec = dataclasses.replace(
            spec,
            run_root=root,
            probe=dataclasses.replace(spec.probe, warm_up_steps=0, measured_steps=1),
        )
        setup = spec.probe_setup()
        evaluator = TrainingProbe(setup)
        try:
            warm(evaluator, chosen[0], Path(root) / "first")  # waits for the server to be up
            for number, recipe in enumerate(chosen):
                forked = warm(evaluator, recipe, Path(root) / f"warm-{number}")
                launched = cold(setup, evaluator, recipe, Path(root) / f"cold-{number}")
                rows.append(
                    {"recipe": recipe.describe(), "forked_s": forked, "torchrun_s": launched}
                )
                print(
                    f"{recipe.describe():<45} first step: forked {forked[0]:5.2f} s, torchrun"
                    f" {launched[0]:5.2f} s, {launched[0] / forked[0]:4.1f} x"
                )
        finally:
            evaluator.close()
    ratio = statistics.median(row["torchrun_s"][0] / row["forked_s"][0] for row in rows)
    print(f"median: the first step is done {ratio:.1f} times sooner")
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
