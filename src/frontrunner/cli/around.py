"""Commands that measure what is around a recipe: sweep, scale."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import click

from frontrunner import sweeps
from frontrunner.cli import options as opt
from frontrunner.cli.run import finish
from frontrunner.config.settings import store_url
from frontrunner.search.spec import Budget, CampaignSpec
from frontrunner.stop_signals import stopped_by_signals
from frontrunner.views.around import print_around
from frontrunner.views.live import make_listener


def runs_around(make: Callable[..., CampaignSpec]) -> Callable[..., None]:
    """Make a command of a function from a recipe's source and options to a campaign."""

    @click.argument("recipe")
    @click.option(
        "--campaign",
        type=opt.FILE,
        callback=opt.remember,
        metavar="FILE",
        help="Measure it as this file's recipes.",
    )
    @click.option(
        "--name",
        help="The new campaign's name [default: the recipe's campaign's, -sweep or -scale].",
    )
    @click.option(
        "--preview", is_flag=True, help="Print what would be measured, with estimates; run nothing."
    )
    @click.option(
        "--repeats", type=int, default=1, show_default=True, help="Measurements of each recipe."
    )
    @opt.budget_options("at most")
    @opt.store_option
    @opt.json_option
    @wraps(make)
    def command(  # noqa: PLR0913 - the options that both commands have
        recipe: str,
        campaign: Path | None,
        name: str | None,
        store: str | None,
        *,
        preview: bool,
        as_json: bool,
        probes: int | None,
        minutes: float | None,
        node_hours: float | None,
        cost: float | None,
        **options: Any,
    ) -> None:
        source = sweeps.source_of(recipe, campaign=campaign, store=store)
        budget = Budget(probes=probes, minutes=minutes, node_hours=node_hours, cost=cost)
        spec = make(source, budget=budget, **options)
        if preview:
            opt.show(sweeps.preview(spec), print_around, as_json=as_json)
            return
        url = store_url(store)
        with make_listener(quiet=as_json) as listener, stopped_by_signals() as on_driver:
            conclusion = sweeps.launch(
                spec, store=url, name=name, listener=listener, on_driver=on_driver
            )
        finish(conclusion, listener.campaign, url, stopped=on_driver.exit_code, as_json=as_json)

    return command


@click.command()
@click.option(
    "--dimension",
    "dimensions",
    multiple=True,
    metavar="NAME[=VALUE,VALUE]",
    help=(
        "A dimension to vary, and its values [default: all that the recipe's campaign varies]."
        " Repeatable."
    ),
)
@runs_around
def sweep(
    source: sweeps.Source, budget: Budget, repeats: int, dimensions: tuple[str, ...]
) -> CampaignSpec:
    """Measure RECIPE with each value of a dimension, while all others stay: what each choice is
    worth.

    RECIPE is a stored recipe, or the path of a recipe file. It runs as a campaign of its own:
    `status`, `resume` and `report` take it as any other. Results of the last 7 days are reused.
    """
    return sweeps.sweep_spec(source, dimensions, budget, repeats)


@click.command()
@click.option(
    "--nodes", metavar="N,N,...", required=True, help="Numbers of nodes; the recipe's own is added."
)
@runs_around
def scale(source: sweeps.Source, budget: Budget, repeats: int, nodes: str) -> CampaignSpec:
    """Measure RECIPE on several numbers of nodes: strong and weak scaling, with more or fewer
    replicas.

    RECIPE is a stored recipe, or the path of a recipe file. Strong scaling keeps the global batch,
    weak scaling that of each replica. It runs as a campaign of its own: `status`, `resume` and
    `report` take it as any other.
    """
    return sweeps.scale_spec(source, opt.counts("--nodes", nodes), budget, repeats)
