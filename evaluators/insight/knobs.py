"""The knobs of a campaign: the dimensions of its space that have a choice, and a recipe's position on each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from frontrunner.spaces.choices import Choice
from frontrunner.spaces.recipe import Recipe
from frontrunner.spaces.space import Survey

SHORT = {
    "tensor_parallel": "TP",
    "pipeline_parallel": "PP",
    "context_parallel": "CP",
    "micro_batch_seqs": "micro-batch",
    "virtual_stages": "virtual stages",
    "sequence_parallel": "seq. parallel",
    "loss_chunks": "loss chunks",
    "feed_forward_tiles": "FFN tiles",
    "optimizer_state": "optimizer state",
    "activation_offload": "act. offload",
    "secondary_partition": "secondary",
    "layer_split": "layer split",
}
"""How axes name a dimension; one that is not here is called what it is."""


@dataclass(frozen=True, kw_only=True)
class Knob:
    """A dimension with the values that recipes take on it, in the order of the space; numbers rise."""

    name: str
    values: tuple[Choice, ...]

    @property
    def label(self) -> str:
        """The name as axes print it."""
        return SHORT.get(self.name, self.name)

    @property
    def is_numeric(self) -> bool:
        """Whether the values are numbers."""
        return all(isinstance(value, int) and not isinstance(value, bool) for value in self.values)

    def place(self, recipe: Recipe) -> int:
        """The index of the recipe's value among `values`."""
        return self.values.index(setting(recipe, self.name))


def setting(recipe: Recipe, dimension: str) -> Choice:
    """A recipe's own value on a dimension of spaces: a schedule without a pipeline is `none`, whatever was asked."""
    if dimension == "sharding":
        return recipe.sharding_name
    if dimension == "layer_split":
        return "balanced" if recipe.layers_per_stage else "even"
    value: Choice = getattr(recipe, dimension)
    return value


def shown(value: Choice) -> str:
    """A value in words: flags are yes and no."""
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


def knobs(survey: Survey, recipes: Sequence[Recipe]) -> tuple[Knob, ...]:
    """The dimensions with a choice in which these recipes differ."""
    found = []
    for name, choices in survey.dimensions.items():
        if len(choices) == 1:
            continue  # a lone schedule is `none` without a pipeline: that is the pipeline's doing
        present = {setting(recipe, name) for recipe in recipes}
        if len(present) > 1:
            found.append(Knob(name=name, values=tuple(sorted(present, key=_order(survey, name)))))
    return tuple(found)


def _order(survey: Survey, name: str) -> Callable[[Choice], tuple[int, str]]:
    """Numbers and flags by size; words as the space lists them, after those that it does not list."""
    listed = list(survey.dimensions[name])

    def key(value: Choice) -> tuple[int, str]:
        if not isinstance(value, str):
            return int(value), ""
        return (listed.index(value), "") if value in listed else (-1, value)

    return key
