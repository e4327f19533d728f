"""The service as a process: campaigns that outlive it, and its Python client."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from itertools import takewhile
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest

import frontrunner
from frontrunner.remote import RemoteStore
from frontrunner.results.store import open_store
from frontrunner.search.campaign_setup import create, stored_spec
from frontrunner.server.drivers import CHILD
from frontrunner.spaces.errors import InvalidInput, NotFound, ServiceUnreachable
from support.campaigns import spec_of, tiny, wait_for, write_toml
from support.services import BODY, Served, filled, served, settings, tokens_of

OPENED = 150
"""Connections: more than one address may hold, and fewer requests than a burst may have."""
LONG = BODY | {
    "name": "long",
    "model": {"layers": 48, "hidden": 6144, "heads": 48, "vocabulary": 51200},
    "cluster": {"preset": "frontier", "nodes": 8},
    "problem": {"sequence_length": 2048, "global_batch": 512, "precision": "bf16"},
    "space": {
        "tensor_parallel": [1, 2, 4, 8],
        "pipeline_parallel": [1, 2, 4, 8],
        "micro_batch_seqs": [1, 2, 4, 8],
        "schedule": ["1f1b", "gpipe"],
        "sharding": ["none", "zero-1", "zero-2", "zero-3"],
        "recompute": ["none", "full", "selective"],
    },
    "search": {"strategy": "guided", "stop_below_improvement": 0.0},
    "budget": {},
}
"""Some 1,000 recipes, at 20 ms or more each: it does not end while a test looks at it."""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("served")) as found:
        yield found


def outcomes(client: RemoteStore, name: str) -> int:
    return client.status(name).campaign.outcomes


def test_a_campaign_goes_on_while_the_service_is_killed_and_restarted(service: Served) -> None:
    client = service.start()
    name = client.launch(LONG)
    assert name == "long"
    wait_for(lambda: outcomes(client, name) >= 3)
    driver = client.drivers()[0]
    service.kill()
    with pytest.raises(ServiceUnreachable, match="no service at"):
        client.campaigns()

    client = service.start()
    found = client.drivers()[0]
    assert (found.pid, found.is_live) == (driver.pid, True)
    before = outcomes(client, name)
    wait_for(lambda: outcomes(client, name) > before)
    assert os.getsid(driver.pid) == driver.pid

    client.pause(name)
    wait_for(lambda: client.status(name).campaign.state == "paused")
    assert client.status(name).campaign.state_reason == "paused by request"
    assert client.drivers() == []
    paused_at = outcomes(client, name)

    client.resume(name)
    wait_for(lambda: outcomes(client, name) > paused_at)
    with pytest.raises(frontrunner.spaces.errors.FrontrunnerError, match="long is driven by"):
        client.resume(name)
    client.cancel(name)
    wait_for(lambda: client.status(name).campaign.state == "stopped")
    assert service.process
    children = psutil.Process(service.process.pid).children
    wait_for(lambda: all(child.status() != psutil.STATUS_ZOMBIE for child in children()))
    asked = [
        (event.kind, event.data.get("word"))
        for event in client.history(name).items
        if event.user is not None
    ]
    assert asked[::-1] == [
        ("launched", None),
        ("requested", "pause"),
        ("resumed", None),
        ("requested", "cancel"),
    ]
    ranking = client.best(name, top=3)
    assert [row.rank for row in ranking] == [1, 2, 3]
    kinds = [
        event.kind for event in takewhile(lambda event: event.kind != "state", client.events(name))
    ]
    trials = client.trials(name, page_size=200).items
    told = [trial for trial in trials if trial.outcome_number is not None]
    assert kinds.count("outcome") == len(told), "one a trial, also of one that was measured twice"
    with pytest.raises(frontrunner.spaces.errors.FrontrunnerError, match="is not running"):
        client.stop(name)


def test_two_services_on_one_store_see_and_stop_one_driver(tmp_path: Path) -> None:
    with served(tmp_path) as one, served(tmp_path) as other:
        first, second = one.start(), other.start()
        name = first.launch(LONG)
        wait_for(lambda: outcomes(second, name) >= 1)
        assert [driver.pid for driver in second.drivers()] == [
            driver.pid for driver in first.drivers()
        ]
        with pytest.raises(frontrunner.spaces.errors.FrontrunnerError, match="long is driven by"):
            second.resume(name)
        with pytest.raises(InvalidInput, match="exists already"):
            second.launch(LONG)
        second.cancel(name)
        wait_for(lambda: first.status(name).campaign.state == "stopped")


def test_a_driver_that_is_refused_is_answered_as_that(tmp_path: Path) -> None:
    """Two resumes at once, of which one has the lease: the other's answer is no success."""
    url = str(tmp_path / "store.db")
    with open_store(url) as store:
        record = create(store, spec_of(tiny(evaluator="simulated"), tmp_path), 9)
        store.acquire_lease(record.id, host="elsewhere.example", pid=1)
    command = [sys.executable, "-P", "-m", CHILD, "resume", "tiny"]
    environment = os.environ | {"FRONTRUNNER_STORE": url}
    done = subprocess.run(command, input=b"{}", env=environment, capture_output=True, check=False)
    (line,) = done.stdout.splitlines()
    assert (json.loads(line)["error"]["kind"], done.returncode) == ("AlreadyDriven", 5)


def test_the_client_answers_as_the_local_functions_do(service: Served) -> None:
    if service.process is None or service.process.poll() is not None:
        service.start()
    client = frontrunner.connect(service.url, token=tokens_of(settings(service.folder)).reader)
    operator = frontrunner.connect(service.url, token=tokens_of(settings(service.folder)).operator)
    name = operator.launch(BODY)
    wait_for(lambda: client.status(name).campaign.state == "finished")
    at = str(service.folder / "store.db")
    assert client.campaigns() == frontrunner.campaigns(store=at)
    assert client.status(name) == frontrunner.status(name, store=at)
    assert client.best(name) == client.best() == frontrunner.best(name, store=at)
    assert client.pareto(name) == frontrunner.pareto(name, store=at)
    assert client.front(name) == frontrunner.front(name, store=at)
    assert client.failures(name) == frontrunner.failures(name, store=at)
    recipe = client.best(name)[0].recipe_id
    assert client.show(recipe) == frontrunner.show(recipe, store=at)
    for to in ("megatron-lm", "slurm"):
        assert _undated(client.export(recipe, to=to)) == _undated(
            frontrunner.export(recipe, to=to, store=at)
        )
    for to in ("../../etc/passwd", "optuna", ""):
        with pytest.raises(InvalidInput):
            client.export(recipe, to=to)
    explained, own = client.explain(recipe), frontrunner.explain(recipe, store=at)
    assert (explained.estimate, explained.ranks, explained.marks) == (
        own.estimate,
        own.ranks,
        own.marks,
    )
    assert client.dataframe(name).equals(frontrunner.dataframe(name, store=at))
    assert client.recipes(name, tensor_parallel=2).total >= 1
    assert client.trials(name).total == 3
    assert len(client.plan(BODY, top=1).estimates) == 1
    with pytest.raises(NotFound, match="no campaign 'none'"):
        client.best("none")
    with pytest.raises(InvalidInput, match="names no campaign"):
        client.best("../x")
    with pytest.raises(InvalidInput, match=r"model\.layers = 0"):
        operator.launch(BODY | {"model": BODY["model"] | {"layers": 0}})
    with pytest.raises(
        frontrunner.spaces.errors.FrontrunnerError, match="a reader's token may read"
    ):
        client.launch(BODY)
    nameless = {key: value for key, value in BODY.items() if key != "name"}
    assert operator.launch(write_toml(service.folder / "by-wire.toml", nameless)) == "by-wire-2"
    wait_for(lambda: client.status("by-wire-2").campaign.state == "finished")
    assert operator.resume() == "by-wire-2"


def _undated(text: str) -> list[str]:
    """The lines that do not change with the second: a recipe file's hash is also of when it was
    written.
    """
    return [
        line
        for line in text.splitlines()
        if not any(word in line for word in ("written 20", "written_at", '"hash"'))
    ]


def test_the_reading_commands_ask_a_service(service: Served) -> None:
    if service.process is None or service.process.poll() is not None:
        service.start()
    at = str(service.folder / "store.db")
    environment = os.environ | {
        "FRONTRUNNER_TOKEN": tokens_of(settings(service.folder)).reader,
        "COLUMNS": "120",
    }

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-P", "-m", "frontrunner.cli", *arguments]
        return subprocess.run(
            argv, env=environment, capture_output=True, text=True, timeout=600, check=False
        )

    by_wire = run("campaigns", "--json", "--server", service.url)
    assert by_wire.stdout == run("campaigns", "--json", "--store", at).stdout
    assert json.loads(by_wire.stdout)
    recipe = frontrunner.best(store=at)[0].recipe_id
    exported = run("export", recipe, "--to", "nemo", "--server", service.url)
    assert _undated(exported.stdout) == _undated(
        run("export", recipe, "--to", "nemo", "--store", at).stdout
    )
    assert exported.returncode == 0
    file = run("export", "recipe.json", "--to", "nemo", "--server", service.url)
    assert (file.returncode, "a RECIPE_ID with it" in file.stderr) == (2, True)
    both = run("best", "--server", service.url, "--store", at)
    assert (both.returncode, "are both given" in both.stderr) == (2, True)
    with pytest.raises(ServiceUnreachable, match="no service at"):
        frontrunner.connect("http://127.0.0.1:9", token="x").best()


def test_a_stream_can_be_left_and_opened_again(service: Served) -> None:
    if service.process is None or service.process.poll() is not None:
        service.start()
    client = frontrunner.connect(service.url, token=tokens_of(settings(service.folder)).operator)
    name = client.launch(BODY | {"name": "streamed"})
    for _ in range(3):
        events = client.events(name)
        assert next(events).kind in (
            "event",
            "state",
        )  # the state, where no event has been recorded yet
        events.close()


@pytest.mark.smoke
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_service_starts_answers_and_stops(number: signal.Signals, tmp_path: Path) -> None:
    filled(tmp_path)
    with served(tmp_path) as service:
        assert [campaign.name for campaign in service.start().campaigns()] == ["first"]
        assert service.process
        service.process.send_signal(number)
        assert service.process.wait(timeout=600) in (0, -signal.SIGTERM)


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("is_answered", "request_line", "header"),
    [
        pytest.param(False, b"", b"", id="silent"),
        pytest.param(False, b"GET /healthz", b"", id="no end of the head"),
        pytest.param(True, b"GET /healthz", b"", id="no end of the second head"),
        pytest.param(False, b"POST /login", b"Content-Length: 9\r\n\r\n", id="no body"),
    ],
)
def test_connections_that_wait_keep_nobody_out(
    tmp_path: Path, is_answered: bool, request_line: bytes, header: bytes
) -> None:
    sent = request_line and request_line + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n" + header
    with served(tmp_path) as service, ExitStack() as stack:
        client = service.start()
        address = ("127.0.0.1", urlsplit(service.url).port)
        waiting = [
            stack.enter_context(socket.create_connection(address, timeout=30))
            for _ in range(OPENED)
        ]
        for one in waiting:
            with suppress(OSError):  # closed, since newer ones came
                if is_answered:
                    one.sendall(sent + b"\r\n")
                    one.recv(1)
                one.sendall(sent)
        client.campaigns()  # is answered
        assert sent or waiting[0].recv(1) == b"", "closed: the oldest"


def test_no_port_twice_and_no_open_door(tmp_path: Path) -> None:
    def refused(*arguments: str) -> str:
        argv = [
            sys.executable,
            "-P",
            "-m",
            "frontrunner.cli",
            "serve",
            "--token-file",
            "t.json",
            *arguments,
        ]
        done = subprocess.run(
            argv, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False
        )
        assert done.returncode != 0
        assert done.stdout == ""
        return done.stderr

    assert "no --allow-host gives its name" in refused("--host", "0.0.0.0")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert "cannot listen on 127.0.0.1" in refused("--port", str(taken.getsockname()[1]))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.nightly
def test_real_probes_and_a_replay_by_wire(tmp_path: Path) -> None:
    body: dict[str, Any] = BODY | {
        "evaluator": "probe",
        "cluster": {"preset": "this-machine", "devices_per_node": 2},
        "model": {"layers": 2, "hidden": 32, "heads": 2, "vocabulary": 257},
        "problem": {"sequence_length": 32, "global_batch": 4, "precision": "fp32"},
        "space": {"tensor_parallel": [1, 2]},
        "probe": {"foreign_load_limit": 1.0},
        "budget": {"probes": 2},
    }
    with served(tmp_path) as service:
        client = service.start()
        name = client.launch(body)
        wait_for(lambda: client.status(name).campaign.state == "finished")
        best = client.best(name)[0]
        started = client.replay(best.recipe_id, steps=5)
        assert started.recipe_id == best.recipe_id
        wait_for(lambda: client.watch_replay(best.recipe_id).state != "running")
        done = client.watch_replay(best.recipe_id)
        assert (done.state, done.step) == ("finished", 5), done.log_tail
        endless = client.replay(client.best(name)[-1].recipe_id, steps=1_000_000)
        wait_for(lambda: client.watch_replay(endless.recipe_id).step > 0)
        client.stop_replay(endless.recipe_id)
        wait_for(lambda: client.watch_replay(endless.recipe_id).state == "stopped")
        assert client.watch_replay(endless.recipe_id).checkpoint_step > 0
        assert endless.pid is not None
        wait_for(lambda: not psutil.pid_exists(endless.pid or 0) or _is_zombie(endless.pid))
        assert service.process
        service.process.send_signal(signal.SIGTERM)
        assert service.process.wait(timeout=600) in (0, -signal.SIGTERM)


def _is_zombie(pid: int | None) -> bool:
    return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_a_registered_trainer_is_launched_by_its_name_and_its_secrets_stay(tmp_path: Path) -> None:
    """The campaign measures by the operator's command; the store holds the command, and no answer
    holds its key.
    """
    trainer = Path(__file__).parent.parent / "support" / "fake_trainer.py"
    pattern = r"^step (?P<step>\d+): (?P<step_time_s>[\d.]+) s loss (?P<loss>\S+)"
    arguments = [
        "{python}",
        str(trainer),
        "fast",
        "--micro-batch",
        "{micro_batch_seqs}",
        "--steps",
        "{steps}",
    ]
    (tmp_path / "fake.toml").write_text(
        f"[command]\narguments = {json.dumps(arguments)}\nlog_patterns = ['{pattern}']\n"
        '[command.environment]\nAPI = "hunter2"\nTP = "{tensor_parallel}.{pipeline_parallel}"\n'
    )
    body = tiny(search={"strategy": "random"}, budget={"probes": 2}) | {
        "name": "named",
        "trainer": "fake",
    }
    with served(tmp_path) as service:
        client = service.start("--trainer", f"fake={tmp_path / 'fake.toml'}")
        assert client.registered()["trainer"] == {"fake": "a command"}
        with pytest.raises(InvalidInput, match=r'trainer = "other": expected one of fake'):
            client.launch(body | {"trainer": "other"})
        name = client.launch(body)
        wait_for(lambda: client.status(name).campaign.state not in ("running", "created"))
        best = client.best(name)
        assert best, client.failures(name)
        assert "hunter2" not in client.status(name).campaign.spec_json
        assert "hunter2" not in client.show(best[0].recipe_id).appearances[0].campaign.spec_json
        with open_store(str(tmp_path / "store.db"), read_only=True) as store:
            spec = stored_spec(store.campaign(name))
        assert (spec.evaluator, spec.command.environment["API"]) == ("command", "hunter2")
        assert spec.command.arguments == tuple(arguments)
