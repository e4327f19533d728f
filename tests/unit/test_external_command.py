"""The command's arguments: fields, conditions, ready-made trainers, and which recipes a campaign's
command can run.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from frontrunner.config.campaign import read_campaign_file
from frontrunner.evaluators.export.tools import TOOLS
from frontrunner.evaluators.programs.command import (
    Command,
    CommandRequest,
    field_values,
    filled,
    filled_text,
    request_of,
    stated_before,
    why_disagreeing,
)
from frontrunner.evaluators.programs.command_settings import CommandSettings
from frontrunner.evaluators.programs.trainers import STEPS, configured
from frontrunner.search.spec import CampaignSpec
from frontrunner.spaces.errors import InvalidInput
from frontrunner.spaces.legality import Reason
from frontrunner.spaces.recipe import Recipe
from frontrunner.spaces.sharding import Sharding
from support.campaigns import setup_of, spec_of, tiny, tiny_recipe, write_toml

STEP = r"step (?P<step>\d+)"
FIELDS = {
    "tensor_parallel": "2",
    "sequence_parallel": "true",
    "compile": "false",
    "recompute": "full",
}


def request(folder: Path, recipe: Recipe | None = None) -> CommandRequest:
    return request_of(
        setup_of(folder, model={"activation": "swiglu", "norm": "rmsnorm"}),
        recipe or tiny_recipe(),
        folder,
    )


def command(settings: CommandSettings, asked: CommandRequest) -> Command:
    found = configured(settings)(asked)
    assert isinstance(found, Command), found
    return found


def test_fields_conditions_and_braces() -> None:
    arguments = (
        "--tp={tensor_parallel}", "{sequence_parallel?--sequence-parallel}", "{compile?--compile}",
        "{recompute=full?--recompute}", "{recompute=selective?--selective}", "{{}} $HOME *",
    )  # fmt: skip
    assert filled(arguments, FIELDS) == (
        "--tp=2",
        "--sequence-parallel",
        "--recompute",
        "{} $HOME *",
    )


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        (
            "--tp={tensor_paralel}",
            "no field is called {tensor_paralel}",
            "did you mean 'tensor_parallel'?",
        ),
        ("{compiles?--compile}", "no field is called {compiles}", "did you mean 'compile'?"),
        ("--tp={tensor_parallel", "a single { is written {{", None),
        ("--tp=}", "a single } is written }}", None),
        ("--all={trainer_arguments}", "as an argument of its own", None),
        ("{node_rank=0?--verbose}", "a condition on the recipe: node_rank is known later", None),
        ("{local_rank}", "no field is called {local_rank}", 'with command.start_per = "rank"'),
    ],
)
def test_what_cannot_be_filled_is_named(text: str, message: str, hint: str | None) -> None:
    with pytest.raises(InvalidInput) as caught:
        filled((text,), FIELDS)
    assert message in caught.value.message
    assert caught.value.hint == hint


def test_every_choice_of_a_recipe_has_its_field(tmp_path: Path) -> None:
    recipe = tiny_recipe(
        sharding=Sharding(optimizer=2), layers_per_stage=(2,), sequence_parallel=False
    )
    values = field_values(request(tmp_path, recipe))
    assert values["sharding"] == "zero-1"
    assert values["zero_stage"] == "1"
    assert values["layers_per_stage"] == "2"
    assert values["sequence_parallel"] == "false"
    assert values["global_batch"] == str(recipe.global_batch_seqs)
    assert values["nodes"] == "1"
    assert values["steps"] == "3"
    for name in Recipe.__dataclass_fields__.keys() - {"custom"}:  # which {custom_arguments} gives
        assert name in values
    assert filled_text("{run_folder}/{data_parallel}", values) == f"{tmp_path}/2"


def test_torchtitan_s_subcommand_ends_its_arguments(tmp_path: Path) -> None:
    """What follows a subcommand belongs to it, and torchtitan rejects steps there."""
    settings = CommandSettings(trainer="torchtitan", arguments=("run", "{trainer_arguments}"))
    assert command(settings, request(tmp_path)).arguments[-1].startswith("activation-checkpoint:")


@pytest.mark.parametrize("trainer", sorted(TOOLS))
def test_ready_made_trainers_put_their_arguments_in(tmp_path: Path, trainer: str) -> None:
    settings = CommandSettings(trainer=trainer, arguments=("run", "{trainer_arguments}", "--mine"))
    found = command(settings, request(tmp_path))
    assert (found.arguments[0], found.arguments[-1]) == ("run", "--mine")
    assert "{" not in "".join(found.arguments)
    for name in found.files:  # by its path in the run folder, whatever folder the command starts in
        assert name not in found.arguments
    steps = [text.replace("{steps}", "3") for text in STEPS[trainer]]
    assert all(text in found.arguments for text in steps)


def test_configuration_files_log_every_step(tmp_path: Path) -> None:
    found = command(
        CommandSettings(trainer="deepspeed", arguments=("x", "{trainer_arguments}")),
        request(tmp_path),
    )
    assert json.loads(found.files["ds_config.json"])["steps_per_print"] == 1
    assert str(tmp_path / "ds_config.json") in found.arguments
    found = command(
        CommandSettings(trainer="nanotron", arguments=("x", "{trainer_arguments}")),
        request(tmp_path),
    )
    table = yaml.safe_load(found.files["nanotron.yaml"])
    assert (table["tokens"]["train_steps"], table["logging"]["iteration_step_info_interval"]) == (
        3,
        1,
    )


def test_what_a_trainer_cannot_be_told_is_a_reason(tmp_path: Path) -> None:
    make = configured(
        CommandSettings(trainer="megatron-lm", arguments=("x", "{trainer_arguments}"))
    )
    found = make(
        request(tmp_path, tiny_recipe(pipeline_parallel=2, schedule="gpipe", accumulation=4))
    )
    assert isinstance(found, Reason)
    assert "gpipe" in found.text


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"arguments": ()}, "command.arguments is missing"),
        ({"trainer": "megatron"}, 'command.trainer = "megatron": expected one of megatron-lm'),
        ({"trainer": "megatron-lm"}, "{trainer_arguments}"),
        ({"arguments": ("x", "{trainer_arguments}")}, "{trainer_arguments}"),
        ({"log_patterns": ()}, "finds a finished step"),
        ({"log_patterns": (), "log": "torchtitan"}, None),
        ({"pass_environment": ("A B",)}, "names of variables"),
        ({"environment": {"A=B": "x"}}, "names of variables"),
        ({"arguments": ("a\0b",)}, "without NUL"),
    ],
)
def test_settings_that_cannot_make_commands_are_refused(
    settings: dict[str, Any], message: str | None
) -> None:
    given = {"arguments": ("x",), "log_patterns": (STEP,)} | settings
    if message is None:
        configured(CommandSettings(**given))
        return
    with pytest.raises(InvalidInput) as caught:
        configured(CommandSettings(**given))
    assert message in caught.value.message


def campaign(**command: object) -> CampaignSpec:
    given = {"log_patterns": [STEP]} | command
    return spec_of(tiny(evaluator="command", command=given))


def test_a_command_that_does_not_tell_recipes_apart_is_refused() -> None:
    with pytest.raises(
        InvalidInput, match=r"the command is the same for .* which differ in .*micro_batch_seqs"
    ) as caught:
        campaign(arguments=["x", "{tensor_parallel}", "{pipeline_parallel}"]).survey()
    assert caught.value.hint is not None
    named = campaign(
        arguments=["x", "{tensor_parallel}", "{pipeline_parallel}"],
        environment={"MB": "{micro_batch_seqs}"},
    )
    assert len(named.survey().recipes) == len(
        replace(named, evaluator="simulated").survey().recipes
    )


def test_recipes_that_the_trainer_cannot_run_are_counted_with_the_reason() -> None:
    spec = campaign(trainer="deepspeed", arguments=["x", "{trainer_arguments}"])
    survey = spec.survey()
    assert survey.recipes
    assert all(recipe.pipeline_parallel == 1 for recipe in survey.recipes)
    assert survey.refusals["pipeline-unsaid"] > 0


def test_a_campaign_file_s_command_starts_in_its_folder(tmp_path: Path) -> None:
    path = write_toml(
        tmp_path / "c.toml",
        tiny(evaluator="command", command={"arguments": ["x"], "log_patterns": ["a"]}),
    )
    assert read_campaign_file(path).spec.command.folder == str(tmp_path)
    write_toml(path, tiny(evaluator="command", command={"arguments": ["x"], "folder": "nowhere"}))
    with pytest.raises(InvalidInput, match=r"command\.folder"):
        read_campaign_file(path)
    write_toml(path, tiny(evaluator="command", command={"log_patterns": ["a"]}))
    with pytest.raises(InvalidInput, match=r"command\.arguments is missing"):
        read_campaign_file(path)


@pytest.mark.parametrize("trainer", ["deepspeed", "megatron-deepspeed"])
@pytest.mark.parametrize("offload", ["optimizer", "optimizer+parameters"])
def test_offload_on_one_replica_does_not_disagree_with_its_own_export(
    tmp_path: Path, trainer: str, offload: str
) -> None:
    asked = request(tmp_path, tiny_recipe(devices=1, engine="deepspeed", offload=offload))
    found = command(CommandSettings(trainer=trainer, arguments=("x", "{trainer_arguments}")), asked)
    for name, text in found.files.items():
        (tmp_path / name).write_text(text)
    stage = json.loads(found.files["ds_config.json"])["zero_optimization"]["stage"]
    assert field_values(asked)["zero_stage"] == str(stage)
    statements = list(stated_before(found.arguments, tmp_path))
    assert stage in [
        statement.value for statement in statements if statement.figure == "zero_stage"
    ]
    assert why_disagreeing(statements, asked.recipe, asked.problem) is None


@pytest.mark.parametrize(("version", "passes"), [("0.3.0", True), ("0.4.1", False), (None, True)])
def test_another_version_of_torchtitan_is_refused_before_a_campaign(
    tmp_path: Path, version: str | None, passes: bool
) -> None:
    program, packages = (
        tmp_path / "bin" / "torchrun",
        tmp_path / "lib" / "python3.11" / "site-packages",
    )
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    if version is not None:
        (packages / f"torchtitan-{version}.dist-info").mkdir(parents=True)
        metadata = f"Metadata-Version: 2.1\nName: torchtitan\nVersion: {version}\n"
        (packages / f"torchtitan-{version}.dist-info" / "METADATA").write_text(metadata)
    spec = campaign(trainer="torchtitan", arguments=["env", str(program), "{trainer_arguments}"])
    if passes:
        spec.check_commands(tiny_recipe())
        return
    with pytest.raises(
        InvalidInput, match=r"torchtitan 0\.4\.1 is installed .* the arguments are for 0\.3"
    ):
        spec.check_commands(tiny_recipe())


def test_the_frontier_study_s_log_is_found_out(tmp_path: Path) -> None:
    """The command line says micro-batch 1, DeepSpeed's JSON says 4: gpt175b_megatron_16N of the
    study's repository.
    """
    (tmp_path / "ds_config.json").write_text(
        '{"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 0}}'
    )
    arguments = [
        "--micro-batch-size",
        "1",
        "--tensor-model-parallel-size=1",
        "--deepspeed_config",
        "ds_config.json",
    ]
    asked = request(tmp_path, tiny_recipe(micro_batch_seqs=1, accumulation=4))
    found = why_disagreeing(stated_before(arguments, tmp_path), asked.recipe, asked.problem)
    assert found is not None
    assert "is 1 in the recipe and 4 to the trainer" in found
    agreeing = stated_before(arguments[:3], tmp_path)
    assert why_disagreeing(agreeing, asked.recipe, asked.problem) is None
    wrong = stated_before(["--tensor-model-parallel-size=8"], tmp_path)
    assert "argument --tensor-model-parallel-size 8" in (
        why_disagreeing(wrong, asked.recipe, asked.problem) or ""
    )


def test_ranks_on_several_nodes_need_a_dispatch() -> None:
    table = tiny(
        cluster={"nodes": 2, "devices_per_node": 1},
        command={"arguments": ["a"], "start_per": "rank"},
    )
    with pytest.raises(
        InvalidInput, match=r'command.start_per = "rank": expected node, or dispatch.backend'
    ):
        spec_of(table | {"evaluator": "command"})


def test_what_computes_or_looks_up_takes_no_nodes() -> None:
    with pytest.raises(
        InvalidInput,
        match=r'expected no section .dispatch. .*, or evaluator = "probe" or "command"',
    ):
        spec_of(tiny(evaluator="simulated", dispatch={"backend": "allocation"}))
