"""The campaign file: TOML in, a validated `CampaignSpec` out, or one message that names the key.

Sections: [model] [cluster] [problem] [space] [search] [budget] [probe] [data] [dispatch] [table] [command] [store],
and at the top `name` and `evaluator`. Types come from the dataclasses of the floors; this module fills in presets and
defaults and turns every complaint into the file's own words.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from frontrunner.config.cluster_file import checked_cluster, cluster_table
from frontrunner.config.file_sections import (
    KEYS,
    SECTIONS,
    StoreSettings,
    refuse_unknown_keys,
    refuse_wrong_sections,
    section_of,
    text_at,
)
from frontrunner.config.toml_file import Table, holds, read_toml
from frontrunner.evaluators.cluster.settings import DispatchSettings
from frontrunner.evaluators.external.settings import CommandSettings
from frontrunner.evaluators.plugins import require_evaluator
from frontrunner.evaluators.probe.settings import DataSettings, ProbeSettings
from frontrunner.evaluators.tables.table_settings import TableSettings
from frontrunner.results.redaction import looks_secret
from frontrunner.search.spec import Budget, CampaignSpec, SearchSettings
from frontrunner.spaces.errors import InvalidInput, bad_value
from frontrunner.spaces.model import Model
from frontrunner.spaces.names import campaign_name_from, require_campaign_name
from frontrunner.spaces.presets import model_preset
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.space import Space


@dataclass(frozen=True, kw_only=True)
class CampaignFile:
    """A campaign file's content; `named` says whether the file itself gave the campaign its name."""

    spec: CampaignSpec
    store: StoreSettings
    named: bool


TOP_LEVEL = (*SECTIONS, "name", "evaluator")


def read_campaign_file(path: Path) -> CampaignFile:
    """Read and validate a campaign file.

    Raises `NotFound` where there is no such file, and `InvalidInput` naming the key, its value and what was
    expected for anything else that is wrong with it.
    """
    table = read_toml(path, "campaign file", "examples/laptop.toml is one to begin with")
    try:
        return parse_campaign(table, default_name=campaign_name_from(path.stem), base=path.parent)
    except InvalidInput as error:
        raise InvalidInput(f"{path}: {error.message}", hint=error.hint) from None


def parse_campaign(table: Table, *, default_name: str, base: Path) -> CampaignFile:
    """A campaign from its parsed TOML; relative data paths are taken from `base`."""
    refuse_wrong_sections(table, known=TOP_LEVEL)
    name, evaluator = text_at(table, "name", default_name), text_at(table, "evaluator", "probe")
    require_campaign_name("name", name)
    require_evaluator(evaluator)
    refuse_unknown_keys("space", table["space"], KEYS["space"])
    space = {key: value if isinstance(value, list) else [value] for key, value in table["space"].items()}
    spec = CampaignSpec(
        name=name,
        problem=_problem(table, base),
        space=section_of(Space, "space", space),
        search=_search(table.get("search", {}), base),
        budget=section_of(Budget, "budget", table.get("budget", {})),
        probe=section_of(ProbeSettings, "probe", table.get("probe", {})),
        data=_data(table.get("data", {}), base),
        dispatch=section_of(DispatchSettings, "dispatch", table.get("dispatch", {})),
        table=_measured_table(table.get("table", {}), base),
        command=_command(table.get("command", {}), base),
        evaluator=evaluator,
    )
    return CampaignFile(
        spec=spec, store=section_of(StoreSettings, "store", table.get("store", {})), named="name" in table
    )


def _data(table: Table, base: Path) -> DataSettings:
    data = section_of(DataSettings, "data", table)
    if data.path is None:
        return data
    path = base / data.path
    if not holds(path.is_file):
        raise bad_value("data.path", data.path, f"a file, by its path from {base.absolute()}")
    return DataSettings(path=str(path.resolve()))


def _search(table: Table, base: Path) -> SearchSettings:
    """The section [search], whose baseline is a recipe file."""
    name = table.get("baseline")
    if name is None:
        return section_of(SearchSettings, "search", table)
    if not isinstance(name, str) or not name:
        raise bad_value("search.baseline", name, "the path of a recipe file")
    from frontrunner.config.recipe_file import read

    rest = {key: value for key, value in table.items() if key != "baseline"}
    return replace(section_of(SearchSettings, "search", rest), baseline=read(base / name).recipe)


def _measured_table(table: Table, base: Path) -> TableSettings:
    found = section_of(TableSettings, "table", table)
    if found.path is None:
        return found
    path = base / found.path
    if not holds(path.is_file):
        raise bad_value("table.path", found.path, f"a file, by its path from {base.absolute()}")
    return replace(found, path=str(path.resolve()))


def _command(table: Table, base: Path) -> CommandSettings:
    found = section_of(CommandSettings, "command", table)
    for name, value in found.environment.items():
        if looks_secret(name, value):  # the store keeps the campaign file's content
            raise InvalidInput(
                f"command.environment.{name} looks like a secret, which would be stored: expected other variables",
                hint=f'set it where the driver is started, and pass_environment = ["{name}", ...] hands it on',
            )
    folder = base / (found.folder or "")
    if found.folder is not None and not holds(folder.is_dir):
        raise bad_value("command.folder", found.folder, f"a folder, by its path from {base.absolute()}")
    return replace(found, folder=str(folder.resolve())) if found.arguments else found


def _problem(table: Table, base: Path) -> Problem:
    problem = dict(table["problem"])
    refuse_unknown_keys("problem", problem, KEYS["problem"])
    if "global_batch" in problem:
        problem["global_batch"] = _global_batch(problem["global_batch"])
    model, cluster = model_table(table["model"]), cluster_table(table["cluster"], base)
    section_of(Model, "model", model)  # first on their own, so that a complaint names their section
    checked_cluster(cluster)
    return section_of(Problem, "problem", problem | {"model": model, "cluster": cluster})


def _global_batch(given: object) -> Table:
    """A number of sequences, or [minimum, maximum], as the fields of `GlobalBatch`."""
    ends = given if isinstance(given, list) and len(given) == 2 else [given, given]
    if not all(isinstance(end, int) and not isinstance(end, bool) for end in ends):
        raise bad_value("problem.global_batch", given, "a whole number of sequences, or [minimum, maximum]")
    return {"minimum": ends[0], "maximum": ends[1]}


def model_table(given: Table) -> Table:
    """All fields of a model, as a section [model] gives them: those of its preset, and what follows from others."""
    table = dict(given)
    preset = model_preset(table.pop("preset")) if "preset" in table else {"name": "custom"}
    merged = preset | table
    if isinstance(merged.get("heads"), int):
        merged.setdefault("kv_heads", merged["heads"])
    if isinstance(merged.get("hidden"), int):
        merged.setdefault("ffn_hidden", 4 * merged["hidden"])
    return merged
