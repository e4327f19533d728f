"""Actions on one recipe: dry runs, profiles and replays, and the breakdown of its estimate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, replace
from operator import itemgetter
from pathlib import Path
from typing import Protocol

from frontrunner.config.campaign import keys_of, named_data, read_campaign_file
from frontrunner.config.recipe_file import RecipeFile, read
from frontrunner.config.settings import run_root, store_url
from frontrunner.evaluators.analytic.breakdown import Breakdown, Measured, breakdown
from frontrunner.evaluators.analytic.timeline import StepTimeline, step_timeline
from frontrunner.evaluators.diagnostics import dryrun as tracing
from frontrunner.evaluators.diagnostics import profile as profiling
from frontrunner.evaluators.diagnostics.profile import ProfilePlan, ProfileReport, ProfileSettings
from frontrunner.evaluators.programs import command_replay, rank_replay
from frontrunner.evaluators.programs.command import check_program
from frontrunner.evaluators.programs.command_replay import CommandReplay
from frontrunner.evaluators.programs.corpus import BY_DATA, data_of, require_same_data
from frontrunner.evaluators.programs.rank_replay import ReplayPlan
from frontrunner.evaluators.protocol import ProbeSetup
from frontrunner.evaluators.registry import commands_of
from frontrunner.evaluators.runs.settings import DataSettings, ProbeSettings, Schedule
from frontrunner.evaluators.runs.training import ReplayResult, ReplaySettings
from frontrunner.results.provenance import TrainingData
from frontrunner.results.records import Campaign, CampaignList
from frontrunner.results.status import (
    MOST_CANDIDATES,
    Explanation,
    explain,
    id_prefix,
    measured_with,
)
from frontrunner.results.store import Store, open_store
from frontrunner.search.campaign_setup import stored_spec
from frontrunner.search.spec import CampaignSpec
from frontrunner.spaces.document import identity, recipe_id, recipe_ids
from frontrunner.spaces.errors import (
    InvalidInput,
    NotFound,
    NothingLegal,
    bad_value,
    did_you_mean,
    shown,
    shown_key,
)
from frontrunner.spaces.legality import Reason
from frontrunner.spaces.problem import GlobalBatch, Problem
from frontrunner.spaces.recipe import (
    LOOPED_SCHEDULES,
    SCHEDULES,
    V_SHAPED_SCHEDULES,
    Choice,
    Recipe,
    current_names,
)
from frontrunner.spaces.space import Space, Survey, divisors
from frontrunner.spaces.validation import validate
from frontrunner.spaces.variants import variant, with_values
from frontrunner.text import counted, gib, thousands


def names_a_file(recipe: str) -> bool:
    """Return whether a recipe is given as the path of a file: it ends with .json or .toml, or has a
    slash.
    """
    return recipe.endswith((".json", ".toml")) or "/" in recipe


class StoredRecipes(Protocol):
    """What the functions here ask of a store, which is a `LocalStore` or a `RemoteStore`."""

    url: str

    def show(self, recipe_id: str, *, campaign: str | None = None) -> Explanation:
        """See `LocalStore.show`."""

    def campaigns(self) -> CampaignList:
        """See `LocalStore.campaigns`."""


def find_recipe(
    show: Callable[[str], Explanation],
    recipe: str | Mapping[str, object],
    campaign: str | Path | None,
) -> tuple[Problem, ProbeSettings, Recipe]:
    """Return the recipe that `show` finds by its id, of a recipe file, or by id or choices of a
    campaign file.
    """
    if campaign is not None:
        spec = read_campaign_file(Path(campaign)).spec
        remedy = "choices as tensor_parallel=8 name one that the space lacks; "
        found = (
            recipe_by_id(spec, recipe, remedy)
            if isinstance(recipe, str)
            else one_recipe(spec, recipe)
        )
    elif not isinstance(recipe, str):
        raise InvalidInput("a recipe by its choices needs the campaign file that they are of")
    elif names_a_file(recipe):
        file = read(Path(recipe))
        return file.problem, file.training.probe, file.recipe
    else:
        explanation = show(recipe)
        spec, found = stored_spec(explanation.appearances[0].campaign), explanation.recipe
    problem = spec.problem
    if spec.evaluator_kind.looks_up:
        with suppress(InvalidInput):  # the table of a stored campaign may be gone
            problem = spec.survey().problem
    return problem, spec.probe, found


def one_recipe(spec: CampaignSpec, choices: Mapping[str, object]) -> Recipe:
    """Return the one legal recipe of the campaign's space with these values, which the space itself
    need not list.
    """
    choices = current_names(choices)
    for key in choices:
        if key not in keys_of("space"):
            raise InvalidInput(
                f"unknown choice {shown_key(key)}", hint=did_you_mean(key, keys_of("space"))
            )
    space = asdict(spec.space) | {key: [value] for key, value in choices.items()}
    survey = validate(Space, space, prefix="space").survey(spec.problem)
    named = ", ".join(f"{key}={shown(value)}" for key, value in choices.items())
    having = f" with {named}" if choices else ""
    if not survey.recipes:
        reasons = "; ".join(text for _, _, text in survey.refused_by_count())
        raise NothingLegal(f"no recipe{having} is legal: {reasons}")
    if len(survey.recipes) > 1:
        taken = {key: set(survey.places.column(key).codes.tolist()) for key in survey.dimensions}
        open_ones = ", ".join(key for key, codes in taken.items() if len(codes) > 1)
        what = f"the space has {len(survey.recipes):,} recipes{having}: expected the choices of one"
        raise InvalidInput(what, hint=f"name {open_ones}{' as well' if choices else ''}")
    return survey.recipes[0]


def recipe_by_id(spec: CampaignSpec, beginning: str, remedy: str = "") -> Recipe:
    """Return the legal recipe of the campaign's space whose id has this prefix, else a hint that
    begins so.
    """
    wanted = id_prefix(beginning)
    recipes = spec.survey().recipes
    ids = enumerate(recipe_ids(spec.problem, recipes))
    found = {name: recipes[row] for row, name in ids if name.startswith(wanted)}
    if not found:
        raise NotFound(
            f"none of the {len(recipes):,} legal recipes of the space has an id that begins with"
            f" {wanted!r}",
            hint=f"{remedy}to list them: frontrunner plan FILE",
        )
    if len(found) > 1:
        candidates = ", ".join(sorted(found)[:MOST_CANDIDATES])
        raise NotFound(
            f"{len(found)} recipe ids of the space begin with {wanted!r}",
            hint=f"one of: {candidates}",
        )
    return next(iter(found.values()))


def recipe_of(spec: CampaignSpec, recipe: str) -> Recipe:
    """Return the legal recipe of the campaign's space by its id, or of a recipe file."""
    if not names_a_file(recipe):
        return recipe_by_id(spec, recipe)
    file = read(Path(recipe))
    if recipe_id(spec.problem, file.recipe) != file.recipe_id:
        what = (
            f"{recipe} is of another model, device, sequence length or precision than campaign"
            f" {spec.name}"
        )
        raise InvalidInput(what, hint="name the campaign of its problem by --campaign NAME")
    remedy = (
        "to measure it, and what is around it, in a campaign of its own: frontrunner sweep"
        f" {recipe}; "
    )
    return recipe_by_id(spec, file.recipe_id, remedy)


def breakdown_of(
    store: StoredRecipes,
    recipe: str | Mapping[str, object],
    campaign: str | Path | None,
    opened: Callable[[], AbstractContextManager[Store]] | None = None,
) -> Breakdown:
    """Break a recipe's estimate down, with its newest measurement in a store; see
    `LocalStore.explain`.
    """
    (problem, _, found), measured, unmatched = find_recipe(store.show, recipe, campaign), None, None
    with suppress(NotFound):  # no such recipe, or no store
        explanation = store.show(recipe_id(problem, found))
        measured, unmatched = first_measurement(explanation, store.url), _simulated(explanation)
    with suppress(NotFound):
        if (
            measured is None and unmatched is None and opened is not None
        ):  # a service has no such question
            with opened() as own:
                unmatched = _why_unmatched(own, problem, found)
    return breakdown(found, problem, measured, unmatched)


def _simulated(explanation: Explanation) -> str | None:
    """Return what a simulation made of the recipe, where one did, since that differs from the
    estimates.
    """
    for appearance in explanation.appearances:
        standing = appearance.standing
        if standing is not None and appearance.campaign.figures == "simulated":
            peak = gib(standing.peak_memory_bytes_max_rank)
            figures = f"{thousands(standing.tokens_per_s)} tokens/s, peak {peak} GiB"
            differ = "by rougher formulas than the estimates here: the two differ"
            return f"only simulated, by campaign {appearance.campaign.name}: {figures}; {differ}"
    return None


def _why_unmatched(store: Store, problem: Problem, recipe: Recipe) -> str:
    """Return that a store did not measure a recipe, and in what the recipes differ that have its
    choices.
    """

    def parts(of: Problem) -> set[tuple[str, str]]:
        found = identity(of, recipe)
        tables = {part: found[part] for part in ("model", "cluster")}
        tables["problem"] = {key: found[key] for key in ("sequence_length", "precision")}
        return {
            (f"{part}.{key}", repr(value))
            for part, table in tables.items()
            for key, value in table.items()
        }

    others = [
        stored_spec(one).problem
        for one in measured_with(store, recipe)
        if one.figures != "simulated"
    ]
    own, none = parts(problem), "the store has no measurement of this recipe"
    found = Counter(tuple(sorted({key for key, _ in own ^ parts(other)})) for other in others)
    keys, count = min(found.items(), key=lambda one: len(one[0]), default=((), 0))
    differing = (
        f"; {counted(count, 'campaign')} measured its choices, with another {' and '.join(keys)}"
    )
    return none + (differing if count else "")


def first_measurement(explanation: Explanation, store: str) -> Measured | None:
    """Return the figures of the first campaign that measured the recipe, else imported ones, never
    simulated ones.
    """
    for appearance in sorted(
        explanation.appearances, key=lambda found: found.campaign.figures != "measured"
    ):
        standing = appearance.standing
        if standing is not None and appearance.campaign.figures != "simulated":
            return Measured(
                store=store,
                campaign=appearance.campaign.name,
                figures=appearance.campaign.figures,
                repeats=standing.repeats,
                step_time_s=standing.step_time_s_median,
                step_time_spread=standing.step_time_spread,
                tokens_per_s=standing.tokens_per_s,
                mfu=standing.mfu,
                peak_memory_bytes=standing.peak_memory_bytes_max_rank,
            )
    return None


def step_in(
    recipe: Recipe, spec: CampaignSpec, changes: Mapping[str, Choice | None]
) -> StepTimeline:
    """Lay out a step of a recipe in a campaign, with other values of some dimensions; see
    `LocalStore.step`.
    """
    found = step_variant(recipe, spec, changes)
    if isinstance(found, Reason):
        named = ", ".join(
            f"{key}={shown(value)}" for key, value in changes.items() if value is not None
        )
        raise InvalidInput(
            f"recipe {recipe_id(spec.problem, recipe)} with {named} is not legal: {found.text}"
        )
    return step_timeline(found, spec.problem)


def step_variant(
    recipe: Recipe, spec: CampaignSpec, changes: Mapping[str, Choice | None]
) -> Recipe | Reason:
    """Return a recipe with other values of some dimensions, or why that is not legal.

    Devices and global batch stay. Without a number of virtual stages another schedule has its own:
    as many as before, 2, or 1.
    """
    changed: dict[str, Choice] = {key: value for key, value in changes.items() if value is not None}
    if not changed:
        return recipe
    if "virtual_stages" not in changed and "schedule" in changed:
        chunks = 2 if changed["schedule"] in V_SHAPED_SCHEDULES else max(recipe.virtual_stages, 2)
        changed["virtual_stages"] = chunks if changed["schedule"] in LOOPED_SCHEDULES else 1
    batch = GlobalBatch(minimum=recipe.global_batch_seqs, maximum=recipe.global_batch_seqs)
    dimensions = with_values(spec.space, recipe).dimensions(spec.problem.cluster) | {
        "devices": (recipe.devices,)
    }
    dimensions.pop("accumulation", None)
    around = Survey.of_nothing(
        replace(spec.problem, global_batch=batch), dimensions, spec.space.custom
    )
    return variant(recipe, around, **changed)


def step_choices(recipe: Recipe, spec: CampaignSpec) -> dict[str, list[Choice]]:
    """Return the values that each dimension of `LocalStore.step` can take in a legal recipe, the
    others as they are.
    """
    layers = len(spec.problem.model.layers)
    listed: dict[str, Sequence[Choice]] = {
        "schedule": SCHEDULES,
        "pipeline_parallel": [count for count in divisors(recipe.devices) if count <= layers],
        "virtual_stages": range(1, layers // recipe.pipeline_parallel + 1),
        "micro_batch_seqs": divisors(recipe.global_batch_seqs),
    }
    return {
        # Without a pipeline a schedule changes nothing.
        name: [
            value
            for value in values
            if getattr(step_variant(recipe, spec, {name: value}), name, None) == value
        ]
        for name, values in listed.items()
    }


def plan_dryrun(
    recipe: str | Mapping[str, object],
    *,
    campaign: str | Path | None = None,
    rank: int | None = None,
    store: str | None = None,
) -> tracing.DryRunPlan:
    """Return what a dry run would trace; see `dryrun`."""
    problem, probe, found = find_recipe(lambda name: _tried_in(None, name, store), recipe, campaign)
    return tracing.plan(
        recipe_id=recipe_id(problem, found), recipe=found, problem=problem, probe=probe, rank=rank
    )


def dryrun(
    recipe: str | Mapping[str, object],
    *,
    campaign: str | Path | None = None,
    rank: int | None = None,
    store: str | None = None,
) -> tracing.DryRun:
    """Trace the step of a recipe, named as for `explain`, on `rank` or on those that may need most
    memory.
    """
    return tracing.run(plan_dryrun(recipe, campaign=campaign, rank=rank, store=store))


def plan_profile(
    recipe_id: str,
    settings: ProfileSettings | None = None,
    *,
    store: str | None = None,
    anyway: bool = False,
) -> ProfilePlan:
    """Return what a profile would run, checked against this machine; see `profile`."""
    explanation = _tried_in(None, recipe_id, store)
    _refuse_recipe_of_others(explanation)
    probed = [
        found
        for found in explanation.appearances
        if stored_spec(found.campaign).evaluator_kind.trains
    ]
    if not probed:
        raise InvalidInput(
            f"recipe {explanation.recipe_id} is of a simulated campaign, so there is no training to"
            " profile",
            hint='launch its campaign file with evaluator = "probe"',
        )
    appearance = probed[0]
    return profiling.plan(
        recipe_id=explanation.recipe_id,
        recipe=explanation.recipe,
        setup=stored_spec(appearance.campaign).probe_setup(),
        measured_step_time_s=(
            None if appearance.standing is None else appearance.standing.step_time_s_median
        ),
        settings=settings or ProfileSettings(),
        anyway=anyway,
    )


def profile(
    recipe_id: str,
    *,
    settings: ProfileSettings | None = None,
    store: str | None = None,
    anyway: bool = False,
) -> ProfileReport:
    """Run a probe of a stored recipe, trace its last steps, and return where their time went."""
    return profiling.run(plan_profile(recipe_id, settings, store=store, anyway=anyway))


def plan_replay(
    recipe_id: str,
    settings: ReplaySettings,
    *,
    campaign: str | None = None,
    store: str | None = None,
    anyway: bool = False,
) -> ReplayPlan:
    """Return what a replay would run, checked against this machine.

    It trains as a campaign's probes did, and is compared with them: those of `campaign`, or of the
    newest that measured the recipe.
    """
    found: Explanation | RecipeFile
    named = None if settings.data is None else named_data(settings.data)
    if names_a_file(recipe_id):
        _refuse_beside_file(campaign)
        found = file = read(Path(recipe_id))
        refuse_file_of_others(file, recipe_id)
        figures, tokens_per_s = (
            (file.measured.figures, file.measured.tokens_per_s) if file.measured else ("", None)
        )
        setup = _setup_of_file(file, named or data_of_file(file, recipe_id))
        schedule = file.training.schedule
    else:
        found = _tried_in(campaign, recipe_id, store)
        _refuse_recipe_of_others(found)
        ranked = [
            (
                (one.is_copied, one.campaign.figures == "simulated"),
                one.campaign,
                one.standing.tokens_per_s,
            )
            for one in found.appearances
            if one.standing
            and one.campaign.figures != "imported"
            and not stored_spec(one.campaign).trainer
        ]
        if not ranked:
            raise _never_measured(found.recipe_id)
        _, record, tokens_per_s = min(ranked, key=itemgetter(0))  # the newest come first
        spec = stored_spec(record)
        figures, setup, schedule = (
            record.figures,
            spec.probe_setup(),
            schedule_of(spec),
        )
        if named is not None:
            setup = replace(setup, data=named)
        elif stated := trained_on(found, record):
            require_same_data(stated)
    return rank_replay.plan(
        recipe_id=found.recipe_id,
        recipe=found.recipe,
        setup=setup,
        measured_tokens_per_s=tokens_per_s if figures == "measured" else None,
        settings=settings.following(schedule),
        anyway=anyway,
        named=recipe_id if names_a_file(recipe_id) else None,
    )


def _refuse_beside_file(campaign: str | None) -> None:
    if campaign is not None:
        raise bad_value(
            "--campaign", campaign, "no campaign with a recipe file, which states what it trains on"
        )


def _tried_in(campaign: str | None, recipe_id: str, store: str | None) -> Explanation:
    """Return what the store holds of a recipe, of a named campaign alone."""
    with open_store(store_url(store), create=False, read_only=True) as opened:
        found = explain(opened, recipe_id, campaign)
    return found if campaign is None else replace(found, appearances=found.appearances[:1])


def plan_command_replay(
    recipe_id: str,
    settings: ReplaySettings,
    *,
    campaign: str | None = None,
    store: str | None = None,
) -> CommandReplay | None:
    """Return the replay of a stored recipe that only another trainer's command has measured, or of
    a file of one.

    None for all others.
    """
    if names_a_file(recipe_id):
        _refuse_beside_file(campaign)
        return _command_replay_of_file(read(Path(recipe_id)), settings)
    found = _tried_in(campaign, recipe_id, store)
    own = [
        (one, stored_spec(one.campaign))
        for one in found.appearances
        if one.campaign.figures != "imported"
    ]
    if not own or not all(spec.trainer for _, spec in own):
        return None
    measured = [(one.standing.tokens_per_s, spec) for one, spec in own if one.standing is not None]
    if not measured:
        raise _never_measured(found.recipe_id)
    tokens_per_s, spec = measured[0]  # the newest come first
    if (make := commands_of(spec.evaluator, spec.command)) is None:
        raise _of_another_trainer(found.recipe_id, spec.evaluator)
    spec.check_commands(found.recipe)
    return command_replay.plan(
        recipe_id=found.recipe_id,
        recipe=found.recipe,
        setup=spec.probe_setup(),
        make_command=make,
        measured_tokens_per_s=tokens_per_s,
        settings=settings,
    )


def _command_replay_of_file(file: RecipeFile, settings: ReplaySettings) -> CommandReplay | None:
    """Return the replay of a recipe file with a command, on the nodes of the job at hand or on this
    machine.
    """
    command = file.training.command
    if command is None:
        return None
    if (make := commands_of(command.evaluator, command.settings)) is None:
        raise bad_value(
            "content.training.command.evaluator", command.evaluator, "one that makes commands"
        )
    setup = replace(_setup_of_file(file, DataSettings()), command=command.settings)
    check_program(setup, make, file.recipe)
    if command.on_nodes:
        setup = replace(setup, dispatch=replace(setup.dispatch, backend="allocation"))
    is_measured = file.measured is not None and file.measured.figures == "measured"
    return command_replay.plan(
        recipe_id=file.recipe_id,
        recipe=file.recipe,
        setup=setup,
        make_command=make,
        measured_tokens_per_s=file.measured.tokens_per_s if file.measured and is_measured else None,
        settings=settings,
    )


def _setup_of_file(file: RecipeFile, data: DataSettings) -> ProbeSetup:
    return ProbeSetup(
        problem=file.problem,
        probe=file.training.probe,
        data=data,
        work_folder=run_root(store_url()) / "recipe-files",
        seed=file.training.seed,
        engines=(file.recipe.engine,),
        dispatch=file.training.nodes.dispatch,
    )


def replay(
    recipe_id: str,
    *,
    steps: int,
    campaign: str | None = None,
    store: str | None = None,
    anyway: bool = False,
    settings: ReplaySettings | None = None,
) -> ReplayResult:
    """Train with a stored recipe or a recipe file, from the newest checkpoint; `anyway` permits
    other hardware.

    A recipe is trained as by `campaign`, or by the newest that measured it; one of another trainer
    by its command.
    """
    chosen = replace(settings, steps=steps) if settings else ReplaySettings(steps=steps)
    if (
        command := plan_command_replay(recipe_id, chosen, campaign=campaign, store=store)
    ) is not None:
        return command_replay.run(command)
    return rank_replay.run(
        plan_replay(recipe_id, chosen, campaign=campaign, store=store, anyway=anyway)
    )


def schedule_of(spec: CampaignSpec) -> Schedule:
    """Return the schedule of a campaign's replays: its probes' learning rate is the highest."""
    return Schedule(learning_rate=spec.probe.learning_rate)


def trained_on(explanation: Explanation, campaign: Campaign) -> tuple[TrainingData, ...]:
    """Return the data of a recipe's newest probe in a campaign; none if it recorded none."""
    for appearance in explanation.appearances:
        if appearance.campaign.id == campaign.id:
            recorded = [
                one.provenance.data for one in appearance.attempts if one.provenance is not None
            ]
            return next((data for data in reversed(recorded) if data), ())
    return ()


def data_of_file(
    file: RecipeFile, named: str, *, may_be_elsewhere: bool = False, remedy: str = BY_DATA
) -> DataSettings:
    """Return the data that a recipe file states; raise `InvalidInput` for none, and for others in
    their place here.
    """
    stated = file.training.data
    if not stated:
        raise InvalidInput(
            f"what data recipe {named} was trained on is not recorded",
            hint=remedy,
        )
    if not (
        may_be_elsewhere
        and any(one.path is not None and not Path(one.path).exists() for one in stated)
    ):
        require_same_data(stated, remedy=remedy)
    return data_of(stated)


def _refuse_recipe_of_others(explanation: Explanation) -> None:
    if all(appearance.campaign.figures == "imported" for appearance in explanation.appearances):
        raise _of_a_table(explanation.recipe_id, ", which learns from the table")
    specs = [stored_spec(appearance.campaign) for appearance in explanation.appearances]
    if all(spec.trainer for spec in specs):
        raise _of_another_trainer(explanation.recipe_id, specs[-1].evaluator)


def refuse_file_of_others(file: RecipeFile, named: str) -> None:
    """Raise `InvalidInput`, as for a stored recipe, for a recipe file with figures of others."""
    measured, command = file.measured, file.training.command
    trainer = (
        command.evaluator if command is not None else None if measured is None else measured.trainer
    )
    if trainer is not None:
        hint = (
            f"with its campaign's store: frontrunner replay {file.recipe_id}, or export it there,"
            " with its command"
        )
        if command is not None:
            hint = f"frontrunner export {named} --to slurm or pbs, or for that trainer: --to TOOL"
        raise _of_another_trainer(file.recipe_id, trainer, hint)
    if measured is not None and not measured.is_ours:
        raise _of_a_table(file.recipe_id)


def _of_a_table(recipe_id: str, learning: str = "") -> InvalidInput:
    return InvalidInput(
        f"recipe {recipe_id} is of an imported table, which does not say how to train it here",
        hint=f"search its problem by a campaign file{learning}: frontrunner launch FILE",
    )


def _of_another_trainer(recipe_id: str, evaluator: str, hint: str | None = None) -> InvalidInput:
    hint = hint or f"export it for that trainer: frontrunner export {recipe_id} --to TOOL"
    return InvalidInput(
        f"recipe {recipe_id} was run by another trainer, with evaluator = {evaluator!r}", hint=hint
    )


def _never_measured(recipe_id: str) -> InvalidInput:
    what = f"recipe {recipe_id} was never measured, so there is nothing to replay"
    return InvalidInput(what, hint="`frontrunner best` lists the measured ones")
