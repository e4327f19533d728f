"""fp32 weights of a model that computes in less: what is trained, and what the model sees of it."""

import torch
from torch import nn

from frontrunner.evaluators.trainer.data_parallel import MasterWeights


def one_weight(value: float) -> tuple[nn.Linear, MasterWeights]:
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, value)
    return model, MasterWeights(model, "bf16")


def test_the_model_computes_with_rounded_weights_and_the_whole_ones_stay() -> None:
    fine = 1.001  # bf16 has nothing between 1 and 1.0078
    model, masters = one_weight(fine)

    assert model(torch.ones(1, 1, dtype=torch.bfloat16)).item() == 1.0
    ((name, master),) = masters.named_parameters()
    assert (name, master.dtype, round(master.item(), 6)) == ("weight", torch.float32, fine)


def test_updates_too_small_for_the_rounded_weights_add_up() -> None:
    model, masters = one_weight(1.0)
    ((_, master),) = masters.named_parameters()

    for _ in range(8):
        with torch.no_grad():
            master += 0.001
        masters.publish()

    assert model.weight.item() == 1.0078125


def test_gradients_of_micro_batches_are_summed_in_fp32() -> None:
    model, masters = one_weight(1.0)
    ((_, master),) = masters.named_parameters()

    for value in (256.0, 1.0, 1.0):
        model(torch.full((1, 1), value, dtype=torch.bfloat16)).sum().backward()
        masters.after_backward()

    assert master.grad is not None
    assert master.grad.item() == 258.0  # bf16 has nothing between 256 and 258: 256 + 1 + 1 would stay 256
    assert model.weight.grad is None
