"""One recipe taken apart: its parts add up, its ranks are the pipeline's, and what was measured
stands beside it.
"""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

import frontrunner
from frontrunner.cli.main import frontrunner as command
from frontrunner.cli.options import recipe_from as named
from frontrunner.config.campaign import read_campaign_file
from frontrunner.evaluators.analytic.breakdown import Breakdown, breakdown
from frontrunner.recipe_actions import one_recipe, recipe_by_id
from frontrunner.results.store import open_store
from frontrunner.spaces.document import recipe_id, recipe_ids
from frontrunner.spaces.errors import InvalidInput, NotFound
from frontrunner.spaces.recipe import Recipe
from frontrunner.spaces.stages import layers_of_ranks
from frontrunner.spaces.validation import dump_json
from support.analytic import PROBLEM, recipe
from support.campaigns import spec_of, tiny, write_toml
from support.rankings import measurement
from support.terminals import run_on_terminal

EXAMPLE = Path(__file__).parents[2] / "examples" / "frontier-22b.toml"
CHOICES: dict[str, object] = {
    "tensor_parallel": 8,
    "pipeline_parallel": 4,
    "micro_batch_seqs": 2,
    "schedule": "1f1b",
    "virtual_stages": 1,
    "sharding": "zero-1",
    "recompute": "none",
    "sequence_parallel": True,
}
RECIPES = {
    "no pipeline": recipe(),
    "two ranks": recipe(pipeline_parallel=2, schedule="1f1b"),
    "four ranks": recipe(pipeline_parallel=4, schedule="1f1b", accumulation=8, micro_batch_seqs=2),
    "uneven": recipe(pipeline_parallel=4, schedule="1f1b", layers_per_stage=(10, 13, 14, 11)),
    "V-shaped": recipe(pipeline_parallel=2, virtual_stages=2, schedule="zbv", accumulation=4),
}


@pytest.fixture
def found() -> Breakdown:
    return frontrunner.explain(CHOICES, campaign=EXAMPLE)


@pytest.mark.parametrize("name", RECIPES)
def test_the_fullest_of_the_ranks_is_the_estimate_s_peak(name: str) -> None:
    found = breakdown(RECIPES[name], PROBLEM)
    peaks = [rank.peak_memory_bytes for rank in found.ranks]
    assert max(peaks) == pytest.approx(found.estimate.peak_memory_bytes, abs=2)
    assert found.memory_margin_bytes == 80 * 2**30 - found.estimate.peak_memory_bytes


@pytest.mark.parametrize("name", RECIPES)
def test_a_step_is_the_busiest_rank_s_work_and_what_it_waits_for(name: str) -> None:
    found = breakdown(RECIPES[name], PROBLEM)
    parts = found.estimate.step_parts_s
    within = ("compute", "recompute", "tensor_parallel", "context_parallel")
    waits = sum(seconds for part, seconds in parts.items() if part not in within)
    assert max(rank.busy_s for rank in found.ranks) + waits == pytest.approx(
        found.estimate.step_time_s
    )


@pytest.mark.parametrize("name", RECIPES)
def test_ranks_hold_the_layers_that_the_trainer_gives_them(name: str) -> None:
    held = layers_of_ranks(RECIPES[name], len(PROBLEM.model.layers))
    ranks = breakdown(RECIPES[name], PROBLEM).ranks
    assert ranks[0].layers == held[0]
    if len(ranks) > 1:
        assert ranks[-1].layers == held[-1]
    if len(ranks) == 3:
        assert ranks[1].layers == max(held[1:-1])


def test_only_the_head_s_rank_holds_logits(found: Breakdown) -> None:
    assert [rank.holds for rank in found.ranks] == ["embedding", "layers", "head"]
    assert [rank.memory_parts_bytes["logits"] > 0 for rank in found.ranks] == [False, False, True]


def test_what_the_formulas_do_not_know_is_refused() -> None:
    with pytest.raises(InvalidInput, match="the formulas do not know offload to NVMe"):
        breakdown(recipe(offload="nvme"), PROBLEM)


def test_a_recipe_of_a_file_is_found_by_the_beginning_of_its_id() -> None:
    spec = spec_of(tiny())
    for wanted in spec.space.survey(spec.problem).recipes:
        assert recipe_by_id(spec, recipe_id(spec.problem, wanted)[:8].upper()) == wanted
    assert list(recipe_ids(spec.problem, spec.survey().recipes)) == [
        recipe_id(spec.problem, one) for one in spec.survey().recipes
    ]
    with pytest.raises(
        NotFound, match="9 legal recipes of the space has an id that begins with '000000000000'"
    ) as none:
        recipe_by_id(spec, "000000000000")
    assert none.value.hint == "to list them: frontrunner plan FILE", "few commands take choices"
    with pytest.raises(InvalidInput, match="at least the first 4 characters"):
        recipe_by_id(spec, "abc")


@pytest.mark.parametrize(
    ("words", "file", "meant"),
    [
        (("3f9c",), None, "3f9c"),
        (("3F9C01d2ab4e",), EXAMPLE, "3F9C01d2ab4e"),
        (("compile=true", "tensor_parallel=8", "sharding=zero-1"), EXAMPLE,
         {"compile": True, "tensor_parallel": 8, "sharding": "zero-1"}),
        ((), EXAMPLE, {}),
    ],
)  # fmt: skip
def test_words_name_a_recipe(words: tuple[str, ...], file: Path | None, meant: object) -> None:
    assert named(words, file) == meant


@pytest.mark.parametrize(
    ("words", "file", "message"),
    [
        ((), None, "expected the id of a stored recipe$"),
        (("zero-1",), EXAMPLE, "'zero-1' is not a choice"),
        (
            ("tensor_parallel=2", "tensor_parallel=4"),
            EXAMPLE,
            "tensor_parallel is chosen more than once",
        ),
    ],
)
def test_words_that_name_none(words: tuple[str, ...], file: Path | None, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        named(words, file)


def stored(path: Path, recipe: Recipe, *, figures: str, name: str) -> None:
    """A store with a campaign of the example that measured, or simulated, this recipe: 20 s a step,
    7 GiB.
    """
    spec = read_campaign_file(EXAMPLE).spec
    with open_store(str(path), create=True) as store:
        campaign = store.create_campaign(
            name=name,
            spec_json=dump_json(spec),
            legal_recipes=1,
            problem_summary={"figures": figures},
        )
        writer = store.drive(
            store.acquire_lease(campaign.id, host="h.example", pid=1, take_over=True)
        )
        attempt = writer.start_attempt(
            writer.propose(recipe_id(spec.problem, recipe), recipe), run_folder="/r"
        )
        writer.finish_attempt(attempt, measurement((19.9, 20.0, 20.1), 7 * 2**30), retry=False)


def test_what_a_store_measured_stands_beside_the_estimate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = read_campaign_file(EXAMPLE).spec
    chosen, store = one_recipe(spec, CHOICES), tmp_path / "s.db"
    stored(store, chosen, figures="measured", name="older")
    stored(store, chosen, figures="simulated", name="newer")

    found = frontrunner.explain(recipe_id(spec.problem, chosen), store=str(store))

    assert found.measured is not None
    assert (found.measured.campaign, found.measured.step_time_s) == ("older", 20.0)
    assert found.step_time_error == pytest.approx(found.estimate.step_time_s / 20.0 - 1)
    held = found.estimate.peak_memory_bytes - found.estimate.memory_parts_bytes["runtime"]
    assert found.peak_memory_error == pytest.approx(held / (7 * 2**30) - 1)
    command(["explain", found.estimate.recipe_id, "--store", str(store)], standalone_mode=False)
    text = capsys.readouterr().out
    assert "measured by campaign older of " in text
    assert "in what tensors hold of the memory" in text
    assert "20 s" in text
    assert (
        frontrunner.explain(CHOICES, campaign=EXAMPLE, store=str(store)).measured == found.measured
    )


def test_a_recipe_that_only_another_problem_measured_is_unmatched_with_the_difference(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = read_campaign_file(EXAMPLE).spec
    chosen, store = one_recipe(spec, CHOICES), tmp_path / "s.db"
    stored(store, chosen, figures="simulated", name="simulated")
    simulated = frontrunner.explain(CHOICES, campaign=EXAMPLE, store=str(store))
    assert simulated.measured is None
    assert "only simulated, by campaign simulated: 410 tokens/s, peak 7.00 GiB" in str(
        simulated.unmatched
    )
    longer = tmp_path / "longer.toml"
    longer.write_text(
        EXAMPLE.read_text().replace("sequence_length = 2048", "sequence_length = 1024")
    )

    alone = frontrunner.explain(CHOICES, campaign=longer, store=str(store))
    assert alone.unmatched == "the store has no measurement of this recipe"
    stored(store, chosen, figures="imported", name="table")
    found = frontrunner.explain(CHOICES, campaign=longer, store=str(store))
    another = "1 campaign measured its choices, with another problem.sequence_length"
    assert found.unmatched == f"{alone.unmatched}; {another}"
    command(
        ["explain", recipe_id(spec.problem, chosen), "--store", str(store)], standalone_mode=False
    )
    assert "measured elsewhere, and imported as table of " in capsys.readouterr().out


def test_a_recipe_that_was_never_measured_is_exported_from_its_campaign_file(
    tmp_path: Path,
) -> None:
    spec, store = read_campaign_file(EXAMPLE).spec, tmp_path / "s.db"
    chosen = one_recipe(spec, CHOICES)
    identity = recipe_id(spec.problem, chosen)
    stored(
        store,
        one_recipe(spec, CHOICES | {"micro_batch_seqs": 1}),
        figures="measured",
        name="another",
    )
    text = frontrunner.export(identity, to="megatron-lm", campaign=EXAMPLE, store=str(store))
    assert "--tensor-model-parallel-size 8" in text
    assert "# never measured" in text
    stored(store, chosen, figures="measured", name="c")
    text = frontrunner.export(CHOICES, to="megatron-lm", campaign=EXAMPLE, store=str(store))
    assert "measured in campaign c, by frontrunner's torch engine" in text
    with pytest.raises(InvalidInput, match="needs the campaign file"):
        frontrunner.export(CHOICES, to="megatron-lm", store=str(store))


def test_without_a_store_there_is_just_the_estimate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FRONTRUNNER_STORE", raising=False)
    assert frontrunner.explain(CHOICES, campaign=EXAMPLE).measured is None
    spec = read_campaign_file(EXAMPLE).spec
    stored(tmp_path / "s.db", one_recipe(spec, CHOICES), figures="measured", name="c")
    identity = recipe_id(spec.problem, one_recipe(spec, CHOICES))
    (tmp_path / "r.json").write_text(frontrunner.export(identity, to="recipe", store="s.db"))
    assert frontrunner.explain("r.json", store="s.db") == frontrunner.explain(
        identity, store="s.db"
    )
    (tmp_path / "s.db").unlink()
    assert frontrunner.explain("r.json").measured is None
    assert frontrunner.plan_dryrun("r.json").recipe_id == identity
    for chosen, campaign in ((CHOICES, EXAMPLE), ("r.json", None)):
        with pytest.raises(NotFound, match="there is no store"):
            frontrunner.explain(chosen, campaign=campaign, store="other.db")
    with pytest.raises(NotFound, match=r"there is no folder .*/no to write x\.svg to"):
        command(["explain", "r.json", "--svg", "no/x.svg"], standalone_mode=False)
    assert [path.name for path in tmp_path.iterdir()] == ["r.json"]


def test_the_command_answers_people_and_programs(
    tmp_path: Path, found: Breakdown, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [f"{key}={str(value).lower()}" for key, value in CHOICES.items()]
    arguments = ["explain", "--campaign", str(EXAMPLE), *words]
    command([*arguments, "--svg", str(tmp_path / "x.svg")], standalone_mode=False)
    text = capsys.readouterr().out
    assert "limited by" in text
    assert "embedding" in text
    picture = ET.parse(tmp_path / "x.svg").getroot()
    assert picture.tag == "{http://www.w3.org/2000/svg}svg"
    assert found.estimate.recipe_id in "".join(picture.itertext())
    command([*arguments, "--json"], standalone_mode=False)
    answer = json.loads(capsys.readouterr().out)
    assert answer["estimate"]["recipe_id"] == found.estimate.recipe_id
    assert sum(answer["estimate"]["step_parts_s"].values()) == pytest.approx(
        found.estimate.step_time_s
    )
    assert answer["ranks"][2]["memory_parts_bytes"]["logits"] > 0
    assert answer["memory_margin_bytes"] == found.memory_margin_bytes


@pytest.mark.parametrize("arguments", [["explain", "--campaign", "x.toml"], ["advise", "x.toml"]])
def test_a_narrow_terminal_wraps_nothing_but_commands_to_copy(
    arguments: list[str], tmp_path: Path
) -> None:
    write_toml(tmp_path / "x.toml", tiny(space={"pipeline_parallel": [2], "tensor_parallel": [1]}))
    chosen = ["micro_batch_seqs=1"] if arguments[0] == "explain" else []
    screen, status = run_on_terminal(tmp_path, *arguments, *chosen, columns=80, rows=200)
    long = [
        line
        for line in screen.lines
        if line.lstrip().startswith("frontrunner ") and len(line) == 80
    ]
    assert (status, screen.wraps) == (0, len(long))
