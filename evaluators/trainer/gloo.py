"""Process groups on CPU whose collectives run one after another.

torch's gloo backend gives each group two threads, and after a collective each of them writes the collective's name
into one string of the group, without a lock (`ProcessGroupGloo::runLoop`, torch 2.11 to 2.13). Names of more than 15
letters, as a reduce-scatter's, lie on the heap: two that end at the same time free the same memory twice, and the
rank dies of SIGABRT or SIGSEGV. Sequence parallelism under an interleaved schedule met that once in some 150 probes.
With one thread a group nothing is shared. Sends and receives do not use these threads.
"""

import datetime as dt

import torch.distributed as dist
from torch._C._distributed_c10d import Store
from torch.distributed import distributed_c10d


class OneThreadGloo(dist.ProcessGroupGloo):
    """A gloo group with a single thread for its collectives."""

    def __init__(self, store: Store, rank: int, size: int, timeout: dt.timedelta) -> None:
        """The arguments by which torch makes its own: see `torch.distributed.ProcessGroupGloo`."""
        options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # torch's stub has another name
        options._threads = 1
        options._timeout = timeout
        options._devices = [dist.ProcessGroupGloo.create_default_device()]
        super().__init__(store, rank, size, options)


def use_one_thread_per_group() -> None:
    """Have every gloo group that this process makes from here on be a `OneThreadGloo`.

    torch hands its users' options to other backends but not to gloo: its name for the class is replaced.
    """
    distributed_c10d.ProcessGroupGloo = OneThreadGloo  # type: ignore[misc]
