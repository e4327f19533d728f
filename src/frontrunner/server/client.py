"""The Python client: the local API's questions and answers, asked of a service on another machine.

    import frontrunner

    team = frontrunner.connect("https://tune.example.org")
    print(team.best("frontier-22b", top=3))

Answers are the same dataclasses as those of `frontrunner.best` and the others; errors are the same too. Nothing but
Python's own HTTP is needed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlencode

from pydantic import TypeAdapter, ValidationError

from frontrunner.config.validation import OF_NO_TYPE
from frontrunner.evaluators.insight.objectives import Front, OnFront
from frontrunner.results.active_drivers import ActiveDriver
from frontrunner.results.explain import Explanation
from frontrunner.results.pages import CampaignPage, Comparison, RecipePage, TrialPage
from frontrunner.results.ranking import RankedRecipe, Ranking
from frontrunner.results.records import CampaignList
from frontrunner.results.status import FailedTrial, FailureList, Status
from frontrunner.server.client_actions import Actions
from frontrunner.server.client_reports import Reports
from frontrunner.server.connection import Connection, address_of, part_of_path, recipe_path
from frontrunner.server.settings import is_loopback
from frontrunner.server.tokens import TOKEN_VARIABLE, default_token_file, read_tokens
from frontrunner.spaces.errors import InvalidInput, NotFound, ServiceUnreachable

T = TypeVar("T")

PAGE = 200
MOST_RANKED = 1000
PLAIN_HTTP_VARIABLE = "FRONTRUNNER_PLAIN_HTTP"
"""Environment variable that, set to 1, lets tokens go unencrypted to other machines."""
NOT_FINITE = ("losses", "build_time_s", "first_step_time_s")
"""Figures of a measurement that JSON tells as null where they were no number."""


@dataclass(frozen=True, kw_only=True)
class StreamEvent:
    """One event of a campaign's stream; `id` is what to go on after."""

    id: str
    kind: str
    data: Mapping[str, Any]


def connect(url: str, *, token: str | None = None) -> Client:
    """A client of the service at `url`; nothing is sent yet.

    `token` None means the environment's FRONTRUNNER_TOKEN, else, for a service on this machine, the operator's in this
    user's token file. Raises `InvalidInput` for an address that is none, or that the token would reach unencrypted over
    a network, and `NotFound` where there is no token.
    """
    address = address_of(url)
    is_here = is_loopback(address.host)
    given = token or os.environ.get(TOKEN_VARIABLE) or _token_of_file(url, is_here=is_here)
    if not (is_here or address.is_tls or os.environ.get(PLAIN_HTTP_VARIABLE) == "1"):
        raise InvalidInput(
            f"--server {url} is neither https nor this machine: whoever listens on the way would have the token",
            hint=f"use https or a tunnel (ssh -L), or, on a network that you trust, set {PLAIN_HTTP_VARIABLE}=1",
        )
    return Client(Connection(url, given))


def _token_of_file(url: str, *, is_here: bool) -> str:
    """The operator's token, which is only for services of this machine: any other may be anybody's."""
    if not is_here:
        raise NotFound(
            f"no token for {url}: {TOKEN_VARIABLE} is not set, and this user's token file is for this machine alone",
            hint=f"ask whoever runs the service, and set {TOKEN_VARIABLE}",
        )
    try:
        return read_tokens(default_token_file()).operator
    except NotFound as error:
        raise NotFound(
            f"no token for the service: {TOKEN_VARIABLE} is not set, and {error.message}",
            hint=f"ask whoever runs the service, and set {TOKEN_VARIABLE}",
        ) from None


class Client(Reports, Actions):
    """One service. `campaign` is a name everywhere; None means the newest."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def campaigns(self) -> CampaignList:
        """Every campaign of the service's store, the newest first."""
        found = CampaignList()
        while True:
            page = self._get(CampaignPage, "/campaigns", page=len(found) // PAGE + 1, page_size=PAGE)
            found += page.items
            if len(found) >= page.total or not page.items:
                return found

    def drivers(self) -> list[ActiveDriver]:
        """Who drives which campaign."""
        return self._get(list[ActiveDriver], "/drivers")

    def status(self, campaign: str | None = None) -> Status:
        """Where a campaign stands."""
        return self._get(Status, self._of(campaign))

    def best(
        self,
        campaign: str | None = None,
        *,
        top: int | None = 10,
        by: str = "tokens",
        max_memory_gb: float | None = None,
    ) -> Ranking:
        """A campaign's recipes, best first, by tokens, tflops, memory or step-time; at most 1000, as None asks for."""
        question = {"top": MOST_RANKED if top is None else top, "by": by, "max_memory_gb": max_memory_gb}
        return Ranking(self._get(list[RankedRecipe], self._of(campaign, "/best"), **question))

    def pareto(self, campaign: str | None = None) -> Ranking:
        """The recipes that no other beats in both tokens/s and peak memory."""
        return Ranking(self._get(list[RankedRecipe], self._of(campaign, "/pareto")))

    def front(self, campaign: str | None = None, *, objectives: Sequence[str] = ("tokens", "memory", "nodes")) -> Front:
        """The recipes that no other beats in all the objectives."""
        return Front(self._get(list[OnFront], self._of(campaign, "/front"), objective=list(objectives)))

    def recipes(self, campaign: str | None = None, *, page: int = 1, **asked: str | float | bool) -> RecipePage:
        """A page of a campaign's recipes; `asked` are `by`, `page_size`, `max_memory_gb` and fields of a recipe."""
        return self._get(RecipePage, self._of(campaign, "/recipes"), page=page, **asked)

    def trials(self, campaign: str | None = None, *, state: str | None = None, page: int = 1) -> TrialPage:
        """A page of a campaign's trials, with what came of each."""
        return self._get(TrialPage, self._of(campaign, "/trials"), state=state, page=page, page_size=PAGE)

    def failures(self, campaign: str | None = None) -> FailureList:
        """A campaign's failed trials, with the ends of their logs."""
        path, found = self._of(campaign, "/failures"), FailureList()
        while True:
            page = self._get(list[FailedTrial], path, page=len(found) // PAGE + 1, page_size=PAGE)
            found += page
            if len(page) < PAGE:
                return found

    def log(self, campaign: str | None, trial_number: int) -> str:
        """The end of the log of a failed trial."""
        return self._connection.ask("GET", self._of(campaign, f"/trials/{int(trial_number)}/log")).decode()

    def show(self, recipe_id: str) -> Explanation:
        """Everything that the store knows of a recipe, by its id or a unique beginning of it.

        What its campaigns' commands and nodes were given, and may hold secrets, is left out.
        """
        return self._get(Explanation, recipe_path(recipe_id))

    def export(self, recipe: str, *, to: str) -> str:
        """A recipe, by its id, as a text that the tool `to` accepts; as `frontrunner.export`, but of no file."""
        path = f"{recipe_path(recipe)}/export?{urlencode({'to': to})}"
        return self._connection.ask("GET", path).decode()

    def compare(self, first: str, second: str) -> Comparison:
        """Two campaigns side by side."""
        return self._get(Comparison, "/compare", first=first, second=second, page_size=PAGE)

    def events(self, campaign: str, *, after: str | None = None) -> Iterator[StreamEvent]:
        """A campaign's events as they are recorded, from the beginning or after the event of this id; never ends."""
        for fields in self._connection.stream(self._of(campaign, "/events"), after):
            yield StreamEvent(id=fields["id"], kind=fields["event"], data=json.loads(fields["data"]))

    def _of(self, campaign: str | None, rest: str = "") -> str:
        if campaign is None:
            newest = self._get(CampaignPage, "/campaigns", page_size=1).items
            if not newest:
                raise NotFound(f"there is no campaign at {self._connection.url}")
            campaign = newest[0].name
        return f"/campaigns/{part_of_path(campaign)}{rest}"

    def _get(self, kind: type[T], path: str, **question: object) -> T:
        named = {key: _word(value) for key, value in question.items() if value is not None}
        return self._read(
            kind, self._connection.ask("GET", path + (f"?{urlencode(named, doseq=True)}" if named else ""))
        )

    def _post(self, kind: type[T], path: str, body: Mapping[str, object]) -> T:
        text = json.dumps(body, default=lambda _: OF_NO_TYPE)  # as the reader of files takes TOML's dates
        return self._read(kind, self._connection.ask("POST", path, text.encode()))

    def _read(self, kind: type[T], text: bytes) -> T:
        try:
            return TypeAdapter(kind).validate_python(json.loads(text, object_hook=_with_nan))
        except (ValueError, ValidationError) as error:
            raise ServiceUnreachable(
                f"{self._connection.url} answers with what this version cannot read: {str(error)[:200]}",
                hint="client and service should be of one version",
            ) from error


def _word(value: object) -> object:
    return str(value).lower() if isinstance(value, bool) else value


def _with_nan(table: dict[str, Any]) -> dict[str, Any]:
    """A measurement's figures that were told as null, as the NaN that they were."""
    if "step_times_s" in table:
        for name in NOT_FINITE:
            value = table.get(name)
            if value is None:
                table[name] = float("nan")
            elif isinstance(value, list):
                table[name] = [float("nan") if item is None else item for item in value]
    return table
