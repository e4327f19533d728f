"""From evidence to the kind of failure and the rank to blame."""

import pytest

from frontrunner.evaluators.runs.classify import Evidence, RankError, classify
from frontrunner.results.outcome import FailureKind

NO_SPACE = "[Errno 28] No space left on device"
PEER = "[gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:34567"


def error(rank: int, type_: str, message: str, phase: str = "stepping") -> RankError:
    return RankError(rank=rank, type=type_, message=message, phase=phase)


CASES = {
    "memory beats its peers' connection errors": (
        Evidence(
            statuses={0: 1, 1: 1},
            errors=(
                error(0, "RuntimeError", PEER),
                error(1, "OutOfMemoryError", "CUDA out of memory. Tried"),
            ),
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
        Evidence(
            statuses={0: 0, 1: -6}, log_tails={1: "terminate called\n  what(): std::bad_alloc"}
        ),
        FailureKind.OUT_OF_MEMORY,
        1,
    ),
    "memory that DeepSpeed could not lock": (
        Evidence(
            statuses={0: -6}, log_tails={0: "alloc(): Assertion `nullptr != pinned_buffer' failed."}
        ),
        FailureKind.OUT_OF_MEMORY,
        0,
    ),
    "a log that mentions memory of a rank that ended well": (
        Evidence(statuses={0: 0, 1: 3}, log_tails={0: "note: out of memory is handled"}),
        FailureKind.CRASHED,
        1,
    ),
    "the kernel's out-of-memory killer": (
        Evidence(
            statuses={0: 1, 1: -9}, errors=(error(0, "RuntimeError", PEER),), kernel_oom_kills=1
        ),
        FailureKind.OUT_OF_MEMORY,
        1,
    ),
    "the kernel killed somebody else's process": (
        Evidence(statuses={0: 1}, errors=(error(0, "KeyError", "'x'"),), kernel_oom_kills=1),
        FailureKind.CRASHED,
        0,
    ),
    "a ValueError before the first step": (
        Evidence(
            statuses={0: 1, 1: 1}, errors=(error(1, "ValueError", "not divisible", "starting"),)
        ),
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
        Evidence(
            statuses={0: 1, 1: 1},
            errors=(error(0, "RuntimeError", PEER), error(1, "KeyError", "'w'")),
        ),
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
        Evidence(
            statuses={0: 1, 1: -9},
            errors=(error(0, "KeyError", "'w'"),),
            killed_by_us=frozenset({1}),
        ),
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
        Evidence(
            statuses={0: 1, 1: 1},
            errors=(error(0, "OSError", NO_SPACE), error(1, "RuntimeError", PEER)),
        ),
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
        Evidence(
            statuses={0: 1, 1: 1},
            errors=(error(0, "RuntimeError", PEER), error(1, "RuntimeError", PEER)),
        ),
        FailureKind.CRASHED,
        0,
    ),
    "hung": (
        Evidence(
            statuses={0: -9, 1: -9},
            overdue=(FailureKind.HUNG, "no progress"),
            killed_by_us=frozenset({0, 1}),
        ),
        FailureKind.HUNG,
        0,
    ),
    "too slow": (
        Evidence(
            statuses={0: -9}, overdue=(FailureKind.TOO_SLOW, "3 of 9"), killed_by_us=frozenset({0})
        ),
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
        Evidence(
            statuses={0: 1}, errors=(error(0, "OSError", f"{NO_SPACE}: '/tmp/x'", "building"),)
        ),
        FailureKind.LOST,
        0,
    ),
    "a disk for offload that is full": (
        Evidence(
            statuses={0: 1},
            errors=(error(0, "RuntimeError", "the disk is full: offload wrote files in /nvme"),),
        ),
        FailureKind.CRASHED,
        0,
    ),
    "every rank ended well and left nothing": (
        Evidence(statuses={0: 0, 1: 0}),
        FailureKind.LOST,
        0,
    ),
}


@pytest.mark.parametrize(("evidence", "kind", "rank"), CASES.values(), ids=CASES)
def test_kind_and_rank_to_blame(evidence: Evidence, kind: FailureKind, rank: int) -> None:
    verdict = classify(evidence)
    assert (verdict.kind, verdict.rank) == (kind, rank)
    assert verdict.message
    assert "\n" not in verdict.message


NCCL = (
    "NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:94, unhandled cuda error,"
    " NCCL version 2.28.9\n"
)
UNHANDLED = NCCL + "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\n"
OUT_OF_MEMORY = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB",
    "CUDA error: out of memory",
    "Triton Error [CUDA]: out of memory",
    "CUDA driver error: CUDA_ERROR_OUT_OF_MEMORY",
    "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    (
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasLtMatmul( ltHandle,"
        " computeDesc.descriptor(), ...)`"
    ),
    "cusolver error: CUSOLVER_STATUS_ALLOC_FAILED, when calling `cusolverDnCreate(handle)`",
    "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
    "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
    "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED",
    UNHANDLED + "Cuda failure 2 'out of memory'",
    UNHANDLED + "Failed to CUDA calloc async 608 bytes",
    UNHANDLED + "Failed to CUDA calloc 1048576 bytes",
    UNHANDLED + "Failed to CUDA malloc 4194304 bytes",
    UNHANDLED + "Failed to CUDA host alloc 33554432 bytes",
    NCCL
    + "ncclSystemError: System call (e.g. socket, malloc) failed.\nLast error:\nFailed to malloc"
    " 4096 bytes",
    "HIP out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 63.98 GiB",
    "HIP error: out of memory",
    "hipErrorOutOfMemory",
    "CUDA error: HIPBLAS_STATUS_ALLOC_FAILED when calling `hipblasCreate(handle)`",
    "rocBLAS error: rocblas_status_memory_error",
    "MIOpen Error: handlehip.cpp:70: Memory not available to allocate buffer: 655360000",
    "miopenStatusAllocFailed",
    "XPU out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity of 64.00 GiB",
    "level_zero backend failed with error: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)",
    "level_zero backend failed with error: 38 (UR_RESULT_ERROR_OUT_OF_HOST_MEMORY)",
    (
        "oneCCL: ze_call.cpp:28 do_call: EXCEPTION: ze error at zeCommandQueueExecuteCommandLists,"
        " code: ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY"
    ),
    (
        "oneCCL: ze_call.cpp:28 do_call: EXCEPTION: ze error at zeMemAllocHost, code:"
        " ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY"
    ),
    (
        "[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory:"
        " you tried to allocate 8"
    ),
    "DefaultCPUAllocator: not enough memory: you tried to allocate 8589934592 bytes.",
    "[Errno 12] Cannot allocate memory",
    "unable to mmap 67108872 bytes from file </dev/shm/x>: Cannot allocate memory (12)",
)
"""As the libraries word them, from their sources and binaries."""
OTHER = (
    "CUDA error: an illegal memory access was encountered",
    UNHANDLED + "Cuda failure 'an illegal memory access was encountered'",
    UNHANDLED + "Cuda failure 1 'invalid argument'",
    (
        "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx(handle, opa, opb, m,"
        " n, k)`"
    ),
    "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
    "cuDNN error: CUDNN_STATUS_EXECUTION_FAILED",
    "CUDA error: too many resources requested for launch",
    (
        "out of resource: shared memory, Required: 232448, Hardware limit: 101376. Reducing block"
        " sizes may help."
    ),
    "HIP error: invalid device function",
    "Memory access fault by GPU node-4 on address 0x7f5e. Reason: Unknown.",
    "level_zero backend failed with error: 20 (UR_RESULT_ERROR_DEVICE_LOST)",
    "level_zero backend failed with error: 40 (UR_RESULT_ERROR_OUT_OF_RESOURCES)",
    "Failed to register memory with DMA-BUF, error=14. Trying a different method.",
    "index out of bounds in memory format channels_last",
)


@pytest.mark.parametrize("message", OUT_OF_MEMORY)
def test_a_refused_allocation_is_out_of_memory_in_an_error_and_in_a_log(message: str) -> None:
    raised = Evidence(statuses={0: 1}, errors=(error(0, "RuntimeError", message, "building"),))
    logged = Evidence(
        statuses={0: -6}, log_tails={0: f"terminate called\n  what():  {message}\nAborted"}
    )
    assert {classify(raised).kind, classify(logged).kind} == {FailureKind.OUT_OF_MEMORY}


@pytest.mark.parametrize("message", OTHER)
def test_another_fault_of_a_device_is_not_out_of_memory(message: str) -> None:
    raised = Evidence(statuses={0: 1}, errors=(error(0, "RuntimeError", message),))
    logged = Evidence(statuses={0: -6}, log_tails={0: message})
    assert {classify(raised).kind, classify(logged).kind} == {FailureKind.CRASHED}


def test_the_message_says_which_rank_and_what_it_said() -> None:
    evidence = Evidence(
        statuses={2: 1}, errors=(error(2, "KeyError", "'weight'\nmore", "building"),)
    )
    assert classify(evidence).message == "rank 2 while building: KeyError: 'weight'"
    full = Evidence(statuses={0: 1}, errors=(error(0, "OSError", f"{NO_SPACE}: '/tmp/x'"),))
    assert classify(full).message == f"rank 0 could not write: {NO_SPACE}: '/tmp/x'"
    assert classify(Evidence(statuses={1: -11})).message == "rank 1 ended with signal 11"
    assert (
        classify(Evidence(statuses={1: -9})).message == "rank 1 was killed from outside (SIGKILL)"
    )


def test_a_full_disk_is_told_from_another_abort() -> None:
    """As DeepSpeed 0.19.8 says it of its files on a disk that was full, before it aborts."""
    tail = (
        "/d/0_9.tensor.swp: file_offset + buffer nbytes > file bytes 4719616 > 0\npython: ..."
        " Assertion failed."
    )
    full = classify(Evidence(statuses={0: -6, 1: 0}, log_tails={0: tail, 1: ""}))
    assert (full.kind, full.rank) == (FailureKind.CRASHED, 0)
    assert full.message == "rank 0: the disk is full: offload wrote a file that came out short"


def test_a_long_message_is_cut() -> None:
    evidence = Evidence(statuses={0: 1}, errors=(error(0, "RuntimeError", "x" * 10_000),))
    assert len(classify(evidence).message) < 400
