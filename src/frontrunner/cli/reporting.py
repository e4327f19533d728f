"""The commands that draw: report, plot."""

from __future__ import annotations

from pathlib import Path

import click

from frontrunner.cli.options import open_backend, server_option, store_option


@click.command()
@click.argument("campaign", required=False)
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help="[default: CAMPAIGN.html]")
@store_option
@server_option
def report(campaign: str | None, out: Path | None, store: str | None, server: str | None) -> None:
    """Write CAMPAIGN (default: the newest) as one HTML page to decide with.

    The best recipe and its command, the history, speed against memory, what fits and what fails, the model against
    the measurements, which knobs matter, and where the node-hours went. The page needs no network and no other file.

    \b
    Examples:
      frontrunner report
      frontrunner report laptop --out laptop.html
    """
    path = open_backend(store, server).report(campaign, out=out)
    click.echo(f"report: {path}, {path.stat().st_size / 1e6:.1f} MB; open it in a browser")


@click.command()
@click.argument("campaign", required=False)
@click.option("--out", type=click.Path(path_type=Path), required=True, help="A folder; or x.svg, x.png for one figure.")
@click.option("--figure", metavar="NAME", help="Only this figure [default: all of them].")
@click.option("--format", "wanted", metavar="svg|png", help="Of the files in a folder [default: svg].")
@store_option
@server_option
def plot(
    campaign: str | None, out: Path, figure: str | None, wanted: str | None, store: str | None, server: str | None
) -> None:
    """Write the figures of CAMPAIGN's report (default: the newest) as SVG or PNG.

    Figures: history, speed-memory, sensitivity, parallel-coordinates, feasibility, predicted, importance, shap,
    node-hours.

    \b
    Examples:
      frontrunner plot --out figures
      frontrunner plot laptop --out front.svg --figure speed-memory
    """
    written, absent = open_backend(store, server).plot(campaign, out=out, figure=figure, format=wanted)
    for path in written:
        click.echo(str(path))
    for row in absent:
        click.echo(f"{row.name} is not drawn: {row.reason}", err=True)
