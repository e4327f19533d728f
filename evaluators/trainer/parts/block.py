"""One layer of the transformer."""

from typing import cast

import torch
from torch import Tensor, nn

from frontrunner.evaluators.trainer.layout import ContextRanks
from frontrunner.evaluators.trainer.parts.attention import GroupedAttentionModule
from frontrunner.evaluators.trainer.parts.feed_forward import FeedForwardModule
from frontrunner.evaluators.trainer.parts.host_activations import HostActivations
from frontrunner.evaluators.trainer.parts.latent_attention import LatentAttentionModule
from frontrunner.evaluators.trainer.parts.mixture import MixtureModule
from frontrunner.evaluators.trainer.parts.norms import make_norm
from frontrunner.evaluators.trainer.parts.recompute import Transform, recomputed, recomputing
from frontrunner.evaluators.trainer.parts.rotary import RotaryTable
from frontrunner.spaces.model.attention import LatentAttention
from frontrunner.spaces.model.feed_forward import MixtureOfExperts
from frontrunner.spaces.model.layer import Layer
from frontrunner.spaces.recipe import Recipe


class Block(nn.Module):
    """Attention and feed-forward, each behind a norm and added to its input, one after the other or
    both at once.
    """

    def __init__(
        self,
        layer: Layer,
        rotary: RotaryTable | None,
        recipe: Recipe,
        context: ContextRanks | None,
        on_host: HostActivations | None,
        *,
        first_position: int = 0,
    ) -> None:
        super().__init__()
        self._recomputing = recomputing(recipe.recompute)
        self._on_host, self._rotary = on_host, rotary
        self._moves_kept = on_host is not None and recipe.recompute == "selective"
        self._tiles, self._is_parallel = recipe.feed_forward_tiles, layer.parallel_residual
        self.run: Transform = self._run_recomputing
        self.attend: Transform = self._attend
        hidden = layer.hidden
        self.attention_norm = make_norm(layer.norm, hidden)
        if isinstance(layer.attention, LatentAttention):
            self.attention: nn.Module = LatentAttentionModule(
                layer.attention,
                cast("RotaryTable", rotary),
                context,
                first_position=first_position,
            )
        else:
            self.attention = GroupedAttentionModule(layer.attention, rotary, context)
        self.attention_output_norm = make_norm(layer.norm, hidden) if layer.post_norms else None
        self.feed_forward_norm = make_norm(layer.norm, hidden)
        self.feed_forward = (
            MixtureModule(layer.feed_forward, on_host)
            if isinstance(layer.feed_forward, MixtureOfExperts)
            else FeedForwardModule(layer.feed_forward)
        )
        self.feed_forward_output_norm = make_norm(layer.norm, hidden) if layer.post_norms else None

    def forward(self, x: Tensor) -> Tensor:
        """[B, S, D] -> [B, S, D], recomputing in the backward pass what the recipe says."""
        if self._on_host is not None and torch.is_grad_enabled():
            tables = () if self._rotary is None else self._rotary.on(x.device)
            with self._on_host.layer(x.device, (*self.parameters(), *tables)):
                return self.run(x)
        return self.run(x)

    def _run_recomputing(self, x: Tensor) -> Tensor:
        if self._recomputing is None or not torch.is_grad_enabled():
            return self._transform(x)
        # A compiled layer hands what it keeps to its backward pass, where hooks see it.
        if self._moves_kept and not torch.compiler.is_compiling():
            on_host = cast("HostActivations", self._on_host)
            return recomputed(self._transform, x, context_fn=on_host.selective_contexts)
        return self._recomputing(self._transform, x)

    def _transform(self, x: Tensor) -> Tensor:
        after = self.attend(x)
        x = x if self._is_parallel else after
        if self._tiles == 1:
            return after + self._normed_feed_forward(x)
        tiles = [
            recomputed(self._normed_feed_forward, tile) for tile in x.chunk(self._tiles, dim=1)
        ]
        return after + torch.cat(tiles, dim=1)

    def _attend(self, x: Tensor) -> Tensor:
        mixed: Tensor = self.attention(self.attention_norm(x))
        return x + (
            mixed if self.attention_output_norm is None else self.attention_output_norm(mixed)
        )

    def _normed_feed_forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.feed_forward(self.feed_forward_norm(x))
        return (
            found if self.feed_forward_output_norm is None else self.feed_forward_output_norm(found)
        )
