"""Locations of the store and the run folders: defaults < campaign file < environment < flags."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from pathlib import Path

import click

from frontrunner.results.redaction import redact

DEFAULT_STORE = "frontrunner.db"
STORE_VARIABLE = "FRONTRUNNER_STORE"
RUNS_VARIABLE = "FRONTRUNNER_RUNS"
BY_SERVER = (
    "best|pareto|show|compare|status|history|failures|campaigns|dataframe|report|plot|explain"
)
BY_SERVER += "|export|budget|rename|label|delete|mcp"
BY_STORE = (
    f"{BY_SERVER}|launch|resume|measure|sweep|scale|replay|profile|dryrun|import|calibrate|doctor"
)
BY_STORE += "|serve|store check|store recover|store backup|store upgrade|store copy|store prune"
BY_STORE += "|store import-archive"
BY_SERVER += "|users add|users list|users remove"
"""Commands with --server, and with --store."""
AT_HAND = "frontrunner.at-hand."
"""Keys of click's `Context.meta` for the running command's `store`, `server` and campaign `file`,
or `campaign`.
"""


def store_url(flag: str | None = None, *, from_file: str | None = None) -> str:
    """Return the store's URL, or a path for SQLite. An empty flag counts: opening it fails with the
    reason.
    """
    if flag is not None:
        return flag
    return os.environ.get(STORE_VARIABLE) or from_file or DEFAULT_STORE


def shown_store(url: str) -> str:
    """Return the store's URL or path for printing, without the password of a database."""
    return redact([url])[0]


def located(text: str) -> str:
    """Make the commands in a text ones to paste: with the running command's campaign file, --store
    or --server.

    A command ends at one of "`,;#()", and begins with what started this program.
    """
    context = click.get_current_context(silent=True)
    if context is None:
        return text
    at_hand = {key.removeprefix(AT_HAND): value for key, value in context.meta.items()}
    if file := at_hand.get("file") or at_hand.get("campaign"):
        text = re.sub(r"\bFILE\b", lambda _: shlex.quote(file), text)
    name = next((name for name in ("store", "server") if name in at_hand), None)
    if name is None:
        return _runnable(text)
    option = f" --{name} {shlex.quote(shown_store(at_hand[name]))}"

    def add(found: re.Match[str]) -> str:
        command = found[0]
        if not re.match(
            rf"frontrunner ({BY_SERVER if name == 'server' else BY_STORE})(?![\w-])", command
        ):
            return f"{command}  # where the store is" if name == "server" else command
        return command if f" --{name} " in command else command + option

    return _runnable(
        re.sub(rf"frontrunner ({BY_STORE}|{BY_SERVER})(?![\w-])([^`,;#()]*[^`,;#()\s])?", add, text)
    )


def _runnable(text: str) -> str:
    return re.sub(r"(?<![\w./-])frontrunner (?=[a-z])", lambda _: f"{started_by()} ", text)


def started_by() -> str:
    """Return what started this program, for a shell: `frontrunner` where its PATH leads to that,
    else the file.
    """
    script = Path(sys.argv[0])
    if script.name != "frontrunner" or shutil.which("frontrunner") == str(script.absolute()):
        return "frontrunner"
    inside = script.is_absolute() and script.is_relative_to(Path.cwd())
    return shlex.quote(str(script.relative_to(Path.cwd()) if inside else script))


def run_root(url: str, *, from_file: str | None = None) -> Path:
    """Return the parent of the folders of probes and replays: next to an SQLite store, else in the
    working folder.
    """
    chosen = os.environ.get(RUNS_VARIABLE) or from_file
    if chosen:
        return Path(chosen).resolve()
    path = url.removeprefix("sqlite:///")
    return (
        Path.cwd() if "://" in path else Path(os.path.realpath(path)).parent
    ) / "frontrunner-runs"
