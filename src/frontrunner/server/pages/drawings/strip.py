"""The strip of a model that is cut: a column a stage, as wide as it has layers, and a row a tensor-parallel part."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

from frontrunner.spaces.recipe import Recipe
from frontrunner.spaces.stages import even_layers, rank_of_stage

STRIP_HEIGHT, LEAST_WIDTH, MOST_WIDTH, ROOM_A_STAGE = 64, 566, 1148, 24
MOST_PARTS_DRAWN = 16
ROOM_FOR_WORDS, ROOM_A_CHARACTER = 112, 7.5
LIGHTEST, DARKEST = 0.14, 0.62
"""Opacities of the first and the last stage: text can be read on all between."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A stage in the strip of the model: `layers` layers, held by the pipeline rank `rank`; `words` are its lines."""

    number: int
    rank: int
    layers: int
    x: float
    width: float
    shade: float
    words: tuple[str, ...]


def shade(place: int, places: int) -> float:
    """The opacity of the place-th of so many; one alone has the middle."""
    share = place / (places - 1) if places > 1 else 0.4
    return round(LIGHTEST + (DARKEST - LIGHTEST) * share, 3)


def strip_width(stages: int) -> float:
    """At least so wide, and wider where each of many stages then has room for its number."""
    return min(max(LEAST_WIDTH, ROOM_A_STAGE * stages), MOST_WIDTH)


def parts(tensor_parallel: int) -> tuple[float, ...]:
    """The heights at which the strip is cut into tensor-parallel parts; too many would be a grey area."""
    if tensor_parallel > MOST_PARTS_DRAWN:
        return ()
    return tuple(STRIP_HEIGHT * part / tensor_parallel for part in range(1, tensor_parallel))


def stages(recipe: Recipe, layers: int, width: float) -> tuple[Stage, ...]:
    """The stages of a recipe beside one another on a strip so wide, each as wide as it has layers."""
    counts = recipe.layers_per_stage or even_layers(layers, recipe.stages)
    begins = [width * count / sum(counts) for count in accumulate(counts, initial=0)]
    found = []
    for number, count in enumerate(counts):
        rank, size = rank_of_stage(recipe, number), begins[number + 1] - begins[number]
        found.append(
            Stage(
                number=number,
                rank=rank,
                layers=count,
                x=begins[number],
                width=size,
                shade=shade(rank, recipe.pipeline_parallel),
                words=_stage_words(number, count, size),
            )
        )
    return tuple(found)


def _stage_words(number: int, layers: int, width: float) -> tuple[str, ...]:
    """Which stage it is and how many layers it has, in one line or in two; nothing where there is no room."""
    if width >= ROOM_FOR_WORDS:
        return (f"stage {number}: {layers} layer{'s' if layers > 1 else ''}",)
    if width >= ROOM_A_CHARACTER * len(f"S{number}"):
        return f"S{number}", f"{layers} L"
    return ()
