"""Shell scripts that hold a recipe's arguments: sourced by a launch script, or read by a person."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence

from frontrunner.evaluators.export.export import Launch

END_OF_FILE = "END_OF_FILE"


def comments(lines: Iterable[str]) -> str:
    """The lines as comments of a shell script or a YAML file; what does not print is left out."""
    return "".join("# " + "".join(c if c.isprintable() else " " for c in line) + "\n" for line in lines)


def launcher_array(launch: Launch) -> tuple[str, ...]:
    """The launcher's counts of nodes and of processes a node."""
    return "--nnodes", str(launch.nodes), "--nproc-per-node", str(launch.per_node)


def array(name: str, words: Sequence[str]) -> str:
    """A bash array, an option with its values a line; words are quoted for the shell, since arrays are its syntax."""
    lines: list[list[str]] = []
    for word in words:
        if word.startswith("-") or not lines:
            lines.append([])
        lines[-1].append(shlex.quote(word))
    return f"{name}=(\n" + "".join(f"  {' '.join(line)}\n" for line in lines) + ")\n"


def script(header: Sequence[str], arrays: Mapping[str, Sequence[str]], files: Mapping[str, str]) -> str:
    """A bash script that writes `files` into the working folder and sets the arrays."""
    parts = [comments(header)]
    parts += [f"cat > {shlex.quote(name)} <<'{END_OF_FILE}'\n{text}{END_OF_FILE}\n" for name, text in files.items()]
    parts += [array(name, words) for name, words in arrays.items() if words]
    return "\n".join(parts)
