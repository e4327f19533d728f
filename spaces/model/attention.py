"""Grouped attention and latent attention."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar

from frontrunner.spaces.errors import bad_value
from frontrunner.spaces.model.keys import check_keys, key
from frontrunner.spaces.model.norms import Norm
from frontrunner.spaces.model.positions import RotaryPositions


def attended(sequence_length: float, window: float) -> float:
    """Return the positions of attention that a token's FLOPs count.

    Without a mask that is the whole sequence, of which a causal mask leaves half on average. A
    window of w leaves half of w * (2 - w / sequence_length), which is therefore what is counted.
    """
    window = min(window, sequence_length)
    return window * (2 - window / sequence_length)


@dataclass(frozen=True, kw_only=True)
class Attention(ABC):
    """What grouped and latent attention have in common: heads, and the kernel that mixes values."""

    needs: ClassVar[str]
    """What a model needs for keys that only this kind of attention has."""

    hidden: int = key(least=1)
    heads: int = key(least=1)
    """Attention heads; divides `hidden` unless `head_width` is given."""
    kv_heads: int = key(least=1)
    """Groups of keys and values (GQA); divides `heads`, which is the default."""
    head_width: int | None = key(default=None, least=1)
    """Width of an attention head; by default `hidden` / `heads`. With latent attention it is the
    width of the part without positions.
    """
    kernel: str = key("attention", default="flash", words=("flash", "math"))
    """`flash` or `math`, both through torch's `scaled_dot_product_attention`."""
    norm: Norm
    """How norms within attention are computed."""
    rotary: RotaryPositions | None
    """Rotary positions; None where positions are learned."""

    def __post_init__(self) -> None:
        check_keys(self)
        if self.head_width is None and self.hidden % self.heads:
            raise bad_value("model.heads", self.heads, f"a divisor of model.hidden = {self.hidden}")
        if self.head_width == self.hidden / self.heads:
            # Stated or not, it is the same model with the same ids.
            object.__setattr__(self, "head_width", None)
        self._check()
        if self.heads % self.kv_heads:
            expected = f"a divisor of model.heads = {self.heads}"
            raise bad_value("model.kv_heads", self.kv_heads, expected)

    @abstractmethod
    def _check(self) -> None:
        """Check the fields of this kind of attention together."""

    @property
    def window(self) -> int | None:
        """Positions that a token attends to, its own the last of them; None: all up to its own."""
        return None

    @property
    def sinks(self) -> bool:
        """Whether each head has a learned score that its softmax counts beside the positions'."""
        return False

    @property
    def softcap(self) -> float | None:
        """What scores are capped by; None: they are not."""
        return None

    @property
    def qk_norm(self) -> bool:
        """Whether a norm is applied to each head's query and key."""
        return False

    @property
    def biases(self) -> str:
        """Which matrices have biases: `none`, `qkv` or `all`."""
        return "none"

    @property
    @abstractmethod
    def rotated_width(self) -> int:
        """Values of a head's query and key that are rotated."""

    @property
    def plain_width(self) -> int:
        """Width of a head as stated: `head_width`, by default hidden / heads."""
        return self.head_width or self.hidden // self.heads

    @property
    @abstractmethod
    def head_dim(self) -> int:
        """Width of a head's query and key."""

    @property
    @abstractmethod
    def value_dim(self) -> int:
        """Width of a head's value, and of what attention returns for a head."""

    @property
    @abstractmethod
    def matmul_parameters(self) -> int:
        """Parameters of the matrices."""

    @property
    @abstractmethod
    def parameters(self) -> int:
        """All parameters: matrices, biases, norms and sinks."""

    @property
    def q_hidden(self) -> int:
        """Heads * head_dim: the width of the queries."""
        return self.heads * self.head_dim

    @property
    def kv_hidden(self) -> int:
        """kv_heads * head_dim: the width of the keys, and of the values of grouped attention."""
        return self.kv_heads * self.head_dim

    @property
    def mixed_hidden(self) -> int:
        """Heads * value_dim: the width of what attention returns. Grouped attention returns the
        width of the queries.
        """
        return self.heads * self.value_dim

    def is_special(self, sequence_length: int) -> bool:
        """Return whether torch's plain kernels lack this attention: it has a window, sinks or
        capped scores.
        """
        window = self.window or sequence_length
        return window < sequence_length or self.sinks or self.softcap is not None

    def attended(self, sequence_length: float) -> float:
        """Return the positions that a token's FLOPs count: see `attended`."""
        return attended(sequence_length, self.window or sequence_length)

    def score_flops_per_token(self, sequence_length: float, *, causal: bool = False) -> float:
        """Return the forward FLOPs of one of the two products over the sequence, for one value of
        a token: 2 * `attended`.

        As in PaLM (arXiv 2204.02311, appendix B) and Megatron-LM (arXiv 2104.04473, section 5.1),
        the causal mask is not credited, unless they are to be `causal`: half of it.
        """
        return (1.0 if causal else 2.0) * self.attended(sequence_length)

    def flops_per_token(self, sequence_length: float, *, causal: bool = False) -> float:
        """Return the forward FLOPs of both products over the sequence for one token:
        `score_flops_per_token` * (q_hidden + mixed_hidden).
        """
        each = self.score_flops_per_token(sequence_length, causal=causal)
        return each * (self.q_hidden + self.mixed_hidden)

    def padding_flops_per_token(self, sequence_length: float, *, causal: bool = False) -> float:
        """Return the forward FLOPs that flash kernels add for one token.

        They take one width, so the values of latent attention are padded to that of its queries.
        """
        if self.kernel != "flash":
            return 0.0
        each = self.score_flops_per_token(sequence_length, causal=causal)
        return each * (self.q_hidden - self.mixed_hidden)


@dataclass(frozen=True, kw_only=True)
class GroupedAttention(Attention):
    """Attention whose groups of heads share keys and values (GQA, arXiv 2305.13245)."""

    needs: ClassVar[str] = "grouped attention: model.key_value_rank makes it latent"

    biases: str = key(default="none", words=("none", "qkv", "all"))
    """`none`, `qkv` (of query, key and value) or `all` (of every matrix but embedding and head, and
    of LayerNorm).
    """
    qk_norm: bool = key(default=False)
    """Whether a norm, shared by all heads, is applied to each head's query and key, before any
    rotation.
    """
    window: int | None = key("attention_window", default=None, least=1)
    """Positions that a token attends to, its own the last of them; by default all up to its own."""
    sinks: bool = key("attention_sinks", default=False)
    """Whether each head has a learned score that its softmax counts beside the positions'
    (gpt-oss).
    """
    softcap: float | None = key("attention_softcap", default=None, is_positive=True)
    """Scores are this times the tanh of what they are over it (Gemma 2). By default they are as
    they are.
    """
    query_scalar: float | None = key(default=None, is_positive=True)
    """Scores are divided by its square root; by default it is a head's width."""

    def _check(self) -> None:
        if self.query_scalar == self.head_dim:
            object.__setattr__(self, "query_scalar", None)
        if self.rotary is None:
            return
        width = self.rotary.width
        if width % 2 or not 0 <= width <= self.head_dim:
            expected = f"an even number, at most {self.head_dim}"
            raise bad_value("model.rotary_width", width, expected)
        if width == self.head_dim:
            object.__setattr__(self, "rotary", replace(self.rotary, width=0))
        elif self.head_dim % 2 and not width:
            if self.head_width is not None:
                expected = "an even number for rotary positions"
                raise bad_value("model.head_width", self.head_width, expected)
            expected = f"an even hidden / heads for rotary positions, not {self.head_dim}"
            raise bad_value("model.heads", self.heads, expected)

    @property
    def head_dim(self) -> int:
        """Width of a head's query, key and value: `head_width`, by default hidden / heads."""
        return self.plain_width

    @property
    def value_dim(self) -> int:
        """As wide as the query."""
        return self.plain_width

    @property
    def rotated_width(self) -> int:
        """Values of a head's query and key that are rotated."""
        return 0 if self.rotary is None else self.rotary.width or self.head_dim

    @property
    def matmul_parameters(self) -> int:
        """Hidden * (2 q_hidden + 2 kv_hidden): those of q and o, and of k and v."""
        return self.hidden * (2 * self.q_hidden + 2 * self.kv_hidden)

    @property
    def parameters(self) -> int:
        """Those of the matrices, of their biases, of the norms of query and key, and the sinks."""
        total = self.matmul_parameters
        if self.biases != "none":
            total += self.q_hidden + 2 * self.kv_hidden
        if self.biases == "all":
            total += self.hidden
        if self.qk_norm:
            total += self.norm.parameters(2 * self.head_dim)
        if self.sinks:
            total += self.heads
        return total


@dataclass(frozen=True, kw_only=True)
class LatentAttention(Attention):
    """Attention that makes the keys and values of all heads from one latent vector (multi-head
    latent attention, arXiv 2405.04434, section 2.1).

    A head's query and key have a part without positions, of `head_width`, and a rotated part, of
    `rotary.width`. All heads share the rotated part of the key.
    """

    needs: ClassVar[str] = "a model.key_value_rank, which makes attention latent"

    rotary: RotaryPositions
    key_value_rank: int = key(absent=None, least=1)
    """Width of the latent vector from which keys and values of all heads are made (multi-head
    latent attention).
    """
    query_rank: int | None = key(default=None, least=1)
    """Width of the latent vector from which queries are made; by default they are made from the
    layer's input.
    """
    value_width: int | None = key(default=None, least=1)
    """Width of a head's value in latent attention; by default `head_width`."""

    def _check(self) -> None:
        if self.kv_heads != self.heads:
            expected = (
                f"model.heads = {self.heads}: latent attention makes keys and values of every head"
            )
            raise bad_value("model.kv_heads", self.kv_heads, expected)
        if self.rotary.width < 2 or self.rotary.width % 2:
            expected = "an even number of at least 2 for latent attention"
            raise bad_value("model.rotary_width", self.rotary.width, expected)
        if self.value_width == self.plain_width:
            # Stated or not, it is the same model with the same ids.
            object.__setattr__(self, "value_width", None)

    @property
    def head_dim(self) -> int:
        """Width of a head's query and key, with the rotated part."""
        return self.plain_width + self.rotary.width

    @property
    def value_dim(self) -> int:
        """Width of a head's value, and of what attention returns for a head."""
        return self.value_width or self.plain_width

    @property
    def rotated_width(self) -> int:
        """Values of a head's query that are rotated, and of the part that all keys share."""
        return self.rotary.width

    @property
    def down_parameters(self) -> int:
        """Parameters of the matrices down to the latent vectors and the rotated part of the key."""
        return self.hidden * ((self.query_rank or 0) + self.key_value_rank + self.rotary.width)

    @property
    def matmul_parameters(self) -> int:
        """`down_parameters`, those of the matrices up to queries, values and keys without their
        rotated part, and those of the output.
        """
        queries = (self.query_rank or self.hidden) * self.q_hidden
        keys_and_values = self.key_value_rank * self.heads * (self.plain_width + self.value_dim)
        output = self.mixed_hidden * self.hidden
        return self.down_parameters + queries + keys_and_values + output

    @property
    def parameters(self) -> int:
        """Those of the matrices, and of the norms of the latent vectors."""
        return self.matmul_parameters + self.norm.parameters(
            (self.query_rank or 0) + self.key_value_rank
        )
