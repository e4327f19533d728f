"""The model: a decoder-only transformer's shape, its parameter count and its floating-point
operations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

from frontrunner.spaces.errors import (
    bad_value,
    require_above_zero,
    require_at_least,
    require_one_of,
)

MOST = 10_000
"""Layers, and experts of one."""
POSITIONS = ("rotary", "learned")
ROTARY_SCALINGS = ("llama3", "yarn", "linear")
ACTIVATIONS = ("gelu", "gelu_tanh", "relu", "relu2", "swiglu", "swiglu_clamped", "geglu")
GATED = ("swiglu", "swiglu_clamped", "geglu")
WORDS = {
    "positions": POSITIONS,
    "activation": ACTIVATIONS,
    "norm": ("layernorm", "rmsnorm"),
    "biases": ("none", "qkv", "all"),
    "attention": ("flash", "math"),
    "routing": ("learned", "uniform"),
    "router": ("softmax", "sigmoid"),
    "balancing": ("none", "loss", "bias"),
}
OF_EXPERTS = (
    "shared_experts", "dense_layers", "dense_ffn_hidden", "router", "router_groups",
    "router_groups_kept",
    "routed_scale", "balancing", "balancing_weight", "routing",
)  # fmt: skip
"""Keys of the model that say something of experts only, besides their numbers."""


@dataclass(frozen=True, kw_only=True)
class RotaryScaling:
    """A scaling of rotary frequencies, for sequences longer than the `original_positions` of the
    first training.

    `linear` makes all wavelengths `factor` times as long. `llama3` (Llama 3.1) leaves those below
    original_positions / high_frequency_factor, scales those above original_positions /
    low_frequency_factor, and interpolates between. `yarn` (arXiv 2309.00071) leaves those that turn
    `beta_fast` times and more over the original positions, scales those that turn `beta_slow` times
    and less, and interpolates by their number, from and to whole numbers if it is to `truncate`; it
    also multiplies cosines and sines by `attention_factor`, by default 0.1 ln(factor) + 1. Latent
    attention also multiplies its scores by `score_factor`.
    """

    factor: float
    kind: str = "llama3"
    low_frequency_factor: float = 1.0
    high_frequency_factor: float = 4.0
    original_positions: int = 8192
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float | None = None
    score_factor: float = 1.0

    def __post_init__(self) -> None:
        key = "model.rotary_scaling"
        require_at_least(key, 1, factor=self.factor, original_positions=self.original_positions)
        require_one_of(key, "kind", self.kind, ROTARY_SCALINGS)
        for low, high in (
            ("low_frequency_factor", "high_frequency_factor"),
            ("beta_slow", "beta_fast"),
        ):
            if not 0 < getattr(self, low) < getattr(self, high):
                expected = f"above 0 and below {high} = {getattr(self, high)}"
                raise bad_value(f"{key}.{low}", getattr(self, low), expected)
        require_above_zero(f"{key}.attention_factor", self.magnitude, "above 0")
        require_above_zero(f"{key}.score_factor", self.score_factor, "above 0")

    @property
    def magnitude(self) -> float:
        """What cosines and sines are multiplied by."""
        if self.kind != "yarn":
            return 1.0
        return (
            0.1 * math.log(self.factor) + 1
            if self.attention_factor is None
            else self.attention_factor
        )


def attended(sequence_length: float, window: float, full_share: float = 0.0) -> float:
    """Return the positions of attention that a token's FLOPs count: the sequence's in the share of
    layers that is full.

    Of a window of w that leaves some out, twice the mean of what window and causal mask leave, w *
    (2 - w / sequence_length), as the sequence is twice what the mask leaves of it.
    """
    window = min(window, sequence_length)
    windowed = window * (2 - window / sequence_length)
    return windowed + full_share * (sequence_length - windowed)


@dataclass(frozen=True, kw_only=True)
class Model:
    """A pre-norm decoder-only transformer.

    Embedding and head have `padded_vocabulary` rows, so that the mathematics is the same for every
    tensor-parallel degree. Where positions are rotary, `max_positions` only states the trained
    range.
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
    """Scaling of the rotary frequencies, as in `{ factor = 8.0 }`, by default none; of kind
    `llama3`, which is Llama 3.1's, `yarn` or `linear`.
    """
    activation: str = "gelu"
    """`gelu` or its approximation `gelu_tanh`, `relu`, or `relu2`, its square (Nemotron), of two
    matrices; or one that gates (three): `swiglu`, gpt-oss's `swiglu_clamped` or `geglu`, by
    `gelu_tanh` (Gemma).
    """
    norm: str = "layernorm"
    """`layernorm` or `rmsnorm`."""
    norm_epsilon: float = 1e-5
    """Added to the variance in each norm."""
    biases: str = "none"
    """`none`, `qkv` (of query, key and value) or `all` (of every matrix but embedding and head, and
    of LayerNorm).
    """
    head_width: int | None = None
    """Width of an attention head; by default `hidden` / `heads`. Of latent attention the part
    without positions.
    """
    key_value_rank: int | None = None
    """Width of the latent vector from which keys and values of all heads are made (multi-head
    latent attention).
    """
    query_rank: int | None = None
    """Width of the latent vector from which queries are made; by default they are made from the
    layer's input.
    """
    rotary_width: int = 0
    """Values of each query and key that are rotated, their first ones; by default all. Of latent
    attention those of a query that come besides, and of the one rotated part that all keys share.
    """
    value_width: int | None = None
    """Of latent attention: width of a head's value; by default `head_width`."""
    qk_norm: bool = False
    """Whether a norm, shared by all heads, is applied to each head's query and key, before any
    rotation.
    """
    tied_embeddings: bool = False
    """Whether the head shares the embedding's matrix."""
    experts: int = 0
    """Experts of each layer's feed-forward part (a mixture of experts); 0 is a dense model."""
    experts_per_token: int = 0
    """Experts that a token goes through: those to which the router gives the highest
    probabilities.
    """
    renormalized_experts: bool = True
    """Whether the probabilities of a token's experts are scaled so that they add up to 1."""
    routing: str = "learned"
    """What gives a probe's tokens their experts: the router with its random first weights
    (`learned`), or turns (`uniform`), so that all get equally many; the router still weighs what
    they find. Replays train `learned`.
    """
    shared_experts: int = 0
    """Experts that every token goes through besides, as wide as the others; they are one
    feed-forward part.
    """
    dense_layers: int = 0
    """Leading layers without experts."""
    dense_ffn_hidden: int | None = None
    """Width of the feed-forward part of these layers."""
    router: str = "softmax"
    """What makes probabilities of the router's outputs: `softmax` over the experts, or `sigmoid` of
    each.
    """
    router_groups: int = 1
    """Groups of neighboring experts, of which a token's may come from `router_groups_kept`: those
    of the highest expert (`softmax`), or of the highest sum of two (`sigmoid`).
    """
    router_groups_kept: int = 1
    """Groups from which a token's experts come."""
    routed_scale: float = 1.0
    """What the probabilities of a token's experts are multiplied by."""
    balancing: str = "none"
    """What evens out the experts' tokens: `none`, a `loss` of each sequence, or a `bias` that only
    the choice sees.
    """
    balancing_weight: float = 0.001
    """The auxiliary loss's coefficient, or by how much a step moves an expert's bias up or down."""
    mtp_layers: int = 0
    """Layers of multi-token prediction (MTP), after the last: each predicts one token further
    ahead, by a projection of its own and the shared head. Other trainers train them; the built-in
    one does not.
    """
    attention_window: int | None = None
    """Positions that a token attends to, its own the last of them; by default all up to its own."""
    full_attention_every: int = 0
    """Of so many layers the last attends to all positions in spite of `attention_window`; 0: no
    layer does.
    """
    window_rotary_theta: float | None = None
    """Base of the rotary frequencies, unscaled, of layers with a window; by default as in the
    others.
    """
    attention_sinks: bool = False
    """Whether each head has a learned score that its softmax counts beside the positions'
    (gpt-oss).
    """
    attention_softcap: float | None = None
    """Scores are this times the tanh of what they are over it (Gemma 2). By default they are as
    they are.
    """
    query_scalar: float | None = None
    """Scores are divided by its square root; by default it is a head's width."""
    parallel_residual: bool = False
    """Whether attention and feed-forward part both read a layer's input, and are added to it
    together (GPT-NeoX).
    """
    post_norms: bool = False
    """Whether a norm follows each of them, too, before it is added to its input (Gemma)."""
    scaled_embedding: bool = False
    """Whether embeddings are multiplied by the square root of `hidden` (Gemma)."""
    logits_softcap: float | None = None
    """Logits are this times the tanh of what they are over it (Gemma 2). By default they are as
    they are.
    """
    attention: str = "flash"
    """`flash` or `math`, both through torch's `scaled_dot_product_attention`."""

    def __post_init__(self) -> None:
        counts = (
            "layers",
            "hidden",
            "heads",
            "kv_heads",
            "ffn_hidden",
            "vocabulary_multiple",
            "max_positions",
        )
        for key in (
            *counts,
            "head_width",
            "attention_window",
            "key_value_rank",
            "query_rank",
            "value_width",
        ):
            if (value := getattr(self, key)) is not None:
                require_at_least("model", 1, **{key: value})
        require_at_least("model", 2, vocabulary=self.vocabulary)
        require_at_least("model", 0, mtp_layers=self.mtp_layers)
        self._check_most()
        for key, known in WORDS.items():
            require_one_of("model", key, getattr(self, key), known)
        require_above_zero("model.rotary_theta", self.rotary_theta, "above 0")
        require_above_zero("model.norm_epsilon", self.norm_epsilon, "above 0")
        for key in ("window_rotary_theta", "attention_softcap", "query_scalar", "logits_softcap"):
            if (value := getattr(self, key)) is not None:
                require_above_zero(f"model.{key}", value, "above 0")
        self._check_windows()
        self._check_experts()
        self._check_latent()
        if self.head_width is None and self.hidden % self.heads:
            raise bad_value("model.heads", self.heads, f"a divisor of model.hidden = {self.hidden}")
        if self.head_width == self.hidden / self.heads:
            object.__setattr__(
                self, "head_width", None
            )  # stated or not, it is the same model with the same ids
        if self.query_scalar == self.head_dim:
            object.__setattr__(self, "query_scalar", None)
        if self.heads % self.kv_heads:
            raise bad_value(
                "model.kv_heads", self.kv_heads, f"a divisor of model.heads = {self.heads}"
            )
        self._check_rotary()

    def _check_most(self) -> None:
        for key in ("layers", "experts", "mtp_layers"):
            if getattr(self, key) > MOST:
                raise bad_value(f"model.{key}", getattr(self, key), f"at most {MOST:,}")

    def _check_windows(self) -> None:
        require_at_least("model", 0, full_attention_every=self.full_attention_every)
        if self.attention_window is None:
            for key in ("full_attention_every", "window_rotary_theta"):
                if value := getattr(self, key):
                    raise bad_value(f"model.{key}", value, "none without a model.attention_window")
        special = ("attention_window", "attention_sinks", "attention_softcap", "query_scalar")
        if self.key_value_rank is not None and (
            chosen := [key for key in special if getattr(self, key)]
        ):
            raise bad_value(
                f"model.{chosen[0]}", getattr(self, chosen[0]), "none with latent attention"
            )
        if self.window_rotary_theta is not None and self.positions != "rotary":
            raise bad_value(
                "model.window_rotary_theta",
                self.window_rotary_theta,
                "none without rotary positions",
            )

    def _check_rotary(self) -> None:
        if self.positions != "rotary" or self.key_value_rank is not None:
            return
        if self.rotary_width == self.head_dim:
            object.__setattr__(self, "rotary_width", 0)
        if self.rotary_width % 2 or not 0 <= self.rotary_width <= self.head_dim:
            raise bad_value(
                "model.rotary_width", self.rotary_width, f"an even number, at most {self.head_dim}"
            )
        if self.head_dim % 2 and not self.rotary_width:
            if self.head_width is not None:
                raise bad_value(
                    "model.head_width", self.head_width, "an even number for rotary positions"
                )
            expected = f"an even hidden / heads for rotary positions, not {self.head_dim}"
            raise bad_value("model.heads", self.heads, expected)

    def _check_experts(self) -> None:
        require_at_least("model", 0, experts=self.experts, experts_per_token=self.experts_per_token)
        require_at_least(
            "model", 0, shared_experts=self.shared_experts, dense_layers=self.dense_layers
        )
        require_at_least(
            "model", 1, router_groups=self.router_groups, router_groups_kept=self.router_groups_kept
        )
        require_above_zero("model.routed_scale", self.routed_scale, "above 0")
        require_above_zero("model.balancing_weight", self.balancing_weight, "above 0")
        if not self.experts:
            if self.experts_per_token:
                raise bad_value(
                    "model.experts",
                    0,
                    f"some, of which a token goes through {self.experts_per_token}",
                )
            for f in fields(self):
                if f.name in OF_EXPERTS and (value := getattr(self, f.name)) != f.default:
                    raise bad_value(
                        f"model.{f.name}",
                        value,
                        "no such key: it is of experts, and model.experts is 0",
                    )
            return
        if not 1 <= self.experts_per_token <= self.experts:
            expected = f"at least 1 and at most model.experts = {self.experts}"
            raise bad_value("model.experts_per_token", self.experts_per_token, expected)
        if self.biases == "all" and (self.dense_layers or self.shared_experts):
            raise bad_value(
                "model.biases", self.biases, "none or qkv with dense_layers or shared_experts"
            )
        if self.dense_layers >= self.layers:
            expected = f"fewer than model.layers = {self.layers}: others have the experts"
            raise bad_value("model.dense_layers", self.dense_layers, expected)
        if bool(self.dense_layers) != (self.dense_ffn_hidden is not None):
            expected = (
                "the width of model.dense_layers"
                if self.dense_layers
                else "none without model.dense_layers"
            )
            raise bad_value("model.dense_ffn_hidden", self.dense_ffn_hidden, expected)
        if self.dense_ffn_hidden is not None:
            require_at_least("model", 1, dense_ffn_hidden=self.dense_ffn_hidden)
        self._check_groups()

    def _check_groups(self) -> None:
        groups, kept = self.router_groups, self.router_groups_kept
        if self.experts % groups:
            raise bad_value(
                "model.router_groups", groups, f"a divisor of model.experts = {self.experts}"
            )
        each = self.experts // groups
        if kept > groups or kept * each < self.experts_per_token:
            expected = (
                f"at most {groups} groups, with at least model.experts_per_token ="
                f" {self.experts_per_token} experts"
            )
            raise bad_value("model.router_groups_kept", kept, expected)
        if self.router == "sigmoid" and groups > 1 and each < 2:
            raise bad_value(
                "model.router_groups",
                groups,
                "groups of two experts and more, whose sum ranks a group",
            )

    def _check_latent(self) -> None:
        if self.key_value_rank is None:
            if self.rotary_scaling is not None and self.rotary_scaling.score_factor != 1:
                expected = "1: latent attention alone has it"
                raise bad_value(
                    "model.rotary_scaling.score_factor", self.rotary_scaling.score_factor, expected
                )
            for key in ("query_rank", "value_width"):
                if value := getattr(self, key):
                    raise bad_value(
                        f"model.{key}",
                        value,
                        "none: latent attention has it, and a model.key_value_rank",
                    )
            return
        if self.kv_heads != self.heads:
            expected = (
                f"model.heads = {self.heads}: latent attention makes keys and values of every head"
            )
            raise bad_value("model.kv_heads", self.kv_heads, expected)
        if self.positions != "rotary" or self.rotary_width < 2 or self.rotary_width % 2:
            expected = 'an even number for latent attention, whose positions are "rotary"'
            raise bad_value("model.rotary_width", self.rotary_width, expected)
        if self.qk_norm or self.biases != "none":
            key, value, other = (
                ("qk_norm", True, "false") if self.qk_norm else ("biases", self.biases, "none")
            )
            raise bad_value(f"model.{key}", value, f"{other}, as latent attention has none")
        if (
            self.head_width is None
            and self.hidden % self.heads == 0
            and self.value_width == self.hidden // self.heads
        ):
            object.__setattr__(self, "value_width", None)
        if self.value_width == self.head_width:
            object.__setattr__(
                self, "value_width", None
            )  # stated or not, it is the same model with the same ids

    def require_trained(self) -> None:
        """Raise `InvalidInput` if the built-in trainer does not train such a model."""
        if self.mtp_layers:
            expected = "0 for the built-in trainer, which has no multi-token prediction"
            hint = 'estimates (`frontrunner plan`) and evaluator = "command" take them'
            raise bad_value("model.mtp_layers", self.mtp_layers, expected, hint=hint)

    @property
    def head_dim(self) -> int:
        """Width of a head's query and key: `head_width`, by default hidden / heads; of latent
        attention with its rotated part.
        """
        besides = 0 if self.key_value_rank is None else self.rotary_width
        return (self.head_width or self.hidden // self.heads) + besides

    @property
    def value_dim(self) -> int:
        """Width of a head's value, and of what its attention returns."""
        return self.value_width or self.head_width or self.hidden // self.heads

    @property
    def q_hidden(self) -> int:
        """Heads * head_dim: the width of the queries."""
        return self.heads * self.head_dim

    @property
    def kv_hidden(self) -> int:
        """kv_heads * head_dim: the width of the keys, and of the values but for latent
        attention.
        """
        return self.kv_heads * self.head_dim

    @property
    def mixed_hidden(self) -> int:
        """Heads * value_dim: the width of what attention returns; without latent attention that of
        the queries.
        """
        return self.heads * self.value_dim

    def has_special_attention(self, sequence_length: int) -> bool:
        """Whether attention is of a form that torch's plain kernels lack: a window, sinks or capped
        scores.
        """
        window = self.attention_window or sequence_length
        return (
            window < sequence_length or self.attention_sinks or self.attention_softcap is not None
        )

    def window_of(self, layer: int) -> int | None:
        """The positions that a token attends to in a layer, counted from 0; None: all up to its
        own.
        """
        is_full = self.full_attention_every and (layer + 1) % self.full_attention_every == 0
        return None if is_full else self.attention_window

    @property
    def padded_vocabulary(self) -> int:
        """The vocabulary rounded up to a multiple of `vocabulary_multiple`."""
        return -(-self.vocabulary // self.vocabulary_multiple) * self.vocabulary_multiple

    @property
    def ffn_matrices(self) -> int:
        """2 for GELU and ReLU (up, down), 3 for what gates (gate, up, down)."""
        return 3 if self.activation in GATED else 2

    def of_layers(self, layers: int) -> Model:
        """The model of its first layers alone, of which at least one has the experts."""
        dense = min(self.dense_layers, layers - 1)
        return replace(
            self,
            layers=layers,
            dense_layers=dense,
            dense_ffn_hidden=self.dense_ffn_hidden if dense else None,
        )

    @cached_property
    def kinds(self) -> tuple[tuple[int, Model], ...]:
        """The kinds of layers in their order: of each how many there are, and a model of such
        layers alone.
        """
        if not self.dense_layers:
            return ((self.layers, self),)
        plain: dict[str, Any] = {f.name: f.default for f in fields(self) if f.name in OF_EXPERTS}
        width = self.dense_ffn_hidden
        dense = replace(
            self,
            layers=self.dense_layers,
            experts=0,
            experts_per_token=0,
            **plain | {"ffn_hidden": width},
        )
        mixed = replace(
            self, layers=self.layers - self.dense_layers, dense_layers=0, dense_ffn_hidden=None
        )
        return (dense.layers, dense), (mixed.layers, mixed)

    def kind_of(self, layer: int) -> Model:
        """The kind of a layer, counted from 0."""
        return self.kinds[0 if layer < self.dense_layers else -1][1]

    @property
    def attention_parameters(self) -> int:
        """Of a layer's attention matrices: hidden * (2 q_hidden + 2 kv_hidden), those of q and o,
        and of k and v.

        Of latent attention (arXiv 2405.04434, section 2.1) those down to the latent vectors and the
        rotated part of the keys, and up to queries, keys without it and values.
        """
        if self.key_value_rank is None:
            return self.hidden * (2 * self.q_hidden + 2 * self.kv_hidden)
        down = self.hidden * ((self.query_rank or 0) + self.key_value_rank + self.rotary_width)
        queries = (self.query_rank or self.hidden) * self.q_hidden
        keys_and_values = (
            self.key_value_rank * self.heads * (self.head_dim - self.rotary_width + self.value_dim)
        )
        return down + queries + keys_and_values + self.mixed_hidden * self.hidden

    @property
    def matmul_parameters_per_layer(self) -> int:
        """`attention_parameters`, and ffn_matrices * hidden * ffn_hidden of the feed-forward part.

        Of a mixture of experts each has the latter, shared ones too, and the router hidden *
        experts. Of `kinds` it is the last's.
        """
        return self._matmul_parameters(max(1, self.experts))

    @property
    def matmul_parameters(self) -> int:
        """Those of all layers, of either kind."""
        return sum(count * kind.matmul_parameters_per_layer for count, kind in self.kinds)

    @property
    def active_matmul_parameters_per_layer(self) -> int:
        """Those of `matmul_parameters_per_layer` that one token goes through."""
        return self._matmul_parameters(max(1, self.experts_per_token))

    def _matmul_parameters(self, experts: int) -> int:
        feed_forward = (
            experts + self.shared_experts
        ) * self.ffn_matrices * self.ffn_hidden + self.experts
        return self.attention_parameters + self.hidden * feed_forward

    @property
    def active_parameters(self) -> int:
        """All parameters but those of experts that a token does not go through."""
        idle = self.matmul_parameters_per_layer - self.active_matmul_parameters_per_layer
        idle += max(0, self.experts - self.experts_per_token) * self._biases_of_feed_forward
        return self.parameters - (self.layers - self.dense_layers + self.mtp_layers) * idle

    @property
    def _biases_of_feed_forward(self) -> int:
        return (
            (self.ffn_matrices - 1) * self.ffn_hidden + self.hidden if self.biases == "all" else 0
        )

    @property
    def parameters(self) -> int:
        """All trained parameters: matrices, biases, norms, embedding, head unless tied, learned
        positions.

        Embedding and head count with `padded_vocabulary` rows, learned positions with
        `max_positions`. An MTP layer has `mtp_parameters` besides, and three norms (arXiv
        2412.19437, section 2.2).
        """
        has_all = self.biases == "all"
        biases = self.q_hidden + 2 * self.kv_hidden if self.biases != "none" else 0
        biases += max(1, self.experts) * self._biases_of_feed_forward
        biases += self.hidden + self.experts if has_all else 0
        per_norm = 2 if has_all and self.norm == "layernorm" else 1
        latent = (self.query_rank or 0) + (self.key_value_rank or 0)
        width = (4 if self.post_norms else 2) * self.hidden
        norms = per_norm * (width + (2 * self.head_dim if self.qk_norm else 0) + latent)
        sinks = self.heads if self.attention_sinks else 0
        layers = self.matmul_parameters + self.layers * (biases + norms + sinks)
        further = self.matmul_parameters_per_layer + biases + norms + sinks + self.mtp_parameters
        layers += self.mtp_layers * (further + 3 * per_norm * self.hidden)
        embedding = self.padded_vocabulary * self.hidden * (1 if self.tied_embeddings else 2)
        positions = (self.max_positions or 0) * self.hidden if self.positions == "learned" else 0
        return layers + embedding + positions + per_norm * self.hidden

    @property
    def mtp_parameters(self) -> int:
        """Those of the projection of an MTP layer: of its input and of the further token's row of
        the embedding.
        """
        return 2 * self.hidden**2

    def attended(self, sequence_length: float) -> float:
        """Positions of attention that a token's FLOPs count, in the mean of layers: see
        `attended`.
        """
        full = self.layers // self.full_attention_every if self.full_attention_every else 0
        return attended(
            sequence_length, self.attention_window or sequence_length, full / self.layers
        )

    def attention_flops_per_token(self, sequence_length: float, *, causal: bool = False) -> float:
        """Forward FLOPs of one layer's attention for one token: 2 * `attended` * (q_hidden +
        mixed_hidden).

        These are the two products over the whole sequence: as in PaLM (arXiv 2204.02311, appendix
        B) and Megatron-LM (arXiv 2104.04473, section 5.1), the causal mask is not credited, unless
        they are to be `causal`: half of it.
        """
        return (
            (1.0 if causal else 2.0)
            * self.attended(sequence_length)
            * (self.q_hidden + self.mixed_hidden)
        )

    def layer_flops_per_token(self, sequence_length: float, *, causal: bool = False) -> float:
        """Forward FLOPs of a layer for one token: 2 per matrix parameter that it goes through, plus
        its attention.

        Where `kinds` of layers differ it is their mean.
        """
        matrices = sum(
            count * 2.0 * kind.active_matmul_parameters_per_layer for count, kind in self.kinds
        )
        return matrices / self.layers + self.attention_flops_per_token(
            sequence_length, causal=causal
        )

    def head_flops_per_token(self) -> float:
        """Forward FLOPs of the output head for one token: 2 * hidden * padded_vocabulary."""
        return 2.0 * self.hidden * self.padded_vocabulary

    def mtp_flops_per_token(self, sequence_length: float, *, causal: bool = False) -> float:
        """Forward FLOPs of the MTP layers for one token, with their projections and passes through
        the head.
        """
        layer = (
            2.0 * (self.active_matmul_parameters_per_layer + self.mtp_parameters)
            + self.head_flops_per_token()
        )
        return self.mtp_layers * (
            layer + self.attention_flops_per_token(sequence_length, causal=causal)
        )

    def model_flops_per_token(self, sequence_length: float, *, causal: bool = False) -> float:
        """FLOPs that training one token needs: forward, and twice that backward; recompute is not
        counted.

        Megatron-LM's log counts half of attention, for the causal mask: these are the `causal`
        ones.
        """
        layer = self.layer_flops_per_token(sequence_length, causal=causal)
        further = self.mtp_flops_per_token(sequence_length, causal=causal)
        return 3.0 * (self.layers * layer + self.head_flops_per_token() + further)

    def feed_forward_flops_per_token(self) -> float:
        """Forward FLOPs of a layer's feed-forward part for one token: 2 * ffn_matrices * hidden *
        ffn_hidden.

        With experts these are those of each that the token goes through, and the router's. Where
        `kinds` of layers differ it is their mean.
        """
        attention = self.attention_parameters
        found = (
            count * 2.0 * (kind.active_matmul_parameters_per_layer - attention)
            for count, kind in self.kinds
        )
        return sum(found) / self.layers

    def hardware_flops_per_token(
        self,
        sequence_length: float,
        recompute: str,
        *,
        feed_forward_tiles: int = 1,
        chunked_loss: bool = False,
        causal: bool = False,
    ) -> float:
        """FLOPs that the devices execute, as torch counts them: `model_flops_per_token`, plus what
        is computed again.

        Of a window that is what lies in it, also where a kernel computes the rest and masks it.

        That is the scores, one of attention's two products, in the backward pass of flash attention
        (arXiv 2205.14135, algorithm 4); all of math attention for recompute "selective", which
        keeps the other products; every layer but its last product, where torch's recompute stops,
        for "full"; every tiled feed-forward part but its last product; and the head where the loss
        is chunked. Under "full", recompute also runs all tiles but one before they are run again
        one by one.
        """
        is_flash = self.attention == "flash"
        attention = self.attention_flops_per_token(sequence_length, causal=causal)
        each = attention / (self.q_hidden + self.mixed_hidden)
        # Flash kernels take one width: latent attention's values are padded to that of its queries.
        padded = each * (self.q_hidden - self.mixed_hidden) if is_flash else 0.0
        feed_forward = self.feed_forward_flops_per_token()
        # Experts' last products are kept for the gradients of what multiplies them; that of shared
        # ones is not.
        widths = (
            (n, kind.ffn_hidden * (kind.shared_experts if kind.experts else 1))
            for n, kind in self.kinds
        )
        without_last = (
            feed_forward - 2.0 * self.hidden * sum(n * width for n, width in widths) / self.layers
        )
        if self.post_norms:  # whose inputs these are
            without_last = feed_forward
        again = 3 * padded + (each * self.q_hidden if is_flash else 0.0)
        if recompute == "full":
            again += (
                padded + self.layer_flops_per_token(sequence_length, causal=causal) - feed_forward
            )
            if feed_forward_tiles == 1:
                again += without_last
            else:
                again += feed_forward * (feed_forward_tiles - 1) / feed_forward_tiles
        elif recompute == "selective" and self.attention == "math":
            again += attention
        if feed_forward_tiles > 1:
            again += without_last
        head = (1 + self.mtp_layers) * self.head_flops_per_token() if chunked_loss else 0.0
        again *= self.layers + self.mtp_layers
        return self.model_flops_per_token(sequence_length, causal=causal) + again + head
