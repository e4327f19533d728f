"""Export of a campaign as an Optuna study, for optuna-dashboard and Optuna's own plots.

A trial is added once it has ended, with the first measurement that others did not disturb, if there
is one; the study's user attribute `best` is the campaign's, repeats pooled. frontrunner never reads
a study.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from frontrunner.evaluators.runs.measure import nodes_used
from frontrunner.results.outcome import Failure, Measurement, undisturbed
from frontrunner.results.pages import TrialHistory, trial_histories
from frontrunner.results.ranking import best
from frontrunner.results.records import Campaign
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
    from optuna.trial import FrozenTrial

TRIAL = "frontrunner_trial"
SOURCE = "frontrunner_campaign"
PEAK = "peak_memory_bytes_max_rank"
RATES = ("step_time_s_median", "tokens_per_s", "model_tflops_per_device", "mfu", PEAK)


def _rate(name: str) -> Callable[[Recipe, Measurement, Problem], float | None]:
    return lambda recipe, measured, problem: measured.tokens_per_s / problem.divisor(name, recipe)


Score = tuple[
    str, Literal["maximize", "minimize"], Callable[[Recipe, Measurement, Problem], float | None]
]
SCORES: dict[str, Score] = {
    "tokens": ("tokens_per_s", "maximize", _rate("tokens")),
    "tokens_per_device": ("tokens_per_s_per_device", "maximize", _rate("tokens_per_device")),
    "tokens_per_cost": ("tokens_per_cost", "maximize", _rate("tokens_per_cost")),
    "memory": (PEAK, "minimize", lambda _, measured, __: measured.peak_memory_bytes_max_rank),
    "nodes": ("nodes", "minimize", lambda recipe, _, problem: float(nodes_used(recipe, problem))),
}


@dataclass(frozen=True, kw_only=True)
class Mirrored:
    """What was written: `added` trials of `trials` that the study has now; `waiting` ones have not
    ended.
    """

    study: str
    storage: str
    added: int
    trials: int
    waiting: int


def mirror_campaign(
    store: Store, campaign: Campaign, spec: CampaignSpec, storage_url: str
) -> Mirrored:
    """Bring the study of the campaign's name up to date; raises `InvalidInput` for a storage that
    cannot be used.
    """
    histories = trial_histories(store, campaign.id)
    ended = [
        found
        for found in histories
        if found.trial.state in (TrialState.MEASURED, TrialState.FAILED)
    ]
    scores = [SCORES[name] for name in spec.search.objectives]
    choices = _choices(spec, histories)
    (storage,) = redact([storage_url])
    top = next(iter(best(store, campaign, top=1)), None)
    try:
        study = _study(campaign, scores, storage_url)
        known = {found.user_attrs.get(TRIAL) for found in study.get_trials(deepcopy=False)}
        new = [found for found in ended if found.trial.number not in known]
        study.add_trials([_frozen(found, spec, choices, scores) for found in new])
        study.set_user_attr("figures", campaign.figures)
        about = top and {
            "recipe_id": top.recipe_id,
            "tokens_per_s": top.standing.tokens_per_s,
            "measurements": top.standing.repeats,
        }
        study.set_user_attr("best", about)
    except InvalidInput:
        raise
    except Exception as error:  # database drivers raise errors of many kinds
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        hint = "a storage is an SQLAlchemy URL, as sqlite:///study.db"
        raise InvalidInput(
            f"Optuna cannot use the storage {storage}: {reason}", hint=hint
        ) from error
    return Mirrored(
        study=study.study_name,
        storage=storage,
        added=len(new),
        trials=len(known) + len(new),
        waiting=len(histories) - len(ended),
    )


def _study(campaign: Campaign, scores: Sequence[Score], storage_url: str) -> optuna.Study:
    """Open or create the campaign's study; another one of its name is not touched."""
    import optuna
    from optuna.exceptions import ExperimentalWarning

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    source, directions = (
        f"{campaign.name} of {campaign.created_at}",
        [direction for _, direction, _ in scores],
    )
    name = campaign.name
    study = optuna.create_study(
        storage=storage_url, study_name=name, directions=directions, load_if_exists=True
    )
    if study.user_attrs.get(SOURCE, source) != source or (
        not study.user_attrs and study.get_trials(deepcopy=False)
    ):
        hint = "give a storage of its own: --storage URL"
        raise InvalidInput(f"the storage holds another study named {name!r}", hint=hint)
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", ExperimentalWarning
        )  # names of metrics are, and the plots' axes show them
        study.set_metric_names([name for name, _, _ in scores])
    study.set_user_attr(SOURCE, source)
    return study


def _choices(spec: CampaignSpec, histories: Sequence[TrialHistory]) -> dict[str, tuple[Any, ...]]:
    """Return the values in which recipes can differ, by dimension: the space's, or those in an
    imported table.
    """
    found = spec.space.dimensions(spec.problem.cluster)
    if (
        len(found["sharding"]) > 1
    ):  # a name may stand for the same degrees as a simpler one, by which the recipe goes
        found["sharding"] = tuple(dict.fromkeys((*SHARDING_NAMES, *found["sharding"])))
    if all(len(values) < 2 for values in found.values()):
        names = (
            "tensor_parallel",
            "pipeline_parallel",
            "micro_batch_seqs",
            "accumulation",
            "devices",
            "sharding",
        )
        recipes = [history.trial.recipe for history in histories]
        found = {name: tuple(dict.fromkeys(map(DIMENSIONS[name].of, recipes))) for name in names}
    return {name: values for name, values in found.items() if len(values) > 1}


def _frozen(
    found: TrialHistory,
    spec: CampaignSpec,
    choices: dict[str, tuple[Any, ...]],
    scores: Sequence[Score],
) -> FrozenTrial:
    """Convert a trial that has ended. Numbers are choices too: most are powers of two, which no
    range of Optuna is.
    """
    from optuna.distributions import CategoricalDistribution
    from optuna.trial import TrialState as TheirState
    from optuna.trial import create_trial

    measured = undisturbed(
        [attempt for attempt in found.attempts if isinstance(attempt.outcome, Measurement)]
    )
    last = (
        measured[0] if measured and found.trial.state is TrialState.MEASURED else found.attempts[-1]
    )
    recipe, outcome = found.trial.recipe, last.outcome
    params = {
        name: value
        for name, values in choices.items()
        if (value := spec.space.dimension(name).of(recipe)) in values
    }
    about: dict[str, Any] = {TRIAL: found.trial.number, "recipe_id": found.trial.recipe_id}
    about |= {
        "recipe": recipe.describe(),
        "attempts": len(found.attempts),
        "run_folder": last.attempt.run_folder,
    }
    values = []  # of a failure, or without a peak that is an objective
    if isinstance(outcome, Measurement):
        scored = [score(recipe, outcome, spec.problem) for *_, score in scores]
        values = [] if None in scored else [score for score in scored if score is not None]
        about |= {name: getattr(outcome, name) for name in RATES}
    elif isinstance(outcome, Failure):
        about |= {"failure_kind": outcome.kind.value, "failure_message": outcome.message}
    trial = create_trial(
        state=TheirState.COMPLETE if values else TheirState.FAIL,
        values=values or None,
        params=params,
        distributions={name: CategoricalDistribution(choices[name]) for name in params},
        user_attrs=about,
    )
    trial.datetime_start = _local(found.attempts[0].attempt.started_at)
    trial.datetime_complete = _local(last.attempt.finished_at or last.attempt.started_at)
    return trial


def _local(timestamp: str) -> datetime:
    return datetime.fromisoformat(timestamp).astimezone().replace(tzinfo=None)
