"""The card of a recipe's replay: how far it is, how fast beside the campaign's figure, how it
ended, and going on.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi.testclient import TestClient

from frontrunner.config.settings import run_root
from frontrunner.evaluators.runs.files import write_json
from frontrunner.evaluators.runs.training import ReplayStopped
from frontrunner.server import child
from frontrunner.server.drivers import STARTED, Replay, Replays, recording_end
from frontrunner.server.requests import ReplayBody
from frontrunner.spaces.errors import FrontrunnerError
from support.page_stores import page_store
from support.services import bearer, settings, signed_in, tokens_of

TOKENS = 8192
"""A step, as the stored measurements have it."""
GONE = {"pid": 2**22 + 1, "since": "2026-01-01T00:00:00+00:00", "steps": 4000}
"""What a process wrote that is no more: no process has a greater id than Linux allows."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("replays")


@pytest.fixture(scope="module")
def recipe_id(home: Path) -> str:
    return page_store(home)[0]


@pytest.fixture(scope="module")
def client(home: Path, recipe_id: str) -> Iterator[TestClient]:
    with signed_in(settings(home), accept="text/html") as found:
        yield found


@pytest.fixture
def folder(home: Path, recipe_id: str) -> Iterator[Path]:
    """Where the recipe's replay keeps its files, empty again after each test."""
    found = run_root(str(home / "store.db")) / "replays" / recipe_id
    found.mkdir(parents=True, exist_ok=True)
    yield found
    for path in sorted(found.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()


def left(folder: Path, *events: Mapping[str, object], log: str = "", **started: object) -> None:
    """What a replay leaves in its folder."""
    write_json(folder / STARTED, {**GONE, **started})
    (folder / "progress.jsonl").write_text(
        "".join(f"{json.dumps(event)}\n" for event in events), encoding="utf-8"
    )
    (folder / "replay.log").write_text(log, encoding="utf-8")


def test_a_replay_s_process_is_known_by_its_file_while_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    while_running: list[Any] = []
    path = tmp_path / "abc" / STARTED
    body = {"recipe_id": "a", "root": str(tmp_path), "anyway": False, "steps": 40}
    monkeypatch.setattr("sys.stdin", StringIO(json.dumps(body)))
    monkeypatch.setattr(child.api, "show", lambda _: SimpleNamespace(recipe_id="abc"))
    monkeypatch.setattr(child.Reporting, "report", lambda *_: None)
    monkeypatch.setattr(
        "frontrunner.recipe_actions.plan_replay",
        lambda _, chosen, anyway: SimpleNamespace(folder=chosen.folder),
    )
    monkeypatch.setattr(
        "frontrunner.evaluators.programs.rank_replay.run",
        lambda *_, **__: while_running.append(json.loads(path.read_text())),
    )
    assert child.main(["replay"]) == 0
    [started] = while_running
    assert (started["pid"], started["steps"]) == (os.getpid(), 40)


def step(number: int, time_s: float) -> dict[str, object]:
    return {
        "event": "step",
        "step": number,
        "time_s": time_s,
        "loss": 5.0 - number / 10,
        "tokens": TOKENS,
    }


def found(home: Path, folder: Path) -> Replay:
    return Replays(settings(home)).one(folder.name)


def card(client: TestClient, recipe_id: str, campaign: str = "second") -> str:
    answer = client.get(f"/recipes/{recipe_id}/replay?campaign={campaign}")
    assert answer.status_code == 200
    return " ".join(re.sub(r"<[^>]+>", " ", answer.text).split())


def test_replay_card_compares_its_newest_steps_with_the_measurement(
    home: Path, folder: Path, client: TestClient
) -> None:
    evaluation = {"event": "evaluation", "step": 30, "loss": 3.25}
    left(
        folder,
        *(step(n, 9.0) for n in range(1, 31)),
        evaluation,
        *(step(n, 0.4) for n in range(31, 41)),
    )
    left_out = found(home, folder)
    assert left_out.step_time_s == pytest.approx((9.0 + 0.4) / 2), (
        "the median of ten slow and ten fast steps"
    )
    assert left_out.tokens_per_s == pytest.approx(TOKENS / 4.7)
    left(
        folder,
        *(step(n, 0.2) for n in range(1, 31)),
        evaluation,
        *(step(n, 0.2) for n in range(31, 41)),
    )
    told = card(client, folder.name)
    measured_tokens_per_s = TOKENS / 0.105
    share = TOKENS / 0.2 / measured_tokens_per_s
    assert f"tokens/s 40,960, {share:.0%}".replace("%", " %") in told
    assert f"of the {measured_tokens_per_s:,.0f} measured in second" in told
    assert "measured in first" in card(client, folder.name, "first")
    assert "step 200 ms" in told
    assert "evaluation loss 3.250 after step 30" in told
    assert "loss 1.000" in told


def test_the_log_is_for_operators(client: TestClient, home: Path, folder: Path) -> None:
    left(folder, step(1, 0.2), log="export KEY=hunter2")
    for role, is_told in (("operator", True), ("reader", False)):
        token = bearer(getattr(tokens_of(settings(home)), role))
        for path in (
            "/api/v1/replays",
            f"/api/v1/replays/{folder.name}",
            f"/recipes/{folder.name}/replay?campaign=first",
        ):
            answer = client.get(path, headers=token)
            assert answer.status_code == 200
            assert ("hunter2" in answer.text) == is_told, (role, path)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (None, "was interrupted: its process ended without reporting why"),
        (KeyboardInterrupt(), "The last replay was stopped"),
        (ReplayStopped("stopped after step 3"), "The last replay was stopped"),
        (
            FrontrunnerError("the replay ended with status 1:\nand a long log"),
            "failed: the replay ended with status 1",
        ),
        (OSError("no space left"), "failed: OSError: no space left"),
    ],
    ids=["killed", "ended", "stopped", "crashed", "broken"],
)
def test_replay_card_shows_its_end(
    folder: Path, client: TestClient, error: BaseException | None, words: str
) -> None:
    left(folder, step(1, 0.2), log="Traceback: it was so\n")
    if error is not None:
        is_stop = isinstance(error, KeyboardInterrupt | ReplayStopped)
        catches = nullcontext() if is_stop else pytest.raises(type(error))
        with catches, recording_end(folder / STARTED, GONE):
            raise error
    told = card(client, folder.name)
    assert words in told
    assert "Traceback: it was so" in told
    assert "long log" not in told


def test_replay_shows_a_failure_after_an_earlier_result(home: Path, folder: Path) -> None:
    left(folder, step(200, 0.2))
    write_json(folder / "result.json", {})
    assert found(home, folder).state == "finished"
    left(folder, step(200, 0.2), ended="failed", why="it holds another run")
    assert (found(home, folder).state, found(home, folder).why) == (
        "failed",
        "it holds another run",
    )


def test_replay_form_offers_remaining_steps_and_the_checkpoint(
    folder: Path, client: TestClient
) -> None:
    def form() -> dict[str, Any]:
        text = client.get(f"/recipes/{folder.name}/replay").text
        field = re.search(r'name="steps" min="(\d+)" max="\d+" value="(\d+)"', text)
        assert field is not None
        return {
            "least": int(field[1]),
            "value": int(field[2]),
            "goes_on": "Continue</button>" in text,
            "text": text,
        }

    assert form()["goes_on"] is False
    left(folder, step(40, 0.2), ended="stopped")
    assert (form()["least"], form()["value"], form()["goes_on"]) == (1, 4000, False), (
        "nothing to go on from"
    )
    for name in ("step-00000020", "step-00000030", "step-00000040"):
        (folder / "checkpoints" / name).mkdir(parents=True)
        if "40" not in name:  # which was not finished
            (folder / "checkpoints" / name / ".metadata").touch()
    assert (form()["least"], form()["value"], form()["goes_on"]) == (31, 4000, True)
    assert "continuing from the checkpoint after step 30" in form()["text"]
    (folder / STARTED).unlink()
    assert form()["goes_on"] is True, "the command's own checkpoints count too"
    assert (
        "continuing from the checkpoint after step 30" in client.get(f"/recipes/{folder.name}").text
    )


def test_replay_form_allows_other_hardware(folder: Path, client: TestClient) -> None:
    assert (
        '<input type="checkbox" name="anyway">' in client.get(f"/recipes/{folder.name}/replay").text
    )
    sent = {"recipe_id": folder.name, "steps": 5}
    assert ReplayBody.model_validate(sent | {"anyway": True}).anyway is True
    assert ReplayBody.model_validate(sent).anyway is False
