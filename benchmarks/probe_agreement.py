"""Whether a probe tells what a full run reaches: a probe's tokens/s against a replay's of the same
recipe.

    python benchmarks/probe_agreement.py
    sbatch -N2 --exclusive --wrap "python benchmarks/probe_agreement.py --campaign FILE"

Probes of examples/laptop.toml with a fixed number of steps and short replays (a cold torchrun,
train mode) take turns. Told are the ratio of the medians over all steps of both, and that of the
fastest steps, which other work on the machine disturbs less; then the quartiles of the turns' own
ratios. With --campaign the recipe is the first of that file's space, and runs on the nodes of the
job at hand.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(
    0, str(Path(__file__).resolve().parent)
)  # for the module beside this one, also under `python -P`

from probe_start import EXAMPLE, measured

from frontrunner.config.campaign import read_campaign_file
from frontrunner.evaluators.programs.rank_replay import plan, run
from frontrunner.evaluators.protocol import Evaluator, ProbeOrder, ProbeSetup
from frontrunner.evaluators.registry import make_evaluator
from frontrunner.evaluators.runs.measure import tokens_per_step
from frontrunner.evaluators.runs.training import ReplaySettings
from frontrunner.spaces.recipe import Recipe

MEASURED_STEPS = 6


def probed(evaluator: Evaluator, recipe: Recipe, folder: Path) -> list[float]:
    """The seconds of a probe's measured steps."""
    return list(
        measured(
            evaluator, ProbeOrder(token=folder.name, recipe=recipe, run_folder=folder)
        ).step_times_s
    )


def replayed(setup: ProbeSetup, recipe: Recipe, folder: Path, steps: int) -> list[float]:
    """The seconds of a replay's steps; its tokens/s are those of their median."""
    settings = ReplaySettings(
        steps=steps, evaluation_every_steps=steps, evaluation_batches=1, folder=folder
    )
    chosen = plan(
        recipe_id="bench",
        recipe=recipe,
        setup=setup,
        measured_tokens_per_s=None,
        settings=settings,
        anyway=True,
    )
    run(chosen)
    return [
        float(value) for value in json.loads((folder / "result.json").read_text())["step_times_s"]
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--probes", type=int, default=12)
    parser.add_argument("--replay-steps", type=int, default=12)
    parser.add_argument("--micro-batch", type=int, default=8)
    parser.add_argument("--probe-steps", type=int, default=MEASURED_STEPS)
    parser.add_argument("--campaign", type=Path, metavar="FILE")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    spec = read_campaign_file(arguments.campaign or EXAMPLE).spec
    if arguments.campaign is None:
        space = dataclasses.replace(
            spec.space, micro_batch_seqs=(arguments.micro_batch,), recompute=("none",)
        )
        cluster = dataclasses.replace(spec.problem.cluster, devices_per_node=1)
        problem = dataclasses.replace(spec.problem, cluster=cluster)
        spec = dataclasses.replace(spec, space=space, problem=problem)
    problem, recipe = spec.problem, spec.survey().recipes[0]
    times: dict[str, list[float]] = {"probe": [], "replay": []}
    ratios: list[float] = []
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as root:  # which all nodes see
        probe = dataclasses.replace(spec.probe, measured_steps=arguments.probe_steps)
        setup = dataclasses.replace(spec, run_root=root, probe=probe).probe_setup()
        evaluator = make_evaluator("probe", setup)
        try:
            for number in range(arguments.probes):
                folder = Path(root) / f"replay-{number}"
                replay_s = replayed(setup, recipe, folder, arguments.replay_steps)
                probe_s = probed(evaluator, recipe, Path(root) / f"probe-{number}")
                times = {"probe": times["probe"] + probe_s, "replay": times["replay"] + replay_s}
                ratios.append(statistics.median(replay_s) / statistics.median(probe_s))
        finally:
            evaluator.close()
    tokens = tokens_per_step(recipe, problem)
    rates = {name: tokens / statistics.median(seconds) for name, seconds in times.items()}
    medians, fastest = rates["probe"] / rates["replay"], min(times["replay"]) / min(times["probe"])
    print(
        f"{recipe.describe()}, {arguments.probes} of each: {rates['probe']:.0f} tokens/s by probes,"
        f" {rates['replay']:.0f} by replays: {medians:.3f} of it; by the fastest steps"
        f" {fastest:.3f}"
    )
    if len(ratios) > 1:
        print(
            "turn by turn, a probe's tokens/s over a replay's, quartiles:",
            *(f"{q:.3f}" for q in statistics.quantiles(ratios, n=4)),
        )
    if arguments.json:
        arguments.json.write_text(
            json.dumps({"recipe": recipe.describe(), "step_times_s": times}, indent=2)
        )


if __name__ == "__main__":
    main()
