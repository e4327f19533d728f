"""Commands that check, measure and profile this machine: doctor, calibrate, profile."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from frontrunner import machine
from frontrunner.cli.options import (
    FILE,
    anyway_option,
    json_option,
    print_json,
    refuse_both,
    show,
    store_option,
    warn,
)
from frontrunner.config.campaign import read_campaign_file
from frontrunner.evaluators.diagnostics.doctor.check import has_problem
from frontrunner.evaluators.diagnostics.profile import ProfileSettings, run
from frontrunner.evaluators.diagnostics.ranks import Place
from frontrunner.evaluators.protocol import Progress
from frontrunner.recipe_actions import plan_profile
from frontrunner.spaces.cluster import Cluster
from frontrunner.spaces.errors import InvalidInput, installing
from frontrunner.text import counted
from frontrunner.views.diagnostics import print_calibration, print_doctor, print_fits, print_profile

NO_PYINSTRUMENT = "pyinstrument is not installed, so the host side is left out: "


@click.command()
@click.argument("campaign_file", type=FILE, required=False)
@click.option("--run", is_flag=True, help="Also run and time all-reduces on real ranks.")
@click.option(
    "--ranks", type=int, help="With --run, ranks to start here [default: one per device]."
)
@click.option(
    "--deadline",
    "deadline_s",
    type=float,
    metavar="SECONDS",
    help="With --run, for a rank to progress [default: 60].",
)
@store_option
@json_option
def doctor(
    campaign_file: Path | None, store: str | None, *, run: bool, as_json: bool, **limits: Any
) -> None:
    """Check this machine, job and installation, and print what to do.

    Each check is ok, a note, a warning or a problem, with its remedy. With --run, real ranks do
    all-reduces: started here, or those that srun, mpiexec or torchrun started. It names the rank or
    node that fails or lags. Exit code 1 where there is a problem.
    """
    given = {name: value for name, value in limits.items() if value is not None}
    if given and not run:
        raise InvalidInput("--ranks and --deadline are for --run", hint="frontrunner doctor --run")
    from frontrunner.evaluators.diagnostics.doctor.collective_test import (
        bandwidths,
        collective_checks,
    )

    launched = machine.this_job().launched
    if not run and launched is not None and launched.rank != 0:
        return  # rank 0 of the job reports
    result = None
    if run:

        def on_start(where: Place) -> None:
            if where.writes:
                click.echo(
                    f"testing {counted(where.ranks, 'rank')}: this usually takes half a minute",
                    err=True,
                )

        result = machine.call_ranks(campaign_file, **given, on_start=on_start)
        if result is None:
            return
    checks = machine.doctor(campaign_file, store=store) + (
        collective_checks(result) if result else ()
    )
    rows = bandwidths(result.reports) if result is not None and result.reports else ()
    if as_json:
        print_json({"checks": checks, "all_reduce": rows})
    else:
        print_doctor(checks, rows)
    sys.stdout.flush()
    if has_problem(checks):
        sys.exit(1)


@click.command()
@click.argument("campaign_name", metavar="[CAMPAIGN]", required=False)
@click.option("--out", type=FILE, required=True, help="The cluster file to write.")
@click.option("--ranks", type=int, help="Ranks to start here [default: one per device].")
@click.option(
    "--device",
    type=click.Choice(["cpu", "cuda", "xpu"]),
    help="Torch's name of the device to measure.",
)
@click.option(
    "--seconds", type=float, default=60.0, show_default=True, help="For all measurements together."
)
@click.option(
    "--cluster", metavar="NAME", help="Preset or cluster file that the new one starts from."
)
@click.option("--campaign", type=FILE, metavar="FILE", help="Campaign file whose cluster it is.")
@click.option(
    "--from-table", "tables", multiple=True, type=FILE, metavar="CSV", help="Fit to its rows."
)
@click.option(
    "--from-store",
    is_flag=True,
    help="Fit to CAMPAIGN [default: to all on the newest one's machine].",
)
@store_option
@json_option
def calibrate(  # noqa: PLR0913 - an option each
    campaign_name: str | None,
    out: Path,
    cluster: str | None,
    campaign: Path | None,
    *,
    tables: tuple[Path, ...],
    from_store: bool,
    store: str | None,
    as_json: bool,
    **measuring: Any,
) -> None:
    """Measure this machine, or fit the estimates to measured steps, into a cluster file.

    Matrix products, memory, every collective at each level and transfers are measured by real
    ranks, all at once: ranks started here, or those that torchrun, srun, mpiexec, mpirun or
    flux started. With --from-table or
    --from-store nothing is run: the constants of the estimates are fitted to step times, and tested on held-out rows.
    """  # noqa: E501
    if campaign_name is not None and not from_store:
        raise InvalidInput(
            f"campaign {campaign_name} is given without --from-store",
            hint="or give --campaign FILE",
        )
    if campaign is not None and cluster is not None:
        raise refuse_both("--cluster", "--campaign")
    base = cluster if campaign is None else read_campaign_file(campaign).spec.problem.cluster
    if not tables and not from_store:
        _measure(out, base, as_json=as_json, **measuring)
        return
    if (measuring["ranks"], measuring["device"]) != (None, None):
        raise InvalidInput(
            "--ranks and --device are for measuring, not for fitting to measurements"
        )
    if tables and from_store:
        raise refuse_both("--from-table", "--from-store")
    if tables:
        found = machine.fit_tables(tables, out=out, cluster=base)
    else:
        found = machine.fit_campaign(campaign_name, store=store, out=out, cluster=base)
    if as_json:
        print_json({"out": str(out), **vars(found)})
    else:
        print_fits(found, out)


def _measure(
    out: Path,
    base: str | Cluster | None,
    *,
    as_json: bool,
    ranks: int | None,
    device: str | None,
    seconds: float,
) -> None:
    def on_start(where: Place) -> None:
        if where.writes:
            click.echo(
                f"measuring with {where.ranks} ranks, for about {seconds:g} s once they have"
                " started",
                err=True,
            )

    found = machine.calibrate(
        out, ranks=ranks, device=device, seconds=seconds, cluster=base, on_start=on_start
    )
    if found is None:
        return  # another rank of the allocation reports
    if as_json:
        print_json(
            {"out": str(out), "cluster": found.cluster, "notes": found.notes, "lines": found.lines}
        )
    else:
        print_calibration(found, out)


@click.command()
@click.argument("recipe_id")
@click.option("--steps", type=int, default=3, show_default=True, help="How many steps are traced.")
@click.option(
    "--folder",
    type=FILE,
    help="Where the traces go [default: a new folder named after the recipe].",
)
@anyway_option
@store_option
@json_option
def profile(
    recipe_id: str,
    steps: int,
    folder: Path | None,
    store: str | None,
    *,
    anyway: bool,
    as_json: bool,
) -> None:
    """Profile a recipe's training step: run a probe of RECIPE_ID, and print where the time goes.

    Computation, each kind of communication, optimizer, data, idle; a trace of every rank for
    Perfetto, and pyinstrument's tree of the Python side.
    """
    planned = plan_profile(
        recipe_id, ProfileSettings(steps=steps, folder=folder), store=store, anyway=anyway
    )
    warn(planned.differences)
    if not planned.samples_host:
        click.echo(NO_PYINSTRUMENT + installing("frontrunner[profile]"), err=True)
    click.echo(f"profiling {planned.recipe_id} in {planned.folder}", err=True)
    phases: set[str] = set()

    def on_progress(progress: Progress) -> None:
        phase = "tracing" if progress.steps_done > progress.steps_total else progress.phase
        if phase not in phases:
            phases.add(phase)
            click.echo(phase, err=True)

    show(run(planned, on_progress), print_profile, as_json=as_json)
