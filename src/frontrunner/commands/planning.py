"""The commands that estimate without a machine: plan."""

from __future__ import annotations

from pathlib import Path

import click

from frontrunner import api
from frontrunner.commands.options import json_option, print_json
from frontrunner.spaces.errors import NothingLegal


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--top", type=click.IntRange(1, 1_000_000), default=10, show_default=True, help="How many recipes.")
@json_option
def plan(file: Path, top: int, *, as_json: bool) -> None:
    """Estimate every legal recipe of campaign FILE by formulas, and print the fastest that fit. Nothing is run.

    \b
    Examples:
      frontrunner plan examples/frontier-22b.toml
      frontrunner plan examples/frontier-22b.toml --top 3 --json
    """
    found = api.plan(file)
    if as_json:
        shown = found.fitting[:top]
        print_json(
            {
                "legal": found.legal,
                "fitting": len(found.fitting),
                "not_modelled": found.not_modelled,
                "memory_limit_bytes": found.memory_limit_bytes,
                "assumed": found.assumed,
                "expected_error": found.expected_error,
                "remarks": found.remarks,
                "estimates": shown,
                "front": found.front,
            }
        )
    else:
        from frontrunner.render_plan import print_plan

        print_plan(found, top=top)
    if not found.estimates:
        raise NothingLegal(
            f"none of the {found.legal:,} legal recipes can be estimated: the formulas do not know "
            f"{', '.join(found.not_modelled)}",
            hint="frontrunner dryrun traces single recipes",
        )
    if not found.fitting:
        raise NothingLegal(
            f"no recipe of this space is estimated to fit in {found.memory_limit_bytes / 2**30:.1f} GiB a device",
            hint="allow more sharding, recompute or devices, or smaller micro-batches",
        )
