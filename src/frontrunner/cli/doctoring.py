"""The command that looks at machine, job and installation before a campaign does: doctor."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from frontrunner.cli.options import json_option, print_json, store_option
from frontrunner.spaces.errors import InvalidInput

if TYPE_CHECKING:
    from frontrunner.evaluators.diagnostics.calibration.ranks import Place
    from frontrunner.evaluators.diagnostics.doctor.collective_report import Bandwidth
    from frontrunner.evaluators.diagnostics.doctor.collective_test import TestResult


@click.command()
@click.argument("campaign_file", type=click.Path(path_type=Path), required=False)
@click.option("--run", is_flag=True, help="Also have ranks add up together, and time them.")
@click.option("--ranks", type=int, help="With --run, ranks to start here [default: a device each].")
@click.option(
    "--deadline", type=float, metavar="SECONDS", help="With --run, for a rank to come or go on [default: 60]."
)
@store_option
@json_option
def doctor(
    campaign_file: Path | None,
    ranks: int | None,
    deadline: float | None,
    store: str | None,
    *,
    run: bool,
    as_json: bool,
) -> None:
    """Look at this machine, job and installation, and say what to do.

    Each check is ok, a note, a warning or a problem, with its remedy. With --run, real ranks do all-reduces: started
    here, or those that srun, mpiexec or torchrun started. It names the rank or node that fails or lags. Exit code 1
    where there is a problem.

    \b
    Examples:
      frontrunner doctor
      frontrunner doctor --run --ranks 4
      srun frontrunner doctor --run campaign.toml
    """
    if not run and (ranks, deadline) != (None, None):
        raise InvalidInput("--ranks and --deadline are for --run", hint="frontrunner doctor --run")
    from frontrunner.doctor_api import DEADLINE_S, call_ranks, this_job

    if not run and this_job().rank != 0:
        return  # rank 0 of the job says it
    called = None
    if run:
        deadline_s = DEADLINE_S if deadline is None else deadline
        called = call_ranks(campaign_file, ranks=ranks, deadline_s=deadline_s, on_start=_say)
        if called is None:
            return
    _tell(campaign_file, store, called, as_json=as_json)


def _say(where: Place) -> None:
    if where.writes:
        count = f"{where.ranks} rank meets" if where.ranks == 1 else f"{where.ranks} ranks meet"
        click.echo(f"{count}: this takes half a minute as a rule", err=True)


def _tell(campaign_file: Path | None, store: str | None, called: TestResult | None, *, as_json: bool) -> None:
    """Print all checks, those of the collective test last; exit with 1 where one is a problem."""
    from frontrunner.doctor_api import doctor as examine
    from frontrunner.evaluators.diagnostics.doctor.check import has_problem

    checks = examine(campaign_file, store=store)
    rows: tuple[Bandwidth, ...] = ()
    if called is not None:
        from frontrunner.evaluators.diagnostics.doctor.collective_report import bandwidths, collective_checks

        checks = (*checks, *collective_checks(called))
        rows = bandwidths(called.reports) if called.reports else ()
    if as_json:
        print_json({"checks": checks, "all_reduce": rows})
    else:
        from frontrunner.views.diagnostics import print_doctor

        print_doctor(checks, rows)
    sys.stdout.flush()
    if has_problem(checks):
        sys.exit(1)
