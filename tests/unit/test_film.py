"""The film of a search: outcomes in their order over two dimensions, beside what was expected of
them.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest
from PIL import Image

from frontrunner.results.outcome import Failure, FailureKind
from frontrunner.results.predictions import PROPOSED, Belief, Expected
from frontrunner.results.store import open_store
from frontrunner.search.campaign_setup import problem_summary
from frontrunner.spaces.document import recipe_id
from frontrunner.spaces.errors import InvalidInput, NothingLegal
from frontrunner.spaces.validation import dump_json
from frontrunner.store import LocalStore
from frontrunner.views import film as filming
from frontrunner.views.film import believed_at, in_words, write_film
from support.charted import measured, spec

pytestmark = pytest.mark.unit
LOST = Failure(kind=FailureKind.LOST, message="", node_seconds=1.0)
FULL = Failure(kind=FailureKind.OUT_OF_MEMORY, message="", node_seconds=1.0)
EXPECTED = Expected(tokens_per_s=450.0, chance=0.9, expected_improvement=0.1)
BELIEFS = {
    0: Belief(x="tensor_parallel", y="micro_batch_seqs", cells=((1, 1, 450.0), (2, 4, 700.0))),
    4: Belief(x="tensor_parallel", y="micro_batch_seqs", cells=((1, 1, 300.0), (2, 2, 480.0))),
}
"""Over the map, by the places of the recipes that were then chosen."""


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    """Three recipes: one lost and then slow, one out of memory, one fast; a forecast of the first
    and the last.
    """
    campaign = spec(
        space={"tensor_parallel": [1, 2], "micro_batch_seqs": [1, 2, 4], "pipeline_parallel": [1]}
    )
    recipes = campaign.space.survey(campaign.problem).recipes
    with open_store(str(tmp_path / "store.db"), create=True) as opened:
        made = opened.create_campaign(
            name="tiny",
            spec_json=dump_json(campaign),
            legal_recipes=len(recipes),
            problem_summary=problem_summary(campaign),
        )
        writer = opened.drive(opened.acquire_lease(made.id, host="here", pid=1))
        for place, outcomes in ((0, [LOST, measured(300.0)]), (1, [FULL]), (4, [measured(500.0)])):
            trial = writer.propose(recipe_id(campaign.problem, recipes[place]), recipes[place])
            if place != 1:
                writer.event(
                    PROPOSED, **asdict(EXPECTED), belief=asdict(BELIEFS[place]), trial=trial.number
                )
            for number, outcome in enumerate(outcomes, start=1):
                attempt = writer.start_attempt(trial, run_folder=f"/runs/{place}")
                writer.finish_attempt(attempt, outcome, retry=number < len(outcomes))
    return LocalStore(str(tmp_path / "store.db"))


def test_outcomes_have_their_places_the_best_so_far_and_the_stored_expectation_once(
    store: LocalStore,
) -> None:
    found = store.film()

    assert (found.x, found.y) == ("tensor_parallel", "micro_batch_seqs")
    assert (found.x_values, found.y_values) == ((1, 2), (1, 2, 4))
    assert [(shot.outcome, shot.tokens_per_s, shot.best_tokens_per_s) for shot in found.shots] == [
        ("lost", None, None), ("measured", 300.0, 300.0), ("out-of-memory", None, 300.0),
        ("measured", 500.0, 500.0),
    ]  # fmt: skip
    assert [shot.expected for shot in found.shots] == [EXPECTED, None, None, EXPECTED]
    assert found.has_beliefs
    assert found.outcomes == 4
    assert in_words(found.shots[-1]) == "500 tokens/s (expected 450, chance to run 90 %)"
    turned = store.film(x="micro_batch_seqs")
    assert [(shot.x, shot.y) for shot in turned.shots] == [(shot.y, shot.x) for shot in found.shots]


def test_the_map_has_what_was_expected_at_its_places_when_the_last_recipe_was_chosen(
    store: LocalStore,
) -> None:
    found = store.film()

    assert found.believed == ("tensor_parallel", "micro_batch_seqs")
    assert [shot.belief for shot in found.shots] == [
        ((450.0, None), (None, None), (None, 700.0)), None, None,
        ((300.0, None), (None, 480.0), (None, None)),
    ]  # fmt: skip
    assert believed_at(found, 3) == {(1, 1): 450.0, (2, 4): 700.0}
    assert believed_at(found, 4) == {(1, 1): 300.0, (2, 2): 480.0}
    assert believed_at(store.film(x="micro_batch_seqs"), 4) == {(1, 1): 300.0, (2, 2): 480.0}


def test_a_map_of_other_dimensions_has_outcomes_alone(tmp_path: Path, store: LocalStore) -> None:
    with open_store(str(tmp_path / "store.db")) as opened:
        campaign = opened.campaign("tiny")
        writer = opened.drive(opened.acquire_lease(campaign.id, host="here", pid=1, take_over=True))
        other = asdict(Belief(x="tensor_parallel", y="recompute", cells=((1, "none", 9.0),)))
        writer.event(PROPOSED, **asdict(EXPECTED), belief=other, trial=2)
    assert [shot.belief is None for shot in store.film().shots] == [False, True, True, False]


def test_a_film_pools_repeats_as_the_ranking_does(store: LocalStore, tmp_path: Path) -> None:
    with open_store(str(tmp_path / "store.db")) as opened:
        campaign = opened.campaign("tiny")
        writer = opened.drive(opened.acquire_lease(campaign.id, host="here", pid=1, take_over=True))
        fastest = writer.repeat(opened.trials(campaign.id)[-1])
        attempt = writer.start_attempt(fastest, run_folder="/runs/4")
        writer.finish_attempt(attempt, measured(400.0), retry=False)

    last = store.film().shots[-1]

    assert (last.tokens_per_s, last.pooled_tokens_per_s, last.best_tokens_per_s) == (
        400.0,
        450.0,
        450.0,
    )
    assert store.best("tiny")[0].standing.tokens_per_s == pytest.approx(450.0)


def test_dimensions_that_do_not_vary_are_refused(store: LocalStore) -> None:
    with pytest.raises(
        InvalidInput,
        match=r'y = "pipeline_parallel": expected a dimension that the campaign varies',
    ):
        store.film(y="pipeline_parallel")
    with pytest.raises(InvalidInput, match="another dimension than x"):
        store.film(x="tensor_parallel", y="tensor_parallel")


def test_a_gif_has_a_picture_per_outcome_and_is_whole_or_not_there(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "films"
    folder.mkdir()

    assert write_film(store.film(), folder / "x.gif") == 4

    with Image.open(folder / "x.gif") as image:
        pictures = set()
        for number in range(getattr(image, "n_frames", 1)):
            image.seek(number)
            pictures.add(image.convert("RGB").tobytes())
    assert len(pictures) == 4
    monkeypatch.setattr(filming, "MOST_FRAMES", 2)
    assert write_film(store.film(), folder / "x.gif") == 2
    assert [path.name for path in folder.iterdir()] == ["x.gif"]


def test_files_that_cannot_be_written_are_refused_before_anything_is(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InvalidInput, match="needs ffmpeg, which is not on PATH") as refused:
        write_film(store.film(), tmp_path / "x.mp4")
    assert "x.gif" in str(refused.value.hint)
    with pytest.raises(InvalidInput, match=r"ends with \.gif or \.mp4"):
        write_film(store.film(), tmp_path / "x.png")
    empty = spec(name="empty", space={"tensor_parallel": [1, 2], "micro_batch_seqs": [1, 2]})
    with open_store(str(tmp_path / "store.db")) as opened:
        opened.create_campaign(
            name="empty",
            spec_json=dump_json(empty),
            legal_recipes=4,
            problem_summary=problem_summary(empty),
        )
    with pytest.raises(NothingLegal, match="has no outcome to film") as refused_empty:
        write_film(store.film("empty"), tmp_path / "x.gif")
    assert refused_empty.value.hint == "frontrunner status empty"
