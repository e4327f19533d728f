"""What torchtitan's arguments may say that no recipe, or another problem, has."""

from __future__ import annotations

from frontrunner.evaluators.export import megatron
from frontrunner.evaluators.export.given import number, refuse_other_problem
from frontrunner.spaces.errors import InvalidInput, bad_value
from frontrunner.spaces.problem import Problem

VERSION = "0.3"
PRECISIONS = {"bf16": "bfloat16", "fp32": "float32"}
REFUSED = {
    "--parallelism.expert-parallel-degree": "experts",
    "--model.converters": "converted layers, as of 8-bit arithmetic",
}
QUANTISED = ("--quantize.", "--float8.", "--mx.")


def refuse_other_run(problem: Problem, said: megatron.Options) -> None:
    """Raise `InvalidInput` for another length or precision, and for what no recipe has.

    `training.dtype` is that of the weights and states, which a recipe keeps in fp32.
    """
    megatron.refuse(said, REFUSED)
    for name, words in said.items():
        if name.startswith(QUANTISED) and words[:1] not in (("False",), ("false",)) and ".no-enable" not in name:
            raise InvalidInput(f"{name}: no recipe of ours has 8-bit arithmetic")
    length, weights, computed = "--training.seq-len", "--training.dtype", "--training.mixed-precision-param"
    refuse_other_problem({length: (number(length, said[length]), problem.sequence_length)} if length in said else {})
    if said.get(weights, ("float32",)) != ("float32",):
        raise bad_value(
            weights, " ".join(said[weights]), "float32: weights and states in less than that are no recipe's"
        )
    precision = " ".join(said.get(computed, ("bfloat16",)))
    refuse_other_problem({computed: (precision, PRECISIONS.get(problem.precision))})


def refuse_tokens(problem: Problem, batch: int | None, global_batch: int | None) -> None:
    """Raise `InvalidInput` for a local batch that can only count tokens, as later versions of torchtitan do."""
    most = global_batch or problem.global_batch.maximum
    if batch is not None and batch > most and batch % problem.sequence_length == 0:
        raise bad_value(
            "--training.local-batch-size",
            batch,
            f"at most {most} sequences, the global batch",
            hint=f"torchtitan after {VERSION} counts tokens: {batch // problem.sequence_length} sequences",
        )
