"""What a person sees while a campaign runs: a live panel on a terminal, a line an event elsewhere.

All of it goes to stderr, so that stdout holds the answer alone.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from frontrunner.results.outcome import Failure, Measurement
from frontrunner.results.states import CampaignState
from frontrunner.search.listener import Ended, RunningProbe, Silent, View
from frontrunner.spaces.recipe import Recipe
from frontrunner.text import gib, percent, plain, seconds, thousands


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
        known = f", {view.measured} measured before" if view.measured else ""
        _say(f"campaign {view.name}: {view.strategy} over {view.legal_recipes:,} legal recipes{known}")

    def probe_ended(self, view: View, ended: Ended) -> None:
        """One outcome, and how far the campaign is."""
        budget = ", ".join(str(limit) for limit in view.limits)
        _say(f"[{ended.number}] {ended.recipe.describe()}: {outcome_line(ended)}  ({budget})")

    def noticed(self, view: View, kind: str, data: Mapping[str, str | int | float | None]) -> None:
        """Anything else, with its data."""
        del view
        _say(f"{kind}: " + " ".join(f"{key}={value}" for key, value in data.items()))

    def ended(self, view: View, state: CampaignState, reason: str) -> None:
        """How it ended."""
        _say(f"campaign {view.name} {state}: {reason}")


class Panel(Watcher):
    """A panel that is drawn anew a few times a second."""

    def __init__(self, live: Live) -> None:
        self._live = live

    def began(self, view: View) -> None:
        """Draw the first panel."""
        super().began(view)
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
        self._live.console.print(
            plain(f"{kind}: " + " ".join(f"{key}={value}" for key, value in data.items())), style="yellow", markup=False
        )

    def ticked(self, view: View) -> None:
        """Draw."""
        self._draw(view)

    def ended(self, view: View, state: CampaignState, reason: str) -> None:
        """Draw the last panel and say how it ended."""
        self._draw(view)
        self._live.console.print(f"campaign {view.name} {state}: {plain(reason)}", markup=False)

    def _draw(self, view: View) -> None:
        self._live.update(panel(view))


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


def panel(view: View) -> Group:
    """The whole picture: budget, best so far, what runs, and the last outcomes."""
    left = "" if view.seconds_left is None else f"   about {seconds(view.seconds_left)} left"
    head = Text(f"{view.name}  ", style="bold")
    head.append(f"{view.strategy} over {view.legal_recipes:,} legal recipes{left}", style="not bold")
    return Group(head, _budget(view), _counts(view), _best(view), _running(view), _last(view))


def _budget(view: View) -> Table:
    table = Table.grid(padding=(0, 2))
    for limit in view.limits:
        bar = ProgressBar(total=1.0, completed=limit.share, width=30)
        table.add_row(limit.name, bar, f"{limit.used:.3g} of {limit.allowed:.3g}")
    return table


def _counts(view: View) -> Text:
    failed = ", ".join(f"{count} {kind}" for kind, count in view.failures.items())
    return Text(f"{view.measured} measured" + (f", {failed}" if failed else ""))


def _best(view: View) -> Text:
    if view.best is None:
        return Text("best so far  -")
    return Text(f"best so far  {view.best.recipe.describe()}: {outcome_line(view.best)}", style="bold green")


def _running(view: View) -> Table:
    table = Table.grid(padding=(0, 2))
    for probe in view.running:
        table.add_row("running", f"[{probe.number}] {probe.recipe.describe()}".replace("[", "\\["), _progress(probe))
    return table


def _progress(probe: RunningProbe) -> str:
    if probe.progress is None:
        return seconds(probe.seconds)
    steps = f"step {probe.progress.steps_done} of {probe.progress.steps_total}"
    return f"{probe.progress.phase if probe.progress.phase != 'stepping' else steps}, {probe.seconds:.0f} s"


def _last(view: View) -> Table:
    table = Table.grid(padding=(0, 2))
    for ended in reversed(view.last):
        failed = isinstance(ended.outcome, Failure)
        table.add_row(
            Text(f"[{ended.number}]", style="dim"),
            Text(ended.recipe.describe(), style="dim" if failed else ""),
            Text(outcome_line(ended), style="red" if failed else ""),
        )
    return table


def outcome_line(ended: Ended) -> str:
    """One outcome in a few words."""
    outcome = ended.outcome
    if isinstance(outcome, Measurement):
        return (
            f"{thousands(outcome.tokens_per_s)} tokens/s, step {seconds(outcome.step_time_s_median)} "
            f"± {percent(outcome.step_time_spread, 0)}, peak {gib(outcome.peak_memory_bytes_max_rank)} GiB"
        )
    again = ", will be tried again" if ended.will_retry else ""
    return plain(f"{outcome.kind}: {outcome.message[:120]}{again}")


def _say(line: str) -> None:
    sys.stderr.write(plain(line).replace("\n", " ") + "\n")
    sys.stderr.flush()
