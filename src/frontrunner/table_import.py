"""Import of measured tables as finished campaigns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from frontrunner.config.cluster import named_cluster
from frontrunner.config.settings import shown_store, store_url
from frontrunner.search.campaign_setup import problem_summary
from frontrunner.search.spec import CampaignSpec
from frontrunner.spaces.cluster import Cluster
from frontrunner.spaces.errors import InvalidInput, campaign_name_from, require_campaign_name
from frontrunner.spaces.recipe import DIMENSIONS, Recipe
from frontrunner.spaces.space import Space
from frontrunner.spaces.validation import dump_json
from frontrunner.store import opened

if TYPE_CHECKING:
    from frontrunner.evaluators.tables.reading import Reading, Repeats
    from frontrunner.evaluators.tables.rows import TableProblem
    from frontrunner.evaluators.tables.schema import LeftOut
    from frontrunner.results.imported import ImportedCampaign


@dataclass(frozen=True, kw_only=True)
class ImportedProblem:
    """The stored rows of one problem: `rows` of `recipes`, of which `failed` rows are failures.

    `campaign` is the campaign that holds them; in a preview the name that it would get.
    """

    campaign: str
    problem: Mapping[str, object]
    rows: int
    recipes: int
    failed: int


@dataclass(frozen=True, kw_only=True)
class Import:
    """Result of an import. `known_rows` are those that the store had before; a preview writes nothing."""

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


@dataclass(frozen=True, kw_only=True)
class TableForm:
    """How a table differs from the standard form.

    `columns` maps a column of the form to the table's own name, with its unit where that differs, as
    `{"step_time_s": "iter_ms:ms"}`; `constants` are values of every row; `ignore` are columns to leave out.
    """

    columns: Mapping[str, str] = field(default_factory=dict)
    constants: Mapping[str, str] = field(default_factory=dict)
    ignore: tuple[str, ...] = ()


def import_table(
    table: str | Path,
    *,
    form: TableForm | None = None,
    cluster: str | Cluster | None = None,
    name: str | None = None,
    store: str | None = None,
    preview: bool = False,
) -> Import:
    """Read a table of measured configurations into the store, as one campaign per problem.

    Rows without hardware were measured on `cluster` (a preset, a cluster file's path, or a value). Campaigns are named
    `name`, by default after the file, with the problem where there are several. Rows that the store has are skipped.

    Raises `NotFound` and `InvalidInput` for an unusable table, or one without a usable row; nothing is written then.
    """
    from frontrunner.evaluators.tables.mapping import parse_mapping
    from frontrunner.evaluators.tables.reading import read

    if name is not None:
        require_campaign_name("--name", name)
    form = form or TableForm()
    said = parse_mapping(_pairs(form.columns), _pairs(form.constants), form.ignore)
    machine = named_cluster(cluster) if isinstance(cluster, str) else cluster
    try:
        found = read(Path(table), said, machine)
    except InvalidInput as error:
        named = error.message if str(table) in error.message else f"{table}: {error.message}"
        raise InvalidInput(named, hint=error.hint) from None
    campaigns = [_campaign(problem, found, _name(problem, found, name)) for problem in found.problems]
    if not campaigns:
        reasons = "; ".join(f"{left.rows} x {left.reason}" for left in found.left_out[:4])
        raise InvalidInput(f"none of the {found.rows} rows of {found.file} can be used: {reasons}"[:350])
    return _kept(found, campaigns, store_url(store), preview=preview)


def _pairs(table: Mapping[str, str]) -> list[str]:
    return [f"{key}={value}" for key, value in table.items()]


def _kept(found: Reading, campaigns: Sequence[ImportedCampaign], store: str, *, preview: bool) -> Import:
    new = _unknown_to(store, campaigns) if preview else _added(found, campaigns, store)
    return Import(
        file=found.file,
        store=shown_store(store),
        is_preview=preview,
        rows=found.rows,
        known_rows=sum(len(campaign.outcomes) for campaign in campaigns)
        - sum(len(campaign.outcomes) for campaign in new),
        problems=tuple(_line(campaign) for campaign in new),
        left_out=found.left_out,
        disagreeing=found.disagreeing,
    )


def _added(found: Reading, campaigns: Sequence[ImportedCampaign], store: str) -> tuple[ImportedCampaign, ...]:
    from frontrunner.results.imported import add_imported

    about: dict[str, str | int] = {"file": found.file, "sha256": found.sha256, "rows": found.rows}
    about |= {f"left out: {left.reason}": left.rows for left in found.left_out}
    with opened(store, create=True) as target:
        return add_imported(target, campaigns, about=about)


def _unknown_to(store: str, campaigns: Sequence[ImportedCampaign]) -> tuple[ImportedCampaign, ...]:
    """Return what an import would add; all of it where there is no store yet."""
    from frontrunner.results.imported import without_known

    if "://" not in store and not Path(store).exists():
        return tuple(campaigns)
    with opened(store) as target:
        return without_known(target, campaigns)


def _line(campaign: ImportedCampaign) -> ImportedProblem:
    from frontrunner.results.outcome import Failure

    return ImportedProblem(
        campaign=campaign.name,
        problem=campaign.problem_summary,
        rows=len(campaign.outcomes),
        recipes=len({row.recipe_id for row in campaign.outcomes}),
        failed=sum(isinstance(row.outcome, Failure) for row in campaign.outcomes),
    )


def _name(table: TableProblem, found: Reading, name: str | None) -> str:
    """Return the given name or the file's, with the problem where there are several."""
    base = name or campaign_name_from(Path(found.file).stem)
    if len(found.problems) == 1:
        return base
    problem, devices = table.problem, table.rows[0].recipe.devices
    apart = f"{problem.model.name}-{devices}x-s{problem.sequence_length}-b{problem.global_batch}"
    return campaign_name_from(f"{base}-{apart}")


def _campaign(table: TableProblem, found: Reading, name: str) -> ImportedCampaign:
    from frontrunner.results.imported import ImportedCampaign, ImportedOutcome
    from frontrunner.results.records import IMPORTED
    from frontrunner.spaces.document import recipe_id

    recipes = [row.recipe for row in table.rows]
    spec = CampaignSpec(name=name, problem=table.problem, space=_space(recipes), evaluator=IMPORTED)
    return ImportedCampaign(
        name=name,
        spec_json=dump_json(spec),
        problem_summary=problem_summary(spec) | {"devices": recipes[0].devices},
        outcomes=tuple(
            ImportedOutcome(
                recipe_id=recipe_id(table.problem, row.recipe),
                recipe=row.recipe,
                outcome=row.outcome,
                origin=f"{found.file} row {row.number + 1}",
            )
            for row in table.rows
        ),
    )


def _space(recipes: Sequence[Recipe]) -> Space:
    """Return the space of the rows' choices."""
    found = {one.name: {one.of(recipe) for recipe in recipes} for one in DIMENSIONS.values()}
    found["schedule"].discard("none")
    return Space(**{name: tuple(sorted(values)) for name, values in found.items() if values})
