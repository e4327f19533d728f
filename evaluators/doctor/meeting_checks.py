"""A meeting of ranks as checks."""

from __future__ import annotations

from collections.abc import Iterator

from frontrunner.evaluators.doctor.checks import Check, Status
from frontrunner.evaluators.doctor.findings import Laggard, differences, laggards, wrong_sums
from frontrunner.evaluators.doctor.meeting import Meeting

SECTION = "ranks"


def meeting_checks(meeting: Meeting) -> tuple[Check, ...]:
    """Whether all came and added up rightly, and who lags or differs."""
    if meeting.fault is not None:
        found, remedy = meeting.fault.found, meeting.fault.remedy
        return (Check(section=SECTION, name="all-reduce", status=Status.PROBLEM, found=found, remedy=remedy),)
    return (*_sums(meeting), *_lags(meeting), *_differences(meeting))


def _sums(meeting: Meeting) -> Iterator[Check]:
    hosts = len({told.host for told in meeting.arrivals.values()})
    where = "" if hosts == 1 else f" on {hosts} hosts"
    wrong = wrong_sums(meeting.reports)
    if wrong:
        named = ", ".join(f"{rank} ({meeting.arrivals[rank].host})" for rank in wrong)
        found = f"wrong sums on ranks {named}"
        remedy = "train nothing here: try without GPU-direct (NCCL_NET_GDR_LEVEL=LOC), then tell the administrator"
        yield Check(section=SECTION, name="all-reduce", status=Status.PROBLEM, found=found, remedy=remedy)
    else:
        found = f"{meeting.ranks} ranks{where}, {meeting.device}: all came, all sums are right"
        yield Check(section=SECTION, name="all-reduce", status=Status.OK, found=found)


def _lags(meeting: Meeting) -> Iterator[Check]:
    late = laggards(meeting.reports, meeting.arrivals, device=meeting.device)
    for each in late:
        found = f"{_who(each)} lags in {each.what}: {each.times_median:.1f} times the median"
        remedy = "look there for other work, heat, a slow device or link; leave that node out if it stays so"
        yield Check(section=SECTION, name="laggard", status=Status.WARNING, found=found, remedy=remedy)
    if not late and meeting.ranks > 1:
        yield Check(section=SECTION, name="pace", status=Status.OK, found="no rank keeps the others waiting")


def _who(each: Laggard) -> str:
    if each.is_node:
        return f"node {each.host} (ranks {', '.join(map(str, each.ranks))})"
    return f"rank {each.ranks[0]} on {each.host}"


def _differences(meeting: Meeting) -> Iterator[Check]:
    for each in differences(meeting.arrivals, meeting.seen_wall_s):
        yield Check(section=SECTION, name="nodes", status=Status.WARNING, found=each.found, remedy=each.remedy)
