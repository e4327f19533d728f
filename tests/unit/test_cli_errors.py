"""The command line as a person's shell runs it: every mistake is one message, its exit code, and
nothing written.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from frontrunner.cli.main import EPILOG, SECTIONS, frontrunner
from frontrunner.cli.maintain import store
from frontrunner.cli.users import users
from frontrunner.config.settings import AT_HAND, BY_SERVER, BY_STORE, located
from frontrunner.results.process_identity import acting_user
from frontrunner.results.store import open_store
from frontrunner.spaces.errors import NothingLegal
from support.commands import warm_command_line

COMMANDS = [name for section in SECTIONS.values() for name in section]
CAMPAIGN = """
evaluator = "simulated"
[model]
layers = 4
hidden = 128
heads = 8
vocabulary = 257
[cluster]
device = "test"
backend = "cpu"
devices_per_node = 4
memory_gib_per_device = 1.0
[problem]
sequence_length = 128
global_batch = 16
precision = "fp32"
[space]
[budget]
probes = 1
"""


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith("FRONTRUNNER_")
    }
    return warm_command_line().run(arguments, cwd=cwd, environment=environment)


def error_of(finished: subprocess.CompletedProcess[str]) -> str:
    """What a command that failed as it should says: a line with the error, and perhaps one with a
    hint.
    """
    assert finished.stdout == ""
    lines = finished.stderr.splitlines()
    assert [line.partition(" ")[0] for line in lines] in (
        ["error:"],
        ["error:", "hint:"],
    ), finished.stderr
    assert all(line.isprintable() and len(line) < 400 for line in lines)
    return finished.stderr


@pytest.mark.parametrize("group", [(), ("store",)], ids=["frontrunner", "a group"])
def test_without_a_command_the_help_is_shown(group: tuple[str, ...], tmp_path: Path) -> None:
    bare, asked = run(*group, cwd=tmp_path), run(*group, "--help", cwd=tmp_path)
    assert (bare.returncode, bare.stdout, bare.stderr) == (0, asked.stdout, "")


def test_the_package_runs_as_a_module(tmp_path: Path) -> None:
    asked = [sys.executable, "-m", "frontrunner", "--version"]
    done = subprocess.run(asked, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("frontrunner, version")


@pytest.mark.parametrize("option_name", ["store", "server"])
def test_hints_name_the_store_or_the_service_that_was_given(option_name: str) -> None:
    known = {"store": BY_STORE, "server": BY_SERVER}[option_name].split("|")
    commands = {one: frontrunner.load(one) for one in COMMANDS}
    for group in (store, users):
        commands |= {f"{group.name} {name}": found for name, found in group.commands.items()}
    assert set(known) == {
        one
        for one, found in commands.items()
        if option_name in {option.name for option in found.params}
    }
    with click.Context(frontrunner) as context:
        assert located("frontrunner plan FILE") == "frontrunner plan FILE"
        context.meta[f"{AT_HAND}file"] = "my c.toml"
        assert located("frontrunner plan FILE") == "frontrunner plan 'my c.toml'"
        context.meta[f"{AT_HAND}{option_name}"] = "a b"
        option = f" --{option_name} 'a b'"
        assert (
            located("run: frontrunner best, or wait") == f"run: frontrunner best{option}, or wait"
        )
        assert (
            located("`frontrunner show 01` says why") == f"`frontrunner show 01{option}` says why"
        )
        assert located("frontrunner import-config x") == "frontrunner import-config x"
        assert (
            located(f"frontrunner best --{option_name} c") == f"frontrunner best --{option_name} c"
        )
        after = option if option_name == "store" else "  # where the store is"
        assert (
            located("frontrunner resume c --take-over")
            == f"frontrunner resume c --take-over{after}"
        )


@pytest.mark.parametrize(
    ("typed", "on_path", "begins"),
    [
        (".venv/bin/frontrunner", None, ".venv/bin/frontrunner"),
        (".venv/bin/frontrunner", "/usr/bin/frontrunner", ".venv/bin/frontrunner"),
        ("/bin/of mine/frontrunner", "/bin/of mine/frontrunner", "frontrunner"),
        ("/bin/of mine/frontrunner", None, "'/bin/of mine/frontrunner'"),
        ("/package/frontrunner/cli/__main__.py", None, "frontrunner"),
    ],
)
def test_commands_to_paste_begin_with_what_was_typed(
    typed: str, on_path: str | None, begins: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [typed])
    monkeypatch.setattr("frontrunner.config.settings.shutil.which", lambda _: on_path)
    with click.Context(frontrunner):
        assert (
            located("`frontrunner best`; run: frontrunner best")
            == f"`{begins} best`; run: {begins} best"
        )


MISTAKES: dict[str, tuple[list[str], int, str]] = {
    "launch of nothing": (["launch"], 2, r"expected a campaign FILE or --example NAME"),
    "launch of two": (
        ["launch", "c.toml", "--example", "laptop"],
        2,
        r"expected a campaign FILE or --example NAME",
    ),
    "unknown example": (
        ["launch", "--example", "lapto"],
        2,
        r"no example 'lapto'\nhint: did you mean 'laptop'\?",
    ),
    "unknown command": (
        ["laucnh", "c.toml"],
        2,
        r"no command 'laucnh'\nhint: did you mean 'launch'\?",
    ),
    "unknown option": (
        ["launch", "--nonsense", "c.toml"],
        2,
        r"No such option '--nonsense'.*\nhint: .* launch --help",
    ),
    "missing argument": (["show"], 2, "Missing argument 'RECIPE_ID'"),
    "a path that is not text": (
        ["launch", "\udcff.toml"],
        2,
        r"argument '\\udcff\.toml' is not valid UTF-8",
    ),
    "no such file": (["launch", "none.toml"], 2, "no campaign file at none.toml"),
    "key in the file": (
        ["launch", "bad.toml"],
        2,
        r"bad\.toml: model\.layers = 0: expected at least 1",
    ),
    "name with a line break": (
        ["launch", "c.toml", "--name", "a\nb"],
        2,
        r'name = "a\\nb": expected 1 to 64 of',
    ),
    "another kind of file": (["best", "--store", "c.toml"], 4, r"c\.toml is not an SQLite file"),
    "a campaign file for a recipe": (
        ["explain", "c.toml"],
        2,
        r"c\.toml: not valid .*\nhint: .* frontrunner plan c\.toml",
    ),
    "a choice without its file": (
        ["explain", "sharding=none"],
        2,
        r"id of a stored recipe, not sharding=none\nhint: .* FILE",
    ),
    "a form that is not known": (
        ["checkpoint", "export", "r", "--to", "gguf", "--out", "m"],
        2,
        '--to = "gguf": expected one of safetensors',
    ),
    "a tool that is not known": (
        ["export", "0123", "--to", "megatronlm"],
        2,
        "did you mean 'megatron-lm'",
    ),
    "no configuration": (
        ["import-config", "c.toml", "--from", "nemo", "--campaign", "c.toml", "--out", "r.json"],
        2,
        "c.toml: not usable YAML: expected a table of keys and values",
    ),
    "nothing legal": (
        ["launch", "illegal.toml"],
        7,
        "none of the space's 2 points is legal: 2 x global-batch",
    ),
    "unknown store command": (
        ["store", "chekc"],
        2,
        r"no command 'store chekc'\nhint: did you mean 'check'\?",
    ),
    "no archive": (["store", "import-archive", "none.jsonl"], 2, r"no archive at none\.jsonl"),
    "a name for all campaigns": (
        ["store", "copy", "--to", "new.db", "--name", "other"],
        2,
        '--name = "other": expected --campaign with it',
    ),
    "a server that is not there": (
        ["best", "--store", "postgresql+psycopg://me:hush@127.0.0.1:1/d"],
        4,
        (
            r"postgresql\+psycopg://me:\[redacted\]@127\.0\.0\.1:1/d cannot be reached: .*\nhint:"
            r" check host, port"
        ),
    ),
    "no store": (["best"], 2, "there is no store at .*frontrunner.db"),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with one good campaign file and some bad ones."""
    (tmp_path / "c.toml").write_text(CAMPAIGN)
    (tmp_path / "bad.toml").write_text(CAMPAIGN.replace("layers = 4", "layers = 0"))
    (tmp_path / "syntax.toml").write_text("[model]]\n")
    illegal = CAMPAIGN.replace("global_batch = 16", "global_batch = 7")
    (tmp_path / "illegal.toml").write_text(
        illegal.replace("[space]", "[space]\nmicro_batch_seqs = [2, 3]")
    )
    return tmp_path


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_is_one_line_an_exit_code_and_nothing_written(case: str, folder: Path) -> None:
    arguments, code, message = MISTAKES[case]
    before = sorted(entry.name for entry in folder.iterdir())
    finished = run(*arguments, cwd=folder)
    assert re.search(message, error_of(finished))
    assert finished.returncode == code
    assert sorted(entry.name for entry in folder.iterdir()) == before


def test_a_recipe_that_was_only_simulated_is_not_profiled(folder: Path) -> None:
    launched = run("launch", "c.toml", "--json", cwd=folder)
    recipe = json.loads(launched.stdout)["best"][0]["recipe_id"]
    before = sorted(entry.name for entry in folder.iterdir())
    finished = run("profile", recipe, cwd=folder)
    assert (
        f"recipe {recipe} is of a simulated campaign, so there is no training to profile"
        in error_of(finished)
    )
    assert finished.returncode == 2
    unknown = run("profile", "abcdefabcdef", cwd=folder)
    assert "no recipe id begins with 'abcdefabcdef'" in error_of(unknown)
    assert unknown.returncode == 2
    assert sorted(entry.name for entry in folder.iterdir()) == before


def test_a_launch_that_measured_nothing_is_no_success(folder: Path) -> None:
    small = re.sub(r"(memory_gib_per_device) = .*", r"\1 = 0.0001", CAMPAIGN)
    (folder / "c.toml").write_text(small + "[search]\nprune_infeasible = false\n")
    finished = run("launch", "c.toml", cwd=folder)
    assert "error: campaign c has no measured recipe" in finished.stderr
    assert finished.returncode == NothingLegal.exit_code


def test_label_changes_what_it_is_given_and_nothing_else(folder: Path) -> None:
    run("launch", "c.toml", cwd=folder)

    def labels(*options: str) -> Any:
        return json.loads(run("label", "c", *options, "--json", cwd=folder).stdout)

    first = labels("--tag", "a", "--note", "why", "--hide")
    assert first == {"tags": ["a"], "note": "why", "hidden": True}
    assert labels("--untag", "a", "--tag", "b") == first | {"tags": ["b"]}
    assert labels("--unhide") == {"tags": ["b"], "note": "why", "hidden": False} == labels()


def test_resume_reports_a_changed_file_and_raises_the_budget(folder: Path) -> None:
    (folder / "c.toml").write_text(
        CAMPAIGN.replace("[space]", "[space]\nmicro_batch_seqs = [1, 2, 4]")
    )
    assert run("launch", "c.toml", "--store", "s.db", cwd=folder).returncode == 0
    assert "warning" not in run("resume", "--store", "s.db", cwd=folder).stderr

    def warning(old: str, new: str) -> str:
        (folder / "c.toml").write_text((folder / "c.toml").read_text().replace(old, new))
        return run("resume", "--store", "s.db", cwd=folder).stderr.splitlines()[0]

    what = (
        f"warning: {folder}/c.toml differs ({{}}) from campaign c, which goes on as it is stored;"
        " to use "
    )
    command = "frontrunner resume c --probes 2 --store s.db"
    assert warning("probes = 1", "probes = 2") == what.format("budget") + f"it: {command}"
    raised = run(*command.split()[1:], cwd=folder)
    assert "budget is used up: 2 of 2 probes" in raised.stderr
    with open_store(str(folder / "s.db")) as store:
        events = store.events(store.campaign(None).id)
    assert [event.data for event in events if event.kind == "budget"] == [
        {"probes": 2, "probes_before": 1, "user": acting_user()}
    ]
    again = (
        f"the file, and the results that still hold: frontrunner launch {folder}/c.toml --store"
        " s.db"
    )
    assert warning("_device = 1.0", "_device = 2.0") == what.format("cluster") + again
    refused = run("resume", "--store", "s.db", "--probes", "0", cwd=folder)
    assert "error: budget.probes = 0: expected a number above 0" in refused.stderr


def test_a_budget_changed_by_a_command_is_no_change_of_the_file(folder: Path) -> None:
    assert run("launch", "c.toml", cwd=folder).returncode == 0
    for _ in range(2):
        assert run("budget", "--add", "--probes", "1", cwd=folder).returncode == 0
    assert "warning" not in run("resume", cwd=folder).stderr
    (folder / "c.toml").write_text(CAMPAIGN.replace("probes = 1", "probes = 4"))
    assert "to use it: frontrunner resume c --probes 4" in run("resume", cwd=folder).stderr


def test_a_file_launched_with_set_is_compared_with_what_was_set(folder: Path) -> None:
    assert run("launch", "c.toml", "--set", "budget.probes=2", cwd=folder).returncode == 0
    assert "warning" not in run("resume", cwd=folder).stderr
    (folder / "c.toml").write_text(CAMPAIGN.replace("_device = 1.0", "_device = 2.0"))
    assert "differs (cluster)" in (seen := run("resume", cwd=folder).stderr)
    assert f"frontrunner launch {folder}/c.toml --set budget.probes=2" in seen
    (folder / "c.toml").write_text(CAMPAIGN.replace("probes = 1", "probes = 3"))
    assert "differs (budget)" in (seen := run("resume", cwd=folder).stderr)
    assert "to use it: frontrunner resume c --probes 3" in seen


def test_or_resume_warns_of_values_by_set_that_it_does_not_read(folder: Path) -> None:
    command = ("launch", "c.toml", "--or-resume", "--set", "search.seed=1")
    assert run(*command, cwd=folder).returncode == 0
    assert "warning" not in run(*command, cwd=folder).stderr
    seen = run(*command, "--set", "budget.probes=3", cwd=folder).stderr
    assert (
        "warning: campaign c goes on as it was launched; not read: --set budget.probes=3\n" in seen
    )


def test_a_budget_that_measuring_again_passed_says_how_to_go_on(folder: Path) -> None:
    assert run("launch", "c.toml", cwd=folder).returncode == 0
    assert run("measure", "--confirm", "1", "--repeats", "2", cwd=folder).returncode == 0
    added = run("budget", "--add", "--probes", "1", cwd=folder)
    assert (added.stdout, added.stderr) == (
        "3 of 2 probes\n",
        "used up; to go on: frontrunner resume c --probes 4\n",
    )
    assert "to go on: frontrunner resume c --probes 4" in run("resume", cwd=folder).stderr
    assert run("resume", "c", "--probes", "4", cwd=folder).returncode == 0
    assert run("budget", cwd=folder).stderr == ""


def test_a_used_up_budget_of_node_hours_and_money_names_both_options(folder: Path) -> None:
    limits = (
        "--set",
        "budget.node_hours=1e-9",
        "--set",
        "budget.cost=1e-9",
        "--set",
        "cluster.price_per_node_hour=9",
    )
    assert run("launch", "c.toml", *limits, cwd=folder).returncode == 0
    assert (
        run("budget", cwd=folder).stderr
        == "used up; to go on: frontrunner resume c --probes 2 --node-hours 1 --cost 1\n"
    )


def test_a_wrong_value_of_set_is_not_blamed_on_the_file(folder: Path) -> None:
    seen = run("launch", "c.toml", "--set", "budget.probe=3", cwd=folder).stderr
    assert seen.startswith("error: --set: unknown key budget.probe = 3\n")
    text = (folder / "c.toml").read_text()
    (folder / "bad.toml").write_text(text.replace("heads = 8", "heads = 0"))
    seen = run("launch", "bad.toml", "--set", "budget.probes=3", cwd=folder).stderr
    assert seen.startswith("error: bad.toml: model.heads")


def test_measure_ends_with_the_code_of_what_it_could_not_measure(folder: Path) -> None:
    assert run("launch", "c.toml", cwd=folder).returncode == 0
    done = run("measure", "--confirm", "1", "--json", cwd=folder)
    assert (done.returncode, json.loads(done.stdout)["unmade"]) == (0, 0)
    (folder / "small.toml").write_text(CAMPAIGN.replace("_device = 1.0", "_device = 0.001"))
    failed = json.loads(run("launch", "small.toml", "--json", cwd=folder).stdout)
    assert not failed["best"]
    (recipe,) = (
        row["trial"]["recipe_id"]
        for row in json.loads(run("failures", "small", "--json", cwd=folder).stdout)
    )
    again = run("measure", recipe, "--campaign", "small", cwd=folder)
    assert again.returncode == 6
    assert "error: campaign small: 0 of 1 measured as asked\n" in again.stderr


def test_a_space_with_nothing_legal_is_still_described(folder: Path) -> None:
    finished = run("space", "illegal.toml", cwd=folder)
    assert finished.returncode == 7
    assert "0 legal recipes" in finished.stdout
    assert "does not divide global batch 7" in finished.stdout
    assert finished.stderr.startswith("error: no recipe of this space is legal\nhint: ")


def test_the_version_is_the_package_s(tmp_path: Path) -> None:
    from frontrunner import __version__

    finished = run("--version", cwd=tmp_path)
    assert finished.returncode == 0
    assert finished.stdout.strip().endswith(__version__)


@pytest.mark.parametrize(
    "command",
    [*COMMANDS, *(f"store {part}" for part in store.commands)],
)
def test_help_fits_a_screen_and_has_examples(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    frontrunner([*command.split(), "--help"], "frontrunner", standalone_mode=False)
    text = capsys.readouterr().out
    assert len(text.splitlines()) <= 50
    assert max(map(len, text.splitlines())) <= 80
    assert len(re.findall(rf"^\s+frontrunner {command}\b", text, re.MULTILINE)) >= 2


def test_help_of_all_fits_a_screen(capsys: pytest.CaptureFixture[str]) -> None:
    frontrunner(["--help"], standalone_mode=False)
    text = capsys.readouterr().out
    assert len(text.splitlines()) <= 64
    [name] = re.findall(r"frontrunner (\w+)", EPILOG)
    assert name in COMMANDS
