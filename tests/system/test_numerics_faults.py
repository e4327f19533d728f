"""The quick numerics tier sees wrong gradients: each fault, put into a copy of the product, has one of its tests fail.

A fault is one line of the trainer, changed. To see what each changed: pytest -rP tests/system/test_numerics_faults.py
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import frontrunner
from system import test_numerics_smoke

TRAINER = "evaluators/trainer"
# Name: the file in the trainer, the text there, what stands in its place.
FAULTS = {
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
    "the global norm counts shards wrongly": ("optimizer.py", "(shards / holders)", "(1 / holders)"),
    "gradients are clipped at another norm": ("optimizer.py", "largest / (norm + 1e-6)", "largest / (norm + 1e-4)"),
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
    "a pipeline's loss is divided by one too many": (
        "torch_engine.py",
        "self._loss_of(output, targets) / self.recipe.accumulation",
        "self._loss_of(output, targets) / (self.recipe.accumulation + 1)",
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
    "replicas read the same data": ("layout.py", "first = copy // self.recipe.context_parallel * size", "first = 0"),
    "heads are in another order after context parallelism": (
        "layout.py",
        "received.permute(1, 2, 0, 3, 4).flatten(2, 3)",
        "received.permute(1, 2, 3, 0, 4).flatten(2, 3)",
    ),
    "key-value heads go to other context ranks": (
        "layout.py",
        "heads.repeat_interleave(self._size // heads.shape[2], dim=2)",
        "heads.repeat(1, 1, self._size // heads.shape[2], 1)",
    ),
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
    "what the parts of an expert find is not added up": (
        "expert_parallel.py",
        "rows.shape[1]).sum(dim=0)",
        "rows.shape[1])[0]",
    ),
    "what a token's experts find goes to other tokens": (
        "model.py",
        "found[order.argsort()]",
        "found[order]",
    ),
    "a stage's layers have the windows of the first ones": (
        "model.py",
        "shape.window_of(layer)) for",
        "shape.window_of(layer - layers.start)) for",
    ),
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
    "the gradient of a matrix that each rank has whole is not summed": (
        "tensor_parallel.py",
        "functional.linear(x, self._local_weight(Partial()), ",
        "functional.linear(x, self._local_weight(), ",
    ),
    "positions of latent attention are those of the first context rank": (
        "model.py",
        "start=self._start",
        "start=0",
    ),
    "biases that balance experts go by the tokens of one rank": (
        "torch_engine.py",
        'in ("replicate", "shard", "tensor")',
        'in ("replicate",)',
    ),
    "biases that balance experts count tokens of no step": (
        "model.py",
        "self._tokens[-passes:]",
        "self._tokens",
    ),
    "the loss that balances experts is one of each micro-batch": (
        "torch_engine.py",
        "self.scale.scaled(loss / recipe.accumulation)",
        "self.scale.scaled(loss)",
    ),
    "the loss that balances experts sees a part of each sequence": (
        "model.py",
        "for group in self.parts:",
        "for group in []:",
    ),
    "learned positions are those of the first context rank": (
        "model.py",
        "context.positions(sequence_length).start",
        "0 * context.positions(sequence_length).start",
    ),
    "recomputing sees another input": (
        "model.py",
        "checkpoint(function, *inputs,",
        "checkpoint(lambda x, *y: function(x * (1 + 1e-4 * (torch._C._current_graph_task_id() >= 0)), *y), *inputs,",
    ),
    "pieces of the loss are of other targets": (
        "model.py",
        "pieces[:, :, number].flatten(1)",
        "pieces[:, :, -1 - number].flatten(1)",
    ),
    "gradients of plain replicas are summed, not averaged": ("data_parallel.py", "ReduceOp.AVG", "ReduceOp.SUM"),
    "plain replicas forget earlier micro-batches": (
        "data_parallel.py",
        "_foreach_add_(self._parts, parts)",
        "_foreach_copy_(self._parts, parts)",
    ),
    "gradients sharded by levels are averaged over too few": (
        "data_parallel.py",
        'levels["gradients"].size() * levels["optimizer"].size()',
        'levels["gradients"].size()',
    ),
    "a unit sharded by levels keeps its old parameters": (
        "data_parallel.py",
        "            unit.publish()",
        "            if unit is self._units[0] or next(iter(unit.masters.values())).grad is None:\n"
        "                unit.publish()",
    ),
    "parameters gathered before a step are used after it": (
        "data_parallel.py",
        "set_reshard_after_backward(last or self._reshards_every_micro_batch)",
        "set_reshard_after_backward(False)",
    ),
}


def copy_product(folder: Path) -> Path:
    """Copy the package, with what its links lead to."""
    copy = folder / "copy" / "frontrunner"
    shutil.copytree(Path(frontrunner.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    return copy


def run_numerics(copy: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the quick numerics tests of the torch engine on the copy, up to the first that fails."""
    command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", "--tb=short", *options]
    tests = f"{test_numerics_smoke.__file__}::test_torch_engine_trains_the_right_model"
    environment = os.environ | {"PYTHONPATH": str(copy.parent)}
    return subprocess.run([*command, tests], check=False, timeout=600, env=environment, capture_output=True, text=True)


def test_a_plain_copy_passes(tmp_path: Path) -> None:
    named = " or ".join(f"[{name}]" for name in test_numerics_smoke.NAMED)

    done = run_numerics(copy_product(tmp_path), "-k", named)

    assert done.returncode == 0, done.stdout[-3000:]
    assert f"{len(test_numerics_smoke.NAMED)} passed" in done.stdout


@pytest.mark.timeout(600)
@pytest.mark.parametrize("fault", FAULTS)
def test_is_seen(fault: str, tmp_path: Path) -> None:
    name, old, new = FAULTS[fault]
    path = copy_product(tmp_path) / TRAINER / name
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1, f"{TRAINER}/{name} holds {old!r} {text.count(old)} times; update FAULTS of this test"
    path.write_text(text.replace(old, new), encoding="utf-8")

    done = run_numerics(path.parents[2])

    assert done.returncode == 1, f"nothing saw it:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
    failed = re.search(r"^FAILED .*\[(.*?)\]", done.stdout, re.MULTILINE)
    differed = re.search(r"^E +(\w+Error: .*)$", done.stdout, re.MULTILINE)
    assert failed is not None
    assert differed is not None
    print(f"| {fault} | {failed[1]} | {differed[1]} |")  # noqa: T201
