"""Python API of campaigns: run them, and query a store by the methods of `frontrunner.store.LocalStore`.

`store` is a URL or path (None: $FRONTRUNNER_STORE, else `frontrunner.db`), `campaign` a name (None: the newest).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from frontrunner.config.campaign import CampaignFile, StoreSettings, read_campaign_file
from frontrunner.config.settings import run_root, store_url
from frontrunner.search.campaign_setup import (
    create,
    free_name,
    prepare,
    refuse_imported_campaign,
    runnable,
    stored_spec,
)
from frontrunner.search.spec import CampaignSpec
from frontrunner.spaces.errors import require_campaign_name
from frontrunner.spaces.space import Survey
from frontrunner.store import LocalStore, as_function, opened

if TYPE_CHECKING:
    from frontrunner.search.driver import Conclusion, OnDriver
    from frontrunner.search.listener import Listener
    from frontrunner.search.spec import CampaignSpec


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
    """Run a new campaign, given as a file or its content, to its end; one that cannot be used leaves nothing behind."""
    from frontrunner.search.driver import run_campaign

    if isinstance(campaign, CampaignSpec):
        file = CampaignFile(spec=campaign, store=StoreSettings(), named=True)
    else:
        file = campaign if isinstance(campaign, CampaignFile) else read_campaign_file(Path(campaign))
    spec = file.spec if name is None else replace(file.spec, name=name)
    require_campaign_name("name", spec.name)
    surveyed = runnable(spec)
    url = store_url(store, from_file=file.store.url)
    spec = replace(spec, run_root=str(run_root(url, from_file=file.store.run_folder)))
    with opened(url, create=True) as found:
        if name is None and not file.named:
            spec = replace(spec, name=free_name(found, spec.name))
        if spec.search.probe_nodes is not None:
            from frontrunner.search.two_stage import create_pair, run_pair

            return run_pair(found, create_pair(found, spec, surveyed), listener=listener, on_driver=on_driver)
        record = create(found, spec, len(surveyed.recipes))
        return run_campaign(found, record, spec, survey=surveyed, listener=listener, on_driver=on_driver)


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
    from frontrunner.search.driver import run_campaign

    with open_store(store_url(store), create=False) as found:
        record = found.campaign(campaign)
        refuse_imported_campaign(record)
        spec = stored_spec(record)
        if spec.confirms is not None:
            from frontrunner.search.two_stage import run_pair

            return run_pair(found, record, listener=listener, on_driver=on_driver, take_over=take_over)
        surveyed = spec.survey()
        prepare(spec, surveyed)
        return run_campaign(
            found, record, spec, survey=surveyed, listener=listener, on_driver=on_driver, take_over=take_over
        )


best = as_function(LocalStore.best)
campaigns = as_function(LocalStore.campaigns)
dataframe = as_function(LocalStore.dataframe)
explain = as_function(LocalStore.explain)
export = as_function(LocalStore.export)
failures = as_function(LocalStore.failures)
front = as_function(LocalStore.front)
pareto = as_function(LocalStore.pareto)
plot = as_function(LocalStore.plot)
predictions = as_function(LocalStore.predictions)
report = as_function(LocalStore.report)
show = as_function(LocalStore.show)
status = as_function(LocalStore.status)
