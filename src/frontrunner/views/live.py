"""Progress of a running campaign on stderr: a live panel on a terminal, a line per event
elsewhere.
"""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from textwrap import shorten
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from frontrunner.results.outcome import Failure, Measurement
from frontrunner.results.records import EventData
from frontrunner.results.states import CampaignState
from frontrunner.search.budget import Limit
from frontrunner.search.listener import LAST_OUTCOMES, Ended, Listener, View
from frontrunner.text import percent, plain, seconds, thousands
from frontrunner.views.columns import briefly
from frontrunner.views.history import noticed
from frontrunner.views.terminal import PIPED_WIDTH, console, recorded

LABEL_WIDTH = 11
BAR_WIDTH = 30
NUMBERS_WIDTH = 51
"""Most columns for the numbers of a measurement; a recipe's text gets the rest of the line."""
MOST_MESSAGE = 120
"""Characters of a failure's message in a line."""
MOST_RUNNING = 6


class Watcher(Listener):
    """A listener that remembers which campaign it heard of."""

    campaign = ""

    def began(self, view: View) -> None:
        """Remember the name."""
        self.campaign = view.name


class Lines(Watcher):
    """One plain line per event."""

    def began(self, view: View) -> None:
        """Report what is searched, and what is known already."""
        super().began(view)
        known = f", {view.measured} {view.figures} before" if view.measured else ""
        origin = "" if view.figures == "measured" else f", {view.figures}"
        _write(
            f"campaign {view.name}: {view.strategy} over {view.legal_recipes:,} legal"
            f" recipes{origin}{known}"
        )

    def probe_ended(self, view: View, ended: Ended) -> None:
        """Report one outcome, and how far the campaign is."""
        budget = ", ".join(str(limit) for limit in view.limits)
        line = f"[{ended.number}] {ended.recipe.describe()}: {outcome_line(ended)}"
        _write(f"{line}  ({budget})" if budget else line)

    def noticed(self, view: View, kind: str, data: EventData) -> None:
        """Report anything else, with its data."""
        del view
        _write(noticed(kind, data))

    def ended(self, view: View, state: CampaignState, reason: str) -> None:
        """Report its end; of another state the command reports, with how to continue."""
        if state is CampaignState.FINISHED:
            _write(f"campaign {view.name} {state}: {reason}")


class Panel(Watcher):
    """A panel that is redrawn a few times a second, and never gets lower than it was."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._rows = 1

    def began(self, view: View) -> None:
        """Draw the first panel, below that of a campaign before."""
        super().began(view)
        if not self._live.is_started:
            self._rows = 1
            self._live.start()
        self.ticked(view)

    def ticked(self, view: View, *_: Any, **__: Any) -> None:
        """Draw."""
        self._rows = max(self._rows, min(len(view.running), MOST_RUNNING))
        self._live.update(panel(view, width=self._live.console.width, rows=self._rows))

    probe_began = probe_ended = ticked

    def noticed(self, view: View, kind: str, data: EventData) -> None:
        """Print the notice above the panel, where it stays."""
        del view
        self._live.console.print(noticed(kind, data), style="yellow", markup=False)

    def ended(self, view: View, state: CampaignState, reason: str) -> None:
        """Draw the last panel, and below it the end of a finished campaign."""
        self._live.update(panel(view, width=self._live.console.width), refresh=True)
        self._live.stop()
        if state is CampaignState.FINISHED:
            self._live.console.print(f"campaign {view.name} {state}: {plain(reason)}", markup=False)


class NotebookPanel(Watcher):
    """The panel in a notebook's cell, redrawn at most once a second."""

    def __init__(self, show: Callable[[str], None]) -> None:
        """`show` replaces the cell's HTML."""
        self._show, self._drawn_s = show, -math.inf

    def _draw(self, view: View) -> None:
        with recorded() as html:
            console().print(panel(view, width=PIPED_WIDTH))
            self._show(html())
        self._drawn_s = time.monotonic()

    def ticked(self, view: View) -> None:
        """Draw, if the last time is a second ago."""
        if time.monotonic() - self._drawn_s > 1:
            self._draw(view)

    def ended(self, view: View, state: CampaignState, reason: str) -> None:
        """Draw the last panel."""
        del state, reason
        self._draw(view)


def notebook_listener() -> Watcher | None:
    """Return a panel in the cell that runs; None where Python does not run in a notebook."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is None or not hasattr(shell, "kernel"):
        return None
    cell: Any = import_module("IPython.display")
    handle = cell.display(cell.HTML(""), display_id=True)
    return NotebookPanel(lambda html: handle.update(cell.HTML(html)))


@contextmanager
def make_listener(*, quiet: bool) -> Iterator[Watcher]:
    """Yield a panel on a terminal, lines elsewhere, silence where the output is for a program."""
    screen = Console(stderr=True, highlight=False)
    if quiet:
        yield Watcher()
    elif screen.is_terminal:
        with Live(console=screen, refresh_per_second=4, transient=False) as live:
            yield Panel(live)
    else:
        yield Lines()


def _write(line: str) -> None:
    """Write a line to stderr; a reader may leave (`| head`), which does not end the campaign."""
    with contextlib.suppress(BrokenPipeError):
        sys.stderr.write(plain(line).replace("\n", " ") + "\n")
        sys.stderr.flush()


def panel(view: View, *, width: int, rows: int = 0) -> Group:
    """Return the panel in lines that never wrap; with `rows` it has a steady height, with as many
    running probes.
    """
    shown = [*view.last, *([view.best] if view.best else [])]
    longest = max((len(_named(ended)) for ended in shown), default=0)
    room = max(
        12, min(longest, width - LABEL_WIDTH - NUMBERS_WIDTH)
    )  # one for all, so that numbers are aligned
    running = []
    for probe in view.running[:MOST_RUNNING]:
        does = f"{probe.seconds:.0f} s"  # first: its width changes least
        if (progress := probe.progress) is not None:
            steps = f"step {progress.steps_done} of at most {progress.steps_total}"
            does += f", {steps if progress.phase == 'stepping' else progress.phase}"
        running.append(Text(f"[{probe.number}] {probe.recipe.describe()}  {does}"))
    if len(view.running) > MOST_RUNNING:
        running[-1] = Text(f"and {len(view.running) - MOST_RUNNING + 1} more")
    last = [
        _outcome(ended, room, style="red" if isinstance(ended.outcome, Failure) else "")
        for ended in reversed(view.last)
    ]
    failed = "".join(f", {count} {kind}" for kind, count in view.failures.items())
    best = (
        Text(f"nothing {view.figures} yet")
        if view.best is None
        else _outcome(view.best, room, style="bold green")
    )
    outlook = []
    if (found := view.outlook) is not None:
        shares = (found.expected_improvement, found.share_below, found.share_below_at_most)
        gain, below, most = map(percent, shares)
        what = "front" if found.of_front else "best"
        outlook = [Text(f"next probe +{gain}; {what} {below} (at most {most}) below the space's")]
    parts: list[tuple[str, list[Text]]] = [
        *((limit.name, [_limit(limit)]) for limit in view.limits),
        ("outcomes", [Text(f"{view.measured} {view.figures}{failed}")]),
        ("best", [best]),
        ("outlook", outlook),
        ("running", running + [Text()] * (rows - len(running))),
        ("last", last + [Text()] * (LAST_OUTCOMES - len(last) if rows else 0)),
    ]
    head = Text(view.name, style="bold")
    head.append(f"  {view.strategy} over {view.legal_recipes:,} legal recipes", style="not bold")
    if view.figures != "measured":
        head.append(f", {view.figures}", style="not bold yellow")
    if view.seconds_left is not None and view.seconds_left >= 1:
        left = f"about {seconds(round(view.seconds_left))} left"
        head.append(
            left.rjust(max(2 + len(left), min(width, 100) - head.cell_len)), style="not bold"
        )
    lines = [head]
    for label, texts in parts:
        heads = [label, *[""] * len(texts)]
        lines += [
            Text.assemble((f"{head:<{LABEL_WIDTH}}", "dim"), text)
            for head, text in zip(heads, texts, strict=False)
        ]
    for line in lines:
        line.no_wrap, line.overflow = True, "ellipsis"
    return Group(*lines)


def _limit(limit: Limit) -> Text:
    done = round(BAR_WIDTH * limit.share)
    bar = (("━" * done, "green"), ("━" * (BAR_WIDTH - done), "bright_black"))
    return Text.assemble(*bar, f"  {thousands(limit.used)} of {thousands(limit.allowed)}")


def _named(ended: Ended) -> str:
    return f"[{ended.number}] {ended.recipe.describe()}"


def _outcome(ended: Ended, room: int, *, style: str) -> Text:
    name = Text(_named(ended))
    name.truncate(room, overflow="ellipsis", pad=True)
    is_measured = isinstance(ended.outcome, Measurement)
    return name.append(
        f"  {briefly(ended.outcome, aligned=True) if is_measured else outcome_line(ended)}",
        style=style,
    )


def outcome_line(ended: Ended) -> str:
    """Return one outcome in a few words."""
    outcome = ended.outcome
    if isinstance(outcome, Measurement):
        again = f"; will be measured again: {'; '.join(outcome.doubts)}" if ended.will_retry else ""
        return plain(briefly(outcome) + again)
    again = ", will be tried again" if ended.will_retry else ""
    message = shorten(outcome.message, MOST_MESSAGE, placeholder=" ...")
    return plain(f"{outcome.kind}: {message}{again}")
