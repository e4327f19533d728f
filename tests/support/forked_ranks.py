"""The warm parent of the trainer's tests, a program: it forks the ranks of one job after another.

Its argument is the engine to import. Each order is a JSON line on stdin; the answer is a JSON line
with the ranks' exit statuses.
"""

import contextlib
import json
import os
import signal
import sys
import traceback
from collections import Counter
from importlib import import_module
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import CodeType
from typing import Any, NoReturn

import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from frontrunner.evaluators import trainer
from frontrunner.evaluators.trainer.entry import preload
from frontrunner.evaluators.trainer.job import Job
from support.looks import LOOKS


class _CollectiveCounter(TorchDispatchMode):
    """Counts the collective operators that pass through torch's dispatcher, and what some of them
    receive.

    `received` maps an operator and the ranks of its group, as in `_allgather_base_ 0,1`, to the
    bytes that this rank gets from the others at the least: all of a gathered tensor but its own
    part, for a reduce-scatter the partial sums, as large as what it does not keep, and of an
    all-to-all all but the part that stays.
    """

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.received: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace in {"c10d", "_c10d_functional"}:
            name = func.overloadpacket.__name__
            self.counts[name] += 1
            if name in {"_allgather_base_", "_reduce_scatter_base_"}:
                output, sent, group = args[:3]
                ranks = dist.get_process_group_ranks(dist.ProcessGroup.unbox(group))
                self.received[f"{name} {','.join(map(str, ranks))}"] += abs(
                    output.nbytes - sent.nbytes
                )
            if name == "all_to_all_single":
                sent, parts = args[:2]
                self.received[name] += sent.nbytes - sent.nbytes // len(parts)
        return func(*args, **(kwargs or {}))


def _run_forked(order: dict[str, Any]) -> list[int]:
    """Fork the job's ranks and wait; where one dies the others are killed, since they would wait
    for it.
    """
    job = Job.from_json(Path(order["job"]).read_text(encoding="utf-8"))
    world_size = job.recipe.devices
    rendezvous = Path(job.run_folder) / f"rendezvous-{os.getpid()}"
    rendezvous.unlink(missing_ok=True)
    if job.recipe.compile:
        import_module("torch._inductor.compile_fx")  # once, not in every rank
    ranks = {}
    for rank in range(world_size):
        child = os.fork()
        if child == 0:
            _write_to_log(job, rank)
            if order["fault"] is not None:
                _change_trainer(*order["fault"])
            if order["look"] is not None:
                _look(job, rank, rendezvous, order["look"])
            _be_rank(job, rank, rendezvous, counting=order["count_collectives"])
        ranks[child] = rank
    statuses = [0] * world_size
    while ranks:
        child, status = os.wait()
        statuses[ranks.pop(child)] = os.waitstatus_to_exitcode(status)
        if status != 0:
            for other in ranks:
                os.kill(other, signal.SIGKILL)
    return statuses


def _write_to_log(job: Job, rank: int) -> None:
    (Path(job.run_folder) / f"rank-{rank}.pid").write_text(str(os.getpid()))
    log = os.open(Path(job.run_folder) / f"rank-{rank}.log", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)


_IMPORTED_ONCE = ("job", "rendezvous")
"""Modules of the trainer that the order was read with, or that torch takes once in a process."""


class _ChangedSource(SourceFileLoader):
    """Loads one file of the trainer with one text in the place of another."""

    def __init__(self, name: str, path: str, *, old: str, new: str) -> None:
        super().__init__(name, path)
        self._texts = old.encode(), new.encode()

    def get_code(self, fullname: str) -> CodeType:
        """Compile the changed source, and not what an earlier import has cached."""
        old, new = self._texts
        source = self.get_data(self.path)
        assert source.count(old) == 1, f"{self.path} holds {old!r} {source.count(old)} times"
        return self.source_to_code(source.replace(old, new), self.path)


def _change_trainer(file: str, old: str, new: str) -> None:
    """Import the trainer once more in this process, with a change of one file.

    A file named "" stands for no change: the trainer is imported once more as it is.
    """
    prefix = f"{trainer.__name__}."
    for name in [name for name in sys.modules if name.startswith(prefix)]:
        if name.removeprefix(prefix) not in _IMPORTED_ONCE:
            del sys.modules[name]
    if file:
        path = str(Path(trainer.__file__).parent / file)
        changed = prefix + file.removesuffix(".py").replace("/", ".")
        package, _, module_name = changed.rpartition(".")
        loader = _ChangedSource(changed, path, old=old, new=new)
        spec = spec_from_file_location(changed, path, loader=loader)
        assert spec is not None
        module = module_from_spec(spec)
        sys.modules[changed] = module
        loader.exec_module(module)
        setattr(import_module(package), module_name, module)


def _look(job: Job, rank: int, rendezvous: Path, look: str) -> NoReturn:
    """Be the rank as one of `LOOKS` does, leave its answer in `rank-N.LOOK.json`, and end."""
    try:
        answer = LOOKS[look](job, rank, f"file://{rendezvous}")
        (Path(job.run_folder) / f"rank-{rank}.{look}.json").write_text(json.dumps(answer))
    except Exception:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


def _be_rank(job: Job, rank: int, rendezvous: Path, *, counting: bool) -> None:
    """Run one rank in this forked process; where asked, leave its counts in
    `rank-N.collectives.json`.

    What it received is left in `rank-N.bytes.json`.
    """
    entry = import_module("frontrunner.evaluators.trainer.entry")  # the changed one, with a fault
    counter = _CollectiveCounter()
    with counter if counting else contextlib.nullcontext():
        entry.run_rank(
            job,
            rank=rank,
            world_size=job.recipe.devices,
            init_method=f"file://{rendezvous}",
            local_rank=rank,
        )
    (Path(job.run_folder) / f"rank-{rank}.collectives.json").write_text(json.dumps(counter.counts))
    (Path(job.run_folder) / f"rank-{rank}.bytes.json").write_text(json.dumps(counter.received))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _serve() -> None:
    preload(sys.argv[1:])
    for line in sys.stdin:
        statuses = _run_forked(json.loads(line))
        sys.stdout.write(json.dumps(statuses) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _serve()
