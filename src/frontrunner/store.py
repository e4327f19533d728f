"""Questions to a store of campaigns; `LocalStore` and `frontrunner.remote.RemoteStore` have the
same methods.

In each `campaign` is a name, and None the newest campaign (in `show`: the newest that measured the
recipe); `recipe_id` is an id or a unique prefix of one.
"""

from __future__ import annotations

import inspect
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from functools import cache, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from frontrunner import running_trials
from frontrunner.config.campaign import read_campaign_file
from frontrunner.config.settings import DEFAULT_STORE, store_url
from frontrunner.evaluators.runs.files import read_end, write_text
from frontrunner.fronts import Front, checked_objectives, front
from frontrunner.results import pages, ranking, status
from frontrunner.results.frames import frame
from frontrunner.results.pages import Comparison, HistoryPage, RecipePage, TrialPage, outcomes_after
from frontrunner.results.pruning import Deleted, delete_campaign
from frontrunner.results.ranking import RankBy, RankedRecipe, Ranking
from frontrunner.results.records import CampaignList, Labels
from frontrunner.results.redaction import without_secrets
from frontrunner.results.states import TrialState
from frontrunner.results.status import ActiveDriver, Explanation, FailureList, Status
from frontrunner.results.store import Store, open_store
from frontrunner.search.budget import Limit
from frontrunner.search.campaign_setup import (
    budget_used,
    change_budget,
    refuse_imported_campaign,
    stored_spec,
)
from frontrunner.spaces.custom import Custom
from frontrunner.spaces.document import recipe_id
from frontrunner.spaces.errors import FrontrunnerError, NotFound, bad_value, writing
from frontrunner.spaces.pareto import OBJECTIVES
from frontrunner.spaces.recipe import Choice
from frontrunner.spaces.space import Space
from frontrunner.text import as_plain, thousands

if TYPE_CHECKING:
    import pandas as pd

    from frontrunner.evaluators.analytic.breakdown import Breakdown
    from frontrunner.evaluators.analytic.timeline import StepTimeline
    from frontrunner.views.charts.marks import Missing
    from frontrunner.views.report import NotDrawn

T = TypeVar("T")

LOG_BYTES = 65_536


def opened(store: str | None, *, create: bool = False) -> Store:
    """Open the store at a path or URL, read-only unless `create` is set."""
    return open_store(store_url(store), create=create, read_only=not create)


class LocalStore:
    """A store in a database at a path or URL, which is opened read-only for each question."""

    def __init__(self, url: str | None = None, *, is_open: Store | None = None) -> None:
        """Name the store at `url` (default: $FRONTRUNNER_STORE, else frontrunner.db), or wrap one
        that `is_open`.
        """
        self.url = is_open.url if is_open is not None else store_url(url)
        self._open = is_open
        self._is_named = url is not None

    def opened(self, *, to_change: bool = False) -> AbstractContextManager[Store]:
        """Open the database, for reading unless `to_change` is set."""
        if self._open is not None:
            return nullcontext(self._open)
        return open_store(self.url, create=False, read_only=not to_change)

    def rename(self, campaign: str, name: str) -> None:
        """Give a campaign another name; its run folders keep theirs. Refused while a driver holds
        it.
        """
        with self.opened(to_change=True) as store:
            store.rename(campaign, name)

    def label(
        self,
        campaign: str | None,
        *,
        tags: Sequence[str] | None = None,
        note: str | None = None,
        hidden: bool | None = None,
    ) -> Labels:
        """Replace a campaign's tags or its note, or have lists leave it out (`hidden`); return all
        of its labels.

        Without any nothing is changed. Also while it runs.
        """
        given = {
            "tags": None if tags is None else tuple(dict.fromkeys(tags)),
            "note": note,
            "hidden": hidden,
        }
        changes = {key: value for key, value in given.items() if value is not None}
        with self.opened(to_change=bool(changes)) as store:
            return (
                store.label(store.campaign(campaign).name, **changes)
                if changes
                else store.labels(campaign)
            )

    def delete(self, campaign: str, *, preview: bool = False) -> Deleted:
        """Delete a campaign with its outcomes and run folders, or only list them; refused while a
        driver holds it.
        """
        with self.opened(to_change=not preview) as store:
            return delete_campaign(store, campaign, preview=preview)

    def change_budget(
        self, campaign: str | None, limits: Mapping[str, float], *, add: bool = False
    ) -> tuple[Limit, ...]:
        """Replace or raise (`add`) limits of a campaign's budget, also while it runs; return all
        with what was used.

        `limits` are `probes`, `minutes`, `node_hours` and `cost`. Without any nothing is changed.
        """
        with self.opened(to_change=bool(limits)) as store:
            record = store.campaign(campaign)
            if limits:
                refuse_imported_campaign(record)
                change_budget(store, record, limits, add=add)
                record = store.campaign(record.name)
            return budget_used(store, record)

    def campaigns(self) -> CampaignList:
        """Return every campaign, the newest first."""
        with self.opened() as store:
            return CampaignList(store.campaigns())

    def drivers(self) -> list[ActiveDriver]:
        """Return the drivers that hold a campaign."""
        with self.opened() as store:
            return status.active_drivers(store)

    def status(self, campaign: str | None = None) -> Status:
        """Return the state of a campaign: trials by state, failures by kind, the best recipe, the
        last events.
        """
        with self.opened() as store:
            return status.status(store, campaign)

    def running(self, campaign: str | None = None, *, top: int = 3) -> running_trials.Running:
        """Return what runs in a campaign now, the first `top` probes in full, its last outcomes and
        the time left.
        """
        with self.opened() as store:
            return running_trials.running(store, campaign, top=top)

    def failures(self, campaign: str | None = None) -> FailureList:
        """Return a campaign's failed trials with their log tails."""
        with self.opened() as store:
            return FailureList(status.failures(store, campaign))

    def best(
        self,
        campaign: str | None = None,
        *,
        top: int | None = 10,
        by: str | None = None,
        max_memory_gb: float | None = None,
    ) -> Ranking:
        """Return a campaign's recipes, best first by what it seeks, or by `by`; `top` None returns
        all.

        `by` is one of tokens, tokens-per-device, tflops, memory and step-time.
        """
        with self.opened() as store:
            return Ranking(
                ranking.best(store, campaign, top=top, by=by, max_memory_gb=max_memory_gb)
            )

    def pareto(self, campaign: str | None = None) -> Ranking:
        """Return the recipes that no other beats in both tokens/s and peak memory."""
        with self.opened() as store:
            return Ranking(ranking.pareto(store, campaign))

    def front(
        self, campaign: str | None = None, *, objectives: Sequence[str] = OBJECTIVES
    ) -> Front:
        """Return the recipes that no other beats in all objectives: of tokens, memory (free) and
        nodes (fewer).
        """
        from frontrunner.results.explore import may_be_on_front

        wanted = checked_objectives(objectives)
        with self.opened() as store:
            record = store.campaign(campaign)
            problem = stored_spec(record).problem
            return front(may_be_on_front(store, record, problem, wanted), problem, wanted)

    def recipes(
        self,
        campaign: str | None = None,
        *,
        by: str = "tokens",
        max_memory_gb: float | None = None,
        page: int = 1,
        page_size: int = 50,
        custom: Sequence[str] = (),
        **filters: Any,
    ) -> RecipePage:
        """Return one page of a campaign's measured recipes, best first; `filters` are values of a
        recipe's fields.

        `custom` are values of knobs of the user's own, each as `name=value`.
        """
        with self.opened() as store:
            if custom:
                filters["custom"] = _own_values(stored_spec(store.campaign(campaign)).space, custom)
            return pages.recipe_page(
                store,
                campaign,
                by=RankBy(by),
                filters=filters,
                max_memory_gb=max_memory_gb,
                page=page,
                page_size=page_size,
            )

    def trials(
        self,
        campaign: str | None = None,
        *,
        state: str | None = None,
        page: int = 1,
        page_size: int = 50,
    ) -> TrialPage:
        """Return one page of a campaign's trials in the order of their numbers, with their
        outcomes.
        """
        wanted = None if state is None else TrialState(state)
        with self.opened() as store:
            return pages.trial_page(store, campaign, state=wanted, page=page, page_size=page_size)

    def history(
        self, campaign: str | None = None, *, page: int = 1, page_size: int = 50
    ) -> HistoryPage:
        """Return one page of a campaign's history, the newest first: what its drivers noted, and
        who asked for what.
        """
        with self.opened() as store:
            return pages.history_page(store, campaign, page=page, page_size=page_size)

    def compare(
        self, campaigns: Sequence[str], *, page: int = 1, page_size: int = 50
    ) -> Comparison:
        """Return two campaigns or more side by side, and one page of the recipes that all have
        measured.
        """
        with self.opened() as store:
            return pages.compare(store, campaigns, page=page, page_size=page_size)

    def log(self, campaign: str | None, trial_number: int, *, most_bytes: int = LOG_BYTES) -> str:
        """Return the end of the log of a trial that runs, or of a failed one's last attempt.

        Where a failed one's is gone, that is what the store kept. `most_bytes` 0 means what the
        store kept: the driver, which knows the trainer's secrets, removed them from that; of a
        trial that runs it has nothing yet.
        """
        with self.opened() as store:
            record = store.campaign(campaign)
            failure = status.last_failure(store, record.name, trial_number)
            folder = (
                None if not most_bytes else status.open_run_folder(store, record.name, trial_number)
            )
            # The failure's path is then what another store's writer said.
            is_copied = status.is_copied(store, record)
        if folder is not None:
            log = running_trials.log_of(folder)
            found = read_end(stored_spec(record).run_folder, log, most_bytes=most_bytes)
            if found is not None:
                return without_secrets(found)
        if failure is None:
            raise NotFound(f"trial {trial_number} of campaign {record.name} has no log to read")
        found = None
        if most_bytes and failure.log_path is not None and not is_copied:
            with suppress(
                FrontrunnerError
            ):  # an imported table has no folder, another version's may not be readable
                root = stored_spec(record).run_folder
                found = read_end(root, Path(failure.log_path), most_bytes=most_bytes)
        if found is None and not failure.log_tail:
            raise NotFound(f"trial {trial_number} of campaign {record.name} left no log")
        return failure.log_tail if found is None else without_secrets(found)

    def events(self, campaign: str, *, after: str | None = None) -> Iterator[StreamEvent]:
        """Yield a campaign's events as they are recorded, from its beginning or after the event of
        this id; endless.
        """
        with self.opened() as store:
            follower = Follower(store, campaign, parse_cursor(after))
            while True:
                found, more = follower.poll()
                yield from found
                if not more:
                    time.sleep(POLL_S)

    def show(self, recipe_id: str, *, campaign: str | None = None) -> Explanation:
        """Return everything that the store knows of a recipe: `campaign` first, else the newest
        that measured it.
        """
        with self.opened() as store:
            return status.explain(store, recipe_id, campaign)

    def explain(
        self, recipe: str | Mapping[str, object], *, campaign: str | Path | None = None
    ) -> Breakdown:
        """Break a recipe's estimated step time and memory down, with its newest measurement.

        `recipe` is a stored id or a recipe file, or with a `campaign` file an id or choices such as
        `{"tensor_parallel": 8}` that leave one legal recipe of its space. Raises `InvalidInput` for
        a recipe that the estimate does not cover.
        """
        from frontrunner.recipe_actions import breakdown_of

        store = self._beside(campaign)
        return breakdown_of(store, recipe, campaign, store.opened)

    def _beside(self, campaign: str | Path | None) -> LocalStore:
        """Return this store; where none was named, the one that a campaign file names."""
        if self._is_named:
            with self.opened():  # one that was named by mistake is not passed over in silence
                pass
        elif campaign is not None:
            return LocalStore(store_url(from_file=read_campaign_file(Path(campaign)).store.url))
        return self

    def step(
        self,
        recipe_id: str,
        *,
        campaign: str | None = None,
        schedule: str | None = None,
        pipeline_parallel: int | None = None,
        virtual_stages: int | None = None,
        micro_batch_seqs: int | None = None,
    ) -> StepTimeline:
        """Lay out one step of a stored recipe by the formulas: what each pipeline rank does when,
        and its memory.

        With other values of these dimensions, on as many devices and with the same global batch.
        Raises `InvalidInput`, with the reason, where that is not legal, or the formulas do not know
        it.
        """
        from frontrunner.recipe_actions import step_in

        changes = {
            "schedule": schedule,
            "pipeline_parallel": pipeline_parallel,
            "virtual_stages": virtual_stages,
            "micro_batch_seqs": micro_batch_seqs,
        }
        found = self.show(recipe_id, campaign=campaign)
        return step_in(found.recipe, stored_spec(found.appearances[0].campaign), changes)

    def export(
        self, recipe: str | Mapping[str, object], *, to: str, campaign: str | Path | None = None
    ) -> str:
        """Return a recipe, stored or of a recipe file, as a configuration of the tool `to`.

        With `campaign` it is one of this file's space, by its id or by choices, measured or not.
        Raises `InvalidInput`, with the reason, where the tool cannot express the recipe.
        """
        from frontrunner.exchange import exported

        return exported(
            self if campaign is None else self._beside(campaign), recipe, to=to, campaign=campaign
        )

    def baseline(self, campaign: str | None = None) -> Baseline | None:
        """Return the campaign's baseline and its best recipe; None without a measured baseline."""
        with self.opened() as store:
            record = store.campaign(campaign)
            spec = stored_spec(record)
            if spec.search.baseline is None:
                return None
            name = recipe_id(spec.problem, spec.search.baseline)
            own, first = pages.rank_of(store, record, name), ranking.best(store, record, top=1)
            if own is None:
                return None
            ranked = pages.ranked_at(store, record, {first[0].recipe_id: 1, name: own})
        return Baseline(own=ranked[-1], best=ranked[0])

    def dataframe(self, campaign: str | None = None) -> pd.DataFrame:
        """Return a table with one row per finished attempt."""
        with self.opened() as store:
            return frame(store, campaign)

    def report(self, campaign: str | None = None, *, out: str | Path | None = None) -> Path:
        """Write a campaign as one self-contained HTML page (default: CAMPAIGN.html) and return its
        path.
        """
        from frontrunner.views import report as reporting
        from frontrunner.views.charts.render import require_installed

        require_installed()
        if out is not None:
            reporting.report_place(out, "")  # before anything is read
        with self.opened() as store:
            path = reporting.report_place(out, store.campaign(campaign).name)
            found = reporting.reported(store, campaign)
        text = reporting.report_text(found, store="" if self.url == DEFAULT_STORE else self.url)
        with writing(path):
            write_text(path, text)
        return path

    def plot(
        self,
        campaign: str | None = None,
        *,
        out: str | Path,
        figure: str | None = None,
        format: str | None = None,  # noqa: A002 - the option's name
    ) -> tuple[list[Path], list[NotDrawn]]:
        """Write a campaign's figures as PNG or SVG; return the files, and the figures that could
        not be drawn.

        `out` is a file named x.png or x.svg for one `figure`, or a folder for one or all of them in
        `format`.
        """

        from frontrunner.views import report as reporting

        @cache
        def found() -> reporting.Reported:
            with self.opened() as store:
                return reporting.reported(store, campaign)

        def draw(name: str, kind: str) -> bytes | Missing:
            return reporting.figure(found(), name, kind)

        return reporting.save_pictures(draw, out=out, figure=figure, format=format)


def as_function(method: Callable[..., T]) -> Callable[..., T]:
    """Return a method of `LocalStore` as a function whose keyword `store` names the store."""

    @wraps(method)
    def function(*args: Any, store: str | None = None, **kwargs: Any) -> T:
        return method(LocalStore(store), *args, **kwargs)

    own = inspect.signature(method)
    named = inspect.Parameter(
        "store", inspect.Parameter.KEYWORD_ONLY, default=None, annotation="str | None"
    )
    parameters = [
        p for p in list(own.parameters.values())[1:] if p.kind is not inspect.Parameter.VAR_KEYWORD
    ]
    vars(function)["__signature__"] = own.replace(parameters=[*parameters, named])
    return function


POLL_S = 1.0
BATCH = 200
STATE_FIELDS = (
    "name",
    "state",
    "state_reason",
    "outcomes",
    "node_seconds_spent",
    "driver_seconds",
    "driver",
)
CURSOR = re.compile(r"(\d{1,18})-(\d{1,18})")


@dataclass(frozen=True, kw_only=True)
class StreamEvent:
    """One event of a campaign: `event` (its history), `outcome` (a trial's final outcome) or
    `state`.
    """

    id: str
    kind: str
    data: Mapping[str, Any]


class Cursor(NamedTuple):
    """The highest event id, and the highest number of an outcome, that a reader has seen."""

    event: int = 0
    outcome: int = 0


def parse_cursor(text: str | None) -> Cursor:
    """Return the cursor of an event id; the beginning without one. Raises `InvalidInput` for
    anything else.
    """
    found = CURSOR.fullmatch(text or "0-0")
    if found is None:
        raise bad_value("Last-Event-ID", text, "the id of an event of this stream, as in 12-5")
    return Cursor(int(found[1]), int(found[2]))


class Follower:
    """One reader's position in a campaign."""

    def __init__(self, store: Store, name: str, cursor: Cursor, batch: int = BATCH) -> None:
        self._store, self._name, self._cursor, self._batch = store, name, cursor, batch
        self._updated_at = ""
        self._state: Mapping[str, Any] = {}

    def poll(self) -> tuple[list[StreamEvent], bool]:
        """Return the new events, at most a batch of each kind, and whether more may be waiting."""
        campaign = self._store.campaign(self._name)
        if campaign.updated_at == self._updated_at:
            return [], False
        events = self._store.events(campaign.id, self._cursor.event, self._batch)
        outcomes = outcomes_after(self._store, campaign.id, self._cursor.outcome, self._batch)
        found = [self._seen("event", event, event=event.id) for event in events]
        found += [
            self._seen("outcome", outcome, outcome=outcome.outcome_number) for outcome in outcomes
        ]
        if self._batch in (len(events), len(outcomes)):
            return found, True
        state = {name: getattr(campaign, name) for name in STATE_FIELDS}
        if state != self._state:
            found.append(self._seen("state", state))
        self._updated_at, self._state = campaign.updated_at, state
        return found, False

    def _seen(self, kind: str, value: object, **place: Any) -> StreamEvent:
        self._cursor = self._cursor._replace(**place)
        return StreamEvent(id="{}-{}".format(*self._cursor), kind=kind, data=as_plain(value))


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """The row of the baseline that a campaign's file names, and the best row, in the ranking by
    tokens/s.
    """

    own: RankedRecipe
    best: RankedRecipe

    @property
    def factor(self) -> float:
        """The best tokens/s over the baseline's."""
        return self.best.standing.tokens_per_s / self.own.standing.tokens_per_s

    def in_words(self) -> str:
        """Return the baseline's rank and speed, and what the best makes of it, in one line."""
        speed = thousands(self.own.standing.tokens_per_s)
        best = (
            f"the best is {self.factor:.3g} times as fast"
            if self.own.rank > 1
            else "no recipe was faster"
        )
        return f"baseline {self.own.recipe_id}: rank {self.own.rank}, {speed} tokens/s; {best}"


def _own_values(space: Space, words: Sequence[str]) -> dict[str, Choice | None]:
    """Return the values of knobs that recipes must have: None for a default, which recipes do not
    hold.
    """
    found: dict[str, Choice | None] = {}
    for word in words:
        name = word.partition("=")[0]
        if (knob := space.custom.get(name)) is None:
            known = ", ".join(f"{own}=VALUE" for own in space.custom)
            raise bad_value("custom", word, known or "no value: the campaign has no space.custom")
        values = {
            Custom(name=name, value=value, flag=knob.flag, env=knob.env).words(): value
            for value in knob.values
        }
        if word not in values:
            raise bad_value("custom", word, f"one of {', '.join(values)}")
        found[name] = None if values[word] == knob.default else values[word]
    return found
