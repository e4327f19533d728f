"""A layer, and the keys of [model] that say how layers differ."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from frontrunner.spaces.errors import InvalidInput, bad_value
from frontrunner.spaces.model.attention import Attention, GroupedAttention, LatentAttention
from frontrunner.spaces.model.feed_forward import DenseFeedForward, MixtureOfExperts
from frontrunner.spaces.model.keys import check_keys, key
from frontrunner.spaces.model.norms import Norm

MOST_LAYERS = 10_000


@dataclass(frozen=True, kw_only=True)
class Layer:
    """Attention and a feed-forward part, each with a norm before it, whose outputs are added to
    their inputs.
    """

    attention: GroupedAttention | LatentAttention
    feed_forward: DenseFeedForward | MixtureOfExperts
    norm: Norm
    parallel_residual: bool = key(default=False)
    """Whether attention and feed-forward part both read a layer's input, and are added to it
    together (GPT-NeoX).
    """
    post_norms: bool = key(default=False)
    """Whether a norm follows each of them, too, before it is added to its input (Gemma)."""

    @property
    def hidden(self) -> int:
        """Width of the layer's input and output."""
        return self.attention.hidden

    @property
    def mixture(self) -> MixtureOfExperts | None:
        """The feed-forward part if it is a mixture of experts."""
        return self.feed_forward if isinstance(self.feed_forward, MixtureOfExperts) else None

    @property
    def norms(self) -> int:
        """Norms of the layer's width."""
        return 4 if self.post_norms else 2

    @property
    def matmul_parameters(self) -> int:
        """Parameters of the matrices of attention and feed-forward part."""
        return self.attention.matmul_parameters + self.feed_forward.matmul_parameters

    @property
    def active_matmul_parameters(self) -> int:
        """Those of `matmul_parameters` that one token goes through."""
        return self.attention.matmul_parameters + self.feed_forward.active_matmul_parameters

    @property
    def parameters(self) -> int:
        """Those of attention, feed-forward part and norms."""
        norms = self.norm.parameters(self.norms * self.hidden)
        return self.attention.parameters + self.feed_forward.parameters + norms

    def flops_per_token(self, sequence_length: float, *, causal: bool = False) -> float:
        """Return the forward FLOPs for one token: 2 for each parameter of the matrices that it goes
        through, and attention over the sequence.
        """
        scores = self.attention.flops_per_token(sequence_length, causal=causal)
        return 2.0 * self.active_matmul_parameters + scores

    def repeated_flops_per_token(
        self, sequence_length: float, recompute: str, *, feed_forward_tiles: int, causal: bool
    ) -> float:
        """Return the FLOPs that are computed a second time for one token: see
        `Model.hardware_flops_per_token`.
        """
        attention = self.attention
        each = attention.score_flops_per_token(sequence_length, causal=causal)
        padded = attention.padding_flops_per_token(sequence_length, causal=causal)
        again = 3 * padded
        if attention.kernel == "flash":
            again += each * attention.q_hidden
        feed_forward = self.feed_forward.flops_per_token()
        # The norms after both parts need the outputs of the last products.
        last = 0 if self.post_norms else self.feed_forward.last_product_width
        without_last = feed_forward - 2.0 * self.hidden * last
        if recompute == "full":
            layer = self.flops_per_token(sequence_length, causal=causal)
            again += padded + layer - feed_forward
            if feed_forward_tiles == 1:
                again += without_last
            else:
                again += feed_forward * (feed_forward_tiles - 1) / feed_forward_tiles
        elif recompute == "selective" and attention.kernel == "math":
            again += attention.flops_per_token(sequence_length, causal=causal)
        if feed_forward_tiles > 1:
            again += without_last
        return again


@dataclass(frozen=True, kw_only=True)
class LayerOrder:
    """What the keys of [model] can say about how layers differ: leading dense layers before those
    with experts, and every n-th layer with full attention among those with a window.
    """

    layers: int = key(least=1, most=MOST_LAYERS)
    """Transformer layers."""
    dense_layers: int = key(default=0, least=0)
    """Leading layers without experts."""
    dense_ffn_hidden: int | None = key(default=None, least=1)
    """Width of the feed-forward part of these layers."""
    full_attention_every: int = key(default=0, least=0)
    """Of so many layers the last attends to all positions in spite of `attention_window`; 0: no
    layer does.
    """
    window_rotary_theta: float | None = key(default=None, is_positive=True)
    """Base of the rotary frequencies, unscaled, of layers with a window; by default as in the
    others.
    """

    def __post_init__(self) -> None:
        check_keys(self)
        if self.dense_layers and self.dense_ffn_hidden is None:
            raise bad_value("model.dense_ffn_hidden", None, "the width of model.dense_layers")
        if self.dense_ffn_hidden is not None and not self.dense_layers:
            raise InvalidInput("model.dense_ffn_hidden needs model.dense_layers > 0 (it is 0)")

    @classmethod
    def of(cls, layers: tuple[Layer, ...]) -> LayerOrder:
        """Return what the keys say of a sequence of layers."""
        is_dense = [layer.mixture is None for layer in layers]
        dense_layers = 0 if all(is_dense) else sum(is_dense)
        dense_width = layers[0].feed_forward.ffn_hidden if dense_layers else None
        windowed, full = _first(layers, has_window=True), _first(layers, has_window=False)
        every, theta = 0, None
        if windowed is not None and full is not None:
            every = layers.index(full) + 1
            rotary, windowed_rotary = full.attention.rotary, windowed.attention.rotary
            if windowed_rotary is not None and windowed_rotary != rotary:
                theta = windowed_rotary.theta
        return cls(
            layers=len(layers),
            dense_layers=dense_layers,
            dense_ffn_hidden=dense_width,
            full_attention_every=every,
            window_rotary_theta=theta,
        )

    def sequence(self, layer: Layer) -> tuple[Layer, ...]:
        """Return the layers in order, made from one that has every part which the keys state.

        Equal layers are one object.
        """
        self._check_windows(layer.attention)
        self._check_dense(layer.mixture)
        variants: dict[tuple[bool, bool], Layer] = {}
        found: list[Layer] = []
        for number in range(self.layers):
            is_dense = number < self.dense_layers
            every = self.full_attention_every
            is_full = every > 0 and (number + 1) % every == 0
            if (is_dense, is_full) not in variants:
                variants[is_dense, is_full] = self._variant(
                    layer, is_dense=is_dense, is_full=is_full
                )
            found.append(variants[is_dense, is_full])
        return tuple(found)

    def _check_windows(self, attention: Attention) -> None:
        if attention.window is None:
            for name in ("full_attention_every", "window_rotary_theta"):
                if getattr(self, name):
                    raise InvalidInput(f"model.{name} needs a model.attention_window")
        if self.window_rotary_theta is not None and attention.rotary is None:
            raise InvalidInput(
                'model.window_rotary_theta needs model.positions = "rotary" (it is "learned")'
            )

    def _check_dense(self, mixture: MixtureOfExperts | None) -> None:
        if not self.dense_layers:
            return
        if mixture is None:
            raise InvalidInput(f"model.dense_layers needs {MixtureOfExperts.needs}")
        if mixture.has_biases:
            raise bad_value("model.biases", "all", "none or qkv with model.dense_layers")
        if self.dense_layers >= self.layers:
            expected = f"fewer than model.layers = {self.layers}: others have the experts"
            raise bad_value("model.dense_layers", self.dense_layers, expected)

    def _variant(self, layer: Layer, *, is_dense: bool, is_full: bool) -> Layer:
        attention: Any = layer.attention
        feed_forward: Any = layer.feed_forward
        if is_full:
            attention = replace(attention, window=None)
        elif self.window_rotary_theta is not None:
            rotary = replace(attention.rotary, theta=self.window_rotary_theta, scaling=None)
            attention = replace(attention, rotary=rotary)
        if is_dense:
            feed_forward = DenseFeedForward(
                hidden=layer.hidden,
                ffn_hidden=self.dense_ffn_hidden,  # type: ignore[arg-type]
                activation=feed_forward.activation,
            )
        return replace(layer, attention=attention, feed_forward=feed_forward)


def _first(layers: tuple[Layer, ...], *, has_window: bool) -> Layer | None:
    chosen = (one for one in layers if (one.attention.window is not None) == has_window)
    return next(chosen, None)
