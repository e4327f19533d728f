"""Multi-token prediction."""

from __future__ import annotations

from dataclasses import dataclass

from frontrunner.spaces.model.keys import check_keys, key
from frontrunner.spaces.model.layer import MOST_LAYERS
from frontrunner.spaces.model.norms import Norm


@dataclass(frozen=True, kw_only=True)
class MultiTokenPrediction:
    """Layers after the last that predict further tokens (MTP, arXiv 2412.19437, section 2.2).

    Each is as the model's last layer, with a projection and three norms besides.
    """

    hidden: int = key(least=1)
    layers: int = key("mtp_layers", default=0, least=0, most=MOST_LAYERS)
    """Layers of multi-token prediction (MTP), after the last: each predicts one token further
    ahead, by a projection of its own and the shared head. Other trainers train them; the built-in
    one does not.
    """
    norm: Norm

    def __post_init__(self) -> None:
        check_keys(self)

    @property
    def projection_parameters(self) -> int:
        """2 * hidden^2: those of one layer's projection, of its input and of the further token's
        row of the embedding.
        """
        return 2 * self.hidden**2

    @property
    def own_parameters(self) -> int:
        """Those that one layer has besides the last layer's: the projection and three norms."""
        return self.projection_parameters + self.norm.parameters(3 * self.hidden)
