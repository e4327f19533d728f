"""Recipe files: one recipe with its problem, origin and measurement, as versioned JSON.

The document is `{"format", "version", "hash", "content"}`; its content is a `RecipeFile`, and the
hash is SHA-256 over the content's canonical JSON (sorted keys, no spaces). docs/recipe.schema.json
is its JSON schema.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from frontrunner.config.toml_file import read_text, value_of
from frontrunner.evaluators.export.reading import json_table
from frontrunner.evaluators.nodes.settings import DispatchSettings
from frontrunner.evaluators.programs.command_settings import CommandSettings
from frontrunner.evaluators.runs.settings import OptimizerConstants, ProbeSettings, Schedule
from frontrunner.results.outcome import RecipeStats
from frontrunner.results.provenance import DataFiles
from frontrunner.spaces import errors
from frontrunner.spaces.document import as_table, canonical_json, recipe_id
from frontrunner.spaces.legality import why_illegal
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import NODE_TYPE, Recipe, stored_recipe
from frontrunner.spaces.validation import A_TABLE, refuse_unusable_values, validate

FORMAT = "frontrunner-recipe"
VERSION = 2
FIRST_VERSION = 1
"""Files of it state no data, so that a replay needs them named."""
MOST_BYTES = 256 * 1024
LARGEST = 2**63 - 1
FIGURES = ("measured", "simulated", "imported")
KEYS = ("format", "version", "hash", "content")


@dataclass(frozen=True, kw_only=True)
class Measured(RecipeStats):
    """A recipe's measurements in one campaign; `figures` says where they come from, `trainer` the
    other evaluator.
    """

    campaign: str
    figures: str
    trainer: str | None = None

    @property
    def is_ours(self) -> bool:
        """Whether frontrunner's own trainer, or its simulation, produced the numbers."""
        return self.trainer is None and self.figures != "imported"


@dataclass(frozen=True, kw_only=True)
class NodeSettings:
    """Keys of the campaign's [dispatch] that the recipe's nodes need wherever they come from.

    Batch scripts begin with the lines of `worker_init`; a replay runs none of them.
    """

    worker_init: tuple[str, ...] = ()
    network_interface: str | None = None
    launcher: str | None = None
    launcher_options: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        DispatchSettings(**vars(self))  # checks them

    @property
    def dispatch(self) -> DispatchSettings:
        """Return the settings of steps within a job, whose script has run `worker_init`."""
        return DispatchSettings(**vars(self) | {"worker_init": ()})


@dataclass(frozen=True, kw_only=True)
class TrainerCommand:
    """Another trainer: the evaluator that made its commands, with the campaign's [command], whose
    folder is absolute.

    `on_nodes`: it is started on each of the recipe's nodes, and does not reach them by itself.
    """

    evaluator: str
    settings: CommandSettings
    warm_up_steps: int
    on_nodes: bool


@dataclass(frozen=True, kw_only=True)
class Training:
    """What training needs besides the problem: optimizer, learning rates, the seed of weights and
    data, and the data.

    `data` is empty where the file does not state them; `command` is None for our own trainer.
    """

    optimizer: str = "adamw"
    optimizer_constants: OptimizerConstants = field(default_factory=OptimizerConstants)
    schedule: Schedule = field(default_factory=Schedule)
    seed: int = 0
    data: DataFiles = ()
    nodes: NodeSettings = field(default_factory=NodeSettings)
    command: TrainerCommand | None = None

    @property
    def probe(self) -> ProbeSettings:
        """Return the settings of probes that train so."""
        return ProbeSettings(
            optimizer=self.optimizer,
            optimizer_constants=self.optimizer_constants,
            learning_rate=self.schedule.learning_rate,
            **({} if self.command is None else {"warm_up_steps": self.command.warm_up_steps}),
        )


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Writer and time of the file (ISO 8601, UTC), and the software versions that the recipe was
    measured with.
    """

    written_by: str
    written_at: str
    measured_with: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class RecipeFile:
    """A recipe with its problem; `measured` is None without a measurement."""

    recipe_id: str
    problem: Problem
    recipe: Recipe
    training: Training
    measured: Measured | None
    origin: Origin

    def __post_init__(self) -> None:
        command = self.training.command
        trainer = command.settings.trainer if command else None
        object.__setattr__(self, "problem", replace(self.problem, trainer=trainer))
        reason = why_illegal(self.recipe, self.problem)
        if reason is not None:
            raise errors.InvalidInput(f"content.recipe is illegal: {reason}")
        wanted = recipe_id(self.problem, self.recipe)
        if self.recipe_id != wanted:
            raise errors.bad_value(
                "content.recipe_id", self.recipe_id, f"{wanted}, the id of this problem and recipe"
            )


def to_text(file: RecipeFile) -> str:
    """Return the file's text; `from_text` reads it back to an equal value, and equal values give
    equal text.
    """
    content = as_table(file) | {"recipe": stored_recipe(file.recipe)}
    del content["problem"]["trainer"]  # the command's
    if file.training.command is None:  # which versions without it can read
        del content["training"]["command"]
    document = {
        "format": FORMAT,
        "version": VERSION,
        "hash": content_hash(content),
        "content": content,
    }
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def content_hash(content: Mapping[str, Any]) -> str:
    """Return the SHA-256 of the canonical JSON, in hexadecimal."""
    return hashlib.sha256(canonical_json(content).encode()).hexdigest()


def read(path: Path) -> RecipeFile:
    """Read the recipe file at a path; raises `NotFound`, or `InvalidInput` naming the key."""
    text = read_text(
        path,
        "recipe file",
        "frontrunner export RECIPE --to recipe writes one",
        most_bytes=MOST_BYTES,
    )
    try:
        return from_text(text)
    except errors.InvalidInput as error:
        named = shlex.quote(str(path))
        to_list = f"a recipe file is JSON; the recipes of a campaign file: frontrunner plan {named}"
        hint = to_list if path.suffix == ".toml" else error.hint
        raise errors.InvalidInput(f"{path}: {error.message}", hint=hint) from None


def from_text(text: str) -> RecipeFile:
    """Parse a recipe file's text."""
    document = json_table(text).values
    version, content = document.get("version"), document.get("content")
    if document.get("format") != FORMAT:
        raise errors.bad_value("format", document.get("format"), f'"{FORMAT}"')
    if isinstance(version, bool) or version not in range(FIRST_VERSION, VERSION + 1):
        hint = "upgrade frontrunner" if isinstance(version, int) and version > VERSION else None
        expected = f"{FIRST_VERSION} or {VERSION}, which this version of frontrunner reads"
        raise errors.bad_value("version", version, expected, hint=hint)
    refuse_unusable_values(document, LARGEST)
    for key in document:
        if key not in KEYS:
            raise errors.InvalidInput(
                f"unknown key {errors.shown_key(key)}: a recipe file has {', '.join(KEYS)}"
            )
    if not isinstance(content, dict):
        raise errors.bad_value("content", content, A_TABLE)
    if document.get("hash") != (wanted := content_hash(content)):
        raise errors.bad_value(
            "hash", document.get("hash"), f"{wanted}: the file was changed after it was written"
        )
    if (node_type := value_of(content, f"recipe.{NODE_TYPE}")) is not None:
        raise errors.InvalidInput(
            f"content.recipe.{NODE_TYPE} = {errors.shown(node_type)}: the recipe is for one of"
            " several node types, which this version does not know",
            hint="plan or measure it in a campaign on that node type alone",
        )
    return validate(RecipeFile, content, prefix="content", largest=LARGEST)
