"""Report of a campaign as one HTML file that needs no network and no other file, and its figures as
pictures.
"""

from __future__ import annotations

import base64
import hashlib
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from textwrap import shorten
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar

from frontrunner.results.arrays import ENDINGS
from frontrunner.results.nodes import set_aside_in_words
from frontrunner.results.outcome import ProbeEnding
from frontrunner.results.predictions import outlook_of
from frontrunner.results.records import IMPORTED
from frontrunner.results.store import Store
from frontrunner.search.budget import outlook_in_words
from frontrunner.search.campaign_setup import stored_spec, stored_survey
from frontrunner.search.spec import CampaignSpec
from frontrunner.spaces.cluster import Cluster
from frontrunner.spaces.document import write_bytes
from frontrunner.spaces.errors import (
    InvalidInput,
    NothingLegal,
    bad_value,
    did_you_mean,
    require_extra,
    require_folder,
    writing,
)
from frontrunner.spaces.space import Survey
from frontrunner.spaces.variants import AROUND
from frontrunner.text import (
    count,
    counted,
    minute,
    node_time,
    percent,
    plain,
    seconds,
    thousands,
    to_json,
)
from frontrunner.version import __version__
from frontrunner.views.charts import FIGURES
from frontrunner.views.charts.campaign import ranking_table
from frontrunner.views.charts.marks import Chart, Collected, Missing, Table, collect
from frontrunner.views.charts.render import FORMATS, javascript, picture, require_installed
from frontrunner.views.columns import ORIGINS, figures_in_words

if TYPE_CHECKING:
    from jinja2 import Environment

T = TypeVar("T")

TOP = 10
MOST_ROWS = 500
LONG_WORDS = 16
NUMBER = re.compile(r"-|[+-]?[\d.,]+(e[+-]?\d+)?( (%|s|ms))?")


def environment(package: str, folder: str, **filters: Callable[..., Any]) -> Environment:
    """Return templates: text is escaped and its control characters are shown, an undefined value is
    an error.
    """
    require_extra("jinja2", "report", "writing HTML")
    from jinja2 import Environment, PackageLoader, StrictUndefined

    found = Environment(
        loader=PackageLoader(package, folder),
        autoescape=True,
        auto_reload=False,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: (
            plain(value) if type(value) is str else value
        ),  # not of what is escaped already
    )
    found.filters |= {"json": to_json, **filters}
    return found


def report_page(
    collected: Collected,
    spec: CampaignSpec,
    charts: Mapping[str, Chart | Missing],
    *,
    store: str,
    server: str,
) -> str:
    """Return the whole page; `charts` are of `FIGURES`, by name; `store` or `server` is what
    commands name.
    """
    campaign, ranking, script = collected.campaign, collected.ranking, javascript()
    templates = environment("frontrunner", "views", marks=_marks, node_time=node_time)
    values: dict[str, Any] = {
        "digest": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        "style": files("frontrunner.views").joinpath("report.css").read_text(encoding="utf-8"),
        "titles": {name: title for name, (title, _) in FIGURES.items()},
        "origin": ORIGINS.get(campaign.figures),
        "warnings": list(warnings(collected)),
        "facts": facts_of(collected, spec),
        "version": __version__,
        "most_rows": MOST_ROWS,
        "failures": len(collected.final_failures),
    }
    if ranking:
        memory_bytes = collected.problem.cluster.memory_bytes_per_device
        values["figures"] = figures_in_words(ranking[0].standing, memory_bytes)
        replays = ranking[0].figures != "imported"
        where = {"store": store, "server": server}
        values["commands"] = commands(ranking[0].recipe_id, campaign.name, replays=replays, **where)
        values["fastest"] = ranking_table(ranking[:TOP])
    return templates.get_template("report.html").render(
        campaign=campaign,
        ranking=ranking,
        failed=collected.failed,
        charts=charts,
        script=script,
        **values,
    )


def commands(
    recipe: str, campaign: str, *, replays: bool, store: str = "", server: str = ""
) -> dict[str, str]:
    """Return the commands that take a recipe along, each with its purpose; they name the store, or
    the service.
    """
    option, found = (
        next(
            (f" --{k} {shlex.quote(v)}" for k, v in (("server", server), ("store", store)) if v), ""
        ),
        {},
    )
    if server and replays:
        found[f"frontrunner export {recipe} --to recipe --out {recipe}.json{option}"] = (
            "keep it as a file"
        )
        found[f"frontrunner replay {recipe}.json --steps 1000"] = "train with it"
    elif replays:
        train = f"frontrunner replay {recipe} --steps 1000"
        found |= {
            train + option: "train with it",
            f"{train} --print-command{option}": "print the command of its ranks",
        }
    found[f"frontrunner show {recipe} --campaign {campaign}{option}"] = "see why it ranks there"
    return found | {f"frontrunner explain {recipe}{option}": "see what its step and memory go to"}


def warnings(collected: Collected) -> Iterator[str]:
    """Yield what a reader should know before trusting the first place."""
    yield from (
        f"{line[:1].upper()}{line[1:]}." for line in set_aside_in_words(collected.nodes_aside)
    )
    if not collected.ranking:
        yield "No recipe has been measured, so there is none to recommend."
        return
    first, *others = (row.standing for row in collected.ranking[:2])
    if first.is_noisy:
        yield (
            f"The best recipe's step times spread by {percent(first.step_time_spread)}: measure"
            " again before relying on small gaps."
        )
    if why := collected.ranking[0].doubts:
        yield f"The best recipe's figures may not be its own: {'; '.join(why)}."
    if (unconfirmed := collected.ranking[0].why_unconfirmed) is not None:
        yield f"{unconfirmed}."
    for second in others:
        gap, spread = (
            collected.ranking[1].gap_percent,
            100 * max(first.step_time_spread, second.step_time_spread),
        )
        if gap <= spread:
            yield (
                f"The second recipe, {collected.ranking[1].recipe_id}, is {gap:.1f} % behind,"
                f" within the spread of {spread:.1f} %: another measurement could reverse their"
                " order."
            )
    rough = int((collected.attempts.endings == ENDINGS.index(ProbeEnding.SLOWER)).sum())
    if rough:
        yield (
            f"{counted(rough, 'probe')} ended early, clearly slower than the best recipe at that"
            " time: the figures of these probes are rough."
        )
    if not collected.problem.global_batch.is_fixed:
        yield (
            "The global batch is a range: recipes with other batches do not train the same"
            " mathematics."
        )


def facts_of(collected: Collected, spec: CampaignSpec) -> dict[str, str]:
    """Return the facts under the best recipe: what was asked, what was done, and what is left to
    gain.
    """
    campaign, problem = collected.campaign, collected.problem
    model, cluster = problem.model, problem.cluster
    kinds = Counter(ended.outcome for ended in collected.final_failures)
    failed = ", ".join(f"{number} {kind}" for kind, number in kinds.most_common()) or "none failed"
    words = (
        f"{collected.reused} recipes reused from earlier campaigns, " if collected.reused else ""
    )
    spent = (
        f"{len(collected.attempts) - collected.reused} probes,"
        f" {words}{node_time(campaign.node_seconds_spent)}, {seconds(campaign.driver_seconds)} of"
        " driving"
    )
    if campaign.figures == IMPORTED:
        spent = "nothing here: the table's rows were measured elsewhere"
    facts = {
        "model": (
            f"{model.name}: {count(model.parameters)} parameters, {len(model.layers)} layers of"
            f" width {model.hidden:,}"
        ),
        "problem": (
            f"sequences of {problem.sequence_length:,} tokens, global batch {problem.global_batch},"
            f" {problem.precision}"
        ),
        "machine": _machine(cluster, problem.precision),
        "search": (
            f"{campaign.strategy} over {campaign.legal_recipes:,} legal recipes, seed"
            f" {spec.search.seed}"
        ),
        "tried": f"{collected.ranked} recipes measured, {failed}",
        "budget": ", ".join(map(str, collected.limits)) or "no limit",
        "spent": spent,
        "dates": (
            f"begun {minute(campaign.created_at)} UTC, last changed"
            f" {minute(campaign.updated_at)} UTC"
        ),
    }
    if collected.outlook is not None:
        facts["left to gain"] = outlook_in_words(outlook_of(collected.outlook)[0])
    return facts


def _machine(cluster: Cluster, precision: str) -> str:
    peak = cluster.peak_flops(precision)
    return f"{cluster.name}: {cluster.describe()}, {cluster.memory_gib_per_device:g} GiB each" + (
        "" if peak is None else f", peak {thousands(peak / 1e12)} TFLOPS in {precision}"
    )


def _marks(table: Table) -> list[str]:
    columns = list(zip(*table.rows, strict=True)) or [()] * len(table.header)
    return [
        (
            "number"
            if all(map(NUMBER.fullmatch, column))
            else "words"
            if max(map(len, column)) > LONG_WORDS
            else ""
        )
        for column in columns
    ]


MOST_TITLE = 100


@dataclass(frozen=True, kw_only=True)
class Reported:
    """Everything that is drawn of a campaign, and its specification."""

    collected: Collected
    spec: CampaignSpec
    _made: dict[tuple[str, ...], Any] = field(default_factory=dict)
    _locks: dict[tuple[str, ...], Lock] = field(default_factory=dict)

    def once(self, key: tuple[str, ...], make: Callable[[], T]) -> T:
        """Return what `make` returned the first time; others who ask for it at the same time wait
        for that.
        """
        with self._locks.setdefault(key, Lock()):
            if key not in self._made:
                self._made[key] = make()
            made: T = self._made[key]
            return made

    def chart(self, name: str) -> Chart | Missing:
        """Return one of `FIGURES`."""
        _, draw = FIGURES[name]
        return self.once(("chart", name), lambda: draw(self.collected))

    def chart_json(self, name: str) -> str:
        """Return one of `FIGURES` for charts.js: what to read in it, and its specification, null if
        it is not drawn.
        """

        def made() -> str:
            found = self.chart(name)
            if isinstance(found, Missing):
                return to_json({"reading": f"Not drawn: {found.reason}", "spec": None})
            return to_json(
                {"reading": " ".join((found.reading, *found.remarks)), "spec": found.spec}
            )

        return self.once(("json", name), made)


@dataclass(frozen=True, kw_only=True)
class NotDrawn:
    """A figure that `plot` could not draw, and why."""

    name: str
    reason: str


def reported(
    store: Store, campaign: str | None, surveys: MutableMapping[str, Survey] | None = None
) -> Reported:
    """Read what a campaign's report needs; `surveys` caches surveys of spaces by the text of their
    campaign.
    """
    record = store.campaign(campaign)
    spec = stored_spec(record)
    cache = {} if surveys is None else surveys
    if record.spec_json not in cache:
        cache[record.spec_json] = stored_survey(spec)
    around = spec.search.baseline if spec.search.strategy in AROUND else None
    return Reported(collected=collect(store, record, cache[record.spec_json], around), spec=spec)


def report_text(found: Reported, *, store: str = "", server: str = "") -> str:
    """Return a campaign as one self-contained HTML page; raise `InvalidInput` if vl-convert is not
    installed.
    """
    require_installed()
    charts = {name: found.chart(name) for name in FIGURES}
    charts = {
        name: one for name, one in charts.items() if not isinstance(one, Missing) or one.applies
    }
    return report_page(found.collected, found.spec, charts, store=store, server=server)


def figure(found: Reported, name: str, kind: str) -> bytes | Missing:
    """Return one figure as the content of a PNG or SVG file, or why it cannot be drawn."""
    _require_known(name, kind)
    require_installed()
    chart = found.chart(name)
    if isinstance(chart, Missing):
        return chart
    campaign, problem = found.collected.campaign, found.spec.problem
    source = (
        "" if campaign.figures == "measured" else f" ({campaign.figures})"
    )  # comes first: long names are cut
    title = (
        f"{FIGURES[name][0]}{source}: {campaign.name}, {problem.model.name} on"
        f" {problem.cluster.name}"
    )
    return found.once(
        (kind, name), lambda: picture(chart.spec, kind, title=shorten(title, MOST_TITLE))
    )


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
    is_meant_as_file = path.exists() or (figure is not None and path.suffix != "")
    if named is None and is_meant_as_file and not path.is_dir():
        raise bad_value("--out", str(path), "a folder, or a name that ends with .svg or .png")
    if named is not None and figure is None:
        raise InvalidInput(
            f"--out {path} is one file and --figure names none",
            hint="name one with --figure, or a folder with --out for all of them",
        )
    if named is not None and format not in (None, named):
        raise bad_value("--format", format, f"{named}, as in --out {path}")
    require_folder(path)
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
    require_folder(path)
    return path


def not_drawn(name: str) -> str:
    """Return the beginning of the message on a figure that cannot be drawn."""
    return f"figure {name} cannot be drawn: "


def _require_known(name: str | None, kind: str | None) -> None:
    if name is not None and name not in FIGURES:
        raise bad_value(
            "--figure", name, f"one of {', '.join(FIGURES)}", hint=did_you_mean(name, FIGURES)
        )
    if kind is not None and kind not in FORMATS:
        raise bad_value("--format", kind, f"one of {', '.join(FORMATS)}")
