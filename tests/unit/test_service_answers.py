"""What the service answers: the same as the commands, in pages, as streams, as metrics; and nothing
of other files.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from frontrunner import api
from frontrunner.config.campaign import keys_of
from frontrunner.evaluators.runs.files import read_end
from frontrunner.results.outcome import Failure, FailureKind
from frontrunner.results.states import CampaignState
from frontrunner.results.store import open_store
from frontrunner.server.app import metrics
from frontrunner.server.errors import STATUS_OF, TooMany, from_problem, to_problem
from frontrunner.server.requests import FORBIDDEN_KEYS, SECTIONS
from frontrunner.server.service import response_of
from frontrunner.spaces.errors import FrontrunnerError, InvalidInput, NameTaken
from frontrunner.spaces.validation import dump_json
from frontrunner.store import Cursor, Follower, parse_cursor
from frontrunner.text import as_plain
from support.campaigns import spec_of, tiny
from support.rankings import measurement, record, start
from support.services import BODY, bearer, browser, filled, settings, signed_in, tokens_of


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return filled(tmp_path_factory.mktemp("answers"))


@pytest.fixture(scope="module")
def client(store: Path) -> Iterator[TestClient]:
    with signed_in(settings(store.parent)) as found:
        yield found


def ask(client: TestClient, path: str) -> Any:
    found = client.get(f"/api/v1{path}")
    assert found.status_code == 200, found.text
    return found.json()


def test_answers_are_what_the_commands_print(client: TestClient, store: Path) -> None:
    name, at = "first", str(store)
    assert ask(client, "/campaigns")["items"] == as_plain(api.campaigns(store=at))
    assert ask(client, f"/campaigns/{name}") == as_plain(api.status(name, store=at))
    assert ask(client, f"/campaigns/{name}/best?by=memory&top=2") == as_plain(
        api.best(name, by="memory", top=2, store=at)
    )
    assert ask(client, f"/campaigns/{name}/pareto") == as_plain(api.pareto(name, store=at))
    assert ask(client, f"/campaigns/{name}/failures") == as_plain(api.failures(name, store=at))
    recipe = api.best(name, store=at)[0].recipe_id
    assert ask(client, f"/recipes/{recipe}") == as_plain(api.show(recipe, store=at))


def test_recipes_come_filtered_and_in_pages_with_their_ranks(client: TestClient) -> None:
    everything = ask(client, "/campaigns/first/recipes")
    assert [item["rank"] for item in everything["items"]] == [1, 2, 3]
    second = ask(client, "/campaigns/first/recipes?page=2&page_size=1")
    assert second == {"items": everything["items"][1:2], "total": 3}
    some = ask(
        client,
        "/campaigns/first/recipes?micro_batch_seqs=4&tensor_parallel=2&sequence_parallel=false",
    )
    assert some == {"items": everything["items"][2:], "total": 1}
    assert ask(client, "/campaigns/first/recipes?tensor_parallel=4") == {"items": [], "total": 0}
    named = ask(
        client, "/campaigns/first/recipes?sharding=none&data_parallel=4&offload=none&compile=false"
    )
    assert named["items"] == everything["items"]
    assert ask(client, "/campaigns/first/recipes?sharding=zero-1")["total"] == 0
    small = ask(client, "/campaigns/first/recipes?max_memory_gb=0.000004")
    assert [item["rank"] for item in small["items"]] == [2, 3]
    by_memory = ask(client, "/campaigns/first/recipes?by=memory&page_size=1")["items"][0]
    assert (by_memory["rank"], by_memory["gap_percent"]) == (1, 0.0)


@pytest.mark.parametrize(
    "question",
    [
        "page=0",
        "page_size=201",
        "page=x",
        "by=speed",
        "tensor_parallel=0",
        "nonsense=1",
        "sharding=zero-9",
        "offload=disk",
        "rank_order=tp",
    ],
)
def test_questions_out_of_bounds_are_refused(client: TestClient, question: str) -> None:
    refused = client.get(f"/api/v1/campaigns/first/recipes?{question}")
    assert refused.status_code == 422
    assert question.partition("=")[0] in refused.json()["detail"]


@pytest.mark.parametrize(
    "path", ["campaigns", "campaigns/first", "campaigns/first/best", "registered", "drivers"]
)
def test_an_unknown_parameter_is_refused(client: TestClient, path: str) -> None:
    refused = client.get(f"/api/v1/{path}?page_sise=1")
    assert (refused.status_code, refused.json()["detail"]) == (422, "unknown parameter page_sise")


def test_trials_come_with_what_came_of_them(client: TestClient) -> None:
    trials = ask(client, "/campaigns/first/trials")
    assert [item["trial"]["state"] for item in trials["items"]] == ["measured"] * 3 + ["failed"]
    assert [item["outcome_number"] for item in trials["items"]] == [1, 2, 3, 4]
    failed = ask(client, "/campaigns/first/trials?state=failed")
    assert failed["total"] == 1
    assert failed["items"][0]["outcome"]["kind"] == "crashed"


def test_campaigns_are_compared_by_the_recipes_that_both_measured(tmp_path: Path) -> None:
    filled(tmp_path)
    with open_store(str(tmp_path / "store.db")) as found:
        writer = start(found, "second")
        writer.set_state(CampaignState.RUNNING, reason="")
        record(writer, f"{1:012x}", measurement((0.25,), 4_000), number=1)
        record(writer, f"{7:012x}", measurement((9.0,), 4_000), number=7)
        writer.release(CampaignState.FINISHED, reason="")
    with browser(settings(tmp_path)) as client:
        client.headers.update(bearer(tokens_of(settings(tmp_path)).reader))
        found_by_wire = ask(client, "/compare?campaigns=first&campaigns=second")
    assert found_by_wire["total"] == 1
    shared = found_by_wire["shared"][0]
    assert shared["recipe_id"] == f"{1:012x}"
    assert shared["speed_ratios"] == pytest.approx([1.0, 1.05 / 0.25])
    assert found_by_wire["sides"][1]["best"]["recipe_id"] == f"{1:012x}"


def test_a_stream_can_be_taken_up_anywhere(store: Path) -> None:
    with open_store(str(store)) as found:

        def told(cursor: Cursor, batch: int) -> list[tuple[str, str, str]]:
            follower, found_events, more = Follower(found, "first", cursor, batch), [], True
            while more:
                news, more = follower.poll()
                found_events += news
            return [(event.id, event.kind, json.dumps(event.data)) for event in found_events]

        whole = told(Cursor(), 200)
        assert [kind for _, kind, _ in whole] == ["event", *["outcome"] * 4, "state"]
        assert told(Cursor(), 2)[-1] == whole[-1]
        assert sorted(rest for _, *rest in told(Cursor(), 2)) == sorted(rest for _, *rest in whole)
        for cut, (last_id, *_) in enumerate(whole[:-1], start=1):
            rest = told(parse_cursor(last_id), 200)
            assert rest == whole[cut:]


def test_a_reader_of_a_stream_without_news_is_told_nothing_and_not_to_ask_again(
    store: Path,
) -> None:
    with open_store(str(store)) as found:
        follower = Follower(found, "first", Cursor())
        assert len(follower.poll()[0]) == 6
        assert follower.poll() == ([], False)


@pytest.mark.parametrize("text", ["5", "a-b", "1-2-3", "-1-2", "1-" + "9" * 30])
def test_the_id_of_no_event_is_refused(client: TestClient, text: str) -> None:
    with pytest.raises(InvalidInput, match="Last-Event-ID"):
        parse_cursor(text)
    assert (
        client.get("/api/v1/campaigns/first/events", headers={"last-event-id": text}).status_code
        == 422
    )


def test_the_stream_of_no_campaign_is_no_stream(client: TestClient) -> None:
    assert client.get("/api/v1/campaigns/none/events").status_code == 404


def test_metrics_count_trials_and_tell_the_best(client: TestClient) -> None:
    answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=")
    lines = answer.text.splitlines()
    assert 'frontrunner_trials{campaign="first",figures="measured",state="measured"} 3.0' in lines
    assert 'frontrunner_trials{campaign="first",figures="measured",state="failed"} 1.0' in lines
    assert 'frontrunner_node_seconds{campaign="first",figures="measured"} 30.0' in lines
    best = next(line for line in lines if line.startswith("frontrunner_best_tokens_per_second{"))
    assert float(best.split()[-1]) == pytest.approx(8192 / 0.525)
    names = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert all(line.startswith("#") or line.split("{")[0].split()[0] in names for line in lines)


def test_metrics_of_a_simulated_campaign_say_so(tmp_path: Path) -> None:
    with open_store(str(tmp_path / "store.db"), create=True) as store:
        campaign = store.create_campaign(
            name="rehearsal",
            spec_json="{}",
            legal_recipes=1,
            problem_summary={"figures": "simulated"},
        )
        writer = store.drive(store.acquire_lease(campaign.id, host="h", pid=1))
        record(writer, f"{1:012x}", measurement((1.0, 1.1), 4_000), number=1)
        lines = metrics(store).decode().splitlines()
    told = [
        line for line in lines if "rehearsal" in line and not line.startswith("frontrunner_driver")
    ]
    assert {line.split("{")[0] for line in told} == {
        "frontrunner_trials",
        "frontrunner_node_seconds",
        "frontrunner_best_tokens_per_second",
    }
    assert all('figures="simulated"' in line for line in told)


def test_a_name_that_is_taken_is_refused_without_telling_where_the_store_is(tmp_path: Path) -> None:
    with open_store(str(tmp_path / "store.db"), create=True) as store:
        start(store, "taken")
        with pytest.raises(NameTaken, match=re.escape(str(tmp_path))) as refused:
            store.create_campaign(name="taken", spec_json="{}", legal_recipes=1, problem_summary={})
        scope = {"type": "http", "path": "/api/v1/campaigns", "headers": []}
        response = response_of(scope, refused.value, store.url)
    told = json.loads(response.body)
    assert response.status_code == 409
    assert told["detail"] == "campaign 'taken' exists already"


@pytest.mark.parametrize("kind", STATUS_OF, ids=lambda kind: kind.__name__)
def test_an_error_crosses_the_wire_as_its_own_class(kind: type[FrontrunnerError]) -> None:
    assert type(from_problem(to_problem(kind("why", hint="next")))) is kind


def test_a_stored_script_stays_text(client: TestClient) -> None:
    answer = client.get("/api/v1/campaigns/first/failures", headers={"accept": "text/html"})
    assert "<script>" in answer.text
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-content-type-options"] == "nosniff"


FOREIGN: dict[str, Any] = {
    "data": {"path": "/etc/passwd"},
    "table": {"path": "/etc/passwd"},
    "store": {"url": "sqlite:////tmp/other.db"},
    "dispatch": {"worker_init": "touch /tmp/x"},
    "command": {"template": "rm -rf ~"},
    "run_root": "/tmp",
    "cluster": {"file": "/etc/passwd"},
    "search": {"baseline": "/etc/passwd"},
    "evaluator": "command",
    "name": "../../etc",
}


@pytest.mark.parametrize("key", FOREIGN)
@pytest.mark.parametrize("path", ["/campaigns", "/plan"])
def test_no_path_command_or_address_comes_from_the_wire(
    client: TestClient, path: str, key: str
) -> None:
    refused = client.post(f"/api/v1{path}", json=BODY | {key: FOREIGN[key]})
    assert refused.status_code == 422
    assert key in refused.json()["detail"]
    assert ask(client, "/campaigns")["total"] == 1


@pytest.mark.parametrize(("section", "key"), [("cluster", "nvme_path"), ("model", "config")])
def test_a_path_beside_other_keys_does_not_come_from_the_wire(
    client: TestClient, section: str, key: str
) -> None:
    refused = client.post(
        "/api/v1/plan", json=BODY | {section: BODY[section] | {key: "/etc/hostname"}}
    )
    assert refused.status_code == 422
    assert refused.json()["detail"].startswith(
        f'{section}.{key} = "/etc/hostname": expected no path in a request'
    )


@pytest.mark.parametrize("how", [{"flag": "--plugin {value}"}, {"env": "NCCL_NET_PLUGIN"}])
def test_knobs_that_reach_a_command_or_an_environment_do_not_come_from_the_wire(
    client: TestClient, how: dict[str, str]
) -> None:
    space = BODY["space"] | {"custom": {"own": {"values": ["/tmp/x"]} | how}}
    for path in ("/campaigns", "/plan"):
        refused = client.post(f"/api/v1{path}", json=BODY | {"space": space})
        assert refused.status_code == 422
        assert "space.custom" in refused.json()["detail"]
    assert ask(client, "/campaigns")["total"] == 1


def test_a_plan_is_the_command_s(client: TestClient) -> None:
    planned = client.post("/api/v1/plan", json=BODY | {"top": 2}).json()
    assert planned["legal"] >= planned["fitting"] >= len(planned["estimates"]) == 2
    wide = BODY | {
        "space": {"tensor_parallel": list(range(1, 3000)), "micro_batch_seqs": list(range(1, 3000))}
    }
    refused = client.post("/api/v1/plan", json=wide)
    assert refused.status_code == 422
    assert "8994001 points" in refused.json()["detail"]


def test_no_section_of_the_wire_has_a_key_for_a_path_that_is_not_refused() -> None:
    for section in SECTIONS:
        for key in keys_of(section):
            if any(
                word in key
                for word in ("path", "file", "folder", "url", "command", "init", "environment")
            ):
                assert key in FORBIDDEN_KEYS.get(section, ()), f"{section}.{key}"


ESCAPES = [
    "..%2f..%2fetc",
    "%2e%2e",
    "..",
    "first%2f..%2f..",
    "first%00",
    "first%5c..%5c",
    "-x",
    "first;ls",
    "FIRST",
]


@pytest.mark.parametrize("name", ESCAPES)
def test_names_are_not_paths(client: TestClient, name: str) -> None:
    for rest in ("", "/best", "/trials/4/log", "/events"):
        assert client.get(f"/api/v1/campaigns/{name}{rest}").status_code in (404, 422)
    assert client.get(f"/api/v1/recipes/{name}").status_code in (404, 422)
    assert client.get(f"/api/v1/replays/{name}").status_code in (404, 422)


def test_a_log_is_read_from_its_own_folder_alone(tmp_path: Path) -> None:
    root, secret = tmp_path / "runs", tmp_path / "secret.log"
    (root / "00001.1").mkdir(parents=True)
    secret.write_text("secret")
    (root / "00001.1" / "rank-0.log").write_text("x" * 100 + "the end")
    (root / "00001.1" / "linked.log").symlink_to(secret)
    (root / "linked").symlink_to(tmp_path)
    os.mkfifo(root / "00001.1" / "pipe.log")
    assert read_end(root, root / "00001.1" / "rank-0.log", most_bytes=7) == "the end"
    for path in (
        secret,
        root / "00001.1" / "linked.log",
        root / "linked" / "secret.log",
        root / ".." / "secret.log",
        root / "00001.1" / ".." / ".." / "secret.log",
        root / "00001.1" / "pipe.log",
        root / "00001.1",
        Path("/etc/passwd"),
    ):
        assert read_end(root, path, most_bytes=100) is None, path


def test_the_log_of_a_failure_is_told_whatever_path_the_store_names(tmp_path: Path) -> None:
    (tmp_path / "secret.log").write_text("secret")
    spec = {"name": "logged", "search": {"strategy": "random"}}
    with open_store(str(tmp_path / "store.db")) as found:
        made = found.create_campaign(
            name="logged", spec_json=json.dumps(spec), legal_recipes=1, problem_summary={}
        )
        writer = found.drive(found.acquire_lease(made.id, host="elsewhere.example", pid=1))
        writer.set_state(CampaignState.RUNNING, reason="")
        path = str(tmp_path / "secret.log")
        record(
            writer,
            "a" * 12,
            Failure(kind=FailureKind.CRASHED, message="", log_tail="kept", log_path=path),
        )
    with browser(settings(tmp_path)) as client:
        client.headers.update(bearer(tokens_of(settings(tmp_path)).reader))
        assert client.get("/api/v1/campaigns/logged/trials/1/log").text == "kept"
        assert client.get("/api/v1/campaigns/logged/trials/2/log").status_code == 404


def test_a_reader_is_told_the_lines_of_a_log_that_the_driver_kept_and_an_operator_the_file(
    tmp_path: Path,
) -> None:
    spec = spec_of(tiny(name="logged"), tmp_path / "runs")
    log = spec.run_folder / "00001.1" / "rank-0.log"
    log.parent.mkdir(parents=True)
    log.write_text("a token of the driver's shell")
    with open_store(str(tmp_path / "store.db")) as found:
        made = found.create_campaign(
            name="logged", spec_json=dump_json(spec), legal_recipes=1, problem_summary={}
        )
        writer = found.drive(found.acquire_lease(made.id, host="elsewhere.example", pid=1))
        writer.set_state(CampaignState.RUNNING, reason="")
        record(
            writer,
            "a" * 12,
            Failure(kind=FailureKind.CRASHED, message="", log_tail="kept", log_path=str(log)),
        )
    with browser(settings(tmp_path)) as client:
        tokens = tokens_of(settings(tmp_path))
        for token, told in (
            (tokens.reader, "kept"),
            (tokens.operator, "a token of the driver's shell"),
        ):
            answered = client.get("/api/v1/campaigns/logged/trials/1/log", headers=bearer(token))
            assert answered.text == told


def test_health_tells_of_a_store_that_is_gone_and_not_where_it_was(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    filled(tmp_path)
    with browser(settings(tmp_path)) as client:
        assert client.get("/healthz").status_code == 200
        (tmp_path / "store.db").write_bytes(b"SQLite format 3\x00" + b"\xff" * 5000)
        refused = client.get("/healthz")
    assert (refused.status_code, refused.json()) == (503, {"status": "store not readable"})
    assert str(tmp_path) in caplog.text


def test_health_tells_of_a_store_whose_file_was_replaced(tmp_path: Path) -> None:
    filled(tmp_path)
    with browser(settings(tmp_path)) as client:
        assert client.get("/healthz").status_code == 200
        other = tmp_path / "other.db"
        shutil.copy(tmp_path / "store.db", other)
        other.replace(tmp_path / "store.db")
        assert client.get("/healthz").status_code == 503


def test_an_error_is_a_problem_whose_type_the_service_describes(client: TestClient) -> None:
    refused = client.get("/api/v1/campaigns/none")
    told = refused.json()
    assert refused.headers["content-type"] == "application/problem+json"
    assert (told["status"], told["detail"]) == (404, "there is no campaign 'none'")
    described = client.get(told["type"]).json()
    assert described == {key: told[key] for key in ("type", "title", "status", "kind")}


def test_a_request_that_is_repeated_with_its_key_starts_nothing_twice(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Any] = []

    def launch(_: object, table: object) -> dict[str, object]:
        started.append(table)
        if len(started) == 1:
            raise TooMany("full")
        return {"campaign": f"c{len(started)}", "pid": 1}

    monkeypatch.setattr("frontrunner.server.drivers.Drivers.launch", launch)

    def asked(body: dict[str, Any], key: str | None) -> Any:
        headers = {} if key is None else {"idempotency-key": key}
        return client.post("/api/v1/campaigns", json=body, headers=headers).json()

    assert asked(BODY, "one")["kind"] == "TooMany"
    assert [asked(BODY, "one")["campaign"] for _ in range(3)] == ["c2"] * 3
    assert asked({**BODY, "name": "other"}, "one")["kind"] == "InvalidInput"
    assert asked(BODY, "two")["campaign"] == "c3"
    assert [asked(BODY, None)["campaign"] for _ in range(2)] == ["c4", "c5"]


def test_a_key_is_of_a_request_with_its_query(client: TestClient) -> None:
    key = {"idempotency-key": "once"}
    assert client.delete("/api/v1/campaigns/first?preview=true", headers=key).status_code == 200
    again = client.delete("/api/v1/campaigns/first", headers=key)
    assert "was sent with another request" in again.json()["detail"]
    assert client.get("/api/v1/campaigns/first").status_code == 200


@pytest.mark.parametrize(
    "path", ["/api/v1/campaigns", "/", "/api/v1/campaigns/first/best", "/healthz"]
)
def test_head_has_the_headers_of_get_and_no_body(client: TestClient, path: str) -> None:
    asked, got = client.head(path), client.get(path)
    assert (asked.status_code, asked.content) == (200, b"")
    assert asked.headers["content-type"] == got.headers["content-type"]
    assert asked.headers["content-length"] == got.headers["content-length"]
