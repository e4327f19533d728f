"""Export of a campaign as an Optuna study, for optuna-dashboard and Optuna's own plots.

A trial of the study is identified by its user attribute `frontrunner_trial`. It is added once it has ended, since
Optuna changes no finished trial: its value is the first measurement, without later repeats. The study's own best may
therefore be a lucky one; its user attribute `best` is the campaign's, repeats pooled, and `figures` their origin.
frontrunner never reads a study.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from frontrunner.results.outcome import Failure, Measurement
from frontrunner.results.pages import TrialHistory, trial_histories
from frontrunner.results.ranking import best
from frontrunner.results.records import AttemptOutcome, Campaign
from frontrunner.results.redaction import redact
from frontrunner.results.states import TrialState
from frontrunner.results.store import Store
from frontrunner.search.spec import CampaignSpec
from frontrunner.spaces.errors import InvalidInput
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import DIMENSIONS, Recipe
from frontrunner.spaces.sharding import SHARDING_NAMES

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import CategoricalDistribution
    from optuna.trial import FrozenTrial

TRIAL = "frontrunner_trial"
SOURCE = "frontrunner_campaign"
FIGURES, BEST = "figures", "best"

Score = Callable[[Recipe, Measurement, Problem], float]
Direction = Literal["maximize", "minimize"]
SCORES: dict[str, tuple[str, Direction, Score]] = {
    "tokens": ("tokens_per_s", "maximize", lambda _recipe, measured, _problem: measured.tokens_per_s),
    "memory": (
        "peak_memory_bytes_max_rank",
        "minimize",
        lambda _recipe, measured, _problem: float(measured.peak_memory_bytes_max_rank),
    ),
    "nodes": (
        "nodes",
        "minimize",
        lambda recipe, _measured, problem: float(-(-recipe.devices // problem.cluster.devices_per_node)),
    ),
}
"""For each objective of a campaign the metric's name, Optuna's direction, and the value."""


@dataclass(frozen=True, kw_only=True)
class Mirrored:
    """What was written: `added` trials that the study did not have, of `trials` that it has now.

    `waiting` counts those of the campaign that have not ended.
    """

    study: str
    storage: str
    added: int
    trials: int
    waiting: int


def mirror_campaign(store: Store, campaign: Campaign, spec: CampaignSpec, storage_url: str) -> Mirrored:
    """Bring the study of the campaign's name up to date; raises `InvalidInput` for a storage that cannot be used."""
    histories = trial_histories(store, campaign.id)
    ended = [found for found in histories if found.trial.state in (TrialState.MEASURED, TrialState.FAILED)]
    scores = tuple(SCORES[name] for name in spec.search.objectives)
    choices = _choices(spec, histories)
    (storage,) = redact([storage_url])
    try:
        study = _study(campaign, scores, storage_url)
        known = {found.user_attrs.get(TRIAL) for found in study.get_trials(deepcopy=False)}
        new = [found for found in ended if found.trial.number not in known]
        study.add_trials([_frozen(found, spec.problem, choices, scores) for found in new])
        study.set_user_attr(FIGURES, campaign.figures)
        study.set_user_attr(BEST, _best(store, campaign))
    except InvalidInput:
        raise
    except Exception as error:  # database drivers raise errors of many kinds
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        hint = "a storage is an SQLAlchemy URL, as sqlite:///study.db"
        raise InvalidInput(f"Optuna cannot use the storage {storage}: {reason}", hint=hint) from error
    return Mirrored(
        study=study.study_name,
        storage=storage,
        added=len(new),
        trials=len(known) + len(new),
        waiting=len(histories) - len(ended),
    )


def _study(campaign: Campaign, scores: tuple[tuple[str, Direction, Score], ...], storage_url: str) -> optuna.Study:
    """Open or create the campaign's study; another one of its name is not touched."""
    import optuna
    from optuna.exceptions import ExperimentalWarning

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    source, directions = f"{campaign.name} of {campaign.created_at}", [direction for _, direction, _ in scores]
    study = optuna.create_study(
        storage=storage_url, study_name=campaign.name, directions=directions, load_if_exists=True
    )
    if study.user_attrs.get(SOURCE, source) != source or (not study.user_attrs and study.get_trials(deepcopy=False)):
        raise InvalidInput(
            f"the storage holds another study named {campaign.name!r}", hint="give a storage of its own: --storage URL"
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)  # names of metrics are, and the plots' axes show them
        study.set_metric_names([name for name, _, _ in scores])
    study.set_user_attr(SOURCE, source)
    return study


def _best(store: Store, campaign: Campaign) -> dict[str, Any] | None:
    """Return the fastest recipe as `frontrunner best` ranks it; None before the first measurement."""
    for row in best(store, campaign, top=1):
        standing = row.standing
        return {"recipe_id": row.recipe_id, "tokens_per_s": standing.tokens_per_s, "measurements": standing.repeats}
    return None


def _choices(spec: CampaignSpec, histories: list[TrialHistory]) -> dict[str, CategoricalDistribution]:
    """Return the dimensions in which a campaign's recipes can differ, the same at every export.

    Numbers are choices too: most are powers of two, which Optuna's ranges would make a continuum.
    """
    from optuna.distributions import CategoricalDistribution

    found = {}
    for name, values in spec.space.dimensions(spec.problem.cluster).items():
        # A name of a sharding may stand for the same degrees as a simpler one, by which the recipe goes.
        known = (*SHARDING_NAMES, *values) if name == "sharding" and len(values) > 1 else values
        if not spec.space.accumulation and name == "accumulation":
            continue
        if len(known) > 1:
            found[name] = CategoricalDistribution(tuple(dict.fromkeys(known)))
    return found or _choices_of_table(histories)


def _choices_of_table(histories: list[TrialHistory]) -> dict[str, CategoricalDistribution]:
    """Return those of an imported table, which has fixed rows in place of a space."""
    from optuna.distributions import CategoricalDistribution

    names = ("tensor_parallel", "pipeline_parallel", "micro_batch_seqs", "accumulation", "devices", "sharding")
    values = {
        name: tuple(dict.fromkeys(DIMENSIONS[name].of(found.trial.recipe) for found in histories)) for name in names
    }
    return {name: CategoricalDistribution(different) for name, different in values.items() if len(different) > 1}


def _frozen(
    found: TrialHistory,
    problem: Problem,
    choices: Mapping[str, CategoricalDistribution],
    scores: tuple[tuple[str, Direction, Score], ...],
) -> FrozenTrial:
    """Convert a trial that has ended."""
    from optuna.trial import TrialState as TheirState
    from optuna.trial import create_trial

    last = next((attempt for attempt in found.attempts if isinstance(attempt.outcome, Measurement)), found.attempts[-1])
    recipe, outcome = found.trial.recipe, last.outcome
    params = {
        name: value for name, choice in choices.items() if (value := DIMENSIONS[name].of(recipe)) in choice.choices
    }
    trial = create_trial(
        state=TheirState.COMPLETE if isinstance(outcome, Measurement) else TheirState.FAIL,
        values=[score(recipe, outcome, problem) for *_, score in scores] if isinstance(outcome, Measurement) else None,
        params=params,
        distributions={name: choices[name] for name in params},
        user_attrs={TRIAL: found.trial.number, **_attributes(found, last)},
    )
    trial.datetime_start = _local(found.attempts[0].attempt.started_at)
    trial.datetime_complete = _local(last.attempt.finished_at or last.attempt.started_at)
    return trial


def _attributes(found: TrialHistory, last: AttemptOutcome) -> dict[str, Any]:
    recipe, outcome = found.trial.recipe, last.outcome
    told: dict[str, Any] = {"recipe_id": found.trial.recipe_id, "recipe": recipe.describe()}
    told |= {"attempts": len(found.attempts), "run_folder": last.attempt.run_folder}
    if isinstance(outcome, Failure):
        return told | {"failure_kind": outcome.kind.value, "failure_message": outcome.message}
    names = ("step_time_s_median", "tokens_per_s", "model_tflops_per_device", "mfu", "peak_memory_bytes_max_rank")
    return told | {name: getattr(outcome, name) for name in names}


def _local(timestamp: str) -> datetime:
    """Return the time as Optuna keeps it: local, without an offset."""
    return datetime.fromisoformat(timestamp).astimezone().replace(tzinfo=None)
