"""The model: a decoder-only transformer's shape, its parameter count and its floating-point operations."""

from __future__ import annotations

from dataclasses import dataclass

from frontrunner.spaces.errors import bad_value, require_at_least, require_one_of

POSITIONS = ("rotary", "learned")
ACTIVATIONS = ("gelu", "swiglu")
WORDS = {
    "positions": POSITIONS,
    "activation": ACTIVATIONS,
    "norm": ("layernorm", "rmsnorm"),
    "attention": ("flash", "math"),
}


@dataclass(frozen=True, kw_only=True)
class Model:
    """A pre-norm decoder-only transformer.

    Embedding and head have `padded_vocabulary` rows, so that the mathematics is the same for every tensor-parallel
    degree. Where positions are rotary, `max_positions` only states the trained range.
    """

    name: str
    """For people, up to 200 characters; no part of a recipe's identity."""
    layers: int
    """Transformer layers."""
    hidden: int
    """Hidden size."""
    heads: int
    """Attention heads; divides `hidden`."""
    kv_heads: int
    """Groups of keys and values (GQA); divides `heads`, which is the default."""
    ffn_hidden: int
    """Width of the feed-forward part; by default 4 * `hidden`."""
    vocabulary: int
    """The tokenizer's size."""
    vocabulary_multiple: int = 128
    """The embedding's rows are padded up to a multiple of this, for every recipe alike."""
    positions: str = "rotary"
    """`rotary` or `learned`."""
    max_positions: int | None = None
    """Longest sequence; required for learned positions."""
    activation: str = "gelu"
    """`gelu` (two matrices) or `swiglu` (three)."""
    norm: str = "layernorm"
    """`layernorm` or `rmsnorm`."""
    tied_embeddings: bool = False
    """Whether the head shares the embedding's matrix."""
    attention: str = "flash"
    """`flash` or `math`, both through torch's `scaled_dot_product_attention`."""

    def __post_init__(self) -> None:
        for key in ("layers", "hidden", "heads", "kv_heads", "ffn_hidden", "vocabulary_multiple", "max_positions"):
            if (value := getattr(self, key)) is not None:
                require_at_least("model", 1, **{key: value})
        require_at_least("model", 2, vocabulary=self.vocabulary)
        for key, known in WORDS.items():
            require_one_of("model", key, getattr(self, key), known)
        if self.hidden % self.heads:
            raise bad_value("model.heads", self.heads, f"a divisor of model.hidden = {self.hidden}")
        if self.heads % self.kv_heads:
            raise bad_value("model.kv_heads", self.kv_heads, f"a divisor of model.heads = {self.heads}")
        if self.positions == "rotary" and self.head_dim % 2:
            expected = f"an even hidden / heads for rotary positions, not {self.head_dim}"
            raise bad_value("model.heads", self.heads, expected)

    @property
    def head_dim(self) -> int:
        """Hidden / heads."""
        return self.hidden // self.heads

    @property
    def kv_hidden(self) -> int:
        """kv_heads * head_dim: the width of the keys, and of the values."""
        return self.kv_heads * self.head_dim

    @property
    def padded_vocabulary(self) -> int:
        """The vocabulary rounded up to a multiple of `vocabulary_multiple`."""
        return -(-self.vocabulary // self.vocabulary_multiple) * self.vocabulary_multiple

    @property
    def ffn_matrices(self) -> int:
        """2 for GELU (up, down), 3 for SwiGLU (gate, up, down)."""
        return 3 if self.activation == "swiglu" else 2

    @property
    def matmul_parameters_per_layer(self) -> int:
        """Hidden * (2 hidden + 2 kv_hidden + ffn_matrices * ffn_hidden): q and o, k and v, the feed-forward."""
        return self.hidden * (2 * self.hidden + 2 * self.kv_hidden + self.ffn_matrices * self.ffn_hidden)

    @property
    def parameters(self) -> int:
        """All trained parameters: matrices, norms (no biases), embedding, head unless tied, learned positions."""
        norm_width = self.hidden * (2 if self.norm == "layernorm" else 1)
        layers = self.layers * (self.matmul_parameters_per_layer + 2 * norm_width)
        embedding = self.padded_vocabulary * self.hidden * (1 if self.tied_embeddings else 2)
        positions = (self.max_positions or 0) * self.hidden if self.positions == "learned" else 0
        return layers + embedding + positions + norm_width

    def layer_flops_per_token(self, sequence_length: int) -> float:
        """Forward FLOPs of one layer for one token: 2 per matrix parameter, plus 4 * sequence_length * hidden.

        The second term is the attention's two products over the whole sequence: as in PaLM (arXiv 2204.02311,
        appendix B) and Megatron-LM (arXiv 2104.04473, section 5.1), the causal mask is not credited.
        """
        return 2.0 * self.matmul_parameters_per_layer + 4.0 * sequence_length * self.hidden

    def head_flops_per_token(self) -> float:
        """Forward FLOPs of the output head for one token: 2 * hidden * padded_vocabulary."""
        return 2.0 * self.hidden * self.padded_vocabulary

    def model_flops_per_token(self, sequence_length: int) -> float:
        """FLOPs that training one token needs: forward, and twice that backward; recompute is not counted."""
        return 3.0 * (self.layers * self.layer_flops_per_token(sequence_length) + self.head_flops_per_token())

    def feed_forward_flops_per_token(self) -> float:
        """Forward FLOPs of one layer's feed-forward part for one token: 2 * ffn_matrices * hidden * ffn_hidden."""
        return 2.0 * self.ffn_matrices * self.hidden * self.ffn_hidden

    def hardware_flops_per_token(
        self, sequence_length: int, recompute: str, *, tiled_feed_forward: bool = False, chunked_loss: bool = False
    ) -> float:
        """FLOPs that the devices execute: `model_flops_per_token`, plus what is computed a second time.

        That is one more forward of every layer for recompute "full" ("selective" repeats no matrix product or
        attention), of every feed-forward part where it is tiled, and of the head where the loss is chunked. A
        tiled feed-forward part under full recompute runs forward three times.
        """
        again = 0.0
        if recompute == "full":
            again += self.layers * self.layer_flops_per_token(sequence_length)
        if tiled_feed_forward:
            again += self.layers * self.feed_forward_flops_per_token()
        if chunked_loss:
            again += self.head_flops_per_token()
        return self.model_flops_per_token(sequence_length) + again
