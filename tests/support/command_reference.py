"""The reference of commands in docs/commands.md."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import click

from frontrunner.cli.main import SECTIONS, frontrunner

COMMON = ("store", "server", "as_json")
MARKED = re.compile(r"(<!-- commands -->\n).*?(<!-- end of commands -->)", re.DOTALL)


def reference() -> str:
    """Return the Markdown reference of all commands."""
    parts = []
    for title, section in SECTIONS.items():
        parts.append(f"## {title}\n")
        for name in section:
            command = frontrunner.get_command(click.Context(frontrunner), name)
            assert command is not None
            parts += _described(f"frontrunner {name}", command)
            for part, below in getattr(command, "commands", {}).items():
                parts += _described(f"frontrunner {name} {part}", below)
    return "\n".join(parts)


def _described(name: str, command: click.Command) -> Iterator[str]:
    context = click.Context(command, info_name=name)
    usage = " ".join(
        [name, *(word for word in command.collect_usage_pieces(context) if word != "[OPTIONS]")]
    )
    text = inspect.cleandoc(command.help or "").partition("\b")[0].strip()
    yield f"### `{usage}`\n\n{text}\n"
    options = [p for p in command.params if isinstance(p, click.Option)]
    common = [f"`--{p.opts[0].removeprefix('--')}`" for p in options if p.name in COMMON]
    rows = [_row(option, context) for option in options if option.name not in COMMON]
    if rows:
        yield "\n".join(["| option | meaning |", "|---|---|", *rows, ""])
    if common:
        yield f"Also: {', '.join(sorted(common))}.\n"


def _row(option: click.Option, context: click.Context) -> str:
    names, meaning = (
        part.replace("|", "\\|") for part in option.get_help_record(context) or ("", "")
    )
    return f"| `{names}` | {meaning} |"


def updated(page: str) -> str:
    """Return the page with its reference replaced."""
    return MARKED.sub(lambda found: f"{found[1]}\n{reference()}\n{found[2]}", page)
