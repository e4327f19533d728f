"""The pages as HTML: all text escaped, nothing from elsewhere, changes alone sent, readers kept
from buttons.
"""

from __future__ import annotations

import csv
import html
import io
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi.testclient import TestClient

from frontrunner.config.campaign import parse_campaign
from frontrunner.config.toml_file import parse_toml
from frontrunner.results.courses import Course, steps
from frontrunner.results.prior_results import REUSED, probes_made
from frontrunner.results.process_identity import this_host
from frontrunner.results.states import CampaignState
from frontrunner.results.store import open_store
from frontrunner.server.drivers import Drivers
from frontrunner.server.pages.campaigns import campaign_view, version
from frontrunner.server.pages.planning import planned_campaign
from frontrunner.spaces.document import recipe_id
from frontrunner.views.comparison import differences
from support.page_stores import SCRIPT, TABLE, page_store
from support.services import ORIGIN, bearer, settings, signed_in, tokens_of

CUT_OFF = '<span class="state cut-off">cut off</span>'


@pytest.fixture(scope="module")
def ids(folder: Path) -> list[str]:
    return page_store(folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pages")


@pytest.fixture(scope="module")
def client(folder: Path, ids: list[str]) -> Iterator[TestClient]:
    chosen = settings(folder)
    with signed_in(chosen, accept="text/html") as found:
        yield found


def shown(client: TestClient, path: str) -> str:
    answer = client.get(path)
    assert answer.status_code == 200, answer.text
    return answer.text


@pytest.fixture(scope="module")
def every_page(client: TestClient, ids: list[str]) -> dict[str, str]:
    paths = [
        "/",
        "/campaigns/first",
        "/campaigns/first/trials?page=1",
        "/campaigns/first/recipes",
        "/campaigns/first/recipes?tensor_parallel=1&sort=-tokens_per_s&columns=why,outcome&tokens_per_s_from=1",
        f"/recipes/{ids[0]}",
        "/compare",
        "/compare?campaign=first&campaign=second",
        f"/compare?recipe={ids[0]}&recipe={ids[1]}",
        "/launch",
        "/plan?model=gpt2-small&cluster=dgx-a100-80gb&nodes=1&global_batch=64&sequence_length=1024",
    ]
    return {path: shown(client, path) for path in paths}


def test_pages_escape_text_from_outside(every_page: dict[str, str]) -> None:
    for path, text in every_page.items():
        assert SCRIPT not in text, path
        assert "\x1b" not in text, path
    assert "&lt;script&gt;alert(1)" in every_page["/campaigns/first"]
    assert "\\x1b[31m" in every_page["/campaigns/first"]


def test_pages_hold_no_inline_script_or_style_and_no_foreign_link(
    every_page: dict[str, str],
) -> None:
    for path, text in every_page.items():
        assert not re.search(r"<script(?![^>]* src=\"/static/)", text), path
        assert not re.search(r"<style|\sstyle=|\son[a-z]+=", text), path
        assert not re.search(r"(src|href|action)=\"(https?:)?//", text), path


def test_static_files_exist_and_are_cached_for_ever(
    client: TestClient, every_page: dict[str, str]
) -> None:
    named = {path for text in every_page.values() for path in re.findall(r"/static/[^\"]+", text)}
    assert any("htmx" in path for path in named)
    for path in named:
        answer = client.get(path)
        assert answer.status_code == 200
        assert "immutable" in answer.headers["cache-control"]
    assert client.get("/static/style.css").status_code == 404  # its name holds its content's mark
    assert client.get("/static/..%2frendering.py").status_code == 404


def test_live_page_without_changes_is_204(client: TestClient) -> None:
    seen = re.search(r'hx-get="(/campaigns/first/live[^"]+)"', shown(client, "/campaigns/first"))
    assert seen is not None
    assert client.get(seen[1]).status_code == 204


def test_live_page_is_sent_changed_sections_only(client: TestClient) -> None:
    page = shown(client, "/campaigns/first")
    seen = re.search(r'hx-get="(/campaigns/first/live\?seen=[^"]+)"', page)
    assert seen is not None
    *known, _events = seen[1].split("~")
    answer = client.get("~".join([known[0].split("=")[0] + "=earlier", *known[1:], "older"]))
    assert re.findall(r'<section id="([a-z-]+)" hx-swap-oob="true"', answer.text) == ["events"]
    assert "hx-trigger" not in answer.headers  # no new outcome: figures stay as they are
    answer = client.get("/campaigns/first/live?seen=earlier~0~x")
    assert answer.headers["hx-trigger"] == "outcomes"
    assert answer.text.count("<section") == 7


@pytest.mark.parametrize("seen", ["", "x", "x" * 500])
def test_live_page_refuses_an_invalid_seen(client: TestClient, seen: str) -> None:
    assert client.get(f"/campaigns/first/live?seen={seen}").status_code == 422


def test_version_changes_when_a_lease_runs_out(tmp_path: Path) -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    page_store(tmp_path)
    with open_store(str(tmp_path / "store.db"), clock=lambda: start) as store:
        name = store.campaigns()[-1].name
        store.acquire_lease(store.campaign(name).id, host="gone", pid=1, duration_s=30)
        driven = version(store, name)
        assert campaign_view(store, name)["status"].driver_is_live
        assert version(store, name) == driven
    with open_store(
        str(tmp_path / "store.db"), clock=lambda: start + timedelta(seconds=31)
    ) as store:
        assert version(store, name) != driven
        view = campaign_view(store, name)
        assert (view["status"].driver_is_live, view["can_be_driven"]) == (False, True)


def test_campaign_without_its_driver_is_called_cut_off_everywhere(tmp_path: Path) -> None:
    page_store(tmp_path)
    chosen = settings(tmp_path)
    with open_store(str(tmp_path / "store.db")) as store:
        here = {"host": this_host(), "pid": os.getpid()}
        writer = store.drive(store.acquire_lease(store.campaign("second").id, **here))
        writer.set_state(CampaignState.RUNNING, reason="")
    with signed_in(chosen, accept="text/html") as client:
        listed = shown(client, "/")
        assert '<span class="state running">running</span>' in listed
        assert 'frontrunner_campaigns{state="running"} 1.0' in shown(client, "/metrics")
        again = live_of(listed)
        assert client.get(again).status_code == 204
        with open_store(
            str(tmp_path / "store.db")
        ) as store:  # as a driver leaves it that was killed, here long ago
            gone = {"host": this_host(), "pid": ended_process()}
            store.acquire_lease(store.campaign("second").id, **gone, take_over=True)
        assert CUT_OFF in shown(client, again), "the open list hears of it"
        for path in ("/", "/campaigns/second", "/compare?campaign=first&campaign=second"):
            assert CUT_OFF in shown(client, path), path
            assert "state running" not in shown(client, path), path
        metrics = shown(client, "/metrics")
        assert 'frontrunner_campaigns{state="running"} 0.0' in metrics
        assert 'frontrunner_campaigns{state="cut off"} 1.0' in metrics


def test_imported_campaign_spent_nothing_and_has_no_timeline(tmp_path: Path) -> None:
    page_store(tmp_path, ("table",), figures="imported")
    with signed_in(settings(tmp_path), accept="text/html") as client:
        text, listed = shown(client, "/campaigns/table"), shown(client, "/")
    assert "<dt>spent</dt><dd>nothing: measured elsewhere</dd>" in text
    assert "Nothing ran here" in text
    assert "chart-timeline" not in text
    assert "node-seconds" not in listed


def test_pages_show_little_node_time_in_node_seconds(every_page: dict[str, str]) -> None:
    assert "<dt>spent</dt><dd>30 node-seconds</dd>" in every_page["/campaigns/first"]
    assert '<td class="col-node_seconds_spent number">30 node-seconds</td>' in every_page["/"]


def live_of(page: str) -> str:
    """The address that a page asks again and again."""
    found = re.search(r'id="live" hidden hx-get="([^"]+)"', page)
    assert found is not None
    return html.unescape(found[1])


def ended_process() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_budget_meter_counts_as_the_driver_does(tmp_path: Path) -> None:
    page_store(tmp_path)
    with open_store(str(tmp_path / "store.db")) as store:
        campaign = store.campaign("first")
        assert [limit.used for limit in campaign_view(store, "first")["limits"]] == [4]
        writer = store.drive(store.acquire_lease(campaign.id, host="h", pid=1))
        writer.event(REUSED, trial=2, recipe="", campaign="second")
        writer.release(CampaignState.FINISHED, reason="")
        assert [limit.used for limit in campaign_view(store, "first")["limits"]] == [3]
        assert probes_made(store, store.campaign("first")) == 3


def test_charts_are_json_and_unknown_ones_refused(client: TestClient) -> None:
    found = client.get("/campaigns/first/figures/speed-memory").json()
    assert found["spec"]["layer"]
    assert "front" in found["reading"]
    assert client.get("/campaigns/first/figures/shap").status_code == 422


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("/recipes/deadbeef", 404, "No recipe id begins with &#39;deadbeef&#39;"),
        ("/campaigns/nope", 404, "There is no campaign &#39;nope&#39;"),
        ("/recipes/UPPER", 422, "Recipe_id = "),
        ("/nothing/here", 404, "Not Found"),
    ],
)
def test_refusal_is_a_page_with_a_way_back(
    client: TestClient, path: str, status: int, words: str
) -> None:
    answer = client.get(path)
    assert answer.status_code == status
    for part in (
        words,
        '<header class="top">',
        'href="/compare"',
        "/static/style",
        '<a href="/">All campaigns</a>',
    ):
        assert part in answer.text, part
    piece = client.get(path, headers={"hx-request": "true"}).text
    assert "<header" not in piece, "an open page takes the words alone"
    stranger = client.get(path, headers={"authorization": "Bearer nobody"})
    assert (stranger.status_code, words in stranger.text, "<h1>Sign in</h1>" in stranger.text) == (
        401,
        False,
        True,
    )


def listed(text: str) -> list[str]:
    """The recipes of the explorer's table, in order."""
    return re.findall(r'<tr data-recipe="([0-9a-f]+)"', text)


def test_explorer_sorts_filters_pins_and_pages_by_its_address(
    client: TestClient, ids: list[str]
) -> None:
    everything = listed(shown(client, "/campaigns/first/recipes"))
    assert everything[:3] == ids, "the fastest first"
    assert len(everything) == 4, "failed ones, too"
    assert listed(shown(client, "/campaigns/first/recipes?sort=tokens_per_s"))[:3] == ids[::-1]
    only = listed(shown(client, "/campaigns/first/recipes?outcome=crashed"))
    assert only == everything[3:]
    pinned = shown(
        client, f"/campaigns/first/recipes?outcome=crashed&pin={ids[1]},{ids[0]},cafecafecafe"
    )
    assert listed(pinned) == [ids[1], ids[0], *only]
    assert f"/compare?recipe={ids[1]}&amp;recipe={ids[0]}&amp;campaign=first" in pinned
    assert listed(shown(client, "/campaigns/first/recipes?page=999")) == everything, (
        "there is one page"
    )
    assert listed(shown(client, "/campaigns/first/recipes?tensor_parallel=77")) == []


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("tensor_paralel=2", "tensor_parallel"),
        ("sort=speed", "speed"),
        ("columns=mfu,nothing", "nothing"),
        ("tokens_per_s_from=fast", "a number of at least 0"),
        ("page=0", "a number of at least 1"),
        ("peak_memory_bytes_max_rank_to=nan", "a number of at least 0"),
    ],
)
def test_explorer_refuses_what_its_address_cannot_mean(
    client: TestClient, query: str, words: str
) -> None:
    for path in ("recipes", "recipes/points", "recipes.csv"):
        answer = client.get(f"/campaigns/first/{path}?{query}")
        assert (answer.status_code, words in html.unescape(answer.text)) == (422, True), path


def test_explorer_s_points_say_what_is_met_and_drawn(client: TestClient, ids: list[str]) -> None:
    found = client.get(
        f"/campaigns/first/recipes/points?tokens_per_s_from=30000&pin={ids[2]}"
    ).json()
    met = dict(zip(found["ids"], found["met"], strict=True))
    assert [met[one] for one in ids] == [1, 1, 0]
    assert (found["matching"], found["drawn"], found["pins"]) == (2, 2, [ids[2]])
    axes = {axis["name"]: axis for axis in found["axes"]}
    speed = dict(zip(found["ids"], axes["tokens_per_s"]["at"], strict=True))
    assert speed[ids[0]] > speed[ids[1]] > speed[ids[2]]
    assert axes["tokens_per_s"]["chosen"] == [30000, None]
    assert sum(number is None for number in axes["tokens_per_s"]["at"]) == 1
    assert len(axes["micro_batch_seqs"]["at"]) == len(found["ids"])


def test_explorer_s_csv_has_all_that_is_met(client: TestClient, ids: list[str]) -> None:
    answer = client.get("/campaigns/first/recipes.csv?sort=tokens_per_s")
    assert answer.headers["content-disposition"] == 'attachment; filename="first.csv"'
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert [row["recipe"] for row in rows[:3]] == ids[::-1]
    assert (rows[3]["outcome"], rows[3]["tokens_per_s"], rows[3]["rank"]) == ("crashed", "", "")
    assert float(rows[0]["peak_memory_bytes_max_rank"]) == 300_000_000


def test_explorer_of_a_campaign_without_trials_says_so(tmp_path: Path) -> None:
    page_store(tmp_path)
    chosen = settings(tmp_path)
    with open_store(str(tmp_path / "store.db")) as store:
        store.create_campaign(
            name="new",
            spec_json=store.campaign("first").spec_json,
            legal_recipes=1,
            problem_summary={},
        )
    with signed_in(chosen, "reader", accept="text/html") as client:
        assert "No recipe has been tried yet" in shown(client, "/campaigns/new/recipes")
        assert client.get("/campaigns/new/recipes/points").json()["axes"] == []
        assert client.get("/campaigns/nope/recipes").status_code == 404


@pytest.fixture
def labeled(tmp_path: Path) -> Iterator[TestClient]:
    """A service over three campaigns, each with labels of its own."""
    page_store(tmp_path, ("old", "middle", "new"))
    with signed_in(settings(tmp_path), accept="text/html") as client:
        own: dict[str, dict[str, object]] = {
            "old": {"tags": "paper, two words", "note": SCRIPT},
            "middle": {"tags": "paper"},
            "new": {"hidden": True},
        }
        for name, labels in own.items():
            saved = client.patch(f"/campaigns/{name}", json=labels)
            assert (saved.status_code, saved.headers["hx-redirect"]) == (204, "/")
        yield client


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("", ["middle", "old"]),
        ("hidden=yes&sort=name", ["middle", "new", "old"]),
        ("tag=paper&sort=created_at", ["old", "middle"]),
        ("search=ALERT+words", ["old"]),
        ("search=alert+other", []),
        ("state=finished&model=%3Cscript%3Ealert(1)%3C/script%3E", ["middle", "old"]),
        ("state=running", []),
    ],
)
def test_list_shows_what_its_address_states(
    labeled: TestClient, query: str, names: list[str]
) -> None:
    for path in ("/", "/campaigns"):
        text = shown(labeled, f"{path}?{query}")
        assert SCRIPT not in text
        assert re.findall(r'id="campaign-([^"]+)"', text) == names
        assert bool(names) or "No campaign meets all filters" in text


def test_list_says_how_far_a_campaign_is_and_how_its_best_rose(labeled: TestClient) -> None:
    text = shown(labeled, "/?tag=two+words")
    assert "4 of 12 probes" in text
    assert "best so far over 4 outcomes: from " in text
    assert '<path d="M0.0,' in text
    assert labeled.get("/?sort=strategy").status_code == 422
    assert "Did you mean &#39;search&#39;?" in labeled.get("/?serch=x").text


def test_campaign_is_labeled_renamed_and_deleted_from_its_page(labeled: TestClient) -> None:
    page = shown(labeled, "/campaigns/old/edit")
    assert 'value="paper, two words"' in page
    assert SCRIPT not in page
    assert "every outcome and event of old" in page
    refused = labeled.patch("/campaigns/old", json={"tags": "x" * 41})
    assert (refused.status_code, "1 to 40 printable characters" in refused.text) == (422, True)
    assert labeled.post("/campaigns/old/name", json={"name": "middle"}).status_code == 409
    renamed = labeled.post("/campaigns/old/name", json={"name": "oldest"})
    assert renamed.headers["hx-redirect"] == "/campaigns/oldest"
    assert 'value="paper, two words"' in shown(labeled, "/campaigns/oldest/edit")
    assert labeled.delete("/campaigns/oldest").headers["hx-redirect"] == "/"
    assert labeled.get("/campaigns/oldest/edit").status_code == 404


def test_compare_reports_mistakes_next_to_what_was_typed(
    client: TestClient, ids: list[str]
) -> None:
    text = shown(client, f"/compare?recipe=deadbeef&recipe={ids[0]}")
    assert "No recipe id begins with &#39;deadbeef&#39;" in text
    assert 'value="deadbeef"' in text
    assert f'value="{ids[0]}"' in text
    text = shown(client, "/compare?campaign=first&campaign=nope")
    assert "There is no campaign &#39;nope&#39;." in text, "and nothing of where the store is"
    for query in (f"recipe={ids[0]}", "campaign=first", "&".join(["campaign=first"] * 9)):
        assert "expected 2 to 8 to compare" in shown(client, f"/compare?{query}")
    assert f'value="{ids[0]}"' in shown(client, f"/compare?recipe={ids[0]}")


def test_compare_begins_with_what_differs_in_the_problems(tmp_path: Path) -> None:
    ids = page_store(tmp_path, ("first", "second"))
    larger = {**TABLE, "problem": {**TABLE["problem"], "global_batch": 32}, "budget": {"probes": 3}}
    page_store(tmp_path, ("third",), table=larger)
    with signed_in(settings(tmp_path), accept="text/html") as client:
        same = shown(client, "/compare?campaign=first&campaign=second")
        three = shown(client, "/compare?campaign=first&campaign=second&campaign=third&campaign=")
        pair = shown(
            client, f"/compare?campaign=first&recipe={ids[1]}&recipe={ids[0]}&recipe={ids[2]}"
        )
    for text in (same, three, pair):
        assert SCRIPT not in text
    assert "Nothing: they have the same model" in same
    assert "of different problems" not in same
    assert same.count('number strong">1.00 x') == 3
    assert "of different problems" in three
    rows = re.findall(
        r'<tr class="differs"><th'
        r' scope="row">([^<]+)</th><td>(\d+)</td><td>(\d+)</td><td>(\d+)</td>',
        three,
    )
    assert [one for one in rows if one[0] != "global batch: maximum"] == [
        ("global batch: minimum", "16", "16", "32"),
        ("budget: probes", "12", "12", "3"),
    ]
    assert three.count("<select") == 4, "room for one more"
    assert all("data-chart" in text for text in (same, three, pair))
    assert re.search(
        r"tokens/s over the first.{,6}s</th><td class=.strong.>1.00 x</td><td class=.strong.>[1-9]",
        pair,
    )


def test_what_differs_leaves_out_where_figures_of_clusters_come_from() -> None:
    clusters = [{"name": name, "source": f"the guide of {name}"} for name in ("a", "b")]
    assert differences([{"problem": {"cluster": one}} for one in clusters]) == (
        ("cluster: name", ("a", "b")),
    )


def test_the_curve_of_a_listed_campaign_rises_from_its_first_rate_to_its_best() -> None:
    campaign: Any = SimpleNamespace(outcomes=4, best_tokens_per_s=200.0)
    course = Course(best=[(1, 190.0), (2, 191.0), (4, 200.0)])
    assert list(steps(course, campaign)) == [(0.0, 0.0), (0.25, pytest.approx(0.1)), (0.75, 1.0)]
    assert list(steps(Course(best=[(3, 200.0)]), campaign)) == [(0.5, 1.0)]


def test_compare_of_an_empty_store_says_so(tmp_path: Path) -> None:
    with signed_in(settings(tmp_path), accept="text/html") as client:
        text = shown(client, "/compare")
    assert "There is no campaign in this store yet" in text
    assert "<select" not in text


def test_reader_sees_no_buttons_and_cannot_use_them(
    client: TestClient, folder: Path, ids: list[str]
) -> None:
    reader = bearer(tokens_of(settings(folder)).reader)
    for path in ("/", "/campaigns/first", f"/recipes/{ids[0]}"):
        text = client.get(path, headers=reader).text
        assert "hx-post" not in text
        assert "hx-post" in client.get(path).text or path == "/"
    for path in (
        "/campaigns/first/resume",
        "/campaigns/first/cancel",
        f"/recipes/{ids[0]}/replay",
        "/launch",
    ):
        assert client.post(path, headers=reader, json={"steps": 1, "campaign": ""}).status_code in (
            403,
            422,
        ), path
    assert client.post("/campaigns/first/cancel", headers=reader, json={}).status_code == 403


def test_recipe_page_shows_the_error_of_the_estimate(
    every_page: dict[str, str], ids: list[str]
) -> None:
    text = every_page[f"/recipes/{ids[0]}"]
    assert "Rank 1 of 3 in second" in text
    assert "measured in second: 105 ms" in text
    assert "How the model is cut" in text
    assert "simulation" not in text


def test_recipe_page_reconciles_the_memory_of_simulation_and_estimate(tmp_path: Path) -> None:
    ids, chosen = page_store(tmp_path, figures="simulated"), settings(tmp_path)
    with signed_in(chosen, accept="text/html") as client:
        text = shown(client, f"/recipes/{ids[0]}?campaign=first")
    assert "by rougher formulas than the estimates from here on" in text
    assert "(the simulation's: 286 MiB)" in text


def test_pages_of_a_campaign_lead_to_its_own_figures(client: TestClient, ids: list[str]) -> None:
    for name, other in (("first", "second"), ("second", "first")):
        whole = shown(client, f"/campaigns/{name}") + shown(
            client, f"/campaigns/{name}/trials?page=1"
        )
        here = f"/recipes/{ids[0]}?campaign={name}"
        links = set(re.findall(r'"(/recipes/[^"]+)"', whole))
        assert here in links
        assert all(link.endswith(f"?campaign={name}") for link in links), links
        text = shown(client, here)
        assert f"Rank 1 of 3 in {name}" in text
        assert f'/ <a href="/campaigns/{name}">{name}</a> /' in text
        assert f"measured in {name}: 105 ms" in text
        assert f'<a href="/recipes/{ids[0]}?campaign={other}">{other}</a> (rank 1 of 3)' in text
        assert f"{ids[1]}?campaign={name}" in text, "the next recipe"
        assert (
            f"frontrunner show {ids[0]} --campaign {name} --server http://127.0.0.1:8787\n" in text
        )
        both = shown(client, f"/compare?recipe={ids[0]}&recipe={ids[1]}&campaign={name}")
        assert both.count(f">in {name}<") == 2
    assert re.search(
        r'<button id="resume"[^>]* hx-disabled-elt="this" hx-sync="#notice:drop"', whole
    ), "sent once"
    for target, file in (("recipe", f"{ids[0]}.json"), ("slurm", f"{ids[0]}.slurm.sh")):
        found = client.get(f"/api/v1/recipes/{ids[0]}/export?to={target}")
        assert found.headers["content-disposition"] == f'attachment; filename="{file}"'


def test_launch_check_reports_mistakes(client: TestClient) -> None:
    def said(text: str) -> str:
        return client.post("/launch/check", json={"campaign": text}).text

    assert "is not valid TOML" in said("[model")
    assert "expected no path in a request" in said(
        "[model]\npreset='gpt2-small'\n[cluster]\nfile='/etc/passwd'\n[problem]\n[space]\n"
    )
    assert "a store of its own" in said(
        "[store]\nurl='/etc/passwd'\n[model]\n[cluster]\n[problem]\n[space]\n"
    )
    assert "unknown section [stores]" in said("[stores]\n[model]\n[cluster]\n[problem]\n[space]\n")
    assert "[data] is not accepted" in said(
        "[data]\npath='/etc/passwd'\n[model]\n[cluster]\n[problem]\n[space]\n"
    )
    assert client.post("/launch", json={"campaign": "[model"}).status_code == 422


def test_launch_goes_to_the_page_of_its_campaign(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Drivers, "launch", lambda _, table: {"campaign": table["name"], "pid": 1})
    text = (
        "name = 'made'\n[model]\npreset = 'gpt2-small'\n[cluster]\npreset = 'dgx-h100'\n"
        "[problem]\nsequence_length = 64\nglobal_batch = 8\n[space]\n"
    )
    started = client.post("/launch", json={"campaign": text})
    assert (started.status_code, started.headers["hx-redirect"]) == (204, "/campaigns/made")


def test_launch_check_reports_taken_names_and_empty_spaces(client: TestClient) -> None:
    def said(name: str, micro_batch: int) -> str:
        text = (
            f"name = '{name}'\nevaluator = 'simulated'\n[model]\npreset ="
            " 'gpt2-small'\n[cluster]\npreset = 'dgx-h100'\nnodes = 1\n[problem]\nsequence_length"
            f" = 64\nglobal_batch = 8\n[space]\nmicro_batch_seqs = [{micro_batch}]\n"
        )
        return client.post("/launch/check", json={"campaign": text}).text

    assert "are legal recipes on 8 devices" in said("another", 1)
    assert 'class="fine"' not in said("first", 1)
    assert "A campaign named first exists already" in said("first", 1)
    none = said("another", 7)
    assert 'class="fine"' not in none
    assert "The most common reason" in none
    assert "micro-batch 7" in none


@pytest.mark.parametrize(
    "value", ["[" * 50_000, "1" * 5_000, "0x" + "f" * 50_000], ids=["deep", "long", "long hex"]
)
def test_launch_check_of_extreme_toml_is_one_message(client: TestClient, value: str) -> None:
    text = f"[cluster]\n[problem]\n[space]\n[model]\nlayers = {value}\n"
    checked = client.post("/launch/check", json={"campaign": text})
    assert checked.status_code == 200
    assert "layers" in checked.text or "not usable TOML" in checked.text
    assert client.post("/launch", json={"campaign": text}).status_code == 422


WRONG = [
    ("layers=0", "layers", "at least 1"),
    ("layers=%E0%A5%A9", "layers", "a whole number"),
    ("nic_gb_per_s=nan", "nic_gb_per_s", "a finite number"),
    ("heads=7", "heads", "a divisor of hidden = 6144"),
    ("kv_heads=5", "kv_heads", "a divisor of heads = 48"),
    ("model=gpt2-small&sequence_length=99999", "sequence_length", "at most max_positions"),
    ("nodes=1000000&devices_per_node=8", "nodes", "at most 1,000,000 devices"),
    ("nodes=", "nodes", "expected a value"),
    ("model=gpt2-smal", "model", "one of gpt2-small"),
    ("device=tpu", "device", "one of a100-40gb"),
    ("file=/etc/passwd", "", "there is no field"),
]


@pytest.mark.parametrize(("asked", "field", "message"), WRONG)
def test_plan_form_reports_mistakes_at_their_field(
    client: TestClient, asked: str, field: str, message: str
) -> None:
    for path in ("/plan", "/plan/answer"):
        text = shown(client, f"{path}?{asked}")
        place = f'id="error-{field}"' if field else 'id="plan-state"'
        said = re.search(rf"{place}[^>]*>([^<]*)<", text)
        assert said, path
        assert message in said[1].replace("&#39;", "'"), said[1]
        assert "Fastest recipes" not in text
    assert client.get(f"/plan/answer?{asked}").headers["hx-reswap"] == "none", (
        "what was answered before stays"
    )


def test_plan_takes_any_model_and_machine(client: TestClient) -> None:
    shape = (
        "layers=6&hidden=512&heads=8&kv_heads=2&ffn_hidden=1024"
        "&vocabulary=1000&activation=swiglu&positions=rotary"
    )
    machine = (
        "nodes=1&devices_per_node=2&device=h100-80gb&memory_gib_per_device=40"
        "&node_gb_per_s=7.5&nics_per_node=1"
    )
    asked = f"{shape}&{machine}&sequence_length=4096&global_batch=16"
    answer = client.get(f"/plan/answer?model=gpt2-small&{asked}")
    assert (
        "6 layers, hidden 512, 8 heads with 2 for keys and values, FFN 1,024 (swiglu), vocabulary"
        " 1,000" in answer.text
    )
    assert "1 x 2 x h100-80gb of 40.00 GiB" in answer.text
    assert "within a node 7.5 GB/s" in answer.text
    assert "device pair 200 GB/s" in answer.text, "of the preset, whose links it keeps"
    again = client.get(answer.headers["hx-replace-url"])
    assert 'value="512"' in again.text, "the address in the browser asks the same again"


SMALL_PLAN = "model=gpt2-small&cluster=dgx-a100-80gb&nodes=1&global_batch=64&sequence_length=1024"


def text_of_launch(client: TestClient, query: str) -> str:
    found = re.search(
        r"<textarea[^>]*>(.*?)</textarea>", shown(client, f"/launch?{query}"), re.DOTALL
    )
    assert found is not None
    return html.unescape(found[1])


def test_plan_s_rows_open_to_their_step_and_fill_the_launch_form(client: TestClient) -> None:
    plan = shown(client, f"/plan?{SMALL_PLAN}")
    rows = [html.unescape(path) for path in re.findall(r'href="(/plan/recipe[^"]+)"', plan)]
    assert len(rows) > 12, "the fastest, and the best on other numbers of nodes"
    assert 'id="chart-scaling"' in plan
    for path in (rows[0], rows[-1]):
        page = shown(client, path)
        chosen = path.rpartition("=")[2]
        assert f'<span class="chip">{chosen}</span>' in page
        for part in ("chart-step", "chart-memory", "chart-cut", 'id="step"'):
            assert part in page
        source = re.search(r'data-source="([^"]+)"', page)
        assert source is not None
        step = client.get(html.unescape(source[1])).json()
        assert (step["recipe"], step["is_own"]) == (chosen, True)
        text = text_of_launch(client, path.partition("?")[2])
        checked = client.post("/launch/check", json={"campaign": text}).text
        assert (
            "1 of the space&#39;s 1 points are legal recipes" in checked
            or "1 of the space's 1 points" in checked
        )
        launched = parse_campaign(parse_toml(text, "it"), default_name="it", base=Path()).spec
        (recipe,) = launched.survey().recipes
        assert recipe_id(launched.problem, recipe) == chosen
        assert launched.budget.probes == 1
    address = f"/plan/step?{SMALL_PLAN}&recipe={rows[0].rpartition('=')[2]}"
    assert client.get(f"{address}&micro_batch_seqs=1").json()["chosen"]["micro_batch_seqs"] == 1
    assert client.get(f"{address}&micro_batch_seqs=x").status_code == 422
    assert client.get(f"/plan/recipe?{SMALL_PLAN}&recipe=ffffffff").status_code == 404
    assert rows[0].rpartition("=")[2] in shown(client, f"/plan/recipe?{SMALL_PLAN}"), "the fastest"
    assert client.get("/launch?nodes=0").status_code == 422


@pytest.mark.parametrize(
    "query",
    [SMALL_PLAN, SMALL_PLAN + "&hidden=1024&heads=16&node_gb_per_s=100&memory_gib_per_device=40"],
)
def test_plan_s_search_fills_the_launch_form(client: TestClient, query: str) -> None:
    text = text_of_launch(client, query)
    launched = parse_campaign(parse_toml(text, "it"), default_name="it", base=Path()).spec
    planned = planned_campaign(dict(pair.split("=") for pair in query.split("&")))
    assert (launched.problem, launched.space) == (planned.problem, planned.space)
    assert ('preset = "gpt2-small"' in text) == (query == SMALL_PLAN)


def test_plan_form_shows_the_values_of_a_preset(client: TestClient) -> None:
    text = shown(client, "/plan/fields/model?model=llama-3-8b&layers=40")
    assert 'value="40"' in text
    assert 'placeholder="4096"' in text
    assert client.get("/plan/fields/training").status_code == 422


def test_plan_s_pages_state_what_their_times_are_worth(client: TestClient) -> None:
    query = f"{SMALL_PLAN}&code=unknown"
    plan = shown(client, f"/plan?{query}")
    recipe = shown(client, f"/plan/recipe?{query}")
    for page in (plan, recipe):
        assert "were off by" in page, "what published steps measured"
        assert "Training code assumed: unknown" in page
    assert re.search(r"[\d.]+ m?s per step, in 95 of 100 cases [\d.]+ m?s to [\d.]+ m?s", recipe)
    assert re.search(r"<span>step, 95 %: [\d.]+ m?s to [\d.]+ m?s</span>", recipe)
    assert 'code = "unknown"' in text_of_launch(client, query)
    blind = SMALL_PLAN.replace("dgx-a100-80gb", "dgx-1-v100") + "&precision=bf16"
    plan, recipe = shown(client, f"/plan?{blind}"), shown(client, f"/plan/recipe?{blind}")
    for page in (plan, recipe):
        assert "No time or rate here is an estimate" in page
        assert not re.search(
            r"\d m?s\b|TFLOPS|tokens/s</th>|id=.step.|chart-(step|scaling)|efficiency", page
        )
    assert "First recipes that fit" in plan


def test_plan_tries_more_nodes_until_a_recipe_fits(client: TestClient) -> None:
    large = (
        "/plan/answer?model=frontier-175b&cluster=frontier&nodes=1"
        "&global_batch=512&sequence_length=2048"
    )
    text = shown(client, large)
    assert "On 8 nodes one does: see below." in text
    assert text.count("<tr ") + text.count("<tr>") >= 5, (
        "a header, the counts of 1, 2 and 4 nodes, and that of 8"
    )
    text = " ".join(shown(client, f"{large}&memory_gib_per_device=2").split())
    assert "No recipe fits. Nor does one on up to 64 nodes" in text
    assert "see below" not in text


def test_planned_campaign_with_another_device_has_its_figures() -> None:
    preset, other = (
        planned_campaign(typed).problem.cluster for typed in ({}, {"device": "h100-80gb"})
    )
    assert (other.peak_tflops.bf16, other.memory_gib_per_device) == (989.4, 79.6)
    assert (other.devices_per_node, other.links) == (preset.devices_per_node, preset.links)
    assert other.matmul_share != preset.matmul_share, (
        "what was measured of the other machine's devices is not its own"
    )


def test_pages_load_neither_torch_nor_search_libraries(folder: Path, ids: list[str]) -> None:
    script = f"""
import sys
from fastapi.testclient import TestClient
from pathlib import Path
from frontrunner.server.app import create_app
from frontrunner.server.settings import ServiceSettings
from frontrunner.server.auth import read_tokens
tokens = Path({str(folder / "tokens" / "tokens.json")!r})
app = create_app(ServiceSettings(store={str(folder / "store.db")!r}, token_file=tokens))
with TestClient(app, base_url={ORIGIN!r}) as client:
    client.headers["authorization"] = "Bearer " + read_tokens(tokens).operator
    for path in ("/", "/campaigns/first", "/recipes/{ids[0]}", "/campaigns/first/figures/history"):
        assert client.get(path).status_code == 200, path
print(sorted({{"torch", "optuna", "deephyper", "sklearn"}} & set(sys.modules)))
"""
    found = subprocess.run(
        [sys.executable, "-P", "-W", "ignore", "-c", script],
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.strip() == "[]"
