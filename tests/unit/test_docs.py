"""The documents keep up with the code: every command, setting, failure kind, strategy and preset
has its place.
"""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from frontrunner import survey
from frontrunner.cli.main import SECTIONS
from frontrunner.config.campaign import SECTIONS as FILE_SECTIONS
from frontrunner.config.campaign import keys_of, read_campaign_file
from frontrunner.evaluators.export.tools import TOOLS
from frontrunner.evaluators.programs.logs import GROUPS
from frontrunner.evaluators.registry import EVALUATORS
from frontrunner.exchange import TARGETS
from frontrunner.results.outcome import POLICIES, FailureKind
from frontrunner.search.strategy import STRATEGIES
from frontrunner.spaces import errors
from frontrunner.spaces.cluster import ByPrecision, Links
from frontrunner.spaces.presets import preset_names
from frontrunner.spaces.recipe import DIMENSIONS

ROOT = Path(__file__).parent.parent.parent
DOCS = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "docs").rglob("*.md")}
README = (ROOT / "README.md").read_text(encoding="utf-8")
MOST_PICTURE_BYTES, MOST_PICTURES_BYTES = 200_000, 1_500_000
COMMANDS = [name for section in SECTIONS.values() for name in section]


def section(page: str, title: str) -> str:
    """The text of one `## title` section of a page."""
    found = re.search(
        rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", DOCS[page], re.MULTILINE | re.DOTALL
    )
    assert found, f"docs/{page} has no section {title}"
    return found.group(1)


def test_every_command_is_documented() -> None:
    page = DOCS["commands.md"]
    assert all(f"### `frontrunner {name}" in page for name in COMMANDS)


def test_every_section_of_the_campaign_file_is_documented() -> None:
    for name in FILE_SECTIONS:
        assert section("campaign-file.md", f"[{name}]")


def test_every_key_of_the_campaign_file_is_documented() -> None:
    for name in FILE_SECTIONS:
        assert all(
            f"| `{key}` |" in section("campaign-file.md", f"[{name}]") for key in keys_of(name)
        ), name


def test_nested_settings_and_words_are_documented() -> None:
    cluster = section("campaign-file.md", "[cluster]")
    for field in (*fields(ByPrecision), *fields(Links)):
        assert field.name in cluster
    space = section("campaign-file.md", "[space]")
    for word in (
        word for one in DIMENSIONS.values() if one.name != "rank_order" for word in one.values
    ):
        assert word in space or word == "none"
    for preset in (*preset_names("models"), *preset_names("clusters")):
        assert f"`{preset}`" in DOCS["campaign-file.md"]
    for evaluator in EVALUATORS:
        assert f"`{evaluator}`" in section("campaign-file.md", "At the top")


def test_every_ready_made_trainer_and_figure_of_a_log_is_documented() -> None:
    for trainer in TOOLS:
        assert f"| `{trainer}` |" in section("other-trainers.md", "Ready-made trainers")
        assert f"`{trainer}`" in section("campaign-file.md", "[command]")
    for group in GROUPS:
        assert f"`{group}`" in section("other-trainers.md", "Patterns")


def test_every_failure_kind_has_a_policy() -> None:
    assert set(POLICIES) == set(FailureKind)


def test_every_failure_kind_and_exit_code_is_documented() -> None:
    for kind in FailureKind:
        assert f"| `{kind}` |" in DOCS["failures.md"]
    for cls in vars(errors).values():
        if isinstance(cls, type) and issubclass(cls, errors.FrontrunnerError):
            assert f"| {cls.exit_code} |" in section("failures.md", "Exit codes")


def test_every_strategy_is_documented() -> None:
    for name in STRATEGIES:
        assert f"| `{name}` |" in DOCS["strategies.md"]


def test_every_tool_that_recipes_travel_to_is_documented() -> None:
    for name in TARGETS:
        assert f"`{name}`" in section("export.md", "To other tools")


def test_every_page_is_reached_from_the_readme_and_links_lead_somewhere() -> None:
    for page in (ROOT / "docs").glob("*.md"):
        assert f"docs/{page.name}" in README, f"README.md does not name docs/{page.name}"
    for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        for target in re.findall(r"\]\(([^)#]+)\)", path.read_text(encoding="utf-8")):
            if "://" not in target:
                assert (path.parent / target).exists(), f"{path.name} links to {target}"


def test_every_page_is_in_the_site_s_navigation() -> None:
    navigation = (
        (ROOT / "zensical.toml")
        .read_text(encoding="utf-8")
        .partition("nav = [")[2]
        .partition("\n]\n")[0]
    )
    assert sorted(re.findall(r'"([\w-]+\.md)"', navigation)) == sorted(
        path.name for path in (ROOT / "docs").glob("*.md")
    )


def test_the_readme_begins_with_the_two_commands() -> None:
    first_block = re.search(r"```console\n(.*?)```", README, re.DOTALL)
    assert first_block
    assert re.findall(r"^\$ (make \w+)", first_block.group(1), re.MULTILINE) == [
        "make campaign",
        "make test",
    ]


@pytest.mark.parametrize(
    "path", sorted((ROOT / "examples").glob("*.toml")), ids=lambda path: path.name
)
def test_every_example_has_legal_recipes(path: Path) -> None:
    spec = read_campaign_file(path).spec
    assert len(spec.survey().recipes) >= 12


def test_every_picture_of_a_page_is_shown_and_small() -> None:
    pictures = sorted((ROOT / "docs" / "pages").iterdir())
    shown = set(re.findall(r"\]\((pages/[^)]+)\)", DOCS["service.md"]))
    assert {f"pages/{path.name}" for path in pictures} == shown
    assert all(path.stat().st_size < MOST_PICTURE_BYTES for path in pictures)
    assert sum(path.stat().st_size for path in pictures) < MOST_PICTURES_BYTES


def test_whichever_recipe_wins_in_the_tutorial_its_exports_work(tmp_path: Path) -> None:
    (campaign,) = re.findall(r"```toml\n(.*?)```", DOCS["tutorial.md"], re.DOTALL)
    (tmp_path / "first.toml").write_text(campaign)
    found = survey(tmp_path / "first.toml")
    named = set(re.findall(r"export RECIPE --to (\S+)", DOCS["tutorial.md"])) & TOOLS.keys()
    assert named
    assert {
        TOOLS[name].why_not(found.problem, recipe) for name in named for recipe in found.recipes
    } == {None}
