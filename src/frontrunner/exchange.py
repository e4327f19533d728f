"""Exchange with other tools: export recipes, import configurations, and export campaigns as Optuna studies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frontrunner.config.campaign import read_campaign_file
from frontrunner.config.recipe_file import FIGURES, Measured, Origin, RecipeFile, Training, read, to_text
from frontrunner.config.toml_file import holds, read_text
from frontrunner.evaluators.export.reading import Given
from frontrunner.evaluators.export.tools import SCHEDULERS, TOOLS, batch_script, tool_named
from frontrunner.recipe_actions import names_a_file, refuse_file_of_others
from frontrunner.search.campaign_setup import stored_spec
from frontrunner.spaces.document import recipe_id
from frontrunner.spaces.errors import InvalidInput, bad_value, did_you_mean
from frontrunner.spaces.legality import why_illegal
from frontrunner.spaces.recipe import Recipe
from frontrunner.store import LocalStore, opened
from frontrunner.text import thousands

if TYPE_CHECKING:
    from frontrunner.results.explain import Appearance, Explanation
    from frontrunner.search.optuna_export import Mirrored
    from frontrunner.search.spec import CampaignSpec

RECIPE_FILE = "recipe"
TARGETS = (*TOOLS, *SCHEDULERS, RECIPE_FILE)


@dataclass(frozen=True, kw_only=True)
class ImportedRecipe:
    """A configuration read as a recipe; `illegal` is why our trainer cannot run it, None where it can."""

    recipe_id: str
    recipe: Recipe
    illegal: str | None
    file: RecipeFile | None


def exported(store: LocalStore, recipe: str, *, to: str) -> str:
    """Return a recipe, stored or of a recipe file, as a configuration of the tool `to`, one of `TARGETS`."""
    if to not in TARGETS:
        raise bad_value("--to", to, f"one of {', '.join(TARGETS)}, optuna", hint=did_you_mean(to, (*TARGETS, "optuna")))
    file = read(Path(recipe)) if names_a_file(recipe) else recipe_file(store.show(recipe))
    if to == RECIPE_FILE:
        return to_text(file)
    if to in SCHEDULERS:
        refuse_file_of_others(file)
        return batch_script(to, file.problem, file.recipe, provenance(file), to_text(file))
    return tool_named(to).render(file.problem, file.recipe, provenance(file))


def provenance(file: RecipeFile) -> tuple[str, ...]:
    """Return the first lines of an export: its recipe, problem, figures and versions."""
    problem, measured = file.problem, file.measured
    figures = "never measured"
    if measured is not None:
        by = f"by frontrunner's {file.recipe.engine} engine" if measured.is_ours else "from a table of others' training"
        by = by if measured.trainer is None else f"by another trainer (evaluator {measured.trainer})"
        figures = (
            f"{measured.figures} in campaign {measured.campaign}, {by}: {thousands(measured.tokens_per_s)} tokens/s, "
            f"{measured.step_time_s_median:.4g} s a step, {measured.model_tflops_per_device:.4g} TFLOPS a device"
        )
    versions = ", ".join(f"{name} {version}" for name, version in sorted(file.origin.measured_with.items()))
    return (
        f"frontrunner recipe {file.recipe_id}: {file.recipe.describe()}",
        f"problem: {problem.model.name} on {problem.cluster.name} ({file.recipe.devices} x {problem.cluster.device}), "
        f"sequences of {problem.sequence_length} tokens, {problem.precision}",
        figures,
        f"versions: {versions or 'not known'}",
        f"written {file.origin.written_at} by {file.origin.written_by}",
    )


def recipe_file(explanation: Explanation) -> RecipeFile:
    """Return a stored recipe as a file, with its newest figures: of our trainer, else of others, else not measured."""

    def place(found: Appearance) -> tuple[int, bool]:
        figures = len(FIGURES) if found.standing is None else FIGURES.index(found.campaign.figures)
        return figures, bool(stored_spec(found.campaign).trainer)

    appearance = min(explanation.appearances, key=place)
    campaign, standing, measured = appearance.campaign, appearance.standing, None
    spec = stored_spec(campaign)
    if standing is not None:
        figures: dict[str, Any] = {f.name: getattr(standing, f.name) for f in fields(standing)}
        trainer = spec.evaluator if spec.trainer else None
        measured = Measured(campaign=campaign.name, figures=campaign.figures, trainer=trainer, **figures)
    ran_with = [attempt.provenance.versions for attempt in appearance.attempts if attempt.provenance is not None]
    versions = dict(ran_with[-1]) if ran_with else {}
    return _file(spec, explanation.recipe, explanation.recipe_id, measured, versions)


def _file(
    spec: CampaignSpec, recipe: Recipe, identity: str, measured: Measured | None, versions: Mapping[str, str]
) -> RecipeFile:
    from datetime import UTC, datetime

    from frontrunner import __version__

    now = datetime.now(UTC).isoformat(timespec="seconds")
    return RecipeFile(
        recipe_id=identity,
        problem=spec.problem,
        recipe=recipe,
        training=Training(optimizer=spec.probe.optimizer, seed=spec.search.seed),
        measured=measured,
        origin=Origin(written_by=f"frontrunner {__version__}", written_at=now, measured_with=versions),
    )


def import_config(
    path: str | Path, *, tool: str, campaign: str | Path, stated: Mapping[str, object] | None = None
) -> ImportedRecipe:
    """Read another tool's configuration as a recipe of the campaign file's problem; `stated` gives more choices."""
    spec = read_campaign_file(Path(campaign)).spec
    path = Path(path)

    def beside(name: str) -> str | None:
        """Return a file that the configuration names, from the configuration's own folder."""
        other = path.parent / Path(name).name
        return read_text(other, "configuration") if holds(other.is_file) else None

    text = read_text(path, "configuration")
    try:
        recipe = tool_named(tool).read(spec.problem, Given(text=text, stated=stated or {}, beside=beside))
    except InvalidInput as error:
        raise InvalidInput(f"{path}: {error.message}", hint=error.hint) from None
    reason, identity = why_illegal(recipe, spec.problem), recipe_id(spec.problem, recipe)
    if reason is not None:
        return ImportedRecipe(recipe_id=identity, recipe=recipe, illegal=str(reason), file=None)
    file = _file(spec, recipe, identity, None, {})
    return ImportedRecipe(recipe_id=identity, recipe=recipe, illegal=None, file=file)


def mirror(campaign: str | None = None, *, storage: str, store: str | None = None) -> Mirrored:
    """Write a campaign's trials into the Optuna study of its name; a later call adds new trials."""
    from frontrunner.search.optuna_export import mirror_campaign

    with opened(store) as found:
        record = found.campaign(campaign)
        return mirror_campaign(found, record, stored_spec(record), storage)
