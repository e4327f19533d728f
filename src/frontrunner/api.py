"""Python API of campaigns and stores: run, query (by the methods of `frontrunner.store.LocalStore`)
and maintain them.

`store` is a URL or path (None: $FRONTRUNNER_STORE, else `frontrunner.db`). `campaign` is a name;
None means the newest, but one that ended without an outcome, as it never got nodes, only where
there is no other.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from frontrunner.config.campaign import (
    SECTIONS,
    CampaignFile,
    StoreSettings,
    campaign_of,
    read_campaign_file,
)
from frontrunner.config.settings import run_root, store_url
from frontrunner.config.toml_file import read_toml, value_of
from frontrunner.evaluators.programs.log_sample import LogSample, read_sample
from frontrunner.recipe_actions import names_a_file, recipe_of
from frontrunner.results import archives, check, database, lease, pruning, schema, transfer
from frontrunner.results.check import Check
from frontrunner.results.pruning import Prunable
from frontrunner.results.records import Campaign
from frontrunner.results.store import Store, open_store
from frontrunner.results.transfer import Copied
from frontrunner.search import campaign_setup as setup
from frontrunner.search import recovery
from frontrunner.search.driver import Conclusion, OnDriver, run_campaign
from frontrunner.search.listener import Listener
from frontrunner.search.recovery import Recovered
from frontrunner.search.spec import CampaignSpec
from frontrunner.spaces.errors import (
    FrontrunnerError,
    InvalidInput,
    NothingLegal,
    bad_value,
    require_campaign_name,
)
from frontrunner.spaces.space import Survey
from frontrunner.store import LocalStore, as_function, opened
from frontrunner.views.live import notebook_listener


def survey(campaign_file: str | Path | Mapping[str, Any]) -> Survey:
    """Every point of a campaign file's space: the legal recipes, and why the others are not."""
    return campaign_of(campaign_file).spec.survey()


def check_log(
    campaign: str | Path | Mapping[str, Any] | CampaignFile, log: str | Path
) -> LogSample:
    """Return what a campaign with `evaluator = "command"` would read from a log; nothing is run.

    Raises `NotFound` for a missing log, and `InvalidInput` where no line of it is recognized as a
    finished step.
    """
    spec = campaign_of(campaign).spec
    if not spec.evaluator_kind.has_section:
        raise bad_value("evaluator", spec.evaluator, '"command", whose probes read a log')
    return read_sample(spec.command, Path(log))


def launch(
    campaign: str | Path | Mapping[str, Any] | CampaignSpec | CampaignFile,
    *,
    store: str | None = None,
    name: str | None = None,
    or_resume: bool = False,
    listener: Listener | None = None,
    on_driver: OnDriver | None = None,
) -> Conclusion:
    """Run a new campaign, a file or its sections, to its end; one that cannot be used leaves
    nothing behind.

    `or_resume` goes on with the store's campaign of this name, if it has one.
    """
    if isinstance(campaign, CampaignSpec):
        file = CampaignFile(spec=campaign, store=StoreSettings(), named=True)
    else:
        file = campaign_of(campaign)
    spec = file.spec if name is None else replace(file.spec, name=name)
    require_campaign_name("name", spec.name)
    surveyed = setup.runnable(spec)
    url = store_url(store, from_file=file.store.url)
    path = None if file.path is None else str(file.path)
    spec = replace(spec, run_root=str(run_root(url, from_file=file.store.run_folder)), file=path)
    spec = replace(spec, changes=file.changes)
    listener = listener or notebook_listener()
    with opened(url, create=True) as found:
        if or_resume and any(one.name == spec.name for one in found.campaigns()):
            return _go_on(found, found.campaign(spec.name), listener=listener, on_driver=on_driver)
        if name is None and not file.named:
            spec = replace(spec, name=setup.free_name(found, spec.name))
        record = setup.create(found, spec, len(surveyed.recipes))
        return run_campaign(
            found, record, spec, survey=surveyed, listener=listener, on_driver=on_driver
        )


def resume(
    campaign: str | None = None,
    *,
    store: str | None = None,
    take_over: bool = False,
    budget: Mapping[str, float] | None = None,
    listener: Listener | None = None,
    on_driver: OnDriver | None = None,
) -> Conclusion:
    """Go on with a campaign (None: the one created last) wherever it was left.

    `budget` replaces limits of its budget: `probes`, `minutes`, `node_hours` and `cost`.
    """
    listener = listener or notebook_listener()
    with open_store(store_url(store), create=False) as found:
        record = _last_created(found, campaign)
        return _go_on(
            found, record, budget, take_over=take_over, listener=listener, on_driver=on_driver
        )


def _go_on(
    found: Store, record: Campaign, budget: Mapping[str, float] | None = None, **hooks: Any
) -> Conclusion:
    setup.refuse_imported_campaign(record)
    if budget:
        setup.change_budget(found, record, budget)
        record = found.campaign(record.name)
    spec = setup.stored_spec(record)
    surveyed = spec.survey()
    setup.prepare(spec, surveyed, needs_nodes=not setup.is_over(found, record, spec))
    return run_campaign(found, record, spec, survey=surveyed, **hooks)


def measure(  # noqa: PLR0913 - what, where, and how it is watched
    recipe: str | None = None,
    *,
    confirm: int | None = None,
    repeats: int = 1,
    campaign: str | None = None,
    store: str | None = None,
    listener: Listener | None = None,
    on_driver: OnDriver | None = None,
) -> Conclusion:
    """Measure a recipe, by its id or file, or the `confirm` best once more in their campaign (None:
    the newest).

    The budget does not limit it, and the campaign keeps its state. Its `unmade` counts the
    measurements that were not made.
    """
    if (recipe is None) == (confirm is None):
        raise InvalidInput(
            "expected a RECIPE or --confirm N", hint="--confirm 5 measures the 5 best again"
        )
    for name, count in (("--confirm", confirm), ("--repeats", repeats)):
        if count is not None and count < 1:
            raise bad_value(name, count, "a whole number above 0")
    local, listener = LocalStore(store), listener or notebook_listener()
    if campaign is None and recipe is not None and not names_a_file(recipe):
        campaign = local.show(recipe).appearances[0].campaign.name
    with open_store(store_url(store), create=False) as found:
        record = found.campaign(campaign)
        setup.refuse_imported_campaign(record)
        spec = setup.stored_spec(record)
        if spec.evaluator_kind.looks_up:
            what = (
                f"campaign {record.name} looks recipes up in a table: measuring one again finds the"
                " same"
            )
            raise InvalidInput(what, hint="name a campaign that probes by --campaign NAME")
        chosen = [recipe_of(spec, recipe)] if recipe is not None else []
        if confirm is not None:
            chosen = [ranked.recipe for ranked in local.best(record.name, top=confirm)]
            if not chosen:
                raise NothingLegal(f"campaign {record.name} has no measured recipe to confirm")
        surveyed = spec.survey()
        setup.prepare(spec, surveyed)
        hooks: Any = {"survey": surveyed, "listener": listener, "on_driver": on_driver}
        return run_campaign(found, record, spec, **hooks, asked=chosen * repeats)


def _last_created(store: Store, campaign: str | None) -> Campaign:
    return store.campaign(campaign or next((one.name for one in store.campaigns()), None))


def changed_since_launch(campaign: str | None = None, *, store: str | None = None) -> str | None:
    """Return what the file of a launch (None: of the last) now has that its campaign has not; None
    where unknown.
    """
    with opened(store) as found:
        record = _last_created(found, campaign)
        spec = setup.stored_spec(record)
        if spec.file is None or not Path(spec.file).is_file():
            return None
        try:
            table = read_toml(Path(spec.file))
            changes = {
                key: text
                for key, (was, text) in spec.changes.items()
                if value_of(table, key) == was
            }
            file = read_campaign_file(Path(spec.file), changes)
        except FrontrunnerError as error:
            return f"{error.message}; campaign {record.name} goes on as it is stored"
        if file.spec.budget == setup.launched_budget(
            found, record
        ):  # which a command has changed since
            file = replace(file, spec=replace(file.spec, budget=spec.budget))
        now, then = _by_section(file.spec), _by_section(spec)
        changed = ", ".join(
            key for key in (*SECTIONS, "evaluator") if key in now and now[key] != then[key]
        )
        name = f" --name {setup.free_name(found, file.spec.name)}" if file.named else ""
    sets = "".join(f" --set {shlex.quote(f'{key}={text}')}" for key, text in changes.items())
    wanted = {
        key: getattr(file.spec.budget, key) for key in ("probes", "minutes", "node_hours", "cost")
    }
    raised = {
        key: value
        for key, value in wanted.items()
        if value not in (None, getattr(spec.budget, key))
    }
    way = (
        "to use the file, and the results that still hold: frontrunner launch"
        f" {shlex.quote(spec.file)}{sets}{name}"
    )
    if changed == "budget" and raised:
        options = (f"--{key.replace('_', '-')} {value:g}" for key, value in raised.items())
        way = f"to use it: frontrunner resume {record.name} {' '.join(options)}"
    what = (
        f"{spec.file} differs ({changed}) from campaign {record.name}, which goes on as it is"
        " stored"
    )
    return changed and f"{what}; {way}"


def _by_section(spec: CampaignSpec) -> dict[str, object]:
    problem = {one.name: getattr(spec.problem, one.name) for one in fields(spec.problem)}
    sections = {key: problem.pop(key) for key in ("model", "cluster", "software")}
    return {**vars(spec), **sections, "problem": problem}


best = as_function(LocalStore.best)
campaigns = as_function(LocalStore.campaigns)
change_budget = as_function(LocalStore.change_budget)
dataframe = as_function(LocalStore.dataframe)
delete = as_function(LocalStore.delete)
explain = as_function(LocalStore.explain)
export = as_function(LocalStore.export)
failures = as_function(LocalStore.failures)
history = as_function(LocalStore.history)
front = as_function(LocalStore.front)
pareto = as_function(LocalStore.pareto)
plot = as_function(LocalStore.plot)
rename = as_function(LocalStore.rename)
label = as_function(LocalStore.label)
report = as_function(LocalStore.report)
running = as_function(LocalStore.running)
show = as_function(LocalStore.show)
status = as_function(LocalStore.status)
step = as_function(LocalStore.step)


@dataclass(frozen=True, kw_only=True)
class Upgraded:
    """A store's revision before and after, and the backup that was made first; None where nothing
    was to be done.
    """

    store: str
    before: str
    now: str
    backup: Path | None


def check_store(store: str | None = None, *, run_folders: bool = False) -> Check:
    """Check the store: the database's own checks, every row read, and everything recomputed that
    can be.

    With `run_folders` also whether it has every outcome that lies in its campaigns' run folders.
    """
    with opened(store) as found:
        with found.database.read() as connection:
            checked = check.check(connection, store=found.url)
        if not run_folders:
            return checked
        lacking = recovery.outcomes_not_stored(found)
        findings = checked.findings if lacking is None else (*checked.findings, lacking)
        return replace(checked, rules=checked.rules + 1, findings=findings)


def recover_store(run_folder: str | Path, *, store: str | None = None) -> list[Recovered]:
    """Read the outcomes in a campaign's run folder, or in the folder of several campaigns' ones,
    back into the store, which is made if there is none. Nothing that it has is changed.

    Raises `InvalidInput` where no campaign is described there, `NameTaken` where the store has
    another campaign of this name, and `AlreadyDriven` where a driver holds it.
    """
    folder = Path(run_folder)
    recovery.require_described(folder)
    with opened(store, create=True) as found:
        return recovery.recover(found, folder)


def backup_store(file: str | Path | None = None, *, store: str | None = None) -> Path:
    """Write a backup of the store to a new SQLite file, which is a store; drivers may keep
    running.
    """
    with opened(store) as found:
        return transfer.backup(found, None if file is None else Path(file))


def upgrade_store(store: str | None = None) -> Upgraded:
    """Upgrade a store of an earlier version, after a backup next to it; refused while a driver
    holds a campaign.
    """
    with opened(store) as found:
        with found.database.read() as connection:
            before = database.revision_of(connection)
            if before >= schema.REVISION:
                return Upgraded(store=found.url, before=before, now=before, backup=None)
            lease.refuse_driven(found.database, connection)
        made = transfer.backup(found, None)
    open_store(store_url(store), create=False).close()
    return Upgraded(store=found.url, before=before, now=schema.REVISION, backup=made)


def copy_store(
    to: str | Path,
    *,
    campaign: str | None = None,
    name: str | None = None,
    store: str | None = None,
) -> Copied:
    """Copy every campaign of the store into a new store, or one `campaign` into any other store.

    There the campaign keeps its name, or is called `name`. A copy that fails leaves nothing behind.
    """
    if campaign is None and name is not None:
        raise bad_value("--name", name, "--campaign with it: the name of one campaign in the copy")
    with opened(store) as source:
        if campaign is None:
            return transfer.copy(source, str(to))
        return transfer.copy_campaign(source, campaign, str(to), name=name)


def import_archive(
    file: str | Path, *, name: str | None = None, store: str | None = None
) -> Copied:
    """Add the campaign of an archive, which earlier versions wrote, to the store, as `name` or
    under its own; a damaged file leaves nothing behind.
    """
    return archives.import_archive(Path(file), store_url(store), name=name)


def prunable(campaign: str | None = None, *, store: str | None = None) -> tuple[Prunable, ...]:
    """Return the run folders of finished campaigns, which `prune_store` would remove."""
    with opened(store) as found:
        return pruning.prunable(found, campaign)


def prune_store(campaign: str | None = None, *, store: str | None = None) -> tuple[Prunable, ...]:
    """Remove the run folders of finished campaigns; every outcome, and the end of every log, stays
    in the store.
    """
    found = prunable(campaign, store=store)
    pruning.prune(found)
    return found
