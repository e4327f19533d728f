"""Knobs of the user's own: what they may be, and that they are part of a recipe from the space to
its files.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from frontrunner.evaluators.export.base import TrainingJob
from frontrunner.evaluators.export.batch import batch_script
from frontrunner.evaluators.export.tools import TOOLS
from frontrunner.evaluators.programs.command import Command, environment_of, request_of
from frontrunner.evaluators.programs.command_settings import CommandSettings
from frontrunner.evaluators.programs.jobs import probe_job
from frontrunner.evaluators.programs.trainers import configured
from frontrunner.evaluators.trainer.job import Data, Job
from frontrunner.results.frames import CUSTOM, frame, from_columns, plain_columns
from frontrunner.results.schema import recipe_from_json, recipe_to_json
from frontrunner.results.store import open_store
from frontrunner.search.guided.prior import prior_of
from frontrunner.search.guided.strategy import Guided
from frontrunner.search.strategy import Told
from frontrunner.spaces.custom import Custom, CustomKnob
from frontrunner.spaces.document import recipe_id
from frontrunner.spaces.errors import InvalidInput
from frontrunner.spaces.recipe import Recipe
from frontrunner.spaces.space import Space
from frontrunner.store import LocalStore
from frontrunner.views.charts.knobs import sensitivity
from frontrunner.views.charts.marks import Chart, knobs
from support import guided
from support.campaigns import setup_of, spec_of, tiny, tiny_recipe
from support.charted import measured, recorded
from support.rankings import measurement, start

ARGUMENTS = {
    "arguments": ["{python}", "{pipeline_parallel} {tensor_parallel} {micro_batch_seqs}"],
    "log_patterns": [r"step (?P<step>\d+)"],
}
OVERLAP = {"values": [False, True], "flag": "--overlap", "default": False}
BUCKET = {"values": [20, 40.5], "flag": "--set bucket={value}"}
ALGORITHM = {"values": ["ring", "two trees"], "env": "NCCL_ALGO"}
TOKENS = (Data(path="x", dtype="uint16"),)


def knobbed(**own: Any) -> dict[str, Any]:
    """A campaign for a command with these knobs."""
    return tiny(evaluator="command", command=ARGUMENTS, space={"custom": own})


def custom(value: Any, **how: str) -> tuple[Custom, ...]:
    return (Custom(name="own", value=value, **how),)


def test_a_space_has_each_value_once_and_nothing_for_a_default() -> None:
    spec = spec_of(knobbed(overlap=OVERLAP, bucket=BUCKET, algorithm=ALGORITHM))
    plain = spec_of(tiny()).space.survey(spec.problem)
    found = spec.survey()
    assert len(found.recipes) == len(set(found.recipes)) == 8 * len(plain.recipes)
    assert {recipe.words("lever") for recipe in found.recipes} == {
        (f"algorithm={algorithm}", f"bucket={bucket}", *overlap)
        for algorithm in ("ring", "two trees")
        for bucket in (20, 40.5)
        for overlap in ((), ("overlap=yes",))
    }
    assert {tuple(found.dimension(name).of(found.recipes[0]) for name in found.custom)} == {
        (False, 20, "ring")
    }
    only_default = spec_of(knobbed(overlap=OVERLAP | {"values": [False]})).survey()
    assert only_default.recipes == plain.recipes, (
        "a recipe at its default is the one without the knob"
    )


def test_own_knobs_alone_leave_the_usual_space() -> None:
    table = knobbed(overlap=OVERLAP)
    table["space"] = {"custom": {"overlap": OVERLAP}}
    without = tiny(evaluator="command", command=ARGUMENTS)
    del without["space"]
    assert spec_of(table).space.with_choices(custom={}) == spec_of(without).space


def test_values_and_the_way_they_are_given_are_part_of_the_id() -> None:
    problem, recipe = spec_of(tiny()).problem, tiny_recipe()
    variants = [
        recipe,
        replace(recipe, custom=custom(1, flag="--x {value}")),
        replace(recipe, custom=custom(2, flag="--x {value}")),
        replace(recipe, custom=custom("1", flag="--x {value}")),
        replace(recipe, custom=custom(1, flag="--y {value}")),
        replace(recipe, custom=custom(1, env="X")),
        replace(recipe, custom=(Custom(name="other", value=1, env="X"),)),
    ]
    assert len({recipe_id(problem, one) for one in variants}) == len(variants)


@pytest.mark.parametrize("value", [3, 0.25, True, False, "two words"])
def test_a_recipe_keeps_its_knobs_in_stores_and_jobs(value: Any, tmp_path: Path) -> None:
    recipe = tiny_recipe(
        custom=(Custom(name="a", value=value, env="A"), Custom(name="b", value=value, env="B"))
    )
    stored = recipe_from_json(recipe_to_json(recipe))
    job = Job.from_json(probe_job(setup_of(tmp_path), recipe, tmp_path, TOKENS).to_json())
    for found in (stored, job.recipe):
        assert found == recipe
        assert [type(one.value) for one in found.custom] == [type(value)] * 2
    assert "custom" not in json.loads(recipe_to_json(tiny_recipe())), (
        "earlier versions read recipes without any"
    )


@pytest.mark.parametrize(
    ("name", "knob", "expected"),
    [
        ("Own", {}, "a name of a-z"),
        ("o" * 65, {}, "a name of a-z"),
        ("recompute", {}, "another name"),
        ("data_parallel", {}, "another name"),
        ("hidden", {}, "another name"),
        ("own", {"env": "LD_PRELOAD"}, "does not steer probes"),
        ("own", {"env": "PYTHONPATH"}, "does not steer probes"),
        ("own", {"env": "RANK"}, "does not steer probes"),
        ("own", {"env": "MASTER_ADDR"}, "does not steer probes"),
        ("own", {"env": "CUDA_VISIBLE_DEVICES"}, "does not steer probes"),
        ("own", {"env": "A=B"}, "the name of a variable"),
        ("own", {"env": None}, "neither a flag nor env"),
        ("own", {"flag": "--x {value}"}, "both a flag and env"),
        ("own", {"env": None, "flag": "--x"}, "true and false"),
        ("own", {"env": None, "flag": "--x {recompute}"}, "{value} where the value goes"),
        ("own", {"env": None, "flag": " "}, "{value} where the value goes"),
        ("own", {"values": []}, "at least one value"),
        ("own", {"values": [1, True]}, "of one kind"),
        ("own", {"values": [1, 1.0]}, "different values"),
        ("own", {"values": [0, 1], "default": False}, "one of space.custom.own.values"),
        ("own", {"values": ["a\nb"]}, "printable"),
        ("own", {"values": [[1]]}, "numbers, texts, or true and false"),
        ("own", {"values": ["hunter2"], "env": "HF_TOKEN"}, "looks like a secret"),
    ],
)
def test_what_no_knob_can_be_is_refused_by_its_key(
    name: str, knob: dict[str, Any], expected: str
) -> None:
    table = {
        key: value
        for key, value in ({"values": [1, 2], "env": "X"} | knob).items()
        if value is not None
    }
    with pytest.raises(InvalidInput) as caught:
        spec_of(knobbed(**{name: table}))
    assert expected in caught.value.message
    assert caught.value.message.startswith("space.custom")


def test_a_trainer_is_given_flags_and_variables_where_it_can_take_them(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"space\.custom\.bucket\.flag = .* takes no arguments"):
        spec_of(tiny(space={"custom": {"bucket": BUCKET}}))
    with pytest.raises(InvalidInput, match=r"space\.custom\.own\.env = \"OMP_PROC_BIND\""):
        spec_of(tiny(space={"custom": {"own": {"values": ["close"], "env": "OMP_PROC_BIND"}}}))
    with pytest.raises(InvalidInput, match=r"that command\.environment does not set"):
        spec_of(tiny(evaluator="command",
            command=ARGUMENTS | {"environment": {"NCCL_ALGO": "ring"}},
                     space={"custom": {"algorithm": ALGORITHM}}))  # fmt: skip
    with pytest.raises(InvalidInput, match="a flag or variable of its own"):
        spec_of(knobbed(one=ALGORITHM, other=ALGORITHM))
    assert (
        spec_of(tiny(space={"custom": {"algorithm": ALGORITHM}})).space.custom["algorithm"].env
        == "NCCL_ALGO"
    )
    recipe = tiny_recipe(custom=custom(1, flag="--x {value}"))
    job = probe_job(setup_of(tmp_path), recipe, tmp_path, TOKENS)
    with pytest.raises(ValueError, match="custom knob own is an argument of another trainer"):
        Job.from_json(job.to_json())
    with pytest.raises(InvalidInput, match="does not take --x 1"):
        batch_script(
            "slurm",
            TrainingJob(problem=spec_of(tiny()).problem, recipe=recipe, header=(), recipe_file=""),
        )


RECIPE = tiny_recipe(
    custom=(
        Custom(name="algorithm", value="two trees", env="NCCL_ALGO"),
        Custom(name="fused", value=False, env="FUSED"),
        Custom(name="label", value="$(reboot) *", flag="--label {value}"),
        Custom(name="nothing", value=False, flag="--nothing"),
        Custom(name="overlap", value=True, flag="--overlap"),
    )
)
GIVEN = ("--label", "$(reboot) *", "--overlap")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("run", "{micro_batch_seqs}"), ("run", "2", *GIVEN)),
        (("run", "{custom_arguments}", "{micro_batch_seqs}"), ("run", *GIVEN, "2")),
    ],
)
def test_a_command_gets_words_and_variables_without_a_shell(
    arguments: tuple[str, ...], expected: tuple[str, ...], tmp_path: Path
) -> None:
    settings = CommandSettings(
        arguments=arguments, log_patterns=(r"step (?P<step>\d+)",), environment={"A": "b"}
    )
    request = request_of(setup_of(tmp_path), RECIPE, tmp_path)
    command = configured(settings)(request)
    assert isinstance(command, Command)
    assert command.arguments == expected
    given = environment_of(command, request, settings)
    assert {name: given[name] for name in ("A", "NCCL_ALGO", "FUSED")} == {
        "A": "b",
        "NCCL_ALGO": "two trees",
        "FUSED": "0",
    }


@pytest.mark.parametrize("tool", ["megatron-lm", "torchtitan", "accelerate", "deepspeed"])
def test_an_export_has_them_in_the_tool_s_arguments_and_environment(tool: str) -> None:
    problem = spec_of(tiny(model={"activation": "swiglu", "norm": "rmsnorm"})).problem
    plain = TOOLS[tool].export(problem, replace(RECIPE, custom=()))
    found = TOOLS[tool].export(problem, RECIPE)
    assert found.arguments == (*GIVEN, *plain.arguments)
    text = TOOLS[tool].render(problem, RECIPE, ())
    assert (
        "needs the environment variable " if tool == "deepspeed" else "export "
    ) + "NCCL_ALGO='two trees'" in text
    assert "'$(reboot) *'" in text


def test_a_table_has_a_column_for_each_knob_that_recipes_have(tmp_path: Path) -> None:
    with open_store(str(tmp_path / "s.db")) as store:
        writer = start(store, "own")
        problem = spec_of(tiny()).problem
        for value in (None, 4, 8):
            one = tiny_recipe(custom=() if value is None else custom(value, env="X"))
            trial = writer.propose(recipe_id(problem, one), one)
            attempt = writer.start_attempt(trial, run_folder="x")
            writer.finish_attempt(attempt, measurement((0.5,), 1), retry=False)
        table = frame(store, None)
    column = table[f"{CUSTOM}own"]
    assert (str(column.dtype), column.isna().tolist(), column.tolist()[1:]) == (
        "Int64",
        [True, False, False],
        [4, 8],
    )
    assert from_columns(plain_columns(table)).equals(table)


def test_recipes_are_filtered_by_their_values_and_defaults(tmp_path: Path) -> None:
    own = {
        "own": {"values": [1, 2, 4], "env": "X"},
        "overlap": {"values": [True, False], "flag": "--o", "default": False},
    }
    spec = spec_of(tiny(evaluator="simulated", space={"custom": own, "micro_batch_seqs": [1]}))
    recipes = [r for r in spec.space.survey(spec.problem).recipes if r.devices == r.data_parallel]
    recorded(tmp_path / "s.db", spec, [(recipe, [measured(100.0, 0.5)]) for recipe in recipes])
    store = LocalStore(str(tmp_path / "s.db"))
    for words, wanted in (
        (["own=2"], {"own": 2}),
        (["overlap=no"], {"overlap": None}),
        (["own=4", "overlap=yes"], {"own": 4, "overlap": True}),
    ):
        found = {item.recipe for item in store.recipes(custom=words).items}
        given = {recipe: {one.name: one.value for one in recipe.custom} for recipe in recipes}
        assert found == {
            r for r in recipes if all(given[r].get(name) == value for name, value in wanted.items())
        }
        assert 0 < len(found) < len(recipes)
    with pytest.raises(
        InvalidInput, match=r'custom = "own=3": expected one of own=1, own=2, own=4'
    ):
        store.recipes(custom=["own=3"])
    with pytest.raises(
        InvalidInput, match=r'custom = "other=3": expected own=VALUE, overlap=VALUE'
    ):
        store.recipes(custom=["other=3"])


def test_charts_have_them_as_knobs_like_others(tmp_path: Path) -> None:
    own, peak = {"own": {"values": [1, 2, 4], "env": "X"}}, {"peak_tflops": {"fp32": 0.1}}
    spec = spec_of(tiny(evaluator="simulated", cluster=peak, space={"custom": own}))
    survey = spec.space.survey(spec.problem)
    same = {
        r.custom[0].value: r
        for r in survey.recipes
        if r.micro_batch_seqs == 1 and r.devices == r.data_parallel
    }
    collected = recorded(
        tmp_path / "s.db",
        spec,
        [(same[1], [measured(100.0, 0.5)]), (same[4], [measured(300.0, 0.5)])],
    )
    drawn = sensitivity(collected)
    assert isinstance(drawn, Chart)
    points = {row["value"]: row for row in drawn.spec["data"]["values"] if row["knob"] == "own"}
    assert [points[value]["tokens_per_s"] for value in "14"] == [100.0, 300.0]
    assert (points["2"]["source"], points["2"]["tokens_per_s"]) == (
        "estimated",
        pytest.approx(300.0),
    ), "no effect"
    assert [(knob.dimension.name, knob.values) for knob in knobs(survey, list(same.values()))] == [
        ("own", (1, 2, 4))
    ]


OWN = {
    "channels": CustomKnob(values=(4, 8, 16, 32), env="NCCL_MIN_NCHANNELS"),
    "algorithm": CustomKnob(values=("ring", "tree", "nvls"), env="NCCL_ALGO"),
    "overlap": CustomKnob(values=(False, True), flag="--overlap", default=False),
}
EFFECTS = {4: -0.2, 8: 0.0, 16: 0.1, 32: 0.05, "ring": 0.0, "tree": 0.12, "nvls": -0.1}
WITH_OWN = guided.SPACE.with_choices(custom=OWN).survey(guided.PROBLEM)
PRIOR = prior_of(WITH_OWN.recipes, guided.PROBLEM)


def test_guided_learns_an_effect_of_each_and_the_formulas_know_none() -> None:
    row = {recipe: number for number, recipe in enumerate(WITH_OWN.recipes)}
    twins: dict[Recipe, set[float]] = {}
    for recipe, number in row.items():
        twins.setdefault(replace(recipe, custom=()), set()).add(float(PRIOR.log_speed[number]))
    assert {len(speeds) for speeds in twins.values()} == {1}

    def truth(recipe: Recipe) -> float:
        given = {one.name: one.value for one in recipe.custom}
        own = (
            EFFECTS[given["channels"]]
            + EFFECTS[given["algorithm"]]
            + (0.15 if "overlap" in given else 0.0)
        )
        return float(PRIOR.log_speed[row[recipe]]) + own

    runs = PRIOR.log_fill < math.log(0.9)
    best = max(truth(recipe) for recipe, fits in zip(WITH_OWN.recipes, runs, strict=True) if fits)
    strategy = Guided(WITH_OWN, 0, PRIOR)
    for _ in range(25):
        (recipe,) = strategy.ask(1)
        strategy.tell(Told(recipe=recipe, outcome=measured(math.exp(truth(recipe)), 0.5)))
        found = truth(recipe)
        if found > best - 0.02:
            break
    assert found > best - 0.02, f"{best - found:.2f} from the best of {len(row)} recipes"
    predicted = {
        recipe: math.log(expected.tokens_per_s) for recipe, expected in strategy.forecasts().items()
    }
    errors = [predicted[recipe] - truth(recipe) for recipe in predicted]
    known = [truth(recipe) - float(PRIOR.log_speed[row[recipe]]) for recipe in predicted]
    assert np.abs(errors).mean() < 0.5 * np.abs(known).mean()


def test_a_space_counts_their_values() -> None:
    own = Space(custom=OWN).dimensions(guided.CLUSTER)
    assert [len(own[name]) for name in OWN] == [4, 3, 2]
