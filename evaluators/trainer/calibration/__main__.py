"""`python -P -m frontrunner.evaluators.trainer.calibration`: one rank; an order on stdin, places in the environment."""

import datetime as dt
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from frontrunner.evaluators.trainer.calibration.collectives import BACKENDS
from frontrunner.evaluators.trainer.calibration.measure import measure
from frontrunner.evaluators.trainer.files import write_json
from frontrunner.evaluators.trainer.rendezvous import set_local_rank_env, use_one_thread_per_group
from frontrunner.evaluators.trainer.run_context import describe_software

COLLECTIVE_TIMEOUT = dt.timedelta(seconds=120)


@dataclass(frozen=True, kw_only=True)
class Order:
    """One calibration. `device` is torch's word for it: cpu, cuda (ROCm too) or xpu.

    `seconds` is the budget of all measurements together; `out` is where rank 0 writes what was measured.
    """

    device: str
    seconds: float
    out: str


def main() -> None:
    """Measure with the other ranks; rank 0 writes what was measured."""
    order = Order(**json.loads(sys.stdin.read()))
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    local_rank, per_node = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    use_one_thread_per_group()
    set_local_rank_env(local_rank, per_node)
    if order.device == "cpu":
        device = torch.device("cpu")
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    else:
        number = local_rank % torch.accelerator.device_count()  # 0 where the launcher shows each rank its own device
        device = torch.device(order.device, number)
        torch.accelerator.set_device_index(number)
    dist.init_process_group(
        BACKENDS[order.device],
        init_method=os.environ.get("FRONTRUNNER_RENDEZVOUS", "env://"),
        rank=rank,
        world_size=world_size,
        timeout=COLLECTIVE_TIMEOUT,
    )
    found = measure(device, order.seconds, per_node)
    if rank == 0:
        places = {"ranks": world_size, "ranks_per_node": per_node, "device": order.device}
        write_json(Path(order.out), places | describe_software(device) | found)
    dist.destroy_process_group()
    sys.stderr.flush()
    os._exit(0)  # an orderly exit at times aborts in threads of torch's own, after all is on disk


if __name__ == "__main__":
    main()
