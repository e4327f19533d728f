"""Base class of the tools that recipes are exported to, and the text of files.

Two choices of a recipe are never exported: `engine` and `replication` name whose code trains and
which wrapper keeps replicas equal, of which another tool has its own. Every other choice is
expressed, or refused with a reason.
"""

from __future__ import annotations

import math
import shlex
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar

from frontrunner.evaluators.runs.measure import tokens_per_step
from frontrunner.spaces.document import read_plain
from frontrunner.spaces.errors import InvalidInput, shown
from frontrunner.spaces.legality import Reason
from frontrunner.spaces.model.model import Model
from frontrunner.spaces.presets import model_preset
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import Recipe
from frontrunner.spaces.sharding import Sharding
from frontrunner.spaces.trainers import TRAINERS

if TYPE_CHECKING:
    from frontrunner.evaluators.export.reading import Given

NEVER_EXPORTED = ("engine", "replication")
END_OF_FILE = "END_OF_FILE"
SOME_STEPS = 1000

EITHER = frozenset({
    "name", "vocabulary_multiple", "max_positions", "attention", "routing", "balancing",
    "balancing_weight",
})  # fmt: skip
"""Fields of a model that another tool's configuration of it may have otherwise."""
Refusal = tuple[object, str, str]
"""Whether it holds of a recipe, and the code and text of the `Reason` that it then is."""


@dataclass(frozen=True, kw_only=True)
class Export:
    """A recipe in a tool's own terms: arguments after the training script, and files (name -> text)
    that they name.
    """

    arguments: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


def is_preset(model: Model, name: str) -> bool:
    """Return whether a model computes and has the sizes of a preset: all but its name, limits and
    balancing agree.
    """
    table = model_preset(name)
    known = read_plain(
        Model, {"kv_heads": table["heads"], "ffn_hidden": 4 * table["hidden"], **table}, "model"
    )
    stated = model.keys()
    return all(stated[key] == value for key, value in known.keys().items() if key not in EITHER)


def launch_of(problem: Problem, recipe: Recipe) -> tuple[int, int]:
    """Return the number of nodes, and of processes on each, that a launcher starts."""
    per_node = min(recipe.devices, problem.cluster.devices_per_node)
    return recipe.devices // per_node, per_node


def why_no_launch(problem: Problem, recipe: Recipe) -> Reason | None:
    """Return why a launcher, which starts the same number of processes on every node, cannot start
    the recipe.
    """
    nodes, per_node = launch_of(problem, recipe)
    if nodes * per_node == recipe.devices:
        return None
    return Reason(
        "unequal-nodes", f"{recipe.devices} devices do not fill nodes of {per_node} equally"
    )


@dataclass(frozen=True, kw_only=True)
class TrainingJob:
    """What a job trains with: a recipe, lines on its origin, its recipe file, and commands that
    nodes run first.

    `by_command`: the file holds another trainer's command. `data` are the paths and bytes of the
    files to train on.
    """

    problem: Problem
    recipe: Recipe
    header: Sequence[str]
    recipe_file: str
    by_command: bool = False
    setup: Sequence[str] = ()
    network_interface: str | None = None
    data: Sequence[tuple[str, int]] = ()

    @property
    def steps(self) -> int:
        """The optimizer steps that train on `problem.billion_tokens`; without them `SOME_STEPS`."""
        if self.problem.billion_tokens is None:
            return SOME_STEPS
        return math.ceil(
            self.problem.billion_tokens * 1e9 / tokens_per_step(self.recipe, self.problem)
        )

    def launch(self, to: str) -> tuple[int, int]:
        """Return `launch_of` the recipe; raise `InvalidInput` for one that cannot be started, or
        not by our trainer.
        """
        if (reason := why_no_launch(self.problem, self.recipe)) is not None:
            raise InvalidInput(f"{to} cannot start this recipe: {reason}")
        if not self.by_command:
            self.problem.model.require_trained()
        if (own := self.recipe.custom_arguments()) and not self.by_command:
            what = (
                f"{to} scripts train by the built-in trainer, which does not take {' '.join(own)}"
            )
            raise InvalidInput(
                what, hint="export it to the trainer's own arguments: --to megatron-lm"
            )
        return launch_of(self.problem, self.recipe)


class Tool(ABC):
    """A tool that trains by its own code.

    `names` is what it calls a recipe's numbers: an option (`--name`) or the path of a key in a
    file; `expressed` are other dimensions that it has settings for. `model_fields` are the fields
    of the model that an export states, None where the model is that of the user's script. `usage`
    is the command of a script that sets TORCHRUN_ARGS and RECIPE_ARGS; `file` names the one file
    that is the whole configuration.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    names: ClassVar[Mapping[str, str]]
    expressed: ClassVar[frozenset[str]]
    model_fields: ClassVar[frozenset[str] | None] = None
    has_launcher: ClassVar[bool] = True
    usage: ClassVar[str] = ""
    file: ClassVar[str] = ""

    @abstractmethod
    def refusals(self, problem: Problem, recipe: Recipe) -> Iterable[Refusal]:
        """Return which combinations of choices the export does not have; what the tool refuses to
        run is in `spaces/trainers.py`.
        """

    @abstractmethod
    def arguments_and_files(self, problem: Problem, recipe: Recipe) -> Export:
        """Return the recipe in the tool's terms; called for recipes that `why_not` lets pass."""

    @abstractmethod
    def read(self, problem: Problem, given: Given) -> Recipe:
        """Return the recipe that a configuration of the tool describes; raise `InvalidInput` if
        there is none.
        """

    def ignored(self, problem: Problem, given: Given, recipe: Recipe) -> tuple[str, ...]:
        """Return the settings of a configuration that was read which neither its recipe nor the
        recipe's export has.
        """
        said: Mapping[str, tuple[Any, bool]] = {}
        if self.why_not(problem, recipe) is None:
            stated = {"engine": recipe.engine, "devices": recipe.devices}
            again = replace(given, text=self.render(problem, recipe, ()), stated=stated, tables=[])
            self.read(problem, again)
            said = again.settings()
        return tuple(
            key
            for key, (value, is_read) in given.settings().items()
            if not is_read and (key not in said or said[key][0] != value)
        )

    def numbers(self, recipe: Recipe, *but: str) -> dict[str, Any]:
        """Return the tool's options for a recipe's numbers `but` some, with their values."""
        return {
            name: getattr(recipe, number)
            for number, name in self.names.items()
            if number not in but
        }

    def why_not(self, problem: Problem, recipe: Recipe) -> Reason | None:
        """Return why the tool cannot express or run this recipe, or None if it can."""
        known = {*NEVER_EXPORTED, *self.names, *self.expressed, "custom"}
        for holds, code, why in self.refusals(problem, recipe):
            if holds:
                return Reason(code, why)
        for rule in TRAINERS[self.name].rules:
            for code, why in rule(recipe, problem):
                return Reason(code, why)
        for choice in fields(Recipe):
            value = getattr(recipe, choice.name)
            if choice.name not in known and choice.default not in (MISSING, value):
                why = f"{self.title} has no setting for {choice.name} = {shown(value)}"
                return Reason(f"{choice.name.replace('_', '-')}-unsaid", why)
        model, stated = problem.model, self.model_fields
        if stated is not None:
            said = {"name", "routing", *stated}
            if (model.attention.window or 0) >= problem.sequence_length:
                said |= {"attention_window", "full_attention_every"}  # sequences fit in it
            keys = model.stated_keys()
            if unsaid := [name for name in keys if name not in said]:
                listed = ", ".join(f"model.{name} = {shown(keys[name])}" for name in unsaid)
                return Reason("model-unsaid", f"{self.title} has no setting for {listed}")
        return why_no_launch(problem, recipe) if self.has_launcher else None

    def export(self, problem: Problem, recipe: Recipe) -> Export:
        """Return the recipe in the tool's terms; raise `InvalidInput` with the reason if it has
        none for it.
        """
        if (reason := self.why_not(problem, recipe)) is not None:
            raise InvalidInput(
                f"{self.name} does not take this recipe: {reason}",
                hint="export another recipe, or with --to recipe a file that loses nothing",
            )
        found = self.arguments_and_files(problem, recipe)
        own, variables = recipe.custom_arguments(), recipe.custom_environment()
        notes = found.notes
        if (
            self.file or type(self).render is not Tool.render
        ):  # one configuration file, which cannot hold them
            notes += (f"note: needs the arguments {shlex.join(own)}",) if own else ()
            notes += tuple(
                f"note: needs the environment variable {line}" for line in _assigned(variables)
            )
        return replace(
            found, arguments=(*own, *found.arguments), environment=variables, notes=notes
        )

    def render(self, problem: Problem, recipe: Recipe, header: Sequence[str]) -> str:
        """Return one file that the tool accepts, by default a bash script, with the header in its
        comments.
        """
        found = self.export(problem, recipe)
        if self.file:
            return comments((*header, *found.notes)) + "\n" + found.files[self.file]
        parts = [comments((*header, *found.notes, f"Use: source this file; {self.usage}"))]
        for name, text in found.files.items():
            parts.append(f"cat > {shlex.quote(name)} <<'{END_OF_FILE}'\n{text}{END_OF_FILE}\n")
        if "TORCHRUN_ARGS" in self.usage:
            nodes, per_node = launch_of(problem, recipe)
            started = ("--nnodes", str(nodes), "--nproc-per-node", str(per_node))
            parts.append(_bash_array("TORCHRUN_ARGS", started))
        exports = [f"export {line}" for line in _assigned(found.environment)]
        return "\n".join([*parts, *exports, _bash_array("RECIPE_ARGS", found.arguments)])


def _assigned(environment: Mapping[str, str]) -> list[str]:
    return [f"{name}={shlex.quote(value)}" for name, value in environment.items()]


def fsdp_degrees(recipe: Recipe) -> tuple[int, int, int]:
    """Return over how many replicas FSDP copies, over how many it shards, and the context ranks,
    sharded over too.
    """
    context = recipe.context_parallel
    shard = max(1, recipe.sharding.optimizer // context)
    return recipe.data_parallel // shard, shard, context


def fsdp_sharding(found: Mapping[str, Any], shard: int, *, keeps_parameters: bool) -> Sharding:
    """Return the sharding of FSDP over so many replicas, with the degrees that were found."""
    spread = shard * found["context_parallel"]
    return Sharding(
        parameters=1 if keeps_parameters else spread, gradients=spread, optimizer=spread
    )


def words(settings: Mapping[str, object]) -> tuple[str, ...]:
    """Return options with their values as words; one that is True stands alone, one that is False
    or None goes.
    """
    found: list[str] = []
    for name, value in settings.items():
        if value is not None and value is not False:
            found += [name] if value is True else [name, str(value)]
    return tuple(found)


def nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by path (`section.key`) as tables in tables."""
    root: dict[str, Any] = {}
    for path, value in settings.items():
        *parents, key = path.split(".")
        table = root
        for parent in parents:
            table = table.setdefault(parent, {})
        table[key] = value
    return root


def comments(lines: Iterable[str]) -> str:
    """Return the lines as comments of a shell script or YAML file, without unprintable
    characters.
    """
    return "".join(
        "# " + "".join(c if c.isprintable() else " " for c in line) + "\n" for line in lines
    )


def yaml_text(table: Mapping[str, Any]) -> str:
    """Return a table as YAML, its keys in their own order."""
    import yaml

    return str(yaml.safe_dump(dict(table), sort_keys=False, width=120))


def _bash_array(name: str, words: Sequence[str]) -> str:
    lines: list[list[str]] = []
    for word in words:
        if word.startswith("-") or not lines:
            lines.append([])
        lines[-1].append(shlex.quote(word))
    return f"{name}=(\n" + "".join(f"  {' '.join(line)}\n" for line in lines) + ")\n"
