"""Tools for agents, called by a client of the protocol: in process, and over the pipes of the
command.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters

import frontrunner
from frontrunner.mcp_tools import Reading, Running, tools_server
from frontrunner.store import LocalStore
from frontrunner.text import as_plain
from support.campaign_files import campaign_toml, written
from support.page_stores import page_store

STUDY = Path(__file__).parents[2] / "examples" / "frontier-study-1t.toml"
READING = {name for name in vars(Reading) if not name.startswith("_")}
RUNNING = {name for name in vars(Running) if not name.startswith("_")}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> LocalStore:
    folder = tmp_path_factory.mktemp("store")
    page_store(folder)
    return LocalStore(str(folder / "store.db"))


def names_of(store: LocalStore, *, allow_launch: bool) -> set[str]:
    async def ask() -> set[str]:
        async with Client(tools_server(store, allow_launch=allow_launch)) as client:
            tools = (await client.list_tools()).tools
        assert all(tool.description and tool.annotations for tool in tools)
        changing = {
            tool.name for tool in tools if tool.annotations and not tool.annotations.read_only_hint
        }
        assert changing == (RUNNING if allow_launch else set())
        return {tool.name for tool in tools}

    return asyncio.run(ask())


def call(store: LocalStore, tool: str, arguments: Mapping[str, Any]) -> tuple[bool, str]:
    """Whether the call failed, and its text."""

    async def ask() -> tuple[bool, str]:
        async with Client(tools_server(store)) as client:
            found = await client.call_tool(tool, dict(arguments))
        (content,) = found.content
        return bool(found.is_error), content.text  # type: ignore[union-attr]

    return asyncio.run(ask())


def test_nothing_can_be_started_unless_it_is_allowed(store: LocalStore) -> None:
    assert names_of(store, allow_launch=False) == READING
    assert names_of(store, allow_launch=True) == READING | RUNNING
    is_error, text = call(store, "launch", {"campaign_file": "c.toml"})
    assert (is_error, "launch" in text) == (True, True)


def test_answers_are_those_of_the_python_functions(store: LocalStore, tmp_path: Path) -> None:
    file = written(tmp_path / "c.toml", campaign_toml())
    sections = tomllib.loads(file.read_text())
    winner = store.best("first")[0].recipe_id
    plan = frontrunner.plan(file).shown(2)
    answers = {
        "best": ({"campaign": "first", "top": 2}, store.best("first", top=2)),
        "show": ({"recipe_id": winner, "campaign": "first"}, store.show(winner, campaign="first")),
        "failures": ({"campaign": "first"}, store.failures("first")),
        "plan": ({"campaign_file": str(file), "top": 2}, plan),
        "explain": (
            {"recipe": {"tensor_parallel": 4, "micro_batch_seqs": 2}, "campaign_file": str(file)},
            store.explain({"tensor_parallel": 4, "micro_batch_seqs": 2}, campaign=file),
        ),
    }
    for tool, (arguments, expected) in answers.items():
        is_error, text = call(store, tool, arguments)
        assert not is_error, text
        assert json.loads(text) == as_plain(expected), tool
    assert json.loads(call(store, "plan", {"campaign_file": sections, "top": 2})[1]) == as_plain(
        plan
    )


@pytest.mark.parametrize(("tool", "arguments"), [("plan", {"top": 1}), ("advise", {})])
def test_an_answer_fits_in_an_agents_context(
    tool: str, arguments: Mapping[str, Any], store: LocalStore
) -> None:
    is_error, text = call(store, tool, arguments | {"campaign_file": str(STUDY)})
    assert not is_error, text
    assert len(text) < 8_000


@pytest.mark.parametrize(
    ("tool", "arguments", "message"),
    [
        ("best", {"campaign": "frist"}, "there is no campaign 'frist'"),
        ("best", {"top": 0}, "top = 0: expected 1 to 100"),
        (
            "export",
            {"recipe_id": "deadbeef", "to": "megatron"},
            '--to = "megatron": expected one of',
        ),
        ("plan", {"campaign_file": {"model": {"layres": 2}}}, "unknown key model.layres"),
    ],
)
def test_a_mistake_is_a_message_with_the_next_step(
    tool: str, arguments: Mapping[str, Any], message: str, store: LocalStore
) -> None:
    is_error, text = call(store, tool, arguments)
    assert is_error
    assert message in text
    assert "Traceback" not in text


def test_a_campaign_is_launched_and_read_over_the_command_s_pipes(tmp_path: Path) -> None:
    written(tmp_path / "small.toml", campaign_toml({"budget.probes": "2"}))
    command = [
        "-P",
        "-m",
        "frontrunner.cli",
        "mcp",
        "--allow-launch",
        "--store",
        str(tmp_path / "s.db"),
    ]
    server = StdioServerParameters(command=sys.executable, args=command, cwd=tmp_path)

    async def drive() -> tuple[dict[str, Any], dict[str, Any]]:
        async with Client(server) as client:

            async def answer(tool: str, **arguments: object) -> dict[str, Any]:
                found = await client.call_tool(tool, arguments)
                assert not found.is_error, found.content
                return json.loads(found.content[0].text)  # type: ignore[union-attr,no-any-return]

            launched = await answer("launch", campaign_file="small.toml")
            until = time.monotonic() + 60
            while (status := await answer("status", campaign=launched["campaign"]))["campaign"][
                "state"
            ] != "finished":
                assert time.monotonic() < until, status
                await asyncio.sleep(0.2)
            return launched, status

    launched, status = asyncio.run(drive())
    assert launched["campaign"] == "small"
    assert status["trials"]["measured"] == 2
