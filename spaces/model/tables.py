"""The embedding, with learned positions, and the head."""

from __future__ import annotations

from dataclasses import dataclass

from frontrunner.spaces.model.keys import check_keys, key

POSITIONS = ("rotary", "learned")


@dataclass(frozen=True, kw_only=True)
class Embedding:
    """Table of a vector for each token, and of a vector for each position where these are learned.

    It has `padded_vocabulary` rows, so that the mathematics is the same for every tensor-parallel
    degree.
    """

    hidden: int = key(least=1)
    vocabulary: int = key(least=2)
    """The tokenizer's size."""
    vocabulary_multiple: int = key(default=128, least=1)
    """The embedding's rows are padded up to a multiple of this, for every recipe alike."""
    scaled: bool = key("scaled_embedding", default=False)
    """Whether embeddings are multiplied by the square root of `hidden` (Gemma)."""
    positions: str = key(default="rotary", words=POSITIONS)
    """`rotary` or `learned`."""
    max_positions: int | None = key(default=None, least=1)
    """Longest sequence; required for learned positions. Where positions are rotary it only states
    the trained range.
    """

    def __post_init__(self) -> None:
        check_keys(self)

    @property
    def padded_vocabulary(self) -> int:
        """The vocabulary rounded up to a multiple of `vocabulary_multiple`."""
        return -(-self.vocabulary // self.vocabulary_multiple) * self.vocabulary_multiple

    @property
    def has_learned_positions(self) -> bool:
        """Whether a learned vector is added for each position."""
        return self.positions == "learned"

    @property
    def parameters(self) -> int:
        """Hidden * (padded_vocabulary, and max_positions where positions are learned)."""
        positions = (self.max_positions or 0) if self.has_learned_positions else 0
        return self.hidden * (self.padded_vocabulary + positions)


@dataclass(frozen=True, kw_only=True)
class Head:
    """Product of the last layer's output and a matrix with as many rows as the embedding."""

    hidden: int = key(least=1)
    rows: int
    tied: bool = key("tied_embeddings", default=False)
    """Whether the head shares the embedding's matrix."""
    softcap: float | None = key("logits_softcap", default=None, is_positive=True)
    """Logits are this times the tanh of what they are over it (Gemma 2). By default they are as
    they are.
    """

    def __post_init__(self) -> None:
        check_keys(self)

    @property
    def parameters(self) -> int:
        """Hidden * rows, unless the matrix is the embedding's."""
        return 0 if self.tied else self.hidden * self.rows

    def flops_per_token(self) -> float:
        """Return the forward FLOPs for one token: 2 * hidden * rows."""
        return 2.0 * self.hidden * self.rows
