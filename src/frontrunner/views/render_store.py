"""What a check of a store found, and what may be pruned, for the terminal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from frontrunner.text import plain
from frontrunner.views.render import console

if TYPE_CHECKING:
    from frontrunner.results.check import Check
    from frontrunner.results.pruning import Prunable

MOST_CELL = 60
MOST_FOLDERS = 5


def print_check(found: Check) -> None:
    """What does not hold, each with its first rows; one line where everything does."""
    out = console()
    read = f"{_counted(found.campaigns, 'campaign')}, {_counted(found.attempts, 'attempt')}, {found.rules} rules"
    out.print(f"{plain(found.store)}: {read}", markup=False, highlight=False)
    for finding in found.findings:
        word = "BROKEN" if finding.is_fault else f"odd, {finding.odd_as}"
        out.print(f"{word}: {finding.says}: not so in {_counted(finding.count, 'row')}", markup=False, highlight=False)
        for row in finding.rows:
            cells = ", ".join(f"{key} {plain(str(value))[:MOST_CELL]}" for key, value in row.items())
            out.print(f"  {cells}", markup=False, highlight=False)
    if not found.findings:
        out.print("all hold")


def print_prunable(found: Iterable[Prunable], *, removed: bool) -> None:
    """The folders by campaign, and what to do next."""
    out = console()
    parts = tuple(found)
    for part in parts:
        words = f"{_counted(len(part.folders), 'run folder')}, {_counted(part.bytes, 'byte')}"
        out.print(f"{plain(part.campaign)}: {words}", markup=False, highlight=False)
        for folder in part.folders[:MOST_FOLDERS]:
            out.print(f"  {plain(str(folder))}", markup=False, highlight=False, soft_wrap=True)
        if len(part.folders) > MOST_FOLDERS:
            out.print(f"  and {len(part.folders) - MOST_FOLDERS:,} more")
    if not parts:
        out.print("there is nothing to remove")
    else:
        out.print("removed" if removed else "nothing was removed yet; to remove them: add --yes")


def _counted(number: int, word: str) -> str:
    return f"{number:,} {word}" + ("" if number == 1 else "s")
