"""`python -P -m frontrunner.evaluators.trainer.roll_call`: one rank, with an order on its standard input."""

import datetime as dt
import os
import sys

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore

from frontrunner.evaluators.trainer.calibration.order import BACKENDS
from frontrunner.evaluators.trainer.gloo import use_one_thread_per_group
from frontrunner.evaluators.trainer.local_place import tell_local_place
from frontrunner.evaluators.trainer.roll_call.order import Order
from frontrunner.evaluators.trainer.roll_call.rounds import run_rounds
from frontrunner.evaluators.trainer.roll_call.signs import Signs


def main() -> None:
    """Meet the others, do the rounds with them, and report."""
    order = Order.from_json(sys.stdin.read())
    use_one_thread_per_group()
    tell_local_place(order.local_rank, order.local_world_size)
    device = _device(order)
    signs = Signs(order)
    signs.arrive()
    signs.step("connecting")
    dist.init_process_group(
        BACKENDS[order.device],
        store=PrefixStore("group", signs.store),
        rank=order.rank,
        world_size=order.world_size,
        timeout=dt.timedelta(seconds=10 * order.deadline_s),
    )
    signs.done(run_rounds(order, device, signs))
    sys.stderr.flush()
    os._exit(0)  # an orderly exit at times aborts in threads of torch's own, after all has been reported


def _device(order: Order) -> torch.device:
    """This rank's device: its place in the node, among those that it sees."""
    if order.device == "cpu":
        torch.set_num_threads(1)
        return torch.device("cpu")
    number = order.local_rank % torch.accelerator.device_count()
    torch.accelerator.set_device_index(number)
    return torch.device(order.device, number)


if __name__ == "__main__":
    main()
