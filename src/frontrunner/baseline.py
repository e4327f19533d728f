"""What a campaign's best recipe gains over the baseline that its file names."""

from __future__ import annotations

from dataclasses import dataclass

from frontrunner.results.ranking import RankedRecipe, best
from frontrunner.results.store import Store
from frontrunner.search.campaign_setup import stored_spec
from frontrunner.text import thousands


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """The baseline's own row of the ranking by tokens/s, and the best row."""

    own: RankedRecipe
    best: RankedRecipe

    @property
    def factor(self) -> float:
        """The best tokens/s over the baseline's."""
        return self.best.standing.tokens_per_s / self.own.standing.tokens_per_s

    def in_words(self) -> str:
        """One line: the baseline's rank and speed, and what the best makes of it."""
        speed = (
            f"baseline {self.own.recipe_id}: rank {self.own.rank}, {thousands(self.own.standing.tokens_per_s)} tokens/s"
        )
        return f"{speed}; the best is {self.factor:.3g} times as fast"


def baseline_of(store: Store, campaign: str | None) -> Baseline | None:
    """Return the campaign's baseline and its best; None where it names none, or the baseline was not measured."""
    record = store.campaign(campaign)
    named = stored_spec(record).search.baseline
    if named is None:
        return None
    ranked = best(store, record, top=None)
    own = next((row for row in ranked if row.recipe == named), None)
    return None if own is None else Baseline(own=own, best=ranked[0])
