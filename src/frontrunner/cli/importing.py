"""The command that keeps tables of others' measurements: import."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from frontrunner.cli.options import json_option, print_json, store_option
from frontrunner.spaces.errors import bad_value

if TYPE_CHECKING:
    from frontrunner.table_import import TableForm


@click.command("import")
@click.argument("table", type=click.Path(path_type=Path))
@click.option("--column", "columns", multiple=True, metavar="NAME=THEIRS[:UNIT]", help="The table's name of a column.")
@click.option("--set", "constants", multiple=True, metavar="NAME=VALUE", help="What holds for every row.")
@click.option("--ignore", multiple=True, metavar="THEIRS", help="A column of the table to leave out.")
@click.option("--cluster", metavar="NAME", help="Preset or cluster file of rows that name no hardware.")
@click.option("--name", help="The campaigns' name [default: the file's].")
@click.option("--preview", is_flag=True, help="Say what would be kept, and write nothing.")
@store_option
@json_option
def import_(
    table: Path,
    cluster: str | None,
    name: str | None,
    store: str | None,
    *,
    preview: bool,
    as_json: bool,
    **form: tuple[str, ...],
) -> None:
    """Keep the measured configurations of TABLE, a CSV file, as finished campaigns, one a problem.

    Later campaigns learn from them. The columns' names and units are in docs/warm-starts.md; others are said by
    --column, --set and --ignore. Rows that cannot be used are counted with the reason.

    \b
    Examples:
      frontrunner import sweep.csv --preview
      frontrunner import runs.csv --set hardware=h100 --column step_time_s=iter:ms
    """
    from frontrunner.table_import import import_table

    found = import_table(table, form=_form(**form), cluster=cluster, name=name, store=store, preview=preview)
    if as_json:
        print_json(found)
        return
    from frontrunner.views.campaigns import print_import

    print_import(found)


def _form(columns: tuple[str, ...], constants: tuple[str, ...], ignore: tuple[str, ...]) -> TableForm:
    """What --column, --set and --ignore say of the table."""
    from frontrunner.table_import import TableForm

    return TableForm(columns=_table("--column", columns), constants=_table("--set", constants), ignore=ignore)


def _table(flag: str, texts: tuple[str, ...]) -> dict[str, str]:
    """NAME=VALUE texts as a table; raises `InvalidInput` for one without a =, and for a name that is given twice."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or name in found:
            raise bad_value(flag, text, "NAME=VALUE, each name once")
        found[name] = value
    return found
