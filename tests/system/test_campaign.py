"""Whole campaigns: real probes from a file to a ranking, how they end, and what a person sees
meanwhile.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import frontrunner as api
from frontrunner.results.states import CampaignState
from frontrunner.spaces.errors import InvalidInput, NothingLegal
from support.campaigns import Table, frontrunner, spec_of, tiny, write_toml
from support.terminals import run_on_terminal

FEW: Table = {"tensor_parallel": [1, 2], "pipeline_parallel": [1], "micro_batch_seqs": [4]}
"""Two legal recipes: two replicas, and a model cut in two."""


def write(folder: Path, **sections: Table | str) -> str:
    write_toml(folder / "tiny.toml", tiny(**sections))
    return "tiny.toml"


@pytest.mark.smoke
def test_real_probes_from_a_file_to_a_ranking(tmp_path: Path) -> None:
    done = frontrunner(
        "launch", write(tmp_path, space=FEW, search={"parallel_probes": 2}), cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "2 recipes measured" in done.stdout
    assert "every legal recipe has been tried" in done.stderr
    assert "\x1b" not in done.stdout + done.stderr
    ranking = json.loads(frontrunner("best", "--json", cwd=tmp_path).stdout)
    speeds = [row["standing"]["tokens_per_s"] for row in ranking]
    assert speeds == sorted(speeds, reverse=True)
    assert {row["recipe"]["tensor_parallel"] for row in ranking} == {1, 2}
    assert re.search(rf"frontrunner replay {ranking[0]['recipe_id']}", done.stdout)
    assert_same_training(tmp_path)
    assert_at_the_same_time(tmp_path)


def test_ranks_get_variables_of_the_user_s_own_before_they_meet(tmp_path: Path) -> None:
    """Gloo reads the interface's name when ranks connect: without it, and with one that exists,
    they do.
    """
    own = {"interface": {"values": ["", "lo", "none0"], "env": "GLOO_SOCKET_IFNAME", "default": ""}}
    spec = spec_of(
        tiny(space=FEW | {"tensor_parallel": [1], "custom": own}, search={"strategy": "exhaustive"})
    )
    store = str(tmp_path / "s.db")
    assert api.launch(spec, store=store).measured == 2
    found = {
        recipe.recipe.words("lever"): recipe.standing.tokens_per_s
        for recipe in api.best("tiny", store=store)
    }
    assert set(found) == {(), ("interface=lo",)}
    (failed,) = api.failures("tiny", store=store)
    assert failed.trial.recipe.words("lever") == ("interface=none0",)
    assert "No such device" in failed.failure.message


def assert_same_training(folder: Path) -> None:
    """Equal mathematics: both recipes had the same first losses (their batches and seeds are the
    same).
    """
    results = sorted(folder.glob("frontrunner-runs/tiny/*/result.json"))
    one, other = (json.loads(path.read_text())["losses"] for path in results)
    assert one == pytest.approx(other, rel=1e-4)


def assert_at_the_same_time(folder: Path) -> None:
    frame = api.dataframe("tiny", store=str(folder / "frontrunner.db"))
    assert len(frame) == 2
    first, second = sorted(zip(frame["started_at"], frame["finished_at"], strict=True))
    assert second[0] < first[1], "the second probe began before the first had ended"


def test_from_python(tmp_path: Path) -> None:
    store = str(tmp_path / "s.db")
    spec = spec_of(tiny(evaluator="simulated", budget={"probes": 4}))
    conclusion = api.launch(spec, store=store)
    assert (conclusion.state, conclusion.measured) == (CampaignState.FINISHED, 4)
    ranking = api.best("tiny", top=2, store=store)
    assert [row.rank for row in ranking] == [1, 2]
    assert ranking[0].standing.tokens_per_s >= ranking[1].standing.tokens_per_s
    assert api.show(ranking[0].recipe_id[:6], store=store).recipe == ranking[0].recipe
    assert api.status(store=store).campaign.state is CampaignState.FINISHED
    assert len(api.dataframe(store=store)) == 4
    assert api.resume("tiny", store=store).measured == 4, "nothing is left of its budget"
    with pytest.raises(InvalidInput, match="exists already"):
        api.launch(spec, store=store, name="tiny")


def test_nothing_is_written_for_a_campaign_that_cannot_run(tmp_path: Path) -> None:
    store = tmp_path / "s.db"
    with pytest.raises(NothingLegal, match="none of the space's"):
        api.launch(
            spec_of(tiny(space={"tensor_parallel": [3], "pipeline_parallel": [1]})),
            store=str(store),
        )
    with pytest.raises(InvalidInput, match=r"data\.path"):
        api.launch(spec_of(tiny(problem={"sequence_length": 100_000})), store=str(store))
    assert list(tmp_path.iterdir()) == []


def test_probes_that_all_fail_alike_pause_the_campaign_and_show_why(tmp_path: Path) -> None:
    limits = {"cluster": {"memory_gib_per_device": 0.03}, "search": {"identical_failures": 2}}
    done = frontrunner("launch", write(tmp_path, **limits), cwd=tmp_path)
    assert done.returncode == 6, done.stderr
    assert "2 probes failed alike before any was measured: out-of-memory" in done.stderr
    assert "MemoryError" in done.stderr, "the log's end"
    log = re.search(r"full log: (\S+);", done.stderr)
    assert log is not None
    assert "MemoryError" in Path(log[1]).read_text()
    assert "frontrunner resume tiny" in done.stderr
    failures = json.loads(frontrunner("failures", "--json", cwd=tmp_path).stdout)
    assert len(failures) == 2


def test_a_budget_that_ends_with_nothing_measured(tmp_path: Path) -> None:
    sections = {"cluster": {"memory_gib_per_device": 0.0001}, "budget": {"probes": 3}}
    done = frontrunner("launch", write(tmp_path, evaluator="simulated", **sections), cwd=tmp_path)
    assert done.returncode == 7, done.stderr
    assert "3 of 3 probes" in done.stderr
    assert "frontrunner failures tiny" in done.stderr


@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (120, 40), (40, 12)])
def test_the_panel_is_drawn_in_place(tmp_path: Path, columns: int, rows: int) -> None:
    file = write(tmp_path, evaluator="simulated", budget={"probes": 8})
    screen, status = run_on_terminal(tmp_path, "launch", file, columns=columns, rows=rows)
    assert status == 0, screen.lines
    shown = "\n".join(screen.lines)
    assert screen.wraps == 0, shown
    assert shown.count("tiny  random over") == 1, "each drawing replaced the one before\n" + shown
    assert shown.count("outcomes   8 simulated") == 1, shown
    assert "campaign tiny finished" in shown
    assert "frontrunner show" in shown, "the ranking and what to do next come below"


def test_the_panel_over_real_probes(tmp_path: Path) -> None:
    screen, status = run_on_terminal(
        tmp_path, "launch", write(tmp_path, space=FEW), columns=80, rows=24
    )
    shown = "\n".join(screen.lines)
    assert status == 0, shown
    assert screen.wraps == 0, shown
    assert shown.count("tiny  random over") == 1, shown
