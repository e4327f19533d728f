"""A trainer whose ranks meet by torch's variables and reduce a number per step; the last rank
prints a line per step.

It is started once per rank, leaves a process in a session of its own, and ends by itself with
`--ends` alone.
"""

import argparse
import os
import subprocess
import sys
import time

import torch
import torch.distributed as dist


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--micro-batch", type=int, required=True)
    parser.add_argument("--node-rank", required=True)
    parser.add_argument("--twice", action="store_true")
    parser.add_argument("--ends", action="store_true")
    given = parser.parse_args()
    assert given.node_rank == os.environ["NODE_RANK"], "the same field in an argument"
    dist.init_process_group("gloo")
    # What launchers do: a process in a session of its own, which no signal to a process group
    # reaches.
    subprocess.Popen(
        [sys.executable, "-S", "-c", "import time; time.sleep(600)"], start_new_session=True
    )
    rank, world = dist.get_rank(), dist.get_world_size()
    hosts = os.environ["FRONTRUNNER_NODE_LIST"]
    print(f"rank {rank} of {world} on node {given.node_rank} of {hosts}", flush=True)
    print(f"twice {given.twice}, buffers {os.environ.get('TRAINER_BUFFERS')}", flush=True)
    for step in range(1, given.steps + 1):
        began_s = time.perf_counter()
        total = torch.ones(1)
        dist.all_reduce(total)
        time.sleep(0.02 * given.micro_batch)
        if rank == world - 1:
            print(
                f"step {step}: {time.perf_counter() - began_s:.6f} s loss"
                f" {total.item() / step:.4f}",
                flush=True,
            )
    if not given.ends:
        time.sleep(600)


if __name__ == "__main__":
    main()
