"""Settings of the command that probes recipes: the section [command] of a campaign's file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from frontrunner.spaces.errors import bad_value

PASSED = ("PATH", "HOME", "USER", "LANG", "TMPDIR")
"""Environment variables of the driver that a command gets by default."""
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
PASSED_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\*?", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class CommandSettings:
    """The trainer's command and its log format; see docs/other-trainers.md.

    `arguments` is the template of an argument list. `trainer` names a ready-made trainer, which fills the field
    `{trainer_arguments}`; `log` names the ready-made trainer whose log format the command writes, if that is another.
    `log_patterns` are regular expressions that come before those of the ready-made one. The command starts in `folder`.
    From the driver's environment it gets the variables of `pass_environment` (a name that ends in `*` passes all with
    that prefix), and then those of `environment`.
    """

    arguments: tuple[str, ...] = ()
    trainer: str | None = None
    log: str | None = None
    log_patterns: tuple[str, ...] = ()
    folder: str | None = None
    pass_environment: tuple[str, ...] = PASSED
    environment: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for text in (*self.arguments, *self.environment.values(), self.folder or ""):
            if "\0" in text:
                raise bad_value("command", text, "text without NUL characters, which no process can get")
        for name in self.pass_environment:
            if not PASSED_NAME.fullmatch(name):
                raise bad_value("command.pass_environment", name, "names of variables, as PATH or SLURM_*")
        for name in self.environment:
            if not VARIABLE.fullmatch(name):
                raise bad_value("command.environment", name, "names of variables, as OMP_NUM_THREADS")
        if self.folder is not None and not self.folder.strip():
            raise bad_value("command.folder", self.folder, "the path of a folder")

    @property
    def start_folder(self) -> Path:
        """Return where commands start: `folder`, by default the working directory."""
        return Path(self.folder or Path.cwd())

    def passed(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return the variables of `environment` that the command gets."""
        exact = {name for name in self.pass_environment if not name.endswith("*")}
        begins = tuple(name[:-1] for name in self.pass_environment if name.endswith("*"))
        return {name: value for name, value in environment.items() if name in exact or name.startswith(begins)}
