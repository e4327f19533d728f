"""The store's figures in Prometheus' text format (version 0.0.4)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache

from frontrunner.results.active_drivers import ActiveDriver, active_drivers
from frontrunner.results.pages import campaign_page
from frontrunner.results.records import CUT_OFF, CampaignSummary
from frontrunner.results.states import CampaignState, TrialState
from frontrunner.results.store import Store
from frontrunner.results.summaries import SummaryCache

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
STATES = (*(state.value for state in CampaignState), CUT_OFF)
"""A campaign that is cut off counts as that alone, not as running."""
MOST_CAMPAIGNS = 200
"""The newest ones alone: each is a label, and Prometheus keeps a series for each label that it has ever seen."""

Sample = tuple[Mapping[str, str], float]
Family = tuple[str, str, Sequence[Sample]]
"""A metric's name, what it is, and its value for each set of labels."""


def metrics(store: Store, known: SummaryCache) -> str:
    """All metrics of a store; for `known` see `frontrunner.results.summaries.summaries`."""
    campaigns = campaign_page(store, page_size=MOST_CAMPAIGNS, known=known).items
    families = [*_of_campaigns(campaigns), *_of_drivers(active_drivers(store))]
    return "".join(_family(*family) for family in families)


def _of_campaigns(campaigns: Sequence[CampaignSummary]) -> list[Family]:
    in_state = Counter(one.state_in_words for one in campaigns)
    trials = [(_of(one) | {"state": state.value}, n) for one in campaigns for state, n in one.probes.items()]
    queued = sum(one.probes[TrialState.QUEUED] for one in campaigns)
    best = [(_of(one), one.best_tokens_per_s) for one in campaigns if one.best_tokens_per_s is not None]
    spent = [(_of(one), one.node_seconds_spent) for one in campaigns]
    return [
        ("campaigns", "Campaigns by state.", [({"state": state}, in_state[state]) for state in STATES]),
        ("trials", "Trials of a campaign by state.", trials),
        ("queue_trials", "Trials that wait for a probe.", [({}, queued)]),
        ("node_seconds", "Node-seconds spent.", spent),
        ("best_tokens_per_second", "Tokens/s of the best recipe.", best),
    ]


def _of(campaign: CampaignSummary) -> dict[str, str]:
    """Which campaign, and whether its figures were measured: a simulated one must not be taken for it in a graph."""
    return {"campaign": campaign.name, "figures": campaign.figures}


def _of_drivers(held: Sequence[ActiveDriver]) -> list[Family]:
    ages: list[Sample] = [({"campaign": one.campaign}, one.heartbeat_age_s) for one in held]
    return [
        ("driver_up", "Whether a campaign's driver runs.", [({"campaign": one.campaign}, one.is_live) for one in held]),
        ("driver_heartbeat_age_seconds", "Seconds since a campaign's driver last wrote.", ages),
    ]


def _family(name: str, text: str, samples: Sequence[Sample]) -> str:
    full = f"frontrunner_{name}"
    lines = [f"# HELP {full} {text}", f"# TYPE {full} gauge"]
    lines += [f"{full}{_labels(labels)} {float(value)!r}" for labels, value in samples]
    return "\n".join(lines) + "\n"


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


@lru_cache(maxsize=1024)
def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
