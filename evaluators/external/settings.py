"""What a campaign says about the command that probes its recipes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from frontrunner.spaces.errors import bad_value

PASSED = ("PATH", "HOME", "USER", "LANG", "TMPDIR")
"""Environment variables of the driver that a command gets where the campaign file names none."""
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
PASSED_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\*?", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class CommandSettings:
    """The trainer's command and what its log looks like; see docs/other-trainers.md.

    `arguments` is the template of an argument list. `trainer` names a ready-made trainer, which fills the field
    `{trainer_arguments}`; `log` a ready-made trainer whose log the command writes, where that is another.
    `log_patterns` are regular expressions that come before those of the ready-made one. `folder` is where the command
    starts. Of the driver's environment it gets the variables of `pass_environment` (a name that ends in `*` passes all
    that begin so), and then those of `environment`.
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
                raise bad_value("command", text, "text without NUL characters, which no process can be given")
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
        """Where commands start: `folder`, else the working directory."""
        return Path(self.folder or Path.cwd())

    def passed(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Of `environment`, the variables that the command gets."""
        exact = {name for name in self.pass_environment if not name.endswith("*")}
        begins = tuple(name[:-1] for name in self.pass_environment if name.endswith("*"))
        return {name: value for name, value in environment.items() if name in exact or name.startswith(begins)}
