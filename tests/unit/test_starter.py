"""`frontrunner init`, and campaign files that leave their space to the model and the cluster."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from frontrunner.cli.plan import _ask
from frontrunner.config.campaign import read_campaign_file
from frontrunner.config.starter import starter
from frontrunner.evaluators.runs.settings import ProbeSettings
from frontrunner.planning import plan_of
from frontrunner.search.campaign_setup import slow_steps, warn_of_slow_steps
from frontrunner.spaces.errors import FrontrunnerError, InvalidInput
from support.campaign_files import campaign_toml, surveyed, written
from support.commands import warm_command_line

THREE_SECTIONS: dict[str, str | None] = dict.fromkeys(
    (
        "space.tensor_parallel",
        "space.pipeline_parallel",
        "space.micro_batch_seqs",
        "search.strategy",
        "search.seed",
    )
)


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return warm_command_line().run(arguments, cwd=cwd, environment=dict(os.environ))


def without_space(path: Path, changes: dict[str, str | None]) -> Path:
    text = campaign_toml({**THREE_SECTIONS, "budget.probes": None, **changes})
    kept = [line for line in text.splitlines() if line not in ("[space]", "[search]", "[budget]")]
    return written(path, "\n".join(kept))


def test_three_sections_are_a_campaign(tmp_path: Path) -> None:
    path = without_space(tmp_path / "small.toml", {})
    space = read_campaign_file(path).spec.space
    assert (space.tensor_parallel, space.pipeline_parallel) == ((1, 2, 4), (1, 2, 4))
    assert (space.micro_batch_seqs, space.accumulation, space.context_parallel) == (
        (1, 2, 4, 8),
        (),
        (1,),
    )
    found = surveyed(path)
    shardings = {recipe.sharding_name for recipe in found.recipes}
    assert {"none", "zero-1", "zero-2", "zero-3"} <= shardings
    assert {recipe.devices for recipe in found.recipes} == {4}


def test_a_range_of_batches_and_long_sequences_have_choices_of_their_own(tmp_path: Path) -> None:
    changes: dict[str, str | None] = {
        "problem.global_batch": "[4, 12]",
        "problem.sequence_length": "16384",
    }
    space = read_campaign_file(without_space(tmp_path / "small.toml", changes)).spec.space
    assert (space.accumulation, space.context_parallel) == ((1, 2, 4, 8), (1, 2, 4))
    assert surveyed(tmp_path / "small.toml").recipes


def test_a_space_of_experts_has_the_degrees_that_heads_and_widths_divide_by(tmp_path: Path) -> None:
    files = {
        name: starter(model=name, cluster="gb200-nvl72", folder=tmp_path)
        for name in ("deepseek-v3", "gpt-oss-20b", "llama-3-8b")
    }
    spaces = {
        name: read_campaign_file(written(tmp_path / "c.toml", text)).spec.space
        for name, text in files.items()
    }
    assert spaces["deepseek-v3"].tensor_parallel == (1, 2, 4, 8)
    assert spaces["deepseek-v3"].expert_tensor_parallel == (1, 2, 4, 8)
    assert spaces["deepseek-v3"].expert_parallel == (1, 2, 4, 8, 16, 32, 64)
    assert spaces["gpt-oss-20b"].expert_tensor_parallel == (1,)  # whose experts have biases
    assert spaces["llama-3-8b"].expert_tensor_parallel == (1,)


def test_an_empty_space_is_one_of_defaults(tmp_path: Path) -> None:
    text = campaign_toml(
        dict.fromkeys(
            ("space.tensor_parallel", "space.pipeline_parallel", "space.micro_batch_seqs")
        )
    )
    assert read_campaign_file(written(tmp_path / "one.toml", text)).spec.space.tensor_parallel == (
        1,
    )


@pytest.mark.parametrize("nodes", [1, 3])
def test_what_init_writes_is_the_campaign_without_its_space(tmp_path: Path, nodes: int) -> None:
    text = starter(model="llama-3-8b", cluster="dgx-h100", folder=tmp_path, nodes=nodes)
    spec = read_campaign_file(written(tmp_path / "whole.toml", text)).spec
    short = "\n".join(line for line in text.partition("[space]")[0].splitlines())
    assert spec.space == read_campaign_file(written(tmp_path / "short.toml", short)).spec.space
    assert (spec.problem.sequence_length, spec.problem.global_batch.maximum % (8 * nodes)) == (
        4096,
        0,
    )
    assert 0.9 < spec.problem.sequence_length * spec.problem.global_batch.maximum / 2**20 < 1.1
    assert spec.budget.probes == 40


def test_what_is_given_is_written(tmp_path: Path) -> None:
    of = {"sequence_length": 512, "global_batch": 24, "precision": "fp16"}
    text = starter(model="gpt2-small", cluster="dgx-h100", folder=tmp_path, nodes=2, **of)
    problem = read_campaign_file(written(tmp_path / "c.toml", text)).spec.problem
    assert (problem.sequence_length, problem.global_batch.maximum, problem.precision) == (
        512,
        24,
        "fp16",
    )


SLOW = """[cluster]
device = "slow"
backend = "cpu"
peak_tflops.fp32 = 0.3
devices_per_node = 2
memory_gib_per_device = 8
"""


@pytest.mark.parametrize(
    ("cluster", "model", "precision", "tokens"),
    [
        ("dgx-1-v100", "gpt2-small", "fp16", 2**20),
        ("dgx-h100", "llama-3-70b", "bf16", 2e5),
        ("slow.toml", "gpt2-small", "fp32", 8192),
    ],
)
def test_batch_and_precision_are_those_of_the_machine(
    tmp_path: Path, cluster: str, model: str, precision: str, tokens: float
) -> None:
    slow = written(tmp_path / "slow.toml", SLOW)
    text = starter(
        model=model, cluster=str(slow) if cluster == slow.name else cluster, folder=tmp_path
    )
    spec = read_campaign_file(written(tmp_path / "c.toml", text)).spec
    assert spec.problem.precision == precision
    assert spec.problem.global_batch.maximum * spec.problem.sequence_length == pytest.approx(
        tokens, rel=0.1
    )
    assert slow_steps(spec, plan_of(spec).table) is None


@pytest.mark.parametrize(
    ("step_deadline", "deadline", "named"),
    [(0.9, 9, "probe.step_deadline_s"), (2, 4.9, "probe.deadline_s"), (2, 5.1, None)],
)
def test_steps_too_slow_for_a_probe_are_named_before_it(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    step_deadline: float,
    deadline: float,
    named: str | None,
) -> None:
    spec = read_campaign_file(
        written(tmp_path / "c.toml", campaign_toml({"evaluator": '"probe"'}))
    ).spec
    step_s = plan_of(spec).fastest(1)[0].step_time_s
    probe = ProbeSettings(step_deadline_s=step_deadline * step_s, deadline_s=deadline * step_s)
    spec = replace(spec, probe=probe)
    noted = [remark for remark in plan_of(spec).trust.remarks if "deadline" in remark]
    assert [f"raise {named}" in remark for remark in noted] == [True] * (named is not None)
    warn_of_slow_steps(spec, spec.survey())
    assert [record.message for record in caplog.records] == [
        f"warning: {remark}" for remark in noted
    ]


def test_init_without_a_standard_input_names_the_missing_flag(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "stdin", None)  # as Python starts with `<&-`
    with pytest.raises(InvalidInput, match="--model is missing"):
        _ask("--model", ("llama-3-8b",))


def test_init_writes_a_file_that_plans_once(tmp_path: Path) -> None:
    config = {
        "model_type": "llama",
        "hidden_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
    }
    config |= {"vocab_size": 257, "intermediate_size": 352}
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "config.json").write_text(json.dumps(config))
    arguments = ("init", "--model", "models/config.json", "--cluster", "dgx-h100")
    assert run(*arguments, cwd=tmp_path).returncode == 0
    assert 'config = "models/config.json"' in (tmp_path / "campaign.toml").read_text()
    assert run("plan", "campaign.toml", cwd=tmp_path).returncode == 0
    again = run(*arguments, cwd=tmp_path)
    assert (again.returncode, "campaign.toml is there already" in again.stderr) == (2, True)


@pytest.mark.parametrize(
    ("model", "cluster", "message"),
    [
        ("lama-3-8b", "dgx-h100", "did you mean 'llama-3-8b'?"),
        ("none/config.json", "dgx-h100", "the path of a file that is there"),
        ("llama-3-8b", "dgx", "--cluster"),
    ],
)
def test_a_name_that_is_none_is_refused(
    tmp_path: Path, model: str, cluster: str, message: str
) -> None:
    with pytest.raises(FrontrunnerError) as refused:
        starter(model=model, cluster=cluster, folder=tmp_path)
    assert message in f"{refused.value.message} {refused.value.hint}"
