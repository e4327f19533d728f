"""Configurations of other tools as input: shell scripts, JSON and YAML, and the recipe found in
them.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from frontrunner.evaluators.export.shell import Undecided, read_script
from frontrunner.spaces.errors import InvalidInput, bad_value, did_you_mean, shown, shown_key
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import Recipe
from frontrunner.spaces.sharding import Sharding

T = TypeVar("T", bound="Table")
MAX_CHARACTERS = 256 * 1024
STATED = tuple(f.name for f in fields(Recipe) if f.name not in ("layers_per_stage", "custom"))
"""What the user may state for a configuration that leaves it out; sharding by its name."""
OTHER_PROBLEM = (
    "give the campaign file of this configuration's model, sequence length, precision and batch"
)
LARGEST = 2**31 - 1
HARMLESS = re.compile(
    r"\b(adam|addr|beta[123]|cache|checkpoints|ckpt|clip|clipping|data|dataloader|datasets?|decay|dir|dump|eps|epsilon|eval|"
    r"exit|experiment|file|folder|general|id|init|interval|iters|learning|load|log|logger|logging|lr|master|metrics|momentum|node-rank|"
    r"name|output|path|port|print|project|random|rdzv|run|samples|save|scheduler|seed|split|std|steps|tensorboard|timeout|"
    r"timing|tokenizer|vocab|wandb|warmup|workers)\b"
)
"""Words in names of settings that change neither speed nor memory, unless one of `COSTLY` is there
too; assumed.
"""
COSTLY = re.compile(
    r"\b(activations?|dtype|bf16|fp16|fp32|fused|fusion|offload|overlap|recompute)\b"
)
DECISIVE = re.compile(
    r"recompute|offload|activation.?checkpoint|checkpoint.?activations|gradient.?checkpointing"
    r"|cpu.?checkpoint|partition.?activations|shard(ed|ing|s)?(?!-state)|fp4|fp8|float8|quantiz"
    r"|(?<!router-)dtype|precision|parallel.*(size|degree|ranks)|zero.?stage"
    r"|(?<!te-)\bact(ivation)?(-(fn|func|function|type))?$"
)
"""Names of settings of recompute, sharding, precision, parallel degrees, offload and the activation
(as `mlp_hidden_act`), in the last part of their path: without them a recipe would be another one.
"""
OFF = (None, False, 0, 1, -1, "", "0", "1", "-1", "none", "no", "false", "False", "disabled")
_HEREDOC = re.compile(r"cat > (\S+) <<'?(\w+)'?")


@dataclass(frozen=True, kw_only=True)
class Given:
    """A configuration, what its owner states in addition (`STATED`), and the text of files that it
    names (or None).
    """

    text: str
    stated: Mapping[str, Any] = field(default_factory=dict)
    beside: Callable[[str], str | None] = lambda _: None
    tables: list[Table] = field(default_factory=list)

    def __post_init__(self) -> None:
        if len(self.text) > MAX_CHARACTERS:
            raise InvalidInput(
                f"the configuration has {len(self.text):,} characters: expected at most"
                f" {MAX_CHARACTERS:,}"
            )
        for key, value in self.stated.items():
            if key not in STATED:
                raise bad_value(
                    shown_key(key), value, "a choice of a recipe", hint=did_you_mean(key, STATED)
                )

    def keep(self, table: T) -> T:
        """Add a table to those that the configuration consists of, and return it."""
        self.tables.append(table)
        return table

    def settings(self) -> dict[str, tuple[Any, bool]]:
        """Return all settings by their whole path: (value, whether it was looked at)."""
        return {
            key: (value, key in table.seen)
            for table in self.tables
            for key, value in _leaves(table.values)
        }


def _leaves(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def is_harmless(setting: str) -> bool:
    """Return whether a setting changes neither speed nor memory, by the words of its name."""
    name = setting.lower().replace("_", "-")
    return HARMLESS.search(name) is not None and COSTLY.search(name) is None


def refuse_not_understood(settings: Mapping[str, Any]) -> None:
    """Raise `InvalidInput` for the first of the settings that were not read which makes another
    recipe.
    """
    for key, value in settings.items():
        name = key.rpartition(".")[2].lower().replace("_", "-")
        if DECISIVE.search(name) and not (isinstance(value, str | int) and value in OFF):
            raise InvalidInput(
                f"{key} = {shown(value)} is not understood, and changes speed or memory",
                hint="if your run does not need it, leave it out of a copy of the file",
            )


@dataclass(frozen=True)
class Table:
    """A parsed file, whose entries are named by their whole path, `section.key`; `seen` are those
    asked for.
    """

    values: Mapping[str, Any]
    seen: set[str] = field(default_factory=set)

    def get(self, key: str, default: Any = None) -> Any:
        """Return an entry's value; the default where it, or a table that it is in, is missing or
        null.
        """
        self.seen.add(key)
        found: Any = self.values
        path = key.split(".")
        for depth, name in enumerate(path):
            if not isinstance(found, Mapping):
                raise bad_value(".".join(path[:depth]), found, "a table of keys and values")
            found = found.get(name)
            if found is None:
                return default
        return found

    def number(self, key: str) -> int | None:
        """Return the whole number of at least 1 under a key, None where it is missing or null."""
        value = self.get(key)
        if value is not None and (
            isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= LARGEST
        ):
            raise bad_value(key, value, "a whole number of at least 1", hint=self._hint(str(value)))
        return value

    def _hint(self, value: str) -> str | None:
        """Return what to do about a value that is no number."""
        return "write the number in place of a variable" if "$" in value else None

    def text(self, key: str, default: str = "") -> str:
        """Return the word or number under a key as text, the default where it is missing or
        null.
        """
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise bad_value(key, value, "text")
        return str(value)

    def flag(self, key: str) -> bool:
        """Return the true or false under a key, False where it is missing or null."""
        value = self.get(key, default=False)
        if not isinstance(value, bool):
            raise bad_value(key, value, "true or false")
        return value

    def choice(
        self,
        key: str,
        default: object,
        choices: Mapping[Any, str],
        spelled: Callable[[str], str] | None = None,
    ) -> str:
        """Return what the value under a key is here; raise `InvalidInput` for one that is not among
        the choices.
        """
        value = self.get(key, default)
        value = spelled(str(value)) if spelled else value
        if isinstance(value, bool) or not isinstance(value, str | int) or value not in choices:
            raise bad_value(key, value, f"one of {', '.join(map(str, choices))}")
        return choices[value]

    def refuse(self, refused: Mapping[str, str]) -> None:
        """Raise `InvalidInput` for the first key in use that no recipe of ours describes."""
        for key, what in refused.items():
            value = self.get(key, default=False)
            if value is True or value not in (False, 1, -1, "", "none"):
                raise InvalidInput(f"{key} = {shown(value)}: no recipe of ours has {what}")


@dataclass(frozen=True)
class Options(Table):
    """Command-line options, `--name` -> the word that follows it, or True; names have dashes for
    underscores.

    `variables` are those of the script; one that is set for a single command has a `=` after it.
    """

    variables: Mapping[str, Any] = field(default_factory=dict)
    uncomputed: Mapping[str, str] = field(default_factory=dict)
    """Arithmetic of the script whose value is not known -> its line, and why."""

    def get(self, key: str, default: Any = None) -> Any:
        """Return an option's word, or the whole number that it is; the default where it is not
        there.
        """
        self.seen.add(key := key.replace("_", "-"))
        value = self.values.get(key, default)
        if isinstance(value, Undecided):
            raise value.refuse(key)
        is_number = (
            isinstance(value, str) and value.isdecimal() and value.isascii() and len(value) <= 10
        )
        return int(value) if is_number else value

    def _hint(self, value: str) -> str | None:
        whys = (why for written, why in self.uncomputed.items() if written in value)
        why = next(whys, None)
        return f"{why}; write the number there" if why else super()._hint(value)

    def flag(self, key: str) -> bool:
        """Return whether an option is there."""
        return self.get(key) is not None

    @property
    def launch(self) -> dict[str, Any]:
        """`devices`, where the launcher's numbers of nodes and of processes per node can be
        read.
        """
        counts = [self.get(name) for name in ("--nnodes", "--nproc-per-node")]
        return (
            {"devices": counts[0] * counts[1]}
            if all(isinstance(count, int) and count for count in counts)
            else {}
        )


def json_table(text: str) -> Table:
    """Return the object in a JSON text; raise `InvalidInput` for any other text and for a key given
    twice.
    """

    def table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        key, count = Counter(key for key, _ in pairs).most_common(1)[0] if pairs else ("", 0)
        if count > 1:
            raise InvalidInput(f"the key {shown_key(key)} is given twice")
        return dict(pairs)

    try:
        found = json.loads(text, object_pairs_hook=table)
    except InvalidInput:
        raise
    except json.JSONDecodeError as error:
        raise InvalidInput(
            f"not valid JSON: {error.msg} at line {error.lineno}, column {error.colno}"
        ) from None
    except (RecursionError, ValueError) as error:
        why = "nested too deeply" if isinstance(error, RecursionError) else error
        raise InvalidInput(f"not usable JSON: {why}") from None
    return _table_of(found, "JSON")


def yaml_table(text: str) -> Table:
    """Return the mapping in a YAML text of plain values; raise `InvalidInput` for any other
    text.
    """
    import yaml

    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise InvalidInput(
            f"not valid YAML: {getattr(error, 'problem', None) or 'it cannot be read'}{where}"
        ) from None
    except (RecursionError, ValueError) as error:
        raise InvalidInput(f"not usable YAML: {error}") from None
    return _table_of(found, "YAML")


def _table_of(found: object, kind: str) -> Table:
    if not isinstance(found, dict):
        raise InvalidInput(f"not usable {kind}: expected a table of keys and values")
    return Table(found)


def split_files(text: str) -> tuple[list[str], dict[str, str]]:
    """Return the lines of a script apart from the files that it writes by `cat > NAME <<WORD`, and
    these by name.
    """
    lines: list[str] = []
    files: dict[str, str] = {}
    name, end = "", ""
    for line in text.split("\n"):
        if end and line == end:
            end = ""
        elif end:
            files[name] += line + "\n"
        elif begins := _HEREDOC.fullmatch(line):
            name, end = begins[1], begins[2]
            files[name] = ""
        else:
            lines.append(line)
    return lines, files


def read_options(text: str) -> Options:
    """Return the options of a launch script or argument file, its known variables filled in; the
    last of repeated ones.
    """
    script = read_script("\n".join(split_files(text)[0]))
    return Options(script.options, variables=script.variables, uncomputed=script.uncomputed)


def refuse_other_problem(said: Mapping[str, tuple[object, object]], says: str = " = ") -> None:
    """Raise `InvalidInput` for the first setting, key -> (its value, the problem's), of another
    problem.
    """
    for key, (found, wanted) in said.items():
        if found is not None and found != wanted:
            what = f"{key}{says}{shown(found)}: the campaign file's problem has {shown(wanted)}"
            raise InvalidInput(what, hint=OTHER_PROBLEM)


def refuse_other_default(missing: str, found: object, wanted: object) -> None:
    """Raise `InvalidInput` where the default of a missing setting belongs to another problem."""
    refuse_other_problem({missing: (found, wanted)}, says=", which means ")


def refuse_other_vocabulary(problem: Problem, key: str, found: int | None) -> None:
    """Raise `InvalidInput` for a vocabulary that, padded as the problem's is, has another number of
    rows.
    """
    multiple = problem.model.embedding.vocabulary_multiple
    if (
        found is not None
        and -(-found // multiple) * multiple != problem.model.embedding.padded_vocabulary
    ):
        refuse_other_problem({key: (found, problem.model.embedding.vocabulary)})


def recipe_of(
    problem: Problem, found: Mapping[str, Any], given: Given, *, engine: str = "torch"
) -> Recipe:
    """Return the recipe of what was found and stated, on all of the cluster's devices where neither
    says otherwise.

    `found` may hold `sharding` as a name and, where accumulation is not known, `global_batch_seqs`.
    """
    _require_recognized(given)
    choices = {key: value for key, value in found.items() if value is not None}
    for key, value in given.stated.items():
        if choices.setdefault(key, value) != value:
            raise InvalidInput(
                f"{key} = {shown(value)} was given, but the configuration says"
                f" {shown(choices[key])}"
            )
    if problem.model.mixture:
        engine = "torch"  # the one that trains them
    choices = {"engine": engine, "devices": problem.cluster.devices, **choices}
    sharding, batch = choices.pop("sharding", "none"), choices.pop("global_batch_seqs", None)
    for key in ("micro_batch_seqs", "accumulation"):
        if key not in choices and not (key == "accumulation" and batch is not None):
            raise InvalidInput(
                f"the configuration does not say {key}", hint=f"say it: --set {key}=N"
            )
    frame = Recipe(**{"accumulation": 1, **choices})
    if batch is not None:
        choices["accumulation"] = _accumulation(frame, batch, choices.get("accumulation"))
    if not isinstance(sharding, Sharding):
        sharding = Sharding.named(sharding, frame.copies)
    return Recipe(**{**choices, "sharding": sharding})


def _require_recognized(given: Given) -> None:
    """Raise `InvalidInput` where no setting was recognized, or one is not known."""
    settings = given.settings()
    if not any(is_read for _, is_read in settings.values()):
        raise InvalidInput(
            "no setting of this tool was recognized in the file",
            hint="check --from, and that the file is a configuration or launch script of that tool",
        )
    for key, (value, _) in settings.items():
        if isinstance(value, Undecided) and not is_harmless(key):
            raise value.refuse(key)


def _accumulation(frame: Recipe, batch: int, said: int | None) -> int:
    found, rest = divmod(batch, frame.micro_batch_seqs * frame.data_parallel)
    product = f"{frame.micro_batch_seqs} x {frame.data_parallel} replicas"
    if rest:
        raise bad_value(
            "global batch", batch, f"a multiple of the micro-batch of all replicas, {product}"
        )
    if said not in (None, found):
        raise bad_value("accumulation", said, f"{found}: global batch {batch} over {product}")
    return found
