"""What a person sees while a campaign runs: a live panel on a terminal, a line an event elsewhere.

All of it goes to stderr, so that stdout holds the answer alone.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live

from frontrunner.results.states import CampaignState
from frontrunner.search.listener import Ended, Silent, View
from frontrunner.spaces.recipe import Recipe
from frontrunner.text import plain
from frontrunner.views.panel import Heights, outcome_line, panel


class Watcher(Silent):
    """A listener that remembers which campaign it heard of."""

    campaign = ""

    def began(self, view: View) -> None:
        """Remember the name."""
        self.campaign = view.name


class Lines(Watcher):
    """One plain line an event."""

    def began(self, view: View) -> None:
        """Say what is searched, and what is known already."""
        super().began(view)
        known = f", {view.measured} {view.figures} before" if view.measured else ""
        origin = "" if view.figures == "measured" else f", {view.figures}"
        _say(f"campaign {view.name}: {view.strategy} over {view.legal_recipes:,} legal recipes{origin}{known}")

    def probe_ended(self, view: View, ended: Ended) -> None:
        """One outcome, and how far the campaign is."""
        budget = ", ".join(str(limit) for limit in view.limits)
        _say(f"[{ended.number}] {ended.recipe.describe()}: {outcome_line(ended)}  ({budget})")

    def noticed(self, view: View, kind: str, data: Mapping[str, str | int | float | None]) -> None:
        """Anything else, with its data."""
        del view
        _say(_notice(kind, data))

    def ended(self, view: View, state: CampaignState, reason: str) -> None:
        """How it ended."""
        _say(f"campaign {view.name} {state}: {reason}")


class Panel(Watcher):
    """A panel that is drawn anew a few times a second, and never gets lower than it was."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._heights = Heights()

    def began(self, view: View) -> None:
        """Draw the first panel, below that of a campaign before."""
        super().began(view)
        if not self._live.is_started:
            self._heights = Heights()
            self._live.start()
        self._draw(view)

    def probe_began(self, view: View, number: int, recipe: Recipe) -> None:
        """Draw."""
        del number, recipe
        self._draw(view)

    def probe_ended(self, view: View, ended: Ended) -> None:
        """Draw."""
        del ended
        self._draw(view)

    def noticed(self, view: View, kind: str, data: Mapping[str, str | int | float | None]) -> None:
        """Print the notice above the panel, where it stays."""
        del view
        self._live.console.print(_notice(kind, data), style="yellow", markup=False)

    def ticked(self, view: View) -> None:
        """Draw."""
        self._draw(view)

    def ended(self, view: View, state: CampaignState, reason: str) -> None:
        """Draw the last panel, and below it how it ended."""
        self._live.update(panel(view, width=self._live.console.width, heights=None), refresh=True)
        self._live.stop()
        self._live.console.print(f"campaign {view.name} {state}: {plain(reason)}", markup=False)

    def _draw(self, view: View) -> None:
        self._live.update(panel(view, width=self._live.console.width, heights=self._heights))


@contextmanager
def make_listener(*, quiet: bool) -> Iterator[Watcher]:
    """A panel on a terminal, lines elsewhere, silence where the answer is for a program."""
    screen = Console(stderr=True, highlight=False)
    if quiet:
        yield Watcher()
    elif screen.is_terminal:
        with Live(console=screen, refresh_per_second=4, transient=False) as live:
            yield Panel(live)
    else:
        yield Lines()


def _notice(kind: str, data: Mapping[str, str | int | float | None]) -> str:
    if kind == "evidence":
        return plain(_evidence(data))
    return plain(f"{kind}: " + " ".join(f"{key}={value}" for key, value in data.items()))


def _evidence(data: Mapping[str, str | int | float | None]) -> str:
    """What a campaign begins with: `evidence: 12 outcomes of sweep.csv, 3 recipes answered; left out: 2 simulated`."""
    found = f"evidence: {data['learned_from']} outcomes"
    found += f" of {data['origins']}" if "origins" in data else ""
    found += f", {data['answers']} recipes answered" if data["answers"] else ""
    prefix = "left out: "
    left_out = [f"{count} {key.removeprefix(prefix)}" for key, count in data.items() if key.startswith(prefix)]
    return found + (f"; {prefix}{', '.join(left_out)}" if left_out else "")


def _say(line: str) -> None:
    """Write a line to stderr; whoever reads it may leave (`| head`), which does not end the campaign."""
    with contextlib.suppress(BrokenPipeError):
        sys.stderr.write(plain(line).replace("\n", " ") + "\n")
        sys.stderr.flush()
