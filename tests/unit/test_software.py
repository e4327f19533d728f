"""Training codes: what a campaign file states of them, and what estimates assume."""

from __future__ import annotations

import json
import typing
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from frontrunner.config.campaign import parse_campaign
from frontrunner.evaluators.analytic.accuracy_bounds import log_bounds
from frontrunner.evaluators.analytic.codes import CODES, KNOWN, TRAITS, UNKNOWN, coded, described
from frontrunner.evaluators.analytic.estimates import estimate_many
from frontrunner.evaluators.analytic.machine import Machine
from frontrunner.evaluators.analytic.memory import log_deviation, peak_memory
from frontrunner.evaluators.analytic.step import step_time
from frontrunner.evaluators.programs.trainers import LOG_PATTERNS
from frontrunner.search.spec import CampaignSpec
from frontrunner.spaces.document import recipe_id
from frontrunner.spaces.errors import InvalidInput
from frontrunner.spaces.problem import SoftwareSettings
from frontrunner.spaces.validation import dump_json, load_json
from support.analytic import A100, PROBLEM, problem_with, recipe, work

LLAMA = problem_with(activation="swiglu", attention="flash")

FILE = {
    "model": {"preset": "llama-2-7b"},
    "cluster": {"preset": "dgx-a100-80gb"},
    "problem": {"sequence_length": 4096, "global_batch": 64},
    "space": {"tensor_parallel": [2, 4]},
}


def spec_of(**sections: Any) -> CampaignSpec:
    return parse_campaign({**FILE, **sections}, default_name="x", base=Path()).spec


def test_traits_of_a_campaign_file_set_a_code_and_are_read_back() -> None:
    hints = typing.get_type_hints(SoftwareSettings)
    assert set(TRAITS) == {field.name for field in fields(SoftwareSettings)} - {"code"}
    for key, kinds in TRAITS.items():
        stated = typing.get_args(typing.get_args(hints[key])[0]) or (True, False)
        assert set(kinds) == set(stated), key
        for value in kinds:
            mixture = problem_with(activation="swiglu", experts=8, experts_per_token=2)
            settings = SoftwareSettings(code="nanotron", **{key: value})
            told = described(replace(mixture, software=settings), "torch")
            assert getattr(told, key) == value


def test_codes_include_the_ready_made_trainers() -> None:
    assert set(LOG_PATTERNS) <= set(CODES)


@pytest.mark.parametrize(
    ("sections", "code"),
    [
        ({}, None),
        ({"software": {"code": "llm-foundry"}}, "llm-foundry"),
        ({"evaluator": "simulated"}, None),
        (
            {
                "evaluator": "command",
                "command": {"arguments": ["x", "{trainer_arguments}"], "trainer": "nemo"},
            },
            "nemo",
        ),
        (
            {"evaluator": "command", "command": {"arguments": ["x"], "log": "torchtitan"}},
            "torchtitan",
        ),
        ({"evaluator": "command", "command": {"arguments": ["x"]}}, "unknown"),
        (
            {"evaluator": "command", "command": {"arguments": ["x"], "trainer": "deepspeed"}},
            "unknown",
        ),
        (
            {
                "evaluator": "command",
                "command": {"arguments": ["x"]},
                "software": {"code": "nanotron"},
            },
            "nanotron",
        ),
    ],
)
def test_code_of_a_problem_is_stated_or_the_evaluator_s(
    sections: dict[str, Any], code: str | None
) -> None:
    found = spec_of(**sections)
    assert found.problem.software.code == code
    earlier = json.loads(dump_json(found))
    if "software" not in sections:  # a campaign that was stored before there was such a section
        del earlier["problem"]["software"]
    assert (
        load_json(CampaignSpec, json.dumps(earlier), what="spec").problem.software
        == found.problem.software
    )


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"code": "megatron"}, "software.code = .megatron.: expected one of .*unknown"),
        ({"norm": "fusd"}, "software.norm = .fusd.: expected 'fused' or 'eager'"),
        ({"atention": "eager"}, "unknown key software.atention"),
    ],
)
def test_software_settings_name_a_mistake_by_its_key(section: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        spec_of(software=section)


def test_code_is_no_part_of_a_problem_s_or_a_recipe_s_identity() -> None:
    other = replace(PROBLEM, software=SoftwareSettings(code="nanotron", norm="eager"))
    assert other == PROBLEM
    assert recipe_id(other, recipe()) == recipe_id(PROBLEM, recipe())
    before, after = (estimate_many([recipe()], problem)[0] for problem in (PROBLEM, other))
    assert (before.step_time_s, before.peak_memory_bytes) != (
        after.step_time_s,
        after.peak_memory_bytes,
    )


def test_unknown_code_lies_between_the_known_ones_and_narrows_with_what_is_stated() -> None:
    rows = work(recipe(tensor_parallel=2), problem=LLAMA)

    def machine(code: str, **traits: Any) -> Machine:
        return Machine.of(A100, "bf16", coded(SoftwareSettings(code=code, **traits)))

    def time_s(code: str, **traits: Any) -> float:
        return float(step_time(machine(code, **traits), rows).total[0])

    def width(code: str, **traits: Any) -> float:
        below, above = log_bounds(
            A100, "bf16", machine(code, **traits).code, rows, np.array([False])
        )
        return float(below[0] + above[0])

    times = sorted(time_s(code.name) for code in KNOWN)
    assert times[1] < time_s("unknown") < times[-2]
    sizes = sorted(float(peak_memory(machine(code.name), rows).total[0]) for code in KNOWN)
    assert sizes[0] < float(peak_memory(machine("unknown"), rows).total[0]) < sizes[-1]
    spreads = [
        float(log_deviation(one, rows, peak_memory(one, rows))[0])
        for one in (
            machine("megatron-lm"),
            machine("unknown", attention="flash-2", norm="fused", gradients="fp32"),
            machine("unknown"),
        )
    ]
    assert spreads == sorted(set(spreads))
    known, stated, unknown = (
        width("megatron-lm"),
        width("unknown", attention="flash-2", norm="fused", rotary="fused"),
        width("unknown"),
    )
    assert known < stated < unknown
    off = [np.log(time_s(code.name) / time_s("unknown")) for code in UNKNOWN.stands_for]
    assert unknown > np.hypot(known, 1.96 * 2 * np.sqrt(np.mean(np.square(off)))) - 0.1


def test_described_traits_hold_for_the_problem_at_hand() -> None:
    """A GPT has neither a rotation nor a gate, fp32 no 16-bit gradients; math attention is the
    code's own.
    """
    settings = SoftwareSettings(code="accelerate")
    gpt = replace(
        PROBLEM,
        software=settings,
        precision="fp32",
        model=PROBLEM.model.with_keys(max_positions=2048),
    )
    gpt = replace(gpt, model=gpt.model.with_keys(positions="learned"))
    found = described(gpt, "torch")
    assert (found.rotary, found.activation, found.gradients, found.attention) == (
        None,
        None,
        "fp32",
        "eager",
    )
    assert found.describe().startswith(
        "accelerate, attention eager, norm eager, cross-entropy eager, dropout no"
    )
    assert described(replace(PROBLEM, software=settings), "torch").gradients == "16-bit"
    assert described(PROBLEM, "deepspeed").code == "deepspeed"
    megatron = {
        word: SoftwareSettings(code="megatron-lm", gradients=word) for word in (None, "fp32")
    }
    bf16, fp16, stated = (
        described(replace(PROBLEM, software=megatron[word], precision=precision), "torch").gradients
        for word, precision in ((None, "bf16"), (None, "fp16"), ("fp32", "fp16"))
    )
    assert (bf16, fp16, stated) == ("fp32", "16-bit", "fp32")
    narrow, wide = (
        Machine.of(A100, "fp16", coded(megatron[word])).code.gradients.wide
        for word in (None, "fp32")
    )
    assert (narrow, wide) == (False, True)


def test_loss_of_fewer_kernels_is_faster_and_keeps_no_fp32_copy() -> None:
    """By hand: 18 + 14 bytes per logit on an fp32 copy, 4 + 4 fused; at the peak 6 against 4."""
    kinds = ("fused", "16-bit", "eager")
    machines = [
        Machine.of(A100, "bf16", coded(SoftwareSettings(code="megatron-lm", cross_entropy=k)))
        for k in kinds
    ]
    rows = work(recipe())
    fused, narrow, eager = (step_time(one, rows).compute[0] for one in machines)
    logits = 4 * 2048 * 51200 / 8  # of a micro-batch on a rank
    assert eager - fused == pytest.approx(
        2 * logits * (18 + 14 - 4 - 4) / machines[0].memory_bytes_per_s
    )
    assert narrow == eager
    sizes = [peak_memory(one, rows).logits[0] / logits for one in machines]
    assert sizes == pytest.approx([4, 4, 6])


def test_pipeline_transfers_between_virtual_stages_are_hidden_in_code_that_overlaps_them() -> None:
    shape = {"pipeline_parallel": 4, "tensor_parallel": 8, "devices": 64, "accumulation": 8}
    rows = work(recipe(**shape), recipe(**shape, schedule="interleaved-1f1b", virtual_stages=2))
    hides, waits = (
        step_time(Machine.of(A100, "bf16", CODES[name]), rows).pipeline_transfer
        for name in ("megatron-lm", "frontrunner")
    )
    assert hides / waits == pytest.approx([1, 0.05])


def test_plan_prints_the_code_that_it_assumes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from frontrunner.evaluators.analytic.estimates import plan
    from frontrunner.views.plan import print_plan

    def printed(**section: str) -> str:
        problem = spec_of(software=section).problem
        print_plan(plan([recipe(tensor_parallel=1, devices=8, accumulation=2)], problem))
        return " ".join(capsys.readouterr().out.split())

    assert (
        "training code assumed: megatron-lm, attention flash-3, norm eager, activation fused"
        in printed(code="megatron-lm", norm="eager")
    )
    assert "training code assumed: unknown, norm fused, else any that known codes have" in printed(
        code="unknown", norm="fused"
    )


def test_log_bounds_of_a_compiled_recipe_are_off_by_what_compiling_gains() -> None:
    """A model whose kernels are torch's operations gains 40 %: twice that, or none, are just within
    the bounds.
    """
    plain, compiled = (
        work(recipe(compile=on), problem=problem_with(attention="flash")) for on in (False, True)
    )
    machine = Machine.of(A100, "bf16", coded(SoftwareSettings(code="accelerate")))
    gain = np.log(step_time(machine, plain).total / step_time(machine, compiled).total)
    before, below = (
        log_bounds(A100, "bf16", machine.code, one, np.array([False]))[0]
        for one in (plain, compiled)
    )
    assert before < gain < below < 1.3 * gain
