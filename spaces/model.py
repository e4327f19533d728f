"""The model: a decoder-only transformer's shape, its parameter count and its floating-point operations."""

from __future__ import annotations

from dataclasses import dataclass

from frontrunner.spaces.errors import bad_value, require_above_zero, require_at_least, require_one_of

POSITIONS = ("rotary", "learned")
ACTIVATIONS = ("gelu", "gelu_tanh", "swiglu")
WORDS = {
    "positions": POSITIONS,
    "activation": ACTIVATIONS,
    "norm": ("layernorm", "rmsnorm"),
    "biases": ("none", "qkv", "all"),
    "attention": ("flash", "math"),
}


@dataclass(frozen=True, kw_only=True)
class RotaryScaling:
    """Llama 3.1's scaling of rotary frequencies, for sequences longer than those of the first training.

    Wavelengths above original_positions / low_frequency_factor are `factor` times as long, those below
    original_positions / high_frequency_factor stay, and those between are interpolated.
    """

    factor: float
    low_frequency_factor: float = 1.0
    high_frequency_factor: float = 4.0
    original_positions: int = 8192

    def __post_init__(self) -> None:
        key = "model.rotary_scaling"
        require_at_least(key, 1, factor=self.factor, original_positions=self.original_positions)
        if not 0 < self.low_frequency_factor < self.high_frequency_factor:
            expected = f"above 0 and below high_frequency_factor = {self.high_frequency_factor}"
            raise bad_value(f"{key}.low_frequency_factor", self.low_frequency_factor, expected)


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
    """Attention heads; divides `hidden` unless `head_width` is given."""
    kv_heads: int
    """Groups of keys and values (GQA); divides `heads`, which is the default."""
    ffn_hidden: int
    """Width of the feed-forward part, or of each expert; by default 4 * `hidden`."""
    vocabulary: int
    """The tokenizer's size."""
    vocabulary_multiple: int = 128
    """The embedding's rows are padded up to a multiple of this, for every recipe alike."""
    positions: str = "rotary"
    """`rotary` or `learned`."""
    max_positions: int | None = None
    """Longest sequence; required for learned positions."""
    rotary_theta: float = 10_000.0
    """Base of the rotary frequencies."""
    rotary_scaling: RotaryScaling | None = None
    """Llama 3.1's scaling of the rotary frequencies, as in `{ factor = 8.0 }`; by default none."""
    activation: str = "gelu"
    """`gelu` or its approximation `gelu_tanh` (two matrices), or `swiglu` (three)."""
    norm: str = "layernorm"
    """`layernorm` or `rmsnorm`."""
    norm_epsilon: float = 1e-5
    """Added to the variance in each norm."""
    biases: str = "none"
    """`none`, `qkv` (of query, key and value) or `all` (of every matrix but embedding and head, and of LayerNorm)."""
    head_width: int | None = None
    """Width of an attention head; by default `hidden` / `heads`."""
    qk_norm: bool = False
    """Whether a norm, shared by all heads, is applied to each head's query and key, before any rotation."""
    tied_embeddings: bool = False
    """Whether the head shares the embedding's matrix."""
    experts: int = 0
    """Experts of each layer's feed-forward part (a mixture of experts); 0 is a dense model."""
    experts_per_token: int = 0
    """Experts that a token goes through: those to which the router gives the highest probabilities."""
    renormalized_experts: bool = True
    """Whether the probabilities of a token's experts are scaled so that they add up to 1."""
    attention_window: int | None = None
    """Positions that attention looks back on; sequences must fit in it. By default all."""
    attention: str = "flash"
    """`flash` or `math`, both through torch's `scaled_dot_product_attention`."""

    def __post_init__(self) -> None:
        counts = ("layers", "hidden", "heads", "kv_heads", "ffn_hidden", "vocabulary_multiple", "max_positions")
        for key in (*counts, "head_width", "attention_window"):
            if (value := getattr(self, key)) is not None:
                require_at_least("model", 1, **{key: value})
        require_at_least("model", 2, vocabulary=self.vocabulary)
        for key, known in WORDS.items():
            require_one_of("model", key, getattr(self, key), known)
        require_above_zero("model.rotary_theta", self.rotary_theta, "above 0")
        require_above_zero("model.norm_epsilon", self.norm_epsilon, "above 0")
        self._check_experts()
        if self.head_width is None and self.hidden % self.heads:
            raise bad_value("model.heads", self.heads, f"a divisor of model.hidden = {self.hidden}")
        if self.head_width == self.hidden / self.heads:
            object.__setattr__(self, "head_width", None)  # stated or not, it is the same model with the same ids
        if self.heads % self.kv_heads:
            raise bad_value("model.kv_heads", self.kv_heads, f"a divisor of model.heads = {self.heads}")
        if self.positions == "rotary" and self.head_dim % 2:
            if self.head_width is not None:
                raise bad_value("model.head_width", self.head_width, "an even number for rotary positions")
            expected = f"an even hidden / heads for rotary positions, not {self.head_dim}"
            raise bad_value("model.heads", self.heads, expected)

    def _check_experts(self) -> None:
        require_at_least("model", 0, experts=self.experts, experts_per_token=self.experts_per_token)
        if not self.experts:
            if self.experts_per_token:
                raise bad_value("model.experts", 0, f"some, of which a token goes through {self.experts_per_token}")
            return
        if not 1 <= self.experts_per_token <= self.experts:
            expected = f"at least 1 and at most model.experts = {self.experts}"
            raise bad_value("model.experts_per_token", self.experts_per_token, expected)
        if self.biases == "all":
            raise bad_value("model.biases", self.biases, "none or qkv: experts have no biases")

    @property
    def head_dim(self) -> int:
        """Head_width, by default hidden / heads."""
        return self.head_width or self.hidden // self.heads

    @property
    def q_hidden(self) -> int:
        """Heads * head_dim: the width of the queries, and of what attention returns."""
        return self.heads * self.head_dim

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
        """2 for either GELU (up, down), 3 for SwiGLU (gate, up, down)."""
        return 3 if self.activation == "swiglu" else 2

    @property
    def matmul_parameters_per_layer(self) -> int:
        """Hidden * (2 q_hidden + 2 kv_hidden + ffn_matrices * ffn_hidden): q and o, k and v, the feed-forward.

        Of a mixture of experts each has the feed-forward's matrices, and the router hidden * experts.
        """
        return self._matmul_parameters(max(1, self.experts))

    @property
    def active_matmul_parameters_per_layer(self) -> int:
        """Those of `matmul_parameters_per_layer` that one token goes through."""
        return self._matmul_parameters(max(1, self.experts_per_token))

    def _matmul_parameters(self, experts: int) -> int:
        feed_forward = experts * self.ffn_matrices * self.ffn_hidden + self.experts
        return self.hidden * (2 * self.q_hidden + 2 * self.kv_hidden + feed_forward)

    @property
    def active_parameters(self) -> int:
        """All parameters but those of experts that a token does not go through."""
        idle = self.matmul_parameters_per_layer - self.active_matmul_parameters_per_layer
        return self.parameters - self.layers * idle

    @property
    def parameters(self) -> int:
        """All trained parameters: matrices, biases, norms, embedding, head unless tied, learned positions.

        Embedding and head count with `padded_vocabulary` rows, learned positions with `max_positions`.
        """
        has_all = self.biases == "all"
        biases = self.q_hidden + 2 * self.kv_hidden if self.biases != "none" else 0
        biases += 2 * self.hidden + (self.ffn_matrices - 1) * self.ffn_hidden if has_all else 0
        per_norm = 2 if has_all and self.norm == "layernorm" else 1
        norms = per_norm * (2 * self.hidden + (2 * self.head_dim if self.qk_norm else 0))
        layers = self.layers * (self.matmul_parameters_per_layer + biases + norms)
        embedding = self.padded_vocabulary * self.hidden * (1 if self.tied_embeddings else 2)
        positions = (self.max_positions or 0) * self.hidden if self.positions == "learned" else 0
        return layers + embedding + positions + per_norm * self.hidden

    def attention_flops_per_token(self, sequence_length: float) -> float:
        """Forward FLOPs of one layer's attention for one token: 4 * sequence_length * q_hidden.

        These are the two products over the whole sequence: as in PaLM (arXiv 2204.02311, appendix B) and Megatron-LM
        (arXiv 2104.04473, section 5.1), the causal mask is not credited.
        """
        return 4.0 * sequence_length * self.q_hidden

    def layer_flops_per_token(self, sequence_length: float) -> float:
        """Forward FLOPs of one layer for one token: 2 per matrix parameter that it goes through, plus its attention."""
        return 2.0 * self.active_matmul_parameters_per_layer + self.attention_flops_per_token(sequence_length)

    def head_flops_per_token(self) -> float:
        """Forward FLOPs of the output head for one token: 2 * hidden * padded_vocabulary."""
        return 2.0 * self.hidden * self.padded_vocabulary

    def model_flops_per_token(self, sequence_length: float) -> float:
        """FLOPs that training one token needs: forward, and twice that backward; recompute is not counted.

        Megatron-LM's log counts half of attention, for the causal mask: the count for half of `sequence_length`.
        """
        return 3.0 * (self.layers * self.layer_flops_per_token(sequence_length) + self.head_flops_per_token())

    def feed_forward_flops_per_token(self) -> float:
        """Forward FLOPs of one layer's feed-forward part for one token: 2 * ffn_matrices * hidden * ffn_hidden.

        With experts these are those of each that the token goes through, and the router's.
        """
        experts = max(1, self.experts_per_token)
        return 2.0 * self.hidden * (experts * self.ffn_matrices * self.ffn_hidden + self.experts)

    def hardware_flops_per_token(
        self, sequence_length: float, recompute: str, *, feed_forward_tiles: int = 1, chunked_loss: bool = False
    ) -> float:
        """FLOPs that the devices execute, as torch counts them: `model_flops_per_token`, plus what is computed again.

        That is the scores, one of attention's two products, in the backward pass of flash attention (arXiv 2205.14135,
        algorithm 4); all of math attention for recompute "selective", which keeps the other products; every layer but
        its last product, where torch's recompute stops, for "full"; every tiled feed-forward part but its last
        product; and the head where the loss is chunked. Under "full", recompute also runs all tiles but one before
        they are run again one by one.
        """
        attention = self.attention_flops_per_token(sequence_length)
        feed_forward = self.feed_forward_flops_per_token()
        # Experts' last products are kept, for the gradients of what the router multiplies them by.
        without_last = feed_forward - (0.0 if self.experts else 2.0 * self.hidden * self.ffn_hidden)
        again = attention / 2 if self.attention == "flash" else 0.0
        if recompute == "full":
            again += self.layer_flops_per_token(sequence_length) - feed_forward
            if feed_forward_tiles == 1:
                again += without_last
            else:
                again += feed_forward * (feed_forward_tiles - 1) / feed_forward_tiles
        elif recompute == "selective" and self.attention == "math":
            again += attention
        if feed_forward_tiles > 1:
            again += without_last
        head = self.head_flops_per_token() if chunked_loss else 0.0
        return self.model_flops_per_token(sequence_length) + self.layers * again + head
