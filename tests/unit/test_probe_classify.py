"""From evidence to the kind of failure and the rank to blame."""

import pytest

from frontrunner.evaluators.probe.classify import Evidence, RankError, classify
from frontrunner.results.outcome import FailureKind

NO_SPACE = "[Errno 28] No space left on device"
PEER = "[gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:34567"


def error(rank: int, type_: str, message: str, phase: str = "stepping") -> RankError:
    return RankError(rank=rank, type=type_, message=message, phase=phase)


CASES = {
    "memory beats its peers' connection errors": (
        Evidence(
            statuses={0: 1, 1: 1},
            errors=(error(0, "RuntimeError", PEER), error(1, "OutOfMemoryError", "CUDA out of memory. Tried")),
        ),
        FailureKind.OUT_OF_MEMORY,
        1,
    ),
    "memory beats the deadline that followed from it": (
        Evidence(
            statuses={0: -9, 1: 1},
            errors=(error(1, "RuntimeError", "DefaultCPUAllocator: not enough memory"),),
            overdue=(FailureKind.HUNG, "no progress"),
            killed_by_us=frozenset({0}),
        ),
        FailureKind.OUT_OF_MEMORY,
        1,
    ),
    "memory that only the log tells of": (
        Evidence(statuses={0: 0, 1: -6}, log_tails={1: "terminate called\n  what(): std::bad_alloc"}),
        FailureKind.OUT_OF_MEMORY,
        1,
    ),
    "memory that DeepSpeed could not lock": (
        Evidence(statuses={0: -6}, log_tails={0: "alloc(): Assertion `nullptr != pinned_buffer' failed."}),
        FailureKind.OUT_OF_MEMORY,
        0,
    ),
    "a log that mentions memory of a rank that ended well": (
        Evidence(statuses={0: 0, 1: 3}, log_tails={0: "note: out of memory is handled"}),
        FailureKind.CRASHED,
        1,
    ),
    "the kernel's out-of-memory killer": (
        Evidence(statuses={0: 1, 1: -9}, errors=(error(0, "RuntimeError", PEER),), kernel_oom_kills=1),
        FailureKind.OUT_OF_MEMORY,
        1,
    ),
    "the kernel killed somebody else's process": (
        Evidence(statuses={0: 1}, errors=(error(0, "KeyError", "'x'"),), kernel_oom_kills=1),
        FailureKind.CRASHED,
        0,
    ),
    "a ValueError before the first step": (
        Evidence(statuses={0: 1, 1: 1}, errors=(error(1, "ValueError", "not divisible", "starting"),)),
        FailureKind.ILLEGAL_FOR_ENGINE,
        1,
    ),
    "a form that torch has not implemented": (
        Evidence(statuses={0: 1}, errors=(error(0, "NotImplementedError", "no", "building"),)),
        FailureKind.ILLEGAL_FOR_ENGINE,
        0,
    ),
    "the same ValueError while stepping": (
        Evidence(statuses={0: 1}, errors=(error(0, "ValueError", "bad value"),)),
        FailureKind.CRASHED,
        0,
    ),
    "a rank's own error outweighs a lower rank's lost connection": (
        Evidence(statuses={0: 1, 1: 1}, errors=(error(0, "RuntimeError", PEER), error(1, "KeyError", "'w'"))),
        FailureKind.CRASHED,
        1,
    ),
    "killed from outside, the peer complains": (
        Evidence(statuses={0: 1, 1: -9}, errors=(error(0, "RuntimeError", PEER),)),
        FailureKind.LOST,
        1,
    ),
    "ended by a batch system": (Evidence(statuses={0: -15, 1: -15}), FailureKind.LOST, 0),
    "killed by us to clear up is nobody's fault": (
        Evidence(statuses={0: 1, 1: -9}, errors=(error(0, "KeyError", "'w'"),), killed_by_us=frozenset({1})),
        FailureKind.CRASHED,
        0,
    ),
    "a segmentation fault, the peer complains": (
        Evidence(statuses={0: 1, 1: -11}, errors=(error(0, "RuntimeError", PEER),)),
        FailureKind.CRASHED,
        1,
    ),
    "an exit without an exception, the peer complains": (
        Evidence(statuses={0: 1, 1: 120}, errors=(error(0, "RuntimeError", PEER),)),
        FailureKind.CRASHED,
        1,
    ),
    "a disk that is full, said": (
        Evidence(statuses={0: 1, 1: 1}, errors=(error(0, "OSError", NO_SPACE), error(1, "RuntimeError", PEER))),
        FailureKind.LOST,
        0,
    ),
    "a disk that is full, and no room to say so": (
        Evidence(statuses={0: 1, 1: 1}, errors=(error(1, "RuntimeError", PEER),), disk_full="full"),
        FailureKind.LOST,
        0,
    ),
    "another error on a disk that is nearly full": (
        Evidence(statuses={0: 1}, errors=(error(0, "KeyError", "'w'"),), disk_full="full"),
        FailureKind.CRASHED,
        0,
    ),
    "a segmentation fault on a disk that is nearly full": (
        Evidence(statuses={0: -11}, disk_full="full"),
        FailureKind.CRASHED,
        0,
    ),
    "all ranks complain about the network and none was killed": (
        Evidence(statuses={0: 1, 1: 1}, errors=(error(0, "RuntimeError", PEER), error(1, "RuntimeError", PEER))),
        FailureKind.CRASHED,
        0,
    ),
    "hung": (
        Evidence(statuses={0: -9, 1: -9}, overdue=(FailureKind.HUNG, "no progress"), killed_by_us=frozenset({0, 1})),
        FailureKind.HUNG,
        0,
    ),
    "too slow": (
        Evidence(statuses={0: -9}, overdue=(FailureKind.TOO_SLOW, "3 of 9"), killed_by_us=frozenset({0})),
        FailureKind.TOO_SLOW,
        0,
    ),
    "the fork server ended": (
        Evidence(
            statuses={0: 1},
            errors=(error(0, "RuntimeError", PEER),),
            lost="the fork server ended, and the ranks with it",
        ),
        FailureKind.LOST,
        0,
    ),
    "a disk that a rank found full": (
        Evidence(statuses={0: 1}, errors=(error(0, "OSError", f"{NO_SPACE}: '/tmp/x'", "building"),)),
        FailureKind.LOST,
        0,
    ),
    "a disk for offload that is full": (
        Evidence(statuses={0: 1}, errors=(error(0, "RuntimeError", "the disk is full: offload wrote files in /nvme"),)),
        FailureKind.CRASHED,
        0,
    ),
    "every rank ended well and left nothing": (Evidence(statuses={0: 0, 1: 0}), FailureKind.LOST, 0),
}


@pytest.mark.parametrize(("evidence", "kind", "rank"), CASES.values(), ids=CASES)
def test_kind_and_rank_to_blame(evidence: Evidence, kind: FailureKind, rank: int) -> None:
    verdict = classify(evidence)
    assert (verdict.kind, verdict.rank) == (kind, rank)
    assert verdict.message
    assert "\n" not in verdict.message


def test_the_message_says_which_rank_and_what_it_said() -> None:
    evidence = Evidence(statuses={2: 1}, errors=(error(2, "KeyError", "'weight'\nmore", "building"),))
    assert classify(evidence).message == "rank 2 while building: KeyError: 'weight'"
    full = Evidence(statuses={0: 1}, errors=(error(0, "OSError", f"{NO_SPACE}: '/tmp/x'"),))
    assert classify(full).message == f"rank 0 could not write: {NO_SPACE}: '/tmp/x'"
    assert classify(Evidence(statuses={1: -11})).message == "rank 1 ended with signal 11"
    assert classify(Evidence(statuses={1: -9})).message == "rank 1 was killed from outside (SIGKILL)"


def test_a_full_disk_is_told_from_another_abort() -> None:
    """As DeepSpeed 0.19.8 says it of its files on a disk that was full, before it aborts."""
    tail = "/d/0_9.tensor.swp: file_offset + buffer nbytes > file bytes 4719616 > 0\npython: ... Assertion failed."
    full = classify(Evidence(statuses={0: -6, 1: 0}, log_tails={0: tail, 1: ""}))
    assert (full.kind, full.rank) == (FailureKind.CRASHED, 0)
    assert full.message == "rank 0: the disk is full: offload wrote a file that came out short"


def test_a_long_message_is_cut() -> None:
    evidence = Evidence(statuses={0: 1}, errors=(error(0, "RuntimeError", "x" * 10_000),))
    assert len(classify(evidence).message) < 400
