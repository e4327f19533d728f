"""Options, arguments and output that several commands share."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from frontrunner.config.settings import AT_HAND
from frontrunner.spaces.errors import InvalidInput, bad_value, did_you_mean
from frontrunner.text import to_json

if TYPE_CHECKING:
    from frontrunner.remote import RemoteStore
    from frontrunner.store import LocalStore

    Backend = LocalStore | RemoteStore

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
FILE = click.Path(path_type=Path)

FLAGS = {"true": True, "false": False}
MOST_CHARACTERS = 200
MOST_EXAMPLES = 3
MOST_DIGITS = 18
RECIPE_ID = re.compile("[0-9a-fA-F]{4,12}")
CHOICE = re.compile("[a-z_]+=[^/]*")


class SuggestingGroup(click.Group):
    """Group that suggests the nearest command for an unknown one, and shows the examples of a
    command.
    """

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command with its lines of examples.txt below its help; None for an unknown
        name.
        """
        found = self.load(cmd_name)
        if found is not None and found.epilog is None:
            name = re.escape(" ".join(["frontrunner", *ctx.command_path.split()[1:], cmd_name]))
            lines = (
                files("frontrunner.cli")
                .joinpath("examples.txt")
                .read_text(encoding="utf-8")
                .splitlines()
            )
            own = [f"  {line}" for line in lines if re.search(rf"{name}( |$)", line)]
            found.epilog = "\n".join(["\b", "Examples:", *own[:MOST_EXAMPLES]])
        return found

    def load(self, name: str) -> click.Command | None:
        """Return a command by its name."""
        return self.commands.get(name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve as click does; raise `InvalidInput` with the nearest name for an unknown one."""
        known = self.list_commands(ctx)
        if args and args[0] not in known and not args[0].startswith("-"):
            name = f"{ctx.command_path.partition(' ')[2]} {args[0]}".strip()
            raise InvalidInput(f"no command {name!r}", hint=did_you_mean(args[0], known))
        return super().resolve_command(ctx, args)


def remember(context: click.Context, option: click.Parameter, value: T) -> T:
    """Have hints name the campaign file, the store or the service at hand
    (`frontrunner.config.settings.located`).
    """
    if value is not None:
        context.meta[f"{AT_HAND}{option.name}"] = str(value)
    return value


file_option = click.option(
    "--campaign",
    type=FILE,
    callback=remember,
    metavar="FILE",
    help="The recipe is one of this file.",
)
file_argument = click.argument("file", type=FILE, callback=remember)
campaign_argument = click.argument("campaign", required=False)
store_option = click.option(
    "--store",
    metavar="URL",
    callback=remember,
    help=(
        "The store: a path or an SQLAlchemy URL [default: $FRONTRUNNER_STORE, else frontrunner.db]."
    ),
)
server_option = click.option(
    "--server",
    metavar="URL",
    callback=remember,
    help=(
        "Query this service, with the token of $FRONTRUNNER_TOKEN or, on this machine, of the token"
        " file."
    ),
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
anyway_option = click.option(
    "--anyway", is_flag=True, help="Run on other hardware than the recipe was measured on."
)


def budget_options(which: str) -> Callable[[F], F]:
    """Add --probes, --minutes, --node-hours and --cost, which arrive under these names; see
    `given`.
    """

    def decorated(function: F) -> F:
        function = click.option("--cost", type=float, help=f"Price of the node-hours {which}.")(
            function
        )
        for name, kind in {"node-hours": float, "minutes": float, "probes": int}.items():
            function = click.option(f"--{name}", type=kind, help=f"{name.capitalize()} {which}.")(
                function
            )
        return function

    return decorated


def given(options: Mapping[str, T | None]) -> dict[str, T]:
    """Return the options that were given."""
    return {name: value for name, value in options.items() if value is not None}


def counts(option: str, text: str) -> list[int]:
    """Return the whole numbers of a text such as 1,2,4."""
    for part in text.split(","):
        if not re.fullmatch(r"\s*[0-9]{1,9}\s*", part):
            expected = f"whole numbers with commas between, as in 16,32,64, not {part.strip()!r}"
            raise bad_value(option, text, expected)
    return [int(part) for part in text.split(",")]


def backend_options(function: F) -> F:
    """Add --store and --server; the command gets the store that they choose as `backend`."""

    @server_option
    @store_option
    @wraps(function)
    def command(*args: Any, store: str | None, server: str | None, **kwargs: Any) -> Any:
        return function(*args, backend=open_backend(store, server), **kwargs)

    return command  # type: ignore[return-value]


def open_backend(store: str | None, server: str | None) -> LocalStore | RemoteStore:
    """Return the store that --store and --server choose; raise `InvalidInput` where both are
    given.
    """
    if server is None:
        from frontrunner.store import LocalStore

        return LocalStore(store)
    if store is not None:
        raise refuse_both(f"--store {store}", f"--server {server}")
    from frontrunner.remote import connect

    return connect(server)


def prints(printer: Callable[[Any], object]) -> Callable[[F], F]:
    """Add --json; what the command returns is printed by `printer`, or as one JSON document."""

    def decorated(function: F) -> F:
        @json_option
        @wraps(function)
        def command(*args: Any, as_json: bool, **kwargs: Any) -> None:
            show(function(*args, **kwargs), printer, as_json=as_json)

        return command  # type: ignore[return-value]

    return decorated


def show(value: Any, printer: Callable[[Any], object], *, as_json: bool) -> None:
    """Print a value by `printer`, or as JSON."""
    if as_json:
        print_json(value)
    else:
        printer(value)


def print_json(value: object) -> None:
    """Print a value as JSON; numbers that JSON cannot hold become null."""
    click.echo(to_json(value, indent=2))


def warn(lines: Iterable[str]) -> None:
    """Print warnings to stderr."""
    for line in lines:
        click.echo(f"warning: {line}", err=True)


def refuse_both(first: str, second: str) -> InvalidInput:
    """Return the error for two options that exclude each other."""
    return InvalidInput(f"{first} and {second} are both given: expected one of them")


def key_values(flag: str, texts: Iterable[str]) -> dict[str, str]:
    """Return NAME=VALUE texts as a table; raise `InvalidInput` for one without a =, and for a
    repeated name.
    """
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or name in found:
            raise bad_value(flag, text, "NAME=VALUE, each name once")
        found[name] = value
    return found


def recipe_from(words: tuple[str, ...], campaign: Path | None) -> str | Mapping[str, object]:
    """Return the recipe id, or the choices, that a command's words are."""
    if campaign is not None and not (len(words) == 1 and RECIPE_ID.fullmatch(words[0])):
        return choices(words)
    if len(words) != 1 or CHOICE.fullmatch(words[0]):
        given = f", not {words[0] if len(words) == 1 else f'{len(words)} words'}" if words else ""
        raise InvalidInput(
            f"expected the id of a stored recipe{given}",
            hint="choices such as tensor_parallel=8 go with --campaign FILE",
        )
    return words[0]


def choices(words: Iterable[str]) -> dict[str, object]:
    """Return the choices of words such as tensor_parallel=8; raise `InvalidInput` for other
    words.
    """
    found: dict[str, object] = {}
    for word in words:
        key, separator, value = word.partition("=")
        if not separator:
            raise InvalidInput(
                f"{word!r} is not a choice",
                hint=(
                    "with --campaign a recipe is named by its id, or by words such as"
                    " sharding=zero-1"
                ),
            )
        if key in found:
            raise InvalidInput(
                f"{key} is chosen more than once: {' '.join(words)}"[:MOST_CHARACTERS]
            )
        is_number = value.isdecimal() and value.isascii() and len(value) <= MOST_DIGITS
        found[key] = FLAGS.get(value, int(value) if is_number else value)
    return found
