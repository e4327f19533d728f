"""Configurations of other tools as they are given to be read, and what of a recipe was found in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from frontrunner.spaces.errors import InvalidInput, bad_value, did_you_mean
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import Recipe
from frontrunner.spaces.sharding import Sharding
from frontrunner.spaces.wording import shown, shown_key

MOST_CHARACTERS = 256 * 1024
STATED = (*(f.name for f in fields(Recipe) if f.name != "layers_per_stage"),)
"""What may be said beside a configuration that leaves it out; sharding by its name."""
OTHER_PROBLEM = "give the campaign file of this configuration's model, sequence length, precision and batch"
_LARGEST = 2**31 - 1


@dataclass(frozen=True, kw_only=True)
class Given:
    """A configuration: its text, what its owner says beside it, and the files that it may name.

    `stated` holds values of `STATED`. `beside` gives the text of a file by the name that the configuration has for
    it, or None.
    """

    text: str
    stated: Mapping[str, Any] = field(default_factory=dict)
    beside: Callable[[str], str | None] = lambda _: None

    def __post_init__(self) -> None:
        if len(self.text) > MOST_CHARACTERS:
            raise InvalidInput(f"the configuration has {len(self.text):,} characters: at most {MOST_CHARACTERS:,} do")
        for key in self.stated:
            if key not in STATED:
                raise bad_value(
                    shown_key(key), self.stated[key], "a choice of a recipe", hint=did_you_mean(key, STATED)
                )


def number(key: str, words: Sequence[str]) -> int:
    """The whole number of at least 1 that an option has; raises `InvalidInput`."""
    text = words[0] if words else ""
    if not (text.isdecimal() and text.isascii() and len(text) <= 10 and 1 <= int(text) <= _LARGEST):
        raise bad_value(key, text, "a whole number of at least 1", hint="write the number in place of a variable")
    return int(text)


def number_in(table: Mapping[str, Any], key: str, path: str) -> int | None:
    """The whole number of at least 1 under a key of a parsed file, None where it is not there or null."""
    value = table.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _LARGEST:
        raise bad_value(path, value, "a whole number of at least 1")
    return value


def flag_in(table: Mapping[str, Any], key: str, path: str) -> bool:
    """The true or false under a key of a parsed file; False where it is not there or null."""
    value = table.get(key)
    if value is not None and not isinstance(value, bool):
        raise bad_value(path, value, "true or false")
    return bool(value)


def table_in(table: Mapping[str, Any], key: str, path: str) -> Mapping[str, Any]:
    """The table under a key of a parsed file; empty where it is not there or null."""
    value = table.get(key)
    if value is not None and not isinstance(value, Mapping):
        raise bad_value(path, value, "a table of keys and values")
    return value or {}


def refuse_other_problem(said: Mapping[str, tuple[object, object]]) -> None:
    """Raise `InvalidInput` for the first setting, key -> (its value, the problem's), that is of another problem."""
    for key, (found, wanted) in said.items():
        if found is not None and found != wanted:
            raise InvalidInput(
                f"{shown_key(key)} = {shown(found)}: the campaign file's problem has {shown(wanted)}",
                hint=OTHER_PROBLEM,
            )


def refuse_other_default(unsaid: str, found: object, wanted: object) -> None:
    """Raise `InvalidInput` where what a configuration leaves out stands for another problem; `unsaid` says what."""
    if found != wanted:
        raise InvalidInput(
            f"{unsaid}, which stands for {shown(found)}: the campaign file's problem has {shown(wanted)}",
            hint=OTHER_PROBLEM,
        )


def refuse_other_vocabulary(problem: Problem, key: str, found: int | None) -> None:
    """Raise `InvalidInput` for a vocabulary that, padded as the problem's is, has another number of rows."""
    model = problem.model
    if found is None:
        return
    rows = -(-found // model.vocabulary_multiple) * model.vocabulary_multiple
    if rows != model.padded_vocabulary:
        refuse_other_problem({key: (found, model.vocabulary)})


def recipe_of(problem: Problem, found: Mapping[str, Any], given: Given) -> Recipe:
    """The recipe of what was found and stated; where neither says the devices, all of the cluster's.

    `found` may hold `sharding` as a name and, where accumulation is not known, `global_batch_seqs`. Raises
    `InvalidInput` for what is missing, and for what is both found and stated and differs.
    """
    choices = {key: value for key, value in found.items() if value is not None}
    for key, value in given.stated.items():
        if choices.setdefault(key, value) != value:
            raise InvalidInput(f"{key} = {shown(value)} was given, but the configuration says {shown(choices[key])}")
    choices.setdefault("devices", problem.cluster.devices)
    if "micro_batch_seqs" not in choices:
        raise _unsaid("micro_batch_seqs")
    sharding, batch = choices.pop("sharding", "none"), choices.pop("global_batch_seqs", None)
    frame = Recipe(**{**choices, "accumulation": choices.get("accumulation", 1)})
    if batch is not None:
        choices["accumulation"] = _accumulation(frame, batch, choices.get("accumulation"))
    elif "accumulation" not in choices:
        raise _unsaid("accumulation")
    if not isinstance(sharding, Sharding):
        sharding = Sharding.named(sharding, frame.copies)
    return Recipe(**{**choices, "sharding": sharding})


def _accumulation(frame: Recipe, batch: int, said: int | None) -> int:
    per_micro_batch = frame.micro_batch_seqs * frame.data_parallel
    product = f"{frame.micro_batch_seqs} x {frame.data_parallel} replicas"
    if batch % per_micro_batch:
        raise bad_value("global batch", batch, f"a multiple of the micro-batch of all replicas, {product}")
    if said is not None and said != batch // per_micro_batch:
        raise bad_value("accumulation", said, f"{batch // per_micro_batch}: global batch {batch} over {product}")
    return batch // per_micro_batch


def _unsaid(key: str) -> InvalidInput:
    return InvalidInput(f"the configuration does not say {key}", hint=f"say it: --set {key}=N")
