"""The Python API of `report`, `plot` and `pareto --objectives`: a campaign as a page, as pictures, as a front."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING

from frontrunner.api import opened
from frontrunner.settings import DEFAULT_STORE, store_url
from frontrunner.spaces.errors import InvalidInput, NotFound, NothingLegal, bad_value, did_you_mean
from frontrunner.starting import stored_spec

if TYPE_CHECKING:
    from frontrunner.drawing.catalogue import Drawn
    from frontrunner.evaluators.insight.figures import Figures
    from frontrunner.evaluators.insight.objectives import OnFront
    from frontrunner.search.spec import CampaignSpec

FORMATS = ("png", "svg")
MOST_TITLE = 100
"""Characters of a picture's title: what fits its width."""


def front(
    campaign: str | None = None, *, objectives: Sequence[str] = ("tokens", "memory", "nodes"), store: str | None = None
) -> tuple[OnFront, ...]:
    """The recipes that no other beats in all objectives at once, fastest first.

    Objectives are two or more of tokens (tokens/s), memory (what the fullest rank leaves of a device's memory) and
    nodes (as few as can be). Raises `InvalidInput` for others.
    """
    from frontrunner.evaluators.insight import objectives as fronts
    from frontrunner.results.ranking import best

    wanted = fronts.checked_objectives(objectives)
    with opened(store) as found:
        record = found.campaign(campaign)
        return fronts.front(best(found, record, top=None), stored_spec(record).problem, wanted)


def report(campaign: str | None = None, *, out: str | Path | None = None, store: str | None = None) -> Path:
    """Write a campaign as one HTML page that needs nothing else, and return its path.

    `out` is CAMPAIGN.html in the working directory by default. Raises `InvalidInput` where Plotly is not installed, or
    for a name that does not end with .html, and `NotFound` for a folder that is not there.
    """
    from frontrunner import __version__
    from frontrunner.drawing.catalogue import drawn
    from frontrunner.drawing.head import head
    from frontrunner.drawing.page import page
    from frontrunner.evaluators.files import write_text

    if out is not None and Path(out).suffix != ".html":
        raise bad_value("--out", str(out), "a name that ends with .html")
    plotly_js = _plotly_js()
    found, spec = _figures(campaign, store)
    path = Path(out if out is not None else f"{found.collected.campaign.name}.html")
    _require_folder(path)
    url = store_url(store)
    top = head(found.collected, spec, store=None if url == DEFAULT_STORE else url)
    text = page(top, drawn(found), found.collected.failed, plotly_js=plotly_js, version=__version__)
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
    from frontrunner.drawing.catalogue import FIGURES, drawn
    from frontrunner.drawing.chart import Chart
    from frontrunner.evaluators.insight.collected import Missing

    path = Path(out)
    suffix = _suffix(path, figure, format)
    if figure is not None and figure not in FIGURES:
        raise bad_value("--figure", figure, f"one of {', '.join(FIGURES)}", hint=did_you_mean(figure, FIGURES))
    _require_folder(path)
    _require("matplotlib")
    from frontrunner.drawing.matplotlib_figure import write_chart

    found, spec = _figures(campaign, store)
    wanted = drawn(found, figure)
    absent = [row for row in wanted if isinstance(row.chart, Missing)]
    if figure is not None and absent:
        raise NothingLegal(f"figure {figure} cannot be drawn: {_reason(absent[0])}")
    is_file = path.suffix[1:] in FORMATS
    if not is_file:
        path.mkdir(exist_ok=True)
    written = []
    for row in wanted:
        if isinstance(row.chart, Chart):
            target = path if is_file else path / f"{row.name}.{suffix}"
            write_chart(row.chart, target, title=_titled(row.title, found, spec))
            written.append(target)
    return written, absent


def _suffix(path: Path, figure: str | None, wanted: str | None) -> str:
    """The format to write; refuses names and formats that do not go together."""
    if wanted is not None and wanted not in FORMATS:
        raise bad_value("--format", wanted, f"one of {', '.join(FORMATS)}")
    named = path.suffix[1:] if path.suffix[1:] in FORMATS else None
    if named is None and path.exists() and not path.is_dir():
        raise bad_value("--out", str(path), "a folder, or a name that ends with .svg or .png")
    if named is None:
        return wanted or "svg"
    if figure is None:
        raise InvalidInput(
            f"--out {path} is one file and --figure names none",
            hint="name one with --figure, or a folder with --out for all of them",
        )
    if wanted not in (None, named):
        raise bad_value("--format", wanted, f"{named}, as --out {path} says")
    return named


def _require_folder(path: Path) -> None:
    parent = path.absolute().parent
    if not parent.is_dir():
        raise NotFound(f"there is no folder {parent} to write {path.name} to", hint="create it first")


def _require(package: str) -> None:
    if find_spec(package) is None:
        raise InvalidInput(
            f"this needs {package}, which is not installed", hint="run: pip install 'frontrunner[report]'"
        )


def _plotly_js() -> str:
    """Plotly's script, as its Python package brings it along."""
    _require("plotly")
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs())


def _figures(campaign: str | None, store: str | None) -> tuple[Figures, CampaignSpec]:
    """Everything that is drawn of a campaign, and its specification."""
    from frontrunner.evaluators.insight.collected import collect
    from frontrunner.evaluators.insight.figures import Figures

    with opened(store) as found:
        record = found.campaign(campaign)
        spec = stored_spec(record)
        return Figures(collected=collect(found, record, spec.space.survey(spec.problem))), spec


def _titled(title: str, found: Figures, spec: CampaignSpec) -> str:
    """A picture's title, with what it is of; that it was not measured comes first, since long names are cut."""
    campaign, problem = found.collected.campaign, spec.problem
    source = "" if campaign.figures == "measured" else f" ({campaign.figures})"
    return shorten(f"{title}{source}: {campaign.name}, {problem.model.name} on {problem.cluster.name}", MOST_TITLE)


def _reason(row: Drawn) -> str:
    return getattr(row.chart, "reason", "")
