"""Rows of measured tables as problems, recipes and outcomes; what cannot become one is counted with
its reason.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from search_runs import survey_of

from frontrunner.config.campaign import read_campaign_file
from frontrunner.evaluators.analytic.codes import coded
from frontrunner.evaluators.analytic.memory import peak_memory
from frontrunner.evaluators.analytic.parts import mixture
from frontrunner.evaluators.analytic.parts.layer import weights_of_kinds
from frontrunner.evaluators.analytic.step import step_time
from frontrunner.evaluators.analytic.workload import Workload
from frontrunner.evaluators.tables import workloads as tables
from frontrunner.evaluators.tables.rows import TableProblems, read_problems
from frontrunner.results.outcome import Failure, FailureKind, Measurement
from frontrunner.spaces.document import read_plain, recipe_id
from frontrunner.spaces.model.feed_forward import ACTIVATIONS
from frontrunner.spaces.model.model import Model
from frontrunner.spaces.presets import model_preset
from support.analytic import machine
from support.campaigns import write_toml
from support.tables import row, write_table


def read(folder: Path, *rows: dict[str, Any]) -> TableProblems:
    return read_problems(write_table(folder / "rows.csv", *rows))


def test_a_row_is_its_recipe_and_its_measurement(tmp_path: Path) -> None:
    rows = (
        row(),
        row(tp=1, pp=4, dp=2, mbs=4, gas=8, vpp=2, zero=0, recompute="none", peak_mem_gb=""),
    )
    (problem,) = read(tmp_path, *rows).problems
    assert problem.name == "gpt-1.3B 1024 64 A100-80GB 8"
    assert [one.recipe.describe() for one in problem.rows] == [
        "tp2 pp1 dp4 mb1 x16 zero-1 recompute=full",
        "tp1 pp4 dp2 interleaved-1f1b v2 mb4 x8 none",
    ]
    first, second = (one.outcome for one in problem.rows)
    assert isinstance(first, Measurement)
    assert isinstance(second, Measurement)
    assert first.tokens_per_s == pytest.approx(64 * 1024 / 1.5)
    assert first.peak_memory_bytes == (20 * 2**30,)
    assert second.peak_memory_bytes_max_rank is None
    model, cluster = problem.problem.model, problem.problem.cluster
    assert (len(model.layers), model.hidden, model.feed_forward.matrices, cluster.devices) == (
        24,
        2048,
        2,
        8,
    )


LLAMA_3_8B: dict[str, Any] = {
    "layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn_hidden": 14336, "vocab": 128256,
}  # fmt: skip


@pytest.mark.parametrize("length", [8192, 16384])
def test_a_row_of_a_preset_s_shape_is_the_recipe_of_a_campaign_with_that_preset(
    tmp_path: Path, length: int
) -> None:
    degrees = {"gpus": 32, "tp": 2, "dp": 16, "gas": 32, "gbs": 512}
    changes = (
        LLAMA_3_8B
        | degrees
        | {
            "model": "our Llama",
            "hardware": "H100",
            "seq": length,
            "precision": "bf16",
        }
    )
    (found,) = read(tmp_path, row(**changes)).problems
    table = {
        "model": {"preset": "llama-3-8b"},
        "cluster": {"preset": "dgx-h100", "nodes": 4},
        "problem": {"sequence_length": length, "global_batch": 512, "precision": "bf16"},
        "space": {},
    }
    spec = read_campaign_file(write_toml(tmp_path / "c.toml", table)).spec
    (one,) = found.rows
    assert recipe_id(found.problem, one.recipe) == recipe_id(spec.problem, one.recipe)
    assert found.problem.model.name == "our Llama"


MIXTURE: dict[str, Any] = {
    "model": "mixtral", "n_params_b": 46.7, "layers": 32, "hidden": 4096, "heads": 32,
    "kv_heads": 8, "vocab": 32000,
    "ffn_hidden": 4096, "experts": 8, "top_k": 2, "expert_ffn_hidden": 14336, "tp": 1, "dp": 8,
    "gas": 8, "ep": 4,
    "precision": "bf16", "attention": "GQA", "shared_experts": 0, "etp": 2, "dense_layers": 0,
}  # fmt: skip


DEEPSEEK: dict[str, Any] = {
    "layers": 61, "hidden": 7168, "heads": 128, "kv_heads": 128, "vocab": 129280,
    "ffn_hidden": 18432, "experts": 256,
    "top_k": 8, "expert_ffn_hidden": 2048, "shared_experts": "1 x 2048", "dense_layers": 3,
    "attention": "MLA",
}  # fmt: skip


def held_by_rank(work: Workload) -> float:
    """Return the parameters of a layer's matrices on a rank."""
    (weights,) = weights_of_kinds(work)
    return float(weights.on_rank(work)[0])


def models_of(table: Path) -> list[Model]:
    """Return the models of a table's rows as the formulas take them, one for each row."""
    parts = tables.read(table).parts
    by_row = {place: sample.work.model for places, sample in parts for place in places}
    return [by_row[place] for place in sorted(by_row)]


def assert_same_workload(one: Workload, other: Workload) -> None:
    """Check that every column is the same, and that the formulas say the same of both models."""
    for group in ("degrees", "sharding", "schedule", "choices", "recompute", "states", "layers"):
        columns, others = vars(getattr(one, group)), vars(getattr(other, group))
        for name in columns:
            assert np.array_equal(columns[name], others[name]), f"{group}.{name}"
    assert np.array_equal(step_time(machine(), one).total, step_time(machine(), other).total)
    assert np.array_equal(peak_memory(machine(), one).total, peak_memory(machine(), other).total)


def test_a_mixture_s_experts_are_columns(tmp_path: Path) -> None:
    (problem,) = read(tmp_path, row(**MIXTURE)).problems
    (one,) = problem.rows
    model = problem.problem.model
    assert (
        model.mixture.experts,
        model.mixture.experts_per_token,
        model.feed_forward.ffn_hidden,
        model.feed_forward.matrices,
    ) == (
        8,
        2,
        14336,
        3,
    )
    assert model.active_parameters == pytest.approx(12.9e9, rel=0.01)
    assert (one.recipe.expert_parallel, one.recipe.expert_tensor_parallel) == (4, 2)
    (sample,) = (part for _, part in tables.read(tmp_path / "rows.csv").parts)
    own = Workload.of([one.recipe], problem.problem)
    assert (
        held_by_rank(sample.work)
        == held_by_rank(own)
        == (0.125 * 8 * 3 * 14336 + 2 * 5120 + 8) * 4096
    )


def test_workload_of_rows_with_more_ranks_than_key_value_heads_is_that_of_their_recipes(
    tmp_path: Path,
) -> None:
    """Each rank has a whole head of keys and values."""
    (problem,) = read(tmp_path, row(tp=8, dp=1, gas=64, kv_heads=4, model="m")).problems
    ((_, sample),) = tables.read(tmp_path / "rows.csv").parts
    own = Workload.of([problem.rows[0].recipe], problem.problem)
    assert_same_workload(sample.work, own)
    model = own.model
    feed_forward = model.feed_forward.matrices * model.feed_forward.ffn_hidden
    matrices = feed_forward + 2 * model.hidden + 2 * 8 * model.attention.head_dim
    assert held_by_rank(own) == model.hidden * matrices / 8


def test_a_row_of_deepseek_is_of_its_preset(tmp_path: Path) -> None:
    """Widths of latent attention that no row states; shared experts, leading layers and theirs are
    columns.
    """
    (problem,) = read(tmp_path, row(**MIXTURE | DEEPSEEK | {"model": "v3"})).problems
    preset = read_plain(Model, model_preset("deepseek-v3") | {"kv_heads": 128}, "model")
    assert replace(problem.problem.model, name="deepseek-v3") == preset
    (sample,) = (part for _, part in tables.read(tmp_path / "rows.csv").parts)
    own = Workload.of([problem.rows[0].recipe], problem.problem)
    assert_same_workload(sample.work, own)


@pytest.mark.parametrize(
    ("stages", "held", "of_ranks"),
    [
        ({"pp": 16, "dp": 16}, [4] * 15 + [1], [4, 4, 2]),
        ({"pp": 8, "vpp": 2, "dp": 32}, [4] * 15 + [1], [8, 8, 6]),
        ({"dp": 256}, [], [62, 0, 62]),
    ],
)
def test_a_layer_that_predicts_a_further_token_is_laid_out_as_nvidia_does(
    tmp_path: Path, stages: dict[str, int], held: list[int], of_ranks: list[float]
) -> None:
    """As Megatron-Bridge's recipe of DeepSeek-V3: fewer layers on the last stage, whose head counts
    as two.
    """
    changes = {
        "gpus": 256,
        "etp": 1,
        "gbs": 2048,
        "gas": 2048 // stages["dp"],
        "mtp_layers": 1,
        "model": "v3",
    }
    ((only,),) = (
        (problem,)
        for problem in read(tmp_path, row(**MIXTURE | DEEPSEEK | changes | stages)).problems
    )
    (one,) = only.rows
    assert only.problem.model.prediction.layers == 1
    assert list(one.recipe.layers_per_stage) == held
    (sample,) = (part for _, part in tables.read(tmp_path / "rows.csv").parts)
    own = Workload.of([one.recipe], only.problem)
    ranks = (own.layers.first, own.layers.middle, own.layers.last)
    assert [float(sum(layers)[0]) for layers in ranks] == of_ranks
    assert_same_workload(sample.work, own)


@pytest.mark.parametrize(
    ("attention", "every"), [("alternate layers sliding window 128", 2), ("sliding window 128", 0)]
)
def test_a_window_that_a_row_states_is_the_model_s(
    tmp_path: Path, attention: str, every: int
) -> None:
    (problem,) = read(tmp_path, row(attention=attention)).problems
    model = problem.problem.model
    assert (model.attention.window, model.keys()["full_attention_every"]) == (128, every)
    (sample,) = (part for _, part in tables.read(tmp_path / "rows.csv").parts)
    own = Workload.of([one.recipe for one in problem.rows], problem.problem)
    assert sample.work.sequence_length == own.sequence_length
    of_row, of_recipe = (work.model.attended(work.sequence_length) for work in (sample.work, own))
    assert of_row == of_recipe < own.sequence_length


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"top_k": ""}, "no number of experts that a token goes through"),
        (
            {"shared_experts": "a gated one"},
            "shared experts a gated one are neither a number nor `1 x width`",
        ),
        ({"dense_layers": 24}, "layers without experts are not the first ones"),
        ({"dense_layers": 1, "ffn_hidden": ""}, "no width of layers without experts"),
        ({"attention": "MLA + sparse"}, "attention MLA + sparse is not modeled"),
        ({"attention": "MLA"}, "no preset with latent attention has hidden 4096"),
        ({"attention": "sliding window"}, "attention sliding window is not modeled"),
        ({"activation": "silu"}, f"activation silu is none of {', '.join(ACTIVATIONS)}"),
        ({"ep": 3}, "ep does not divide the experts, or ep x etp the ranks of a stage"),
        ({"etp": 4}, "ep does not divide the experts, or ep x etp the ranks of a stage"),
    ],
)
def test_a_mixture_of_which_no_model_here_is_made_is_left_out(
    tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    found = read(tmp_path, row(**MIXTURE | changes))
    assert list(found.left_out) == [reason]
    assert list(tables.read(tmp_path / "rows.csv").refused) == [reason]


@pytest.mark.parametrize("name", ["nemotron4_340b", "Nemotron-4 340B"])
def test_row_of_nemotron_has_two_matrices_and_no_gate(tmp_path: Path, name: str) -> None:
    found = read(tmp_path, row(model=name)).problems[0].problem.model
    assert (found.feed_forward.activation, found.feed_forward.matrices) == ("relu2", 2)
    assert found.embedding.positions == "rotary"
    assert (found.norm.kind, found.head.tied) == ("layernorm", False)
    reason = "model nemotron_h_8b has layers without attention, which are not modeled"
    assert list(read(tmp_path, row(model="nemotron_h_8b")).left_out) == [reason]


@pytest.mark.parametrize(
    ("changes", "activation", "matrices", "positions"),
    [
        ({"activation": "swiglu"}, "swiglu", 3, "rotary"),
        ({"activation": "GEGLU"}, "geglu", 3, "rotary"),
        (LLAMA_3_8B | {"activation": "geglu"}, "geglu", 3, "rotary"),
        ({"activation": "gelu_new"}, "gelu_tanh", 2, "learned"),
        ({"activation": "relu"}, "relu", 2, "learned"),
        ({"activation": "squared_relu", "model": "our 1.3B"}, "relu2", 2, "rotary"),
        ({"activation": "relu2", "model": "llama-2B", "ffn_hidden": ""}, "relu2", 2, "rotary"),
        ({"activation": "gelu", "model": "llama-2B"}, "gelu", 2, "learned"),
        ({"activation": "swiglu", "model": "nemotron4_340b"}, "swiglu", 3, "rotary"),
        ({"activation": "", "model": "nemotron4_340b"}, "relu2", 2, "rotary"),
        ({"activation": ""}, "gelu", 2, "learned"),
        (MIXTURE | {"activation": "relu2"}, "relu2", 2, "rotary"),
        (MIXTURE | {"activation": "NaN"}, "swiglu", 3, "rotary"),
    ],
)
def test_the_activation_that_a_row_states_is_the_model_s_whatever_its_name(
    tmp_path: Path,
    changes: dict[str, Any],
    activation: str,
    matrices: int,
    positions: str,
) -> None:
    (problem,) = read(tmp_path, row(**changes)).problems
    model = problem.problem.model
    assert (
        model.feed_forward.activation,
        model.feed_forward.matrices,
        model.embedding.positions,
    ) == (
        activation,
        matrices,
        positions,
    )
    ((_, sample),) = tables.read(tmp_path / "rows.csv").parts
    own = Workload.of([one.recipe for one in problem.rows], problem.problem)
    of_row = sample.work.model
    assert of_row.feed_forward.matrices == own.model.feed_forward.matrices == matrices
    assert of_row.embedding.positions == own.model.embedding.positions


def test_a_stated_activation_is_stronger_than_a_preset_s(tmp_path: Path) -> None:
    """A table of gpt-oss-20b, whose preset clamps its gate, and the same shape with another one."""
    preset = read_plain(Model, model_preset("gpt-oss-20b"), "model")
    keys = preset.keys()
    shape = {name: keys[name] for name in ("layers", "hidden", "heads", "kv_heads", "experts")}
    shape |= {
        "model": "o", "vocab": keys["vocabulary"], "ffn_hidden": keys["ffn_hidden"], "seq": 4096,
        "top_k": keys["experts_per_token"], "expert_ffn_hidden": keys["ffn_hidden"], "ep": 1,
        "precision": "bf16",
    }  # fmt: skip
    for stated, expected in (("", True), ("swiglu_clamped", True), ("swiglu", False)):
        path = write_table(tmp_path / "rows.csv", row(**shape | {"activation": stated}))
        ((_, sample),) = tables.read(path).parts
        assert (sample.work.model.feed_forward.activation == "swiglu_clamped") == expected


def test_rows_of_another_activation_are_another_problem(tmp_path: Path) -> None:
    rows = (row(activation=one, model="our 1.3B") for one in ("relu2", "swiglu", "geglu"))
    found = read(tmp_path, *rows).problems
    assert [one.problem.model.feed_forward.activation for one in found] == [
        "relu2",
        "swiglu",
        "geglu",
    ]
    assert [one.name.rpartition(" ")[2] for one in found] == ["relu2", "swiglu", "geglu"]


@pytest.mark.parametrize(
    ("model", "activation", "parameters", "matrices", "tied"),
    [
        ("llama-1B", "relu2", 1.3135, 2, True),
        ("llama-1B", "relu2", 1.418, 2, False),
        ("llama-1B", "relu2", "", 2, False),
        ("llama-1B", "relu2", 1.82, 2, False),
        ("our 1.8B", "gelu", 1.82, 2, True),
        ("our 1.3B", "swiglu", "", 3, False),
        ("gpt-1.3B", "swiglu", 1.715, 3, True),
    ],
)
def test_stated_parameters_decide_only_the_head_where_the_activation_is_stated(
    tmp_path: Path,
    model: str,
    activation: str,
    parameters: float | str,
    matrices: int,
    tied: bool,
) -> None:
    """By hand: layers of 1.208e9 with two matrices, 1.611e9 with three, and 0.105e9 a table."""
    stated = {"model": model, "activation": activation, "n_params_b": parameters}
    (problem,) = read(tmp_path, row(**stated)).problems
    found = problem.problem.model
    assert (found.feed_forward.matrices, found.head.tied) == (matrices, tied)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"status": "unmeasured", "step_time_s": ""}, "status unmeasured"),
        ({"status": "", "step_time_s": ""}, "status unknown"),
        ({"status": "perhaps"}, "status perhaps"),
        ({"step_time_s": -1.5}, "step time -1.5 s"),
        ({"step_time_s": "inf"}, "step time inf s"),
        ({"zero": 4}, "ZeRO stage 4 does not exist"),
        ({"recompute": "some"}, "recompute some is unknown"),
        ({"gas": 3}, "micro-batch x accumulation x dp is not the global batch"),
        ({"tp": 3}, "tp x pp x cp x dp is not the number of devices"),
        ({"pp": 32, "gpus": 256}, "more pipeline stages than layers"),
        ({"seq": ""}, "no seq"),
        ({"model": "b", "layers": "many", "n_params_b": ""}, "no layers and no n_params_b"),
        (
            {"recompute": "selective", "recompute_modules": "moe_act core_attn"},
            "recompute of moe_act alone is no choice of recipes",
        ),
    ],
)
def test_a_row_that_cannot_be_used_is_counted(
    tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    found = read(tmp_path, row(), row(**changes), row(**changes))
    assert found.left_out == {reason: 2}
    assert sum(len(problem.rows) for problem in found.problems) == 1


@pytest.mark.parametrize(
    ("modules", "parts"),
    [
        ("core_attn", {"attention"}),
        ("mla_up_proj", {"latents"}),
        ("layernorm", {"norms"}),
        ("moe_act", {"activation"}),
        ("mlp", {"dense"}),
        ("moe", {"experts"}),
        ("moe_act layernorm", {"activation", "norms"}),
        ("", {"selective"}),
    ],
)
def test_modules_that_a_row_recomputes_are_named_parts(
    tmp_path: Path, modules: str, parts: set[str]
) -> None:
    path = write_table(tmp_path / "rows.csv", row(recompute="selective", recompute_modules=modules))
    ((_, sample),) = tables.read(path).parts
    recomputed = {name for name, flags in vars(sample.work.recompute).items() if flags.all()}
    assert recomputed == parts


def test_row_that_recomputes_unknown_modules_is_refused(tmp_path: Path) -> None:
    modules = "shared_experts core_attn router"
    path = write_table(tmp_path / "rows.csv", row(recompute="selective", recompute_modules=modules))
    assert tables.read(path).refused == {"recompute of router, shared_experts is not modeled": 1}


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        ("oom", FailureKind.OUT_OF_MEMORY),
        ("OOM", FailureKind.OUT_OF_MEMORY),
        ("fail", FailureKind.CRASHED),
        ("timeout", FailureKind.TOO_SLOW),
        ("hang", FailureKind.HUNG),
    ],
)
def test_a_failure_keeps_its_kind(tmp_path: Path, status: str, kind: FailureKind) -> None:
    (problem,) = read(tmp_path, row(status=status, step_time_s="")).problems
    (one,) = problem.rows
    assert isinstance(one.outcome, Failure)
    assert one.outcome.kind is kind


def test_where_rows_repeat_the_fastest_counts_and_a_failure_only_alone(tmp_path: Path) -> None:
    rows = (
        row(status="oom", step_time_s=""),
        row(step_time_s=1.6),
        row(step_time_s=1.4),
        row(step_time_s=1.5),
    )
    (problem,) = read(tmp_path, *rows).problems
    (outcome,) = problem.outcomes().values()
    assert len(problem.rows) == 4
    assert isinstance(outcome, Measurement)
    assert outcome.step_times_s == (1.4,)


def test_a_row_without_a_shape_takes_its_problem_s(tmp_path: Path) -> None:
    (problem,) = read(tmp_path, row(layers="", hidden="", tp=4, dp=2, gas=32), row()).problems
    assert (len(problem.rows), len(problem.problem.model.layers)) == (2, 24)


@pytest.mark.parametrize(
    ("changes", "matrices", "tied"),
    [
        ({}, 2, True),
        ({"n_params_b": 1.3}, 2, True),
        ({"model": "OPT-1.3B", "n_params_b": 1.42}, 2, False),
        ({"model": "our 1.7B", "n_params_b": 1.715}, 3, True),
        ({"model": "our 1.8B", "n_params_b": 1.82}, 3, False),
        ({"model": "our 1.3B", "n_params_b": 1.32}, 2, True),
        ({"model": "llama-2B", "n_params_b": ""}, 3, False),
        ({"model": "llama-2B", "n_params_b": 9}, 3, False),
    ],
)
def test_stated_parameters_say_what_a_width_of_four_hidden_sizes_is(
    tmp_path: Path, changes: dict[str, Any], matrices: int, tied: bool
) -> None:
    """By hand: 24 x 2048^2 x 12 = 1.208e9 with two matrices, x 16 = 1.611e9 with three, and 0.105e9
    a table.
    """
    (problem,) = read(tmp_path, row(**changes)).problems
    model = problem.problem.model
    assert (model.feed_forward.matrices, model.head.tied) == (matrices, tied)


def test_rows_of_another_kernel_are_another_problem(tmp_path: Path) -> None:
    found = read(
        tmp_path, row(attention_kernel="flash"), row(attention_kernel="torch"), row(seq=2048)
    )
    assert len({problem.name for problem in found.problems}) == 3


@pytest.mark.parametrize(
    "other", [{"layers": 48}, {"ffn_hidden": 4096}, {"memory_gib_per_device": 40}]
)
def test_rows_of_another_shape_or_machine_are_another_problem_whatever_their_names(
    tmp_path: Path, other: dict[str, float]
) -> None:
    first, second = read(tmp_path, row(model=""), row(model="", **other)).problems
    assert first.problem != second.problem
    assert first.name != second.name


@pytest.mark.parametrize(
    ("kernel", "attention", "traits"),
    [
        ("torch", "math", ("eager", 1, "eager")),
        ("megatron fused softmax", "math", ("fused", 1, "eager")),
        ("flash_attention", "flash", ("eager", 1, "eager")),
        ("flash_attention2", "flash", ("eager", 2, "eager")),
        ("flash_attn v2", "flash", ("eager", 2, "eager")),
        ("flash_attention2 + RMS kernel", "flash", ("eager", 2, "fused")),
        ("", "flash", ("eager", 1, "eager")),
    ],
)
def test_the_kernel_that_a_row_names_is_a_trait_of_its_code(
    tmp_path: Path, kernel: str, attention: str, traits: tuple[str, int, str]
) -> None:
    named = {
        "source": "Aleph-Alpha/efficient-parallelization-layouts",
        "model": "llama-1B",
        "ffn_hidden": 5504,
    }
    (problem,) = read(tmp_path, row(attention_kernel=kernel, **named)).problems
    code = coded(problem.problem.software)
    assert problem.problem.model.attention.kernel == attention
    assert (code.kernels.softmax, code.kernels.flash, code.kernels.norm) == traits


def test_torchtitan_keeps_parameters_whole_in_pipelines(tmp_path: Path) -> None:
    rows = (
        row(source="pytorch/torchtitan", zero=3, tp=1, pp=ranks, dp=8 // ranks, gas=8 * ranks)
        for ranks in (1, 2)
    )
    (problem,) = read(tmp_path, *rows).problems
    assert [one.recipe.sharding_name for one in problem.rows] == ["zero-3", "zero-1"]


@pytest.mark.parametrize(
    ("named", "in_turn"),
    [
        ({"source": "someone/Megatron-DeepSpeed"}, True),
        ({"note": "framework=Megatron+DS3D"}, True),
        ({"note": "framework=ds-zero1"}, True),
        ({"note": "framework=Megatron-LM; the readings differ"}, False),
        ({}, False),
    ],
)
def test_a_row_that_names_deepspeed_is_of_its_pipeline(
    tmp_path: Path, named: dict[str, str], in_turn: bool
) -> None:
    """Its kernels are those of Megatron's code, in fp16 for a GPT."""
    (problem,) = read(tmp_path, row(**named)).problems
    code = coded(problem.problem.software)
    assert code.pipeline.sends_in_turn == in_turn
    assert (code.kernels.gate, code.kernels.rotary) == ("fused", "fused")
    assert (code.gradients.wide, code.kernels.dropout) == (False, True)


@pytest.mark.parametrize(
    ("named", "code"),
    [
        ({}, "megatron-lm-fp16"),
        ({"precision": "bf16"}, "megatron-lm"),
        ({"source": "mosaicml/llm-foundry"}, "llm-foundry"),
        ({"source": "mosaicml/llm-foundry", "training_code": "TorchTitan"}, "torchtitan"),
        (
            {"source": "pytorch/torchtitan benchmarks/llama3_h100_202412_torchtitan.md"},
            "torchtitan-2024",
        ),
        ({"training_code": "megatron-lm", "note": "framework=ds-zero1"}, "megatron-lm"),
        ({"training_code": "our own"}, "unknown"),
        ({"framework": "Megatron-Bridge (main)"}, "nemo"),
        (
            {"framework": "Megatron-Bridge (main)", "note": "card item pretrain_performance"},
            "nemo-benchmark",
        ),
        (
            {"framework": "NeMo AutoModel (PyTorch FSDP2)", "source": "mosaicml/llm-foundry"},
            "nemo-automodel",
        ),
        ({"framework": "Megatron-LM", "training_code": "torchtitan"}, "torchtitan"),
        ({"note": "4 nodes; framework=OneFlow; recompute inferred"}, "unknown"),
        ({"note": "framework=Megatron-LM; 4 nodes"}, "megatron-lm-fp16"),
    ],
)
def test_a_row_s_own_code_comes_before_what_its_source_and_model_suggest(
    tmp_path: Path, named: dict[str, str], code: str
) -> None:
    found = read(tmp_path, row(**named), row(**named | {"training_code": "nanotron"})).problems
    assert [problem.problem.software.code for problem in found] == [code, "nanotron"]
    assert len({problem.name for problem in found}) == 2


def test_how_a_row_s_tokens_reach_their_experts_is_read_and_makes_problems_of_their_own(
    tmp_path: Path,
) -> None:
    shape = {
        "experts": 8,
        "top_k": 2,
        "ffn_hidden": 4096,
        "vocab": 32000,
        "model": "m",
        "framework": "Megatron-LM",
    }
    stated = {
        "dispatcher": "hybridep",
        "ep_overlap": 1,
        "cuda_graph": "transformer_engine: attn moe_router",
    }
    whole = stated | {"cuda_graph": "full_iteration"}
    problems = read(tmp_path, row(**shape), row(**shape, **stated), row(**shape, **whole)).problems
    codes = [coded(one.problem.software) for one in problems]
    assert [
        (code.experts.dispatches_once, code.experts.overlaps_dispatch, code.cuda_graphs)
        for code in codes
    ] == [
        (False, False, "none"),
        (True, True, "layers"),
        (True, True, "step"),
    ]
    assert len({problem.name for problem in problems}) == 3


def test_bridge_s_recipes_split_sequences_wherever_they_split_tensors(tmp_path: Path) -> None:
    bridge = {"source": "NVIDIA-NeMo/Megatron-Bridge docs", "seq_parallel": ""}
    rows = (
        row(**bridge),
        row(**bridge | {"seq_parallel": 0}),
        row(seq_parallel=""),
        row(**bridge, tp=1, dp=8, gas=8),
    )
    found = [one.recipe for problem in read(tmp_path, *rows).problems for one in problem.rows]
    assert sorted((r.tensor_parallel, r.sequence_parallel) for r in found) == [
        (1, False), (2, False), (2, False), (2, True),
    ]  # fmt: skip


def test_a_peak_may_stand_in_either_column(tmp_path: Path) -> None:
    (problem,) = read(
        tmp_path, row(peak_mem_gb="", memory_gib=20), row(mbs=2, gas=8, memory_gib=30)
    ).problems
    peaks = [
        one.outcome.peak_memory_bytes_max_rank
        for one in problem.rows
        if isinstance(one.outcome, Measurement)
    ]
    assert peaks == [20 * 2**30, 20 * 2**30]


def test_a_peak_of_a_pipeline_s_logging_rank_is_not_the_fullest_s(tmp_path: Path) -> None:
    note = {"note": "largest max-allocated of the logging rank over the run", "peak_mem_gb": 20}
    rows = (row(**note, pp=2, tp=1, vpp=1), row(**note))
    outcomes = [one.outcome for problem in read(tmp_path, *rows).problems for one in problem.rows]
    peaks = [
        outcome.peak_memory_bytes_max_rank
        for outcome in outcomes
        if isinstance(outcome, Measurement)
    ]
    assert set(peaks) == {None, 20 * 2**30}


def test_heads_are_as_wide_as_those_of_a_preset_of_the_same_shape(tmp_path: Path) -> None:
    of_preset = {
        "hidden": 2048,
        "heads": 32,
        "kv_heads": 4,
        "expert_ffn_hidden": 768,
        "experts": 128,
        "top_k": 8,
    }
    of_preset |= {"vocab": 151936, "ffn_hidden": 6144, "model": "m"}
    rows = (row(**of_preset), row(**of_preset | {"expert_ffn_hidden": 512}))
    models = models_of(write_table(tmp_path / "rows.csv", *rows))
    assert [model.attention.q_hidden for model in models] == [32 * 128, 2048]
    assert [model.attention.kv_hidden for model in models] == [4 * 128, 4 * 64]


def test_a_row_has_the_kernels_of_a_preset_of_the_same_shape(tmp_path: Path) -> None:
    gpt_oss = {
        "hidden": 2880,
        "heads": 64,
        "kv_heads": 8,
        "expert_ffn_hidden": 2880,
        "experts": 32,
        "top_k": 4,
    }
    gpt_oss |= {"vocab": 201088, "ffn_hidden": 2880, "model": "gpt-oss-20b"}
    rows = (row(**gpt_oss), row(**gpt_oss | {"heads": 60, "kv_heads": 4}))
    models = models_of(write_table(tmp_path / "rows.csv", *rows))
    assert [model.feed_forward.activation for model in models] == ["swiglu_clamped", "swiglu"]
    assert [model.attention.biases for model in models] == ["all", "none"]


@pytest.mark.parametrize(
    ("routing", "framework", "deals"),
    [
        ("forced balance", "", "uniform"),
        ("token drop", "", "uniform"),
        ("natural", "Megatron-Bridge", "learned"),
        ("", "Megatron-Bridge", "uniform"),
        ("", "Megatron-LM", "learned"),
    ],
)
def test_how_a_row_s_tokens_are_routed(
    tmp_path: Path, routing: str, framework: str, deals: str
) -> None:
    (problem,) = read(tmp_path, row(**MIXTURE, routing=routing, framework=framework)).problems
    assert problem.problem.model.mixture.routing == deals
    ((_, sample),) = tables.read(tmp_path / "rows.csv").parts
    assert (mixture.deviation(sample.work.model.mixture) > 0) == (deals == "learned")


def times(label: int, **by_size: float) -> list[dict[str, Any]]:
    sizes = ((int(name[1:]), seconds) for name, seconds in by_size.items())
    return [
        row(seq_parallel=label, mbs=b, gas=16 // b, step_time_s=seconds) for b, seconds in sizes
    ]


@pytest.mark.parametrize(
    ("own", "others", "left_out"),
    [
        ({"b1": 2.20, "b2": 2.02, "b4": 1.66}, {"b1": 1.98, "b2": 1.80}, 1),
        ({"b1": 2.20, "b2": 2.02, "b4": 1.93}, {"b1": 1.98, "b2": 1.80}, 0),
        (
            {"b1": 2.20, "b2": 2.02, "b4": 1.66},
            {"b1": 1.98, "b2": 1.80, "b4": 1.65},
            0,
        ),  # it has a twin
        (
            {"b1": 2.20, "b2": 2.02, "b4": 1.66},
            {"b1": 1.40, "b2": 1.20},
            0,
        ),  # it is no nearer to the others
    ],
)
def test_a_row_that_gains_more_than_a_larger_micro_batch_can_is_mislabeled(
    tmp_path: Path, own: dict[str, float], others: dict[str, float], left_out: int
) -> None:
    found = read(tmp_path, *times(0, **own), *times(1, **others))
    reason = "its time is that of the opposite seq_parallel"
    assert found.left_out == ({reason: left_out} if left_out else {})


def test_a_table_without_shapes_degrees_or_known_hardware_is_a_problem_all_the_same(
    tmp_path: Path,
) -> None:
    few = {
        "model": "mystery",
        "n_params_b": 7,
        "seq": 2048,
        "hardware": "Z9",
        "gpus": 16,
        "mbs": 1,
        "gbs": 64,
    }
    found = read(tmp_path, *(few | {"dp": 16, "step_time_s": 3, "zero": zero} for zero in (1, 3)))
    (problem,) = found.problems
    model = problem.problem.model
    assert 0.8 < model.parameters / 7e9 < 1.3
    assert problem.problem.cluster.devices == 16
    assert [one.recipe.sharding_name for one in problem.rows] == ["zero-1", "zero-3"]


def test_the_survey_of_a_table_holds_its_recipes_alone(tmp_path: Path) -> None:
    rows = (row(), row(zero=0), row(tp=1, pp=2, mbs=2, gas=8), row(tp=8, dp=1, gas=64))
    (problem,) = read(tmp_path, *rows).problems
    survey = survey_of(problem.outcomes(), problem.problem)
    assert set(survey.recipes) == set(problem.outcomes())
    assert len(survey.recipes) == 4 < math.prod(map(len, survey.dimensions.values()))
