"""A rank's signs of life: a thread writes its stage and its step count to the board twice a second."""

import datetime as dt
import json
import os
import platform
import socket
import threading
import time

import torch
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from frontrunner.evaluators.trainer.roll_call.order import (
    ALL_CAME,
    ARRIVED,
    DONE,
    PREFIX,
    REPORT,
    SIGN,
    SIGN_S,
    Order,
    key,
)


def open_client(order: Order) -> Store:
    """A connection of its own to the board: a store serves one thread at a time."""
    wait = dt.timedelta(seconds=order.deadline_s)
    return PrefixStore(PREFIX, TCPStore(order.host, order.port, is_master=False, timeout=wait))


class Signs:
    """How far this rank is, for the others to see. A rank whose board is gone ends itself."""

    def __init__(self, order: Order) -> None:
        self.store = open_client(order)
        self._order = order
        self._stage, self._step, self._over = "arrived", 0, threading.Event()
        self._thread = threading.Thread(target=self._write, args=(open_client(order),), daemon=True)
        self._thread.start()

    def arrive(self) -> None:
        """Tell where this rank is, and wait until all have come. Raises `torch.distributed.DistStoreError` in vain."""
        told = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "wall_s": time.time(),
            "python": platform.python_version(),
            "torch": str(torch.__version__),
        }
        self.store.set(key(ARRIVED, self._order.rank), json.dumps(told))
        self.store.wait([ALL_CAME])

    def step(self, stage: str) -> None:
        """Say that this rank goes on: called before whatever may wait for another rank."""
        self._stage = stage
        self._step += 1

    def done(self, report: dict[str, object]) -> None:
        """Hand the report in; the last sign says so."""
        self._over.set()
        self._thread.join()
        self.store.set(key(REPORT, self._order.rank), json.dumps(report, allow_nan=False))
        self.step(DONE)
        self.store.set(key(SIGN, self._order.rank), self._sign(-1))

    def _write(self, store: Store) -> None:
        count = 0
        while not self._over.wait(SIGN_S if count else 0):
            count += 1
            try:
                store.set(key(SIGN, self._order.rank), self._sign(count))
            except RuntimeError:  # as torch says that the store is gone, and with it whoever asked for this
                os._exit(1)

    def _sign(self, count: int) -> str:
        return json.dumps({"count": count, "stage": self._stage, "step": self._step})
