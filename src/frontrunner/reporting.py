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
    """Read what a campaign's report needs; `surveys` caches surveys of spaces by the id of their campaign."""
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
    """Return one figure as the content of a PNG or SVG file, or why it cannot be drawn."""
    _require_known(name, kind)
    require_installed()
    chart = found.chart(name)
    if isinstance(chart, Missing):
        return chart
    campaign, problem = found.collected.campaign, found.spec.problem
    source = "" if campaign.figures == "measured" else f" ({campaign.figures})"  # comes first: long names are cut
    title = f"{FIGURES[name][0]}{source}: {campaign.name}, {problem.model.name} on {problem.cluster.name}"
    return picture(chart.spec, kind, title=shorten(title, MOST_TITLE))


def save_pictures(
    draw: Callable[[str, str], bytes | Missing],
    *,
    out: str | Path,
    figure: str | None = None,
    format: str | None = None,  # noqa: A002 - the option's name
) -> tuple[list[Path], list[NotDrawn]]:
    """Write each figure that `draw` makes of a name and a format; see `LocalStore.plot`."""
    path = Path(out)
    named = path.suffix[1:] if path.suffix[1:] in FORMATS else None
    _require_known(figure, format)
    if named is None and path.exists() and not path.is_dir():
        raise bad_value("--out", str(path), "a folder, or a name that ends with .svg or .png")
    if named is not None and figure is None:
        raise InvalidInput(
            f"--out {path} is one file and --figure names none",
            hint="name one with --figure, or a folder with --out for all of them",
        )
    if named is not None and format not in (None, named):
        raise bad_value("--format", format, f"{named}, as in --out {path}")
    _require_folder(path)
    written, absent, kind = [], [], named or format or "svg"
    for name in FIGURES if figure is None else (figure,):
        content, target = draw(name, kind), path if named else path / f"{name}.{kind}"
        if not isinstance(content, Missing):
            with writing(target):
                target.parent.mkdir(exist_ok=True)
                write_bytes(target, content)
            written.append(target)
        elif figure is None:
            absent.append(NotDrawn(name=name, reason=content.reason))
        else:
            raise NothingLegal(not_drawn(name) + content.reason)
    return written, absent


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
    if name is not None and name not in FIGURES:
        raise bad_value("--figure", name, f"one of {', '.join(FIGURES)}", hint=did_you_mean(name, FIGURES))
    if kind is not None and kind not in FORMATS:
        raise bad_value("--format", kind, f"one of {', '.join(FORMATS)}")


def _require_folder(path: Path) -> None:
    parent = path.absolute().parent
    if not parent.is_dir():
        raise NotFound(f"there is no folder {parent} to write {path.name} to", hint="create it first")
