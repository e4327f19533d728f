"""A campaign's report and its figures as text and bytes, from a store that is open.

`reporting_api` writes them to files; the service sends them to whoever asks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING

from frontrunner.evaluators.insight.collected import Missing, collect
from frontrunner.evaluators.insight.figures import Figures
from frontrunner.evaluators.probe.files import write_bytes
from frontrunner.search.campaign_setup import stored_spec, stored_survey
from frontrunner.spaces.errors import InvalidInput, NotFound, NothingLegal, bad_value, did_you_mean, writing
from frontrunner.views.charts.catalogue import FIGURES, Drawn, drawn
from frontrunner.views.charts.chart import Chart
from frontrunner.views.charts.head import Elsewhere, head

if TYPE_CHECKING:
    from frontrunner.results.store import Store
    from frontrunner.search.spec import CampaignSpec
    from frontrunner.spaces.space import Survey

FORMATS = ("png", "svg")
MOST_TITLE = 100
"""Characters of a picture's title: what fits its width."""


@dataclass(frozen=True, kw_only=True)
class Reported:
    """Everything that is drawn of a campaign, and its specification."""

    figures: Figures
    spec: CampaignSpec


def reported(store: Store, campaign: str | None, surveys: MutableMapping[int, Survey] | None = None) -> Reported:
    """Read what a campaign's report needs; raises `NotFound` where there is no such campaign.

    `surveys` keeps the surveys of spaces that were made before, by the id of their campaign.
    """
    record = store.campaign(campaign)
    spec = stored_spec(record)
    kept = {} if surveys is None else surveys
    if record.id not in kept:
        kept[record.id] = stored_survey(spec)
    return Reported(figures=Figures(collected=collect(store, record, kept[record.id])), spec=spec)


def report_text(found: Reported, elsewhere: Elsewhere, *, version: str) -> str:
    """A campaign as one HTML page that needs nothing else, of this `version` of frontrunner.

    Raises `InvalidInput` where Plotly is not installed.
    """
    from frontrunner.views.charts.page import page

    plotly_js = _plotly_js()
    collected = found.figures.collected
    top = head(collected, found.spec, elsewhere)
    return page(top, drawn(found.figures), collected.failed, plotly_js=plotly_js, version=version)


def picture(found: Reported, figure: str, kind: str) -> bytes | Missing:
    """One figure as a PNG or SVG file's content, or why it cannot be drawn.

    Raises `InvalidInput` for an unknown figure or kind, and where matplotlib is not installed.
    """
    require_figure(figure)
    require_format(kind)
    require_installed("matplotlib")
    from frontrunner.views.charts.matplotlib_figure import chart_bytes

    (row,) = drawn(found.figures, figure)
    if isinstance(row.chart, Chart):
        return chart_bytes(row.chart, kind, title=_titled(row.title, found))
    return row.chart


def _titled(title: str, found: Reported) -> str:
    """A picture's title, with what it is of; that it was not measured comes first, since long names are cut."""
    campaign, problem = found.figures.collected.campaign, found.spec.problem
    source = "" if campaign.figures == "measured" else f" ({campaign.figures})"
    return shorten(f"{title}{source}: {campaign.name}, {problem.model.name} on {problem.cluster.name}", MOST_TITLE)


@dataclass(frozen=True, kw_only=True)
class PicturePlace:
    """Where figures are written: one to the file `path`, or `names` into the folder `path`, as `kind`."""

    path: Path
    names: tuple[str, ...]
    kind: str
    is_file: bool

    def save(self, draw: Callable[[str], bytes | Missing]) -> tuple[list[Path], list[Drawn]]:
        """Write each figure that `draw` makes; return the files, and the figures that could not be drawn.

        Raises `NothingLegal` where the only figure asked for cannot be drawn.
        """
        written, absent = [], []
        for name, target in self._targets():
            content = draw(name)
            if isinstance(content, Missing):
                if len(self.names) == 1:
                    raise NothingLegal(not_drawn(name) + content.reason)
                absent.append(Drawn(name=name, title=FIGURES[name][0], chart=content))
                continue
            with writing(target):
                target.parent.mkdir(exist_ok=True)
                write_bytes(target, content)
            written.append(target)
        return written, absent

    def _targets(self) -> Iterator[tuple[str, Path]]:
        for name in self.names:
            yield name, self.path if self.is_file else self.path / f"{name}.{self.kind}"


def picture_place(out: str | Path, figure: str | None, wanted: str | None) -> PicturePlace:
    """Where `plot` writes; refuses names and formats that do not go together.

    Raises `InvalidInput`, and `NotFound` for a folder that is not there.
    """
    path = Path(out)
    kind = _kind(path, figure, wanted)
    if figure is not None:
        require_figure(figure)
    require_folder(path)
    names = tuple(FIGURES) if figure is None else (figure,)
    return PicturePlace(path=path, names=names, kind=kind, is_file=path.suffix[1:] in FORMATS)


def _kind(path: Path, figure: str | None, wanted: str | None) -> str:
    if wanted is not None:
        require_format(wanted)
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


def report_place(out: str | Path | None, campaign: str) -> Path:
    """Where `report` writes: `out`, else CAMPAIGN.html in the working directory."""
    if out is not None and Path(out).suffix != ".html":
        raise bad_value("--out", str(out), "a name that ends with .html")
    path = Path(out if out is not None else f"{campaign}.html")
    require_folder(path)
    return path


def not_drawn(figure: str) -> str:
    """How the message begins that says why a figure cannot be drawn."""
    return f"figure {figure} cannot be drawn: "


def require_figure(figure: str) -> None:
    """Raise `InvalidInput` for the name of no figure."""
    if figure not in FIGURES:
        raise bad_value("--figure", figure, f"one of {', '.join(FIGURES)}", hint=did_you_mean(figure, FIGURES))


def require_format(kind: str) -> None:
    """Raise `InvalidInput` for what is no format of pictures."""
    if kind not in FORMATS:
        raise bad_value("--format", kind, f"one of {', '.join(FORMATS)}")


def require_folder(path: Path) -> None:
    """Raise `NotFound` unless the folder that the file is to be written to is there."""
    parent = path.absolute().parent
    if not parent.is_dir():
        raise NotFound(f"there is no folder {parent} to write {path.name} to", hint="create it first")


def require_installed(package: str) -> None:
    """Raise `InvalidInput` where a package that draws is not installed."""
    if find_spec(package) is None:
        raise InvalidInput(
            f"this needs {package}, which is not installed", hint="run: pip install 'frontrunner[report]'"
        )


def _plotly_js() -> str:
    """Plotly's script, as its Python package brings it along."""
    require_installed("plotly")
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs())
