"""The API's description: launches as campaign files, tokens, and schemas that the answers fit."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from fastapi.testclient import TestClient

from frontrunner.config.campaign import SECTIONS, parse_campaign, section_schema
from frontrunner.server.requests import FORBIDDEN_KEYS, LAPTOP
from frontrunner.server.requests import SECTIONS as WIRED
from frontrunner.server.settings import register
from frontrunner.spaces.errors import InvalidInput
from support.page_stores import page_store
from support.services import bearer, settings, signed_in

EXAMPLES = Path(__file__).parents[2] / "examples"
FILES = [
    EXAMPLES / f"{name}.toml"
    for name in ("laptop", "frontier-175b", "command-accelerate", "sites/slurm")
]
MOST_BYTES = 200_000


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    known = register({"trainer": [f"ours={EXAMPLES / 'command-accelerate.toml'}"]})
    chosen = replace(settings(tmp_path_factory.mktemp("described")), registered=known)
    with signed_in(chosen) as found:
        yield found


@pytest.fixture(scope="module")
def document(client: TestClient) -> dict[str, Any]:
    answer = client.get("/api/v1/openapi.json")
    assert len(answer.content) < MOST_BYTES
    found: dict[str, Any] = answer.json()
    return found


def laptop(**changes: Any) -> dict[str, Any]:
    return {key: value for key, value in {**LAPTOP, **changes}.items() if value is not None}


def accepts(schema: dict[str, Any], value: object, document: dict[str, Any]) -> bool:
    return jsonschema.Draft202012Validator(
        {**schema, "components": document["components"]}
    ).is_valid(value)


@pytest.fixture(scope="module")
def sections() -> dict[str, dict[str, Any]]:
    return {section: section_schema(section) for section in SECTIONS}


class TestSections:
    def test_a_section_has_the_keys_that_its_reader_knows(
        self, sections: dict[str, dict[str, Any]]
    ) -> None:
        for schema in sections.values():
            jsonschema.Draft202012Validator.check_schema(schema)
            assert schema["description"]

    def test_campaign_files_that_are_read_are_described(
        self, sections: dict[str, dict[str, Any]]
    ) -> None:
        for path in FILES:
            table = tomllib.loads(path.read_text(encoding="utf-8"))
            for section in set(table) & set(SECTIONS):
                jsonschema.validate(
                    table[section], sections[section], jsonschema.Draft202012Validator
                )

    def test_a_known_device_needs_no_more_than_how_many_a_node_has(
        self, sections: dict[str, dict[str, Any]]
    ) -> None:
        given = {"device": "h100-80gb", "devices_per_node": 8}
        parse_campaign(laptop(cluster=given), default_name="x", base=Path())
        assert jsonschema.Draft202012Validator(sections["cluster"]).is_valid(given)

    @pytest.mark.parametrize(
        ("section", "given"),
        [
            ("model", {"layers": 4, "hidden": 128, "heads": 8}),
            ("model", {"preset": "gpt5"}),
            ("model", {"preset": "gpt2-small", "layers": "12"}),
            ("cluster", {"backend": "cpu", "devices_per_node": 4}),
            ("cluster", {"preset": "frontier", "links": {"node_gb": 50}}),
            ("problem", {"sequence_length": 128, "global_batch": [1, 2, 3]}),
            ("problem", {"sequence_length": 128, "global_batch": 1.5}),
            ("space", {"tensor_parallel": ["2"]}),
            ("space", {"schedule": "1f2b"}),
            ("search", {"strategy": "bayes"}),
            ("budget", {"probe": 4}),
        ],
    )
    def test_what_the_reader_refuses_is_not_described(
        self, sections: dict[str, dict[str, Any]], section: str, given: dict[str, Any]
    ) -> None:
        with pytest.raises(InvalidInput):
            parse_campaign(laptop(**{section: given}), default_name="x", base=Path())
        assert not jsonschema.Draft202012Validator(sections[section]).is_valid(given)


class TestDocument:
    def test_a_launch_is_described_section_by_section(self, document: dict[str, Any]) -> None:
        body = document["components"]["schemas"]["CampaignBody"]
        assert accepts(body, LAPTOP, document)
        assert not accepts(body, laptop(budgets={}), document)
        for section in WIRED:
            assert not accepts(body, laptop(**{section: {"no-such-key": 1}}), document), section
            assert not set(FORBIDDEN_KEYS.get(section, ())) & set(
                body["properties"][section]["properties"]
            )
        assert accepts(body, laptop(cluster={"nodes": 4}), document)  # beside a site
        assert body["properties"]["trainer"]["anyOf"][0]["enum"] == ["ours"]

    def test_it_says_how_a_program_and_a_browser_are_let_in(self, document: dict[str, Any]) -> None:
        schemes = document["components"]["securitySchemes"]
        assert document["security"] == [{name: []} for name in schemes]
        assert {
            (scheme["type"], scheme.get("scheme", scheme.get("in"))) for scheme in schemes.values()
        } == {
            ("http", "bearer"),
            ("apiKey", "cookie"),
        }

    def test_answers_fit_the_schemas_that_describe_them(
        self, document: dict[str, Any], tmp_path: Path
    ) -> None:
        recipe, *_ = page_store(tmp_path)
        chosen = settings(tmp_path)
        values = {"{name}": "first", "{recipe_id}": recipe, "{number}": "4"}
        questions = {"first": "first", "second": "first", "objective": ["tokens", "nodes"]}
        seen = 0
        with signed_in(chosen, "reader") as service:
            for path, operations in document["paths"].items():
                content = (
                    operations.get("get", {}).get("responses", {}).get("200", {}).get("content", {})
                )
                if "application/json" not in content:
                    continue
                asked = path
                for name, value in values.items():
                    asked = asked.replace(name, value)
                taken = {
                    one["name"]
                    for one in operations["get"].get("parameters", ())
                    if one["in"] == "query"
                }
                answer = service.get(
                    asked, params={name: questions[name] for name in taken & questions.keys()}
                )
                if answer.status_code == 200:
                    seen += 1
                    assert accepts(
                        content["application/json"]["schema"], answer.json(), document
                    ), path
        assert seen >= 15
        assert json.loads(json.dumps(document)) == document


class TestRefusals:
    def test_every_kind_of_problem_is_described(self, client: TestClient) -> None:
        asked = {
            404: client.get("/api/v1/none"),
            405: client.put("/api/v1/campaigns"),
            401: client.get("/api/v1/campaigns", headers=bearer("x")),
        }
        for status, answer in asked.items():
            assert answer.status_code == status
            described = client.get(answer.json()["type"])
            assert described.json()["title"] == answer.json()["title"]
            assert described.json()["status"] == (401 if status == 401 else None)
        assert asked[401].json()["kind"] == "Unauthorized"

    def test_options_and_405_name_all_methods_of_an_address(self, client: TestClient) -> None:
        answer = client.options("/api/v1/campaigns/first")
        assert (answer.status_code, answer.headers["allow"]) == (
            204,
            "DELETE, GET, HEAD, OPTIONS, PATCH",
        )
        assert client.put("/api/v1/campaigns").headers["allow"] == "GET, HEAD, OPTIONS, POST"
        assert client.options("/api/v1/none").status_code == 404


class TestMessages:
    @pytest.mark.parametrize(
        ("changes", "message", "hint"),
        [
            ({"budgets": {}}, "unknown section [budgets]", "did you mean 'budget'?"),
            ({"probes": 3}, "unknown key probes = 3", "did you mean 'probe'?"),
            ({"model": 3}, "model = 3: expected a section: [model]", None),
            (
                {"problem": None},
                "[problem] is missing",
                "`frontrunner init` writes a file with what is needed",
            ),
            ({"name": 3}, "name = 3: expected text in quotes", None),
            ({"budget": {"prob": 3}}, "unknown key budget.prob = 3", "did you mean 'probes'?"),
            ({"budget": {"probes": "3"}}, 'budget.probes = "3": expected a whole number', None),
        ],
    )
    def test_a_launch_is_refused_as_the_file_would_be(
        self, client: TestClient, changes: dict[str, Any], message: str, hint: str | None
    ) -> None:
        with pytest.raises(InvalidInput) as refused:
            parse_campaign(laptop(**changes), default_name="x", base=Path())
        assert (refused.value.message, refused.value.hint) == (message, hint)
        answer = client.post("/api/v1/plan", json=laptop(**changes))
        assert answer.status_code == 422
        told = answer.json()
        assert (told["kind"], told["detail"], told["hint"]) == ("InvalidInput", message, hint)

    def test_the_launch_page_says_the_same(self, client: TestClient) -> None:
        text = (
            (EXAMPLES / "laptop.toml").read_text(encoding="utf-8").replace("[budget]", "[budgets]")
        )
        shown = client.post("/launch/check", json={"campaign": text}).text
        assert "unknown section [budgets]" in shown
        assert "did you mean &#39;budget&#39;?" in shown

    @pytest.mark.parametrize(
        ("body", "said"),
        [
            ('{"recipe_id": "abcd", "step": 3}', "unknown key step = 3"),
            ('{"recipe_id": "abcd"}', "steps is missing"),
            ('{"recipe_id": "abcd", "steps": 0}', "steps = 0: expected greater than or equal to 1"),
            ('{"recipe_id": "abcd", "steps": "x"}', 'steps = "x": expected a whole number'),
            (
                '{"recipe_id": "no", "steps": 1}',
                'recipe_id = "no": expected a string to match pattern',
            ),
            ("[1]", "the body = [1]: expected a table of keys and values"),
            ("{", "the body is not JSON: "),
        ],
    )
    def test_other_bodies_are_refused_by_key_value_and_what_was_expected(
        self, client: TestClient, body: str, said: str
    ) -> None:
        answer = client.post(
            "/api/v1/replays", content=body, headers={"content-type": "application/json"}
        )
        assert answer.status_code == 422
        assert answer.json()["detail"].startswith(said)

    def test_so_are_questions(self, client: TestClient) -> None:
        def said(query: str) -> dict[str, Any]:
            found: dict[str, Any] = client.get(f"/api/v1/campaigns/x/recipes?{query}").json()
            return found

        assert said("schedul=gpipe")["hint"] == "did you mean 'schedule'?"
        assert (
            said("tensor_parallel=x")["detail"] == 'tensor_parallel = "x": expected a whole number'
        )


def test_each_operation_is_called_as_its_function(document: dict[str, Any]) -> None:
    named = [
        one["operationId"] for methods in document["paths"].values() for one in methods.values()
    ]
    assert len(set(named)) == len(named)
    assert {"launch", "best", "pause", "delete", "status"} <= set(named)
    assert all(name.isidentifier() for name in named)
