"""Launch scripts and argument files read without a shell: the options in them, and the files that they write."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

from frontrunner.spaces.errors import InvalidInput

LONGEST_VALUE = 200
"""Characters of a variable's value; scripts that repeat longer ones within one another could grow without end."""
LONGEST_LINE = 64 * 1024
_ASSIGNMENT = re.compile(r"\s*(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)=(\"[^\"$`]*\"|'[^']*'|[^\s;()\"'$`]*)\s*(?:#.*)?")
_OPTIONS = re.compile(r"(?<![A-Za-z0-9_])[A-Za-z_][A-Za-z0-9_]*\+?=(?=.*--)")
"""A variable that is given options in quotes; the look behind keeps a search through a long word short."""
_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_][A-Za-z0-9_]*)(?::?-([^}$`]*))?\}|([A-Za-z_][A-Za-z0-9_]*))")
_HEREDOC = re.compile(r"cat > (\S+) <<'?(\w+)'?")


def embedded_files(text: str) -> dict[str, str]:
    """The files that a script writes by `cat > NAME <<WORD`, by name."""
    return _without_files(text)[1]


def _without_files(text: str) -> tuple[list[str], dict[str, str]]:
    """The lines of a script apart from the files that it writes, and these files."""
    lines: list[str] = []
    files: dict[str, list[str]] = {}
    name, end = "", ""
    for line in text.split("\n"):
        if end and line == end:
            end = ""
        elif end:
            files[name].append(line + "\n")
        elif (begins := _HEREDOC.fullmatch(line)) is not None:
            name, end = begins[1], begins[2]
            files[name] = []
        else:
            lines.append(line)
    return lines, {name: "".join(content) for name, content in files.items()}


def options(text: str) -> dict[str, tuple[str, ...]]:
    """The options of a launch script or an argument file, `--name` -> the word that follows it; the last one wins.

    Names have dashes for underscores. Nothing is run: variables count as far as the text itself gives them a plain
    value. Words that hold any other variable are kept as they stand, and refused by whoever needs them. Raises
    `InvalidInput` for a line that is too long.
    """
    variables: dict[str, str] = {}
    found: dict[str, tuple[str, ...]] = {}
    name: str | None = None
    for written in "\n".join(_without_files(text)[0]).replace("\\\n", " ").split("\n"):
        line = _substituted(written, variables)
        assignment = _ASSIGNMENT.fullmatch(line)
        if assignment:
            _assign(variables, assignment[1], assignment[2].strip("\"'"))
        for word in _words(line):
            key, equals, value = word.partition("=")
            if word.startswith("--") and len(word) > 2:
                name = key.replace("_", "-")
                found[name] = (value,) if equals else ()
            elif name is not None and not found[name]:
                found[name] = (word,)
    return found


def _assign(variables: dict[str, str], name: str, value: str) -> None:
    """Keep a variable's value; one that is too long is as good as unknown."""
    variables.pop(name, None)
    if len(value) <= LONGEST_VALUE:
        variables[name] = value


def _substituted(line: str, variables: Mapping[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        known = variables.get(match[1] or match[3])
        return match[0] if known is None and match[2] is None else (known or match[2] or "")

    found = _VARIABLE.sub(value, line)
    if len(found) > LONGEST_LINE:
        raise InvalidInput(f"a line of {len(found):,} characters: expected at most {LONGEST_LINE:,}")
    return found


def _words(line: str) -> list[str]:
    """The words of a line of shell, without the parentheses of arrays and the names of variables given options."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=False)
    lexer.whitespace_split = True
    lexer.commenters = "#"
    try:
        words = list(lexer)
    except ValueError:  # a quotation that began on an earlier line, or ends on a later one
        words = [_OPTIONS.sub("", line, count=1).replace('"', " ").replace("'", " ").partition(" #")[0]]
        return words[0].split()
    parts = (
        part for word in words for part in (_OPTIONS.sub("", word, count=1).split() if _OPTIONS.match(word) else [word])
    )
    return [part for part in (part.removeprefix("(").removesuffix(")") for part in parts) if part]
