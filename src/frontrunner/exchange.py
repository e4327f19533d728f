"""Exchange with other tools: export recipes, import configurations, and export campaigns as Optuna studies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frontrunner.config.campaign import read_campaign_file
from frontrunner.config.recipe_file import FIGURES, Measured, Origin, RecipeFile, Training, read, to_text
from frontrunner.config.toml_file import holds, why_no_file
from frontrunner.evaluators.export.batch import SCHEDULERS, batch_script
from frontrunner.evaluators.export.reading import Given
from frontrunner.evaluators.export.tools import TOOLS, tool_named
from frontrunner.foreign_recipes import refuse_file_of_others
from frontrunner.recipe_actions import names_a_file
from frontrunner.search.campaign_setup import stored_spec
from frontrunner.spaces.document import recipe_id
from frontrunner.spaces.errors import InvalidInput, NotFound, bad_value, did_you_mean
from frontrunner.spaces.legality import why_illegal
from frontrunner.spaces.recipe import Recipe
from frontrunner.store import LocalStore, opened
from frontrunner.text import thousands

if TYPE_CHECKING:
    from frontrunner.results.explain import Appearance, Explanation
    from frontrunner.search.optuna_export import Mirrored

RECIPE_FILE = "recipe"
TARGETS = (*TOOLS, *SCHEDULERS, RECIPE_FILE)
"""What `export` writes."""
MOST_BYTES = 1_000_000


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
    lines = [
        f"frontrunner recipe {file.recipe_id}: {file.recipe.describe()}",
        f"problem: {problem.model.name} on {problem.cluster.name} ({file.recipe.devices} x {problem.cluster.device}), "
        f"sequences of {problem.sequence_length} tokens, {problem.precision}",
    ]
    if measured is None:
        lines.append("never measured")
    else:
        lines.append(
            f"{measured.figures} in campaign {measured.campaign}, {_by_whom(file.recipe, measured)}: "
            f"{thousands(measured.tokens_per_s)} tokens/s, {measured.step_time_s_median:.4g} s a step, "
            f"{measured.model_tflops_per_device:.4g} TFLOPS a device"
        )
    versions = ", ".join(f"{name} {version}" for name, version in sorted(file.origin.measured_with.items()))
    return (
        *lines,
        f"versions: {versions or 'not known'}",
        f"written {file.origin.written_at} by {file.origin.written_by}",
    )


def _by_whom(recipe: Recipe, measured: Measured) -> str:
    if measured.trainer is not None:
        return f"by another trainer (evaluator {measured.trainer})"
    return f"by frontrunner's {recipe.engine} engine" if measured.is_ours else "from a table of others' training"


def recipe_file(explanation: Explanation) -> RecipeFile:
    """Return a stored recipe as a recipe file, preferring the newest campaign in which our own trainer measured it."""
    appearance = _chosen(explanation)
    spec = stored_spec(appearance.campaign)
    return RecipeFile(
        recipe_id=explanation.recipe_id,
        problem=spec.problem,
        recipe=explanation.recipe,
        training=Training(optimizer=spec.probe.optimizer, seed=spec.search.seed),
        measured=_measured(appearance),
        origin=_origin(_versions(appearance)),
    )


def _chosen(explanation: Explanation) -> Appearance:
    """Return the newest appearance, preferring measurements by our own trainer over those of others, simulated and
    imported ones, and ones without figures.
    """

    def place(found: Appearance) -> tuple[int, bool]:
        figures = len(FIGURES) if found.standing is None else FIGURES.index(found.campaign.figures)
        return figures, bool(stored_spec(found.campaign).trainer)

    return min(explanation.appearances, key=place)


def _measured(appearance: Appearance) -> Measured | None:
    standing = appearance.standing
    if standing is None:
        return None
    figures: dict[str, Any] = {f.name: getattr(standing, f.name) for f in fields(standing)}
    campaign = appearance.campaign
    spec = stored_spec(campaign)
    trainer = spec.evaluator if spec.trainer else None
    return Measured(campaign=campaign.name, figures=campaign.figures, trainer=trainer, **figures)


def _versions(appearance: Appearance) -> Mapping[str, str]:
    known = [attempt.provenance for attempt in appearance.attempts if attempt.provenance is not None]
    return dict(known[-1].versions) if known else {}


def _origin(versions: Mapping[str, str]) -> Origin:
    from datetime import UTC, datetime

    from frontrunner import __version__

    now = datetime.now(UTC).isoformat(timespec="seconds")
    return Origin(written_by=f"frontrunner {__version__}", written_at=now, measured_with=versions)


def import_config(
    path: str | Path, *, tool: str, campaign: str | Path, stated: Mapping[str, object] | None = None
) -> ImportedRecipe:
    """Read a launch configuration of another tool as a recipe of the campaign file's problem.

    `stated` gives choices that the configuration leaves out, such as `{"micro_batch_seqs": 2, "devices": 16}`. Raises
    `NotFound` for a missing file, and `InvalidInput` for an invalid recipe, or one of another problem.
    """
    spec = read_campaign_file(Path(campaign)).spec
    path = Path(path)
    text = _text(path)
    try:
        given = Given(text=text, stated=stated or {}, beside=lambda name: _beside(path, name))
        recipe = tool_named(tool).read(spec.problem, given)
    except InvalidInput as error:
        raise InvalidInput(f"{path}: {error.message}", hint=error.hint) from None
    reason, identity = why_illegal(recipe, spec.problem), recipe_id(spec.problem, recipe)
    if reason is not None:
        return ImportedRecipe(recipe_id=identity, recipe=recipe, illegal=str(reason), file=None)
    file = RecipeFile(
        recipe_id=identity,
        problem=spec.problem,
        recipe=recipe,
        training=Training(optimizer=spec.probe.optimizer, seed=spec.search.seed),
        measured=None,
        origin=_origin({}),
    )
    return ImportedRecipe(recipe_id=identity, recipe=recipe, illegal=None, file=file)


def _text(path: Path) -> str:
    if not holds(path.is_file):
        raise NotFound(f"no configuration at {path}: {why_no_file(path)}")
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}") from None
    if len(content) > MOST_BYTES:
        raise InvalidInput(f"{path} is too long: a configuration has at most {MOST_BYTES:,} bytes")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{path} is not text in UTF-8: byte {error.start + 1} does not fit") from None


def _beside(path: Path, name: str) -> str | None:
    """Return a file that the configuration names, from the configuration's own folder."""
    other = path.parent / Path(name).name
    return _text(other) if holds(other.is_file) else None


def mirror(campaign: str | None = None, *, storage: str, store: str | None = None) -> Mirrored:
    """Write a campaign's trials into the Optuna study of its name; a later call adds new trials."""
    from frontrunner.search.optuna_export import mirror_campaign

    with opened(store) as found:
        record = found.campaign(campaign)
        return mirror_campaign(found, record, stored_spec(record), storage)
