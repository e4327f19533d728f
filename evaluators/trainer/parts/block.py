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
from frontrunner.evaluators.trainer.parts.recompute import (
    Transform,
    recomputed,
    selective_contexts,
)
from frontrunner.evaluators.trainer.parts.rotary import RotaryTable
from frontrunner.spaces.model.attention import LatentAttention
from frontrunner.spaces.model.feed_forward import MixtureOfExperts
from frontrunner.spaces.model.layer import Layer
from frontrunner.spaces.recipe import Recipe


class Block(nn.Module):
    """One layer: attention and a feed-forward part, each behind a norm and added to its input.

    The feed-forward part reads what attention has added to, or, in models with a parallel residual,
    the layer's input.

    Attributes:
        run: The whole layer, with the recipe's recompute. `Gpt.compile_blocks` compiles it.
        attend: The half with attention. `Gpt.compile_blocks` compiles it in layers with experts.
    """

    def __init__(
        self,
        layer: Layer,
        rotary: RotaryTable | None,
        recipe: Recipe,
        context: ContextRanks | None,
        host_activations: HostActivations | None,
        *,
        first_position: int = 0,
    ) -> None:
        super().__init__()
        self._recompute = recipe.recompute
        self._selective_contexts = selective_contexts()
        self._host_activations = host_activations
        self._rotary = rotary
        self._tiles = recipe.feed_forward_tiles
        self._is_parallel = layer.parallel_residual
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
            MixtureModule(layer.feed_forward, host_activations)
            if isinstance(layer.feed_forward, MixtureOfExperts)
            else FeedForwardModule(layer.feed_forward)
        )
        self.feed_forward_output_norm = make_norm(layer.norm, hidden) if layer.post_norms else None

    def forward(self, x: Tensor) -> Tensor:
        """[B, S, D] -> [B, S, D]."""
        if self._host_activations is None or not torch.is_grad_enabled():
            return self.run(x)
        tables = () if self._rotary is None else self._rotary.on(x.device)
        with self._host_activations.layer(x.device, (*self.parameters(), *tables)):
            return self.run(x)

    def _run_recomputing(self, x: Tensor) -> Tensor:
        if self._recompute == "none" or not torch.is_grad_enabled():
            return self._transform(x)
        if self._recompute == "full":
            return recomputed(self._transform, x)
        # What a compiled layer keeps is handed to its backward pass, where the hooks of offloading
        # see it.
        if self._host_activations is None or torch.compiler.is_compiling():
            return recomputed(self._transform, x, context_fn=self._selective_contexts)
        return recomputed(self._transform, x, context_fn=self._host_activations.selective_contexts)

    def _transform(self, x: Tensor) -> Tensor:
        attended = self.attend(x)
        feed_forward_input = x if self._is_parallel else attended
        if self._tiles == 1:
            return attended + self._feed_forward(feed_forward_input)
        tiles = [
            recomputed(self._feed_forward, tile)
            for tile in feed_forward_input.chunk(self._tiles, dim=1)
        ]
        return attended + torch.cat(tiles, dim=1)

    def _attend(self, x: Tensor) -> Tensor:
        mixed: Tensor = self.attention(self.attention_norm(x))
        if self.attention_output_norm is not None:
            mixed = self.attention_output_norm(mixed)
        return x + mixed

    def _feed_forward(self, x: Tensor) -> Tensor:
        """Return the feed-forward part's output between its norms, without the input."""
        output: Tensor = self.feed_forward(self.feed_forward_norm(x))
        if self.feed_forward_output_norm is not None:
            output = self.feed_forward_output_norm(output)
        return output
