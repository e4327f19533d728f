"""Secrets of the environment are looked for in everything that a campaign leaves and answers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from frontrunner.config.campaign import parse_campaign
from frontrunner.results.redaction import REDACTED, looks_secret, without_secrets
from frontrunner.spaces.errors import InvalidInput
from support.campaigns import command, environment, tiny, write_toml
from support.postgresql import Server
from support.services import bearer, browser, settings, tokens_of

SECRETS = {
    "AWS_SECRET_ACCESS_KEY": "planted0aws0wJalrXUtnFEMI",
    "HF_TOKEN": "planted0hf0abcdefghijklmnop",
    "WANDB_API_KEY": "planted0wandb00112233445566",
    "SOME_PASSWORD": "planted0password0hunter2",
    "FRONTRUNNER_TOKEN": "planted0service0token00000000000000000000",
}
PLANTED = b"planted0"
ONE_CHOICE = {"tensor_parallel": [1], "pipeline_parallel": [1], "micro_batch_seqs": [1, 2]}
TELLTALE = """
import os, sys
print("started with " + repr(dict(os.environ)), flush=True)
raise RuntimeError("cannot log in with " + os.environ["HF_TOKEN"] + " and " + os.environ["SOME_PASSWORD"])
"""  # noqa: E501
"""A trainer that prints all it knows, and dies of it."""


def run(folder: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    variables = environment() | SECRETS | more
    return subprocess.run(
        command(*arguments),
        cwd=folder,
        env=variables,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def holding(folder: Path, *, but: str) -> list[str]:
    """The files below a folder in which a secret stands, apart from those with a name."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != but]
    return [str(path.relative_to(folder)) for path in files if PLANTED in path.read_bytes()]


def campaign(**sections: object) -> dict[str, object]:
    return tiny(budget={"probes": 1}, **sections)  # type: ignore[arg-type]


@pytest.mark.nightly
def test_a_trainer_that_prints_its_environment_tells_nobody_but_its_own_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "trainer.py").write_text(TELLTALE)
    section = {
        "arguments": [sys.executable, "trainer.py", "{micro_batch_seqs}"],
        "pass_environment": ["PATH", *SECRETS],
        "log_patterns": ["step (?P<step>[0-9]+)"],
    }
    write_toml(
        tmp_path / "t.toml", {"evaluator": "command", **campaign(command=section, space=ONE_CHOICE)}
    )
    said = [run(tmp_path, "launch", "t.toml")]
    for asked in (
        ("status",), ("failures",), ("campaigns",), ("store", "check"),
        ("store", "copy", "--campaign", "tiny", "--to", "t.db"),
        ("dataframe", "--out", "t.csv"), ("store", "backup", "backup.db"),
    ):  # fmt: skip
        said.append(run(tmp_path, *asked))
    for done in said:
        assert PLANTED.decode() not in done.stdout + done.stderr, done.args
        assert "Traceback (most recent call last)" not in done.stderr
    assert "RuntimeError: cannot log in with [redacted] and [redacted]" in said[2].stdout
    assert (tmp_path / "t.db").exists()
    assert (tmp_path / "backup.db").exists()
    assert holding(tmp_path, but="command.log") == []
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    chosen = settings(tmp_path)
    (tmp_path / "frontrunner.db").rename(tmp_path / "store.db")
    with browser(chosen) as asking:
        headers = bearer(tokens_of(chosen).operator)
        for path in ("", "/tiny", "/tiny/failures", "/tiny/recipes", "/tiny/trials/1/log"):
            answer = asking.get(f"/api/v1/campaigns{path}", headers=headers)
            assert PLANTED not in answer.content, path
        assert PLANTED not in asking.get("/metrics", headers=headers).content


def test_a_real_probe_leaves_no_secret_anywhere(tmp_path: Path) -> None:
    write_toml(tmp_path / "t.toml", campaign())
    done = run(tmp_path, "launch", "t.toml")
    assert done.returncode == 0, done.stderr
    recipe = run(tmp_path, "best", "--json")
    shown = [done, recipe, run(tmp_path, "show", recipe.stdout.split('"recipe_id": "')[1][:12])]
    assert not any(PLANTED.decode() in one.stdout + one.stderr for one in shown)
    assert holding(tmp_path, but="") == []


def test_a_database_s_password_is_in_no_file_and_no_answer(
    postgresql_server: Server, tmp_path: Path
) -> None:
    url = postgresql_server.new_store().replace("@", f":{SECRETS['SOME_PASSWORD']}@")
    write_toml(tmp_path / "t.toml", {"evaluator": "simulated", **campaign()})
    asked = (
        ("launch", "t.toml"),
        ("status",),
        ("best",),
        ("store", "copy", "--campaign", "tiny", "--to", "t.db"),
        ("store", "copy", "--to", "c.db"),
    )
    for arguments in asked:
        done = run(tmp_path, *arguments, FRONTRUNNER_STORE=url)
        assert done.returncode == 0, done.stderr
        assert PLANTED.decode() not in done.stdout + done.stderr
    assert holding(tmp_path, but="") == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HF_TOKEN", "x"),
        ("MY_API_KEY", "x"),
        ("X", "hf_abcdefghijklmnop"),
        ("DB", "pg://me:pw@host/d"),
    ],
)
def test_a_secret_in_the_campaign_file_s_environment_is_refused(name: str, value: str) -> None:
    table = campaign(command={"arguments": ["true"], "environment": {name: value}})
    with pytest.raises(
        InvalidInput, match=f"command.environment.{name} looks like a secret"
    ) as refused:
        parse_campaign(table, default_name="t", base=Path())
    assert value not in refused.value.message or value == "x"
    assert "pass_environment" in str(refused.value.hint)


def test_ordinary_variables_are_no_secrets() -> None:
    for name in ("TOKENIZERS_PARALLELISM", "OMP_NUM_THREADS", "PASSENGERS", "AUTHOR"):
        assert not looks_secret(name, "false")
    assert (
        without_secrets("PATH is /usr/bin", {"PATH": "/usr/bin", "A_TOKEN": "is"})
        == "PATH is /usr/bin"
    )


def test_secrets_that_begin_alike_leave_no_end_and_paths_are_told() -> None:
    environment = {
        "A_TOKEN": "abcdefgh",
        "B_TOKEN": "abcdefgh1234",
        "SSH_AUTH_SOCK": "/run/agent/socket",
    }
    environment |= {"GOOGLE_APPLICATION_CREDENTIALS": "/home/me/key.json"}
    said = "abcdefgh1234 of /home/me/key.json by /run/agent/socket"
    assert (
        without_secrets(said, environment)
        == f"{REDACTED} of /home/me/key.json by /run/agent/socket"
    )
