"""The command line: names of the commands, whose modules are imported when they are called."""

from __future__ import annotations

import re
import sys
from importlib import import_module
from typing import Any

import click

from frontrunner.cli.options import SuggestingGroup
from frontrunner.config.settings import located, started_by
from frontrunner.spaces.errors import FrontrunnerError, InvalidInput
from frontrunner.text import plain

SECTIONS: dict[str, dict[str, tuple[str, str]]] = {
    "Run": {
        "init": ("plan:init", "Write a commented campaign file to begin with."),
        "prepare": ("training:prepare", "Tokenize text files for training."),
        "launch": ("run:launch", "Run a campaign file, and print its ranking."),
        "resume": ("run:resume", "Continue a campaign where it stopped."),
        "measure": ("run:measure", "Measure a recipe, or the best ones, once more."),
        "budget": ("run:budget", "Print or change what a campaign may spend."),
        "sweep": ("around:sweep", "Measure a recipe with each value of a dimension in turn."),
        "scale": ("around:scale", "Measure a recipe's strong and weak scaling over nodes."),
        "replay": ("run:replay", "Train with a measured recipe: the full run."),
        "profile": ("diagnostics:profile", "Profile a recipe's training step."),
        "dryrun": ("plan:dryrun", "Trace a recipe's memory and FLOPs without a device."),
        "serve": ("run:serve", "Serve the store to browsers and other machines."),
        "users": ("users:users", "Let others use a service by their names."),
        "mcp": ("run:mcp", "Offer the store and the estimates to agents as tools."),
        "space": ("run:space", "Count legal and illegal recipes in a space, with reasons."),
    },
    "Estimate": {
        "presets": ("plan:presets", "List the models, clusters and devices that ship."),
        "plan": ("plan:plan", "Estimate a campaign file's recipes, without a device."),
        "explain": ("plan:explain", "Break down a recipe's step time and memory."),
        "advise": ("plan:advise", "Recommend a starting configuration."),
        "calibrate": ("diagnostics:calibrate", "Measure this machine into a cluster file."),
        "doctor": ("diagnostics:doctor", "Check machine, job and installation; test real ranks."),
    },
    "Maintain and exchange": {
        "import": ("maintain:import_", "Import a table of measured runs, to learn from."),
        "export": ("maintain:export", "Export a recipe as another tool's configuration."),
        "checkpoint": ("training:checkpoint", "Export a replay's checkpoint as a published model."),
        "generate": ("training:generate", "Sample text from a replay's checkpoint."),
        "import-config": (
            "maintain:import_config",
            "Read another tool's configuration as a recipe.",
        ),
        "store": ("maintain:store", "Check, back up, upgrade, copy and prune stores."),
        "rename": ("maintain:rename", "Give a campaign another name."),
        "label": ("maintain:label", "Tag a campaign, note something, or hide it."),
        "delete": ("maintain:delete", "Delete a campaign, with its outcomes."),
    },
    "Query": {
        "best": ("query:best", "Print the ranking of a campaign's recipes."),
        "pareto": ("query:pareto", "Print the Pareto front of speed and memory."),
        "show": ("query:show_recipe", "Print everything about one recipe, and why it ranks there."),
        "compare": ("query:compare", "Compare recipes or campaigns, differences first."),
        "status": ("query:status", "Print the state of a campaign."),
        "history": ("query:history", "Print what happened to a campaign, when, and by whom."),
        "failures": ("query:failures", "List failed probes with reasons and log tails."),
        "campaigns": ("query:campaigns", "List every campaign of the store."),
        "dataframe": ("query:dataframe", "Write all attempts as a table file (.csv or .parquet)."),
        "report": ("query:report", "Write a campaign as one HTML page."),
        "plot": ("query:plot", "Write the report's figures as PNG or SVG."),
    },
}
"""Commands by section of the help page: name -> (module:function under `frontrunner.cli`, one
line).
"""

EPILOG = """
Example: frontrunner launch examples/laptop.toml
"""


class Commands(SuggestingGroup):
    """Group that imports a command's module only when the command is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return all names, in the order of the help page."""
        del ctx
        return [name for section in SECTIONS.values() for name in section]

    def load(self, name: str) -> click.Command | None:
        """Import and return a command; None for an unknown name."""
        for section in SECTIONS.values():
            if name in section:
                module, function = section[name][0].split(":")
                command: click.Command = getattr(
                    import_module(f"frontrunner.cli.{module}"), function
                )
                return command
        return None

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; an error's hint names the store or the service that was given."""
        try:
            return super().invoke(ctx)
        except FrontrunnerError as error:
            error.hint = error.hint and located(error.hint)
            raise

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write each section from the one-line texts above."""
        del ctx
        for title, section in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name, text) for name, (_, text) in section.items()])


@click.command(
    cls=Commands, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(package_name="frontrunner", prog_name="frontrunner")
def frontrunner() -> None:
    """Find the fastest way to train a given transformer on given machines.

    Short training runs try recipes, a store ranks them, and the winner trains.
    """


def main() -> None:
    """Run the command line; a user's mistake ends with one message and its exit code, never a
    traceback.
    """
    try:
        for argument in sys.argv[
            1:
        ]:  # invalid UTF-8 arrives as lone surrogates, which no store or terminal accepts
            if any("\ud800" <= character <= "\udfff" for character in argument):
                raise InvalidInput(f"argument {argument!a} is not valid UTF-8")
        frontrunner(standalone_mode=False, prog_name="frontrunner")
    except FrontrunnerError as error:
        _print_error(error.message, error.hint)
        sys.exit(error.exit_code)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
    except click.UsageError as error:
        _print_error(error.format_message(), _usage(error))
        sys.exit(error.exit_code)
    except click.ClickException as error:
        _print_error(error.format_message(), None)
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        _print_error("interrupted", None)
        sys.exit(130)
    except OSError as error:
        _print_error(
            f"{error.strerror or error}" + (f": {error.filename}" if error.filename else ""), None
        )
        sys.exit(1)


def _usage(error: click.UsageError) -> str:
    """Return the command that was meant, where its name is the first word too many; else the one
    that helps.
    """
    if error.ctx is None:
        return f"{started_by()} --help"
    words = re.search(r"unexpected extra arguments? \((\S+)(.*)\)", error.format_message())
    if words is not None and any(words[1] in section for section in SECTIONS.values()):
        with error.ctx.scope(cleanup=False):
            return located(f"frontrunner {words[1]}{words[2]}")
    return f"{error.ctx.command_path.replace('frontrunner', started_by(), 1)} --help"


def _print_error(message: str, hint: str | None) -> None:
    click.echo(f"error: {plain(message)}", err=True)
    if hint:
        click.echo(f"hint: {plain(hint)}", err=True)
