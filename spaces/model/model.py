"""The model: a decoder-only transformer as a sequence of layers, its parameter count and its
floating-point operations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, Any

from frontrunner.spaces.errors import InvalidInput, bad_value, did_you_mean, require_at_least
from frontrunner.spaces.model.attention import GroupedAttention, LatentAttention
from frontrunner.spaces.model.feed_forward import DenseFeedForward, MixtureOfExperts
from frontrunner.spaces.model.keys import REQUIRED, Key, by_name, fields_from, key, values_of
from frontrunner.spaces.model.layer import Layer, LayerOrder
from frontrunner.spaces.model.norms import Norm
from frontrunner.spaces.model.positions import RotaryPositions
from frontrunner.spaces.model.prediction import MultiTokenPrediction
from frontrunner.spaces.model.tables import Embedding, Head

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler
    from pydantic_core import CoreSchema

WITHOUT_EFFECT = ("rotary_width", "rotary_theta", "rotary_scaling", "renormalized_experts")
"""Keys that may be stated for a model without their part; they count in ids all the same."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Model:
    """A pre-norm decoder-only transformer: embedding, layers, a last norm, and the head."""

    name: str = key()
    """For people, up to 200 characters; no part of a recipe's identity."""
    hidden: int = key(least=1)
    """Hidden size."""
    layers: tuple[Layer, ...] = field(hash=False)
    """The layers in order; equal ones are one object."""
    embedding: Embedding
    norm: Norm
    """The norm before the head."""
    head: Head
    prediction: MultiTokenPrediction
    unshown_keys: tuple[tuple[str, Any], ...] = ()
    """Keys as they were stated, with values that no part shows: an `attention_window` of which
    `full_attention_every` = 1 leaves no layer, rotary frequencies where positions are learned.
    """

    @classmethod
    def from_keys(cls, **keys: Any) -> Model:
        """Return the model that keys of [model] describe.

        Raises `InvalidInput` for an unknown key, a missing one, a value that cannot be used, and a
        key of a part that the model does not have.
        """
        for name in keys:
            if name not in KEYS:
                raise InvalidInput(
                    f"unknown key model.{name}", hint=did_you_mean(name, tuple(KEYS))
                )
        stated = {name: keys.get(name, one.default) for name, one in KEYS.items()}
        for name, value in stated.items():
            if value is REQUIRED:
                raise bad_value(f"model.{name}", None, "a value")
        require_at_least("model", 1, hidden=stated["hidden"])
        require_at_least("model", 0, experts=stated["experts"])
        order = LayerOrder(**fields_from(LayerOrder, stated))
        embedding = Embedding(**fields_from(Embedding, stated))
        has_biases = stated["biases"] == "all"
        norm = Norm(**fields_from(Norm, stated), has_biases=has_biases)
        rotary = RotaryPositions(**fields_from(RotaryPositions, stated))
        is_latent = stated["key_value_rank"] is not None
        attention_kind = LatentAttention if is_latent else GroupedAttention
        feed_forward_kind = MixtureOfExperts if stated["experts"] else DenseFeedForward
        _refuse_keys_of_others(stated, attention_kind, feed_forward_kind)
        if is_latent and embedding.has_learned_positions:
            expected = '"rotary", which latent attention needs'
            raise bad_value("model.positions", embedding.positions, expected)
        if not is_latent and rotary.scaling is not None and rotary.scaling.score_factor != 1:
            expected = "1: latent attention alone has it"
            given = rotary.scaling.score_factor
            raise bad_value("model.rotary_scaling.score_factor", given, expected)
        of_layer: dict[str, Any] = {
            "norm": norm,
            "rotary": None if embedding.has_learned_positions else rotary,
        }
        attention = attention_kind(**fields_from(attention_kind, stated), **of_layer)
        feed_forward = feed_forward_kind(
            **fields_from(feed_forward_kind, stated), has_biases=has_biases
        )
        layer = Layer(
            **fields_from(Layer, stated), attention=attention, feed_forward=feed_forward, norm=norm
        )
        model = cls(
            name=stated["name"],
            hidden=stated["hidden"],
            layers=order.sequence(layer),
            embedding=embedding,
            norm=norm,
            head=Head(**fields_from(Head, stated), rows=embedding.padded_vocabulary),
            prediction=MultiTokenPrediction(**fields_from(MultiTokenPrediction, stated), norm=norm),
        )
        canonical = stated | values_of(attention) | values_of(attention.rotary or rotary)
        shown = model.keys()
        unshown = {name: value for name, value in canonical.items() if shown[name] != value}
        return replace(model, unshown_keys=tuple(unshown.items())) if unshown else model

    def keys(self) -> dict[str, Any]:
        """Return the keys of [model] that describe this model, with those at their defaults."""
        return dict(self._keys)

    @cached_property
    def _keys(self) -> dict[str, Any]:
        windowed = next((one for one in self.layers if one.attention.window), self.layers[0])
        parts = [
            self,
            LayerOrder.of(self.layers),
            self.embedding,
            windowed.attention,
            self.rotary,
            self.norm,
            self.layers[-1].feed_forward,
            self.layers[-1],
            self.head,
            self.prediction,
        ]
        found = {name: one.default for name, one in KEYS.items()}
        for part in parts:
            if part is not None:
                found |= values_of(part)
        return found | dict(self.unshown_keys)

    def plain_keys(self) -> dict[str, Any]:
        """Return the keys as plain JSON: the scaling of rotary frequencies is a table."""
        scaling = self._keys["rotary_scaling"]
        return self._keys | {"rotary_scaling": scaling and asdict(scaling)}

    def stated_keys(self) -> dict[str, Any]:
        """Return the keys that differ from their defaults: those of a recipe's identity, and the
        name.
        """
        return {name: value for name, value in self._keys.items() if value != KEYS[name].default}

    def with_keys(self, **changes: Any) -> Model:
        """Return the model with other values of some keys of [model]."""
        return Model.from_keys(**(self._keys | changes))

    def __repr__(self) -> str:
        stated = ", ".join(f"{name}={value!r}" for name, value in self.stated_keys().items())
        return f"Model.from_keys({stated})"

    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """Return how pydantic reads and writes a model: as a table of its keys."""
        from frontrunner.spaces.model.table import schema_of_keys

        return schema_of_keys(handler)

    def require_trained(self) -> None:
        """Raise `InvalidInput` if the built-in trainer does not train such a model."""
        if self.prediction.layers:
            expected = "0 for the built-in trainer, which has no multi-token prediction"
            hint = 'estimates (`frontrunner plan`) and evaluator = "command" take them'
            raise bad_value("model.mtp_layers", self.prediction.layers, expected, hint=hint)

    @property
    def attention(self) -> GroupedAttention | LatentAttention:
        """The attention of the first layer. Those of other layers may differ in windows, and in
        the rotation that goes with these.
        """
        return self.layers[0].attention

    @property
    def rotary(self) -> RotaryPositions | None:
        """The rotary positions of layers that attend to all positions, if there are such layers;
        None where positions are learned.
        """
        full = next((one for one in self.layers if one.attention.window is None), self.layers[0])
        return full.attention.rotary

    @property
    def feed_forward(self) -> DenseFeedForward | MixtureOfExperts:
        """The feed-forward part of the last layer."""
        return self.layers[-1].feed_forward

    @property
    def mixture(self) -> MixtureOfExperts | None:
        """The mixture of experts of all layers but the leading dense ones; None: a dense model."""
        return self.layers[-1].mixture

    @cached_property
    def dense_layers(self) -> int:
        """Leading layers without experts, in a model whose other layers have them."""
        return sum(layer.mixture is None for layer in self.layers) if self.mixture else 0

    @property
    def dense(self) -> DenseFeedForward | None:
        """The feed-forward part of the leading dense layers, where others have experts."""
        first = self.layers[0].feed_forward
        return first if self.mixture and isinstance(first, DenseFeedForward) else None

    def has_special_attention(self, sequence_length: int) -> bool:
        """Return whether attention is of a form that torch's plain kernels lack: a window, sinks or
        capped scores.
        """
        return any(layer.attention.is_special(sequence_length) for layer, _ in self._distinct)

    def of_layers(self, layers: int) -> Model:
        """Return the model of its first layers alone, of which at least one has the experts."""
        dense = min(self.dense_layers, layers - 1)
        width = self.dense.ffn_hidden if self.dense and dense else None
        return self.with_keys(layers=layers, dense_layers=dense, dense_ffn_hidden=width)

    @cached_property
    def _distinct(self) -> tuple[tuple[Layer, int], ...]:
        """The different layers, and how many there are of each."""
        layers = {id(layer): layer for layer in self.layers}
        counts = Counter(map(id, self.layers))
        return tuple((layers[place], count) for place, count in counts.items())

    @cached_property
    def kinds(self) -> tuple[tuple[int, Layer], ...]:
        """The runs of layers that have the same feed-forward part: how many layers there are, and
        the first of them.
        """
        runs = [[*run] for _, run in groupby(self.layers, lambda layer: id(layer.feed_forward))]
        return tuple((len(run), run[0]) for run in runs)

    def _sum(self, of_layer: Callable[[Layer], float]) -> float:
        return sum(count * of_layer(layer) for layer, count in self._distinct)

    def _mean(self, of_layer: Callable[[Layer], float]) -> float:
        return self._sum(of_layer) / len(self.layers)

    @property
    def matmul_parameters(self) -> int:
        """Parameters of the matrices of all layers."""
        return sum(count * one.matmul_parameters for one, count in self._distinct)

    @property
    def parameters(self) -> int:
        """All trained parameters: those of the layers, the embedding, the head unless tied, the
        last norm, and of the layers that predict further tokens.
        """
        layers = sum(count * one.parameters for one, count in self._distinct)
        further = self.layers[-1].parameters + self.prediction.own_parameters
        layers += self.prediction.layers * further
        ends = self.embedding.parameters + self.head.parameters
        return layers + ends + self.norm.parameters(self.hidden)

    @property
    def active_parameters(self) -> int:
        """All parameters but those of experts that a token does not go through."""
        idle = sum(n * one.feed_forward.idle_parameters for one, n in self._distinct)
        idle += self.prediction.layers * self.feed_forward.idle_parameters
        return self.parameters - idle

    def attended(self, sequence_length: float) -> float:
        """Return the positions of attention that a token's FLOPs count, in the mean of layers."""
        return self._mean(lambda layer: layer.attention.attended(sequence_length))

    def attention_flops_per_token(self, sequence_length: float, *, causal: bool = False) -> float:
        """Return the forward FLOPs of a layer's attention for one token, in the mean of layers:
        see `Attention.flops_per_token`.
        """
        return self._mean(
            lambda layer: layer.attention.flops_per_token(sequence_length, causal=causal)
        )

    def layer_flops_per_token(self, sequence_length: float, *, causal: bool = False) -> float:
        """Return the forward FLOPs of a layer for one token, in the mean of layers."""
        return self._mean(lambda layer: layer.flops_per_token(sequence_length, causal=causal))

    def feed_forward_flops_per_token(self) -> float:
        """Return the forward FLOPs of a feed-forward part for one token, in the mean of layers."""
        return self._mean(lambda layer: layer.feed_forward.flops_per_token())

    def head_flops_per_token(self) -> float:
        """Return the forward FLOPs of the head for one token."""
        return self.head.flops_per_token()

    def mtp_flops_per_token(self, sequence_length: float, *, causal: bool = False) -> float:
        """Return the forward FLOPs of the layers that predict further tokens for one token, with
        their projections and passes through the head. Their attention is that of the mean layer.
        """
        matrices = self.layers[-1].active_matmul_parameters + self.prediction.projection_parameters
        attention = self.attention_flops_per_token(sequence_length, causal=causal)
        return self.prediction.layers * (2.0 * matrices + self.head.flops_per_token() + attention)

    def model_flops_per_token(self, sequence_length: float, *, causal: bool = False) -> float:
        """Return the FLOPs that training one token needs: forward, and twice that backward;
        recompute is not counted.

        Megatron-LM's log counts half of attention, for the causal mask: these are the `causal`
        ones.
        """
        layers = self._sum(lambda layer: layer.flops_per_token(sequence_length, causal=causal))
        further = self.mtp_flops_per_token(sequence_length, causal=causal)
        return 3.0 * (layers + self.head.flops_per_token() + further)

    def hardware_flops_per_token(
        self,
        sequence_length: float,
        recompute: str,
        *,
        feed_forward_tiles: int = 1,
        chunked_loss: bool = False,
        causal: bool = False,
    ) -> float:
        """Return the FLOPs that the devices execute, as torch counts them: `model_flops_per_token`,
        plus what is computed again.

        Of a window that is what lies in it, also where a kernel computes the rest and masks it.

        Computed again are the scores, one of attention's two products, in the backward pass of
        flash attention (arXiv 2205.14135, algorithm 4); all of math attention for recompute
        "selective", which keeps the other products; every layer but its last product, where torch's
        recompute stops, for "full"; every tiled feed-forward part but its last product; and the
        head where the loss is chunked. Under "full", recompute also runs all tiles but one before
        they are run again one by one. A layer that predicts further tokens counts as the mean
        layer.
        """
        again = self._mean(
            lambda layer: layer.repeated_flops_per_token(
                sequence_length, recompute, feed_forward_tiles=feed_forward_tiles, causal=causal
            )
        )
        again *= len(self.layers) + self.prediction.layers
        if chunked_loss:
            again += (1 + self.prediction.layers) * self.head.flops_per_token()
        return self.model_flops_per_token(sequence_length, causal=causal) + again


PARTS = (
    Model,
    LayerOrder,
    GroupedAttention,
    LatentAttention,
    RotaryPositions,
    DenseFeedForward,
    MixtureOfExperts,
    Norm,
    Layer,
    Embedding,
    Head,
    MultiTokenPrediction,
)
KEYS: Mapping[str, Key] = by_name(PARTS)
"""The keys of [model], by name."""


def _refuse_keys_of_others(
    stated: Mapping[str, Any],
    attention: type[GroupedAttention | LatentAttention],
    feed_forward: type[DenseFeedForward | MixtureOfExperts],
) -> None:
    """Raise `InvalidInput` for a stated key of a kind of part that the model does not have."""
    others = {GroupedAttention, LatentAttention, MixtureOfExperts} - {attention, feed_forward}
    own = by_name([part for part in PARTS if part not in others])
    for name, one in KEYS.items():
        is_stated = stated[name] != one.default
        if is_stated and name not in own and name not in WITHOUT_EFFECT:
            needs = one.part.needs  # type: ignore[attr-defined]
            raise InvalidInput(f"model.{name} needs {needs}")
