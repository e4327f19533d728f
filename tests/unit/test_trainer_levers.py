"""The trainer's levers by themselves: states in bf16 and activations in the host's memory."""

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

from frontrunner.evaluators.trainer.job import Optimizer
from frontrunner.evaluators.trainer.model import activations_on_host
from frontrunner.evaluators.trainer.optimizer import NarrowStateOptimizer, build_optimizer
from frontrunner.evaluators.trainer.rendezvous import rank_device
from support.trainer_runs import small_job

ADAMW = Optimizer(
    name="adamw",
    learning_rate=1e-2,
    weight_decay=0.1,
    beta1=0.9,
    beta2=0.95,
    momentum=0.9,
    gradient_clip_norm=None,
)


def _steps(optimizer: torch.optim.Optimizer, parameter: nn.Parameter, *, count: int) -> None:
    generator = torch.Generator().manual_seed(1)
    for _ in range(count):
        parameter.grad = torch.randn(parameter.shape, generator=generator)
        optimizer.step()


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_narrow_states_give_torchs_update_but_for_their_rounding(name: str) -> None:
    options = ADAMW if name == "adamw" else small_job(Path("/run")).optimizer
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
    _steps(torch.optim.AdamW([plain], lr=1e-2, betas=(0.9, 0.95), weight_decay=0.1, foreach=False), plain, count=10)

    torch.testing.assert_close(ours, plain, rtol=1e-6, atol=1e-7)


def test_the_host_s_part_of_an_accelerator_s_step_has_the_rank_s_share_of_the_cores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    used: list[int] = []
    monkeypatch.setattr("torch.set_num_threads", used.append)
    monkeypatch.setattr("torch.accelerator.device_count", lambda: 4)
    monkeypatch.setattr("torch.accelerator.set_device_index", lambda _: None)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(64)))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
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


def test_activations_come_back_and_weights_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = nn.Linear(4, 8, bias=False)
    x = torch.randn(3, 4, requires_grad=True)
    copied: list[torch.Size] = []
    copy = torch.Tensor.copy_

    def counting(self: torch.Tensor, source: torch.Tensor, **options: bool) -> torch.Tensor:
        copied.append(source.shape)
        return copy(self, source, **options)

    monkeypatch.setattr(torch.Tensor, "copy_", counting)
    with activations_on_host(layer.parameters()):
        loss = functional.gelu(layer(x)).sum()
    loss.backward()

    assert sorted(copied) == [torch.Size([3, 4]), torch.Size([3, 8])]  # the layer's input and GELU's, not the weight
    moved, x.grad, layer.weight.grad = (x.grad, layer.weight.grad), None, None
    functional.gelu(layer(x)).sum().backward()
    assert x.grad is not None
    assert layer.weight.grad is not None
    torch.testing.assert_close(moved, (x.grad, layer.weight.grad))
