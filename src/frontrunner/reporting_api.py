"""The Python API of `report`, `plot` and `pareto --objectives`: a campaign as a page, as pictures, as a front."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from frontrunner.config.settings import DEFAULT_STORE, store_url
from frontrunner.spaces.errors import writing
from frontrunner.store import opened

if TYPE_CHECKING:
    from frontrunner.views.charts.catalogue import Drawn


def report(campaign: str | None = None, *, out: str | Path | None = None, store: str | None = None) -> Path:
    """Write a campaign as one HTML page that needs nothing else, and return its path.

    `out` is CAMPAIGN.html in the working directory by default. Raises `InvalidInput` where Plotly is not installed, for
    a name that does not end with .html, or where the file cannot be written, and `NotFound` for a folder that is not
    there.
    """
    from frontrunner import __version__
    from frontrunner import reporting_pieces as pieces
    from frontrunner.evaluators.probe.files import write_text
    from frontrunner.views.charts.head import Elsewhere

    pieces.require_installed("plotly")
    if out is not None:
        pieces.report_place(out, "")  # before anything is read
    url = store_url(store)
    with opened(store) as found:
        path = pieces.report_place(out, found.campaign(campaign).name)
        read = pieces.reported(found, campaign)
    elsewhere = Elsewhere(store=None if url == DEFAULT_STORE else url)
    text = pieces.report_text(read, elsewhere, version=__version__)
    with writing(path):
        write_text(path, text)
    return path


def plot(
    campaign: str | None = None,
    *,
    out: str | Path,
    figure: str | None = None,
    format: str | None = None,  # noqa: A002 - the option's own name
    store: str | None = None,
) -> tuple[list[Path], list[Drawn]]:
    """Write a campaign's figures as PNG or SVG; return the files, and the figures that could not be drawn.

    `out` is a file whose name ends with .png or .svg, which takes one `figure`, or a folder, which is made where its
    parent is there and takes one or all of them in `format` (svg by default). Raises `InvalidInput` for what cannot be
    written, or where matplotlib is not installed, and `NothingLegal` where the one figure asked for cannot be drawn.
    """
    from frontrunner import reporting_pieces as pieces

    place = pieces.picture_place(out, figure, format)
    pieces.require_installed("matplotlib")
    with opened(store) as found:
        read = pieces.reported(found, campaign)
    return place.save(lambda name: pieces.picture(read, name, place.kind))
