"""Commands that need no device: init, presets, plan, explain, advise, dryrun."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from frontrunner import planning
from frontrunner.cli import options as opt
from frontrunner.config.campaign import THIS_MACHINE
from frontrunner.config.settings import located
from frontrunner.config.starter import starter
from frontrunner.evaluators.diagnostics.dryrun import DryRun, run
from frontrunner.recipe_actions import plan_dryrun
from frontrunner.spaces.document import write_bytes
from frontrunner.spaces.errors import (
    InvalidInput,
    NothingLegal,
    bad_value,
    did_you_mean,
    holds,
    writing,
)
from frontrunner.spaces.presets import CATALOGUES, preset_names
from frontrunner.views.charts.recipe import breakdown
from frontrunner.views.charts.render import picture
from frontrunner.views.diagnostics import print_dryrun
from frontrunner.views.plan import (
    as_document,
    print_advice,
    print_breakdown,
    print_clusters,
    print_plan,
    print_scaling,
)
from frontrunner.views.presets import presets_by_kind, print_presets

if TYPE_CHECKING:
    from frontrunner.cli.options import Backend

TOP = 10
CLUSTERS = (*preset_names("clusters"), THIS_MACHINE)
recipe_argument = click.argument("recipe", nargs=-1, metavar="RECIPE_ID | FILE | CHOICE=VALUE...")


@click.command()
@click.option(
    "--model", metavar="NAME", help="A preset, or the path of a published model's config.json."
)
@click.option(
    "--cluster", metavar="NAME", help="A preset, this-machine, or the path of a cluster file."
)
@click.option("--nodes", type=int, help="Nodes of the cluster [default: the preset's].")
@click.option(
    "--sequence-length",
    type=int,
    help="Tokens per sequence [default: 4,096, or the model's longest].",
)
@click.option(
    "--global-batch",
    type=int,
    help="Sequences per optimizer step [default: about a million tokens, fewer on slow machines].",
)
@click.option(
    "--precision",
    help="fp32, bf16 or fp16 [default: bf16; fp32 on CPUs, fp16 on GPUs without bf16].",
)
@click.option(
    "--out",
    type=opt.FILE,
    default=Path("campaign.toml"),
    help="The file to write [default: campaign.toml].",
)
def init(model: str | None, cluster: str | None, out: Path, **given: Any) -> None:
    """Write a commented campaign file for a model and a cluster.

    On a terminal, it asks for what is not given.
    """
    if holds(out.exists):
        raise InvalidInput(f"{out} is there already", hint="name another file by --out")
    asked = {"--model": (model, preset_names("models")), "--cluster": (cluster, CLUSTERS)}
    named = [name or _ask(option, known) for option, (name, known) in asked.items()]
    text = starter(model=named[0], cluster=named[1], folder=out.parent, **given)
    with writing(out):
        write_bytes(out, text.encode())
    file = shlex.quote(str(out))
    click.echo(f"{out} is written; next:")
    for command, purpose in {
        "plan": "estimate its recipes",
        "launch": "measure the promising ones",
    }.items():
        click.echo(located(f"  frontrunner {command} {file}  # {purpose}"))


def _ask(option: str, known: tuple[str, ...]) -> str:
    # A standard input that is closed is None.
    if sys.stdin is None or not sys.stdin.isatty():
        raise bad_value(
            option, None, "a preset, or a file's path", hint=f"presets: {', '.join(known)}"
        )
    click.echo(f"presets: {', '.join(known)}")
    answer: str = click.prompt(f"{option[2:]} (a preset, or a file's path)")
    return answer


@click.command()
@click.argument("name", required=False)
@opt.prints(print_presets)
def presets(name: str | None) -> dict[str, dict[str, dict[str, Any]]]:
    """List the models, clusters and devices that ship, or print all figures of one, with their
    source.
    """
    found = presets_by_kind(name)
    if name is not None and not found:
        known = [own for kind in CATALOGUES for own in preset_names(kind)]
        raise bad_value("NAME", name, "a preset", hint=did_you_mean(name, known))
    return found


@click.command()
@opt.file_argument
@click.option(
    "--top", type=click.IntRange(1, 1_000_000), help=f"How many recipes [default: {TOP}]."
)
@click.option(
    "--nodes",
    metavar="N,N,...",
    help="Strong and weak scaling over these numbers of nodes instead.",
)
@click.option(
    "--cluster",
    "clusters",
    multiple=True,
    metavar="NAME",
    help=(
        "Plan for this cluster in place of FILE's: a preset, this-machine, or the path of a cluster"
        " file. Repeatable: ranks the clusters."
    ),
)
@opt.json_option
def plan(
    file: Path, top: int | None, nodes: str | None, clusters: tuple[str, ...], *, as_json: bool
) -> None:
    """Estimate every legal recipe of campaign FILE, and print the fastest that fit. Nothing is
    run.
    """
    if clusters:
        _plan_clusters(file, clusters, top, nodes, as_json=as_json)
        return
    if nodes is not None:
        if top is not None:
            raise InvalidInput(
                "--top is for the ranking; with --nodes one recipe per count is printed"
            )
        scaled = planning.scaling(file, opt.counts("--nodes", nodes))
        opt.show(scaled, print_scaling, as_json=as_json)
        if not scaled.has_recipe:
            raise NothingLegal("no recipe is estimated to fit on any of these numbers of nodes")
        return
    found = planning.plan(file)
    shown = found.shown(TOP if top is None else top)
    opt.show(shown, lambda shown: print_plan(shown, file=str(file)), as_json=as_json)
    if found.legal == sum(found.not_modelled.values()):
        raise NothingLegal(
            f"none of the {found.legal:,} legal recipes can be estimated: the model does not cover "
            f"{', '.join(found.not_modelled)}",
            hint="trace single recipes: frontrunner dryrun --campaign FILE CHOICE=VALUE...",
        )
    if not shown.fitting:
        raise NothingLegal(
            f"no recipe of this space is estimated to fit in {found.memory_limit_bytes / 2**30:.3g}"
            " GiB per device",
            hint=(
                "allow more sharding, recompute or devices, or look beyond the space: frontrunner"
                " advise FILE"
            ),
        )


def _plan_clusters(
    file: Path, clusters: Sequence[str], top: int | None, nodes: str | None, *, as_json: bool
) -> None:
    for option, value in (("--top", top), ("--nodes", nodes)):
        if value is not None:
            raise InvalidInput(
                f"{option} is for one cluster; with --cluster one recipe per cluster is printed"
            )
    ranking = planning.plan_clusters(file, clusters)
    opt.show(ranking, print_clusters, as_json=as_json)
    if not ranking.has_recipe:
        raise NothingLegal("no recipe is estimated to fit on any of these clusters")


@click.command()
@recipe_argument
@opt.file_option
@click.option("--svg", type=opt.FILE, metavar="FILE", help="Write the picture as one SVG file.")
@opt.backend_options
@opt.json_option
def explain(
    recipe: tuple[str, ...],
    campaign: Path | None,
    svg: Path | None,
    backend: Backend,
    *,
    as_json: bool,
) -> None:
    """Break down a recipe's estimated step time and memory, as a table and a picture.

    The recipe is a stored one, that of a recipe file, or one of a campaign file's space: by its id,
    or by choices that leave one. Its newest measurement in the store is printed too.
    """
    found = backend.explain(opt.recipe_from(recipe, campaign), campaign=campaign)
    if svg is not None:
        content = picture(breakdown(found), "svg")
        with writing(svg):
            write_bytes(svg, content)
        click.echo(f"picture: {svg}", err=True)
    words = " --campaign FILE " if campaign else " "
    opt.show(
        found,
        partial(print_breakdown, dryrun=f"frontrunner dryrun{words}{shlex.join(recipe)}"),
        as_json=as_json,
    )


@click.command()
@opt.file_argument
@opt.json_option
def advise(file: Path, *, as_json: bool) -> None:
    """Recommend a starting configuration for the model and the machines of campaign FILE.

    Whether it fits on one device, on one node, on all; in which parallel layout, and why. Each
    answer names the recipe whose estimate supports it, whether the file's space lists it or not.
    """
    found = planning.advise(file)
    if as_json:
        opt.print_json(as_document(found, str(file)))
    else:
        print_advice(found, str(file))
    if found.chosen is None:
        raise NothingLegal("no parallel layout is estimated to fit on this cluster")


@click.command()
@recipe_argument
@opt.file_option
@click.option(
    "--rank", type=int, help="The rank to trace [default: those that may need most memory]."
)
@opt.store_option
@opt.prints(print_dryrun)
def dryrun(
    recipe: tuple[str, ...], campaign: Path | None, rank: int | None, store: str | None
) -> DryRun:
    """Trace a recipe's real training step, and print its peak memory by category and its FLOPs.

    No device is needed, whatever the recipe's size: one rank runs in one process, over tensors
    without data. The recipe is a stored one, that of a recipe file, or one of a campaign file's
    space: by its id, or by choices.
    """
    planned = plan_dryrun(
        opt.recipe_from(recipe, campaign), campaign=campaign, rank=rank, store=store
    )
    ranks = " and ".join(map(str, planned.ranks))
    click.echo(f"tracing {planned.recipe_id}, rank {ranks} of {planned.recipe.devices}", err=True)
    return run(planned)
