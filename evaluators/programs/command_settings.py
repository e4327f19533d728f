"""Other trainers as probes, judged like our own, and their settings: the section [command] of a
campaign file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from frontrunner.spaces.errors import bad_value, require_one_of

PASSED = ("PATH", "HOME", "USER", "LANG", "TMPDIR")
"""Environment variables of the driver that a command gets by default."""
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
STARTS = ("node", "rank")
PASSED_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\*?", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class CommandSettings:
    """The trainer's command and its log format; see docs/other-trainers.md.

    `log_patterns` come before those of the ready-made trainer, and `environment` after
    `pass_environment`.
    """

    arguments: tuple[str, ...] = ()
    """The program and its arguments, with [fields](other-trainers.md#the-arguments) of the recipe
    as `{tensor_parallel}`.
    """
    trainer: str | None = None
    """A ready-made trainer, which fills `{trainer_arguments}` and reads its log: `megatron-lm`,
    `megatron-deepspeed`, `deepspeed`, `nemo`, `torchtitan`, `nanotron` or `accelerate`."""
    log: str | None = None
    """The ready-made trainer whose log the command writes, where that is another."""
    log_patterns: tuple[str, ...] = ()
    """Regular expressions with named groups that find step times, losses, peaks and rates in the
    log: see [patterns](other-trainers.md#patterns).
    """
    start_per: str = "node"
    """`node`: with a `dispatch.backend` the command is started once on each node of a recipe, as
    torchrun wants it; by default once on this machine, and for several nodes it starts the ranks
    there itself. `rank`: once per device, with its place in
    [variables](other-trainers.md#the-arguments) and fields.
    """
    folder: str | None = None
    """Folder that the command starts in, relative to the campaign file; by default the file's
    own.
    """
    pass_environment: tuple[str, ...] = PASSED
    """Environment variables that the command inherits; `SLURM_*` passes all that begin so."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that are set for it; fields may be used."""

    def __post_init__(self) -> None:
        require_one_of("command", "start_per", self.start_per, STARTS)
        for text in (*self.arguments, *self.environment.values(), self.folder or ""):
            if "\0" in text:
                raise bad_value(
                    "command", text, "text without NUL characters, which no process can get"
                )
        for name in self.pass_environment:
            if not PASSED_NAME.fullmatch(name):
                raise bad_value(
                    "command.pass_environment", name, "names of variables, as PATH or SLURM_*"
                )
        for name in self.environment:
            if not VARIABLE.fullmatch(name):
                raise bad_value(
                    "command.environment", name, "names of variables, as OMP_NUM_THREADS"
                )
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
        return {
            name: value
            for name, value in environment.items()
            if name in exact or name.startswith(begins)
        }
