"""The trainer's pure parts: stages, data, text, first weights, learning rates, metrics."""

import gc
import math
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention import flex_attention as flex

from frontrunner.evaluators.trainer import run, training_run
from frontrunner.evaluators.trainer.data import (
    BYTE_VOCABULARY,
    END_OF_DOCUMENT,
    TokenFile,
    Tokens,
    builtin_text,
    tokens_of,
    write_token_file,
)
from frontrunner.evaluators.trainer.job import Data, Train
from frontrunner.evaluators.trainer.layout import stage_layers, stages_of_rank
from frontrunner.evaluators.trainer.model import Gpt, initialize
from frontrunner.evaluators.trainer.optimizer import FIRST_FACTOR, STEPS_BEFORE_GROWTH, LossScale
from frontrunner.evaluators.trainer.parts import attention_kernels
from frontrunner.evaluators.trainer.parts import experts as expert_module
from frontrunner.evaluators.trainer.parts.attention_kernels import DotProductAttention
from frontrunner.evaluators.trainer.parts.experts import Experts
from frontrunner.evaluators.trainer.parts.feed_forward import activated
from frontrunner.evaluators.trainer.parts.mixture import Balance, MixtureModule
from frontrunner.evaluators.trainer.parts.rotary import RotaryTable
from frontrunner.evaluators.trainer.run import ProgressLog, RunContext, StepOutcome, limit_memory
from frontrunner.evaluators.trainer.torch_engine import TorchStepper, multiply_in_8_bits
from frontrunner.evaluators.trainer.training_run import (
    COLUMNS,
    CsvMetrics,
    WandbMetrics,
    learning_rate_at,
    steps_run,
)
from frontrunner.spaces.model.positions import RotaryPositions
from frontrunner.spaces.stages import rank_of_stage
from support.campaigns import wait_for
from support.trainer_runs import (
    DEEPSEEK,
    EXPERTS,
    look,
    run_job,
    small_job,
    small_model,
    small_recipe,
)

SEQUENCE_LENGTH = 16


@given(stages=st.integers(1, 64), extra=st.integers(0, 200))
def test_stages_hold_every_layer_once_and_evenly(stages: int, extra: int) -> None:
    layers = stages + extra

    ranges = stage_layers(layers, small_recipe(pipeline_parallel=stages, schedule="1f1b"))

    assert [layer for part in ranges for layer in part] == list(range(layers))
    sizes = [len(part) for part in ranges]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] - sizes[-1] <= 1


def test_stages_hold_the_layers_that_the_recipe_counts() -> None:
    recipe = small_recipe(pipeline_parallel=3, schedule="1f1b", layers_per_stage=(2, 3, 1))

    assert stage_layers(6, recipe) == [range(2), range(2, 5), range(5, 6)]


@pytest.mark.parametrize(
    ("schedule", "virtual", "expected"),
    [
        ("1f1b", 1, [[0], [1], [2]]),
        ("interleaved-1f1b", 2, [[0, 3], [1, 4], [2, 5]]),
        ("zbv", 2, [[0, 5], [1, 4], [2, 3]]),
    ],
)
def test_ranks_hold_stages_in_loops_or_in_a_v(
    schedule: str, virtual: int, expected: list[list[int]]
) -> None:
    recipe = small_recipe(pipeline_parallel=3, schedule=schedule, virtual_stages=virtual)

    assert [stages_of_rank(recipe, rank) for rank in range(3)] == expected
    for rank, stages in enumerate(expected):
        assert {rank_of_stage(recipe, stage) for stage in stages} == {rank}


@pytest.fixture
def tokens(tmp_path: Path) -> TokenFile:
    """A file whose tokens count up, so that a token tells where it stood."""
    path = tmp_path / "tokens.bin"
    np.arange(2000, dtype="<u2").tofile(path)
    return TokenFile(path, dtype="uint16", sequence_length=SEQUENCE_LENGTH, seed=3)


def test_targets_are_the_next_tokens(tokens: TokenFile) -> None:
    batch = tokens.training_batch(1, sequences=slice(0, 4), global_batch_seqs=4)

    assert batch.inputs.shape == (4, SEQUENCE_LENGTH)
    assert torch.equal(batch.targets, batch.inputs + 1)


def test_replicas_share_out_the_global_batch(tokens: TokenFile) -> None:
    whole = tokens.training_batch(5, sequences=slice(0, 8), global_batch_seqs=8)
    parts = [
        tokens.training_batch(5, sequences=slice(i, i + 2), global_batch_seqs=8)
        for i in range(0, 8, 2)
    ]

    assert torch.equal(torch.cat([part.inputs for part in parts]), whole.inputs)


def test_steps_differ_and_repeat(tokens: TokenFile) -> None:
    first, again, second = (
        tokens.training_batch(step, sequences=slice(0, 8), global_batch_seqs=8).inputs
        for step in (1, 1, 2)
    )

    assert torch.equal(first, again)
    assert not torch.equal(first, second)


def test_evaluation_never_sees_training_tokens(tokens: TokenFile) -> None:
    many = slice(0, 2000)
    trained = tokens.training_batch(1, sequences=many, global_batch_seqs=2000)
    held_out = tokens.evaluation_batch(1, sequences=many, global_batch_seqs=2000)

    assert int(trained.targets.max()) < 1900 <= int(held_out.inputs.min())
    assert int(held_out.targets.max()) <= 1999


def test_a_stated_held_out_part_is_where_training_ends_and_evaluation_begins(
    tmp_path: Path,
) -> None:
    np.arange(1000, dtype="<u2").tofile(tmp_path / "tokens")
    tokens = TokenFile(
        tmp_path / "tokens", dtype="uint16", sequence_length=8, seed=1, held_out_tokens=400
    )
    every = np.arange(20_000)
    trained, held_out = (tokens.rows(1, every, 20_000, trains=trains) for trains in (True, False))
    assert (trained.min(), trained.max()) == (0, 599)
    assert (held_out.min(), held_out.max()) == (600, 999)


def test_the_batches_of_one_file_are_those_of_earlier_versions(tokens: TokenFile) -> None:
    digest = sha256()
    for number in (1, 7):
        for draw in (tokens.training_batch, tokens.evaluation_batch):
            digest.update(
                draw(number, sequences=slice(2, 6), global_batch_seqs=8).inputs.numpy().tobytes()
            )

    assert digest.hexdigest()[:16] == "efbf9fb571eca6a9"


@pytest.fixture
def mixture(tmp_path: Path) -> Tokens:
    """Three files with weights 5, 3 and 2, whose tokens are from 0, 3000 and 6000 on."""
    named = []
    for place, weight in enumerate((5.0, 3.0, 2.0)):
        path = tmp_path / f"{place}.bin"
        np.arange(3000 * place, 3000 * place + 2000, dtype="<u2").tofile(path)
        named.append(Data(path=str(path), dtype="uint16", weight=weight))
    job = small_job(tmp_path, sequence_length=SEQUENCE_LENGTH)
    return tokens_of(replace(job, data=named[0], more_data=tuple(named[1:])))


@pytest.mark.parametrize("size", [1, 8, 10, 64])
def test_files_share_any_run_of_steps_by_their_weights(mixture: Tokens, size: int) -> None:
    for draw, most in ((mixture.training_batch, 1900), (mixture.evaluation_batch, 2000)):
        steps = range(3, 3 + 1000 // size)
        found = torch.cat(
            [
                draw(step, sequences=slice(0, size), global_batch_seqs=size).inputs[:, 0]
                for step in steps
            ]
        )
        counts = torch.bincount(found // 3000, minlength=3)
        for count, share in zip(counts.tolist(), (0.5, 0.3, 0.2), strict=True):
            assert count == pytest.approx(
                share * len(found), abs=5
            )  # at random, 16 apart in a third of all draws
        assert int((found % 3000).max()) < most


def test_replicas_share_out_a_mixture_s_global_batch(mixture: Tokens) -> None:
    whole = mixture.training_batch(5, sequences=slice(0, 8), global_batch_seqs=8)
    for ranks in (2, 4, 8):
        slices = [slice(i, i + 8 // ranks) for i in range(0, 8, 8 // ranks)]
        parts = [mixture.training_batch(5, sequences=part, global_batch_seqs=8) for part in slices]
        assert torch.equal(torch.cat([part.inputs for part in parts]), whole.inputs)
    assert torch.equal(whole.targets, whole.inputs + 1)


def test_a_short_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tokens.bin"
    np.arange(100, dtype="<u2").tofile(path)

    with pytest.raises(ValueError, match="has 100 tokens, of which 5 are held out"):
        TokenFile(path, dtype="uint16", sequence_length=SEQUENCE_LENGTH, seed=3)


def test_text_becomes_its_bytes_and_document_ends(tmp_path: Path) -> None:
    path = tmp_path / "tokens.bin"

    count = write_token_file("aé\0b", path)

    written = np.fromfile(path, dtype="<u2").tolist()
    assert written == [97, 0xC3, 0xA9, END_OF_DOCUMENT, 98, END_OF_DOCUMENT]
    assert count == len(written)
    assert max(written) < BYTE_VOCABULARY
    assert list(tmp_path.iterdir()) == [path]


def test_no_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no text"):
        write_token_file(b"", tmp_path / "tokens.bin")


def test_the_built_in_text_is_long_and_repeatable() -> None:
    text = builtin_text()

    assert len(text) > 300_000
    assert builtin_text() == text


def test_a_stage_starts_with_the_whole_models_weights() -> None:
    shape = small_model(layers=4)
    whole = Gpt(shape, sequence_length=SEQUENCE_LENGTH, layers=range(4))
    stage = Gpt(shape, sequence_length=SEQUENCE_LENGTH, layers=range(2, 4))
    for model in (whole, stage):
        initialize(model.named_parameters(), seed=1, layers=4)

    expected = dict(whole.named_parameters())
    assert {name for name, _ in stage.named_parameters()} < set(expected)
    for name, parameter in stage.named_parameters():
        assert torch.equal(parameter, expected[name])


@pytest.mark.parametrize(
    "recipe",
    [
        pytest.param({"data_parallel": 6, "sharding": (6, 6, 6)}, id="zero-3-uneven"),
        pytest.param(
            {"data_parallel": 3, "sharding": (3, 3, 3), "tensor_parallel": 2}, id="tp-zero-3-uneven"
        ),
        pytest.param({"data_parallel": 6, "sharding": (3, 3, 3)}, id="hybrid"),
        pytest.param(
            {"data_parallel": 4, "sharding": (1, 2, 4), "tensor_parallel": 2}, id="tp-levels"
        ),
    ],
)
def test_a_rank_draws_its_part_of_the_first_weights(recipe: dict[str, Any], tmp_path: Path) -> None:
    parts = small_recipe(micro_batch_seqs=1, accumulation=1, **recipe)

    found = look(small_job(tmp_path, model=small_model(kv_heads=1), recipe=parts), "first-weights")

    assert [differing for differing, _ in found] == [[]] * parts.devices
    assert (
        max(share for _, share in found) < 0.7
    )  # the matrices that tensor parallelism cuts by columns are drawn whole


def test_first_weights_follow_gpt2() -> None:
    model = Gpt(
        small_model(hidden=256, ffn_hidden=512), sequence_length=SEQUENCE_LENGTH, layers=range(4)
    )
    initialize(model.named_parameters(), seed=1, layers=8)

    weights = dict(model.named_parameters())
    assert weights["blocks.0.attention.query.weight"].std().item() == pytest.approx(0.02, rel=0.02)
    assert weights["blocks.0.feed_forward.down.weight"].std().item() == pytest.approx(
        0.02 / 4, rel=0.02
    )
    assert torch.equal(weights["norm.weight"], torch.ones(256))
    assert not torch.equal(
        weights["blocks.0.attention.query.weight"], weights["blocks.1.attention.query.weight"]
    )


def test_attention_scores_depend_on_distance_alone() -> None:
    """The defining property of rotary embedding: a rotated query and key know only how far apart
    they stand.
    """
    table = RotaryTable(RotaryPositions(), 8, sequence_length=SEQUENCE_LENGTH)
    query, key = torch.randn(2, 8, generator=torch.Generator().manual_seed(0))
    rotated_query = table.rotate(query.expand(1, 1, SEQUENCE_LENGTH, 8))[0, 0]
    rotated_key = table.rotate(key.expand(1, 1, SEQUENCE_LENGTH, 8))[0, 0]

    scores = rotated_query @ rotated_key.T

    for distance in range(SEQUENCE_LENGTH):
        diagonal = scores.diagonal(-distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(scores.diagonal(-1)[0], scores.diagonal(-2)[0])


@pytest.mark.parametrize(
    "form",
    [
        pytest.param({"attention_window": 7}, id="window"),
        pytest.param({"attention_sinks": True, "kv_heads": 2}, id="sinks"),
        pytest.param({"attention_softcap": 0.5, "query_scalar": 3.0}, id="capped"),
        pytest.param(
            {
                "attention_window": 7,
                "attention_sinks": True,
                "attention_softcap": 0.5,
                "kv_heads": 1,
            },
            id="all",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:.*flex_attention called without torch.compile")
def test_attention_in_blocks_is_that_of_all_scores(
    form: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `torch.compile` makes a kernel of, against products and masks: results and gradients."""
    monkeypatch.setattr(attention_kernels, "_compiled_flex_attention", lambda: flex.flex_attention)
    monkeypatch.setattr(
        flex, "_validate_device", lambda *_: None
    )  # torch differentiates it on CPUs, and refuses to
    shape, length = small_model(**form), 160  # more than one block
    attention = DotProductAttention(shape.attention)
    generator = torch.Generator().manual_seed(0)

    def drawn(*size: int) -> Tensor:
        return torch.randn(size, generator=generator, dtype=torch.float64, requires_grad=True)

    inputs = [
        drawn(2, count, length, shape.attention.head_dim)
        for count in (shape.attention.heads, shape.attention.kv_heads, shape.attention.kv_heads)
    ]
    inputs += [drawn(shape.attention.heads)] if shape.attention.sinks else []
    sinks = inputs[3] if shape.attention.sinks else None
    in_blocks = attention._flex_attend(*inputs[:3], sinks)
    plain = attention.attend(*inputs[:3], sinks)
    torch.testing.assert_close(in_blocks, plain)
    weights = torch.randn(plain.shape, generator=generator, dtype=torch.float64)
    gradients = (
        torch.autograd.grad((mixed * weights).sum(), inputs) for mixed in (in_blocks, plain)
    )
    for found, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(found, expected)


def test_a_window_ends_with_the_position_itself() -> None:
    model = Gpt(
        small_model(layers=1, attention_window=3), sequence_length=SEQUENCE_LENGTH, layers=range(1)
    )
    initialize(model.named_parameters(), seed=1, layers=1)
    tokens = torch.randint(0, 384, (1, SEQUENCE_LENGTH), generator=torch.Generator().manual_seed(0))
    changed = tokens.clone()
    changed[0, 10] += 1
    differs = (model(tokens) != model(changed)).any(dim=-1)[0]
    assert differs.nonzero().flatten().tolist() == [10, 11, 12]


def test_the_future_does_not_reach_the_past() -> None:
    model = Gpt(small_model(kv_heads=2), sequence_length=SEQUENCE_LENGTH, layers=range(4))
    initialize(model.named_parameters(), seed=1, layers=4)
    tokens = torch.randint(0, 384, (1, SEQUENCE_LENGTH), generator=torch.Generator().manual_seed(0))
    changed = tokens.clone()
    changed[0, 10] += 1

    before, after = model(tokens), model(changed)

    assert torch.equal(before[:, :10], after[:, :10])
    assert not torch.equal(before[:, 10:], after[:, 10:])


def _train(**changes: int) -> Train:
    return Train(
        steps=changes.get("steps", 100),
        warm_up_steps=changes.get("warm_up_steps", 10),
        final_learning_rate_fraction=0.1,
        evaluation_every_steps=0,
        evaluation_batches=0,
        checkpoint_every_steps=0,
        keep_checkpoints=1,
        metrics="csv",
    )


@pytest.mark.parametrize(("step", "rate"), [(1, 0.1), (5, 0.5), (10, 1.0), (55, 0.55), (100, 0.1)])
def test_the_learning_rate_rises_then_follows_a_cosine(step: int, rate: float) -> None:
    assert learning_rate_at(step, peak=1.0, train=_train()) == pytest.approx(rate)


def test_no_warm_up_is_no_division_by_zero() -> None:
    assert learning_rate_at(1, peak=1.0, train=_train(warm_up_steps=0, steps=1)) == pytest.approx(
        0.1
    )


def test_a_limit_that_is_passed_already_is_told_in_gib() -> None:
    with pytest.raises(
        MemoryError, match=r"the limit is 0\.125 GiB a rank, but this rank uses [\d.]+ GiB before"
    ):
        limit_memory(torch.device("cpu"), 2**27)


def test_metrics_drop_rows_after_the_resumed_step_and_a_torn_line(tmp_path: Path) -> None:
    metrics = CsvMetrics(tmp_path, resumed_step=0)
    for step in (1, 2, 3):
        metrics.write(dict.fromkeys(COLUMNS) | {"step": step, "loss": step / 10})
    with (tmp_path / "metrics.csv").open("a") as file:
        file.write("4,0.")

    resumed = CsvMetrics(tmp_path, resumed_step=2)
    resumed.write(dict.fromkeys(COLUMNS) | {"step": 3, "loss": 0.7})

    lines = (tmp_path / "metrics.csv").read_text().splitlines()
    assert lines == [",".join(COLUMNS), "1,0.1,,,,,", "2,0.2,,,,,", "3,0.7,,,,,"]


def test_the_loss_scale_halves_on_overflow_and_doubles_after_a_long_clean_run() -> None:
    scale = LossScale("fp16", torch.device("cpu"))

    scale.update(overflowed=True)
    assert scale.factor == FIRST_FACTOR / 2
    for _ in range(STEPS_BEFORE_GROWTH - 1):
        scale.update(overflowed=False)
    assert scale.factor == FIRST_FACTOR / 2
    scale.update(overflowed=False)
    assert scale.factor == FIRST_FACTOR


@pytest.mark.parametrize(("bad", "found"), [(1.0, 0.0), (float("inf"), 1.0), (float("nan"), 1.0)])
def test_gradients_are_unscaled_in_place_and_overflow_is_found(bad: float, found: float) -> None:
    scale = LossScale("fp16", torch.device("cpu"))
    gradients = [torch.full((3,), FIRST_FACTOR), torch.tensor([bad])]

    assert scale.unscale_gradients(gradients).item() == found
    assert gradients[0].tolist() == [1.0, 1.0, 1.0]


class Ahead:
    """As a stepper whose steps are over when they are waited for.

    Its clock says that a step takes 1 s to begin and 2 s to wait for.
    """

    def __init__(self, runs_ahead: bool) -> None:
        self.runs_ahead, self.said = runs_ahead, list[str]()
        self.optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.0)
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def begin(self, number: int) -> Callable[[], StepOutcome]:
        self.said.append(f"begin {number} at {self.optimizer.param_groups[0]['lr']:.2f}")
        self.now += 1

        def finish() -> StepOutcome:
            self.said.append(f"end {number}")
            self.now += 2
            return StepOutcome(loss=float(number), gradient_norm=None)

        return finish


@pytest.mark.parametrize("ahead", [True, False])
def test_training_runs_one_step_ahead_but_for_what_is_done_between_two(
    ahead: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stepper, spent_s = Ahead(ahead), list[float]()
    monkeypatch.setattr(training_run, "time", stepper)
    train = Train(
        steps=4, warm_up_steps=4, final_learning_rate_fraction=0.1, evaluation_every_steps=0,
        evaluation_batches=0,
        checkpoint_every_steps=3, keep_checkpoints=1, metrics="csv",
    )  # fmt: skip
    noted: list[int] = []
    context = SimpleNamespace(
        stepper=stepper,
        job=SimpleNamespace(optimizer=SimpleNamespace(learning_rate=0.4)),
        note_step=lambda number, outcome, seconds: noted.append(number),
    )
    for number, outcome, seconds in steps_run(
        context, range(1, 5), train, lambda step: step in (3, 4)
    ):  # type: ignore[arg-type]
        stepper.said.append(f"told {number}")
        assert outcome.loss == number
        spent_s.append(seconds)
        if number == 3:
            stepper.now += 50  # an evaluation, which is no part of a step
    assert sum(spent_s) == 4 * (1 + 2), "no second counts twice"
    begins = [f"begin {number} at 0.{number}0" for number in range(1, 5)]
    ends = [[f"end {number}", f"told {number}"] for number in range(1, 5)]
    in_turn = [*begins[:2], *ends[0], begins[2], *ends[1], *ends[2], begins[3], *ends[3]]
    one_by_one = [word for begin, end in zip(begins, ends, strict=True) for word in (begin, *end)]
    assert (stepper.said, noted) == (in_turn if ahead else one_by_one, [1, 2, 3, 4])


def test_a_timed_step_ends_with_its_device_s_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On an accelerator a step has only begun when its last kernel was started."""
    device, logged = Ahead(False), list[dict[str, Any]]()
    monkeypatch.setattr(run, "time", device)
    monkeypatch.setattr(
        torch.accelerator, "synchronize", lambda _: setattr(device, "now", device.now + 7)
    )
    engine = SimpleNamespace(device=torch.device("cuda"), begin=lambda number: lambda: outcome)
    outcome = StepOutcome(loss=1.0, gradient_norm=None)
    context = RunContext(
        job=small_job(tmp_path, recipe=small_recipe(data_parallel=2, context_parallel=2)),
        rank=0,
        stepper=SimpleNamespace(step=lambda number: TorchStepper.step(engine, number)),
        log=SimpleNamespace(write=lambda event, **values: logged.append(values)),
        build_time_s=0.0,
    )  # type: ignore[arg-type]
    assert context.timed_step(1) == (outcome, 7.0)
    [values] = logged
    assert (values["time_s"], values["tokens"]) == (7.0, 8 * 32), "of all replicas"


def test_garbage_is_collected_every_50_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    collected: list[int] = []
    job = small_job(tmp_path)
    context = RunContext(
        job=job, rank=1, stepper=Ahead(False), log=ProgressLog(None, append=False), build_time_s=0.0
    )  # type: ignore[arg-type]
    for number in range(1, 121):
        monkeypatch.setattr(gc, "collect", lambda at=number: collected.append(at))
        context.note_step(number, StepOutcome(loss=1.0, gradient_norm=None), 0.1)
    assert collected == [50, 100]


def test_biases_move_towards_experts_with_fewer_tokens_than_the_mean() -> None:
    balance = Balance(small_model(**DEEPSEEK).mixture)
    balance.move(torch.tensor([9, 0, 2, 2, 2, 1, 0, 0]))
    signs = [-1, 1, 0, 0, 0, 1, 1, 1]
    assert balance.bias.tolist() == pytest.approx([0.05 * sign for sign in signs])


@pytest.mark.parametrize("activation", ["swiglu", "gelu"])
def test_grouped_products_of_experts_are_those_of_one_expert_after_another(
    activation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    shape = small_model(**EXPERTS, biases="all", activation=activation)
    experts, given = Experts(shape.mixture), torch.randn(24, shape.hidden)
    for parameter in experts.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    counts = torch.tensor([8, 0, 11, 5])

    def found(is_grouped: bool) -> list[Tensor]:
        monkeypatch.setattr(expert_module, "has_grouped_products", lambda *_, **__: is_grouped)
        rows = given.clone().requires_grad_()
        out = experts(rows, counts)
        return [out, *torch.autograd.grad(out.square().sum(), [rows, *experts.parameters()])]

    for grouped, looped in zip(found(True), found(False), strict=True):
        torch.testing.assert_close(grouped, looped, rtol=1e-5, atol=1e-5)


def test_dealt_tokens_load_all_ranks_of_a_stage_alike(tmp_path: Path) -> None:
    recipe = small_recipe(pipeline_parallel=2, schedule="1f1b", micro_batch_seqs=2)
    model = small_model(**EXPERTS, routing="uniform")
    told = run_job(small_job(tmp_path / "run", model=model, recipe=recipe))["telemetry"]
    assert told["expert_imbalance"] == told["rank_imbalance"] == [1.0] * 5


@pytest.mark.parametrize("experts", [0, 4])
@pytest.mark.parametrize("scaling", ["rowwise", "mxfp8"])
def test_only_the_blocks_products_are_in_8_bits(scaling: str, experts: int) -> None:
    """Neither embedding nor head, norms, router or experts."""
    pytest.importorskip("torchao")
    with torch.device("meta"):
        model = Gpt(
            small_model(**(EXPERTS if experts else {})),
            sequence_length=SEQUENCE_LENGTH,
            layers=range(4),
        )
    multiply_in_8_bits(model, scaling)
    kinds = ("Float8Linear", "MXFP8Linear")
    converted = {name for name, module in model.named_modules() if type(module).__name__ in kinds}
    parts = [f"attention.{name}" for name in ("query", "key", "value", "output")]
    parts += [] if experts else [f"feed_forward.{name}" for name in ("gate", "up", "down")]
    assert converted == {f"blocks.{layer}.{part}" for layer in range(4) for part in parts}


@pytest.mark.system
def test_metrics_for_weights_and_biases_are_kept_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb")
    from wandb.proto.wandb_internal_pb2 import Record

    monkeypatch.setenv("WANDB_MODE", "offline")
    metrics = WandbMetrics(tmp_path, resumed_step=0)
    for step in (1, 2):
        metrics.write(dict.fromkeys(COLUMNS) | {"step": step, "loss": step / 10})
    metrics.close()

    [path] = tmp_path.glob("wandb/offline-run-*/*.wandb")

    def rows() -> list[tuple[str, str, bool]]:
        content, found, place = (
            path.read_bytes(),
            [],
            7,
        )  # as LevelDB's: checksum, length and kind of each record
        while place < len(content):
            length = int.from_bytes(content[place + 4 : place + 6], "little")
            record = Record.FromString(content[place + 7 : place + 7 + length])
            place += 7 + length
            if record.HasField("history"):
                items = {
                    item.key or item.nested_key[0]: item.value_json for item in record.history.item
                }
                found.append((items["step"], items["loss"], "gradient_norm" in items))
        return found

    wait_for(rows, 30)  # its process writes the file after the run has finished
    assert rows() == [("1", "0.1", False), ("2", "0.2", False)]


def _through_experts(
    experts: Experts, rows: Tensor, counts: list[int]
) -> tuple[Tensor, list[Tensor]]:
    experts.zero_grad()
    rows = rows.clone().requires_grad_()
    found = experts(rows, torch.tensor(counts))
    (found.float() ** 2).sum().backward()
    gradients = [rows.grad, *(weight.grad for weight in experts.parameters())]
    return found, [gradient.clone() for gradient in gradients if gradient is not None]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("form", [{}, {"activation": "swiglu_clamped", "biases": "all"}])
@pytest.mark.parametrize("counts", [[3, 0, 7, 0], [0, 0, 10, 0], [0, 0, 0, 0]])
def test_grouped_products_are_those_of_each_expert(
    counts: list[int], form: dict[str, Any], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gradients of experts without rows are 0, also where torch leaves them unwritten."""
    torch.manual_seed(0)
    experts = Experts(small_model(**EXPERTS | form).mixture)
    for weight in experts.parameters():
        torch.nn.init.normal_(weight)
    experts.to(dtype)
    rows = torch.randn(sum(counts), 64, dtype=dtype)
    expected, wanted = _through_experts(experts, rows, counts)
    products = []

    def unwritten(rows: Tensor, weight: Tensor, *, offs: Tensor) -> Tensor:
        products.append(offs.tolist())
        empty = torch.tensor(counts) == 0
        weight.register_hook(lambda gradient: gradient.masked_fill(empty[:, None, None], math.nan))
        return grouped_mm(rows, weight, offs=offs)

    grouped_mm = torch.nn.functional.grouped_mm
    monkeypatch.setattr(torch.nn.functional, "grouped_mm", unwritten)
    monkeypatch.setattr(expert_module, "has_grouped_products", lambda *_: True)
    found, gradients = _through_experts(experts, rows, counts)

    assert len(products) == (3 if rows.numel() else 0)
    assert len(gradients) == len(wanted)
    for one, other in zip([found, *gradients], [expected, *wanted], strict=True):
        torch.testing.assert_close(one, other)


def test_counts_of_experts_go_to_the_host_once_a_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = []
    plain = expert_module.counts_on_host

    def recorded(counts: Tensor, *, rows: int) -> list[Any]:
        reads.append(rows)
        return plain(counts, rows=rows)

    monkeypatch.setattr(expert_module, "counts_on_host", recorded)
    experts = Experts(small_model(**EXPERTS).mixture)
    experts(torch.randn(10, 64), torch.tensor([3, 0, 7, 0]))
    assert reads == [10]
    monkeypatch.setattr(expert_module, "has_grouped_products", lambda *_: True)
    experts(torch.randn(10, 64), torch.tensor([3, 0, 7, 0]))
    assert reads == [10]


@pytest.mark.parametrize("biases", ["none", "all"])
def test_a_router_of_16_bits_decides_in_fp32(biases: str) -> None:
    """100 and 100.25 are one number in bf16, as a product in bf16 would leave them."""
    torch.manual_seed(0)
    model = small_model(**EXPERTS | {"experts_per_token": 1, "biases": biases})
    mixture = MixtureModule(model.mixture)
    with torch.no_grad():
        for weight in mixture.parameters():
            weight.normal_()
        mixture.router.weight.zero_()
        mixture.router.weight[:, 0] = 100.0
        mixture.router.weight[2, 1] = 0.25
        if biases == "all":
            mixture.router.bias.zero_()
    mixture.to(torch.bfloat16)
    mixture.loads = []
    x = torch.ones(1, 5, 64, dtype=torch.bfloat16, requires_grad=True)

    mixture(x).sum().backward()

    assert [counts.tolist() for counts, _ in mixture.loads] == [[0, 0, 5, 0]]
    router = mixture.router
    wide = [tensor.detach().float().requires_grad_() for tensor in (x[0], *router.parameters())]
    outputs = torch.nn.functional.linear(*wide)
    tokens = x[0].detach().requires_grad_()
    found = router(tokens)
    torch.testing.assert_close(found, outputs, rtol=0, atol=0)
    router.zero_grad()
    for scored in (found, outputs):
        scored.softmax(dim=-1)[:, 2].sum().backward()
    for one, other in zip((tokens, *router.parameters()), wide, strict=True):
        assert one.grad is not None
        assert other.grad is not None
        assert one.grad.dtype == torch.bfloat16
        torch.testing.assert_close(one.grad, other.grad.bfloat16())


def test_squared_relu_keeps_what_is_above_zero_and_squares_it() -> None:
    up = torch.tensor([-2.0, 0.0, 3.0])
    assert activated("relu", up, None).tolist() == [0.0, 0.0, 3.0]
    assert activated("relu2", up, None).tolist() == [0.0, 0.0, 9.0]
