"""What adaptive probes save, and whether they measure the same: fixed and adaptive probes of the
same recipes in turns.

    python benchmarks/adaptive_probes.py

Recipes of examples/laptop.toml on two ranks, spread over the space. In each round every recipe is
probed with 2 warm-up and 5 measured steps (fixed), with the defaults (adaptive), and with the
defaults against the best of the first round (aimed), as a campaign's later probes are. Told are the
steps of each, and by how much a median differs from that of the fixed probe of the same round;
fixed probes against those of the round after are the yardstick: the machine's noise.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

sys.path.insert(
    0, str(Path(__file__).resolve().parent)
)  # for the module beside this one, also under `python -P`

from probe_start import EXAMPLE, measured

from frontrunner.config.campaign import read_campaign_file
from frontrunner.evaluators.probe import ProbeSettings
from frontrunner.evaluators.probe.watch import TrainingProbe
from frontrunner.evaluators.protocol import ProbeOrder
from frontrunner.search.spec import CampaignSpec
from frontrunner.spaces.recipe import Recipe

WAYS = {
    "fixed": ProbeSettings(warm_up_steps=2, measured_steps=5),
    "adaptive": ProbeSettings(),
    "aimed": ProbeSettings(),
}


@dataclass(frozen=True, kw_only=True)
class Probed:
    """One probe: steps in all, seconds of stepping, the median step, tokens/s, and how it ended."""

    steps: int
    stepping_s: float
    median_s: float
    tokens_per_s: float
    ended: str


def probed(
    evaluator: TrainingProbe, recipe: Recipe, folder: Path, best_tokens_per_s: float | None
) -> Probed:
    """Probe a recipe."""
    order = ProbeOrder(
        token=folder.name, recipe=recipe, run_folder=folder, best_tokens_per_s=best_tokens_per_s
    )
    outcome = measured(evaluator, order)
    lines = (folder / "progress.jsonl").read_text().splitlines()
    times = [event["time_s"] for event in map(json.loads, lines) if event["event"] == "step"]
    return Probed(
        steps=len(times),
        stepping_s=sum(times),
        median_s=outcome.step_time_s_median,
        tokens_per_s=outcome.tokens_per_s,
        ended=str(outcome.ended),
    )


def two_ranks(root: str) -> CampaignSpec:
    """The example's campaign on two ranks."""
    spec = read_campaign_file(EXAMPLE).spec
    problem = replace(spec.problem, cluster=replace(spec.problem.cluster, devices_per_node=2))
    return replace(spec, problem=problem, run_root=root)


def measure(recipes: int, rounds: int) -> dict[str, dict[str, list[Probed]]]:
    """By recipe and way, a probe a round."""
    found: dict[str, dict[str, list[Probed]]] = {}
    with tempfile.TemporaryDirectory() as root:
        spec = two_ranks(root)
        legal = spec.space.survey(spec.problem).recipes
        chosen = legal[:: max(1, len(legal) // recipes)][:recipes]
        evaluators = {
            name: TrainingProbe(replace(spec, name=name, probe=settings).probe_setup())
            for name, settings in WAYS.items()
        }
        best: float | None = None
        try:
            for number in range(rounds):
                for place, recipe in enumerate(chosen):
                    ways = found.setdefault(recipe.describe(), {name: [] for name in WAYS})
                    for name, evaluator in evaluators.items():
                        if name == "aimed" and best is None:
                            continue
                        folder = Path(root) / name / f"{place}.{number}"
                        ways[name].append(
                            probed(evaluator, recipe, folder, best if name == "aimed" else None)
                        )
                best = max(probe.tokens_per_s for ways in found.values() for probe in ways["fixed"])
        finally:
            for evaluator in evaluators.values():
                evaluator.close()
    return found


def pairs(ways: dict[str, list[Probed]], name: str) -> list[tuple[Probed, Probed]]:
    """A way's probes, each beside the fixed one that it is compared with; aimed ones begin in the
    second round.
    """
    fixed = ways["fixed"]
    if name == "fixed":
        return list(pairwise(fixed))
    return list(zip(ways[name], fixed[len(fixed) - len(ways[name]) :], strict=True))


def report(found: dict[str, dict[str, list[Probed]]]) -> None:
    """A line a way."""
    for name in WAYS:
        probes = [probe for ways in found.values() for probe in ways[name]]
        differences = [
            abs(probe.median_s / other.median_s - 1)
            for ways in found.values()
            for probe, other in pairs(ways, name)
        ]
        endings = {
            end: sum(probe.ended == end for probe in probes)
            for end in sorted({p.ended for p in probes})
        }
        print(
            f"{name:<9} {len(probes)} probes:"
            f" {statistics.fmean(probe.steps for probe in probes):.1f} steps,"
            f" {statistics.fmean(probe.stepping_s for probe in probes):.2f} s of stepping; medians"
            f" differ from a fixed probe's by {100 * statistics.median(differences):.1f} %"
            f" (median), {100 * statistics.quantiles(differences, n=10)[-1]:.0f} % (9 of 10); ended"
            f" {endings}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--recipes", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    report(measure(arguments.recipes, arguments.rounds))


if __name__ == "__main__":
    main()
