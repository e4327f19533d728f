"""Outcomes that lie in run folders and not in the store, and their way back into one.

Each driver describes its campaign in the campaign's run folder, and each attempt in its own folder.
With the outcome that the evaluator writes there, that is all that a store needs to know. A campaign
is known by the time of its creation: campaigns of two stores may have one name and one run folder.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any

from sqlalchemy import select

from frontrunner.evaluators.runs.files import read_json, write_json
from frontrunner.evaluators.runs.run_folder import ATTEMPT, RunFolder
from frontrunner.results.check import Finding
from frontrunner.results.outcome import FailureKind, Measurement, Outcome
from frontrunner.results.process_identity import this_host
from frontrunner.results.records import Attempt, Campaign, Trial, timestamp
from frontrunner.results.schema import AttemptRow, recipe_from_json, recipe_to_json
from frontrunner.results.states import AttemptState, CampaignState, TrialState
from frontrunner.results.store import Store
from frontrunner.results.writer import CampaignWriter
from frontrunner.search.campaign_setup import stored_spec
from frontrunner.spaces.display import Displayed
from frontrunner.spaces.errors import FrontrunnerError, InvalidInput, NameTaken
from frontrunner.spaces.recipe import Recipe

DESCRIPTIONS = "campaign-*.json"
"""Files in run folders that describe campaigns, each named after the time of its creation."""
NOT_STORED = "run folders"
"""Rule that the store has every outcome that lies in its campaigns' run folders."""
RECOVERED = "recovered"
"""Event of outcomes that were read back from run folders, with their number and the folder."""


@dataclass(frozen=True, kw_only=True)
class Recovered(Displayed):
    """What was read back of one campaign.

    `recovered` counts the outcomes that are in the store now and were not; `known` those that were.
    `left_to_resume` are outcomes of trials that the store takes for running: `resume` ends these.
    `unreadable` are folders whose files are damaged, incomplete or of an earlier version.
    """

    campaign: str
    folder: Path
    is_new: bool
    recovered: int
    known: int
    left_to_resume: int
    unreadable: tuple[Path, ...] = ()


@dataclass(frozen=True, kw_only=True)
class _FoundAttempt:
    created_at: str  # of its campaign
    folder: Path
    trial: int
    number: int
    recipe_id: str
    recipe: Recipe
    started_at: str
    finished_at: str
    outcome: Outcome


def describe_campaign(folder: Path, campaign: Campaign) -> None:
    """Write down in a campaign's run folder what recovery needs to know of the campaign."""
    folder.mkdir(parents=True, exist_ok=True)
    created = "".join(filter(str.isdigit, campaign.created_at))
    write_json(
        folder / DESCRIPTIONS.replace("*", created),
        {
            "run_folder": str(folder.absolute()),
            "name": campaign.name,
            "created_at": campaign.created_at,
            "spec_json": campaign.spec_json,
            "legal_recipes": campaign.legal_recipes,
            "problem_summary": dict(campaign.problem_summary),
        },
    )


def describe_attempt(folder: Path, campaign: Campaign, trial: Trial, attempt: Attempt) -> None:
    """Write down in a run folder whose attempt it is."""
    write_json(
        folder / ATTEMPT,
        {
            "run_folder": str(folder.absolute()),
            "campaign": campaign.name,
            "campaign_created_at": campaign.created_at,
            "trial": trial.number,
            "attempt": attempt.number,
            "recipe_id": trial.recipe_id,
            "recipe_json": recipe_to_json(trial.recipe),
            "started_at": attempt.started_at,
        },
    )


def recover(store: Store, folder: Path) -> list[Recovered]:
    """Read the outcomes of run folders back into a store.

    `folder` is the run folder of one campaign, the folder that holds those of several, or a file
    that describes a campaign. A campaign that the store does not have is made. Outcomes that it has
    are left as they are, so that a second call changes nothing.

    Raises `InvalidInput` where no campaign is described there, `NameTaken` where another campaign
    has the same name, and `AlreadyDriven` where a driver holds it.
    """
    described = {path: _read_description(path) for path in require_described(folder)}
    _refuse_taken_names(store, described)
    return [
        _recover_campaign(store, path.parent, description)
        for path, description in described.items()
    ]


def require_described(folder: Path) -> list[Path]:
    """Return the files that describe campaigns in a run folder, or in the run folders in it; the
    path itself if it is such a file.

    Raises `InvalidInput` where there are none.
    """
    if folder.match(DESCRIPTIONS) and folder.is_file():
        return [folder]
    described = sorted({*folder.glob(DESCRIPTIONS), *folder.glob(f"*/{DESCRIPTIONS}")})
    if not described:
        raise InvalidInput(
            f"{folder}: expected the run folder of a campaign, with {DESCRIPTIONS}, or the folder"
            " that holds such run folders",
            hint=(
                "each campaign has one in frontrunner-runs beside its store, or in"
                f" store.run_folder; those of earlier versions have no {DESCRIPTIONS} and cannot"
                " be read back"
            ),
        )
    return described


def outcomes_not_stored(store: Store) -> Finding | None:
    """Return the outcomes in the run folders of a store's campaigns that the store lacks, as a
    broken rule; None where it lacks none.
    """
    rows = []
    for summary in store.campaigns():
        campaign = store.campaign(summary.name)
        try:
            run_folder = stored_spec(campaign).run_folder
        except FrontrunnerError:
            continue  # imported, or on several node types: it has no run folders
        stored, running = _stored_folders(store, campaign)
        for path in _attempt_folders(run_folder):
            attempt = None if path in stored | running else _attempt_in(path)
            if attempt is not None and attempt.created_at == campaign.created_at:
                rows.append({"campaign": campaign.name, "run_folder": str(path)})
    if not rows:
        return None
    return Finding(
        rule=NOT_STORED,
        says="the store has every outcome that lies in its campaigns' run folders",
        is_fault=True,
        odd_as=None,
        count=len(rows),
        rows=tuple(rows),
    )


def _attempt_folders(run_folder: Path) -> Iterator[Path]:
    """Yield the folders of a campaign's attempts, resolved, in the order of their names."""
    yield from (path.parent.resolve() for path in sorted(run_folder.glob("*/outcome.json")))


def _stored_folders(store: Store, campaign: Campaign) -> tuple[set[Path], set[Path]]:
    """Return the run folders of a campaign's attempts, those with an outcome and those without."""
    query = select(AttemptRow.run_folder, AttemptRow.state).where(
        AttemptRow.campaign_id == campaign.id
    )
    with store.database.read() as connection:
        rows = connection.execute(query).all()
    stored = {Path(row.run_folder).resolve() for row in rows if row.state != AttemptState.RUNNING}
    return stored, {Path(row.run_folder).resolve() for row in rows} - stored


def _recover_campaign(store: Store, folder: Path, described: Mapping[str, Any]) -> Recovered:
    campaign, is_new = _campaign_of(store, described)
    stored, running = _stored_folders(store, campaign)
    open_trials = {
        trial.recipe_id for trial in store.trials(campaign.id) if trial.state is TrialState.RUNNING
    }
    to_store, unreadable, known, left = list[_FoundAttempt](), list[Path](), 0, 0
    for path in _attempt_folders(folder):
        attempt = _attempt_in(path)
        if path in stored:
            known += 1
        elif path in running:
            left += 1
        elif attempt is None:
            unreadable.append(path)
        elif attempt.created_at != campaign.created_at:
            continue  # of another store's campaign of this name
        elif attempt.recipe_id in open_trials:
            left += 1
        else:
            to_store.append(attempt)
    if to_store:
        _store_attempts(store, campaign, folder, to_store)
    return Recovered(
        campaign=campaign.name,
        folder=folder,
        is_new=is_new,
        recovered=len(to_store),
        known=known,
        left_to_resume=left,
        unreadable=tuple(unreadable),
    )


def _read_description(path: Path) -> Mapping[str, Any]:
    """Return what `describe_campaign` wrote; raise `InvalidInput` for a damaged file."""
    try:
        found: Mapping[str, Any] = read_json(path) or {}
        is_whole = (
            isinstance(json.loads(found["spec_json"]), dict)
            and isinstance(found["legal_recipes"], int)
            and isinstance(found["problem_summary"], dict)
            and isinstance(found["name"], str)
            and datetime.fromisoformat(found["created_at"]).tzinfo is not None
        )
    except (ValueError, KeyError, TypeError):
        is_whole = False
    if not is_whole:
        raise InvalidInput(
            f"{path} is damaged: expected a campaign's name, created_at, spec_json, legal_recipes"
            " and problem_summary",
            hint="the outcomes beside it are untouched; report this with the file",
        )
    return found


def _refuse_taken_names(store: Store, described: Mapping[Path, Mapping[str, Any]]) -> None:
    """Raise `NameTaken` before anything is written, where two campaigns would have one name."""
    names = {campaign.created_at: campaign.name for campaign in store.campaigns()}
    for path, description in described.items():
        name, created_at = description["name"], description["created_at"]
        if created_at not in names and name in names.values():
            raise NameTaken(
                f"{path} describes another campaign {name} than one that the store has, or would"
                " have: it was created at another time",
                hint=(
                    "read it into a store of its own:"
                    f" frontrunner store recover {path} --store OTHER.db"
                ),
            )
        names.setdefault(created_at, name)


def _campaign_of(store: Store, described: Mapping[str, Any]) -> tuple[Campaign, bool]:
    """Return the store's campaign that a file describes, and whether it was made now."""
    names = {campaign.created_at: campaign.name for campaign in store.campaigns()}
    created_at = described["created_at"]
    if created_at in names:
        return store.campaign(names[created_at]), False
    made = store.create_campaign(
        name=described["name"],
        spec_json=described["spec_json"],
        legal_recipes=described["legal_recipes"],
        problem_summary=described["problem_summary"],
        created_at=created_at,
    )
    return made, True


def _attempt_in(path: Path) -> _FoundAttempt | None:
    """Return the attempt of a folder; None where a file is missing, damaged or of another
    folder.
    """
    folder = RunFolder(path)
    try:
        outcome, about = folder.outcome(), folder.own(ATTEMPT)
        if outcome is None or about is None:
            return None
        written_s = (path / "outcome.json").stat().st_mtime
        return _FoundAttempt(
            created_at=str(about["campaign_created_at"]),
            folder=path,
            trial=int(about["trial"]),
            number=int(about["attempt"]),
            recipe_id=str(about["recipe_id"]),
            recipe=recipe_from_json(about["recipe_json"]),
            started_at=str(about["started_at"]),
            finished_at=timestamp(datetime.fromtimestamp(written_s, UTC)),
            outcome=outcome,
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _store_attempts(
    store: Store, campaign: Campaign, folder: Path, found: list[_FoundAttempt]
) -> None:
    """Add the attempts to the campaign, in one transaction, and leave it as it was.

    A campaign that was not finished is stopped afterwards, so that `resume` goes on with it.
    """
    lease = store.acquire_lease(campaign.id, host=this_host(), pid=os.getpid())
    writer = store.drive(lease)
    in_order = sorted(found, key=lambda one: (one.trial, one.number))
    before = campaign.state

    def add() -> None:
        writer.set_state(CampaignState.RUNNING, reason="")
        for _, attempts in groupby(in_order, key=lambda one: one.trial):
            _store_trial(writer, list(attempts))
        writer.event(RECOVERED, outcomes=len(found), folder=str(folder))
        if before is CampaignState.FINISHED:
            writer.release(before, reason=campaign.state_reason)
        else:
            reason = "its outcomes were read back from run folders"
            writer.release(CampaignState.STOPPED, reason=reason)

    writer.atomically(add)


def _store_trial(writer: CampaignWriter, attempts: list[_FoundAttempt]) -> None:
    for place, found in enumerate(attempts, start=1):
        trial = writer.propose(found.recipe_id, found.recipe, number=found.trial)
        if trial.state in (TrialState.MEASURED, TrialState.FAILED):
            trial = writer.repeat(trial)
        attempt = writer.start_attempt(
            trial, run_folder=str(found.folder), started_at=found.started_at
        )
        writer.finish_attempt(
            attempt,
            found.outcome,
            retry=_is_tried_again(found.outcome, is_last=place == len(attempts)),
            finished_at=found.finished_at,
        )


def _is_tried_again(outcome: Outcome, *, is_last: bool) -> bool:
    """Return whether an outcome left its trial to be tried again: one that was followed by another
    attempt, or that says nothing of the recipe.
    """
    if isinstance(outcome, Measurement):
        return outcome.is_disturbed and not is_last
    return not is_last or outcome.kind is FailureKind.LOST
