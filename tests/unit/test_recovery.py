"""Outcomes in run folders that a store has lost, and their way back."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from frontrunner import api
from frontrunner.results.outcome import FailureKind
from frontrunner.results.ranking import best
from frontrunner.results.records import Campaign
from frontrunner.results.states import CampaignState
from frontrunner.results.store import Store, open_store
from frontrunner.search.campaign_setup import change_budget, stored_spec
from frontrunner.search.recovery import outcomes_not_stored, recover
from frontrunner.search.spec import CampaignSpec
from frontrunner.spaces.errors import InvalidInput, NameTaken
from support.drivers import LEGAL, Campaigns, failure


@pytest.fixture
def finished(campaigns: Campaigns, scripted: Any) -> tuple[Campaign, CampaignSpec]:
    """A campaign with a trial that crashed once and one that failed for good."""
    first: dict[str, list[Any]] = {}

    def script(recipe: Any, attempt: int) -> Any:
        place = len(first.setdefault(repr(recipe), [])) or len(first)
        first[repr(recipe)].append(attempt)
        if place == 1 and attempt == 1:
            return failure(FailureKind.CRASHED)
        return failure(FailureKind.NOT_FINITE) if len(first) == 2 else None

    scripted(script)
    record, spec = campaigns.create("scripted", search={"strategy": "exhaustive"})
    campaigns.driver(record, spec).run()
    return campaigns.store.campaign(record.name), spec


def told(store: Store, campaign: str) -> list[object]:
    """What a store knows of a campaign's trials, without its own ids."""
    record = store.campaign(campaign)
    return [
        record.state,
        record.outcomes,
        pytest.approx(record.node_seconds_spent),
        [(trial.number, trial.recipe_id, trial.state) for trial in store.trials(record.id)],
        store.final_outcomes(record.id),
        [(row.rank, row.recipe_id, row.standing) for row in best(store, record, top=None)],
    ]


def test_recover_makes_a_lost_store_again(
    tmp_path: Path, campaigns: Campaigns, finished: tuple[Campaign, CampaignSpec]
) -> None:
    record, spec = finished
    (found,) = api.recover_store(spec.run_folder.parent, store=str(tmp_path / "new.db"))
    assert (found.campaign, found.is_new) == (record.name, True)
    assert (found.recovered, found.known) == (LEGAL + 1, 0)
    with open_store(str(tmp_path / "new.db")) as store:
        assert told(store, record.name)[1:] == told(campaigns.store, record.name)[1:]
        assert store.campaign(record.name).state is CampaignState.STOPPED
        (again,) = recover(store, spec.run_folder)
        assert (again.is_new, again.recovered, again.known) == (False, 0, LEGAL + 1)
    assert api.check_store(str(tmp_path / "new.db"), run_folders=True).is_sound


def test_recover_adds_what_a_store_has_lost(tmp_path: Path, campaigns: Campaigns) -> None:
    """As a store that was replaced by a backup, or whose log was cut."""
    record, spec = campaigns.create(budget={"probes": 4})
    campaigns.driver(record, spec).run()
    earlier = str(api.backup_store(tmp_path / "earlier.db", store=campaigns.store.url))
    change_budget(campaigns.store, campaigns.store.campaign(record.name), {"probes": LEGAL})
    campaigns.driver(record, stored_spec(campaigns.store.campaign(record.name))).run()
    (lacking,) = api.check_store(earlier, run_folders=True).findings
    assert (lacking.count, lacking.is_fault) == (LEGAL - 4, True)
    (found,) = api.recover_store(spec.run_folder, store=earlier)
    assert (found.recovered, found.known, found.unreadable) == (LEGAL - 4, 4, ())
    assert api.check_store(earlier, run_folders=True).is_sound
    with open_store(earlier) as store:
        assert told(store, record.name) == told(campaigns.store, record.name)
        assert store.events(1)[-1].kind == "recovered"


def test_recover_leaves_an_attempt_that_resume_collects(campaigns: Campaigns) -> None:
    record, spec = campaigns.create()
    campaigns.stopped_after_a_probe(record, spec)
    store = campaigns.store
    (trial,) = (one for one in store.trials(record.id))
    writer = store.drive(store.acquire_lease(record.id, host="h", pid=1))
    folder = spec.run_folder / "00001.2"
    shutil.copytree(spec.run_folder / "00001.1", folder)
    change(folder / "outcome.json", lambda table: table | {"run_folder": str(folder)})
    writer.start_attempt(writer.repeat(trial), run_folder=str(folder))
    assert outcomes_not_stored(store) is None
    another = shutil.copytree(folder, spec.run_folder / "00001.3")
    for name in ("outcome.json", "attempt.json"):
        change(another / name, lambda table: table | {"run_folder": str(another)})
    (found,) = recover(store, spec.run_folder)
    assert (found.recovered, found.known, found.left_to_resume) == (0, 1, 2)


def test_campaigns_of_two_stores_may_share_a_run_folder(
    tmp_path: Path, campaigns: Campaigns
) -> None:
    record, spec = campaigns.create(budget={"probes": 2})
    campaigns.driver(record, spec).run()
    with open_store(str(tmp_path / "other.db")) as other:
        beside = Campaigns(other, campaigns.folder)
        theirs, spec_there = beside.create(budget={"probes": 3})
        beside.driver(theirs, spec_there).run()
        assert spec_there.run_folder == spec.run_folder
        assert outcomes_not_stored(other) is None
    assert outcomes_not_stored(campaigns.store) is None
    new = str(tmp_path / "new.db")
    with pytest.raises(NameTaken, match="describes another campaign"):
        api.recover_store(spec.run_folder, store=new)
    found = [
        api.recover_store(path, store=str(tmp_path / f"{place}.db"))
        for place, path in enumerate(sorted(spec.run_folder.glob("campaign-*.json")))
    ]
    assert [one.recovered for (one,) in found] == [2, 3]


def test_recover_leaves_what_is_not_the_campaign_s(
    tmp_path: Path, finished: tuple[Campaign, CampaignSpec]
) -> None:
    _, spec = finished
    folders = sorted(path.parent for path in spec.run_folder.glob("*/outcome.json"))
    (folders[0] / "attempt.json").unlink()
    (folders[1] / "outcome.json").write_text("{")
    change(folders[2] / "attempt.json", lambda table: table | {"recipe_json": "{}"})
    (found,) = api.recover_store(spec.run_folder, store=str(tmp_path / "new.db"))
    assert found.recovered == len(folders) - 3
    assert found.unreadable == tuple(folder.resolve() for folder in folders[:3])


def test_recover_refuses_another_campaign_and_a_folder_without_any(
    tmp_path: Path, campaigns: Campaigns, finished: tuple[Campaign, CampaignSpec]
) -> None:
    record, spec = finished
    with pytest.raises(InvalidInput, match="expected the run folder of a campaign"):
        api.recover_store(tmp_path / "nothing", store=str(tmp_path / "new.db"))
    assert not (tmp_path / "new.db").exists()
    (described,) = spec.run_folder.glob("campaign-*.json")
    change(described, lambda table: table | {"created_at": "2026-01-01T00:00:00+00:00"})
    before = told(campaigns.store, record.name)
    with pytest.raises(NameTaken, match=f"describes another campaign {record.name}"):
        recover(campaigns.store, spec.run_folder)
    change(described, lambda table: table | {"created_at": "then"})
    with pytest.raises(InvalidInput, match="is damaged"):
        recover(campaigns.store, spec.run_folder)
    assert told(campaigns.store, record.name) == before


def change(path: Path, changed: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    path.write_text(json.dumps(changed(json.loads(path.read_text()))))
