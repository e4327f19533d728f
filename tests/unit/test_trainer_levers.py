"""The trainer's levers by themselves: states in bf16 and activations in the host's memory."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from frontrunner.evaluators.analytic.machine import Machine
from frontrunner.evaluators.analytic.memory import host_memory
from frontrunner.evaluators.analytic.software import FRONTRUNNER
from frontrunner.evaluators.trainer.job import Optimizer
from frontrunner.evaluators.trainer.model import Gpt
from frontrunner.evaluators.trainer.optimizer import NarrowStateOptimizer, build_optimizer, clip
from frontrunner.evaluators.trainer.parts.head import mean_cross_entropy
from frontrunner.evaluators.trainer.rendezvous import rank_device
from frontrunner.spaces.model.model import Model
from frontrunner.spaces.recipe import Recipe
from support.analytic import A100, PROBLEM, work
from support.trainer_runs import EXPERTS, small_model, small_recipe

ADAMW = Optimizer(
    name="adamw",
    learning_rate=1e-2,
    weight_decay=0.1,
    beta1=0.9,
    beta2=0.95,
    momentum=0.9,
    gradient_clip_norm=None,
    epsilon=1e-2,  # so large that it changes every update
)


def _steps(optimizer: torch.optim.Optimizer, parameter: nn.Parameter, *, count: int) -> None:
    generator = torch.Generator().manual_seed(1)
    for _ in range(count):
        parameter.grad = torch.randn(parameter.shape, generator=generator)
        optimizer.step()


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_narrow_states_give_torchs_update_but_for_their_rounding(name: str) -> None:
    options = replace(ADAMW, name=name)
    first = torch.randn(64, generator=torch.Generator().manual_seed(0))
    narrow, wide = nn.Parameter(first.clone()), nn.Parameter(first.clone())

    _steps(build_optimizer(options, [narrow], state="bf16"), narrow, count=1)
    _steps(build_optimizer(options, [wide], state="fp32"), wide, count=1)
    after_one = (narrow - wide).abs().max().item()
    _steps(build_optimizer(options, [narrow], state="bf16"), narrow, count=10)
    _steps(build_optimizer(options, [wide], state="fp32"), wide, count=10)

    moved = (wide - first).abs().max().item()
    assert after_one < 1e-7  # nothing was rounded before the first update
    assert 0 < (narrow - wide).abs().max().item() < 0.01 * moved


def test_adamw_on_a_host_takes_one_pass_and_gives_torchs_plain_update() -> None:
    first = torch.randn(64, 3, generator=torch.Generator().manual_seed(0))
    ours, plain = nn.Parameter(first.clone()), nn.Parameter(first.clone())
    optimizer = build_optimizer(ADAMW, [ours])
    assert optimizer.defaults["fused"]
    _steps(optimizer, ours, count=10)
    _steps(
        torch.optim.AdamW(
            [plain], lr=1e-2, betas=(0.9, 0.95), eps=1e-2, weight_decay=0.1, foreach=False
        ),
        plain,
        count=10,
    )

    torch.testing.assert_close(ours, plain, rtol=1e-6, atol=1e-7)


def test_sgd_gives_torchs_update_with_its_weight_decay() -> None:
    ours, plain = nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(4))
    _steps(build_optimizer(replace(ADAMW, name="sgd"), [ours]), ours, count=3)
    _steps(torch.optim.SGD([plain], lr=1e-2, momentum=0.9, weight_decay=0.1), plain, count=3)
    torch.testing.assert_close(ours, plain)


@pytest.mark.parametrize(("norm", "clipped"), [(0.5, 3.0), (2.0, 1.5)])
def test_clipping_leaves_a_gradient_below_the_largest_norm_as_it_is(
    norm: float, clipped: float
) -> None:
    parameter = nn.Parameter(torch.zeros(2))
    parameter.grad = torch.full((2,), 3.0)
    clip([parameter], norm=torch.tensor(norm), largest=1.0)
    assert parameter.grad.tolist() == pytest.approx([clipped] * 2, rel=1e-5)


def test_the_host_s_part_of_an_accelerator_s_step_has_the_rank_s_share_of_the_cores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    used: list[int] = []
    monkeypatch.setattr("torch.set_num_threads", used.append)
    monkeypatch.setattr("torch.accelerator.device_count", lambda: 4)
    monkeypatch.setattr("torch.accelerator.set_device_index", lambda _: None)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(64)))
    monkeypatch.setattr("frontrunner.evaluators.trainer.rendezvous.pci_address", lambda _: None)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "")
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    for ranks in ("4", "128"):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
        rank_device("cuda", 0)

    assert used == [16, 1]


def test_narrow_states_take_two_bytes_a_parameter_and_moment() -> None:
    parameter = nn.Parameter(torch.zeros(100))
    optimizer = build_optimizer(ADAMW, [parameter], state="bf16")
    assert isinstance(optimizer, NarrowStateOptimizer)
    _steps(optimizer, parameter, count=1)

    moments = [optimizer.state[parameter][key] for key in ("exp_avg", "exp_avg_sq")]

    assert sum(moment.nbytes for moment in moments) == 100 * 2 * 2
    assert parameter.dtype == torch.float32


class _LateStream:
    """A stream on which copies are made when something waits for them, and events are how many it
    has been given.
    """

    def __init__(self) -> None:
        self.left: list[Callable[[], object]] = []
        self.count = 0

    def add(self, copy: Callable[[], object]) -> None:
        self.left.append(copy)
        self.count += 1

    def wait_stream(self, other: "_LateStream") -> None:
        self.wait_event((other, other.count))

    def record_event(self) -> "tuple[_LateStream, int]":
        return self, self.count

    def wait_event(self, event: "tuple[_LateStream, int]") -> None:
        other, place = event
        while other.count - len(other.left) < place:
            other.left.pop(0)()


class _LateStreams:
    """Stand-in for the module of a device whose copies are late."""

    Stream = _LateStream

    def __init__(self) -> None:
        self.main = self.current = _LateStream()
        self.copied: list[int] = []

    def current_stream(self) -> _LateStream:
        return self.current

    @contextmanager
    def stream(self, stream: _LateStream) -> Iterator[None]:
        self.current = stream
        yield
        self.current = self.main

    def copy(self, target: torch.Tensor, source: torch.Tensor, **_: bool) -> None:
        self.copied.append(source.nbytes)
        self.current.add(lambda: target.copy_(source))


def _moved(
    moving: Gpt, tokens: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[int], torch.Tensor]:
    """Train one step with late copies: return the bytes that leave, in order, and the loss."""
    streams = _LateStreams()
    with monkeypatch.context() as patch:
        patch.setattr(torch, "get_device_module", lambda _: streams)
        patch.setattr("frontrunner.evaluators.trainer.parts.host_activations._copy", streams.copy)
        loss = moving(tokens).square().mean()
        left = len(streams.copied)
        loss.backward()
    assert len(streams.copied) < 2 * left  # the last layer's need not come back
    assert streams.current is streams.main
    return streams.copied[:left], loss


def _with_the_same_weights(shape: Model, **pieces: Any) -> tuple[Gpt, Gpt]:
    """Return a model that moves its activations to the host, and one that does not."""
    torch.manual_seed(0)
    moving, plain = (
        Gpt(shape, sequence_length=16, layers=range(4), recipe=small_recipe(**levers))
        for levers in ({"activation_offload": True} | pieces, pieces)
    )
    plain.load_state_dict(moving.state_dict())
    return moving, plain


def _assert_same_gradients(moving: Gpt, plain: Gpt) -> None:
    for (name, weight), other in zip(moving.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(weight.grad, other.grad, msg=name)


@pytest.mark.parametrize(
    "changes", [{}, {"positions": "learned", "activation": "gelu", "norm": "layernorm"}]
)
@pytest.mark.parametrize("pieces", [{}, {"feed_forward_tiles": 2}, {"recompute": "full"}])
def test_each_activation_leaves_once_and_comes_back_in_time(
    changes: dict[str, str], pieces: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copies are late as an accelerator's may be: what nothing waits for is not there."""
    tokens = torch.arange(2 * 16).reshape(2, 16)
    moving, plain = _with_the_same_weights(small_model(**changes), **pieces)
    saved = dict[int, int]()
    weights = {weight.untyped_storage().data_ptr() for weight in plain.parameters()}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    expected = plain(tokens).square().mean()
    expected.backward()
    copied, loss = _moved(moving, tokens, monkeypatch)
    x = plain.embedding(tokens)  # type: ignore[misc]
    kept = []
    for block in plain.blocks.values():
        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            x = block(x)
        kept.append(x)  # alive, so that no other storage takes the address
    tables = {
        one.untyped_storage().data_ptr()
        for table in plain._tables.values()
        for one in table.on(x.device)
    }
    distinct = [size for address, size in saved.items() if address not in weights | tables]

    assert copied == distinct
    torch.testing.assert_close(loss, expected)
    _assert_same_gradients(moving, plain)


def test_selective_recompute_moves_what_it_keeps_as_estimates_say(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A layer's input, its products' outputs, and attention's with a number for each row."""
    shape, tokens = small_model(), torch.arange(2 * 16).reshape(2, 16)
    moving, plain = _with_the_same_weights(shape, recompute="selective")
    expected = plain(tokens).square().mean()
    expected.backward()

    copied, loss = _moved(moving, tokens, monkeypatch)

    values = 7 * shape.hidden + 2 * shape.feed_forward.ffn_hidden
    assert sum(copied) == 4 * 4 * 2 * 16 * (values + shape.attention.heads)
    recipe = Recipe(
        devices=1,
        micro_batch_seqs=2,
        accumulation=1,
        recompute="selective",
        activation_offload=True,
    )
    problem = replace(PROBLEM, model=shape, sequence_length=16, precision="fp32")
    told = host_memory(
        Machine.of(A100, "fp32", FRONTRUNNER), work(recipe, problem=problem), np.zeros(1)
    )
    assert told == 4 * 4 * 2 * 16 * values
    torch.testing.assert_close(loss, expected)
    _assert_same_gradients(moving, plain)


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_weights_that_fsdp_gathers_for_the_experts_alone_stay_on_the_device(
    recompute: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FSDP gathers them when the layer runs already."""
    tokens = torch.arange(2 * 16).reshape(2, 16)
    moving, plain = _with_the_same_weights(small_model(**EXPERTS), recompute=recompute)
    plain(tokens).square().mean().backward()
    whole, _ = _moved(moving, tokens, monkeypatch)
    moving.zero_grad()

    shards = dict[nn.Module, nn.Parameter]()

    def gather(experts: nn.Module, _: Any) -> None:
        for matrices in experts.children():
            shards[matrices] = matrices.weight
            matrices.weight = nn.Parameter(matrices.weight.detach().clone())
            matrices.weight.register_hook(partial(add, shards[matrices]))

    def add(shard: nn.Parameter, gradient: torch.Tensor) -> None:
        shard.grad = gradient

    def reshard(experts: nn.Module, *_: Any) -> None:
        for matrices in experts.children():
            matrices.weight = shards[matrices]

    for mixture in moving.mixtures.values():
        mixture.experts.register_forward_pre_hook(gather)
        mixture.experts.register_forward_hook(reshard)
    gathered, _ = _moved(moving, tokens, monkeypatch)

    assert gathered == whole
    assert 4 * 64 * 96 * 4 not in whole
    _assert_same_gradients(moving, plain)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_loss_by_rows_is_the_whole_one(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = torch.Generator().manual_seed(0)
    targets, widened = torch.randint(0, 50, (2, 9), generator=generator), list[int]()
    logits = torch.randn(2, 9, 50, generator=generator).to(dtype).requires_grad_()
    expected = functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
    (whole,) = torch.autograd.grad(3 * expected, logits)
    monkeypatch.setattr("frontrunner.evaluators.trainer.parts.head._LOGITS_IN_FP32", 200)
    softmax = torch.softmax
    monkeypatch.setattr(
        torch, "softmax", lambda x, **by: widened.append(len(x)) or softmax(x, **by)
    )
    loss = mean_cross_entropy(logits, targets)
    (by_rows,) = torch.autograd.grad(3 * loss, logits)

    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=0)
    torch.testing.assert_close(
        by_rows, whole, rtol=1e-6 if dtype == torch.float32 else 8e-3, atol=1e-8
    )
    assert widened == [4, 4, 4, 4, 2]
