"""The wall time of a campaign's probes: ranks forked from one warm server against a cold torchrun
for each.

    python benchmarks/campaign_start.py                             # 20 recipes, the torch engine
    python benchmarks/campaign_start.py --engine deepspeed

Both run the same job files with the probe settings of examples/laptop.toml, recipe by recipe in
turns. The fork server's own start is in its sum. Told too are the sums without the training steps,
which are the same work both ways.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(
    0, str(Path(__file__).resolve().parent)
)  # for the module beside this one, also under `python -P`

from probe_start import chosen_recipes, cold, warm

from frontrunner.evaluators.probe.watch import TrainingProbe

MEASURED_STEPS = 6


def steps_s(folder: Path) -> float:
    """The seconds that a probe's steps took, warm-up included."""
    events = [json.loads(line) for line in (folder / "progress.jsonl").read_text().splitlines()]
    return sum(event["time_s"] for event in events if event["event"] == "step")


def main() -> None:
    arguments, spec, chosen = chosen_recipes(__doc__, default=20)
    seconds: dict[str, list[float]] = {"forked": [], "launched": []}
    stepping: dict[str, list[float]] = {"forked": [], "launched": []}
    with tempfile.TemporaryDirectory() as root:
        probe = dataclasses.replace(
            spec.probe, measured_steps=MEASURED_STEPS
        )  # the same work both ways
        setup = dataclasses.replace(spec, run_root=root, probe=probe).probe_setup()
        start = time.perf_counter()
        evaluator = TrainingProbe(setup)
        server_s = (
            time.perf_counter() - start
        )  # what is left of its start is in the first recipe's time
        try:
            for number, recipe in enumerate(chosen):
                folders = {name: Path(root) / f"{name}-{number}" for name in seconds}
                seconds["forked"].append(warm(evaluator, recipe, folders["forked"])[1])
                seconds["launched"].append(cold(setup, evaluator, recipe, folders["launched"])[1])
                for name, folder in folders.items():
                    stepping[name].append(steps_s(folder))
                print(
                    f"{recipe.describe():<45} forked {seconds['forked'][-1]:6.2f} s, of which steps"
                    f" {stepping['forked'][-1]:6.2f}; torchrun {seconds['launched'][-1]:6.2f} s,"
                    f" {stepping['launched'][-1]:6.2f}",
                    flush=True,
                )
        finally:
            evaluator.close()
    forked, launched = server_s + sum(seconds["forked"]), sum(seconds["launched"])
    forked_rest, launched_rest = (
        forked - sum(stepping["forked"]),
        launched - sum(stepping["launched"]),
    )
    print(
        f"{len(chosen)} recipes, engine {arguments.engine}: {forked:.0f} s forked, {launched:.0f} s"
        f" by torchrun, {launched / forked:.1f} times less wall time; without the steps"
        f" {forked_rest:.0f} s and {launched_rest:.0f} s, {launched_rest / forked_rest:.1f} times"
        " less"
    )
    if arguments.json:
        arguments.json.write_text(
            json.dumps({"server_start_s": server_s, "s": seconds, "steps_s": stepping}, indent=2)
        )


if __name__ == "__main__":
    main()
