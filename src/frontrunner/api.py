"""The Python API of campaigns: one function for each command, returning what the command prints.

    import frontrunner

    conclusion = frontrunner.launch("examples/laptop.toml")
    winner = frontrunner.best(top=1)[0]
    frontrunner.replay(winner.recipe_id, steps=200)

`store` is a URL or a path everywhere; None means the environment's FRONTRUNNER_STORE, else `frontrunner.db`
in the working directory. `campaign` is a name; None means the newest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from frontrunner.config.campaign_file import CampaignFile, read_campaign_file
from frontrunner.config.file_sections import StoreSettings
from frontrunner.config.settings import run_root, store_url
from frontrunner.earlier import refuse_imported_campaign, remembered
from frontrunner.evaluators.probe.here import prepare_here
from frontrunner.search.spec import CampaignSpec
from frontrunner.spaces.names import require_campaign_name
from frontrunner.spaces.space import Survey
from frontrunner.starting import created, free_name, prepare, runnable, stored_spec

if TYPE_CHECKING:
    import pandas as pd

    from frontrunner.pairs import Hands
    from frontrunner.results.explain import Explanation
    from frontrunner.results.ranking import Ranking
    from frontrunner.results.records import Campaign, CampaignList
    from frontrunner.results.status import FailureList, Status
    from frontrunner.results.store import Store
    from frontrunner.search.conclusion import Conclusion
    from frontrunner.search.driver import Driver
    from frontrunner.search.listener import Listener

OnDriver = Callable[["Driver"], None]
"""Called with the driver before it starts, so that a signal handler may stop it."""


@contextmanager
def opened(store: str | None, *, create: bool = False, from_file: str | None = None) -> Iterator[Store]:
    """The store, closed again at the end; reading commands open it read-only."""
    from frontrunner.results.store import open_store

    with open_store(store_url(store, from_file=from_file), create=create, read_only=not create) as found:
        yield found


def survey(campaign_file: str | Path) -> Survey:
    """Every point of a campaign file's space: the legal recipes, and why the others are not."""
    spec = read_campaign_file(Path(campaign_file)).spec
    return spec.survey()


def launch(
    campaign: str | Path | CampaignSpec | CampaignFile,
    *,
    store: str | None = None,
    name: str | None = None,
    listener: Listener | None = None,
    on_driver: OnDriver | None = None,
) -> Conclusion:
    """Run a new campaign, given as a file or as its content, to its end and return how it ended.

    Raises `InvalidInput` for a campaign that cannot be used and `NothingLegal` for a space without a legal
    recipe; nothing is written then.
    """
    from frontrunner.search.driver import Driver

    file = _campaign_file(campaign)
    spec = file.spec if name is None else replace(file.spec, name=name)
    require_campaign_name("name", spec.name)
    surveyed = runnable(spec)
    url = store_url(store, from_file=file.store.url)
    spec = replace(spec, run_root=str(run_root(url, from_file=file.store.run_folder)))
    with opened(url, create=True) as found:
        if name is None and not file.named:
            spec = replace(spec, name=free_name(found, spec.name))
        if spec.search.probe_nodes is not None:
            from frontrunner.pairs import create_pair, run_pair

            return run_pair(found, create_pair(found, spec, surveyed), _hands(found, listener, on_driver))
        record = created(found, spec, len(surveyed.recipes))
        known = remembered(found, record, spec)
        driver = Driver(store=found, campaign=record, spec=spec, listener=listener, survey=surveyed, gathered=known)
        return _drive(driver, on_driver)


def _hands(found: Store, listener: Listener | None, on_driver: OnDriver | None, *, take_over: bool = False) -> Hands:
    """What a pair of campaigns needs of this module."""
    from frontrunner.pairs import Hands
    from frontrunner.search.driver import Driver
    from frontrunner.search.listener import Silent

    def drive(record: Campaign, spec: CampaignSpec) -> Conclusion:
        prepare(spec)
        known = remembered(found, record, spec)
        driver = Driver(store=found, campaign=record, spec=spec, listener=listener, gathered=known)
        return _drive(driver, on_driver, take_over=take_over)

    return Hands(drive=drive, listener=listener or Silent(), take_over=take_over)


def _campaign_file(campaign: str | Path | CampaignSpec | CampaignFile) -> CampaignFile:
    if isinstance(campaign, CampaignFile):
        return campaign
    if isinstance(campaign, CampaignSpec):
        return CampaignFile(spec=campaign, store=StoreSettings(), named=True)
    return read_campaign_file(Path(campaign))


def resume(
    campaign: str | None = None,
    *,
    store: str | None = None,
    take_over: bool = False,
    listener: Listener | None = None,
    on_driver: OnDriver | None = None,
) -> Conclusion:
    """Go on with a campaign wherever it was left, under the budget it was launched with."""
    from frontrunner.results.store import open_store
    from frontrunner.search.driver import Driver

    with open_store(store_url(store), create=False) as found:
        record = found.campaign(campaign)
        refuse_imported_campaign(record)
        spec = stored_spec(record)
        if spec.confirms is not None:
            from frontrunner.pairs import run_pair

            return run_pair(found, record, _hands(found, listener, on_driver, take_over=take_over))
        surveyed = spec.survey()
        if spec.evaluator == "probe":
            offloads = spec.space.offload if "deepspeed" in spec.space.engine else ()
            prepare_here(spec.problem, spec.dispatch, engines=spec.space.engine, offloads=offloads)
        else:
            spec.check_commands(surveyed.recipes[0])
        known = remembered(found, record, spec)
        driver = Driver(store=found, campaign=record, spec=spec, listener=listener, survey=surveyed, gathered=known)
        return _drive(driver, on_driver, take_over=take_over)


def _drive(driver: Driver, on_driver: OnDriver | None, *, take_over: bool = False) -> Conclusion:
    if on_driver is not None:
        on_driver(driver)
    return driver.run(take_over=take_over)


def campaigns(*, store: str | None = None) -> CampaignList:
    """Every campaign of the store, the newest first."""
    from frontrunner.results import records

    with opened(store) as found:
        return records.CampaignList(found.campaigns())


def status(campaign: str | None = None, *, store: str | None = None) -> Status:
    """Where a campaign stands."""
    from frontrunner.results import status as answers

    with opened(store) as found:
        return answers.status(found, campaign)


def failures(campaign: str | None = None, *, store: str | None = None) -> FailureList:
    """A campaign's failed trials, with the ends of their logs."""
    from frontrunner.results import status as answers

    with opened(store) as found:
        return answers.FailureList(answers.failures(found, campaign))


def best(
    campaign: str | None = None,
    *,
    top: int | None = 10,
    by: str = "tokens",
    max_memory_gb: float | None = None,
    store: str | None = None,
) -> Ranking:
    """A campaign's recipes, best first, by tokens, tflops, memory or step-time."""
    from frontrunner.results import ranking

    with opened(store) as found:
        return ranking.Ranking(ranking.best(found, campaign, top=top, by=by, max_memory_gb=max_memory_gb))


def pareto(campaign: str | None = None, *, store: str | None = None) -> Ranking:
    """The recipes that no other beats in both tokens/s and peak memory."""
    from frontrunner.results import ranking
    from frontrunner.results import ranking as answers

    with opened(store) as found:
        return ranking.Ranking(answers.pareto(found, campaign))


def show(recipe_id: str, *, store: str | None = None) -> Explanation:
    """Everything that the store knows of a recipe, by its id or a unique beginning of it."""
    from frontrunner.results import explain

    with opened(store) as found:
        return explain.explain(found, recipe_id)


def dataframe(campaign: str | None = None, *, store: str | None = None) -> pd.DataFrame:
    """One row a finished attempt of a campaign."""
    from frontrunner.results import frames

    with opened(store) as found:
        return frames.frame(found, campaign)
