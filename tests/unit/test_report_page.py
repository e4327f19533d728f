"""The report page and pictures: self-contained, safe from text of logs and files, reproducible."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

import frontrunner
from frontrunner.cli.main import frontrunner as frontrunner_command
from frontrunner.results.outcome import FailureKind, ProbeEnding
from frontrunner.results.records import Event
from frontrunner.spaces.errors import InvalidInput, NotFound, NothingLegal, installing
from frontrunner.views.charts import FIGURES
from frontrunner.views.charts.render import fitted
from frontrunner.views.report import facts_of, warnings
from support.charted import failed, measured, recorded, renamed, spec

vl_convert = pytest.importorskip("vl_convert")
HOSTILE = (
    "$x$ </script><script>alert(1)</script><img src=http://evil.example/x onerror=alert(1)>"
    " \"'&amp; \x1b[31m"
)
UNDRAWN = {"scaling", "shap"}
"""They need more measurements than the store below has, or several numbers of nodes."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A campaign with three measurements and a failure of each kind, and hostile text wherever
    there is text.
    """
    path = tmp_path_factory.mktemp("store") / "s.db"
    campaign = renamed(spec(), HOSTILE)
    recipes = campaign.space.survey(campaign.problem).recipes
    outcomes = [
        (recipe, [measured(100.0 + place, 0.5 + place)]) for place, recipe in enumerate(recipes[:3])
    ]
    kinds = (FailureKind.OUT_OF_MEMORY, FailureKind.CRASHED, FailureKind.HUNG)
    for recipe, kind in zip(recipes[3:6], kinds, strict=True):
        outcomes.append(
            (recipe, [failed(kind, message=HOSTILE, log_tail=HOSTILE, log_path=HOSTILE)])
        )
    recorded(path, campaign, outcomes)
    return str(path)


class Page(HTMLParser):
    """The elements of a page, and what its scripts hold."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.text = ""
        self._in_script = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self._in_script = True
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._in_script = self._in_script and tag != "script"

    def handle_data(self, data: str) -> None:
        if self._in_script:
            self.scripts[-1] += data
        else:
            self.text += data

    @property
    def figures(self) -> dict[str, dict[str, object]]:
        plots = [attributes for tag, attributes in self.tags if "data-chart" in attributes]
        return {
            str(plot["id"]).removeprefix("plot-"): json.loads(str(plot["data-chart"]))
            for plot in plots
        }


@pytest.fixture(scope="module")
def page(store: str, tmp_path_factory: pytest.TempPathFactory) -> Page:
    path = frontrunner.report(out=tmp_path_factory.mktemp("page") / "r.html", store=store)
    return Page(path.read_text(encoding="utf-8"))


def test_report_loads_nothing(page: Page) -> None:
    for tag, attributes in page.tags:
        assert tag not in {"img", "iframe", "object", "embed", "link", "base", "form"}, tag
        for name, value in attributes.items():
            assert not name.startswith("on"), (tag, name)
            if name in {"src", "href", "action", "data"}:
                assert value is not None
                assert value.startswith("#"), (tag, name, value)
    policy = next(
        a["content"] for _, a in page.tags if a.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy is not None
    assert policy.startswith("default-src 'none'; ")
    assert "http" not in policy.replace("http-equiv", "")


def test_report_policy_allows_its_own_script_only(page: Page) -> None:
    policy = str(
        next(a["content"] for _, a in page.tags if a.get("http-equiv") == "Content-Security-Policy")
    )
    (script,) = page.scripts
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}';" in policy
    assert "unsafe-eval" not in policy


def test_report_escapes_text_from_files_and_logs(page: Page) -> None:
    shown = HOSTILE.replace("\x1b", "\\x1b")
    # The model's name once; a failure's message, log and path for each of three.
    assert page.text.count(shown) == 1 + 3 * 3
    assert "\x1b" not in page.text
    assert "evil.example" not in "".join(page.scripts) + json.dumps(page.figures)


def test_report_draws_each_figure_or_states_why_not(page: Page) -> None:
    assert {attributes.get("id") for tag, attributes in page.tags if tag == "section"} == {
        *FIGURES,
        "failures",
    } - {"scaling"}, "that is of campaigns over numbers of nodes"
    assert set(page.figures) == set(FIGURES) - UNDRAWN
    why_not = "Not drawn: SHAP values need at least 20 measured recipes; there are 3."
    assert page.text.count(why_not) == 1
    plots = {
        attributes["id"]: attributes
        for tag, attributes in page.tags
        if attributes.get("role") == "img"
    }
    assert set(plots) == {f"plot-{name}" for name in page.figures}
    assert all(attributes["aria-label"] for attributes in plots.values())


def test_report_has_a_table_for_each_figure(page: Page) -> None:
    assert sum(tag == "table" for tag, _ in page.tags) == len(page.figures) + 1, (
        "one more is the ranking"
    )
    assert page.text.count("As a table") == len(page.figures)


@pytest.mark.parametrize("name", sorted(set(FIGURES) - UNDRAWN))
def test_figure_is_valid_vega_lite(
    name: str, page: Page, capfd: pytest.CaptureFixture[str]
) -> None:
    assert vl_convert.vegalite_to_vega(fitted(page.figures[name], 960), vl_version="6.4")["marks"]
    assert "WARN" not in capfd.readouterr().err


def test_report_names_the_best_recipe_and_how_to_run_it(page: Page, store: str) -> None:
    best = frontrunner.best(top=1, store=store)[0]
    assert f"Best recipe: {best.recipe_id} {best.recipe.describe()}" in re.sub(
        r"\s+", " ", page.text
    )
    assert f"frontrunner replay {best.recipe_id} --steps 1000 --store {store}" in page.text
    assert "Simulated" not in page.text
    assert "3 recipes measured, 1 out-of-memory, 1 crashed, 1 hung" in page.text


def test_report_and_picture_of_a_simulated_campaign_are_marked(tmp_path: Path) -> None:
    campaign = spec(evaluator="simulated")
    recipe = campaign.space.survey(campaign.problem).recipes[0]
    recorded(tmp_path / "s.db", campaign, [(recipe, [measured(1.0)])])
    path = frontrunner.report(out=tmp_path / "r.html", store=str(tmp_path / "s.db"))
    assert (
        "Simulated: these figures come from rough formulas; nothing was trained"
        in path.read_text(encoding="utf-8")
    )
    (written,), _ = frontrunner.plot(
        out=tmp_path / "x.svg", figure="history", store=str(tmp_path / "s.db")
    )
    assert "simulated" in written.read_text(encoding="utf-8")


def test_report_states_remaining_gain_and_rough_figures(tmp_path: Path) -> None:
    campaign = spec()
    first, second = campaign.space.survey(campaign.problem).recipes[:2]
    rough = replace(measured(1.0), ended=ProbeEnding.SLOWER)
    found = recorded(tmp_path / "s.db", campaign, [(first, [measured(2.0)]), (second, [rough])])
    data = {"expected_improvement": 0.004, "gap": 0.02, "gap_at_most": 0.061}
    outlook = Event(id=1, campaign_id=1, at="", kind="outlook", data=data)
    assert (
        facts_of(replace(found, outlook=outlook), campaign)["left to gain"]
        == "the next probe is expected to gain 0.4 %; the best is estimated to be 2 % below the"
        " best of the whole space (95 %: at most 5.7 %)"
    )
    assert any(
        warning.startswith("1 probe ended early, clearly slower") for warning in warnings(found)
    )
    assert "left to gain" not in facts_of(found, campaign)


def test_report_of_a_campaign_without_an_outcome(tmp_path: Path) -> None:
    recorded(tmp_path / "s.db", spec(), [])
    page = Page(
        frontrunner.report(out=tmp_path / "r.html", store=str(tmp_path / "s.db")).read_text(
            encoding="utf-8"
        )
    )
    assert page.figures == {}
    assert page.text.count("Not drawn: ") == len(FIGURES) - 1
    assert "there is none to recommend" in page.text


@pytest.mark.parametrize("kind", ["svg", "png"])
def test_plot_writes_all_figures(kind: str, store: str, tmp_path: Path) -> None:
    written, absent = frontrunner.plot(out=tmp_path / "figures", format=kind, store=store)
    assert {path.name for path in written} == {f"{name}.{kind}" for name in set(FIGURES) - UNDRAWN}
    assert {row.name for row in absent} == UNDRAWN
    assert set((tmp_path / "figures").iterdir()) == set(written)
    for path in written:
        if kind == "png":
            assert path.read_bytes().startswith(b"\x89PNG\r\n")
            continue
        words = "".join(ET.fromstring(path.read_bytes()).itertext())
        assert "tiny" in words
        assert "$x$" in words, "text is text, not mathematics"


def test_plot_is_reproducible(store: str, tmp_path: Path) -> None:
    (first,), _ = frontrunner.plot(out=tmp_path / "a.svg", figure="speed-memory", store=store)
    (second,), _ = frontrunner.plot(out=tmp_path / "b.svg", figure="speed-memory", store=store)
    assert first.read_bytes() == second.read_bytes()


REFUSED: dict[str, tuple[dict[str, str], type[Exception], str]] = {
    "no such figure": (
        {"out": "f", "figure": "histroy"},
        InvalidInput,
        '--figure = "histroy": expected one of',
    ),
    "one file for all": ({"out": "x.svg"}, InvalidInput, "is one file and --figure names none"),
    "two formats": (
        {"out": "x.svg", "figure": "history", "format": "png"},
        InvalidInput,
        '--format = "png": expected',
    ),
    "no such format": (
        {"out": "f", "format": "pdf"},
        InvalidInput,
        '--format = "pdf": expected one of png, svg',
    ),
    "a file of another format": (
        {"out": "x.pdf", "figure": "history"},
        InvalidInput,
        "that ends with .svg or .png",
    ),
    "no folder": ({"out": "none/f"}, NotFound, "there is no folder"),
    "not drawn": (
        {"out": "x.svg", "figure": "shap"},
        NothingLegal,
        "figure shap cannot be drawn: SHAP values need",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_plot_rejects_what_cannot_be_written(
    case: str, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments, error, message = REFUSED[case]
    with pytest.raises(error, match=re.escape(message)):
        frontrunner.plot(store=store, **arguments)
    assert list(tmp_path.iterdir()) == []


def test_report_requires_an_html_name_and_an_existing_folder(store: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"expected a name that ends with \.html"):
        frontrunner.report(out=tmp_path / "r.pdf", store=store)
    with pytest.raises(NotFound, match="there is no folder"):
        frontrunner.report(out=tmp_path / "none" / "r.html", store=store)
    assert list(tmp_path.iterdir()) == []


def test_report_and_plot_name_a_missing_package(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setitem(
            sys.modules, "jinja2", None
        )  # as Python marks a module that cannot be imported
        with pytest.raises(InvalidInput, match="writing HTML needs jinja2 installed"):
            frontrunner.report(out=tmp_path / "r.html", store=store)
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    for draw, name in ((frontrunner.report, "r.html"), (frontrunner.plot, "f")):
        with pytest.raises(
            InvalidInput, match="drawing charts needs vl_convert installed"
        ) as caught:
            draw(out=tmp_path / name, store=store)
        assert caught.value.hint == f"run: {installing('frontrunner[report]')}"
    assert list(tmp_path.iterdir()) == []


def test_commands_print_files_on_stdout_and_the_rest_on_stderr(
    store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "r.html"
    frontrunner_command(
        ["report", "tiny", "--out", str(page), "--store", store], standalone_mode=False
    )
    assert capsys.readouterr().out.startswith(f"report: {page}, ")
    folder = tmp_path / "figures"
    frontrunner_command(["plot", "--out", str(folder), "--store", store], standalone_mode=False)
    found = capsys.readouterr()
    assert [Path(line) for line in found.out.splitlines()] == [
        folder / f"{name}.svg" for name in FIGURES if name not in UNDRAWN
    ]
    assert [line.partition(" is not drawn: ")[0] for line in found.err.splitlines()] == [
        name for name in FIGURES if name in UNDRAWN
    ]


def test_pareto_objectives_as_text_and_as_json(
    store: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["pareto", "--objectives", "tokens,memory,nodes", "--store", store]
    frontrunner_command(asked, standalone_mode=False)
    text = capsys.readouterr().out
    frontrunner_command([*asked, "--json"], standalone_mode=False)
    rows = json.loads(capsys.readouterr().out)
    best = frontrunner.best(store=store)
    # The store's fastest recipe needs most memory, and the slowest least: none of the three beats
    # another.
    assert [row["ranked"]["recipe_id"] for row in rows] == [row.recipe_id for row in best]
    assert [row["nodes"] for row in rows] == [1, 1, 1]
    assert [row["headroom_bytes"] / 2**30 for row in rows] == [-0.5, 0.5, 1.5]
    assert all(row.recipe_id in text for row in best)
    assert "Pareto front of tokens, memory and nodes" in text
