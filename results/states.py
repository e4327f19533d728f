"""The states of campaigns, trials and attempts, and which may follow which."""

from __future__ import annotations

from enum import StrEnum


class CampaignState(StrEnum):
    """Where one search stands. Every state but `CREATED` goes back to `RUNNING` when it is
    resumed.
    """

    CREATED = "created"  # -> running
    # -> paused | finished | failed | stopped | running (a driver died and another resumes)
    RUNNING = "running"
    PAUSED = "paused"  # -> running
    FINISHED = "finished"  # -> running (a larger budget)
    FAILED = "failed"  # -> running
    STOPPED = "stopped"  # -> running


class TrialState(StrEnum):
    """Where one recipe of a campaign stands."""

    QUEUED = "queued"  # -> running
    RUNNING = "running"  # -> measured | failed | queued (another attempt follows)
    MEASURED = "measured"  # -> queued (it is measured once more; until then its measurements rank)
    FAILED = "failed"  # -> queued (a person asks for it again)


class AttemptState(StrEnum):
    """Where one try at a probe stands."""

    RUNNING = "running"  # -> measured | failed | lost
    MEASURED = "measured"  # final
    FAILED = "failed"  # final
    LOST = "lost"  # final: the ranks vanished, which says nothing about the recipe


def may_follow(now: CampaignState, state: CampaignState) -> bool:
    """Return whether a campaign may go from one state to another."""
    ends = now is CampaignState.RUNNING and state is not CampaignState.CREATED
    return state in (now, CampaignState.RUNNING) or ends


class IllegalTransition(RuntimeError):
    """A change of state that is not listed: a fault of the caller's code, not of a person."""
