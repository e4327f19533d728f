"""Which nodes are set aside: what attempts say of them, when that is enough, and when they are used
again.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from frontrunner.evaluators.nodes.agent import NodeReport, Step, StepFolder
from frontrunner.evaluators.nodes.attempt_nodes import attempt_nodes
from frontrunner.results.nodes import AttemptNodes, NodeLedger, set_aside_in_words
from frontrunner.results.outcome import Failure, FailureKind, Outcome, Telemetry
from frontrunner.results.records import timestamp
from support.store_contract import measurement

LOST, HUNG, CRASHED, MEMORY = (
    FailureKind.LOST,
    FailureKind.HUNG,
    FailureKind.CRASHED,
    FailureKind.OUT_OF_MEMORY,
)
BEGAN = datetime(2026, 11, 24, tzinfo=UTC)


class Noted:
    """A ledger that is told of attempts a minute apart: their nodes, of which a name with ! has
    trouble.
    """

    def __init__(self, **settings: Any) -> None:
        self.ledger = NodeLedger(**settings)
        self.minutes = 0

    @property
    def now(self) -> str:
        return timestamp(BEGAN + timedelta(minutes=self.minutes))

    def __call__(
        self, nodes: str, kind: FailureKind | None = None, trial: int | None = None
    ) -> list[str]:
        """Return the nodes that the attempt sets aside."""
        self.minutes += 1
        names = tuple(name.rstrip("!") for name in nodes.split())
        troubles = {name.rstrip("!"): "why" for name in nodes.split() if name.endswith("!")}
        tried = AttemptNodes(names=names, troubles=troubles)
        found = self.ledger.note(tried, trial=trial or self.minutes, at=self.now, kind=kind)
        return [one.node for one in found]


def test_a_node_that_lost_two_attempts_in_a_row_is_set_aside_with_its_evidence() -> None:
    noted = Noted()
    assert noted("b!", LOST) == []
    assert noted("b!", LOST) == ["b"], "though no other node was measured"
    aside = noted.ledger.aside["b"]
    assert [(one.trial, one.kind) for one in aside.troubles] == [(1, "lost"), (2, "lost")]
    assert str(aside) == (
        "node b is set aside since 2026-11-24 00:02, until a check after 2026-11-24 00:32:"
        " 2 attempts speak against it, the last: probe 2 lost at 00:02: why"
    )


def test_set_aside_in_words_names_three_nodes_and_counts_the_others() -> None:
    noted = Noted(after=1)
    for name in "abcde":
        noted(f"{name}!", LOST)
    lines = set_aside_in_words([*noted.ledger.aside.values()])
    assert [line[:6] for line in lines[:3]] == ["node a", "node b", "node c"]
    assert lines[0].endswith("00:31: probe 1 lost at 00:01: why"), "one attempt is not counted"
    assert lines[3:] == ["set aside as well: 2 more"]


def test_a_measurement_between_two_losses_clears_a_node() -> None:
    noted = Noted()
    noted("a")
    noted("b!", LOST)
    noted("b")
    assert noted("b!", LOST) == []


def test_hangs_set_no_node_aside_before_another_did_well() -> None:
    noted = Noted()
    assert [noted("b!", HUNG) for _ in range(3)] == [[]] * 3, "it may be all of them"
    assert noted("a") == ["b"]


def test_losses_that_show_no_node_set_none_aside_before_another_did_well() -> None:
    noted = Noted()
    assert [noted("a! b!", LOST) for _ in range(3)] == [[]] * 3
    assert noted("c") == ["a", "b"]


def test_a_recipe_that_several_nodes_lose_counts_once_where_one_of_them_has_measured_any() -> None:
    noted = Noted()
    noted("a")
    for _ in range(2):
        assert noted("a!", LOST, trial=7) == []
        assert noted("b!", LOST, trial=7) == []
    assert noted("b!", LOST, trial=8) == ["b"]
    alone = Noted()
    alone("a")
    assert [alone("a!", LOST, trial=7) for _ in range(2)] == [[], ["a"]]
    bad = Noted()
    assert [bad(name, LOST, trial=7) for name in ("a!", "b!", "a!")] == [[], [], ["a"]]


def test_ledger_says_which_nodes_have_lost_a_recipe_until_it_is_measured() -> None:
    noted = Noted()
    noted("a!", LOST, trial=7)
    noted("b c!", LOST, trial=7)
    assert noted.ledger.lost_on(7) == {"a", "c"}
    assert noted.ledger.lost_on(8) == frozenset()
    noted("b", trial=7)
    assert noted.ledger.lost_on(7) == frozenset()


def test_ledger_excuses_a_recipe_from_losses_of_nodes_that_have_measured_nothing() -> None:
    noted = Noted()
    on_a = AttemptNodes(names=("a",), troubles={"a": "why"})
    assert not noted.ledger.excuses(AttemptNodes(names=("a",)), trial=7), "nothing blames a node"
    for _ in range(3):
        assert noted.ledger.excuses(on_a, trial=7)
        noted("a!", LOST, trial=7)
    noted("a", trial=6)
    assert not noted.ledger.excuses(on_a, trial=7)
    assert noted.ledger.excuses(on_a, trial=8), "the first loss of a recipe on a node"


@pytest.mark.parametrize(("after", "names"), [(0, "a!"), (2, "a! b!")])
def test_ledger_excuses_one_loss_where_no_node_would_be_set_aside(after: int, names: str) -> None:
    noted = Noted(after=after)
    hosts = tuple(name.rstrip("!") for name in names.split())
    lost = AttemptNodes(names=hosts, troubles=dict.fromkeys(hosts, "why"))
    assert noted.ledger.excuses(lost, trial=7)
    noted(names, LOST, trial=7)
    assert not noted.ledger.excuses(lost, trial=7)


def test_load_on_all_nodes_sets_none_aside() -> None:
    noted = Noted()
    assert [noted(name) for name in ("a!", "b!", "a!", "b!")] == [[]] * 4
    noted = Noted()
    assert [noted(name) for name in ("a", "b", "a!", "b!", "a!", "b!")] == [[]] * 6, (
        "what they did before says nothing"
    )
    assert noted("a") == ["b"]


def test_a_node_is_set_aside_at_once_where_its_peers_in_the_same_attempts_had_no_trouble() -> None:
    noted = Noted()
    noted("a b!", LOST)
    assert noted("a b!", LOST) == ["b"]


def test_nodes_that_were_lost_together_are_told_apart_by_what_they_measure_later() -> None:
    noted = Noted()
    noted("c")
    noted("a! b!", LOST)
    noted("a")
    assert noted("a! b!", LOST) == ["b"]


def test_a_failure_of_the_recipe_neither_blames_nor_clears_a_node() -> None:
    noted = Noted()
    noted("a")
    noted("b!", LOST)
    noted("b", MEMORY)
    assert noted("b!", LOST) == ["b"]


def test_one_recipe_that_hangs_twice_is_no_sign_of_a_bad_node_and_two_are() -> None:
    noted = Noted()
    noted("a", trial=1)
    noted("b!", HUNG, trial=2)
    assert noted("b!", HUNG, trial=2) == []
    assert noted("b!", HUNG, trial=3) == ["b"]


def test_a_crash_counts_once_its_recipe_was_measured_elsewhere() -> None:
    noted = Noted(after=1)
    noted("a", trial=1)
    assert noted("b!", CRASHED, trial=2) == []
    assert noted("b!", CRASHED, trial=3) == []
    assert noted("a", trial=2) == ["b"]


def test_a_node_that_holds_its_peers_up_is_set_aside_though_they_were_measured() -> None:
    noted = Noted()
    noted("a b!")
    assert noted("a b!") == ["b"]
    assert noted.ledger.aside["b"].troubles[0].kind == "straggling"


def test_a_threshold_of_0_sets_no_node_aside() -> None:
    noted = Noted(after=0)
    noted("a")
    assert [noted("b!", LOST) for _ in range(4)] == [[]] * 4


def test_a_check_decides_whether_a_node_is_used_again_and_the_cool_down_doubles() -> None:
    noted = Noted(minutes=10.0)
    noted("a")
    noted("b!", LOST)
    noted("b!", LOST)
    assert noted.ledger.aside["b"].until == timestamp(BEGAN + timedelta(minutes=13))
    noted.minutes = 20
    noted.ledger.note_check("b", at=noted.now, found="no devices")
    aside = noted.ledger.aside["b"]
    assert (aside.until, aside.found) == (timestamp(BEGAN + timedelta(minutes=30)), "no devices")
    noted.ledger.note_check("b", at=noted.now, found="")
    assert noted.ledger.aside == {}
    assert noted("b!", LOST) == [], "what was before the check no longer counts"
    assert noted("b!", LOST) == ["b"]
    assert noted.ledger.aside["b"].until == timestamp(BEGAN + timedelta(minutes=22 + 20))


def test_what_a_node_still_ran_when_it_was_set_aside_changes_nothing() -> None:
    noted = Noted()
    noted("a")
    noted("b!", LOST)
    noted("b!", LOST)
    since = noted.ledger.aside["b"].since
    noted("b!", LOST)
    noted("b")
    assert noted.ledger.aside["b"].since == since


# What the files of a step say


def step(folder: Path, **reports: Any) -> None:
    """A step of two nodes with a rank each."""
    made = StepFolder(folder)
    made.prepare(2)
    Step(
        token="t", run_folder=str(folder), world_size=2, nodes=2, ranks_per_node=1, engines=(),
        environment={},
        deadline_s=60.0, lifeline="", silence_s=60.0, hosts=("n1.site", "n2.site"),
    ).write()  # fmt: skip
    for name, values in reports.items():
        made.write_report(
            NodeReport(
                **{"node": int(name[1:]) - 1, "host": name, "running": True, "ended": True} | values
            )
        )


def failed(kind: FailureKind) -> Failure:
    return Failure(kind=kind, message="the launcher ended")


TERMINATED = {"interrupted": "SIGTERM", "statuses": {0: -15}}
KILLED, PEER = {"statuses": {1: -9}}, {"statuses": {0: 1}}
HOT = "rank 1's device was slowed down (temperature)"
SLOW = Telemetry(slowed_by=("", "temperature"))


@pytest.mark.parametrize(
    ("reports", "outcome", "troubles"),
    [
        ({"n1": PEER, "n2": KILLED}, failed(LOST), {"n2.site": "rank 1 ended with signal 9"}),
        ({"n1": PEER}, failed(LOST), {"n2.site": "its agent did not begin"}),
        ({"n2": PEER}, failed(LOST), {"n1.site": "its agent did not begin"}),
        ({"n1": {}, "n2": {"trouble": "no port"}}, failed(LOST), {"n2.site": "no port"}),
        ({"n1": {}, "n2": {"ended": False}}, failed(LOST), {"n2.site": "its agent vanished"}),
        (
            {"n1": {}, "n2": {}},
            failed(LOST),
            dict.fromkeys(("n1.site", "n2.site"), "the launcher ended"),
        ),
        ({"n1": {}, "n2": {"interrupted": "SIGTERM"}}, failed(LOST), {}),
        (
            {"n1": TERMINATED, "n2": {"ended": False, "statuses": {1: -9}}},
            failed(LOST),
            {"n2.site": "its agent vanished"},
        ),
        (
            {"n1": TERMINATED | {"running": False}},
            failed(LOST),
            {"n2.site": "its agent did not begin"},
        ),
        ({"n1": TERMINATED, "n2": {"interrupted": "SIGTERM"}}, failed(HUNG), {}),
        (
            {"n1": {}, "n2": {}},
            failed(HUNG),
            dict.fromkeys(("n1.site", "n2.site"), "the launcher ended"),
        ),
        (
            {"n1": {"statuses": {0: -9}, "killed": [0]}, "n2": {"statuses": {1: 1}}},
            failed(CRASHED),
            {"n2.site": "rank 1 ended with exit status 1"},
        ),
        ({"n1": PEER, "n2": KILLED}, failed(MEMORY), {}),
        ({"n1": {}, "n2": {}}, replace(measurement(), telemetry=SLOW), {"n2.site": f"{HOT}"}),
        ({"n1": PEER, "n2": KILLED}, None, {}),
    ],
)
def test_the_files_of_a_step_name_the_node(
    reports: dict[str, Any], outcome: Outcome | None, troubles: dict[str, str], tmp_path: Path
) -> None:
    step(tmp_path, **reports)
    assert attempt_nodes(tmp_path, outcome) == AttemptNodes(
        names=("n1.site", "n2.site"), troubles=troubles
    )


def test_a_launcher_names_the_node_whose_agent_ended_before_it_could_report(tmp_path: Path) -> None:
    step(tmp_path)
    lines = (
        "srun: no binding",
        "srun: error: n2: task 1: Killed",
        "srun: error: n1: task 0: Terminated",
    )
    StepFolder(tmp_path).launcher_log.write_text("\n".join(lines))
    nodes = attempt_nodes(tmp_path, failed(LOST))
    assert nodes is not None
    assert nodes.troubles == {"n2.site": lines[1]}


def test_a_probe_without_a_step_has_no_nodes(tmp_path: Path) -> None:
    assert attempt_nodes(tmp_path, failed(LOST)) is None


def test_thresholds_come_from_the_section_dispatch() -> None:
    noted = Noted()
    noted.ledger = NodeLedger.of({"quarantine_after": 1, "quarantine_minutes": 2.0})
    noted("a")
    assert noted("b!", LOST) == ["b"]
    assert noted.ledger.aside["b"].until.startswith("2026-11-24T00:04")


def test_a_node_that_did_well_without_another_counts_after_one_with_it() -> None:
    noted = Noted()
    noted("c")
    noted("c b")
    noted("b!", LOST)
    assert noted("b!", LOST) == ["b"]
