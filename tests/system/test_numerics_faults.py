"""The quick numerics tests see wrong gradients: each fault of the trainer changes what one of their
recipes leaves by more than the tolerance.

A fault is one line of the trainer, changed in the ranks alone. To see what each changed:
pytest -rP tests/system/test_numerics_faults.py
"""

import functools
from collections.abc import Callable
from pathlib import Path

import pytest

from frontrunner.evaluators.trainer.job import Job
from support.trainer_runs import (
    TOLERANCE,
    Trained,
    differences,
    prepare,
    reference,
    small_job,
    small_model,
    small_recipe,
    train,
    training_job,
)
from system.test_numerics_smoke import RECIPES

pytestmark = pytest.mark.nightly

# By the recipe that sees the fault: the file of the trainer, the text there, and what takes its
# place.
FAULTS = {
    "tp2-sp-dp2-zero2-full-pieces-1-kv-head": {
        "the gradient of a norm is not summed over sequence-parallel ranks": (
            "tensor_parallel.py",
            "weight = self._local_weight(Partial())",
            "weight = self._local_weight()",
        ),
        "the gradient of a norm is averaged over sequence-parallel ranks": (
            "tensor_parallel.py",
            "weight = self._local_weight(Partial())",
            'weight = self._local_weight(Partial("avg"))',
        ),
        "the gradient of replicated key-value heads is not summed": (
            "tensor_parallel.py",
            "self._local_weight(Partial())[self._head_rows]",
            "self._local_weight()[self._head_rows]",
        ),
        "the gradient of replicated key-value heads' biases is not summed": (
            "tensor_parallel.py",
            "        bias = self._local_bias(Partial())\n        return",
            "        bias = self._local_bias()\n        return",
        ),
        "rows of the vocabulary-parallel embedding are off by one": (
            "tensor_parallel.py",
            "self._first_row = ranks.number * rows_of_others",
            "self._first_row = ranks.number * (rows_of_others - 1)",
        ),
        "recomputing sees another input": (
            "parts/recompute.py",
            "checkpoint(function, *inputs,",
            (
                "checkpoint(lambda x, *y: function(x * (1 + 1e-4 *"
                " (torch._C._current_graph_task_id() >= 0)), *y), *inputs,"
            ),
        ),
        "pieces of the loss are of other targets": (
            "model.py",
            "chunks[:, :, number].flatten(1)",
            "chunks[:, :, -1 - number].flatten(1)",
        ),
    },
    "tp2-sp-pp2-gpipe-selective": {
        "the gradient of a bias after a sum is not summed over sequence-parallel ranks": (
            "tensor_parallel.py",
            "(Partial(),) if sequence_parallel else ()",
            "()",
        ),
        "a bias after a sum is added on every rank": (
            "tensor_parallel.py",
            "return out + cast(",
            "return out + self._ranks.size * cast(",
        ),
    },
    "dp4-levels-124": {
        "the learning rate is off by 1e-4": (
            "optimizer.py",
            'group["lr"] = learning_rate',
            'group["lr"] = 1.0001 * learning_rate',
        ),
        "the momentum is off by 1e-3": (
            "optimizer.py",
            "momentum=options.momentum, **common",
            "momentum=0.999 * options.momentum, **common",
        ),
        "the global norm counts shards wrongly": (
            "optimizer.py",
            "(shards / holders)",
            "(1 / holders)",
        ),
        "gradients are clipped at another norm": (
            "optimizer.py",
            "largest / (norm + 1e-6)",
            "largest / (norm + 1e-4)",
        ),
        "one parameter is not trained": (
            "torch_engine.py",
            "for _, parameter in self._named]",
            "for _, parameter in self._named[1:]]",
        ),
        "a micro-batch's loss is divided by one too many": (
            "torch_engine.py",
            "loss = loss / self.recipe.accumulation",
            "loss = loss / (self.recipe.accumulation + 1)",
        ),
        "gradients are reduced before the last micro-batch": (
            "torch_engine.py",
            "last=number == self.recipe.accumulation",
            "last=number == self.recipe.accumulation - 1",
        ),
        "the last micro-batch is left out": (
            "torch_engine.py",
            "backward(self.scale.scaled(loss))",
            "backward(self.scale.scaled(loss * (number < self.recipe.accumulation)))",
        ),
        "replicas read the same data": (
            "layout.py",
            "first = copy // self.recipe.context_parallel * size",
            "first = 0",
        ),
        "gradients sharded by levels are averaged over too few": (
            "data_parallel.py",
            'levels["gradients"].size() * levels["optimizer"].size()',
            'levels["gradients"].size()',
        ),
        "a unit sharded by levels keeps its old parameters": (
            "data_parallel.py",
            "            unit.publish()",
            (
                "            if unit is self._units[0] or next(iter(unit.masters.values())).grad is"
                " None:\n                unit.publish()"
            ),
        ),
        "parameters gathered before a step are used after it": (
            "data_parallel.py",
            "set_reshard_after_backward(last or self._reshards_every_micro_batch)",
            "set_reshard_after_backward(False)",
        ),
    },
    "cp2-pp2-gpipe-zero1-full": {
        "a pipeline's loss is divided by one too many": (
            "torch_engine.py",
            "self._loss_of(output, targets) / self.recipe.accumulation",
            "self._loss_of(output, targets) / (self.recipe.accumulation + 1)",
        ),
    },
    "cp2-dp2-ddp-each-selective": {
        "heads are in another order after context parallelism": (
            "layout.py",
            "received.permute(1, 2, 0, 3, 4).flatten(2, 3)",
            "received.permute(1, 2, 3, 0, 4).flatten(2, 3)",
        ),
    },
    "cp4-learned-2-kv-heads": {
        "key-value heads go to other context ranks": (
            "layout.py",
            "heads.repeat_interleave(self._size // heads.shape[2], dim=2)",
            "heads.repeat(1, 1, self._size // heads.shape[2], 1)",
        ),
        "learned positions are those of the first context rank": (
            "model.py",
            "context.positions(sequence_length).start",
            "0 * context.positions(sequence_length).start",
        ),
        "gradients of plain replicas are summed, not averaged": (
            "data_parallel.py",
            "ReduceOp.AVG",
            "ReduceOp.SUM",
        ),
        "plain replicas forget earlier micro-batches": (
            "data_parallel.py",
            "_foreach_add_(self._parts, parts)",
            "_foreach_copy_(self._parts, parts)",
        ),
    },
    "dp4-zero1-ep2": {
        "experts' gradients are averaged as all others are": (
            "data_parallel.py",
            "self.scale = self.mesh.size() / layout.recipe.copies",
            "self.scale = 1.0",
        ),
        "what experts of other ranks find comes back in another order": (
            "expert_parallel.py",
            "added_up(rows[self._inverse],",
            "added_up(rows,",
        ),
        "what a token's experts find goes to other tokens": (
            "parts/mixture.py",
            "outputs[order.argsort()]",
            "outputs[order]",
        ),
    },
    "tp2-sp-etp2": {
        "what the parts of an expert find is not added up": (
            "expert_parallel.py",
            "rows.shape[1]).sum(dim=0)",
            "rows.shape[1])[0]",
        ),
    },
    "pp2-of-gemma": {
        "a stage's layers have the windows of the first ones": (
            "model.py",
            "shape.layers[number]",
            "shape.layers[number - layers.start]",
        ),
    },
    "tp2-sp-cp2-of-gemma": {
        "sinks are those of other context ranks' heads": (
            "layout.py",
            "chunk(self._size)[self._number]",
            "chunk(self._size)[0]",
        ),
        "the gradient of a norm after a part is not summed over sequence-parallel ranks": (
            "tensor_parallel.py",
            'if name.endswith("_norm"):\n                    setattr',
            'if name in ("attention_norm", "feed_forward_norm"):\n                    setattr',
        ),
    },
    "deepseek-tp2-sp-pp2-1f1b-ep2": {
        "the gradient of a matrix that each rank has whole is not summed": (
            "tensor_parallel.py",
            "functional.linear(x, self._local_weight(Partial()), ",
            "functional.linear(x, self._local_weight(), ",
        ),
        "biases that balance experts go by the tokens of one rank": (
            "torch_engine.py",
            'in ("replicate", "shard", "tensor")',
            'in ("replicate",)',
        ),
        "biases that balance experts count tokens of no step": (
            "parts/mixture.py",
            "self._tokens[-passes:]",
            "self._tokens",
        ),
    },
    "balanced-cp2-dp2-zero1-ep2": {
        "positions of latent attention are those of the first context rank": (
            "parts/latent_attention.py",
            "start=self._first_position",
            "start=0",
        ),
        "the loss that balances experts is one of each micro-batch": (
            "torch_engine.py",
            "self.scale.scaled(loss / recipe.accumulation)",
            "self.scale.scaled(loss)",
        ),
        "the loss that balances experts sees a part of each sequence": (
            "parts/mixture.py",
            "for group in self.sequence_groups:",
            "for group in []:",
        ),
    },
}


def job_of(case: str, folder: Path) -> Job:
    """The job of a quick numerics test."""
    recipe, model = RECIPES[case]
    job = small_job(folder, recipe=small_recipe(**recipe), model=small_model(**model))
    return training_job(job)


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Trained]:
    """What the recipe of a quick numerics test should leave, computed once."""

    @functools.cache
    def computed(case: str) -> Trained:
        job = job_of(case, tmp_path_factory.mktemp("reference"))
        prepare(job)
        return reference(job)

    return computed


def test_trainer_imported_again_in_its_ranks_trains_alike(
    tmp_path: Path, right: Callable[[str], Trained]
) -> None:
    """Faults are not seen because they are imported anew."""
    case = next(iter(FAULTS))

    trained = train(job_of(case, tmp_path / "run"), ("", "", ""))

    assert max(differences(trained, right(case)).values()) < TOLERANCE


@pytest.mark.parametrize(
    ("case", "name"), [(case, name) for case, faults in FAULTS.items() for name in faults]
)
def test_fault_of_the_trainer_is_seen(
    case: str, name: str, tmp_path: Path, right: Callable[[str], Trained]
) -> None:
    trained = train(job_of(case, tmp_path / "run"), FAULTS[case][name])

    sizes = differences(trained, right(case))
    assert max(sizes.values()) > TOLERANCE
    kinds = ("losses", "gradient norms", "weights", "momentum")
    largest = (max(size for key, size in sizes.items() if key.startswith(kind)) for kind in kinds)
    print(f"| {name} | {case} | {' | '.join(f'{size:.1e}' for size in largest)} |")  # noqa: T201
