"""Dense feed-forward parts and mixtures of experts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from frontrunner.spaces.errors import bad_value
from frontrunner.spaces.model.keys import check_keys, key

ACTIVATIONS = ("gelu", "gelu_tanh", "relu", "relu2", "swiglu", "swiglu_clamped", "geglu")
GATED = ("swiglu", "swiglu_clamped", "geglu")
MOST_EXPERTS = 10_000


@dataclass(frozen=True, kw_only=True)
class FeedForward(ABC):
    """What a dense feed-forward part and a mixture of experts have in common."""

    needs: ClassVar[str]
    """What a model needs for keys that only this kind of feed-forward part has."""

    hidden: int = key(least=1)
    ffn_hidden: int = key(least=1)
    """Width of the feed-forward part, or of each expert; by default 4 * `hidden`."""
    activation: str = key(default="gelu", words=ACTIVATIONS)
    """`gelu` or its approximation `gelu_tanh`, `relu`, or `relu2`, its square (Nemotron), of two
    matrices; or one that gates (three): `swiglu`, gpt-oss's `swiglu_clamped` or `geglu`, by
    `gelu_tanh` (Gemma).
    """
    has_biases: bool = False
    """Whether each matrix has biases."""

    def __post_init__(self) -> None:
        check_keys(self)

    @property
    def is_gated(self) -> bool:
        """Whether one product gates another, so that there are three matrices instead of two."""
        return self.activation in GATED

    @property
    def matrices(self) -> int:
        """2 for GELU and ReLU (up, down), 3 for what gates (gate, up, down)."""
        return 3 if self.is_gated else 2

    @property
    def _biases(self) -> int:
        """Biases of one feed-forward part, or of one expert."""
        return (self.matrices - 1) * self.ffn_hidden + self.hidden if self.has_biases else 0

    @property
    @abstractmethod
    def matmul_parameters(self) -> int:
        """Parameters of the matrices."""

    @property
    @abstractmethod
    def active_matmul_parameters(self) -> int:
        """Those of `matmul_parameters` that one token goes through."""

    @property
    @abstractmethod
    def parameters(self) -> int:
        """Parameters of the matrices, and their biases."""

    @property
    def idle_parameters(self) -> int:
        """Parameters that a token does not go through."""
        return 0

    @property
    @abstractmethod
    def last_product_width(self) -> int:
        """Width of the last product that recompute can leave out, as nothing after it needs its
        output.
        """

    def flops_per_token(self) -> float:
        """Return the forward FLOPs for one token: 2 for each parameter of the matrices that it
        goes through.
        """
        return 2.0 * self.active_matmul_parameters


@dataclass(frozen=True, kw_only=True)
class DenseFeedForward(FeedForward):
    """Feed-forward part that every token goes through."""

    needs: ClassVar[str] = "a dense model: model.experts = 0"

    @property
    def matmul_parameters(self) -> int:
        """Matrices * hidden * ffn_hidden."""
        return self.matrices * self.hidden * self.ffn_hidden

    @property
    def active_matmul_parameters(self) -> int:
        """All."""
        return self.matmul_parameters

    @property
    def parameters(self) -> int:
        """Those of the matrices, and their biases."""
        return self.matmul_parameters + self._biases

    @property
    def last_product_width(self) -> int:
        """Width of the one product down."""
        return self.ffn_hidden


@dataclass(frozen=True, kw_only=True)
class MixtureOfExperts(FeedForward):
    """Experts, of which a router chooses a few for each token; each is a feed-forward part."""

    needs: ClassVar[str] = "model.experts > 0 (it is 0)"

    experts: int = key(absent=0, least=1, most=MOST_EXPERTS)
    """Experts of each layer's feed-forward part (a mixture of experts); 0 is a dense model."""
    experts_per_token: int = key(absent=0)
    """Experts that a token goes through: those to which the router gives the highest
    probabilities.
    """
    renormalized_experts: bool = key(default=True)
    """Whether the probabilities of a token's experts are scaled so that they add up to 1."""
    routing: str = key(default="learned", words=("learned", "uniform"))
    """What gives a probe's tokens their experts: the router with its random first weights
    (`learned`), or turns (`uniform`), so that all get equally many; the router still weighs what
    they find. Replays train `learned`.
    """
    shared_experts: int = key(default=0, least=0)
    """Experts that every token goes through besides, as wide as the others; they are one
    feed-forward part.
    """
    router: str = key(default="softmax", words=("softmax", "sigmoid"))
    """What makes probabilities of the router's outputs: `softmax` over the experts, or `sigmoid` of
    each.
    """
    router_groups: int = key(default=1, least=1)
    """Groups of neighboring experts, of which a token's may come from `router_groups_kept`: those
    of the highest expert (`softmax`), or of the highest sum of two (`sigmoid`).
    """
    router_groups_kept: int = key(default=1, least=1)
    """Groups from which a token's experts come."""
    routed_scale: float = key(default=1.0, is_positive=True)
    """What the probabilities of a token's experts are multiplied by."""
    balancing: str = key(default="none", words=("none", "loss", "bias"))
    """What evens out the experts' tokens: `none`, a `loss` of each sequence, or a `bias` that only
    the choice sees.
    """
    balancing_weight: float = key(default=0.001, is_positive=True)
    """The auxiliary loss's coefficient, or by how much a step moves an expert's bias up or down."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.experts_per_token <= self.experts:
            expected = f"at least 1 and at most model.experts = {self.experts}"
            raise bad_value("model.experts_per_token", self.experts_per_token, expected)
        if self.has_biases and self.shared_experts:
            raise bad_value("model.biases", "all", "none or qkv with model.shared_experts")
        self._check_groups()

    def _check_groups(self) -> None:
        groups, kept = self.router_groups, self.router_groups_kept
        if self.experts % groups:
            expected = f"a divisor of model.experts = {self.experts}"
            raise bad_value("model.router_groups", groups, expected)
        group_size = self.experts // groups
        if kept > groups or kept * group_size < self.experts_per_token:
            expected = (
                f"at most {groups} groups, with at least model.experts_per_token ="
                f" {self.experts_per_token} experts"
            )
            raise bad_value("model.router_groups_kept", kept, expected)
        if self.router == "sigmoid" and groups > 1 and group_size < 2:
            expected = "groups of two experts and more, whose sum ranks a group"
            raise bad_value("model.router_groups", groups, expected)

    @property
    def shared_width(self) -> int:
        """Width of the one feed-forward part that the shared experts are."""
        return self.shared_experts * self.ffn_hidden

    @property
    def shared(self) -> DenseFeedForward | None:
        """The shared experts, as the one feed-forward part that they are."""
        if not self.shared_experts:
            return None
        return DenseFeedForward(
            hidden=self.hidden, ffn_hidden=self.shared_width, activation=self.activation
        )

    def _parameters_of(self, experts: int) -> int:
        widths = (experts + self.shared_experts) * self.ffn_hidden
        return self.hidden * (self.matrices * widths + self.experts)

    @property
    def matmul_parameters(self) -> int:
        """Matrices * hidden * ffn_hidden of each expert, shared ones too, and hidden * experts of
        the router.
        """
        return self._parameters_of(self.experts)

    @property
    def active_matmul_parameters(self) -> int:
        """Those of a token's experts, of the shared ones, and of the router."""
        return self._parameters_of(self.experts_per_token)

    @property
    def parameters(self) -> int:
        """Those of the matrices, and the biases of the experts and of the router."""
        router_biases = self.experts if self.has_biases else 0
        return self.matmul_parameters + self.experts * self._biases + router_biases

    @property
    def idle_parameters(self) -> int:
        """Parameters of the experts that a token does not go through."""
        matrices = self.matmul_parameters - self.active_matmul_parameters
        return matrices + (self.experts - self.experts_per_token) * self._biases

    @property
    def last_product_width(self) -> int:
        """Width of the shared experts.

        The outputs of the chosen experts are kept: the gradients of their probabilities need them.
        """
        return self.shared_width
