"""The step simulator of a recipe's page: what step.js is sent."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from frontrunner.server.pages.steps import NAMES, PARTS, left_out, shares
from frontrunner.store import LocalStore
from support.page_stores import page_store
from support.services import bearer, browser, settings, tokens_of

pytestmark = pytest.mark.unit


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("steps")


@pytest.fixture(scope="module")
def recipe(folder: Path) -> str:
    return page_store(folder)[0]


@pytest.fixture(scope="module")
def client(folder: Path, recipe: str) -> Iterator[TestClient]:
    chosen = settings(folder)
    with browser(chosen) as found:
        found.headers |= bearer(tokens_of(chosen).reader)
        yield found


def test_a_recipes_page_has_its_step_and_the_step_its_whole_time(
    client: TestClient, recipe: str, folder: Path
) -> None:
    page = client.get(f"/recipes/{recipe}?campaign=first").text
    source = page.partition('data-source="')[2].partition('"')[0]
    assert source == f"/recipes/{recipe}/step?campaign=first"

    sent = client.get(source).json()

    own = LocalStore(str(folder / "store.db")).step(recipe)
    assert sent["is_own"]
    assert sent["step_s"] == pytest.approx(own.step_time_s)
    for rank, found in zip(sent["ranks"], own.ranks, strict=True):
        assert len(rank["actions"]) == len(found.actions)
        assert (rank["actions"][0][3], rank["actions"][-1][4]) == (0, PARTS)
        assert max(held for _, held in rank["memory"]) == rank["peak"]
    assert sent["chosen"]["pipeline_parallel"] == 1
    assert sent["choices"]["schedule"] == ["none"]
    assert sent["choices"]["virtual_stages"] == [1]
    assert len(sent["choices"]["pipeline_parallel"]) > 1


def test_a_variant_is_sent_with_its_own_groups_and_an_illegal_one_is_refused_with_the_reason(
    client: TestClient, recipe: str
) -> None:
    address = f"/recipes/{recipe}/step?campaign=first"
    sent = client.get(f"{address}&pipeline_parallel=2").json()
    assert not sent["is_own"]
    assert [rank["rank"] for rank in sent["ranks"]] == [0, 1]
    assert [
        (group["label"], group["ranks"]) for group in sent["groups"] if group["label"] == "PP"
    ] == [("PP", 2)]
    for name, values in sent["choices"].items():
        for value in values:
            taken = client.get(f"{address}&pipeline_parallel=2&{name}={value}").json()
            assert taken["chosen"][name] == value

    refused = client.get(f"{address}&pipeline_parallel=3")

    assert refused.status_code == 422
    assert "pipeline_parallel=3 is not legal" in refused.json()["detail"]


def test_of_a_long_step_the_first_and_last_actions_are_sent(folder: Path, recipe: str) -> None:
    ranks = (
        LocalStore(str(folder / "store.db"))
        .step(recipe, pipeline_parallel=2, micro_batch_seqs=1)
        .ranks
    )
    count = sum(len(rank.actions) for rank in ranks)

    assert left_out(ranks, most=count) is None
    gap = left_out(ranks, most=count // 2)

    assert gap is not None
    inside = sum(gap[0] < one.begin_s < gap[1] for rank in ranks for one in rank.actions)
    assert count // 2 - 4 <= inside <= count // 2
    for rank in ranks:
        found = shares(rank, gap)
        assert sum(share for *_, share in found) == pytest.approx(1.0, abs=1e-4)
        waits = sum(share for kind, _, share in found if NAMES[kind] == "bubble") * (
            gap[1] - gap[0]
        )
        before = sum(
            min(one.end_s, gap[0]) - min(one.begin_s, gap[0])
            for one in rank.actions
            if one.kind == "bubble"
        )
        after = sum(
            max(one.end_s, gap[1]) - max(one.begin_s, gap[1])
            for one in rank.actions
            if one.kind == "bubble"
        )
        assert before + waits + after == pytest.approx(rank.bubble_s, abs=1e-4 * (gap[1] - gap[0]))
