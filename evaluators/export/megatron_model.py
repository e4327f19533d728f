"""A problem's model as Megatron-LM's arguments."""

from __future__ import annotations

from frontrunner.spaces.model import Model
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import Recipe

ATTENTIONS = {"flash": "flash", "math": "unfused"}


def model_arguments(problem: Problem, recipe: Recipe) -> tuple[str, ...]:
    """The model, its sequence length and precision.

    Megatron-LM pads the vocabulary to a multiple of its divisor times tensor_parallel: the divisor is chosen so that
    it pads as we do.
    """
    model = problem.model
    words = [
        *("--num-layers", model.layers, "--hidden-size", model.hidden, "--ffn-hidden-size", model.ffn_hidden),
        *("--num-attention-heads", model.heads, "--seq-length", problem.sequence_length),
        *("--max-position-embeddings", max(model.max_positions or 0, problem.sequence_length)),
        *("--make-vocab-size-divisible-by", model.padded_vocabulary // recipe.tensor_parallel),
        "--disable-bias-linear",
        *("--attention-backend", ATTENTIONS[model.attention]),
    ]
    if model.kv_heads != model.heads:
        words += ["--group-query-attention", "--num-query-groups", model.kv_heads]
    words += _form_arguments(model)
    if problem.precision != "fp32":
        words.append(f"--{problem.precision}")
    return tuple(str(word) for word in words)


def _form_arguments(model: Model) -> list[str]:
    words = ["--position-embedding-type", {"rotary": "rope", "learned": "learned_absolute"}[model.positions]]
    words += ["--normalization", {"layernorm": "LayerNorm", "rmsnorm": "RMSNorm"}[model.norm]]
    words += ["--swiglu"] * (model.activation == "swiglu")
    words += ["--untie-embeddings-and-output-weights"] * (not model.tied_embeddings)
    return words
