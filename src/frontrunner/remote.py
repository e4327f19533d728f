"""Client of a service on this or another machine: the questions of a local store, and actions on
campaigns.
"""

# ruff: noqa: D102 - methods without a docstring are those of `frontrunner.store.LocalStore`

from __future__ import annotations

import inspect
import json
import os
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlsplit

import httpx2
from pydantic import TypeAdapter, ValidationError

from frontrunner.config.campaign import with_model_inside
from frontrunner.config.toml_file import Table, read_toml
from frontrunner.evaluators.analytic.breakdown import Breakdown
from frontrunner.evaluators.analytic.estimates import ShownPlan
from frontrunner.exchange import exported
from frontrunner.fronts import Front, OnFront
from frontrunner.recipe_actions import breakdown_of
from frontrunner.results.frames import from_columns
from frontrunner.results.pages import CampaignPage, RecipePage
from frontrunner.results.pruning import Deleted
from frontrunner.results.records import CampaignList, Labels
from frontrunner.results.status import FailedTrial, FailureList, Status
from frontrunner.results.store import MOST_IDLE
from frontrunner.search.budget import Limit
from frontrunner.server.auth import (
    PLAIN_HTTP_VARIABLE,
    TOKEN_VARIABLE,
    Role,
    default_token_file,
    read_tokens,
)
from frontrunner.server.drivers import Replay
from frontrunner.server.errors import IDEMPOTENCY_KEY, from_problem
from frontrunner.server.requests import (
    API,
    QUESTIONS,
    ChangeAnswer,
    FrameAnswer,
    InvitationAnswer,
    Question,
    TokenAnswer,
    UserAnswer,
    UserName,
)
from frontrunner.server.settings import is_loopback
from frontrunner.spaces import errors
from frontrunner.spaces.document import write_bytes
from frontrunner.spaces.pareto import OBJECTIVES
from frontrunner.spaces.validation import OF_NO_TYPE
from frontrunner.store import LOG_BYTES, LocalStore, StreamEvent
from frontrunner.views.charts.marks import Missing
from frontrunner.views.report import NotDrawn, not_drawn, report_place, save_pictures

if TYPE_CHECKING:
    import pandas as pd

    Questions = LocalStore
    """Base of `RemoteStore` for type checkers only: the methods that `QUESTIONS` adds have these
    signatures.
    """
else:
    Questions = object

T = TypeVar("T")
CampaignSource = str | Path | Mapping[str, Any]
PAGE = 200
TIMEOUT_S = 150.0
"""A launch may compile before the service responds; everything else takes milliseconds."""
STREAM_TIMEOUT_S = 60.0
NOT_FINITE = ("losses", "build_time_s", "first_step_time_s")
"""Figures of a measurement that JSON carries as null where they were not finite."""
ONE_VERSION = "use the same version of frontrunner for client and service"


def connect(url: str, *, token: str | None = None) -> RemoteStore:
    """Return a client of the service at `url`; nothing is sent yet.

    `token` None means $FRONTRUNNER_TOKEN, else, for a service on this machine, the operator's in
    the token file.
    """
    is_here = _is_here(url, "--server")
    token = token or os.environ.get(TOKEN_VARIABLE)
    if not token:
        reason = "this user's token file is for this machine only"
        try:
            token = read_tokens(default_token_file()).operator if is_here else ""
        except errors.NotFound as error:
            reason = error.message
        if not token:
            raise errors.NotFound(
                f"no token for {url}: {TOKEN_VARIABLE} is not set, and {reason}",
                hint=f"ask the operator of the service for a token, and set {TOKEN_VARIABLE}",
            )
    _refuse_plain(url, "--server")
    return RemoteStore(url, token)


def _is_here(url: str, what: str) -> bool:
    """Return whether a service's URL is one of this machine; raise `InvalidInput` for what is no
    URL.
    """
    try:
        parts = urlsplit(url)
        is_valid = (
            parts.scheme in ("http", "https")
            and parts.port != 0
            and not (parts.query or parts.username)
        )
    except ValueError:
        is_valid = False
    if not is_valid or not parts.hostname:
        raise errors.bad_value(what, url, "http://HOST:PORT, or https://HOST")
    return is_loopback(parts.hostname)


def _refuse_plain(url: str, what: str) -> None:
    if not (
        _is_here(url, what)
        or url.lower().startswith("https:")
        or os.environ.get(PLAIN_HTTP_VARIABLE) == "1"
    ):
        raise errors.InvalidInput(
            f"{what} {url} is neither https nor this machine: the token would cross the network"
            " unencrypted",
            hint=(
                "use https or a tunnel (ssh -L), or, on a network that you trust, set"
                f" {PLAIN_HTTP_VARIABLE}=1"
            ),
        )


def accept(link: str) -> TokenAnswer:
    """Accept the invitation of a link, and return the token that it gives; nothing keeps it."""
    url, _, code = link.partition("/join?code=")
    _refuse_plain(url, "the link")
    if not code:
        raise errors.bad_value("the link", link, "an invitation: http://HOST:PORT/join?code=...")
    return RemoteStore(url, "-")._post(TokenAnswer, "/join", {"code": code})


class RemoteStore(Questions):
    """One service, with the questions of `frontrunner.store.LocalStore` and actions."""

    def __init__(self, url: str, token: str, *, client: httpx2.Client | None = None) -> None:
        """Name the service at `url`, which is sent the token; `client` sends the requests where one
        is given.
        """
        if not token.isascii() or not token.isprintable():
            raise errors.bad_value("the token", "...", "the characters of a token file")
        self.url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {token}", "Accept": "application/json"}
        # Tokens are sent to the service itself: no proxy or .netrc of the environment is used.
        # No connection outlives its request, so that a store need not be closed.
        no_pool = httpx2.Limits(max_keepalive_connections=0)
        self._client = client or httpx2.Client(timeout=TIMEOUT_S, trust_env=False, limits=no_pool)

    def campaigns(self) -> CampaignList:
        return CampaignList(
            _pages(lambda asked: self._get(CampaignPage, "/campaigns", **asked).items)
        )

    def failures(self, campaign: str | None = None) -> FailureList:
        path = self._of(campaign, "/failures")
        return FailureList(_pages(lambda asked: self._get(list[FailedTrial], path, **asked)))

    def front(
        self, campaign: str | None = None, *, objectives: Sequence[str] = OBJECTIVES
    ) -> Front:
        return Front(
            self._get(list[OnFront], self._of(campaign, "/front"), objective=list(objectives))
        )

    def recipes(self, campaign: str | None = None, **asked: Any) -> RecipePage:
        return self._get(RecipePage, self._of(campaign, "/recipes"), **asked)

    def log(self, campaign: str | None, trial_number: int, *, most_bytes: int = LOG_BYTES) -> str:
        path = self._of(campaign, f"/trials/{int(trial_number)}/log")
        return self._send("GET", path, params={"most_bytes": most_bytes}).text

    def events(self, campaign: str, *, after: str | None = None) -> Iterator[StreamEvent]:
        headers = self._headers | ({} if after is None else {"Last-Event-ID": after})
        url = self.url + API + self._of(campaign, "/events")
        with (
            self._reached(),
            self._client.stream("GET", url, headers=headers, timeout=STREAM_TIMEOUT_S) as response,
        ):
            if response.status_code >= 300:
                response.read()
                raise self._refused(response)
            fields: dict[str, str] = {}
            for line in response.iter_lines():
                name, _, value = line.partition(": ")
                if name and value:
                    fields[name] = value
                elif "data" in fields:
                    yield StreamEvent(
                        id=fields["id"], kind=fields["event"], data=json.loads(fields["data"])
                    )
                    fields = {}

    def explain(
        self, recipe: str | Mapping[str, object], *, campaign: str | Path | None = None
    ) -> Breakdown:
        return breakdown_of(self, recipe, campaign)

    def export(
        self, recipe: str | Mapping[str, object], *, to: str, campaign: str | Path | None = None
    ) -> str:
        if campaign is not None or not isinstance(recipe, str):
            return exported(self, recipe, to=to, campaign=campaign)
        return self._get(str, f"/recipes/{_path_part(recipe.strip().lower())}/export", to=to)

    def dataframe(self, campaign: str | None = None) -> pd.DataFrame:
        found = self._get(FrameAnswer, self._of(campaign, "/dataframe"))
        try:
            return from_columns(found.columns)
        except ValueError as error:
            raise self._unreadable(error) from error

    def report(self, campaign: str | None = None, *, out: str | Path | None = None) -> Path:
        path = self._of(campaign)
        place = report_place(out, path.rpartition("/")[2])
        page = self._send("GET", f"{path}/report").content
        with errors.writing(place):
            write_bytes(place, page)
        return place

    def plot(self, campaign: str | None = None, **wanted: Any) -> tuple[list[Path], list[NotDrawn]]:
        path = self._of(campaign, "/figures/")

        def picture(name: str, kind: str) -> bytes | Missing:
            try:
                return self._send("GET", path + name, params={"format": kind}).content
            except errors.NothingLegal as error:
                return Missing(reason=error.message.removeprefix(not_drawn(name)))

        return save_pictures(picture, **wanted)

    def registered(self) -> dict[str, dict[str, str]]:
        """Return what a launch may name: kind (site, trainer, data, table) -> name ->
        description.
        """
        return self._get(dict[str, dict[str, str]], "/registered")

    def plan(self, campaign: CampaignSource, *, top: int = 10) -> ShownPlan:
        """Return the estimates of a campaign's `top` fastest recipes; nothing is run or stored."""
        return self._submit(ShownPlan, "/plan", campaign, {"top": top})

    def launch(self, campaign: CampaignSource, *, name: str | None = None) -> str:
        """Start a campaign on the service's machine and return its name: `name`, the file's, or one
        that is free.
        """
        if name is None and not isinstance(campaign, Mapping) and "name" not in _table(campaign):
            taken = {known.name for known in self.campaigns()}
            name = errors.free_among(taken, errors.campaign_name_from(Path(campaign).stem))
        more = {} if name is None else {"name": name}
        return str(self._submit(dict[str, Any], "/campaigns", campaign, more)["campaign"])

    def pause(self, campaign: str) -> None:
        """Let running probes finish, and leave the campaign paused."""
        self._post(dict[str, Any], self._of(campaign, "/pause"))

    def resume(self, campaign: str | None = None) -> str:
        """Continue a campaign (None: the one created last) where it stopped, and return its
        name.
        """
        campaign = campaign or next((one.name for one in self.campaigns()), None)
        return str(self._post(dict[str, Any], self._of(campaign, "/resume"))["campaign"])

    def stop(self, campaign: str) -> None:
        """Let running probes finish, and leave the campaign stopped."""
        self._post(dict[str, Any], self._of(campaign, "/stop"))

    def cancel(self, campaign: str) -> None:
        """End running probes at once."""
        self._post(dict[str, Any], self._of(campaign, "/cancel"))

    def rename(self, campaign: str, name: str) -> None:
        self._post(dict[str, Any], self._of(campaign), {"name": name}, method="PATCH")

    def change_budget(
        self, campaign: str | None, limits: Mapping[str, float], *, add: bool = False
    ) -> tuple[Limit, ...]:
        body: dict[str, object] = {"budget": dict(limits), "add": add}
        return self._post(ChangeAnswer, self._of(campaign), body, method="PATCH").budget

    def label(
        self,
        campaign: str | None,
        *,
        tags: Sequence[str] | None = None,
        note: str | None = None,
        hidden: bool | None = None,
    ) -> Labels:
        given = {"tags": tags, "note": note, "hidden": hidden}
        body = {key: value for key, value in given.items() if value is not None}
        path = self._of(campaign)
        if body:
            return self._post(ChangeAnswer, path, body, method="PATCH").labels
        name = self._get(Status, path).campaign.name
        return next(one.labels for one in self.campaigns() if one.name == name)

    def delete(self, campaign: str, *, preview: bool = False) -> Deleted:
        params = {"preview": preview}
        return self._read(Deleted, self._send("DELETE", self._of(campaign), params=params))

    def replay(
        self, recipe_id: str, *, steps: int, anyway: bool = False, **settings: float
    ) -> Replay:
        """Start a full training run of a recipe on the service's machine, and return when it has
        begun.

        `settings` are `learning_rate`, `warm_up_steps`, `evaluate_every` and `checkpoint_every`.
        """
        body = {
            "recipe_id": recipe_id.strip().lower(),
            "steps": steps,
            "anyway": anyway,
            **settings,
        }
        return self._post(Replay, "/replays", body)

    def replays(self) -> list[Replay]:
        """Return every replay that the service has started."""
        return self._get(list[Replay], "/replays")

    def watch_replay(self, recipe_id: str) -> Replay:
        """Return the progress of a replay."""
        return self._get(Replay, f"/replays/{_path_part(recipe_id)}")

    def stop_replay(self, recipe_id: str) -> Replay:
        """Have a replay store a checkpoint and end, the second time at once."""
        return self._post(Replay, f"/replays/{_path_part(recipe_id)}/stop")

    def users(self) -> list[UserAnswer]:
        """Return the users who were invited to the service."""
        return self._get(list[UserAnswer], "/users")

    def invite(self, name: str, *, role: str = Role.OPERATOR) -> str:
        """Return a link that lets the first who opens it in as a new user, an `operator` or a
        `reader`.
        """
        found = self._post(InvitationAnswer, "/users", {"name": name, "role": role})
        return self.url + found.path

    def remove_user(self, name: str) -> None:
        """End a user's token, sessions and invitation at once."""
        self._read(UserName, self._send("DELETE", f"/users/{_path_part(name)}"))

    def _of(self, campaign: str | None, rest: str = "") -> str:
        """Return a path under a campaign, the newest one for None (see `Store.read`)."""
        if campaign is None:
            newest = self._get(CampaignPage, "/campaigns", page_size=MOST_IDLE).items
            if not newest:
                raise errors.NotFound(f"there is no campaign at {self.url}")
            campaign = next((one for one in newest if not one.is_idle), newest[0]).name
        return f"/campaigns/{_path_part(campaign)}{rest}"

    def _submit(self, kind: type[T], path: str, campaign: CampaignSource, more: Table) -> T:
        with nullcontext() if isinstance(campaign, Mapping) else errors.naming(campaign):
            return self._post(kind, path, {**_table(campaign), **more})

    def _get(self, kind: type[T], path: str, **params: Any) -> T:
        given = {key: value for key, value in params.items() if value is not None}
        return self._read(kind, self._send("GET", path, params=given))

    def _post(
        self,
        kind: type[T],
        path: str,
        body: Mapping[str, object] | None = None,
        *,
        method: str = "POST",
    ) -> T:
        text = json.dumps(
            body or {}, default=lambda _: OF_NO_TYPE
        )  # TOML has dates, which no campaign has
        once = {IDEMPOTENCY_KEY: uuid.uuid4().hex, "Content-Type": "application/json"}
        options: Any = {"content": text.encode(), "headers": self._headers | once}
        try:
            response = self._send(method, path, **options)
        except errors.ServiceUnreachable as error:
            if not isinstance(error.__cause__, httpx2.ReadError | httpx2.RemoteProtocolError):
                raise
            response = self._send(
                method, path, **options
            )  # whether it was carried out is not known: ask again
        return self._read(kind, response)

    def _send(self, method: str, path: str, **options: Any) -> httpx2.Response:
        with self._reached():
            response = self._client.request(
                method, self.url + API + path, **{"headers": self._headers, **options}
            )
        if response.status_code >= 300:
            raise self._refused(response)
        return response

    @contextmanager
    def _reached(self) -> Iterator[None]:
        try:
            yield
        except httpx2.TransportError as error:
            raise errors.ServiceUnreachable(
                f"no service at {self.url}: {error or type(error).__name__}",
                hint="is a service (frontrunner serve) running there?",
            ) from error

    def _refused(self, response: httpx2.Response) -> errors.FrontrunnerError:
        try:
            return from_problem(response.json())
        except (ValueError, KeyError, TypeError, AttributeError):
            return errors.ServiceUnreachable(
                f"{self.url} returned status {response.status_code}: not a frontrunner service"
            )

    def _read(self, kind: type[T], response: httpx2.Response) -> T:
        if kind is str:
            return response.text  # type: ignore[return-value]
        try:
            return TypeAdapter(kind).validate_python(
                json.loads(response.content, object_hook=_with_nan)
            )
        except (ValueError, ValidationError) as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: Exception) -> errors.ServiceUnreachable:
        return errors.ServiceUnreachable(
            f"{self.url} returned a document that this version cannot read: {str(error)[:200]}",
            hint=ONE_VERSION,
        )


def _method(question: Question) -> Callable[..., Any]:
    signature = inspect.signature(question.local)

    @wraps(question.local)
    def ask(self: RemoteStore, *args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(self, *args, **kwargs)
        bound.apply_defaults()
        query = {name: bound.arguments.pop(name) for name in question.query}
        query |= {name: value for name, value in question.as_none.items() if query[name] is None}
        subject = next(iter(list(bound.arguments.values())[1:]), None)
        path = question.path
        if "{name}" in path:
            path = self._of(subject, path.partition("{name}")[2])
        elif (
            "{recipe_id}" in path
        ):  # as on the command line, an id may have capitals and spaces around it
            path = path.replace("{recipe_id}", _path_part(str(subject).strip().lower()))
        found = self._get(question.result, path, **query)
        return found if question.make is None else question.make(found)

    return ask


for _question in (one for one in QUESTIONS if one.method not in vars(RemoteStore)):
    setattr(RemoteStore, _question.method, _method(_question))
for _name in ("plot", "recipes"):
    vars(getattr(RemoteStore, _name))["__wrapped__"] = getattr(
        LocalStore, _name
    )  # whose arguments they take


def _pages(ask: Callable[[dict[str, int]], Sequence[T]]) -> list[T]:
    found: list[T] = []
    while True:
        more = ask({"page": len(found) // PAGE + 1, "page_size": PAGE})
        found += more
        if len(more) < PAGE:
            return found


def _path_part(name: str) -> str:
    if name in ("", ".", "..") or "/" in name:
        raise errors.InvalidInput(f"{name!r} names no campaign and no recipe")
    return quote(name, safe="")


def _table(campaign: CampaignSource) -> Table:
    if isinstance(campaign, Mapping):
        return with_model_inside(dict(campaign), Path())
    if isinstance(campaign, str | Path):
        path = Path(campaign)
        return with_model_inside(read_toml(path), path.parent)
    raise errors.InvalidInput(
        f"campaign = {errors.shown(campaign)}: expected a campaign file's path, or its tables"
    )


def _with_nan(table: dict[str, Any]) -> dict[str, Any]:
    """Restore the NaN of a measurement's figures, which JSON carries as null."""
    if "step_times_s" in table:
        for name in NOT_FINITE:
            value = table.get(name)
            if value is None:
                table[name] = float("nan")
            elif isinstance(value, list):
                table[name] = [float("nan") if item is None else item for item in value]
    return table
