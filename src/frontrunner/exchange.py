"""Exchange with other tools: export and import recipes, import measured tables, export campaigns as
Optuna studies.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from frontrunner.config.campaign import named_cluster, named_data, read_campaign_file
from frontrunner.config.recipe_file import (
    FIGURES,
    Measured,
    NodeSettings,
    Origin,
    RecipeFile,
    TrainerCommand,
    Training,
    read,
    to_text,
)
from frontrunner.config.settings import shown_store, store_url
from frontrunner.config.toml_file import read_text
from frontrunner.evaluators.export.base import TrainingJob
from frontrunner.evaluators.export.batch import SCHEDULERS, batch_script, campaign_script
from frontrunner.evaluators.export.kubernetes import manifest
from frontrunner.evaluators.export.reading import Given, is_harmless, refuse_not_understood
from frontrunner.evaluators.export.tools import TOOLS, tool_named
from frontrunner.evaluators.nodes.settings import HIDDEN_LINES, DispatchSettings
from frontrunner.evaluators.programs.corpus import training_data
from frontrunner.evaluators.registry import commands_of
from frontrunner.evaluators.tables.reading import Reading, Repeats, TableForm
from frontrunner.evaluators.tables.reading import read as read_table
from frontrunner.evaluators.tables.rows import TableProblem
from frontrunner.evaluators.tables.schema import LeftOut
from frontrunner.recipe_actions import (
    StoredRecipes,
    data_of_file,
    find_recipe,
    names_a_file,
    refuse_file_of_others,
    schedule_of,
    trained_on,
)
from frontrunner.results.imported import ImportedCampaign, ImportedOutcome, add_imported
from frontrunner.results.outcome import Failure
from frontrunner.results.provenance import TrainingData
from frontrunner.results.records import IMPORTED
from frontrunner.results.status import Appearance, Explanation
from frontrunner.results.store import open_store
from frontrunner.search.campaign_setup import (
    problem_summary,
    stored_spec,
)
from frontrunner.search.optuna_export import Mirrored, mirror_campaign
from frontrunner.search.spec import CampaignSpec
from frontrunner.spaces.cluster import Cluster
from frontrunner.spaces.document import recipe_id
from frontrunner.spaces.errors import (
    FrontrunnerError,
    InvalidInput,
    NotFound,
    bad_value,
    campaign_name_from,
    did_you_mean,
    free_among,
    holds,
    naming,
    require_campaign_name,
)
from frontrunner.spaces.legality import UNKNOWN_RULE, marks, why_illegal
from frontrunner.spaces.problem import Problem as CampaignProblem
from frontrunner.spaces.recipe import DIMENSIONS, ENGINES, Recipe
from frontrunner.spaces.space import Space
from frontrunner.spaces.validation import dump_json
from frontrunner.text import thousands
from frontrunner.version import __version__

RECIPE_FILE = "recipe"
CAMPAIGN_FILE = ".toml"
KUBERNETES = "kubernetes"
TRAINED_HERE = (*SCHEDULERS, KUBERNETES, RECIPE_FILE)
"""Exports that frontrunner's own trainer trains with."""
TARGETS = (*TOOLS, *TRAINED_HERE)
NOT_SENT = (
    "# Here belongs dispatch.{} of the campaign, which a service does not send: ask who runs it."
)


@dataclass(frozen=True, kw_only=True)
class ImportedRecipe:
    """A configuration read as a recipe.

    `illegal` is why the tool itself does not run it, `illegal_here` why the campaign's trainer does
    not, and `legal_engines` are those with which both would. `file` is None where either is said.
    `warnings` are rules of the built-in trainer of which it is not known whether the tool has them.
    What the recipe does not have: `ignored` settings may change speed or memory, `harmless` ones
    are assumed not to.
    """

    recipe_id: str
    recipe: Recipe
    illegal: str | None
    illegal_here: str | None
    legal_engines: tuple[str, ...]
    warnings: tuple[str, ...]
    ignored: tuple[str, ...]
    harmless: tuple[str, ...]
    file: RecipeFile | None


def export_name(recipe_id: str, to: str) -> str:
    """Return the file name of an export: ID.json, ID.slurm.sh, ID.nanotron.yaml."""
    suffix = Path(TOOLS[to].file).suffix if to in TOOLS else ".yaml" if to == KUBERNETES else ""
    return f"{recipe_id}.json" if to == RECIPE_FILE else f"{recipe_id}.{to}{suffix or '.sh'}"


def exported(
    store: StoredRecipes,
    recipe: str | Mapping[str, object],
    *,
    to: str,
    data: str | None = None,
    campaign: str | Path | None = None,
    for_client: bool = False,
) -> str:
    """Return a recipe, stored or of a recipe file, as a configuration of the tool `to`, one of
    `TARGETS`.

    With `campaign` it is one of this file's space, by its id or by choices, whether it was measured
    or not. Of a campaign file as `recipe`, one of `SCHEDULERS` returns the batch script that drives
    it. `for_client`: without the command of another trainer, and with a comment in place of lines
    that a site may keep secrets in.

    `data`, the path of a file or `built-in`, is what exports for our own trainer train on instead
    of the campaign's.
    """
    if to not in TARGETS:
        raise bad_value(
            "--to",
            to,
            f"one of {', '.join(TARGETS)}, optuna",
            hint=did_you_mean(to, (*TARGETS, "optuna")),
        )
    if campaign is None and isinstance(recipe, str) and recipe.endswith(CAMPAIGN_FILE):
        if data is not None:
            raise bad_value(
                "--data", data, "nothing with a campaign file, which states its own: [data] path"
            )
        return _campaign_exported(Path(recipe), to)
    file, dispatch = _file_and_dispatch(store, recipe, campaign)
    if for_client:
        file, dispatch = _without_hidden_lines(_without_command(file, to), dispatch, to)
    if data is not None:
        file = replace(file, training=replace(file.training, data=training_data(named_data(data))))
    if to == RECIPE_FILE:
        return to_text(file)
    if to not in TRAINED_HERE:
        return tool_named(to).render(file.problem, file.recipe, provenance(file))
    by_command = to in SCHEDULERS and file.training.command is not None
    if by_command and data is not None:
        raise bad_value(
            "--data", data, "nothing with a recipe of another trainer, whose command names its data"
        )
    if not by_command:
        named = recipe if isinstance(recipe, str) else file.recipe_id
        refuse_file_of_others(file, named)
        data_of_file(
            file, named, may_be_elsewhere=True
        )  # what trains looks for them before it does
    return (
        manifest(_job(file))
        if to == KUBERNETES
        else batch_script(to, _job(file), dispatch=dispatch)
    )


def _without_command(file: RecipeFile, to: str) -> RecipeFile:
    """Return the file without its command; raise `InvalidInput` where it would pass for a recipe of
    our trainer.
    """
    if file.training.command is not None and file.measured is None and to in TRAINED_HERE:
        what = f"recipe {file.recipe_id} is of another trainer, whose command is not exported here"
        raise InvalidInput(
            what, hint=f"with its campaign's store: frontrunner export {file.recipe_id} --to {to}"
        )
    return replace(file, training=replace(file.training, command=None))


def _without_hidden_lines(
    file: RecipeFile, dispatch: DispatchSettings | None, to: str
) -> tuple[RecipeFile, DispatchSettings | None]:
    """Return both without the site's lines; the set-up has a comment in place of those that the
    export would have.
    """
    nodes = file.training.nodes
    empty: dict[str, Any] = dict.fromkeys(HIDDEN_LINES, ())
    lines = {key: getattr(nodes, key, ()) for key in HIDDEN_LINES}
    if dispatch is not None and dispatch.scheduler == to:
        lines["scheduler_options"] = dispatch.scheduler_options
    setup = tuple(NOT_SENT.format(key) for key in HIDDEN_LINES if lines[key])
    nodes = replace(nodes, launcher_options=(), worker_init=setup)
    return replace(file, training=replace(file.training, nodes=nodes)), dispatch and replace(
        dispatch, **empty
    )


def _file_and_dispatch(
    store: StoredRecipes, recipe: str | Mapping[str, object], campaign: str | Path | None
) -> tuple[RecipeFile, DispatchSettings | None]:
    """Return a recipe as a recipe file, and how its campaign reaches nodes; None where only the
    file is there.
    """
    if campaign is not None:
        file = _planned_file(store, recipe, Path(campaign))
        return file, read_campaign_file(Path(campaign)).spec.dispatch
    if not isinstance(recipe, str):
        raise InvalidInput("a recipe by its choices needs the campaign file that they are of")
    if names_a_file(recipe):
        return read(Path(recipe)), None
    found = _stored(store, recipe)
    file = recipe_file(found)
    return file, stored_spec(_source(found).campaign).dispatch


def _stored(store: StoredRecipes, recipe: str) -> Explanation:
    """Return a stored recipe; raise `InvalidInput` where it is the name of a campaign instead."""
    try:
        return store.show(recipe)
    except FrontrunnerError:
        if recipe not in {found.name for found in store.campaigns()}:
            raise
        hint = (
            f"name a recipe (frontrunner best {recipe}), or the campaign's file for a script that"
            " drives it"
        )
        raise InvalidInput(f"{recipe} is a campaign, not a recipe", hint=hint) from None


def _job(file: RecipeFile) -> TrainingJob:
    return TrainingJob(
        problem=file.problem,
        recipe=file.recipe,
        header=provenance(file),
        recipe_file=to_text(file),
        by_command=file.training.command is not None,
        setup=file.training.nodes.worker_init,
        network_interface=file.training.nodes.network_interface,
        data=[(one.path, one.size_bytes) for one in file.training.data if one.path is not None],
    )


def _campaign_exported(path: Path, to: str) -> str:
    spec = read_campaign_file(path).spec
    if to not in SCHEDULERS:
        raise bad_value(
            "--to",
            to,
            f"{' or '.join(SCHEDULERS)} for a campaign file, whose driver a batch script runs",
            hint="examples/kubernetes has a driver on Kubernetes",
        )
    problem, now = spec.problem, datetime.now(UTC).isoformat(timespec="seconds")
    header = (
        f"frontrunner campaign {spec.name}: {problem.model.name} on {problem.cluster.name}",
        f"written {now} by frontrunner {__version__}",
    )
    cluster = problem.cluster if spec.evaluator_kind.uses_nodes else None
    return campaign_script(to, spec.name, cluster, spec.dispatch, path, header)


def provenance(file: RecipeFile) -> tuple[str, ...]:
    """Return the first lines of an export: its recipe, problem, figures and versions."""
    problem, measured = file.problem, file.measured
    figures = "never measured"
    if measured is not None:
        by = (
            f"by frontrunner's {file.recipe.engine} engine"
            if measured.is_ours
            else "from a table of others' training"
        )
        by = (
            by if measured.trainer is None else f"by another trainer (evaluator {measured.trainer})"
        )
        figures = (
            f"{measured.figures} in campaign {measured.campaign}, {by}:"
            f" {thousands(measured.tokens_per_s)} tokens/s, {measured.step_time_s_median:.4g} s a"
            f" step, {measured.model_tflops_per_device:.4g} TFLOPS a device"
        )
    versions = ", ".join(
        f"{name} {version}" for name, version in sorted(file.origin.measured_with.items())
    )
    return (
        f"frontrunner recipe {file.recipe_id}: {file.recipe.describe()}",
        (
            f"problem: {problem.model.name} on {problem.cluster.name} ({file.recipe.devices} x"
            f" {problem.cluster.device}), sequences of {problem.sequence_length} tokens,"
            f" {problem.precision}"
        ),
        figures,
        f"versions: {versions or 'not known'}",
        f"written {file.origin.written_at} by {file.origin.written_by}",
    )


def recipe_file(explanation: Explanation) -> RecipeFile:
    """Return a stored recipe as a file, with the newest figures of `_source`."""
    appearance = _source(explanation)
    campaign, standing, measured = appearance.campaign, appearance.standing, None
    spec = stored_spec(campaign)
    if standing is not None:
        figures: dict[str, Any] = {f.name: getattr(standing, f.name) for f in fields(standing)}
        trainer = spec.evaluator if spec.trainer else None
        measured = Measured(
            campaign=campaign.name, figures=campaign.figures, trainer=trainer, **figures
        )
    ran_with = [
        attempt.provenance.versions
        for attempt in appearance.attempts
        if attempt.provenance is not None
    ]
    versions = dict(ran_with[-1]) if ran_with else {}
    data = trained_on(explanation, campaign) if standing is not None and not spec.trainer else ()
    file = _file(spec, explanation.recipe, explanation.recipe_id, data)
    return replace(file, measured=measured, origin=replace(file.origin, measured_with=versions))


def _planned_file(
    store: StoredRecipes, recipe: str | Mapping[str, object], campaign: Path
) -> RecipeFile:
    """Return a recipe of a campaign file's space as a file, with its figures where the store has
    some.
    """
    spec = read_campaign_file(campaign).spec
    _, _, found = find_recipe(store.show, recipe, campaign)
    planned = _file(spec, found, recipe_id(spec.problem, found))
    with suppress(NotFound):  # no such recipe, or no store
        known = recipe_file(store.show(planned.recipe_id))
        if known.measured is not None and known.measured.trainer == (
            spec.evaluator if spec.trainer else None
        ):
            return replace(planned, measured=known.measured, origin=known.origin)
    return planned


def _source(explanation: Explanation) -> Appearance:
    """Return where to take a recipe from: the newest campaign by our trainer, else by others, else
    not measured.

    A copied campaign only where no other has measured it: scripts run what its [dispatch] says.
    """

    def place(found: Appearance) -> tuple[bool, bool, int, bool]:
        figures = len(FIGURES) if found.standing is None else FIGURES.index(found.campaign.figures)
        return (
            found.standing is None,
            found.is_copied,
            figures,
            bool(stored_spec(found.campaign).trainer),
        )

    return min(explanation.appearances, key=place)


def _file(
    spec: CampaignSpec, recipe: Recipe, identity: str, data: tuple[TrainingData, ...] = ()
) -> RecipeFile:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    if not data and not (spec.trainer or spec.evaluator == IMPORTED):
        with suppress(InvalidInput):  # no probe has recorded them, and the file may be gone
            data = training_data(spec.data)
    return RecipeFile(
        recipe_id=identity,
        problem=spec.problem,
        recipe=recipe,
        training=Training(
            command=_command(spec),
            optimizer=spec.probe.optimizer,
            optimizer_constants=spec.probe.optimizer_constants,
            schedule=schedule_of(spec),
            seed=spec.search.seed,
            data=data,
            nodes=NodeSettings(
                **{one.name: getattr(spec.dispatch, one.name) for one in fields(NodeSettings)}
            ),
        ),
        measured=None,
        origin=Origin(written_by=f"frontrunner {__version__}", written_at=now),
    )


def _command(spec: CampaignSpec) -> TrainerCommand | None:
    if not spec.trainer or commands_of(spec.evaluator, spec.command) is None:
        return None
    return TrainerCommand(
        evaluator=spec.evaluator,
        settings=replace(spec.command, folder=str(spec.command.start_folder.absolute())),
        warm_up_steps=spec.probe.warm_up_steps,
        on_nodes=spec.dispatch.has_nodes,
    )


def import_config(
    path: str | Path, *, tool: str, campaign: str | Path, stated: Mapping[str, object] | None = None
) -> ImportedRecipe:
    """Read another tool's configuration as a recipe of the campaign file's problem; `stated` gives
    more choices.
    """
    spec = read_campaign_file(Path(campaign)).spec
    path = Path(path)

    def beside(name: str) -> str | None:
        """Return a file that the configuration names, from the configuration's own folder."""
        other = path.parent / Path(name).name
        return read_text(other, "configuration") if holds(other.is_file) else None

    given, reader = (
        Given(text=read_text(path, "configuration"), stated=stated or {}, beside=beside),
        tool_named(tool),
    )
    with naming(path):
        recipe = reader.read(spec.problem, given)
    problem, identity = replace(spec.problem, trainer=tool), recipe_id(spec.problem, recipe)
    reason, not_here = why_illegal(recipe, problem), why_illegal(recipe, spec.problem)
    left_out = reader.ignored(spec.problem, given, recipe)
    if reason is None:
        with naming(path):
            refuse_not_understood({key: given.settings()[key][0] for key in left_out})
    return ImportedRecipe(
        recipe_id=identity,
        recipe=recipe,
        illegal=str(reason) if reason else None,
        illegal_here=str(not_here) if not_here else None,
        legal_engines=_legal_engines(recipe, problem, spec.problem) if not_here else (),
        warnings=tuple(str(mark) for mark in marks(recipe, problem) if mark.code == UNKNOWN_RULE),
        ignored=tuple(key for key in left_out if not is_harmless(key)),
        harmless=tuple(filter(is_harmless, left_out)),
        file=None if reason or not_here else _file(spec, recipe, identity),
    )


def _legal_engines(recipe: Recipe, *problems: CampaignProblem) -> tuple[str, ...]:
    """Return the other engines with which the recipe is legal for the trainers of all problems."""
    legal: list[str] = []
    for engine in ENGINES:
        if engine == recipe.engine:
            continue
        with suppress(InvalidInput):
            changed = replace(recipe, engine=engine)
            if not any(why_illegal(changed, problem) for problem in problems):
                legal.append(engine)
    return tuple(legal)


def mirror(campaign: str | None = None, *, storage: str, store: str | None = None) -> Mirrored:
    """Write a campaign's trials into the Optuna study of its name; a later call adds new trials."""
    with open_store(store_url(store), create=False, read_only=True) as found:
        record = found.campaign(campaign)
        return mirror_campaign(found, record, stored_spec(record), storage)


@dataclass(frozen=True, kw_only=True)
class ImportedProblem:
    """Stored rows of one problem; in a preview `campaign` is the name that it would get."""

    campaign: str
    problem: Mapping[str, object]
    rows: int
    recipes: int
    failed: int


@dataclass(frozen=True, kw_only=True)
class Import:
    """Result of an import. `known_rows` are those that the store had before; a preview writes
    nothing.
    """

    file: str
    store: str
    is_preview: bool
    rows: int
    known_rows: int
    problems: tuple[ImportedProblem, ...]
    left_out: tuple[LeftOut, ...]
    disagreeing: tuple[Repeats, ...]

    @property
    def taken_rows(self) -> int:
        """Number of rows that became outcomes."""
        return sum(problem.rows for problem in self.problems)


def import_table(
    table: str | Path,
    *,
    form: TableForm | None = None,
    cluster: str | Cluster | None = None,
    name: str | None = None,
    store: str | None = None,
    preview: bool = False,
) -> Import:
    """Read a table of measurements into the store, as one campaign per problem; rows that it has
    are skipped.

    Rows without hardware were measured on `cluster` (a preset, a cluster file's path, or a value).
    """
    if name is not None:
        require_campaign_name("--name", name)
    machine = named_cluster(cluster)
    try:
        found = read_table(Path(table), form or TableForm(), machine)
    except InvalidInput as error:
        named = error.message if str(table) in error.message else f"{table}: {error.message}"
        raise InvalidInput(named, hint=error.hint) from None
    by_name: dict[str, ImportedCampaign] = {}
    for made in (_campaign(problem, found, name) for problem in found.problems):
        free = free_among(by_name, made.name)
        by_name[free] = replace(made, name=free)
    campaigns = list(by_name.values())
    if not campaigns:
        reasons = "; ".join(f"{left.rows} x {left.reason}" for left in found.left_out[:4])
        raise InvalidInput(
            f"none of the {found.rows} rows of {found.file} can be used: {reasons}"[:350]
        )
    new, url = campaigns, store_url(store)
    if not preview or "://" in url or Path(url).exists():
        about: dict[str, str | int] = {
            "file": found.file,
            "sha256": found.sha256,
            "rows": found.rows,
        }
        about |= {f"left out: {left.reason}": left.rows for left in found.left_out}
        with open_store(url, create=not preview, read_only=preview) as target:
            new = list(add_imported(target, campaigns, about=about, preview=preview))
    return Import(
        file=found.file,
        store=shown_store(url),
        is_preview=preview,
        rows=found.rows,
        known_rows=sum(len(one.outcomes) for one in campaigns)
        - sum(len(one.outcomes) for one in new),
        problems=tuple(
            ImportedProblem(
                campaign=campaign.name,
                problem=campaign.problem_summary,
                rows=len(campaign.outcomes),
                recipes=len({row.recipe_id for row in campaign.outcomes}),
                failed=sum(isinstance(row.outcome, Failure) for row in campaign.outcomes),
            )
            for campaign in new
        ),
        left_out=found.left_out,
        disagreeing=found.disagreeing,
    )


def _campaign(table: TableProblem, found: Reading, given: str | None) -> ImportedCampaign:
    """Return a problem's campaign, with the given name or the file's, and the problem where there
    are several.
    """
    problem, recipes = table.problem, [row.recipe for row in table.rows]
    name = given or campaign_name_from(Path(found.file).stem)
    if len(found.problems) > 1:
        apart = f"{recipes[0].devices}x-s{problem.sequence_length}-b{problem.global_batch}"
        name = campaign_name_from(f"{name}-{problem.model.name}-{apart}")
    values = {one.name: {one.of(recipe) for recipe in recipes} for one in DIMENSIONS.values()}
    values["schedule"].discard("none")
    listed: dict[str, Any] = {key: tuple(sorted(found)) for key, found in values.items() if found}
    space = Space(**listed)
    spec = CampaignSpec(name=name, problem=problem, space=space, evaluator=IMPORTED)
    return ImportedCampaign(
        name=name,
        spec_json=dump_json(spec),
        problem_summary=problem_summary(spec) | {"devices": recipes[0].devices},
        outcomes=tuple(
            ImportedOutcome(
                recipe_id=recipe_id(problem, row.recipe),
                recipe=row.recipe,
                outcome=row.outcome,
                origin=f"{found.file} row {row.number + 1}",
            )
            for row in table.rows
        ),
    )
