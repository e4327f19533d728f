"""Values that the store returns: frozen, detached from the database.

Timestamps are ISO 8601 text in UTC with offset; durations are seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal, cast, get_args

from frontrunner.results.displayed_rows import DisplayedRows
from frontrunner.results.outcome import Measurement, Outcome
from frontrunner.results.states import AttemptState, CampaignState, TrialState
from frontrunner.spaces.display import Displayed
from frontrunner.spaces.errors import bad_value
from frontrunner.spaces.recipe import Recipe

EventData = Mapping[str, str | int | float | None]
Figures = Literal["measured", "simulated", "imported"]
"""Where a campaign's numbers come from: training, a rehearsal's rough formulas, or a table of
others.
"""

OBJECTIVE = "objective"
"""Key of a campaign's problem summary: what it seeks, where that is not tokens/s."""
NODE_TYPES = "groups"
"""Key of a problem summary of an earlier version: the nodes of each of several node types, by its
name.
"""
COPIED = "copied"
"""Event of a campaign that was copied alone from another store; its data name store and
campaign.
"""
SEVERAL_NODE_TYPES = "several node types, which this version does not know"
UNARCHIVED = "unarchived"
"""Event of a campaign that came from an archive; its data name the file and its hash."""
IMPORTED = "imported"


USER = "user"
"""Key of an event's data: who asked for it."""
CUT_OFF = "cut off"
"""State shown for a campaign that is running by its row and has no live driver."""


def state_in_words(state: CampaignState, *, is_driven: bool) -> str:
    """A campaign's state, or `CUT_OFF`."""
    return CUT_OFF if state is CampaignState.RUNNING and not is_driven else state.value


@dataclass(frozen=True, kw_only=True)
class Campaign(Displayed):
    """One search. `driver` is host:pid of the lease's holder.

    `problem_summary` is for people; `outcomes` counts each trial that ended, and once more for each
    repeat.
    """

    id: int
    name: str
    state: CampaignState
    state_reason: str
    strategy: str
    spec_json: str
    problem_summary: Mapping[str, object]
    legal_recipes: int
    outcomes: int
    driver_seconds: float
    node_seconds_spent: float
    epoch: int
    driver: str | None
    created_at: str
    updated_at: str

    @property
    def figures(self) -> Figures:
        """Simulated or imported where `problem_summary` says so."""
        said = self.problem_summary.get("figures")
        return cast(Figures, said) if said in get_args(Figures) else "measured"

    @property
    def objective(self) -> str:
        """What it seeks: tokens (tokens/s), tokens_per_device or tokens_per_cost.

        Prices of several node types are not known, so that such a campaign is ranked by tokens/s.
        """
        sought = str(self.problem_summary.get(OBJECTIVE, "tokens"))
        is_unknown = sought == "tokens_per_cost" and NODE_TYPES in self.problem_summary
        return "tokens" if is_unknown else sought

    @property
    def is_idle(self) -> bool:
        """Whether it neither runs nor has an outcome, as one that never got nodes."""
        is_under_way = self.state in (CampaignState.CREATED, CampaignState.RUNNING)
        return not (is_under_way or self.outcomes)


MOST_TAGS, MOST_TAG_CHARACTERS, MOST_NOTE_CHARACTERS = 20, 40, 4000


@dataclass(frozen=True, kw_only=True)
class Labels(Displayed):
    """What people say of a campaign. One that is hidden is left out of lists, and of nothing
    else.
    """

    tags: tuple[str, ...] = ()
    note: str = ""
    hidden: bool = False

    def __post_init__(self) -> None:
        expected = (
            f"1 to {MOST_TAG_CHARACTERS} printable characters without a comma, and no space at"
            " either end"
        )
        for tag in self.tags:
            if (
                not 0 < len(tag) <= MOST_TAG_CHARACTERS
                or not tag.isprintable()
                or "," in tag
                or tag != tag.strip()
            ):
                raise bad_value("tag", tag, expected)
        if len(self.tags) > MOST_TAGS:
            raise bad_value("tags", f"{len(self.tags)} tags", f"at most {MOST_TAGS}")
        if len(self.note) > MOST_NOTE_CHARACTERS:
            raise bad_value(
                "note", f"{len(self.note):,} characters", f"at most {MOST_NOTE_CHARACTERS:,}"
            )


@dataclass(frozen=True, kw_only=True)
class CampaignSummary(Displayed):
    """One line of the list of campaigns; `probes` counts the trials in each state, zeros
    included.
    """

    id: int
    name: str
    state: CampaignState
    strategy: str
    figures: Figures
    legal_recipes: int
    probes: Mapping[TrialState, int]
    best_tokens_per_s: float | None
    best_mfu: float | None = None
    problem_summary: Mapping[str, object] = field(default_factory=dict)
    labels: Labels = Labels()
    outcomes: int = 0
    node_seconds_spent: float
    created_at: str
    updated_at: str
    is_driven: bool = False
    is_idle: bool = False

    def has(self, words: str) -> bool:
        """Return whether each of the words is part of the campaign's name, problem, strategy, tags
        or note.
        """
        about = (self.problem_summary.get(key) for key in ("model", "cluster", "device"))
        text = " ".join(
            map(str, (self.name, self.strategy, *about, *self.labels.tags, self.labels.note))
        ).lower()
        return all(word in text for word in words.lower().split())

    @property
    def state_in_words(self) -> str:
        """The state, or `CUT_OFF`."""
        return state_in_words(self.state, is_driven=self.is_driven)


class CampaignList(list[CampaignSummary], DisplayedRows):
    """Campaigns as a list that a notebook shows as a table."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One recipe of a campaign; `number` counts the campaign's trials from 1."""

    id: int
    campaign_id: int
    number: int
    recipe_id: str
    recipe: Recipe
    state: TrialState


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One try at a trial's probe; `number` counts the trial's attempts from 1."""

    id: int
    campaign_id: int
    trial_id: int
    number: int
    state: AttemptState
    run_folder: str
    started_at: str
    finished_at: str | None


@dataclass(frozen=True, kw_only=True)
class AttemptOutcome:
    """An attempt with its trial and its outcome, None while it runs."""

    trial: Trial
    attempt: Attempt
    outcome: Outcome | None

    @property
    def is_disturbed(self) -> bool:
        """Whether it ended with a measurement that is."""
        return isinstance(self.outcome, Measurement) and self.outcome.is_disturbed


@dataclass(frozen=True, kw_only=True)
class Probed(AttemptOutcome):
    """A finished attempt."""

    outcome: Outcome


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that happened in a campaign; ids rise in the order of recording."""

    id: int
    campaign_id: int
    at: str
    kind: str
    data: EventData

    @property
    def user(self) -> str | None:
        """Who asked for it, where a person did and it is known."""
        named = self.data.get(USER)
        return None if named is None else str(named)


@dataclass(frozen=True, kw_only=True)
class Lease:
    """The right to write to a campaign: the `epoch`-th that was given out, for `duration_s` after
    each renewal.
    """

    campaign_id: int
    campaign_name: str
    epoch: int
    host: str
    pid: int
    duration_s: float


Clock = Callable[[], datetime]


def utc_now() -> datetime:
    """The system's time, in UTC."""
    return datetime.now(UTC)


def timestamp(moment: datetime) -> str:
    """Return ISO 8601 in UTC with offset and microseconds: text of one width, so that it sorts by
    time.
    """
    if moment.tzinfo is None:
        raise ValueError(f"{moment!r} has no time zone")
    return moment.astimezone(UTC).isoformat(timespec="microseconds")


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """What a strategy expects of further probes, in shares of the best measured tokens/s.

    `expected_improvement` is the mean gain of the most promising next probe. `gap` is the estimated
    distance to the best recipe of the whole legal space, at least 0, and `gap_at_most` its 95th
    percentile. Where `of_front`, they are shares of what the measured front is worth: the best
    tokens/s within an allowance of memory and nodes, as a mean over all allowances.
    """

    expected_improvement: float
    gap: float
    gap_at_most: float
    of_front: bool = False

    @property
    def share_below(self) -> float:
        """`gap` as a share of the whole space's best: gap / (1 + gap)."""
        return 1 - 1 / (1 + self.gap)

    @property
    def share_below_at_most(self) -> float:
        """`gap_at_most` as a share of the whole space's best."""
        return 1 - 1 / (1 + self.gap_at_most)
