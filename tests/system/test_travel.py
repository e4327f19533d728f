"""Recipes and campaigns leave frontrunner: recipe files train elsewhere, studies fill up, scripts
run.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import psutil
import pytest
import yaml

import frontrunner
from frontrunner.config.campaign import parse_cluster
from frontrunner.config.recipe_file import Measured, Origin, RecipeFile, Training, read, to_text
from frontrunner.evaluators.programs.corpus import training_data
from frontrunner.evaluators.runs.settings import DataSettings
from frontrunner.evaluators.runs.training import ReplaySettings
from frontrunner.results.outcome import Failure, FailureKind, Telemetry
from frontrunner.results.states import TrialState
from frontrunner.results.store import open_store
from frontrunner.spaces.cluster import Cluster
from frontrunner.spaces.document import recipe_id
from frontrunner.spaces.errors import InvalidInput
from frontrunner.spaces.model.model import Model
from frontrunner.spaces.problem import GlobalBatch, Problem
from frontrunner.spaces.recipe import Recipe
from frontrunner.spaces.validation import dump_json
from support.campaigns import metrics, spec_of, tiny, wait_for
from support.rankings import measurement

CAMPAIGN = """
name = "small"
evaluator = "simulated"
[model]
layers = 4
hidden = 512
heads = 8
vocabulary = 1000
[cluster]
device = "test"
backend = "cuda"
nodes = 2
devices_per_node = 4
memory_gib_per_device = 1.2
[problem]
sequence_length = 512
global_batch = 32
[space]
tensor_parallel = [1, 2]
micro_batch_seqs = [1, 4]
sharding = ["none", "zero-1", "zero-3"]
recompute = ["none", "full"]
[search]
strategy = "exhaustive"
[budget]
probes = 12
"""
MODEL = Model.from_keys(
    name="tiny", layers=2, hidden=32, heads=4, kv_heads=4, ffn_hidden=64, vocabulary=257
)


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store of a simulated campaign, some of whose recipes failed."""
    folder = tmp_path_factory.mktemp("campaign")
    (folder / "small.toml").write_text(CAMPAIGN)
    frontrunner.launch(folder / "small.toml", store=str(folder / "s.db"))
    return folder / "s.db"


def test_a_campaign_becomes_a_study_once_and_optuna_s_plots_work_on_it(
    campaign: Path, tmp_path: Path
) -> None:
    storage = f"sqlite:///{tmp_path}/study.db"
    table = frontrunner.dataframe("small", store=str(campaign))
    first = frontrunner.mirror("small", storage=storage, store=str(campaign))
    again = frontrunner.mirror("small", storage=storage, store=str(campaign))
    assert (first.added, first.trials, first.waiting) == (12, 12, 0)
    assert (again.added, again.trials) == (0, 12)
    study = optuna.load_study(study_name="small", storage=storage)
    assert study.direction == optuna.study.StudyDirection.MAXIMIZE
    for trial, (_, row) in zip(study.trials, table.iterrows(), strict=True):
        measured = row["state"] == "measured"
        assert trial.state == (
            optuna.trial.TrialState.COMPLETE if measured else optuna.trial.TrialState.FAIL
        )
        assert trial.user_attrs["recipe_id"] == row["recipe_id"]
        assert trial.values == ([row["tokens_per_s"]] if measured else None)
        assert measured or trial.user_attrs["failure_kind"] == row["failure_kind"]
        assert trial.params["tensor_parallel"] == row["tensor_parallel"]
        assert trial.params["sharding"] == row["sharding"]
        assert trial.datetime_complete is not None
        assert trial.datetime_complete.astimezone() == row["finished_at"]
    assert {trial.state.name for trial in study.trials} == {"COMPLETE", "FAIL"}
    assert study.best_value == table["tokens_per_s"].max()
    assert study.user_attrs["figures"] == "simulated"
    assert set(study.trials[0].params) == {
        "tensor_parallel",
        "micro_batch_seqs",
        "sharding",
        "recompute",
    }


def test_the_best_of_a_study_is_the_campaign_s_with_repeats_pooled(tmp_path: Path) -> None:
    """The first clean measurement of one recipe is the fastest of all; measured again, it is the
    slower of the two.
    """
    url, storage = str(tmp_path / "s.db"), f"sqlite:///{tmp_path}/study.db"
    with open_store(url, create=True) as store:
        spec = spec_of(tiny())
        steady, lucky, frail = spec.survey().recipes[:3]
        campaign = store.create_campaign(
            name="tiny", spec_json=dump_json(spec), legal_recipes=2, problem_summary={}
        )
        writer = store.drive(store.acquire_lease(campaign.id, host="h", pid=1))
        slow = writer.start_attempt(
            writer.propose(recipe_id(spec.problem, lucky), lucky), run_folder=""
        )
        load = Telemetry(foreign_share=(0.5,), foreign_processes=("make (7)",), foreign_limit=0.1)
        writer.finish_attempt(slow, replace(measurement((5.0,), 1_000), telemetry=load), retry=True)
        full = Failure(kind=FailureKind.OUT_OF_MEMORY, message="no")
        measurements = [measurement((seconds,), 1_000) for seconds in (0.8, 1.0, 9.0, 0.1)]
        for recipe, outcome in zip(
            (lucky, steady, lucky, frail, frail), (*measurements, full), strict=True
        ):
            known = {
                trial.recipe: trial
                for trial in store.trials(campaign.id)
                if trial.state is TrialState.MEASURED
            }
            trial = known.get(recipe) or writer.propose(recipe_id(spec.problem, recipe), recipe)
            if recipe in known:
                writer.repeat(trial)
            attempt = writer.start_attempt(trial, run_folder="")
            writer.finish_attempt(attempt, outcome, retry=False)
    frontrunner.mirror("tiny", storage=storage, store=url)
    study = optuna.load_study(study_name="tiny", storage=storage)
    (first,) = frontrunner.best("tiny", top=1, store=url)
    assert study.user_attrs["figures"] == "measured"
    assert study.user_attrs["best"] == {
        "recipe_id": first.recipe_id,
        "tokens_per_s": first.standing.tokens_per_s,
        "measurements": 1,
    }
    assert study.best_trial.user_attrs["recipe_id"] != first.recipe_id
    assert study.best_trial.user_attrs["step_time_s_median"] == 0.8, (
        "not of the attempt that others disturbed"
    )
    failed = [
        trial.user_attrs["recipe"]
        for trial in study.trials
        if trial.state is optuna.trial.TrialState.FAIL
    ]
    assert failed == [frail.describe()], "it was measured, and failed when it was measured again"


def test_a_study_that_is_not_the_campaign_s_is_left_alone(campaign: Path, tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path}/study.db"
    theirs = optuna.create_study(storage=storage, study_name="small")
    theirs.add_trial(optuna.trial.create_trial(value=1.0))
    with pytest.raises(InvalidInput, match="the storage holds another study named 'small'"):
        frontrunner.mirror("small", storage=storage, store=str(campaign))
    assert len(theirs.trials) == 1
    assert theirs.user_attrs == {}
    for url in ("nonsense", "sqlite:////no/such/folder/s.db", "mysql+nothing://u:secret@h/d"):
        with pytest.raises(InvalidInput, match="Optuna cannot use the storage") as found:
            frontrunner.mirror("small", storage=url, store=str(campaign))
        assert "secret" not in found.value.message


def test_an_export_names_where_it_comes_from_and_is_read_back(
    campaign: Path, tmp_path: Path
) -> None:
    best = frontrunner.best("small", top=1, store=str(campaign))[0]
    text = frontrunner.export(best.recipe_id[:6], to="nemo", store=str(campaign))
    assert text.startswith(f"# frontrunner recipe {best.recipe_id}: {best.recipe.describe()}\n")
    assert "simulated in campaign small" in text
    assert f"{best.standing.tokens_per_s:,.0f} tokens/s" in text
    (tmp_path / "nemo.yaml").write_text(text)
    (tmp_path / "small.toml").write_text(CAMPAIGN)
    back = frontrunner.import_config(
        tmp_path / "nemo.yaml", tool="nemo", campaign=tmp_path / "small.toml"
    )
    assert (back.recipe_id, back.illegal) == (best.recipe_id, None)
    (tmp_path / "r.json").write_text(
        frontrunner.export(best.recipe_id, to="recipe", store=str(campaign))
    )
    file = read(tmp_path / "r.json")
    assert file.recipe == best.recipe
    assert file.measured is not None
    assert file.measured.tokens_per_s == best.standing.tokens_per_s
    lines, from_file = (
        text.splitlines(),
        frontrunner.export(str(tmp_path / "r.json"), to="nemo").splitlines(),
    )
    assert [line for line in from_file if "# written" not in line] == [
        line for line in lines if "# written" not in line
    ]


def figures(**changes: Any) -> Measured:
    """What another campaign says of a recipe."""
    given = {"campaign": "theirs", "figures": "measured", "repeats": 1, "step_time_s_median": 0.1}
    given |= {"step_time_spread": 0.0, "tokens_per_s": 640.0, "model_tflops_per_device": 1.0}
    given |= {"hardware_tflops_per_device": 1.0, "mfu": None, "peak_memory_bytes_max_rank": 0}
    return Measured(**given | changes)


def recipe_file(cluster: Cluster, folder: Path, measured: Measured | None = None) -> Path:
    """The file of a recipe of two plain replicas."""
    problem = Problem(
        model=MODEL,
        cluster=cluster,
        sequence_length=16,
        global_batch=GlobalBatch(minimum=4, maximum=4),
        precision="fp32",
    )
    recipe = Recipe(devices=2, micro_batch_seqs=1, accumulation=2)
    file = RecipeFile(
        recipe_id=recipe_id(problem, recipe),
        problem=problem,
        recipe=recipe,
        training=Training(optimizer="sgd", seed=1, data=training_data(DataSettings())),
        measured=measured,
        origin=Origin(written_by="test", written_at="2026-01-01T00:00:00+00:00"),
    )
    path = folder / "recipe.json"
    path.write_text(to_text(file))
    return path


def test_a_recipe_file_is_a_plan_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = recipe_file(
        Cluster(
            name="c",
            device="d",
            backend="cpu",
            nodes=2,
            devices_per_node=1,
            memory_gib_per_device=1.0,
        ),
        tmp_path,
    )
    launched = ReplaySettings(steps=2, folder=tmp_path / "run", launched=True)
    plan = frontrunner.plan_replay(str(path), launched, anyway=True)
    assert (plan.job.optimizer.name, plan.job.seed) == ("sgd", 1)
    assert plan.measured_tokens_per_s is None
    assert "--nnodes 2 --nproc-per-node 1" in plan.command
    with pytest.raises(InvalidInput, match="needs 2 devices on nodes of 1"):
        frontrunner.plan_replay(str(path), ReplaySettings(steps=2), anyway=True)


@pytest.mark.parametrize(
    ("measured", "headed", "refused"),
    [
        (
            figures(trainer="command"),
            "by another trainer (evaluator command)",
            "was run by another trainer",
        ),
        (
            figures(figures="imported"),
            "from a table of others' training",
            "is of an imported table",
        ),
    ],
)
def test_what_our_trainer_did_not_measure_is_headed_so_and_not_replayed(
    measured: Measured, headed: str, refused: str, tmp_path: Path
) -> None:
    machine = Cluster(
        name="c", device="d", backend="cpu", nodes=1, devices_per_node=2, memory_gib_per_device=1.0
    )
    path = str(recipe_file(machine, tmp_path, measured))
    assert f"in campaign theirs, {headed}: 640 tokens/s" in frontrunner.export(path, to="deepspeed")
    with pytest.raises(InvalidInput, match=refused):
        frontrunner.plan_replay(path, ReplaySettings(steps=2), anyway=True)
    with pytest.raises(InvalidInput, match=refused):
        frontrunner.export(path, to="slurm")


def test_a_pbs_script_works_where_it_was_submitted(tmp_path: Path) -> None:
    machine = Cluster(
        name="c", device="d", backend="cpu", nodes=2, devices_per_node=1, memory_gib_per_device=1.0
    )
    script = frontrunner.export(str(recipe_file(machine, tmp_path)), to="pbs")
    head, rest, _ = script.partition("export PYTHONSAFEPATH")
    assert rest
    home, submitted = tmp_path / "home", tmp_path / "submitted"
    home.mkdir()
    submitted.mkdir()
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "PBS_O_WORKDIR": str(submitted)}
    lost = subprocess.run(
        ["bash"], input=head, text=True, check=False, cwd=home, env=environment, capture_output=True
    )
    assert lost.returncode == 2
    assert "SCRIPT=" in lost.stderr
    (submitted / "mine.sh").write_text(script)
    environment["SCRIPT"] = "mine.sh"
    subprocess.run(["bash"], input=head, text=True, check=True, cwd=home, env=environment)
    assert list(home.iterdir()) == []
    assert [path.name for path in submitted.glob("frontrunner-*/*")] == ["recipe.json"]


def test_a_recipe_file_trains_without_a_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    here = parse_cluster({"preset": "this-machine", "devices_per_node": 2})
    if here.backend != "cpu":
        pytest.skip("two ranks of one machine, without an accelerator")
    path = recipe_file(here, tmp_path)
    settings = ReplaySettings(steps=1, folder=tmp_path / "run", evaluation_every_steps=10)
    result = frontrunner.replay(str(path), steps=2, settings=settings)
    assert result.final_step == 2
    assert result.measured_tokens_per_s is None
    job = json.loads((tmp_path / "run" / "job.json").read_text())
    assert (job["optimizer"]["name"], job["seed"]) == ("sgd", 1)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [
        "frontrunner-runs",
        "recipe.json",
        "run",
    ]


@pytest.mark.parametrize(
    ("scheduler", "nodes"), [("slurm", "#SBATCH --nodes=2"), ("pbs", "#PBS -l select=2:ngpus=4")]
)
def test_a_batch_script_is_bash_with_the_recipe_s_counts(
    campaign: Path, scheduler: str, nodes: str
) -> None:
    best = frontrunner.best("small", top=1, store=str(campaign))[0]
    script = frontrunner.export(best.recipe_id, to=scheduler, store=str(campaign))
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    assert nodes in script.splitlines()
    assert 'if [ "$status" = 75 ]; then' in script


@pytest.mark.nightly
def test_the_pods_of_a_job_set_train_and_go_on_after_one_was_killed(tmp_path: Path) -> None:
    """What the pods of a manifest run, as two processes that share a folder, as pods share their
    volume.
    """
    machine = Cluster(
        name="c", device="d", backend="cpu", nodes=2, devices_per_node=1, memory_gib_per_device=1.0
    )
    found = list(
        yaml.safe_load_all(frontrunner.export(str(recipe_file(machine, tmp_path)), to="kubernetes"))
    )
    text = {document["kind"]: document for document in found}["ConfigMap"]["data"]["train.sh"]
    volume = tmp_path / "volume"
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    changes = {
        "python -m": f"{sys.executable} -m",
        "/frontrunner/": f"{volume}/",
        "/recipe/recipe.json": str(tmp_path / "recipe.json"),
        "--print-command": "--print-command --anyway --checkpoint-every 10",
        "--master-port 29500": f"--master-port {port}",
    }
    for theirs, here in changes.items():
        assert theirs in text
        text = text.replace(theirs, here)
    (tmp_path / "train.sh").write_text(text)
    variables = {"STEPS": "400", "FIRST_NODE": "127.0.0.1", "OMP_NUM_THREADS": "1"}

    def start(uid: str) -> list[subprocess.Popen[bytes]]:
        given = {**os.environ, **variables, "JOB_UID": uid}
        return [
            subprocess.Popen(
                ["bash", str(tmp_path / "train.sh")],
                env={**given, "JOB_COMPLETION_INDEX": str(index)},
                cwd=tmp_path,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
            for index in (1, 0)  # the second waits for what the first prepares
        ]

    def end(pods: list[subprocess.Popen[bytes]]) -> None:
        """Kill all processes of the pods, as a node that dies: torchrun's ranks are in sessions of
        their own.
        """
        running = [psutil.Process(pod.pid) for pod in pods if pod.poll() is None]
        ranks = [one for pod in running for one in pod.children(recursive=True)]
        for one in [*running, *ranks]:
            with suppress(psutil.NoSuchProcess):
                one.kill()
        for pod in pods:
            pod.wait()
        assert not psutil.wait_procs(ranks, timeout=600)[1]

    pods = start("first")
    try:
        (folder,) = wait_for(lambda: [path.parent for path in volume.glob("*/job.json")])
        wait_for(lambda: list(folder.glob("checkpoints/*/.metadata")))
    finally:
        end(pods)
    assert not (folder / "result.json").exists()
    pods = start("second")
    try:
        assert [pod.wait(200) for pod in pods] == [0, 0]
    finally:
        end(pods)
    assert json.loads((folder / "result.json").read_text())["resumed_step"] >= 10
    assert [int(row["step"]) for row in metrics(folder)] == list(range(1, 401))
