"""Command that trains with a measured recipe: replay."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from frontrunner.cli.options import FILE, anyway_option, json_option, show, store_option, warn
from frontrunner.stop_signals import INTERRUPTED
from frontrunner.text import percent, seconds, thousands

if TYPE_CHECKING:
    from frontrunner.evaluators.probe.replay import ReplayResult

STEPS = click.IntRange(1, 1_000_000_000)
PRINTED_STEPS = 20


@click.command()
@click.argument("recipe_id")
@click.option("--steps", type=STEPS, required=True, help="Optimizer steps of the whole run.")
@click.option("--learning-rate", type=float, default=3e-4, show_default=True, help="The highest learning rate.")
@click.option("--warm-up-steps", type=click.IntRange(0, STEPS.max), default=10, show_default=True)
@click.option("--evaluate-every", "evaluation_every_steps", type=STEPS, default=50, show_default=True, metavar="STEPS")
@click.option(
    "--checkpoint-every", "checkpoint_every_steps", type=STEPS, metavar="STEPS", help="[default: a tenth of the run]"
)
@click.option("--metrics", default="csv", show_default=True, help="csv or tensorboard, in the replay's folder.")
@click.option("--folder", type=FILE, help="Where it keeps its files [default: by recipe].")
@anyway_option
@click.option(
    "--print-command",
    "launched",
    is_flag=True,
    help="Write the job file, print the command that would run with it, and run nothing.",
)
@store_option
@json_option
def replay(recipe_id: str, store: str | None, *, anyway: bool, as_json: bool, **settings: Any) -> None:
    """Train with RECIPE_ID: learning-rate schedule, evaluation, checkpoints, metrics.

    RECIPE_ID is a stored recipe, or the path of a recipe file, which needs no store.

    Run again after a kill, it continues from the newest checkpoint. At the end its throughput is compared with the
    probe's.

    \b
    Examples:
      frontrunner replay 3f9c --steps 500 --print-command
      frontrunner replay recipe.json --steps 500
    """
    from frontrunner.evaluators.probe.replay import ReplaySettings, prepare, run
    from frontrunner.recipe_actions import plan_replay

    chosen = ReplaySettings(**settings)  # the options are named after its fields
    planned = plan_replay(recipe_id, chosen, store=store, anyway=anyway)
    if chosen.launched:
        prepare(planned)
        click.echo(planned.command)
        return
    warn(planned.differences)
    click.echo(f"replaying {planned.recipe_id} in {planned.folder}", err=True)
    try:
        result = run(planned, _printer(chosen.steps))
    except KeyboardInterrupt:
        click.echo("stopped; the same command continues from the newest checkpoint", err=True)
        sys.exit(INTERRUPTED)
    show(result, _print, as_json=as_json)


def _print(result: ReplayResult) -> None:
    if result.tokens_per_s is None:
        click.echo(f"step {result.final_step} was reached before; more --steps train on")
    else:
        compared = "no probe measured this recipe: its campaign was simulated"
        if result.measured_tokens_per_s is not None:
            probe, ratio = thousands(result.measured_tokens_per_s), percent(result.ratio_to_probe)
            compared = f"the probe measured {probe} ({ratio} of it)"
        loss = "-" if result.final_loss is None else f"{result.final_loss:.4f}"
        click.echo(f"trained to step {result.final_step}, loss {loss}")
        click.echo(f"throughput {thousands(result.tokens_per_s)} tokens/s; {compared}")
    click.echo(f"metrics, checkpoints and log: {result.folder}")


def _printer(steps: int) -> Callable[[Mapping[str, Any]], None]:
    every = max(1, steps // PRINTED_STEPS)

    def on_event(event: Mapping[str, Any]) -> None:
        kind = event["event"]
        if kind == "step" and (event["step"] % every == 0 or event["step"] in (1, steps)):
            loss = "not finite" if event["loss"] is None else f"{event['loss']:.4f}"
            click.echo(f"step {event['step']:>6} of {steps}  loss {loss}  {seconds(event['time_s'])}", err=True)
        elif kind not in ("step", "built"):
            fields = {key: f"{value:.4f}" if isinstance(value, float) else value for key, value in event.items()}
            words = (f"{key} {value}" for key, value in fields.items() if key != "event")
            click.echo("  ".join([kind, *words]), err=True)

    return on_event
