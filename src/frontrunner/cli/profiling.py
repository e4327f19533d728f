"""The command that looks into a recipe's steps: profile."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from frontrunner import profiling_api
from frontrunner.cli.options import json_option, print_json, store_option

if TYPE_CHECKING:
    from frontrunner.evaluators.diagnostics.profile import OnProgress
    from frontrunner.evaluators.protocol import Progress

NO_PYINSTRUMENT = "pyinstrument is not installed, so the host side is left out: pip install 'frontrunner[profile]'"


@click.command()
@click.argument("recipe_id")
@click.option("--steps", type=int, default=3, show_default=True, help="How many steps are traced.")
@click.option("--folder", type=click.Path(path_type=Path), help="Where the traces go [default: a new one by recipe].")
@click.option("--anyway", is_flag=True, help="Run on other hardware than the recipe was measured on.")
@store_option
@json_option
def profile(recipe_id: str, steps: int, folder: Path | None, store: str | None, *, anyway: bool, as_json: bool) -> None:
    """Run a probe of RECIPE_ID and print where its steps' time goes.

    Computing, each kind of communication, optimizer, data, idle; a trace of every rank for Perfetto, and
    pyinstrument's tree of the Python side.

    \b
    Examples:
      frontrunner profile 3f9c01d2ab4e
      frontrunner profile 3f9c --steps 5 --json
    """
    from frontrunner.evaluators.diagnostics.profile import ProfileSettings, run

    planned = profiling_api.plan_profile(
        recipe_id, ProfileSettings(steps=steps, folder=folder), store=store, anyway=anyway
    )
    for difference in planned.differences:
        click.echo(f"warning: {difference}", err=True)
    if not planned.samples_host:
        click.echo(NO_PYINSTRUMENT, err=True)
    click.echo(f"profiling {planned.recipe_id} in {planned.folder}", err=True)
    report = run(planned, _teller())
    if as_json:
        print_json(report)
        return
    from frontrunner.views.diagnostics import print_profile

    print_profile(report)


def _teller() -> OnProgress:
    """Say each phase of the run once, as it begins."""
    said: set[str] = set()

    def on_progress(progress: Progress) -> None:
        phase = "tracing" if progress.steps_done > progress.steps_total else progress.phase
        if phase not in said:
            said.add(phase)
            click.echo(phase, err=True)

    return on_progress
