"""The wall time of a campaign's probes: ranks forked from one warm server against a cold torchrun for each.

    python benchmarks/campaign_start.py                             # 20 recipes, the torch engine
    python benchmarks/campaign_start.py --engine deepspeed

Both run the same job files with the probe settings of examples/laptop.toml, recipe by recipe in turns. The fork
server's own start is in its sum.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))  # for the module beside this one, also under `python -P`

from probe_start import EXAMPLE, cold, warm

from frontrunner.campaign_file import read_campaign_file
from frontrunner.evaluators.training_probe import TrainingProbe
from frontrunner.spaces.recipe import ENGINES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipes", type=int, default=20)
    parser.add_argument("--engine", choices=ENGINES, default="torch")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    spec = read_campaign_file(EXAMPLE).spec
    spec = dataclasses.replace(spec, space=dataclasses.replace(spec.space, engine=(arguments.engine,)))
    recipes = spec.space.survey(spec.problem).recipes
    chosen = recipes[:: max(1, len(recipes) // arguments.recipes)][: arguments.recipes]
    forked_s, launched_s = [], []
    with tempfile.TemporaryDirectory() as root:
        setup = dataclasses.replace(spec, run_root=root).probe_setup()
        start = time.perf_counter()
        evaluator = TrainingProbe(setup)
        server_s = time.perf_counter() - start  # what is left of its start is in the first recipe's time
        try:
            for number, recipe in enumerate(chosen):
                forked_s.append(warm(evaluator, recipe, Path(root) / f"warm-{number}")[1])
                launched_s.append(cold(setup, evaluator, recipe, Path(root) / f"cold-{number}")[1])
                print(
                    f"{recipe.describe():<45} forked {forked_s[-1]:6.2f} s, torchrun {launched_s[-1]:6.2f} s; so far "
                    f"{sum(launched_s) / (server_s + sum(forked_s)):.2f} times less wall time",
                    flush=True,
                )
        finally:
            evaluator.close()
    total = server_s + sum(forked_s)
    print(
        f"{len(chosen)} recipes, engine {arguments.engine}: {total:.0f} s forked, {sum(launched_s):.0f} s by torchrun: "
        f"{sum(launched_s) / total:.1f} times less wall time"
    )
    if arguments.json:
        found = {"recipes": len(chosen), "forked_s": forked_s, "torchrun_s": launched_s, "server_start_s": server_s}
        arguments.json.write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
