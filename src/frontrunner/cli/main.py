"""The command line. This module knows the commands' names; each is imported when it is called."""

from __future__ import annotations

import sys
from importlib import import_module

import click

from frontrunner.spaces.errors import FrontrunnerError, InvalidInput, did_you_mean

SECTIONS: dict[str, dict[str, tuple[str, str]]] = {
    "Run": {
        "launch": ("campaigning:launch", "Run a campaign file to its ranked table."),
        "resume": ("campaigning:resume", "Go on with a campaign, wherever it was left."),
        "replay": ("replaying:replay", "Train with a measured recipe: the full run."),
        "profile": ("profiling:profile", "Where the time of a recipe's steps goes."),
        "dryrun": ("dryrunning:dryrun", "A recipe's memory and FLOPs, with no device at hand."),
        "serve": ("serving:serve", "Open the store to browsers and other machines."),
        "space": ("campaigning:space", "Count a file's recipes: legal, and why not."),
    },
    "Estimate": {
        "plan": ("planning:plan", "Judge a file's recipes by formulas, without a machine."),
        "explain": ("planning:explain", "What a recipe's step and memory go to."),
        "advise": ("planning:advise", "How to begin: does it fit, what then, and why."),
        "calibrate": ("calibrating:calibrate", "Measure this machine into a cluster file."),
        "doctor": ("doctoring:doctor", "Check machine, job and installation; time real ranks."),
    },
    "Keep and exchange": {
        "import": ("importing:import_", "Keep a table of measured runs, to learn from."),
        "export": ("travelling:export", "A recipe in the words of another tool."),
        "import-config": ("travelling:import_config", "Another tool's configuration as a recipe."),
        "store": ("keeping:store", "Check, back up, upgrade, copy and prune stores."),
        "archive": ("keeping:archive", "A campaign as one portable file."),
        "unarchive": ("keeping:unarchive", "Add an archived campaign to the store."),
    },
    "Ask": {
        "best": ("questions:best", "The ranking of a campaign's recipes."),
        "pareto": ("questions:pareto", "Speed against memory: what nothing else beats."),
        "show": ("questions:show", "Everything about one recipe, and why it ranks there."),
        "status": ("questions:status", "Where a campaign stands."),
        "failures": ("questions:failures", "What failed, why, and the logs' ends."),
        "campaigns": ("questions:campaigns", "Every campaign of the store."),
        "dataframe": ("questions:dataframe", "All attempts as a table file (.csv or .parquet)."),
        "report": ("reporting:report", "A campaign as one HTML page to decide with."),
        "plot": ("reporting:plot", "The report's figures as PNG or SVG."),
    },
}
"""Commands by section of the help page: name -> (module:function under `frontrunner.cli`, one line)."""

EPILOG = """
\b
Example:
  frontrunner launch examples/laptop.toml
"""


class Commands(click.Group):
    """A group that imports a command's module only when the command is called or asked for its own help."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names, in the order of the help page."""
        del ctx
        return [name for section in SECTIONS.values() for name in section]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, imported now; None for an unknown name."""
        del ctx
        for section in SECTIONS.values():
            if cmd_name in section:
                module, function = section[cmd_name][0].split(":")
                command: click.Command = getattr(import_module(f"frontrunner.cli.{module}"), function)
                return command
        return None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, with the nearest name for one that is unknown."""
        if args and args[0] not in self.list_commands(ctx) and not args[0].startswith("-"):
            raise InvalidInput(f"no command {args[0]!r}", hint=did_you_mean(args[0], self.list_commands(ctx)))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write each section, from the one-line texts above."""
        del ctx
        for title, section in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name, text) for name, (_, text) in section.items()])


@click.command(cls=Commands, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="frontrunner", prog_name="frontrunner")
def frontrunner() -> None:
    """Find the fastest way to train a given transformer on given machines.

    A campaign file describes model, machines and budget. Short real training runs try recipes, a store
    ranks them, and the winner is replayed as the full run.
    """


def main() -> None:
    """Run the command line; a person's mistake ends with one message and its exit code, never a traceback."""
    try:
        _refuse_broken_text(sys.argv[1:])
        frontrunner(standalone_mode=False, prog_name="frontrunner")
    except FrontrunnerError as error:
        _complain(error.message, error.hint)
        sys.exit(error.exit_code)
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx else "frontrunner"
        _complain(error.format_message(), f"{path} --help")
        sys.exit(error.exit_code)
    except click.ClickException as error:
        _complain(error.format_message(), None)
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        _complain("interrupted", None)
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()  # the reader has gone, as in `frontrunner best | head`
        sys.exit(0)
    except OSError as error:
        _complain(f"{error.strerror or error}" + (f": {error.filename}" if error.filename else ""), None)
        sys.exit(1)


def _refuse_broken_text(arguments: list[str]) -> None:
    """Bytes that are no UTF-8 reach us as lone surrogates, which neither SQLite nor a terminal takes."""
    for argument in arguments:
        if any("\ud800" <= character <= "\udfff" for character in argument):
            raise InvalidInput(f"argument {argument!a} is not valid UTF-8")


def _complain(message: str, hint: str | None) -> None:
    from frontrunner.text import plain

    click.echo(f"error: {plain(message)}", err=True)
    if hint:
        click.echo(f"hint: {plain(hint)}", err=True)


if __name__ == "__main__":
    main()
