"""The command that measures a machine, and fits the estimates to measured step times: calibrate."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from frontrunner.cli.options import json_option, print_json, store_option
from frontrunner.spaces.errors import InvalidInput

if TYPE_CHECKING:
    from frontrunner.evaluators.analytic.fit import StepFit
    from frontrunner.evaluators.diagnostics.calibration.ranks import Place
    from frontrunner.spaces.cluster import Cluster


@click.command()
@click.argument("campaign_name", metavar="[CAMPAIGN]", required=False)
@click.option("--out", type=click.Path(path_type=Path), required=True, help="The cluster file to write.")
@click.option("--ranks", type=int, help="Ranks to start here [default: a device each].")
@click.option("--device", type=click.Choice(["cpu", "cuda", "xpu"]), help="What to measure, in torch's words.")
@click.option("--seconds", type=float, default=60.0, show_default=True, help="For all measurements together.")
@click.option("--cluster", metavar="NAME", help="Preset or cluster file that the new one begins with.")
@click.option("--campaign", type=click.Path(path_type=Path), metavar="FILE", help="Campaign file whose cluster it is.")
@click.option(
    "--from-table", "tables", multiple=True, type=click.Path(path_type=Path), metavar="CSV", help="Fit to its rows."
)
@click.option("--from-store", is_flag=True, help="Fit to what CAMPAIGN measured (default: the newest).")
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

    Matrix products, memory, every collective at each level and transfers are measured by real ranks, all at once:
    ranks started here, or those that torchrun, srun, mpiexec, mpirun, jsrun or flux started. With --from-table or
    --from-store nothing is run: the constants of the estimates are fitted to step times, and judged on rows held back.

    \b
    Examples:
      frontrunner calibrate --out cluster.toml --ranks 4
      frontrunner calibrate --out fitted.toml --cluster cluster.toml --from-store
    """
    if campaign_name is not None and not from_store:
        raise InvalidInput(
            f"a campaign is named, {campaign_name}, without --from-store", hint="or give --campaign FILE"
        )
    base = _base(cluster, campaign)
    if not tables and not from_store:
        _measure(out, base, as_json=as_json, **measuring)
        return
    if (measuring["ranks"], measuring["device"]) != (None, None):
        raise InvalidInput("--ranks and --device are for measuring, not for fitting to what was measured")
    if tables and from_store:
        raise InvalidInput("--from-table and --from-store are both given: expected one of them")
    from frontrunner.calibration_api import fit_campaign, fit_tables

    if tables:
        _tell(fit_tables(tables, out=out, cluster=base), out, as_json=as_json)
    else:
        _tell(fit_campaign(campaign_name, store=store, out=out, cluster=base), out, as_json=as_json)


def _base(cluster: str | None, campaign: Path | None) -> str | Cluster | None:
    if campaign is None:
        return cluster
    if cluster is not None:
        raise InvalidInput("--cluster and --campaign are both given: expected one of them")
    from frontrunner.config.campaign import read_campaign_file

    return read_campaign_file(campaign).spec.problem.cluster


def _measure(
    out: Path, base: str | Cluster | None, *, as_json: bool, ranks: int | None, device: str | None, seconds: float
) -> None:
    from frontrunner.calibration_api import calibrate as measure

    def on_start(where: Place) -> None:
        if where.writes:
            click.echo(f"measuring with {where.ranks} ranks, for about {seconds:g} s once they have started", err=True)

    found = measure(out, ranks=ranks, device=device, seconds=seconds, cluster=base, on_start=on_start)
    if found is None:
        return  # another rank of the allocation says it
    if as_json:
        print_json({"out": str(out), "cluster": found.cluster, "notes": found.notes, "lines": found.lines})
        return
    from frontrunner.views.diagnostics import print_calibration

    print_calibration(found, out)


def _tell(found: StepFit, out: Path, *, as_json: bool) -> None:
    if as_json:
        print_json({"out": str(out), **vars(found)})
        return
    from frontrunner.views.diagnostics import print_fit

    print_fit(found, out)
