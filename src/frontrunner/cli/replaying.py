"""The command that trains with a measured recipe: replay."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from frontrunner.cli.options import json_option, print_json, store_option
from frontrunner.text import percent, seconds, thousands

if TYPE_CHECKING:
    from frontrunner.evaluators.probe.replay import ReplayResult

INTERRUPTED = 130

MOST_STEPS = 1_000_000_000


@click.command()
@click.argument("recipe_id")
@click.option("--steps", type=click.IntRange(1, MOST_STEPS), required=True, help="Optimizer steps of the whole run.")
@click.option("--learning-rate", type=float, default=3e-4, show_default=True, help="The highest learning rate.")
@click.option("--warm-up-steps", type=click.IntRange(0, MOST_STEPS), default=10, show_default=True)
@click.option(
    "--evaluate-every",
    "evaluation_every_steps",
    type=click.IntRange(1, MOST_STEPS),
    default=50,
    show_default=True,
    metavar="STEPS",
)
@click.option(
    "--checkpoint-every",
    "checkpoint_every_steps",
    type=click.IntRange(1, MOST_STEPS),
    metavar="STEPS",
    help="[default: a tenth of the run]",
)
@click.option("--metrics", default="csv", show_default=True, help="csv or tensorboard, in the replay's folder.")
@click.option("--folder", type=click.Path(path_type=Path), help="Where it keeps its files [default: by recipe].")
@click.option("--anyway", is_flag=True, help="Run on other hardware than the recipe was measured on.")
@click.option(
    "--print-command",
    "launched",
    is_flag=True,
    help="Write the job file, print what would be run with it, and run nothing.",
)
@store_option
@json_option
def replay(recipe_id: str, store: str | None, *, anyway: bool, as_json: bool, **settings: Any) -> None:
    """Train with RECIPE_ID: learning-rate schedule, evaluation, checkpoints, metrics.

    RECIPE_ID is a stored recipe, or the path of a recipe file, for which no store is needed.

    Run again after a kill it goes on from the newest checkpoint. At the end its throughput stands beside the
    probe's.

    \b
    Examples:
      frontrunner replay 3f9c01d2ab4e --steps 500
      frontrunner replay 3f9c --steps 500 --print-command
      frontrunner replay recipe.json --steps 500
    """
    from frontrunner.evaluators.probe.replay import ReplaySettings, prepare, run
    from frontrunner.replay_api import plan_replay

    chosen = ReplaySettings(**settings)  # the options are named after its fields
    planned = plan_replay(recipe_id, chosen, store=store, anyway=anyway)
    if chosen.launched:
        prepare(planned)
        click.echo(planned.command)
        return
    for difference in planned.differences:
        click.echo(f"warning: {difference}", err=True)
    click.echo(f"replaying {planned.recipe_id} in {planned.folder}", err=True)
    try:
        result = run(planned, _printer(chosen.steps))
    except KeyboardInterrupt:
        click.echo("stopped; the same command goes on from the newest checkpoint", err=True)
        sys.exit(INTERRUPTED)
    if as_json:
        print_json(result)
    else:
        _print(result)


def _print(result: ReplayResult) -> None:
    loss = "-" if result.final_loss is None else f"{result.final_loss:.4f}"
    if result.tokens_per_s is None:
        click.echo(f"step {result.final_step} was reached before; more --steps train on")
    else:
        click.echo(f"trained to step {result.final_step}, loss {loss}")
        click.echo(f"throughput {thousands(result.tokens_per_s)} tokens/s; {_beside_the_probe(result)}")
    click.echo(f"metrics, checkpoints and log: {result.folder}")


def _beside_the_probe(result: ReplayResult) -> str:
    if result.measured_tokens_per_s is None:
        return "no probe measured this recipe: its campaign was simulated"
    return f"the probe measured {thousands(result.measured_tokens_per_s)} ({percent(result.ratio_to_probe)} of it)"


def _printer(steps: int) -> Any:
    """Print some twenty of the steps, every evaluation, and where it went on from."""
    every = max(1, steps // 20)

    def on_event(event: Mapping[str, Any]) -> None:
        kind = event["event"]
        if kind == "step" and (event["step"] % every == 0 or event["step"] in (1, steps)):
            _say(f"step {event['step']:>6} of {steps}  loss {_number(event['loss'])}  {seconds(event['time_s'])}")
        elif kind not in ("step", "built"):
            told = {key: _number(value) if isinstance(value, float) else value for key, value in event.items()}
            _say("  ".join([kind, *(f"{key} {value}" for key, value in told.items() if key != "event")]))

    return on_event


def _number(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.4f}"


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()
