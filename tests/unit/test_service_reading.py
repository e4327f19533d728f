"""Whatever can be read of a store can be asked of a service: by the same names, with the same
answers.
"""

from __future__ import annotations

import inspect
import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import click
import pandas as pd
import pytest

import frontrunner
from frontrunner.cli.main import SECTIONS
from frontrunner.cli.main import frontrunner as program
from frontrunner.remote import RemoteStore
from frontrunner.results import frames
from frontrunner.results.outcome import Failure, FailureKind
from frontrunner.results.records import Labels
from frontrunner.results.redaction import REDACTED
from frontrunner.results.states import CampaignState
from frontrunner.results.store import open_store
from frontrunner.search.campaign_setup import stored_spec
from frontrunner.server.errors import Forbidden, Unauthorized
from frontrunner.server.settings import Limits
from frontrunner.spaces.document import recipe_id
from frontrunner.spaces.errors import (
    FrontrunnerError,
    InvalidInput,
    NotFound,
    NothingLegal,
    StoreUnusable,
)
from frontrunner.spaces.validation import dump_json
from frontrunner.store import LocalStore
from support.campaigns import spec_of, tiny, write_toml
from support.page_stores import page_store
from support.rankings import measurement, record, start
from support.services import UNLIMITED, browser, remote, settings, tokens_of

OF_FILES = {"advise", "plan", "plan_clusters", "scaling", "survey", "import_config", "check_log"}
"""What reads a campaign file of this machine, and no store. A service estimates one too, so the
client has `plan`.
"""
RUN_HERE = {
    "calibrate",
    "call_ranks",
    "doctor",
    "dryrun",
    "plan_dryrun",
    "plan_profile",
    "profile",
    "replay",
}
WRITING = {"import_table", "TableForm", "mirror", "fit_campaign", "fit_tables", "plan_replay"}
KEEPING = {
    "backup_store", "check_store", "copy_store", "import_archive", "prunable", "prune_store",
    "recover_store", "upgrade_store",
}  # fmt: skip
"""Done by whoever keeps the store, where it lies."""
ACTIONS = {
    *("plan", "launch", "resume", "replay", "pause", "stop", "cancel"),
    *("replays", "watch_replay", "stop_replay", "registered", "users", "invite", "remove_user"),
}
"""What a service does, or holds beside its store."""
READING = (
    *(
        "best",
        "campaigns",
        "dataframe",
        "explain",
        "export",
        "failures",
        "front",
        "history",
        "pareto",
    ),
    *("plot", "report", "running", "show", "status", "step"),
)
"""The public functions that read a store."""
CHANGING = ("change_budget", "delete", "label", "rename")
COMMANDS_WITHOUT_A_SERVICE = {
    *(
        "launch",
        "resume",
        "measure",
        "sweep",
        "scale",
        "replay",
        "profile",
        "dryrun",
        "serve",
    ),  # run on this machine
    *(
        "calibrate",
        "doctor",
        "import",
        "store",
        "users",
    ),  # measure it, or keep its stores
}
SECRET = "hunter2-is-no-secret"


@pytest.fixture(scope="module")
def ids(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    folder = tmp_path_factory.mktemp("reading")
    return folder, page_store(folder)


@pytest.fixture(scope="module")
def client(ids: tuple[Path, list[str]]) -> Iterator[RemoteStore]:
    chosen = settings(ids[0])
    with browser(chosen) as found:
        yield remote(found, tokens_of(chosen).operator)


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def test_public_functions_are_methods_of_a_store_or_need_none() -> None:
    functions = set(frontrunner.__all__)
    others = {
        *OF_FILES,
        *RUN_HERE,
        *WRITING,
        *KEEPING,
        "launch",
        "measure",
        "resume",
        "scale",
        "sweep",
        "connect",
    }
    assert functions == {*READING, *CHANGING, *others}
    assert {*READING, *CHANGING} <= public(LocalStore)


def test_local_and_remote_store_have_the_same_questions() -> None:
    assert public(LocalStore) - {"opened"} == public(RemoteStore) - ACTIONS


@pytest.mark.parametrize("name", sorted(public(LocalStore) - {"opened"}))
def test_local_and_remote_store_take_the_same_arguments(name: str) -> None:
    local, remote = (inspect.signature(getattr(owner, name)) for owner in (LocalStore, RemoteStore))
    assert local == remote


def test_a_campaign_file_is_planned_as_here(client: RemoteStore, tmp_path: Path) -> None:
    file = write_toml(tmp_path / "tiny.toml", tiny())
    own = frontrunner.plan(file)
    for given in (file, str(file), tiny()):
        told = client.plan(given, top=3)
        assert told.estimates == own.fastest(3)
        assert (told.front, told.front_recipes) == (own.front[:3], len(own.front))
        assert (told.legal, told.remarks) == (own.legal, own.trust.remarks)
    assert client.plan(file, top=1).estimates == own.fastest(1)


def test_a_model_s_configuration_is_read_where_the_campaign_file_is(
    client: RemoteStore, tmp_path: Path
) -> None:
    """The service opens no path that a request names."""
    config = {
        "model_type": "gpt2",
        "n_layer": 2,
        "n_embd": 64,
        "n_head": 4,
        "n_positions": 128,
        "vocab_size": 257,
    }
    (tmp_path / "config.json").write_text(json.dumps(config | {"activation_function": "gelu_new"}))
    file = write_toml(
        tmp_path / "tiny.toml", {**tiny(), "model": {"config": "config.json", "layers": 4}}
    )
    told, own = client.plan(file), frontrunner.plan(file)
    assert told.estimates == own.fastest(10)
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(InvalidInput, match=r"tiny\.toml: .*config\.json: no n_layer"):
        client.plan(file)


@pytest.mark.parametrize("change", [{"budgets": {}}, {"budget": {"probes": "3"}}, {"model": 3}])
def test_a_campaign_file_is_refused_as_here(
    client: RemoteStore, tmp_path: Path, change: dict[str, object]
) -> None:
    file = write_toml(tmp_path / "tiny.toml", {**tiny(), **change})
    asked = [(frontrunner.plan, client.plan), (frontrunner.launch, client.launch)]
    for ask, theirs in (
        asked if "budgets" in change else asked[:1]
    ):  # what is in sections is refused by a process
        with pytest.raises(InvalidInput) as here:
            ask(file)
        with pytest.raises(InvalidInput) as there:
            theirs(file)
        assert (there.value.message, there.value.hint) == (here.value.message, here.value.hint)
    assert here.value.message.startswith(f"{file}: ")


def test_what_is_no_campaign_file_is_refused_before_it_is_sent(
    client: RemoteStore, tmp_path: Path
) -> None:
    with pytest.raises(NotFound, match="there is no such file"):
        client.launch(tmp_path / "none.toml")
    with pytest.raises(InvalidInput, match="expected a campaign file's path, or its tables"):
        client.plan(3)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=r"model\.layers = .*: expected a whole number"):
        client.plan({**tiny(), "model": {**tiny()["model"], "layers": date(2026, 1, 1)}})


@pytest.mark.parametrize("name", [*READING, *CHANGING])
def test_public_function_takes_what_the_method_takes_and_a_store(name: str) -> None:
    function, method = (
        inspect.signature(getattr(owner, name)).parameters for owner in (frontrunner, LocalStore)
    )
    assert [*list(method)[1:], "store"] == list(function)


def test_every_command_that_reads_a_store_takes_a_server() -> None:
    names = [name for section in SECTIONS.values() for name in section]
    for name in names:
        command = program.get_command(click.Context(program), name)
        assert command is not None
        options = {parameter.name for parameter in command.params}
        if "store" in options:
            assert ("server" in options) != (name in COMMANDS_WITHOUT_A_SERVICE), name


def test_a_table_crosses_the_wire_whole(client: RemoteStore, ids: tuple[Path, list[str]]) -> None:
    told, own = (
        client.dataframe("first"),
        frontrunner.dataframe("first", store=str(ids[0] / "store.db")),
    )
    assert len(own) == 4
    pd.testing.assert_frame_equal(told, own, check_exact=True)


def test_a_recipe_is_taken_apart_as_here(client: RemoteStore, ids: tuple[Path, list[str]]) -> None:
    folder, (first, *_) = ids
    at = str(folder / "store.db")
    told, own = client.explain(first), frontrunner.explain(first, store=at)
    assert told.measured is not None
    assert told.measured.store == "http://127.0.0.1:8787"
    assert replace(told, measured=replace(told.measured, store=at)) == own
    assert client.baseline("first") is LocalStore(at).baseline("first") is None


def test_a_step_is_laid_out_as_here_also_with_other_choices(
    client: RemoteStore, ids: tuple[Path, list[str]]
) -> None:
    folder, (first, *_) = ids
    at = str(folder / "store.db")
    assert client.step(first) == frontrunner.step(first, store=at)
    other = client.step(first, pipeline_parallel=2, micro_batch_seqs=1)
    assert (
        other.recipe.pipeline_parallel,
        other.recipe.micro_batch_seqs,
        other.recipe.schedule,
    ) == (2, 1, "1f1b")
    assert (
        other.recipe.global_batch_seqs == frontrunner.show(first, store=at).recipe.global_batch_seqs
    )
    assert client.step(first, pipeline_parallel=2, schedule="zbv").recipe.virtual_stages == 2
    with pytest.raises(
        InvalidInput, match=r"with pipeline_parallel=3 is not legal: .*does not divide"
    ):
        client.step(first, pipeline_parallel=3)


@pytest.mark.system
def test_a_report_is_drawn_by_the_service(
    client: RemoteStore, ids: tuple[Path, list[str]], tmp_path: Path
) -> None:
    told, own = tmp_path / "told.html", tmp_path / "own.html"
    assert client.report("first", out=told) == told
    frontrunner.report("first", out=own, store=str(ids[0] / "store.db"))
    told_text, own_text = told.read_text(), own.read_text()
    assert "--server http://127.0.0.1:8787" in told_text
    assert str(ids[0]) not in told_text, "where the service keeps its store is nobody's business"
    assert abs(len(told_text) - len(own_text)) < 1000


@pytest.mark.parametrize("name", ["a.svg", "a.png"])
def test_figures_are_drawn_by_the_service(
    client: RemoteStore, ids: tuple[Path, list[str]], tmp_path: Path, name: str
) -> None:
    made, own = tmp_path / name, tmp_path / f"own-{name}"
    assert client.plot("first", out=made, figure="speed-memory") == ([made], [])
    frontrunner.plot("first", out=own, figure="speed-memory", store=str(ids[0] / "store.db"))
    assert made.read_bytes() == own.read_bytes()


def test_what_cannot_be_drawn_or_written_is_said_as_here(
    client: RemoteStore, ids: tuple[Path, list[str]], tmp_path: Path
) -> None:
    at = str(ids[0] / "store.db")
    for ask in (client.plot, lambda *given, **named: frontrunner.plot(*given, store=at, **named)):
        with pytest.raises(NothingLegal, match=r"^figure shap cannot be drawn: .*measured"):
            ask("first", out=tmp_path / "x.svg", figure="shap")
        with pytest.raises(InvalidInput, match=r'--figure = "histogram": expected one of history'):
            ask("first", out=tmp_path / "x.svg", figure="histogram")
        with pytest.raises(NotFound, match="there is no folder"):
            ask("first", out=tmp_path / "none" / "x.svg", figure="history")
    with pytest.raises(InvalidInput, match=r"ends with \.html"):
        client.report("first", out=tmp_path / "x.txt")
    assert list(tmp_path.iterdir()) == []


def test_a_table_has_its_limit(ids: tuple[Path, list[str]]) -> None:
    chosen = settings(ids[0], Limits(frame_rows=3, requests_per_s=1e6, request_burst=1_000_000))
    with browser(chosen) as found:
        client = remote(found, tokens_of(chosen).reader)
        with pytest.raises(
            InvalidInput, match="has 4 finished attempts: a service makes a table of at most 3"
        ):
            client.dataframe("first")


def test_table_has_one_row_per_attempt(tmp_path: Path) -> None:
    lost = Failure(kind=FailureKind.LOST, message="", log_tail="")
    with open_store(str(tmp_path / "store.db"), create=True) as store:
        writer = start(store, "first")
        writer.set_state(CampaignState.RUNNING, reason="")
        record(writer, f"{1:012x}", measurement((1.0, 1.1), 4_000), number=1)
        record(writer, f"{2:012x}", lost, lost, lost, number=2)
        assert store.campaign("first").outcomes < frames.row_count(store, "first") == 4
        assert len(frames.frame(store, "first")) == 4
    for most, status in ((4, 200), (3, 422)):
        chosen = settings(tmp_path, replace(UNLIMITED, frame_rows=most))
        with browser(chosen) as service:
            service.headers["Authorization"] = f"Bearer {tokens_of(chosen).reader}"
            answer = service.get("/api/v1/campaigns/first/dataframe")
            assert answer.status_code == status


def test_a_recipe_is_named_to_a_service_as_to_a_store(
    client: RemoteStore, ids: tuple[Path, list[str]]
) -> None:
    first = ids[1][0]
    written = f" {first.upper()} "
    assert client.show(written) == client.show(first)
    contents = [
        json.loads(client.export(name, to="recipe"))["content"] for name in (written, first)
    ]
    assert contents[0] | {"origin": None} == contents[1] | {"origin": None}, (
        "but when they were written"
    )
    assert client.explain(written) == client.explain(first)
    for name in ("first", "second"):
        assert client.show(first, campaign=name).appearances[0].campaign.name == name


def test_missing_campaign_is_reported_without_the_store_s_name(
    client: RemoteStore, ids: tuple[Path, list[str]]
) -> None:
    with pytest.raises(NotFound, match=r"there is no campaign 'fisrt'$") as refused:
        client.status("fisrt")
    assert str(refused.value.hint) == "did you mean 'first'?"


def test_a_damaged_cell_is_refused_by_its_place_and_is_no_failure_of_the_service(
    tmp_path: Path,
) -> None:
    page_store(tmp_path)
    with browser(settings(tmp_path)) as found:
        asked = remote(found, tokens_of(settings(tmp_path)).reader)
        with closing(sqlite3.connect(tmp_path / "store.db")) as file, file:
            file.execute("PRAGMA ignore_check_constraints = ON")
            file.execute("UPDATE campaigns SET state = 'finishee' WHERE id = 1")
        for ask in (asked.campaigns, lambda: asked.status("first"), lambda: asked.best("first")):
            with pytest.raises(
                StoreUnusable, match='damaged: campaigns row 1, state: it holds "finishee"'
            ) as refused:
                ask()
            assert "there is no backup in its folder" in str(refused.value.hint)


def test_where_a_broken_store_is_operators_are_told_alone(tmp_path: Path) -> None:
    page_store(tmp_path)
    with browser(settings(tmp_path)) as found:
        (tmp_path / "store.db").write_bytes(b"SQLite format 3\0" + b"x" * 5000)
        tokens = tokens_of(settings(tmp_path))
        for token, is_told in ((tokens.reader, False), (tokens.operator, True)):
            with pytest.raises(StoreUnusable) as refused:
                remote(found, token).campaigns()
            assert (str(tmp_path) in f"{refused.value.message} {refused.value.hint}") == is_told


def test_what_commands_and_nodes_are_given_is_not_told(tmp_path: Path) -> None:
    """A campaign that was launched from a file with a key in its command, and another in what its
    nodes run first.
    """
    spec = spec_of(tiny(), tmp_path)
    told_to = {
        "environment": {"API": SECRET},
        "arguments": ["train", f"--api-key={SECRET}", "--api-key", SECRET],
    }
    text = json.loads(dump_json(spec))
    text["command"] |= told_to
    text["dispatch"] |= {"backend": "parsl", "scheduler": "slurm", "walltime": "02:00:00"}
    text["dispatch"] |= {
        "worker_init": [f"export WANDB={SECRET}"],
        "scheduler_options": [f"#SBATCH --export={SECRET}"],
    }
    text["changes"] = {"command.environment": [{"API": SECRET}, f'{{ API = "{SECRET}" }}']}
    recipe = spec.survey().recipes[0]
    with open_store(str(tmp_path / "store.db"), create=True) as store:
        made = store.create_campaign(
            name="tiny", spec_json=json.dumps(text), legal_recipes=1, problem_summary={}
        )
        writer = store.drive(store.acquire_lease(made.id, host="here", pid=1))
        writer.set_state(CampaignState.RUNNING, reason="")
        identity = recipe_id(spec.problem, recipe)
        for outcome in (
            measurement((1.0, 1.1), 4_000),
            Failure(kind=FailureKind.CRASHED, message="", log_tail=""),
        ):
            attempt = writer.start_attempt(writer.propose(identity, recipe), run_folder="/runs/1")
            writer.finish_attempt(attempt, outcome, retry=False)
            identity, recipe = f"{7:012x}", spec.survey().recipes[1]
        writer.release(CampaignState.FINISHED, reason="")
    chosen = settings(tmp_path, UNLIMITED)
    with browser(chosen) as service:
        service.headers["Authorization"] = f"Bearer {tokens_of(chosen).operator}"
        paths = [
            path
            for path in service.get("/api/v1/openapi.json").json()["paths"]
            if "events" not in path
        ]
        filled_in = {
            "{name}": "tiny",
            "{recipe_id}": recipe_id(spec.problem, spec.survey().recipes[0]),
        }
        for path in paths:
            for name, value in {**filled_in, "{number}": "2", "{figure}": "history"}.items():
                path = path.replace(name, value)  # noqa: PLW2901 - as a template is filled in
            answer = service.get(
                path, params={"objective": ["tokens", "nodes"], "first": "tiny", "second": "tiny"}
            )
            assert SECRET not in answer.text, path
        for to in ("recipe", "slurm", "pbs", "kubernetes"):
            answer = service.get(
                f"/api/v1/recipes/{filled_in['{recipe_id}']}/export", params={"to": to}
            )
            assert answer.status_code == 200
            assert SECRET not in answer.text
            assert "# Here belongs dispatch.worker_init of the campaign" in answer.text
            assert ("dispatch.scheduler_options of the campaign" in answer.text) == (to == "slurm")
        shown = remote(service, tokens_of(chosen).reader).show(filled_in["{recipe_id}"])
    known = stored_spec(shown.appearances[0].campaign)
    assert (known.problem, known.space) == (spec.problem, spec.space), "the rest is told as it is"
    assert known.command.environment == {"API": REDACTED}


def test_a_stranger_s_campaign_stands_behind_what_was_measured_here(tmp_path: Path) -> None:
    """Its [dispatch] would be lines of a script, its paths those of files here."""
    spec = spec_of(tiny(), tmp_path)
    recipes, evil = spec.survey().recipes[:2], json.loads(dump_json(spec))
    identity, secret = recipe_id(spec.problem, recipes[0]), tmp_path / "app" / "data" / "secret.log"
    secret.parent.mkdir(parents=True)
    secret.write_text("a secret")
    evil["dispatch"] |= {
        "backend": "parsl",
        "scheduler": "slurm",
        "walltime": "02:00:00",
        "worker_init": ["touch /x"],
    }
    evil["run_root"] = str(tmp_path)
    failed = Failure(kind=FailureKind.CRASHED, message="", log_tail="kept", log_path=str(secret))
    for name, text, folder in (
        ("own", dump_json(spec), tmp_path / "here"),
        ("app", json.dumps(evil), tmp_path / "there"),
    ):
        folder.mkdir()
        with open_store(str(folder / "store.db"), create=True) as store:
            made = store.create_campaign(
                name=name, spec_json=text, legal_recipes=1, problem_summary={}
            )
            writer = store.drive(store.acquire_lease(made.id, host="here", pid=1))
            writer.set_state(CampaignState.RUNNING, reason="")
            for recipe, outcome in zip(
                recipes, (measurement((1.0, 1.1), 4_000), failed), strict=True
            ):
                trial = writer.propose(recipe_id(spec.problem, recipe), recipe)
                writer.finish_attempt(
                    writer.start_attempt(trial, run_folder="/runs/1"), outcome, retry=False
                )
            writer.release(CampaignState.FINISHED, reason="")
    here = str(tmp_path / "here" / "store.db")
    frontrunner.copy_store(here, campaign="app", store=str(tmp_path / "there" / "store.db"))
    shown = frontrunner.show(identity, store=here)
    assert [(one.campaign.name, one.is_copied) for one in shown.appearances] == [
        ("own", False),
        ("app", True),
    ]
    assert "touch" not in frontrunner.export(identity, to="slurm", store=here)
    assert LocalStore(here).log("app", 2) == "kept"
    with browser(settings(tmp_path / "here")) as service:
        team = remote(service, tokens_of(settings(tmp_path / "here")).operator)
        with pytest.raises(Forbidden, match="campaign app was copied from another store"):
            team.resume("app")


def test_a_campaign_is_renamed_deleted_and_given_a_larger_budget_by_wire(tmp_path: Path) -> None:
    chosen = settings(tmp_path)
    with open_store(str(tmp_path / "store.db"), create=True) as store:
        spec = dump_json(spec_of(tiny(budget={"probes": 4})))
        store.create_campaign(name="it", spec_json=spec, legal_recipes=9, problem_summary={})
    with browser(chosen) as found:
        team = remote(found, tokens_of(chosen).operator)
        team.rename("it", "mine")
        (limit,) = team.change_budget("mine", {"probes": 2}, add=True)
        assert (limit.name, limit.used, limit.allowed) == ("probes", 0, 6)
        with pytest.raises(InvalidInput, match="no limit of minutes"):
            team.change_budget("mine", {"minutes": 2}, add=True)
        team.label("mine", tags=["paper", "paper"], note="it is ours")
        labels = Labels(tags=("paper",), note="it is ours", hidden=True)
        assert (
            team.label("mine", hidden=True)
            == team.label("mine")
            == team.campaigns()[0].labels
            == labels
        )
        with pytest.raises(InvalidInput, match="one of name, budget, and labels"):
            team._post(
                dict[str, Any], "/campaigns/mine", {"name": "other", "note": ""}, method="PATCH"
            )
        assert team.delete("mine", preview=True).is_preview
        assert [one.name for one in team.campaigns()] == ["mine"]
        team.delete("mine")
        assert not team.campaigns()
        reader = remote(found, tokens_of(chosen).reader)
        with pytest.raises(FrontrunnerError) as refused:
            reader.delete("mine")
        assert type(refused.value) is Forbidden
        with pytest.raises(Unauthorized, match="a valid token is needed"):
            remote(found, "of-nobody").campaigns()
