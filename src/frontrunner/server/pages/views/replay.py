"""What the card of a recipe's replay shows: how far it is, how fast beside its campaign's figure, and how to go on."""

from __future__ import annotations

from dataclasses import dataclass

from frontrunner.results.explain import Explanation
from frontrunner.server.replays import Replay, Replays, ReplayState
from frontrunner.spaces.errors import NotFound

STEPS = 200
"""Offered of a replay that was never begun, and as more of one that is finished."""
WORDS = {
    ReplayState.RUNNING: "Training",
    ReplayState.FINISHED: "The last replay reached its last step",
    ReplayState.STOPPED: "The last replay was stopped",
    ReplayState.FAILED: "The last replay failed",
    ReplayState.CUT_OFF: "The last replay was cut off: its process is gone without a word",
}


@dataclass(frozen=True, kw_only=True)
class ReplayView:
    """The replay of one recipe. `replay` is None where the service has started none.

    `measured_in` is the newest campaign that measured the recipe by real training, and `measured_tokens_per_s` its
    figure; empty and None without one. A start goes on from `checkpoint_step`, which may be a checkpoint that the
    command `frontrunner replay` has left, and is 0 where there is none.
    """

    recipe_id: str
    replay: Replay | None
    measured_in: str
    measured_tokens_per_s: float | None
    can_be_replayed: bool
    checkpoint_step: int

    @property
    def is_running(self) -> bool:
        """Whether it trains now."""
        return self.replay is not None and self.replay.state is ReplayState.RUNNING

    @property
    def words(self) -> str:
        """Where it stands."""
        if self.replay is None:
            return ""
        return WORDS[self.replay.state] + (f": {self.replay.why}" if self.replay.why else "")

    @property
    def steps(self) -> int:
        """The last step to offer: that of a replay that did not reach its own, else some more."""
        if self.replay is not None and self.replay.steps > self.checkpoint_step:
            return self.replay.steps
        return self.checkpoint_step + STEPS

    @property
    def share_of_measured(self) -> float | None:
        """The replay's tokens/s over `measured_tokens_per_s`; None where either is not known."""
        speed = None if self.replay is None else self.replay.tokens_per_s
        return speed / self.measured_tokens_per_s if speed and self.measured_tokens_per_s else None


def replay_view(replays: Replays, found: Explanation) -> ReplayView:
    """The card of an explained recipe."""
    own = [row for row in found.appearances if row.standing is not None and row.campaign.figures != "imported"]
    measured = next((row for row in own if row.campaign.figures == "measured"), None)
    try:
        replay: Replay | None = replays.one(found.recipe_id)
    except NotFound:  # none was ever started
        replay = None
    return ReplayView(
        recipe_id=found.recipe_id,
        replay=replay,
        measured_in="" if measured is None else measured.campaign.name,
        measured_tokens_per_s=None if measured is None or measured.standing is None else measured.standing.tokens_per_s,
        can_be_replayed=bool(own),
        checkpoint_step=replays.checkpoint_steps(found.recipe_id).get(found.recipe_id, 0),
    )
