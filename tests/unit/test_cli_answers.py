"""What the reading commands answer from a real store, for people and for programs."""

from __future__ import annotations

import csv
import json
import os
import pty
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from support.campaigns import command
from support.commands import warm_command_line

CAMPAIGN = """
evaluator = "simulated"
[model]
layers = 4
hidden = 128
heads = 8
kv_heads = 4
vocabulary = 257
[cluster]
device = "test"
backend = "cpu"
devices_per_node = 4
memory_gib_per_device = 0.272
peak_tflops = { fp32 = 1.0 }
[problem]
sequence_length = 128
global_batch = 16
precision = "fp32"
[space]
tensor_parallel = [1, 2, 4]
pipeline_parallel = [1, 2, 4]
micro_batch_seqs = [1, 2, 4]
sharding = ["none", "zero-1"]
recompute = ["none", "full"]
[search]
strategy = "exhaustive"
[budget]
probes = 30
"""
PROBES = 30
ESCAPE = "\x1b"
UNBROKEN = ("choices: ", "  log: ", "on ", "command: ")
"""Beginnings of lines that are left to the terminal to wrap, so that they can be copied whole."""
READING = (["best"], ["status"], ["failures"], ["campaigns"], ["show"], ["space", "sim.toml"])


def environment(**more: str) -> dict[str, str]:
    left_out = ("FRONTRUNNER_", "COLUMNS", "NO_COLOR", "FORCE_COLOR", "TERM")
    return {key: value for key, value in os.environ.items() if not key.startswith(left_out)} | more


@cache
def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, once: in a folder of these tests it answers the same to all who ask
    again.
    """
    return warm_command_line().run(arguments, cwd=cwd, environment=environment())


def answer(*arguments: str, cwd: Path) -> Any:
    finished = run(*arguments, "--json", cwd=cwd)
    assert finished.returncode == 0, finished.stderr
    assert finished.stderr == ""
    return json.loads(
        finished.stdout, parse_constant=lambda name: pytest.fail(f"{name} is no JSON")
    )


def on_a_terminal(*arguments: str, cwd: Path, columns: int) -> str:
    """What a terminal of so many columns shows, escapes included."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        command(*arguments),
        cwd=cwd,
        env=environment(COLUMNS=str(columns), TERM="xterm"),
        stdout=theirs,
        stderr=theirs,
    ) as child:
        os.close(theirs)
        shown = b""
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # how Linux says that the other end is closed
                break
            if not part:
                break
            shown += part
        child.wait(timeout=600)
    os.close(ours)
    return shown.decode()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a campaign file and the store of its finished campaign."""
    path = tmp_path_factory.mktemp("campaign")
    (path / "sim.toml").write_text(CAMPAIGN)
    finished = run("launch", "sim.toml", cwd=path)
    assert finished.returncode == 0, finished.stderr
    assert finished.stderr.count(" of 30 probes)\n") == PROBES
    assert "campaign sim finished: the budget is used up: 30 of 30 probes" in finished.stderr
    assert re.search(r"frontrunner show [0-9a-f]{12} +# why it ranks first", finished.stdout)
    assert (
        "frontrunner replay" not in finished.stdout
    )  # simulated for a device that is not here: it would be refused
    assert "sim: exhaustive over" in finished.stderr
    assert "legal recipes, simulated" in finished.stderr
    assert "Simulated: these figures come from rough formulas" in finished.stdout
    assert ESCAPE not in finished.stdout + finished.stderr
    return path


@pytest.fixture(scope="module")
def ranking(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = answer("best", "--top", "100", cwd=folder)
    return found


def test_best_orders_by_tokens_and_says_how_far_each_is_behind(
    ranking: list[dict[str, Any]],
) -> None:
    assert [row["rank"] for row in ranking] == list(range(1, len(ranking) + 1))
    speeds = [row["standing"]["tokens_per_s"] for row in ranking]
    assert speeds == sorted(speeds, reverse=True)
    for row in ranking:
        recipe, standing = row["recipe"], row["standing"]
        assert recipe["micro_batch_seqs"] * recipe["accumulation"] * recipe["data_parallel"] == 16
        assert standing["tokens_per_s"] == pytest.approx(16 * 128 / standing["step_time_s_median"])
        assert row["gap_percent"] == pytest.approx(100 * (1 - standing["tokens_per_s"] / speeds[0]))
        assert standing["mfu"] == pytest.approx(standing["model_tflops_per_device"] / 1.0)
        assert standing["peak_memory_bytes_max_rank"] <= 0.272 * 2**30


def test_best_answers_other_questions(folder: Path, ranking: list[dict[str, Any]]) -> None:
    limit_gb = sorted(row["standing"]["peak_memory_bytes_max_rank"] for row in ranking)[5] / 1e9
    found = answer(
        "best", "sim", "--by", "memory", "--top", "3", "--max-memory-gb", str(limit_gb), cwd=folder
    )
    sizes = [row["standing"]["peak_memory_bytes_max_rank"] for row in found]
    assert sizes == sorted(row["standing"]["peak_memory_bytes_max_rank"] for row in ranking)[:3]


def test_the_ranking_names_three_levels_of_sharding(tmp_path: Path) -> None:
    text = CAMPAIGN.replace('["none", "zero-1"]', '["3-level-1/2", "3-level-2/2"]').replace(
        "[1, 2, 4]", "[1]"
    )
    (tmp_path / "levels.toml").write_text(text)

    shown = on_a_terminal("launch", "levels.toml", cwd=tmp_path, columns=80)

    assert "3-level-1/2/4" in shown
    assert "3-level-2/2/4" in shown


def test_pareto_is_what_nothing_beats_in_both(folder: Path, ranking: list[dict[str, Any]]) -> None:
    def figures(row: dict[str, Any]) -> tuple[float, int]:
        return row["standing"]["tokens_per_s"], -row["standing"]["peak_memory_bytes_max_rank"]

    everything = [figures(row) for row in ranking]
    expected = {
        row["recipe_id"]
        for row in ranking
        if not any(
            o != figures(row) and o[0] >= figures(row)[0] and o[1] >= figures(row)[1]
            for o in everything
        )
    }
    assert {row["recipe_id"] for row in answer("pareto", cwd=folder)} == expected


def test_status_failures_and_campaigns_agree(folder: Path, ranking: list[dict[str, Any]]) -> None:
    status, failed, campaigns = (
        answer(name, cwd=folder) for name in ("status", "failures", "campaigns")
    )
    assert failed, "this space is meant to hold recipes that do not fit"
    assert status["campaign"]["state"] == "finished"
    assert status["trials"] == {
        "queued": 0,
        "running": 0,
        "measured": len(ranking),
        "failed": len(failed),
    }
    assert status["failures"] == {"out-of-memory": len(failed)}
    assert status["best"]["recipe_id"] == ranking[0]["recipe_id"]
    assert len(ranking) + len(failed) == PROBES
    assert {row["failure"]["kind"] for row in failed} == {"out-of-memory"}
    assert [row["name"] for row in campaigns] == ["sim"]
    assert "campaigns --all; to begin: " in run("campaigns", "--tag", "none", cwd=folder).stdout
    assert campaigns[0]["best_tokens_per_s"] == ranking[0]["standing"]["tokens_per_s"]


def test_show_explains_a_rank(folder: Path, ranking: list[dict[str, Any]]) -> None:
    found = answer("show", ranking[1]["recipe_id"][:6], cwd=folder)
    appearance = found["appearances"][0]
    assert found["recipe"] == ranking[1]["recipe"]
    assert (appearance["rank"], appearance["ranked_recipes"]) == (2, len(ranking))
    assert appearance["above"]["recipe_id"] == ranking[0]["recipe_id"]
    assert appearance["below"]["recipe_id"] == ranking[2]["recipe_id"]
    assert appearance["attempts"][0]["provenance"]["command_line"][1:] == ["launch", "sim.toml"]
    matrices, attention = (
        4 * 2 * 128 * (2 * 128 + 2 * 64 + 2 * 512) + 2 * 128 * 384,
        4 * 4 * 128 * 128,
    )
    halved = (matrices + attention / 2) / (matrices + attention)
    assert appearance["mfu_megatron"] == pytest.approx(appearance["standing"]["mfu"] * halved)
    shown = run("show", ranking[1]["recipe_id"], cwd=folder).stdout
    assert "as Megatron-LM counts, attention halved" in shown
    steps = re.findall(r"steps (\S+)", shown)
    assert float(steps[0]) == pytest.approx(
        1000 * appearance["attempts"][0]["outcome"]["step_times_s"][0], rel=0.005
    )


def test_what_to_do_next_names_the_campaign_where_another_measured_the_winner_too(
    folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    finished = run("launch", "sim.toml", "--name", "again", cwd=tmp_path)
    assert re.search(
        r"frontrunner show [0-9a-f]{12} --campaign again +# why it ranks first", finished.stdout
    )


def test_simulated_figures_are_called_so_wherever_they_are_shown(
    folder: Path, ranking: list[dict[str, Any]]
) -> None:
    winner = ranking[0]["recipe_id"]
    assert {row["figures"] for row in ranking + answer("pareto", cwd=folder)} == {"simulated"}
    assert [row["figures"] for row in answer("campaigns", cwd=folder)] == ["simulated"]
    for arguments in (
        ["best"],
        ["pareto"],
        ["status"],
        ["show", winner],
        ["compare", winner, ranking[1]["recipe_id"]],
    ):
        assert (
            "Simulated: these figures come from rough formulas; nothing was trained"
            in run(*arguments, cwd=folder).stdout
        ), arguments
    assert re.search("finished .* simulated", run("campaigns", cwd=folder).stdout)
    assert "measured" not in run("best", cwd=folder).stdout


def test_compare_prints_what_differs_and_how_much_faster(
    folder: Path, ranking: list[dict[str, Any]]
) -> None:
    first, second = (
        next(row for row in ranking if row["recipe"]["recompute"] == kind)
        for kind in ("none", "full")
    )
    ids = [row["recipe_id"] for row in (first, second)]
    found = answer("compare", *ids, cwd=folder)
    ratio = second["standing"]["tokens_per_s"] / first["standing"]["tokens_per_s"]
    assert found["speed_ratios"] == [1.0, pytest.approx(ratio)]
    assert found["same_problem"] is True
    own, other = (row["recipe"] for row in (first, second))
    assert {name.replace(" ", "_") for name in found["differing"]} >= {"recompute"}
    assert all(
        own[name.replace(" ", "_")] != other[name.replace(" ", "_")] for name in found["differing"]
    )
    text = run("compare", *ids, cwd=folder).stdout
    assert re.search(rf"tokens/s over the first's +1.00 +{ratio:.2f}", text)
    assert re.search(r"^recompute +none +full", text, re.MULTILINE)
    assert "tensor parallel" not in text or "tensor parallel" in found["differing"]
    own = answer("campaigns", cwd=folder)[0]["name"]
    assert answer("compare", own, own, cwd=folder)["differing"] == {}
    assert (
        "the campaigns have the same specification" in run("compare", own, own, cwd=folder).stdout
    )
    alone = run("compare", ids[0], cwd=folder)
    assert (
        alone.returncode,
        alone.stderr.startswith("error: expected two recipe ids or more"),
    ) == (2, True)


def test_space_counts_every_point(folder: Path) -> None:
    found = answer("space", "sim.toml", cwd=folder)
    refused = sum(row["points"] for row in found["refused"])
    assert (
        found["points"] == 3 * 3 * 3 * 2 * 2 == found["legal_recipes"] + found["repeats"] + refused
    )


def test_dataframe_writes_a_row_an_attempt(folder: Path, tmp_path: Path) -> None:
    finished = run("dataframe", "sim", "--out", str(tmp_path / "x.csv"), cwd=folder)
    assert finished.returncode == 0
    with (tmp_path / "x.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == PROBES
    assert {row["campaign"] for row in rows} == {"sim"}
    assert finished.stdout.startswith(f"{PROBES} rows, {len(rows[0])} columns")


@pytest.mark.parametrize("arguments", READING, ids=lambda arguments: arguments[0])
def test_text_for_people_is_plain_when_piped_and_fits_a_terminal(
    arguments: list[str], folder: Path, ranking: list[dict[str, Any]]
) -> None:
    wanted = [*arguments, ranking[0]["recipe_id"]] if arguments == ["show"] else arguments
    piped = run(*wanted, cwd=folder)
    assert (piped.returncode, piped.stderr) == (0, "")
    assert ESCAPE not in piped.stdout
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", on_a_terminal(*wanted, cwd=folder, columns=80))
    too_long = [
        line
        for line in shown.splitlines()
        if len(line.rstrip()) > 80 and not line.startswith(UNBROKEN)
    ]
    assert not too_long


MISTAKES: dict[str, tuple[list[str], int, str, str]] = {
    "a campaign that is not there": (
        ["best", "smi"],
        2,
        "there is no campaign 'smi'",
        "did you mean 'sim'?",
    ),
    "a campaign beside another": (
        ["compare", "sim", "smi"],
        2,
        "there is no campaign 'smi'",
        "did you mean 'sim'?",
    ),
    "another order": (
        ["best", "--by", "token"],
        2,
        'by = "token": expected one of',
        "did you mean 'tokens'?",
    ),
    "no limit": (
        ["best", "--max-memory-gb", "nan"],
        2,
        "max_memory_gb = nan: expected a size above 0",
        "",
    ),
    "a limit below all": (
        ["best", "--max-memory-gb", "1e-9"],
        7,
        "has no measured recipe with",
        "status sim",
    ),
    "a limit below all, elsewhere": (
        ["best", "--max-memory-gb", "1e-9", "--store", "./frontrunner.db"],
        7,
        "campaign sim (finished) has no measured recipe with a peak within --max-memory-gb",
        "hint: frontrunner status sim --store ./frontrunner.db\n",
    ),
    "a short recipe id": (
        ["show", "abc"],
        2,
        'recipe id = "abc": expected at least the first 4',
        "",
    ),
    "an unknown recipe": (["show", "ffffffffffff"], 2, "ffffffffffff", ""),
    "a table of no kind": (
        ["dataframe", "--out", "x.txt"],
        2,
        'out = "x.txt": expected a name that ends with',
        "",
    ),
    "a name that is taken": (
        ["launch", "sim.toml", "--name", "sim"],
        2,
        "'sim' exists already",
        "resume sim",
    ),
    "nothing to resume": (
        ["resume", "smi"],
        2,
        "there is no campaign 'smi'",
        "did you mean 'sim'?",
    ),
    "nothing to replay": (["replay", "ffffffffffff", "--steps", "5"], 2, "ffffffffffff", ""),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_question_that_cannot_be_answered_is_one_message(case: str, folder: Path) -> None:
    arguments, code, message, hint = MISTAKES[case]
    before = sorted(path.name for path in folder.rglob("*"))
    finished = run(*arguments, cwd=folder)
    lines = finished.stderr.splitlines()
    assert (finished.returncode, finished.stdout) == (code, "")
    assert lines[0].startswith("error: ")
    assert message in lines[0]
    assert len(lines) <= 2
    assert hint in finished.stderr
    assert sorted(path.name for path in folder.rglob("*")) == before


HEAVY = {
    "torch",
    "deepspeed",
    "optuna",
    "deephyper",
    "pandas",
    "ConfigSpace",
    "sklearn",
    "shap",
}
REPORT = "import atexit, sys; atexit.register(lambda: print(*sys.modules, file=sys.stderr)); "


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["best"], ["status"], ["space", "sim.toml"]],
    ids=lambda arguments: arguments[0],
)
def test_reading_imports_nothing_heavy(arguments: list[str], folder: Path) -> None:
    code = (
        REPORT
        + f"sys.argv = {['frontrunner', *arguments]!r}; from frontrunner.cli.main import main;"
        " main()"
    )
    finished = subprocess.run(
        [sys.executable, "-P", "-c", code],
        cwd=folder, env=environment(), capture_output=True, text=True, timeout=600, check=True,
    )  # fmt: skip
    loaded = {name.partition(".")[0] for name in finished.stderr.split()}
    assert "frontrunner" in loaded
    assert not loaded & HEAVY
