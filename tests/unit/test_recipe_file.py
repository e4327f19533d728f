"""Recipe files: exact round trips, and every malformed one refused by the place that is wrong."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

import frontrunner
from frontrunner.config import recipe_file
from frontrunner.config.campaign import named_data, parse_campaign
from frontrunner.config.recipe_file import (
    Measured,
    NodeSettings,
    Origin,
    RecipeFile,
    Training,
    content_hash,
    from_text,
    to_text,
)
from frontrunner.evaluators.programs.command import Command, environment_of, request_of
from frontrunner.evaluators.programs.corpus import training_data
from frontrunner.evaluators.programs.rank_replay import ReplayPlan, prepare
from frontrunner.evaluators.runs.settings import DataSettings, OptimizerConstants, Schedule
from frontrunner.evaluators.runs.training import ReplaySettings
from frontrunner.evaluators.trainer.job import Job
from frontrunner.exchange import exported
from frontrunner.recipe_actions import plan_command_replay, plan_replay
from frontrunner.results.outcome import Outcome
from frontrunner.results.provenance import TrainingData
from frontrunner.results.store import open_store
from frontrunner.server.service import ServedStore
from frontrunner.spaces.cluster import Links
from frontrunner.spaces.document import recipe_id
from frontrunner.spaces.errors import InvalidInput, NotFound
from frontrunner.spaces.recipe import Recipe
from frontrunner.store import LocalStore
from frontrunner.sweeps import source_of
from support.campaigns import spec_of, tiny
from support.charted import failed, measured, recorded
from support.formats import problem, recipes

MACHINE = replace(
    problem().cluster,
    links=Links(nic_gb_per_s=25.0),
    efficiencies={"matmul": 0.8},
    source="a 'table' \\ \u00fc",
)
PROBLEM = replace(problem(), cluster=MACHINE)
PLAIN = Recipe(devices=16, tensor_parallel=2, micro_batch_seqs=2, accumulation=8)
MEASURED = Measured(
    campaign="llama",
    figures="measured",
    repeats=2,
    step_time_s_median=0.1,
    step_time_spread=1 / 3,
    tokens_per_s=1e6 / 7,
    model_tflops_per_device=100.0,
    hardware_tflops_per_device=120.0,
    mfu=None,
    peak_memory_bytes_max_rank=70 * 2**30,
)
DATA = TrainingData(path="/data/tokens.bin", size_bytes=10**12, head_sha256="0" * 64)
NODES = NodeSettings(
    worker_init=("module load rocm",), network_interface="hsn0", launcher_options=("--exact",)
)
SCHEMA = Path(__file__).parent.parent.parent / "docs" / "recipe.schema.json"


def made(recipe: Recipe = PLAIN, measured: Measured | None = MEASURED) -> RecipeFile:
    origin = Origin(
        written_by="test", written_at="2026-01-01T00:00:00+00:00", measured_with={"torch": "2.13.0"}
    )
    return RecipeFile(
        recipe_id=recipe_id(PROBLEM, recipe),
        problem=PROBLEM,
        recipe=recipe,
        training=Training(seed=3, data=(DATA,), nodes=NODES),
        measured=measured,
        origin=origin,
    )


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(recipe=recipes(PROBLEM))
def test_what_is_written_is_read_back_to_the_same_value_and_text(recipe: Recipe) -> None:
    file = made(recipe)
    again = from_text(to_text(file))
    assert again == file
    assert to_text(again) == to_text(file)


def test_recipe_for_one_of_several_node_types_is_refused() -> None:
    document = json.loads(to_text(made()))
    document["content"]["recipe"]["group"] = "h100"
    document["hash"] = content_hash(document["content"])
    with pytest.raises(InvalidInput, match=r'content\.recipe\.group = "h100": the recipe is for'):
        from_text(json.dumps(document))


def test_the_published_schema_accepts_what_is_written() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    for file in (made(), made(measured=None)):
        jsonschema.validate(json.loads(to_text(file)), schema)
    document = json.loads(to_text(made()))
    document["content"]["recipe"]["warp"] = 9
    with pytest.raises(jsonschema.ValidationError, match="warp"):
        jsonschema.validate(document, schema)


def by_command(folder: Path, outcome: Outcome | None = None) -> tuple[LocalStore, str]:
    """A store with a campaign by another trainer, and the id of its recipe, with an argument and a
    variable.
    """
    arguments = ["{python}", "train.py", "--steps", "{steps}", "{replay?--resume}"]
    command = {
        "arguments": arguments,
        "log_patterns": [r"step (?P<step>\d+)"],
        "environment": {"SEED": "{seed}"},
    }
    own = {
        "twice": {"values": [True], "flag": "--twice"},
        "buffers": {"values": [4], "env": "TRAINER_BUFFERS"},
    }
    space = {
        "tensor_parallel": [1],
        "pipeline_parallel": [1],
        "micro_batch_seqs": [2],
        "custom": own,
    }
    table = tiny(evaluator="command", command=command, space=space, probe={"warm_up_steps": 2})
    spec = replace(
        parse_campaign(table, default_name="tiny", base=folder).spec, run_root=str(folder / "runs")
    )
    (chosen,) = spec.survey().recipes
    recorded(folder / "s.db", spec, [(chosen, [outcome or measured(100.0)])])
    return LocalStore(str(folder / "s.db")), recipe_id(spec.problem, chosen)


def test_a_file_of_another_trainer_holds_its_command_which_replays_and_scripts_run(
    tmp_path: Path,
) -> None:
    store, name = by_command(tmp_path)
    stored = plan_command_replay(name, ReplaySettings(steps=9), store=store.url)
    path = tmp_path / "r.json"
    path.write_text(store.export(name, to="recipe"))
    read = plan_command_replay(str(path), ReplaySettings(steps=9, folder=stored and stored.folder))
    assert read is not None
    assert stored is not None
    commands = []
    for one in (stored, read):
        request = request_of(one.setup, one.recipe, one.folder, is_replay=True, attempt=2)
        made_of_it = one.make_command(request)
        assert isinstance(made_of_it, Command)
        commands.append((made_of_it, environment_of(made_of_it, request, one.setup.command)))
    assert commands[0] == commands[1]
    command, variables = commands[1]
    assert command.arguments[1:] == ("train.py", "--steps", "9", "--resume", "--twice")
    assert variables["TRAINER_BUFFERS"] == "4"
    assert variables["FRONTRUNNER_ATTEMPT"] == "2"
    assert read.measured_tokens_per_s == stored.measured_tokens_per_s
    assert read.setup.command.start_folder == tmp_path.absolute()
    script = store.export(name, to="slurm")
    # The hash before it and the origin after it have the second in which each was written.
    content = path.read_text().partition('"content"')[2].partition('"origin"')[0]
    assert content in script
    assert "--data" not in script, "which the command names"
    with pytest.raises(InvalidInput, match="was run by another trainer"):
        plan_replay(str(path), ReplaySettings(steps=2, launched=True), anyway=True)


def test_a_service_hands_out_no_command(tmp_path: Path) -> None:
    store, name = by_command(tmp_path)
    with open_store(store.url, create=False) as found:
        served = ServedStore(is_open=found)
        text = served.export(name, to="recipe")
        assert "train.py" not in text
        with pytest.raises(InvalidInput, match="was run by another trainer") as refused:
            served.export(name, to="slurm")
    assert f"frontrunner replay {name}" in str(refused.value.hint)
    (tmp_path / "r.json").write_text(text)
    assert plan_command_replay(str(tmp_path / "r.json"), ReplaySettings(steps=2)) is None


@pytest.mark.parametrize("to", ["recipe", "slurm"])
def test_a_service_s_export_of_a_failed_recipe_of_another_trainer_is_none_of_ours(
    to: str, tmp_path: Path
) -> None:
    store, name = by_command(tmp_path, failed())
    with (
        open_store(store.url, create=False) as found,
        pytest.raises(InvalidInput, match="is of another trainer"),
    ):
        ServedStore(is_open=found).export(name, to=to)


def edited(path: str, value: Any) -> Callable[[], str]:
    """A file with one value changed and the hash made right again."""

    def text() -> str:
        document = json.loads(to_text(made()))
        *parents, key = path.split(".")
        table = document
        for parent in parents:
            table = table[parent]
        table[key] = value
        if parents:
            document["hash"] = content_hash(document["content"])
        return json.dumps(document)

    return text


def with_text(old: str, new: str) -> Callable[[], str]:
    return lambda: to_text(made()).replace(old, new, 1)


MALFORMED: dict[str, tuple[Callable[[], str], str]] = {
    "nothing": (lambda: "", "not valid JSON: .* at line 1, column 1"),
    "cut short": (lambda: to_text(made())[:900], r"not valid JSON: .* at line \d+"),
    "a list": (lambda: "[1]", "expected a table"),
    "deep": (lambda: "[" * 100_000, "nested too deeply"),
    "deep in a value": (
        edited("content.origin.written_by", [[[[[[[1]]]]]]]),
        "nested more than 8 deep",
    ),
    "brackets in text are no depth": (
        edited("content.origin.written_by", ["[" * 50]),
        r"content\.origin\.written_by",
    ),
    "a key twice": (
        with_text('"version": 2,', '"version": 2, "version": 2,'),
        "the key version is given twice",
    ),
    "infinite": (
        with_text('"repeats": 2', '"repeats": 1e999'),
        r"content\.measured\.repeats = inf: .* finite number",
    ),
    "not a number": (
        with_text('"repeats": 2', '"repeats": NaN'),
        r"content\.measured\.repeats = nan",
    ),
    "huge": (
        with_text('"repeats": 2', '"repeats": ' + "9" * 30),
        r"content\.measured\.repeats = 9+: .* at most",
    ),
    "digits": (with_text('"repeats": 2', '"repeats": ' + "9" * 5000), "5000 digits"),
    "unknown field": (edited("content.recipe.warp", 9), r"unknown key content\.recipe\.warp = 9"),
    "unknown at the top": (edited("extra", 9), "unknown key extra"),
    "wrong hash": (
        edited("hash", "0" * 64),
        r'hash = "0+": expected [0-9a-f]{64}: the file was changed',
    ),
    "no hash": (edited("hash", None), "hash is missing"),
    "changed after": (
        with_text('"micro_batch_seqs": 2', '"micro_batch_seqs": 4'),
        "the file was changed",
    ),
    "version 99": (edited("version", 99), r"version = 99: expected 1 or 2"),
    "version true": (edited("version", True), r"version = true: expected 1 or 2"),
    "another format": (edited("format", "x"), 'format = "x": expected "frontrunner-recipe"'),
    "text for a number": (
        edited("content.recipe.devices", "16"),
        r'content\.recipe\.devices = "16": .* whole number',
    ),
    "an unknown word": (
        edited("content.recipe.schedule", "2f2b"),
        r'recipe\.schedule = "2f2b": expected one of',
    ),
    "a missing key": (
        edited("content.recipe", {"devices": 1}),
        r"content\.recipe\.micro_batch_seqs is missing",
    ),
    "an illegal recipe": (
        edited("content.recipe.tensor_parallel", 16),
        "content.recipe is illegal: tensor_parallel 16",
    ),
    "another recipe's id": (
        edited("content.recipe_id", "0123456789ab"),
        r"content\.recipe_id = .*the id of this",
    ),
    "a line that is none": (
        edited("content.training.nodes.worker_init", ["a\nb"]),
        r"worker_init = .* printable text",
    ),
    "a model that cannot be": (
        edited("content.problem.model.layers", 0),
        r"model\.layers = 0: expected at least 1",
    ),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_file_is_refused_with_its_place(case: str, tmp_path: Path) -> None:
    text, message = MALFORMED[case]
    path = tmp_path / "recipe.json"
    path.write_text(text(), encoding="utf-8")
    with pytest.raises(InvalidInput, match=message) as found:
        recipe_file.read(path)
    assert found.value.message.startswith(str(path))
    assert len(found.value.message) < 500


def test_a_file_that_is_too_long_or_no_text_is_refused_before_it_is_parsed(tmp_path: Path) -> None:
    path = tmp_path / "recipe.json"
    path.write_bytes(b" " * (recipe_file.MOST_BYTES + 1))
    with pytest.raises(InvalidInput, match="at most 262,144 bytes"):
        recipe_file.read(path)
    path.write_bytes(to_text(made()).encode().replace(b"llama", b"ll\xffma"))
    with pytest.raises(InvalidInput, match="not text in UTF-8: byte"):
        recipe_file.read(path)
    for missing, named in (
        (tmp_path, tmp_path),
        (tmp_path / "none.json", tmp_path / "none.json"),
        (Path("a\0b"), r"a\x00b"),
    ):
        with pytest.raises(NotFound, match=re.escape(f"no recipe file at {named}")):
            recipe_file.read(missing)


def test_a_file_cannot_be_made_of_an_illegal_recipe() -> None:
    with pytest.raises(InvalidInput, match="illegal"):
        made(replace(PLAIN, schedule="1f1b"))


def test_a_file_of_the_first_version_is_replayed_on_data_that_are_named(tmp_path: Path) -> None:
    document = json.loads(to_text(made()))
    document["content"]["training"] = {"optimizer": "sgd", "seed": 3}
    document |= {"version": 1, "hash": content_hash(document["content"])}
    (tmp_path / "old.json").write_text(json.dumps(document))
    path = str(tmp_path / "old.json")
    with pytest.raises(
        InvalidInput, match=r"what data recipe .*old.json was trained on is not recorded"
    ) as refused:
        plan_replay(path, ReplaySettings(steps=2, launched=True), anyway=True)
    assert refused.value.hint is not None
    assert "--data FILE" in refused.value.hint
    with pytest.raises(
        InvalidInput, match=r"what data recipe .*old.json was trained on is not recorded"
    ):
        exported(LocalStore(None), path, to="slurm")
    settings = ReplaySettings(steps=2, launched=True, data="built-in", folder=tmp_path / "run")
    job = plan_replay(path, settings, anyway=True, store=str(tmp_path / "s.db")).job
    assert (job.optimizer.name, job.seed) == ("sgd", 3)
    script = exported(LocalStore(None), path, to="slurm", data="built-in")
    assert '"path": null' in script
    assert 'STEPS" ${DATA:+--data "$DATA"} \\\n' in script


def test_a_file_is_replayed_on_its_own_data_or_not_at_all(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_bytes(b"some words " * 4096)
    data = training_data(DataSettings(path=str(text)))
    schedule = Schedule(learning_rate=0.5, warm_up_steps=7)
    constants = OptimizerConstants(weight_decay=0.25, beta2=0.5, epsilon=1e-6, gradient_clip_norm=0)
    training = Training(data=data, schedule=schedule, optimizer_constants=constants, nodes=NODES)
    file = replace(made(), training=training)
    (tmp_path / "r.json").write_text(to_text(file))
    path, settings = str(tmp_path / "r.json"), ReplaySettings(steps=20, launched=True)

    def replayed() -> Job:
        return plan_replay(path, settings, anyway=True, store=str(tmp_path / "s.db")).job

    job = replayed()
    assert job.train is not None
    assert (job.optimizer.learning_rate, job.train.warm_up_steps) == (0.5, 7)
    optimizer = job.optimizer
    assert (optimizer.weight_decay, optimizer.beta2, optimizer.epsilon) == (0.25, 0.5, 1e-6)
    assert optimizer.gradient_clip_norm is None
    assert Path(job.data.path).name.startswith("text-")
    script = exported(LocalStore(None), path, to="pbs")
    assert script.index("module load rocm\n") < script.index("set -euo pipefail")
    text.write_bytes(b"same words " * 4096)
    for attempt in (replayed, lambda: exported(LocalStore(None), path, to="slurm")):
        with pytest.raises(
            InvalidInput, match=r"is not what the recipe was trained on: it has another content"
        ):
            attempt()
    text.write_bytes(b"some words " * 4095)
    with pytest.raises(InvalidInput, match=r"it has 45,045 bytes, not 45,056") as refused:
        replayed()
    assert "--data FILE" in str(refused.value.hint)
    text.unlink()
    with pytest.raises(InvalidInput, match=r"are not here: .*No such file"):
        replayed()
    assert str(text) in exported(LocalStore(None), path, to="slurm"), (
        "it may be where the script runs"
    )


def test_a_sweep_of_a_file_trains_on_its_data_in_its_way(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_bytes(b"some words " * 4096)
    training = Training(
        optimizer="sgd", data=training_data(DataSettings(path=str(text))), nodes=NODES
    )
    path = tmp_path / "r.json"
    path.write_text(to_text(replace(made(), training=training)))
    spec = source_of(str(path)).spec
    assert (spec.data.path, spec.probe.optimizer) == (str(text), "sgd")
    assert (spec.dispatch.network_interface, spec.dispatch.launcher_options) == (
        "hsn0",
        ("--exact",),
    )
    assert not spec.dispatch.worker_init, "no line of shell of a file runs unasked"
    text.write_bytes(b"same words " * 4096)
    with pytest.raises(InvalidInput, match="is not what the recipe was trained on") as refused:
        source_of(str(path))
    assert "--campaign FILE" in str(refused.value.hint)


def test_a_recipe_of_two_campaigns_is_replayed_on_the_data_of_the_one_that_is_named(
    tmp_path: Path,
) -> None:
    store, space = (
        str(tmp_path / "s.db"),
        {"tensor_parallel": [1], "pipeline_parallel": [1], "micro_batch_seqs": [4]},
    )
    for name, data in {"a": "a", "b": "b", "newest": "a"}.items():
        (tmp_path / data).write_bytes(f"{data} few words ".encode() * 4096)
        table = tiny(
            evaluator="simulated",
            space=space,
            budget={"probes": 1},
            data={"path": str(tmp_path / data)},
        )
        frontrunner.launch(spec_of(table), store=store, name=name)
    [winner] = frontrunner.best("a", store=store)

    def planned(campaign: str | None) -> ReplayPlan:
        settings = ReplaySettings(steps=2, launched=True, folder=tmp_path / "run")
        return plan_replay(winner.recipe_id, settings, campaign=campaign, anyway=True, store=store)

    found = {name: str(planned(name).setup.data) for name in ("a", "b", None)}
    assert found == {"a": str(tmp_path / "a"), "b": str(tmp_path / "b"), None: str(tmp_path / "a")}
    prepare(planned("a"))
    job = tmp_path / "run" / "job.json"
    before = json.loads(job.read_text())
    del before["model"]["mtp_layers"]  # as a version wrote it that did not know them
    job.write_text(json.dumps(before))
    prepare(planned("newest"))  # goes on with the same text, in another campaign's folder
    with pytest.raises(InvalidInput, match="holds a run that differs in data"):
        prepare(planned("b"))


def test_data_of_one_file_are_read_as_earlier_versions_wrote_them() -> None:
    stated = {key: value for key, value in asdict(DATA).items() if key != "weight"}
    assert from_text(edited("content.training.data", stated)()).training.data == (DATA,)
    assert from_text(edited("content.training.data", None)()).training.data == ()


def test_several_files_of_data_are_replayed_by_their_weights(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.txt").write_bytes(f"{name} few words ".encode() * 4096)
    mixture = tmp_path / "mixture.toml"
    mixture.write_text(
        '[data]\nfiles = [{ path = "a.txt", weight = 3 }, { path = "b.txt", weight = 1 }]\n'
    )
    file = replace(made(), training=Training(data=training_data(named_data(str(mixture)))))
    again = from_text(to_text(file))
    assert [(Path(str(one.path)).name, one.weight) for one in again.training.data] == [
        ("a.txt", 3.0),
        ("b.txt", 1.0),
    ]
    (tmp_path / "r.json").write_text(to_text(file))

    def planned(data: str | None) -> ReplayPlan:
        settings = ReplaySettings(steps=2, launched=True, folder=tmp_path / "run", data=data)
        return plan_replay(
            str(tmp_path / "r.json"), settings, anyway=True, store=str(tmp_path / "s.db")
        )

    job = planned(None).job
    assert [file.weight for file in (job.data, *job.more_data)] == [3.0, 1.0]
    assert planned(str(mixture)).job == job
    prepare(planned(None))
    mixture.write_text(
        '[data]\nfiles = [{ path = "a.txt", weight = 3 }, { path = "b.txt", weight = 2 }]\n'
    )
    with pytest.raises(InvalidInput, match="holds a run that differs in data"):
        prepare(planned(str(mixture)))
    (tmp_path / "b.txt").unlink()
    with pytest.raises(InvalidInput, match=r"are not here: data\.files\.path = .*No such file"):
        planned(None)


def test_a_replay_is_refused_for_a_missing_extra_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "r.json").write_text(to_text(made()))
    monkeypatch.setattr("frontrunner.spaces.errors.find_spec", lambda _: None)
    with pytest.raises(InvalidInput, match="needs tensorboard installed") as refused:
        plan_replay(
            str(tmp_path / "r.json"),
            ReplaySettings(steps=2, metrics="tensorboard", data="built-in"),
        )
    assert refused.value.hint is not None
    assert refused.value.hint.endswith("'frontrunner[tensorboard]'")
