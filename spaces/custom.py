"""Knobs of the user's own: choices that Frontrunner knows nothing of but how a trainer is given
them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from frontrunner.spaces.errors import InvalidInput, bad_value, shown

Choice = int | float | str | bool

NAME = re.compile(r"[a-z][a-z0-9_]{0,63}", re.ASCII)
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}", re.ASCII)
LONGEST = 200
VALUE = "{value}"
OURS = re.compile(
    r"PATH|HOME|USER|SHELL|ENV|BASH_ENV|IFS|TMPDIR|LD_.*|DYLD_.*|PYTHON.*|VIRTUAL_ENV|FRONTRUNNER_.*"
    r"|(LOCAL_|GROUP_|ROLE_|NODE_)?RANK|(LOCAL_|GROUP_|ROLE_)?WORLD_SIZE|MASTER_(ADDR|PORT)|TORCHELASTIC_.*"
    r"|(CUDA|HIP|ROCR)_VISIBLE_DEVICES|GPU_DEVICE_ORDINAL|ZE_AFFINITY_MASK|SLURM_.*|PBS_.*|PMIX?_.*|OMPI_.*"
)
"""Variables by which programs are found, ranks find one another and devices, and probes are
ended.
"""
AT_IMPORT = re.compile(r"(G?OMP|KMP|MKL|OPENBLAS|MALLOC|GLIBC)_.*")
"""Variables that are read when a process starts or imports torch, which the built-in trainer does
before it forks.
"""


@dataclass(frozen=True, kw_only=True)
class Custom:
    """The value that a recipe has of one knob, and how its trainer is given it: by a `flag`, or by
    a variable `env`.
    """

    name: str
    value: Choice
    flag: str | None = None
    env: str | None = None

    def __post_init__(self) -> None:
        owner = f"custom.{self.name[:64]}"
        if not NAME.fullmatch(self.name):
            raise bad_value(
                "custom", self.name, "a name of a-z, 0-9 and _ that begins with a letter"
            )
        if (self.flag is None) == (self.env is None):
            what = "both a flag and env" if self.flag is not None else "neither a flag nor env"
            raise InvalidInput(
                f'{owner} has {what}: expected one of flag = "--x {VALUE}" and env = "NCCL_..."'
            )
        _check_text(f"{owner}.value", str(self.value))
        if self.env is not None:
            if not VARIABLE.fullmatch(self.env):
                raise bad_value(
                    f"{owner}.env", self.env, "the name of a variable, as NCCL_MIN_NCHANNELS"
                )
            if OURS.fullmatch(self.env):
                hint = "programs, ranks and devices are found by it"
                raise bad_value(
                    f"{owner}.env", self.env, "a variable that does not steer probes", hint=hint
                )
        if self.flag is not None:
            _check_text(f"{owner}.flag", self.flag)
            if not self.flag.split() or re.search(r"[{}]", self.flag.replace(VALUE, "")):
                raise bad_value(
                    f"{owner}.flag", self.flag, f"arguments with {VALUE} where the value goes"
                )
            if VALUE not in self.flag and not isinstance(self.value, bool):
                expected = (
                    f"{VALUE} in it, or values that are true and false: an argument without a value"
                )
                raise bad_value(f"{owner}.flag", self.flag, expected)

    def as_arguments(self) -> tuple[str, ...]:
        """Return the flag in words, which spaces alone separate; none where one without a value is
        false.
        """
        if self.flag is None or (VALUE not in self.flag and not self.value):
            return ()
        return tuple(word.replace(VALUE, self._text("true", "false")) for word in self.flag.split())

    def shown(self) -> str:
        """Return the value for people: yes and no for true and false."""
        return self._text("yes", "no")

    def as_variable(self) -> dict[str, str]:
        """Return the variable with its value; 1 and 0 for true and false."""
        return {} if self.env is None else {self.env: self._text("1", "0")}

    def _text(self, yes: str, no: str) -> str:
        return (yes if self.value else no) if isinstance(self.value, bool) else str(self.value)

    def words(self) -> str:
        """Return `name=value`."""
        return f"{self.name}={self.shown()}"


def _check_text(key: str, text: str) -> None:
    if not text.isprintable() or len(text) > LONGEST:
        raise bad_value(key, text[:LONGEST], f"at most {LONGEST} printable characters")


@dataclass(frozen=True, kw_only=True)
class CustomKnob:
    """A knob of a space. A recipe with the `default` is one without the knob: its trainer is not
    given it.
    """

    values: tuple[Choice, ...]
    """What is tried: numbers, or strings, or `true` and `false`."""
    flag: str | None = None
    """Arguments that a trainer's command gets, `{value}` where the value goes; words are separated
    by spaces. Without `{value}` the values are `true`, which adds it, and `false`.
    """
    env: str | None = None
    """The environment variable that ranks or the command get; `true` and `false` are 1 and 0."""
    default: Choice | None = None
    """Which of the values the trainer has where it is given none; by default each value is
    given.
    """

    def at(self, name: str, value: Choice) -> tuple[Custom, ...]:
        """Return what a recipe holds for a value: nothing for the default."""
        if value == self.default:
            return ()
        return (Custom(name=name, value=value, flag=self.flag, env=self.env),)

    def check(self, name: str) -> None:
        """Raise `InvalidInput` unless a space can have this knob under this name."""
        owner = f"space.custom.{name[:64]}"
        if not NAME.fullmatch(name):
            raise bad_value(
                "space.custom", name[:80], "a name of a-z, 0-9 and _ that begins with a letter"
            )
        if not self.values:
            raise bad_value(f"{owner}.values", [], "at least one value")
        kinds = {
            "true or false" if isinstance(v, bool) else "text" if isinstance(v, str) else "numbers"
            for v in self.values
        }
        if len(kinds) > 1 or len(set(self.values)) != len(self.values):
            expected = "different values of one kind: numbers, texts, or true and false"
            raise bad_value(f"{owner}.values", list(self.values), expected)
        if self.default is not None and not any(
            self.default == value and isinstance(self.default, bool) == isinstance(value, bool)
            for value in self.values
        ):
            raise bad_value(
                f"{owner}.default",
                self.default,
                f"one of {owner}.values = {shown(list(self.values))}",
            )
        for value in self.values:
            try:
                Custom(name=name, value=value, flag=self.flag, env=self.env)
            except InvalidInput as error:
                raise InvalidInput(f"space.{error.message}", hint=error.hint) from None
