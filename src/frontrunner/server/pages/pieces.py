"""The pieces of a campaign's page that change as it goes on, made once for all who look at them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from markupsafe import Markup

from frontrunner.results.driving import Stamp, stamp
from frontrunner.results.store import Store
from frontrunner.server.answers import Answers
from frontrunner.server.pace import Pace
from frontrunner.server.pages.figures import FigureShelf
from frontrunner.server.pages.rendering import digest, render
from frontrunner.server.pages.views.campaign import campaign_view, moment
from frontrunner.server.tokens import Role
from frontrunner.views.columns import COLUMNS, used

PARTS = ("numbers", "ranking", "trials", "timeline", "failures", "events")
"""The pieces, in their order on the page."""
LIVE = Pace(least_s=1.0, most_s=10.0)
"""How old the pieces may be that a live page is sent: while a driver writes, they are made once in that time, whoever
looks."""
POLL_S, POLL_DRIVEN_S = 5, 3
"""How often a live page asks, in seconds."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """A piece of the page: its name and its HTML."""

    name: str
    html: Markup

    @property
    def digest(self) -> str:
        """By which a browser says which version of the piece it shows."""
        return digest(self.html)


@dataclass(frozen=True, kw_only=True)
class Pieces:
    """All pieces of a campaign's page, as they were at `moment`; `edition` is that of its figures."""

    name: str
    moment: str
    edition: str
    polls_every_s: int
    parts: tuple[Part, ...]

    def __len__(self) -> int:
        return sum(len(part.html.encode()) for part in self.parts)

    @property
    def live(self) -> Markup:
        """The element that asks again, with what the page has seen."""
        seen = "~".join([self.moment, self.edition, *(part.digest for part in self.parts)])
        return Markup(render("campaign_live.html", pieces=self, seen=seen))  # noqa: S704 - what a template has made


@dataclass(frozen=True, kw_only=True)
class PieceMaker:
    """Makes the pieces for one role, with figures from one shelf."""

    store: Store
    shelf: FigureShelf
    role: Role

    def kept(self, answers: Answers, name: str, *, pace: Pace | None = None) -> Pieces:
        """The pieces of a campaign, which are made anew where it was written to; see `Memory.answered` for `pace`.

        While a driver runs, they are made at least once a second: bars of probes that run reach up to now.
        """
        question = replace(answers.question, about=f"pieces of {name}")

        def read_stamp() -> tuple[Stamp, int]:
            (found,) = stamp(self.store, (name,))
            return found, int(self.store.now().timestamp()) if found.is_driven else 0

        return answers.memory.answered(question, read_stamp, lambda now: self.made(name, now[0]), pace=pace)

    def made(self, name: str, now: Stamp) -> Pieces:
        """The pieces as they are, where `now` was read before."""
        view = campaign_view(self.store, name)
        is_live = view.status.driver_is_live
        values = {
            "view": view,
            "table": view.trials,
            "problem": view.spec.problem,
            "columns": used(COLUMNS, view.ranking),
            "may_change": self.role is Role.OPERATOR,
            "replaces": True,
        }
        return Pieces(
            name=name,
            moment=moment(now),
            edition="-".join(map(str, self.shelf.editions.of(view.status.campaign, is_live=is_live))),
            polls_every_s=POLL_DRIVEN_S if is_live else POLL_S,
            parts=tuple(
                Part(name=part, html=Markup(render(f"campaign/{part}.html", **values)))  # noqa: S704 - likewise
                for part in PARTS
            ),
        )
