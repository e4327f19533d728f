"""Arguments written with recipe fields: `--tp {tensor_parallel}` becomes list items, never a shell's line.

    {tensor_parallel}                       the field's value
    {sequence_parallel?--sequence-parallel} a whole argument: the text where the field is true, else no argument
    {recompute=full?--recompute}            a whole argument: the text where the field has this value
    {trainer_arguments}                     a whole argument: the list that the ready-made trainer makes
    {{ and }}                               braces

Nothing else is done to an argument: no variables, no globs, no quotes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from frontrunner.spaces.errors import InvalidInput, bad_value, did_you_mean

SPLICED = "trainer_arguments"
PIECE = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
CONDITION = re.compile(r"\{([a-z_]+)(?:=([^?{}]*))?\?((?:\{\{|\}\}|[^{}])*)\}")


@dataclass(frozen=True)
class Template:
    """An argument list with fields; `fields` gives those that exist, for a recipe, as the text that each becomes."""

    arguments: tuple[str, ...]

    @property
    def splices(self) -> bool:
        """Whether a ready-made trainer's arguments are to be put in."""
        return f"{{{SPLICED}}}" in self.arguments

    def filled(self, fields: Mapping[str, str], spliced: Sequence[str] = ()) -> tuple[str, ...]:
        """The arguments of one recipe; raises `InvalidInput` for a field that does not exist, with the nearest name."""
        return tuple(item for text in self.arguments for item in _filled(text, fields, spliced))


def _filled(text: str, fields: Mapping[str, str], spliced: Sequence[str]) -> Iterator[str]:
    condition = CONDITION.fullmatch(text)
    if text == f"{{{SPLICED}}}":
        yield from spliced
    elif condition is None:
        yield filled_text(text, fields)
    elif _value(condition[1], text, fields) == ("true" if condition[2] is None else condition[2]):
        yield condition[3].replace("{{", "{").replace("}}", "}")


def filled_text(text: str, fields: Mapping[str, str]) -> str:
    """One text with its fields put in."""

    def put_in(match: re.Match[str]) -> str:
        piece = match[0]
        if piece in ("{{", "}}"):
            return piece[0]
        if match[1] is None:
            raise bad_value("command", text, f"a field between {{ and }}; a single {piece} is written {piece * 2}")
        return _value(match[1], text, fields)

    return PIECE.sub(put_in, text)


def _value(name: str, text: str, fields: Mapping[str, str]) -> str:
    if name in fields:
        return fields[name]
    if name == SPLICED:
        raise bad_value("command.arguments", text, f"{{{SPLICED}}} as an argument of its own")
    raise InvalidInput(f"command: no field is called {{{name}}} in {text!r}", hint=did_you_mean(name, fields))
