"""A roll call as checks."""

from __future__ import annotations

from collections.abc import Iterator

from frontrunner.evaluators.diagnostics.doctor.checks import Check, Status
from frontrunner.evaluators.diagnostics.doctor.findings import Laggard, differences, laggards, wrong_sums
from frontrunner.evaluators.diagnostics.doctor.roll_call import RollCall

SECTION = "ranks"


def roll_call_checks(called: RollCall) -> tuple[Check, ...]:
    """Whether all came and added up rightly, and who lags or differs."""
    if called.fault is not None:
        found, remedy = called.fault.found, called.fault.remedy
        return (Check(section=SECTION, name="all-reduce", status=Status.PROBLEM, found=found, remedy=remedy),)
    return (*_sums(called), *_lags(called), *_differences(called))


def _sums(called: RollCall) -> Iterator[Check]:
    hosts = len({told.host for told in called.arrivals.values()})
    where = "" if hosts == 1 else f" on {hosts} hosts"
    wrong = wrong_sums(called.reports)
    if wrong:
        named = ", ".join(f"{rank} ({called.arrivals[rank].host})" for rank in wrong)
        found = f"wrong sums on ranks {named}"
        remedy = "train nothing here: try without GPU-direct (NCCL_NET_GDR_LEVEL=LOC), then tell the administrator"
        yield Check(section=SECTION, name="all-reduce", status=Status.PROBLEM, found=found, remedy=remedy)
    else:
        found = f"{called.ranks} ranks{where}, {called.device}: all came, all sums are right"
        yield Check(section=SECTION, name="all-reduce", status=Status.OK, found=found)


def _lags(called: RollCall) -> Iterator[Check]:
    late = laggards(called.reports, called.arrivals, device=called.device)
    for each in late:
        found = f"{_who(each)} lags in {each.what}: {each.times_median:.1f} times the median"
        remedy = "look there for other work, heat, a slow device or link; leave that node out if it stays so"
        yield Check(section=SECTION, name="laggard", status=Status.WARNING, found=found, remedy=remedy)
    if not late and called.ranks > 1:
        yield Check(section=SECTION, name="pace", status=Status.OK, found="no rank keeps the others waiting")


def _who(each: Laggard) -> str:
    if each.is_node:
        return f"node {each.host} (ranks {', '.join(map(str, each.ranks))})"
    return f"rank {each.ranks[0]} on {each.host}"


def _differences(called: RollCall) -> Iterator[Check]:
    for each in differences(called.arrivals, called.seen_wall_s):
        yield Check(section=SECTION, name="nodes", status=Status.WARNING, found=each.found, remedy=each.remedy)
