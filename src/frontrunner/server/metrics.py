"""The store's figures as Prometheus metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from frontrunner.results.active_drivers import active_drivers
from frontrunner.results.pages import campaign_page
from frontrunner.results.records import CUT_OFF
from frontrunner.results.states import CampaignState, TrialState
from frontrunner.results.store import Store

STATES = (*(state.value for state in CampaignState), CUT_OFF)
"""A campaign that is cut off counts as that only, not as running."""
MOST_CAMPAIGNS = 200
"""The newest ones only: each is a label, and Prometheus keeps a series for each label that it has ever seen."""

Samples = Iterable[tuple[Mapping[str, str], float]]


def metrics(store: Store) -> bytes:
    """Return all metrics of a store in Prometheus' text format."""
    registry = CollectorRegistry()

    def gauge(name: str, text: str, labels: tuple[str, ...], samples: Samples) -> None:
        family = Gauge(f"frontrunner_{name}", text, labels, registry=registry)
        for values, value in samples:
            (family.labels(**values) if values else family).set(value)

    campaigns = campaign_page(store, page_size=MOST_CAMPAIGNS).items
    # `figures` is a label so that simulated figures cannot be taken for measured ones in a graph.
    of = {one.name: {"campaign": one.name, "figures": one.figures} for one in campaigns}
    per_campaign = ("campaign", "figures")
    in_state = Counter(one.state_in_words for one in campaigns)
    gauge("campaigns", "Campaigns by state.", ("state",), [({"state": state}, in_state[state]) for state in STATES])
    trials = [(of[one.name] | {"state": state.value}, n) for one in campaigns for state, n in one.probes.items()]
    gauge("trials", "Trials of a campaign by state.", (*per_campaign, "state"), trials)
    queued = sum(one.probes[TrialState.QUEUED] for one in campaigns)
    gauge("queue_trials", "Trials that wait for a probe.", (), [({}, queued)])
    spent = [(of[one.name], one.node_seconds_spent) for one in campaigns]
    gauge("node_seconds", "Node-seconds spent.", per_campaign, spent)
    best = [(of[one.name], one.best_tokens_per_s) for one in campaigns if one.best_tokens_per_s is not None]
    gauge("best_tokens_per_second", "Tokens/s of the best recipe.", per_campaign, best)
    held = active_drivers(store)
    up = [({"campaign": one.campaign}, float(one.is_live)) for one in held]
    gauge("driver_up", "Whether a campaign's driver runs.", ("campaign",), up)
    ages = [({"campaign": one.campaign}, one.heartbeat_age_s) for one in held]
    gauge("driver_heartbeat_age_seconds", "Seconds since a campaign's driver last wrote.", ("campaign",), ages)
    return generate_latest(registry)
