"""Every error that a person can cause, with its exit code, and how messages show keys and
values.
"""

from __future__ import annotations

import difflib
import errno
import itertools
import json
import math
import re
import shlex
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path


class FrontrunnerError(Exception):
    """What happened, with the numbers; `hint` is the one next step. Control characters in the
    message are escaped.
    """

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        # A message may quote a path, or another program, that no terminal should obey.
        self.message = "".join(
            one if one.isprintable() or one == "\n" else ascii(one)[1:-1] for one in message
        )
        super().__init__(self.message)
        self.hint = hint


class InvalidInput(FrontrunnerError, ValueError):
    """A value given by a person that cannot be used."""

    exit_code = 2


class NameTaken(InvalidInput):
    """A name for something new that another has already."""


class NotFound(FrontrunnerError, LookupError):
    """Something named by a person that does not exist."""

    exit_code = 2


class ServiceUnreachable(FrontrunnerError):
    """No service responds at the given address."""

    exit_code = 3


class StoreUnusable(FrontrunnerError):
    """The store cannot be opened by this version, or is not a store."""

    exit_code = 4


class AlreadyDriven(FrontrunnerError):
    """Another live driver holds the campaign's lease."""

    exit_code = 5


class CampaignFailed(FrontrunnerError):
    """The campaign paused itself: its probes fail alike, or there is nothing to run them on."""

    exit_code = 6


class NothingLegal(FrontrunnerError):
    """The space holds no legal recipe, or no recipe satisfies a query."""

    exit_code = 7


class NodesUnavailable(FrontrunnerError):
    """There is nothing to run probes on; the campaign may be resumed later."""


class TooLittleTime(NodesUnavailable):
    """What is left of the driver's job is too little for the probes that wait: another job's driver
    may go on.
    """


class JobEnds(FrontrunnerError):
    """What this process drives goes on in another batch job: it has stopped before its own ends."""

    exit_code = 75


def bad_value(key: str, value: object, expected: str, *, hint: str | None = None) -> InvalidInput:
    """Return the standard error for a value that cannot be used: its key, the value, and what was
    expected.
    """
    given = f"{key} is missing" if value is None else f"{key} = {shown(value)}"
    return InvalidInput(f"{given}: expected {expected}", hint=hint)


_FP8 = (
    'FP8 is a choice of recipes: space.fp8 = ["{}"], with problem.precision = "bf16" and tolerance'
    ' = "quantized"'
)
UNSUPPORTED = {
    "chimera": (
        "torch's pipelines hold a stage on one rank, Chimera on two; `dualpipev` has as short a"
        " bubble"
    ),
    **dict.fromkeys(("fp8", "float8"), _FP8.format("rowwise")),
    "mxfp8": _FP8.format("mxfp8"),
    **dict.fromkeys(
        ("num_experts", "num_local_experts", "moe"),
        "a mixture's experts are counted by model.experts",
    ),
    **dict.fromkeys(
        ("top_k", "num_experts_per_tok"), "a token's experts are counted by model.experts_per_token"
    ),
}
"""Words of the field that name something missing, with what to say about them."""


MOST_LISTED = 40
"""Words of a hint."""


def did_you_mean(word: str, known: Iterable[str]) -> str | None:
    """Return a hint: what is missing, else the known word closest to `word`, else the first of
    all.
    """
    if word in UNSUPPORTED:
        return UNSUPPORTED[word]
    words = sorted(known)
    close = difflib.get_close_matches(word, words, n=1, cutoff=0.6)
    if close:
        return f"did you mean {close[0]!r}?"
    more = f" and {len(words) - MOST_LISTED:,} more" if len(words) > MOST_LISTED else ""
    return f"known: {', '.join(words[:MOST_LISTED])}{more}" if words else None


def require_at_least(owner: str, minimum: float, **values: float) -> None:
    """Raise `InvalidInput` for the first of `values` that is below `minimum` (or not a number)."""
    for key, value in values.items():
        if not value >= minimum:  # also catches NaN, for which every comparison is false
            raise bad_value(f"{owner}.{key}", value, f"at least {minimum}")


def require_above_zero(
    key: str, value: float | None, expected: str, *, most: float = math.inf
) -> None:
    """Raise `InvalidInput` unless `value` is a finite number above 0 and at most `most`, or
    None.
    """
    if value is None or 0 < value <= min(most, sys.float_info.max):
        return
    raise bad_value(
        key, value, f"at most {most:,.0f}: is it in another unit?" if value > most else expected
    )


def require_extra(module: str, extra: str, what: str) -> None:
    """Raise `InvalidInput` with the command that installs it unless the module of an optional extra
    is installed.
    """
    if find_spec(module) is None:
        raise InvalidInput(
            f"{what} needs {module} installed", hint=f"run: {installing(f'frontrunner[{extra}]')}"
        )


CONSTRAINTS = Path(__file__).parents[3] / "constraints.txt"
"""The tested versions, which a clone has beside `src`."""


def installing(what: str) -> str:
    """Return the command that installs a package in the environment at hand, in a clone in the
    tested version.
    """
    python, requirement = shlex.quote(sys.executable), shlex.quote(what)
    if holds(CONSTRAINTS.is_file):
        requirement = f"-c {shlex.quote(str(CONSTRAINTS))} {requirement}"
    # As in the environments that uv makes. `find_spec` would ask setuptools' hook, which warns of
    # distutils on stderr.
    if PathFinder.find_spec("pip") is None:
        return f"uv pip install --python {python} {requirement}"
    return f"{python} -m pip install {requirement}"


def require_one_of(owner: str, key: str, value: str, known: Iterable[str]) -> None:
    """Raise `InvalidInput` unless `value` is one of `known`; an option, as --to, has no owner."""
    words = tuple(known)
    if value not in words:
        hint = did_you_mean(value, words)
        is_repeated = hint is not None and hint.startswith("known: ")
        place = f"{owner}.{key}" if owner else key
        raise bad_value(
            place, value, f"one of {', '.join(words)}", hint=None if is_repeated else hint
        )


CAMPAIGN_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
MOST_NAME_CHARACTERS = 64
FALLBACK_NAME = "campaign"


def require_campaign_name(key: str, name: str) -> str:
    """Return the name; raise `InvalidInput` naming `key` unless it may be a campaign's."""
    if not CAMPAIGN_NAME.fullmatch(name):
        raise bad_value(
            key, name, "1 to 64 of a-z, 0-9, '.', '_' and '-', beginning with a-z or 0-9"
        )
    return name


def campaign_name_from(text: str) -> str:
    """Return the campaign name nearest to any text, such as a file's name: `22B run (2)` gives
    `22b-run-2`.
    """
    plain = re.sub(r"[^a-z0-9._-]+", "-", text.lower()).strip("-._")
    return plain[:MOST_NAME_CHARACTERS].rstrip("-._") or FALLBACK_NAME


def free_among(taken: Collection[str], wanted: str) -> str:
    """Return `wanted`, or the first of wanted-2, wanted-3, ... that is not `taken`."""
    numbered = (
        f"{wanted[:58]}-{number}" for number in itertools.count(2)
    )  # a name has at most 64 characters
    return next(name for name in itertools.chain([wanted], numbered) if name not in taken)


@contextmanager
def naming(place: object) -> Iterator[None]:
    """Begin the message of an `InvalidInput` with its place: a file, a cluster."""
    try:
        yield
    except InvalidInput as error:
        raise type(error)(f"{place}: {error.message}", hint=error.hint) from None


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raise `NotFound` for a missing folder, and `InvalidInput` naming the file if it cannot be
    written.
    """
    try:
        yield
    except OSError as error:
        require_folder(path)
        hint = (
            "free some space, or " if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        ) + "name another place"
        raise InvalidInput(
            f"{path} cannot be written: {error.strerror or error}", hint=hint
        ) from error


def require_folder(path: Path) -> None:
    """Raise `NotFound` unless the folder of a file that is to be written exists."""
    parent = path.absolute().parent
    if not parent.is_dir():
        raise NotFound(
            f"there is no folder {parent} to write {path.name} to", hint="create it first"
        )


def read_bytes(path: Path, what: str, hint: str | None = None, *, most: int) -> bytes:
    """Return the content of a file that messages call `what`; `hint` says where to get one."""
    if not holds(path.is_file):
        why = (
            "it is a device, a pipe or a socket" if holds(path.exists) else "there is no such file"
        )
        raise NotFound(
            f"no {what} at {path}: {'it is a folder' if holds(path.is_dir) else why}", hint=hint
        )
    try:
        with path.open("rb") as file:
            content = file.read(most + 1)
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}") from None
    if len(content) > most:
        raise InvalidInput(f"{path} is too long: a {what} has at most {most:,} bytes")
    return content


def holds(question: Callable[[], bool]) -> bool:
    """Evaluate a path's `is_file` or `is_dir`; False for an impossible path (too long, with a
    NUL).
    """
    try:
        return question()
    except (OSError, ValueError):
        return False


MOST_CHARACTERS = 80
BARE_KEY = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")


def shown(value: object) -> str:
    """Return a value as TOML writes it: true, "text", [1, 2], {key = 1}; cut after
    `MOST_CHARACTERS`.
    """
    return _cut(_written(value))


def shown_key(key: str) -> str:
    """Return a key, dotted or not, with quotes where TOML needs them."""
    return _cut(key if BARE_KEY.fullmatch(key) else _quoted(key))


def _written(value: object) -> str:
    if value is None or isinstance(value, bool):
        return {None: "nothing", True: "true", False: "false"}[value]
    if isinstance(value, str):
        return _quoted(value[:MOST_CHARACTERS])
    if isinstance(value, int) and value.bit_length() > 4 * MOST_CHARACTERS:
        return f"{value:x}"[
            :MOST_CHARACTERS
        ]  # decimal digits of very long numbers take quadratic time
    if isinstance(value, list | tuple):
        return f"[{', '.join(_written(item) for item in value[:MOST_CHARACTERS])}]"
    if isinstance(value, Mapping):
        pairs = list(value.items())[:MOST_CHARACTERS]
        return (
            "{"
            + ", ".join(f"{shown_key(str(key))} = {_written(item)}" for key, item in pairs)
            + "}"
        )
    return str(value)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=not text.isprintable())


def _cut(text: str) -> str:
    return text if len(text) <= MOST_CHARACTERS else text[: MOST_CHARACTERS - 3] + "..."
