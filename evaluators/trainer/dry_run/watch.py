"""A mode of torch's dispatcher that sees each operator of a rank: its storages for the ledger, its FLOPs by phase."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from frontrunner.evaluators.trainer.dry_run.flops import flops
from frontrunner.evaluators.trainer.dry_run.ledger import Category, Ledger, Phase

_WAIT = torch.ops._c10d_functional.wait_tensor.default
_READ_SCALAR = torch.ops.aten._local_scalar_dense.default


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every operator on fake tensors, DTensor's local ones among them."""

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
        """Look for the peak, and count FLOPs, from here on."""
        self.ledger.start()
        self.flops.clear()

    @contextmanager
    def purpose(self, category: Category) -> Iterator[None]:
        """What is made within is for `category`."""
        before, self._purpose = self._purpose, category
        try:
            yield
        finally:
            self._purpose = before

    @contextmanager
    def paused(self) -> Iterator[None]:
        """What is done within is no part of the program."""
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
