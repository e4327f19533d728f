"""What lives in a rank's memory at the moment of its peak, and what it is there for.

Each storage is entered when it is first seen, and its growing, shrinking and end with it. Only when all is over is the
peak looked for, and each storage put into a category: how long it lived tells what it was for.
"""

import weakref
from collections import Counter
from collections.abc import Iterable
from enum import StrEnum
from itertools import accumulate, islice

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor


class Category(StrEnum):
    """What a storage is for.

    `GRADIENTS` are the parameters', wherever they lie, and those of activations on their way to another stage.
    `ACTIVATIONS` are what a forward pass leaves behind, one that is run again included, and the batch's tokens.
    `PIPELINE_BUFFERS` receive from other stages: torch keeps one for each micro-batch of a step.
    `TEMPORARY` is what goes before the pass that made it ends.
    """

    PARAMETERS = "parameters"
    GATHERED_PARAMETERS = "gathered parameters"
    GRADIENTS = "gradients"
    OPTIMIZER_STATES = "optimizer states"
    ACTIVATIONS = "activations"
    PIPELINE_BUFFERS = "pipeline buffers"
    TEMPORARY = "temporary"


class Phase(StrEnum):
    """What the engine is doing. `RECOMPUTE` is a forward pass within a backward pass."""

    FORWARD = "forward"
    RECOMPUTE = "recompute"
    BACKWARD = "backward"


_LEFT_BEHIND = {
    Phase.FORWARD: Category.ACTIVATIONS,
    Phase.RECOMPUTE: Category.ACTIVATIONS,
    Phase.BACKWARD: Category.GRADIENTS,
}
"""What a storage is that outlives the phase in which it was made."""


class _Run:
    """One run of a phase: in which backward pass of autograd (-1: in none), and at which change it ended."""

    __slots__ = ("end", "phase", "task")

    def __init__(self, phase: Phase, task: int) -> None:
        self.phase = phase
        self.task = task
        self.end: int | None = None


class _Entry:
    """One storage: its size now, in bytes, and what is known of its purpose."""

    __slots__ = ("category", "freed_at", "made_in", "reference", "size")

    def __init__(self, size: int, made_in: _Run | None, category: Category | None) -> None:
        self.size = size
        self.made_in = made_in
        self.category = category
        self.freed_at: int | None = None
        self.reference: weakref.ref[torch.UntypedStorage] | None = None


class Ledger:
    """The storages of the tensors that it is shown. One thread."""

    def __init__(self) -> None:
        self._entries: list[_Entry] = []
        self._live: dict[int, int] = {}  # the number of each live storage's entry, by the storage's address
        self._changes: list[tuple[int, int]] = []  # (entry, bytes more or fewer), in the order in which they came
        self._start = 0
        self._runs: list[_Run] = []  # the run that goes on, above the one that it interrupts

    @property
    def phase(self) -> Phase | None:
        """What the engine is doing; None outside forward and backward passes."""
        return self._runs[-1].phase if self._runs else None

    def see(self, tensor: Tensor, category: Category | None) -> None:
        """Enter the tensor's storage if it is new; `category` None leaves its purpose open."""
        storage = tensor.untyped_storage()
        address = storage._cdata
        if address in self._live:
            return
        number = len(self._entries)
        entry = _Entry(storage.nbytes(), self._runs[-1] if self._runs else None, category)
        entry.reference = weakref.ref(storage, lambda _: self._free(number, address))
        self._entries.append(entry)
        self._live[address] = number
        self._changes.append((number, entry.size))

    def resized(self, storage: torch.UntypedStorage) -> None:
        """Enter that a storage has another size than before."""
        number = self._live.get(storage._cdata)
        if number is not None:
            self._resize(number, storage.nbytes())

    def label(self, tensors: Iterable[Tensor], category: Category) -> None:
        """Say what these tensors' storages are for, if nothing is said of them yet."""
        for tensor in tensors:
            local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
            number = self._live.get(local.untyped_storage()._cdata)
            if number is not None and self._entries[number].category is None:
                self._entries[number].category = category

    def label_all(self, category: Category) -> None:
        """Say what every live storage is for of which nothing is said yet."""
        for number in self._live.values():
            if self._entries[number].category is None:
                self._entries[number].category = category

    def enter(self, phase: Phase | None, task: int = -1) -> None:
        """Go over to a phase of the backward pass `task`, which what is recomputed interrupts and does not end."""
        while self._runs and not self._goes_on(self._runs[-1], phase, task):
            self._runs.pop().end = len(self._changes)
        if phase is not None and not (self._runs and self._runs[-1].phase is phase):
            self._runs.append(_Run(phase, task))

    @staticmethod
    def _goes_on(run: _Run, phase: Phase | None, task: int) -> bool:
        interrupted = run.phase is Phase.BACKWARD and phase is Phase.RECOMPUTE
        return run.task == task and (run.phase is phase or interrupted)

    def start(self) -> None:
        """Look for the peak from here on."""
        self._start = len(self._changes)

    def peak(self) -> dict[Category, int]:
        """What lives at the peak since `start`, in bytes by category."""
        sizes = list(accumulate((change for _, change in self._changes), initial=0))
        # The size before the first change counts too, and of equal peaks the first.
        place = max(range(self._start, len(sizes)), key=lambda at: (sizes[at], -at))
        held: Counter[int] = Counter()
        for number, change in islice(self._changes, place):
            held[number] += change
        found: Counter[Category] = Counter(dict.fromkeys(Category, 0))
        for number, size in held.items():
            found[self._category(self._entries[number])] += size
        return dict(found)

    def _category(self, entry: _Entry) -> Category:
        if entry.category is not None:
            return entry.category
        if entry.made_in is None:
            return Category.TEMPORARY
        end, freed_at = entry.made_in.end, entry.freed_at
        outlives = freed_at is None or (end is not None and freed_at > end)
        return _LEFT_BEHIND[entry.made_in.phase] if outlives else Category.TEMPORARY

    def _free(self, number: int, address: int) -> None:
        self._resize(number, 0)
        self._entries[number].freed_at = len(self._changes)
        del self._live[address]

    def _resize(self, number: int, size: int) -> None:
        entry = self._entries[number]
        if size != entry.size:
            self._changes.append((number, size - entry.size))
            entry.size = size
