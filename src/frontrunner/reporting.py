"""A campaign's report and its figures as text, bytes and files, from an open store or from a service."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING

from frontrunner.evaluators.probe.files import write_bytes
from frontrunner.search.campaign_setup import stored_spec, stored_survey
from frontrunner.spaces.errors import InvalidInput, NotFound, NothingLegal, bad_value, did_you_mean, writing
from frontrunner.views.charts import FIGURES
from frontrunner.views.charts.data import Chart, Collected, Missing, collect
from frontrunner.views.charts.render import FORMATS, picture, require_installed
from frontrunner.views.report import Elsewhere, report_page

if TYPE_CHECKING:
    from frontrunner.results.store import Store
    from frontrunner.search.spec import CampaignSpec
    from frontrunner.spaces.space import Survey

MOST_TITLE = 100
"""Characters of a picture's title: what fits its width."""


@dataclass(frozen=True, kw_only=True)
class Reported:
    """Everything that is drawn of a campaign, and its specification."""

    collected: Collected
    spec: CampaignSpec
    _charts: dict[str, Chart | Missing] = field(default_factory=dict)

    def chart(self, name: str) -> Chart | Missing:
        """Return one of `FIGURES`, made at most once."""
        if name not in self._charts:
            _, draw = FIGURES[name]
            self._charts[name] = draw(self.collected)
        return self._charts[name]


@dataclass(frozen=True, kw_only=True)
class NotDrawn:
    """A figure that `plot` could not draw, and why."""

    name: str
    reason: str


def reported(store: Store, campaign: str | None, surveys: MutableMapping[int, Survey] | None = None) -> Reported:
    """Read what a campaign's report needs; raise `NotFound` for a missing campaign.

    `surveys` caches the surveys of spaces by the id of their campaign.
    """
    record = store.campaign(campaign)
    spec = stored_spec(record)
    cache = {} if surveys is None else surveys
    if record.id not in cache:
        cache[record.id] = stored_survey(spec)
    return Reported(collected=collect(store, record, cache[record.id]), spec=spec)


def report_text(found: Reported, elsewhere: Elsewhere) -> str:
    """Return a campaign as one self-contained HTML page; raise `InvalidInput` if vl-convert is not installed."""
    require_installed()
    charts = {name: found.chart(name) for name in FIGURES}
    return report_page(found.collected, found.spec, charts, elsewhere)


def figure(found: Reported, name: str, kind: str) -> bytes | Missing:
    """Return one figure as the content of a PNG or SVG file, or why it cannot be drawn.

    Raises `InvalidInput` for an unknown figure or kind, and if vl-convert is not installed.
    """
    _require_known(name, kind)
    require_installed()
    chart = found.chart(name)
    if isinstance(chart, Missing):
        return chart
    campaign, problem = found.collected.campaign, found.spec.problem
    source = "" if campaign.figures == "measured" else f" ({campaign.figures})"  # comes first: long names are cut
    title = f"{FIGURES[name][0]}{source}: {campaign.name}, {problem.model.name} on {problem.cluster.name}"
    return picture(chart.spec, kind, title=shorten(title, MOST_TITLE))


@dataclass(frozen=True, kw_only=True)
class PicturePlace:
    """Where figures are written: one to the file `path`, or `names` into the folder `path`, as `kind`."""

    path: Path
    names: tuple[str, ...]
    kind: str
    is_file: bool

    def save(self, draw: Callable[[str], bytes | Missing]) -> tuple[list[Path], list[NotDrawn]]:
        """Write each figure that `draw` makes; return the files, and the figures that could not be drawn.

        Raises `NothingLegal` if the only figure cannot be drawn.
        """
        written, absent = [], []
        for name in self.names:
            target = self.path if self.is_file else self.path / f"{name}.{self.kind}"
            content = draw(name)
            if isinstance(content, Missing):
                if len(self.names) == 1:
                    raise NothingLegal(not_drawn(name) + content.reason)
                absent.append(NotDrawn(name=name, reason=content.reason))
                continue
            with writing(target):
                target.parent.mkdir(exist_ok=True)
                write_bytes(target, content)
            written.append(target)
        return written, absent


def picture_place(out: str | Path, name: str | None, wanted: str | None) -> PicturePlace:
    """Return where `plot` writes.

    Raises `InvalidInput` for names and formats that do not go together, and `NotFound` for a missing folder.
    """
    path = Path(out)
    named = path.suffix[1:] if path.suffix[1:] in FORMATS else None
    _require_known(name, wanted)
    if named is None and path.exists() and not path.is_dir():
        raise bad_value("--out", str(path), "a folder, or a name that ends with .svg or .png")
    if named is not None and name is None:
        raise InvalidInput(
            f"--out {path} is one file and --figure names none",
            hint="name one with --figure, or a folder with --out for all of them",
        )
    if named is not None and wanted not in (None, named):
        raise bad_value("--format", wanted, f"{named}, as in --out {path}")
    _require_folder(path)
    names = tuple(FIGURES) if name is None else (name,)
    return PicturePlace(path=path, names=names, kind=named or wanted or "svg", is_file=named is not None)


def report_place(out: str | Path | None, campaign: str) -> Path:
    """Return where `report` writes: `out`, else CAMPAIGN.html in the working directory."""
    if out is not None and Path(out).suffix != ".html":
        raise bad_value("--out", str(out), "a name that ends with .html")
    path = Path(out if out is not None else f"{campaign}.html")
    _require_folder(path)
    return path


def not_drawn(name: str) -> str:
    """Return the beginning of the message on a figure that cannot be drawn."""
    return f"figure {name} cannot be drawn: "


def _require_known(name: str | None, kind: str | None) -> None:
    """Raise `InvalidInput` for an unknown figure, and for an unknown format of pictures."""
    if name is not None and name not in FIGURES:
        raise bad_value("--figure", name, f"one of {', '.join(FIGURES)}", hint=did_you_mean(name, FIGURES))
    if kind is not None and kind not in FORMATS:
        raise bad_value("--format", kind, f"one of {', '.join(FORMATS)}")


def _require_folder(path: Path) -> None:
    """Raise `NotFound` if the folder for the file is missing."""
    parent = path.absolute().parent
    if not parent.is_dir():
        raise NotFound(f"there is no folder {parent} to write {path.name} to", hint="create it first")
