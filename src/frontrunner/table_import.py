"""Import of measured tables as finished campaigns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from frontrunner.config.campaign import named_cluster
from frontrunner.config.settings import shown_store, store_url
from frontrunner.evaluators.tables.reading import Reading, Repeats, TableForm, read
from frontrunner.evaluators.tables.rows import TableProblem
from frontrunner.evaluators.tables.schema import LeftOut
from frontrunner.results.imported import ImportedCampaign, ImportedOutcome, add_imported
from frontrunner.results.outcome import Failure
from frontrunner.results.records import IMPORTED
from frontrunner.search.campaign_setup import problem_summary
from frontrunner.search.spec import CampaignSpec
from frontrunner.spaces.cluster import Cluster
from frontrunner.spaces.document import recipe_id
from frontrunner.spaces.errors import InvalidInput, campaign_name_from, require_campaign_name
from frontrunner.spaces.recipe import DIMENSIONS, Recipe
from frontrunner.spaces.space import Space
from frontrunner.spaces.validation import dump_json
from frontrunner.store import opened

__all__ = ["Import", "ImportedProblem", "TableForm", "import_table"]


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
    if name is not None:
        require_campaign_name("--name", name)
    machine = named_cluster(cluster) if isinstance(cluster, str) else cluster
    try:
        found = read(Path(table), form or TableForm(), machine)
    except InvalidInput as error:
        named = error.message if str(table) in error.message else f"{table}: {error.message}"
        raise InvalidInput(named, hint=error.hint) from None
    campaigns = [_campaign(problem, found, name) for problem in found.problems]
    if not campaigns:
        reasons = "; ".join(f"{left.rows} x {left.reason}" for left in found.left_out[:4])
        raise InvalidInput(f"none of the {found.rows} rows of {found.file} can be used: {reasons}"[:350])
    new = _added(found, campaigns, store_url(store), preview=preview)
    return Import(
        file=found.file,
        store=shown_store(store_url(store)),
        is_preview=preview,
        rows=found.rows,
        known_rows=sum(len(one.outcomes) for one in campaigns) - sum(len(one.outcomes) for one in new),
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


def _added(
    found: Reading, campaigns: Sequence[ImportedCampaign], store: str, *, preview: bool
) -> Sequence[ImportedCampaign]:
    if preview and "://" not in store and not Path(store).exists():
        return campaigns
    about: dict[str, str | int] = {"file": found.file, "sha256": found.sha256, "rows": found.rows}
    about |= {f"left out: {left.reason}": left.rows for left in found.left_out}
    with opened(store, create=not preview) as target:
        return add_imported(target, campaigns, about=about, preview=preview)


def _campaign(table: TableProblem, found: Reading, given: str | None) -> ImportedCampaign:
    """Return a problem's campaign, with the given name or the file's, and the problem where there are several."""
    problem, recipes = table.problem, [row.recipe for row in table.rows]
    name = given or campaign_name_from(Path(found.file).stem)
    if len(found.problems) > 1:
        apart = f"{recipes[0].devices}x-s{problem.sequence_length}-b{problem.global_batch}"
        name = campaign_name_from(f"{name}-{problem.model.name}-{apart}")
    spec = CampaignSpec(name=name, problem=problem, space=_space(recipes), evaluator=IMPORTED)
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


def _space(recipes: Sequence[Recipe]) -> Space:
    """Return the space of the rows' choices."""
    found = {one.name: {one.of(recipe) for recipe in recipes} for one in DIMENSIONS.values()}
    found["schedule"].discard("none")
    return Space(**{name: tuple(sorted(values)) for name, values in found.items() if values})
