"""How much later a probe's first step is done on a warm Ray cluster of this machine than from the
local fork server.

    python benchmarks/ray_start.py --recipes 8

Probes of the same recipes alternate between the two, and Ray's without shared files; times are from
the order to the end of the first step, by what the ranks write.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from probe_start import chosen_recipes, measured

from frontrunner.evaluators.cluster.settings import DispatchSettings
from frontrunner.evaluators.probe.run_folder import StepCounter
from frontrunner.evaluators.protocol import Evaluator, ProbeOrder, ProbeSetup
from frontrunner.evaluators.registry import training_probe
from frontrunner.spaces.recipe import Recipe

POLL_S = 0.005
WAYS = {
    "local": DispatchSettings(),
    "ray": DispatchSettings(backend="ray", address="local"),
    "ray, files sent": DispatchSettings(backend="ray", address="local", shared_files=False),
}


def first_step_s(evaluator: Evaluator, recipe: Recipe, folder: Path) -> float:
    """Seconds from the order to the first step; the evaluator is looked at as often as a driver
    does.
    """
    order = ProbeOrder(token=folder.name, recipe=recipe, run_folder=folder)
    steps, start = StepCounter(folder), time.perf_counter()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(measured, evaluator, order)
        while not steps.steps_done and not running.done():
            time.sleep(POLL_S)
            steps.advance()
        seconds = time.perf_counter() - start
        running.result()
    return seconds


def main() -> None:
    arguments, spec, chosen = chosen_recipes(__doc__, default=8)
    with tempfile.TemporaryDirectory() as root:
        probe = dataclasses.replace(spec.probe, warm_up_steps=0, measured_steps=1)
        setups: dict[str, ProbeSetup] = {}
        for name, dispatch in WAYS.items():
            run_root = str(Path(root) / name.replace(", ", "-").replace(" ", "-"))
            setups[name] = dataclasses.replace(
                spec, run_root=run_root, probe=probe, dispatch=dispatch
            ).probe_setup()
        evaluators = {name: training_probe(setup) for name, setup in setups.items()}
        rows = []
        try:
            for name, evaluator in evaluators.items():
                first_step_s(
                    evaluator, chosen[0], setups[name].work_folder / "first"
                )  # until servers are up
            for number, recipe in enumerate(chosen):
                row = {
                    name: first_step_s(evaluator, recipe, setups[name].work_folder / f"{number}")
                    for name, evaluator in evaluators.items()
                }
                rows.append({"recipe": recipe.describe()} | row)
                print(
                    f"{recipe.describe():<45} "
                    + ", ".join(f"{name} {found:.2f} s" for name, found in row.items())
                )
        finally:
            for evaluator in evaluators.values():
                evaluator.close()
    local = statistics.median(row["local"] for row in rows)
    for name in list(WAYS)[1:]:
        added = [row[name] - row["local"] for row in rows]
        ratio = statistics.median(row[name] / row["local"] for row in rows)
        most = f"at most {max(added):+.2f} s"
        print(
            f"{name}: {statistics.median(added):+.2f} s ({most}) on {local:.2f} s, median ratio"
            f" {ratio:.2f}"
        )
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
