"""Ledger of a rank's storages and FLOPs: sees each operator through a mode of torch's dispatcher."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from itertools import accumulate, islice
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry, sdpa_flop_count


class Category(StrEnum):
    """Purpose of a storage.

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
    """Phase of the engine. `RECOMPUTE` is a forward pass within a backward pass."""

    FORWARD = "forward"
    RECOMPUTE = "recompute"
    BACKWARD = "backward"


_LEFT_BEHIND = {
    Phase.FORWARD: Category.ACTIVATIONS,
    Phase.RECOMPUTE: Category.ACTIVATIONS,
    Phase.BACKWARD: Category.GRADIENTS,
}
"""Category of a storage that outlives the phase in which it was made."""


class _Run:
    """One run of a phase: its backward pass of autograd (-1: none), and the change at which it ended."""

    __slots__ = ("end", "phase", "task")

    def __init__(self, phase: Phase, task: int) -> None:
        self.phase = phase
        self.task = task
        self.end: int | None = None


class _Entry:
    """Storage: its current size in bytes, and what is known of its purpose."""

    __slots__ = ("category", "freed_at", "made_in", "reference", "size")

    def __init__(self, size: int, made_in: _Run | None, category: Category | None) -> None:
        self.size = size
        self.made_in = made_in
        self.category = category
        self.freed_at: int | None = None
        self.reference: weakref.ref[torch.UntypedStorage] | None = None


class Ledger:
    """Storages of the tensors that it is shown. Used by one thread."""

    def __init__(self) -> None:
        self._entries: list[_Entry] = []
        self._live: dict[int, int] = {}  # the number of each live storage's entry, by the storage's address
        self._changes: list[tuple[int, int]] = []  # (entry, bytes more or fewer), in the order in which they came
        self._start = 0
        self._runs: list[_Run] = []  # the run that goes on, above the one that it interrupts

    @property
    def phase(self) -> Phase | None:
        """Current phase; None outside forward and backward passes."""
        return self._runs[-1].phase if self._runs else None

    def see(self, tensor: Tensor, category: Category | None) -> None:
        """Record the tensor's storage if it is new; `category` None leaves its purpose open."""
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
        """Record a storage's new size."""
        number = self._live.get(storage._cdata)
        if number is not None:
            self._resize(number, storage.nbytes())

    def label(self, tensors: Iterable[Tensor], category: Category) -> None:
        """Label the storages of these tensors that have no category yet."""
        for tensor in tensors:
            local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
            number = self._live.get(local.untyped_storage()._cdata)
            if number is not None and self._entries[number].category is None:
                self._entries[number].category = category

    def label_all(self, category: Category) -> None:
        """Label every live storage that has no category yet."""
        for number in self._live.values():
            if self._entries[number].category is None:
                self._entries[number].category = category

    def enter(self, phase: Phase | None, task: int = -1) -> None:
        """Switch to a phase of the backward pass `task`, which recomputation interrupts and does not end."""
        while self._runs and not self._goes_on(self._runs[-1], phase, task):
            self._runs.pop().end = len(self._changes)
        if phase is not None and not (self._runs and self._runs[-1].phase is phase):
            self._runs.append(_Run(phase, task))

    @staticmethod
    def _goes_on(run: _Run, phase: Phase | None, task: int) -> bool:
        interrupted = run.phase is Phase.BACKWARD and phase is Phase.RECOMPUTE
        return run.task == task and (run.phase is phase or interrupted)

    def start(self) -> None:
        """Start looking for the peak."""
        self._start = len(self._changes)

    def peak(self) -> dict[Category, int]:
        """Return the bytes by category at the peak since `start`."""
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


Formula = Callable[..., int]

_FLASH_FORWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_FLASH_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def flops(operator: Any, arguments: tuple[Any, ...], options: dict[str, Any], output: Any) -> tuple[int, int]:
    """Return (FLOPs, those that compute something again) of one call of an operator; a multiply-add is two.

    Attention is counted over the whole sequence, without credit for the causal mask. The backward pass of flash
    attention computes the scores a second time: one of its five matrix products (arXiv 2205.14135, algorithm 4).
    """
    packet = operator._overloadpacket
    if packet is _FLASH_FORWARD:
        return _attention(*arguments[:3]), 0
    if packet is _FLASH_BACKWARD:
        products = _attention(*arguments[1:4]) // 2
        return 5 * products, products
    formula: Formula | None = flop_registry.get(packet)
    return (0, 0) if formula is None else (formula(*arguments, **options, out_val=output), 0)


def _attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> int:
    """Return the FLOPs of the two matrix products of attention's forward pass."""
    return int(sdpa_flop_count(query.shape, key.shape, value.shape))  # type: ignore[no-untyped-call]


_WAIT = torch.ops._c10d_functional.wait_tensor.default
_READ_SCALAR = torch.ops.aten._local_scalar_dense.default


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Dispatch mode that sees every operator on fake tensors, also DTensor's local ones."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ledger = Ledger()
        self.flops: Counter[Phase] = Counter()
        self._purpose: Category | None = None
        self._is_paused = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator; see TorchDispatchMode."""
        if any(hasattr(kind, "__tensor_flatten__") for kind in types):
            return NotImplemented  # a wrapper, as a DTensor is: what it does locally comes here by itself
        options = kwargs or {}
        if func is _READ_SCALAR and isinstance(args[0], FakeTensor):
            return 1  # no fake tensor has a value, and this is one that a count of steps can have
        if self._is_paused:
            return func(*args, **options)
        phase = self._enter_phase()
        # What waiting returns is what it was given; for fakes torch makes another tensor.
        output = args[0] if func is _WAIT else func(*args, **options)
        for tensor in tree_leaves(output):
            if isinstance(tensor, FakeTensor):
                self.ledger.see(tensor, self._purpose)
        self._count(phase, func, args, options, output)
        return output

    def begin(self) -> None:
        """Start looking for the peak and counting FLOPs."""
        self.ledger.start()
        self.flops.clear()

    @contextmanager
    def purpose(self, category: Category) -> Iterator[None]:
        """Label what is created inside with `category`."""
        before, self._purpose = self._purpose, category
        try:
            yield
        finally:
            self._purpose = before

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Ignore what is done inside."""
        before, self._is_paused = self._is_paused, True
        try:
            yield
        finally:
            self._is_paused = before

    def _enter_phase(self) -> Phase | None:
        task = torch._C._current_graph_task_id()
        in_backward = task != -1
        phase: Phase | None = None
        if torch.is_grad_enabled():
            phase = Phase.RECOMPUTE if in_backward else Phase.FORWARD
        elif in_backward:
            phase = Phase.BACKWARD
        elif self.ledger.phase is Phase.FORWARD:
            return None  # FSDP2's own work between the layers of a forward pass, which goes on
        self.ledger.enter(phase, task)
        return phase

    def _count(self, phase: Phase | None, func: Any, args: Any, options: dict[str, Any], output: Any) -> None:
        done, again = flops(func, args, options, output)
        if done and phase is not None:
            self.flops[phase] += done - again
            self.flops[Phase.RECOMPUTE] += again
