"""The weights of published models, each made of the trainer's: their names and forms in files of
`transformers`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from frontrunner.evaluators.trainer.model import Gpt
from frontrunner.spaces.hugging_face import ARCHITECTURES
from frontrunner.spaces.model.attention import GroupedAttention, LatentAttention
from frontrunner.spaces.model.feed_forward import MixtureOfExperts
from frontrunner.spaces.model.model import Model

_QKV = ("query", "key", "value")


@dataclass(frozen=True, kw_only=True)
class Weight:
    """A tensor of a published model: `make` returns it of the trainer's `sources`, by their names
    in checkpoints.
    """

    name: str
    sources: tuple[str, ...]
    make: Callable[..., Tensor]


def weights(kind: str, model: Model) -> list[Weight]:
    """Return all weights of a model written as `kind`, one of `hugging_face.CLASSES`."""
    if ARCHITECTURES[kind].model.get("biases") == "all":
        model = model.with_keys(biases="all")
    make = {"gpt2": _gpt2, "gpt_neox": _neox}.get(kind, _llama)
    return list(make(kind, model))


def source_shapes(kind: str, model: Model, *, sequence_length: int) -> dict[str, torch.Size]:
    """Return the shapes of all sources of `weights`, those of biases that the model lacks
    included.
    """
    shapes = shapes_of(model, sequence_length=sequence_length)
    if ARCHITECTURES[kind].model.get("biases") == "all" and model.attention.biases != "all":
        with_biases = model.with_keys(biases="all")
        shapes = shapes_of(with_biases, sequence_length=sequence_length) | shapes
    return shapes


def shapes_of(model: Model, *, sequence_length: int) -> dict[str, torch.Size]:
    """Return the shapes of the model's tensors, by their names in checkpoints."""
    with torch.device("meta"):
        built = Gpt(model, sequence_length=sequence_length, layers=range(len(model.layers)))
    found = {f"model.{name}": parameter.shape for name, parameter in built.named_parameters()}
    return found | {
        f"balance.{name}": one.balance.bias.shape
        for name, one in built.mixtures.items()
        if one.balance
    }


def _one(name: str, source: str, make: Callable[[Tensor], Tensor] = lambda whole: whole) -> Weight:
    return Weight(name=name, sources=(f"model.{source}",), make=make)


def _of(name: str, sources: list[str], make: Callable[..., Tensor]) -> Weight:
    return Weight(name=name, sources=tuple(f"model.{source}" for source in sources), make=make)


def _ends(model: Model, embedding: str) -> Iterator[Weight]:
    """The embedding, and the head where it is not the same; rows that only pad the vocabulary are
    left out.
    """

    def unpadded(whole: Tensor) -> Tensor:
        return whole[: model.embedding.vocabulary]

    yield _one(embedding, "embedding.tokens.weight", unpadded)
    if not model.head.tied:
        yield _one(
            "embed_out.weight" if "embed_in" in embedding else "lm_head.weight",
            "head.weight",
            unpadded,
        )


def _gpt2(_kind: str, model: Model) -> Iterator[Weight]:
    """GPT-2's: matrices transposed, with query, key and value joined."""

    def joined(*parts: Tensor) -> Tensor:
        return torch.cat(parts).t()

    yield from _ends(model, "transformer.wte.weight")
    yield _one("transformer.wpe.weight", "embedding.positions.weight")
    names = {
        "attn.c_proj": "attention.output",
        "mlp.c_fc": "feed_forward.up",
        "mlp.c_proj": "feed_forward.down",
    }
    norms = {"ln_1": "attention_norm", "ln_2": "feed_forward_norm"}
    for form in ("weight", "bias"):
        yield _one(f"transformer.ln_f.{form}", f"norm.{form}")
        for layer in range(len(model.layers)):
            here, there = f"blocks.{layer}", f"transformer.h.{layer}"
            yield _of(
                f"{there}.attn.c_attn.{form}",
                [f"{here}.attention.{part}.{form}" for part in _QKV],
                joined,
            )
            yield from (
                _one(f"{there}.{name}.{form}", f"{here}.{own}.{form}", joined)
                for name, own in names.items()
            )
            yield from (
                _one(f"{there}.{name}.{form}", f"{here}.{own}.{form}")
                for name, own in norms.items()
            )


def _neox(_kind: str, model: Model) -> Iterator[Weight]:
    """GPT-NeoX's: query, key and value of each head beside one another."""

    def by_head(*parts: Tensor) -> Tensor:
        heads = [
            torch.unflatten(part, 0, (model.attention.heads, model.attention.head_dim))
            for part in parts
        ]
        return torch.stack(heads, dim=1).flatten(0, 2)

    yield from _ends(model, "gpt_neox.embed_in.weight")
    names = {
        "input_layernorm": "attention_norm",
        "post_attention_layernorm": "feed_forward_norm",
        "attention.dense": "attention.output",
        "mlp.dense_h_to_4h": "feed_forward.up",
        "mlp.dense_4h_to_h": "feed_forward.down",
    }
    for form in ("weight", "bias"):
        yield _one(f"gpt_neox.final_layer_norm.{form}", f"norm.{form}")
        for layer in range(len(model.layers)):
            here, there = f"blocks.{layer}", f"gpt_neox.layers.{layer}"
            sources = [f"{here}.attention.{part}.{form}" for part in _QKV]
            yield _of(f"{there}.attention.query_key_value.{form}", sources, by_head)
            yield from (
                _one(f"{there}.{name}.{form}", f"{here}.{own}.{form}")
                for name, own in names.items()
            )


def _llama(kind: str, model: Model) -> Iterator[Weight]:  # noqa: C901 - a list of names
    """Those of Llama, Mistral, Qwen, DeepSeek, Gemma and gpt-oss."""
    yield from _ends(model, "model.embed_tokens.weight")
    has_post_norms = model.layers[0].post_norms

    def normed(name: str, source: str) -> Weight:
        # Gemma keeps a norm's weight without the 1 that is added to it.
        return _one(
            name, source, (lambda whole: whole - 1) if has_post_norms else (lambda whole: whole)
        )

    yield normed("model.norm.weight", "norm.weight")
    norms = {"input_layernorm": "attention_norm", "post_attention_layernorm": "feed_forward_norm"}
    if has_post_norms:
        norms |= {
            "post_attention_layernorm": "attention_output_norm",
            "pre_feedforward_layernorm": "feed_forward_norm",
        }
        norms["post_feedforward_layernorm"] = "feed_forward_output_norm"
    if model.attention.qk_norm:
        norms |= {
            f"self_attn.{part[0]}_norm": f"attention.{part}_norm" for part in ("query", "key")
        }
    for number, layer in enumerate(model.layers):
        here, there = f"blocks.{number}", f"model.layers.{number}"
        attention, mixture = layer.attention, layer.mixture
        yield from (
            normed(f"{there}.{name}.weight", f"{here}.{own}.weight") for name, own in norms.items()
        )
        names = {"self_attn.o_proj.weight": "attention.output.weight"}
        if isinstance(attention, GroupedAttention):
            names |= {
                f"self_attn.{part[0]}_proj.weight": f"attention.{part}.weight" for part in _QKV
            }
        if attention.biases != "none":
            names |= {f"self_attn.{part[0]}_proj.bias": f"attention.{part}.bias" for part in _QKV}
        if attention.biases == "all":
            names["self_attn.o_proj.bias"] = "attention.output.bias"
        if attention.sinks:
            names["self_attn.sinks"] = "attention.sinks.weight"
        if mixture is None:
            names |= {
                f"mlp.{part}_proj.weight": f"feed_forward.{part}.weight"
                for part in ("gate", "up", "down")
            }
        yield from (_one(f"{there}.{name}", f"{here}.{own}") for name, own in names.items())
        if isinstance(attention, LatentAttention):
            yield from _latent(f"{here}.attention", f"{there}.self_attn", attention)
        if mixture is not None:
            yield from _experts(kind, f"{here}.feed_forward", there, mixture)
        if mixture is not None and mixture.balancing == "bias":
            name, source = f"{there}.mlp.gate.e_score_correction_bias", f"balance.{here}"
            yield Weight(name=name, sources=(source,), make=lambda whole: whole)


def _latent(here: str, there: str, attention: LatentAttention) -> Iterator[Weight]:
    """Latent attention's, by the names of DeepSeek, whose rotated pairs are neighbors where ours
    are halves.
    """

    def paired(rows: Tensor) -> Tensor:
        width = attention.rotated_width
        plain, first, second = torch.split(rows, [rows.shape[0] - width, width // 2, width // 2])
        return torch.cat([plain, torch.stack([first, second], dim=1).flatten(0, 1)])

    def paired_by_head(whole: Tensor) -> Tensor:
        return torch.cat(
            [paired(head) for head in torch.unflatten(whole, 0, (attention.heads, -1))]
        )

    names = {"kv_a_layernorm": "key_value_norm", "kv_b_proj": "key_value"}
    if attention.query_rank:
        names |= {"q_a_proj": "query_down", "q_a_layernorm": "query_norm"}
    yield from (
        _one(f"{there}.{name}.weight", f"{here}.{own}.weight") for name, own in names.items()
    )
    yield _one(f"{there}.kv_a_proj_with_mqa.weight", f"{here}.key_value_down.weight", paired)
    query = "q_b_proj" if attention.query_rank else "q_proj"
    yield _one(f"{there}.{query}.weight", f"{here}.query.weight", paired_by_head)


def _experts(kind: str, here: str, layer: str, mixture: MixtureOfExperts) -> Iterator[Weight]:
    """A layer's experts, router and shared part. Of all experts one matrix: [E * D, F], as
    `trainer.parts.experts.Experts`.
    """
    if kind == "gpt_oss":  # whose experts stay together, gate and up by turns
        yield from _joined_experts(here, f"{layer}.mlp", mixture)
        return
    form = "{there}.mlp.experts.{expert}.{part}_proj.weight"
    names, router = {part: part for part in ("gate", "up", "down")}, "mlp.gate"
    if kind == "mixtral":
        form = "{there}.block_sparse_moe.experts.{expert}.{part}.weight"
        names, router = {"gate": "w1", "up": "w3", "down": "w2"}, "block_sparse_moe.gate"
    yield _one(f"{layer}.{router}.weight", f"{here}.router.weight")
    for expert in range(mixture.experts):
        for part, theirs in names.items():

            def own(whole: Tensor, *, number: int = expert, part: str = part) -> Tensor:
                matrix = torch.unflatten(whole, 0, (mixture.experts, -1))[number]
                return matrix.t() if part != "down" else matrix

            name = form.format(there=layer, expert=expert, part=theirs)
            yield _one(name, f"{here}.experts.{part}.weight", own)
    for part in ("gate", "up", "down") if mixture.shared_experts else ():
        yield _one(f"{layer}.mlp.shared_experts.{part}_proj.weight", f"{here}.shared.{part}.weight")


def _joined_experts(here: str, there: str, mixture: MixtureOfExperts) -> Iterator[Weight]:
    def by_expert(whole: Tensor) -> Tensor:
        return torch.unflatten(whole, 0, (mixture.experts, -1))

    def by_turns(gate: Tensor, up: Tensor) -> Tensor:
        return torch.stack([by_expert(gate), by_expert(up)], dim=-1).flatten(2)

    def biases_by_turns(gate: Tensor, up: Tensor) -> Tensor:
        return torch.stack([gate, up], dim=-1).flatten(1)

    both = [f"{here}.experts.{part}" for part in ("gate", "up")]
    yield _of(f"{there}.experts.gate_up_proj", [f"{name}.weight" for name in both], by_turns)
    yield _of(
        f"{there}.experts.gate_up_proj_bias", [f"{name}.bias" for name in both], biases_by_turns
    )
    yield _one(
        f"{there}.experts.down_proj", f"{here}.experts.down.weight", lambda it: by_expert(it).mT
    )
    yield _one(f"{there}.experts.down_proj_bias", f"{here}.experts.down.bias")
    yield from (
        _one(f"{there}.router.{form}", f"{here}.router.{form}") for form in ("weight", "bias")
    )
