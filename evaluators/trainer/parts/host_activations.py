"""Offload of activations: what layers save for the backward pass waits in the host's memory."""

import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from frontrunner.evaluators.trainer.parts.recompute import kept_operators


class _Moved:
    """A storage that a layer has saved: on the host, and on the device until it is there and again
    for its use.
    """

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self.device: Tensor | None = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(
            storage
        )
        pinned = storage.device.type != "cpu"
        self.host = torch.empty(storage.nbytes(), dtype=torch.uint8, pin_memory=pinned)


@dataclass(frozen=True)
class _Saved:
    """A tensor that autograd keeps: a view of what its layer has moved."""

    layer: "_Layer"
    moved: _Moved
    dtype: torch.dtype
    place: tuple[int | torch.SymInt, torch.Size, tuple[int, ...]]


class _Layer:
    """What one call of one layer has saved. Autograd's nodes keep it, and what it moved, as long as
    they need them.
    """

    def __init__(self, previous: "_Layer | None") -> None:
        self.previous: Callable[[], _Layer | None] = (
            (lambda: None) if previous is None else weakref.ref(previous)
        )
        self.leaving: dict[
            tuple[int, int], _Moved
        ] = {}  # not to be freed on the device before the copies are made
        self.moved: list[weakref.ref[_Moved]] = []
        self.copied: Any = None  # events; None on a CPU
        self.fetched: Any = None
        self.is_fetched = False


def _copy(target: Tensor, source: Tensor) -> None:
    target.copy_(source, non_blocking=True)


class HostActivations:
    """Moves what layers save for the backward pass into the host's memory, each storage once, and
    back.

    Copies run on streams of their own beside the computation: those of a layer while the next one
    runs, in the forward pass until its end at the latest, so that the device holds two layers'
    activations at most. Tensors that are given to `layer` or `leave` stay on the device, and so do
    views of them: parameters, and what outlives the layer.
    """

    def __init__(self) -> None:
        self._device = torch.device("cpu")
        self._out: Any = None
        self._back: Any = None
        self._last: _Layer | None = None
        self._staying: set[int] = set()  # addresses of the current layer's
        self._pack: Any = None  # the current layer's

    @contextmanager
    def layer(self, device: torch.device, staying: Iterable[Tensor]) -> Iterator[None]:
        """Run a layer's forward pass on `device` inside."""
        module = torch.get_device_module(device)
        if self._out is None:
            self._device, self._out, self._back = device, module.Stream(), module.Stream()
        layer, before = _Layer(self._last), self._last

        def pack(tensor: Tensor) -> Tensor | _Saved:
            if (
                isinstance(tensor, DTensor)
                or tensor.device != device
                or tensor.untyped_storage().data_ptr() in self._staying
            ):
                return tensor
            storage = tensor.untyped_storage()
            key = storage.data_ptr(), tensor._version
            if key not in layer.leaving:
                moved = layer.leaving[key] = _Moved(storage)
                layer.moved.append(weakref.ref(moved))
                self._out.wait_stream(module.current_stream())
                with module.stream(self._out):
                    _copy(moved.host, cast("Tensor", moved.device))
            place = tensor.storage_offset(), tensor.shape, tensor.stride()
            return _Saved(layer, layer.leaving[key], tensor.dtype, place)

        self._pack = pack
        with self.leave(staying), saved_tensors_hooks(pack, self._unpack):
            yield
        layer.copied, self._last = self._out.record_event(), layer
        if before is not None and before.leaving:
            module.current_stream().wait_event(before.copied)
            for moved in before.leaving.values():
                moved.device = None
            before.leaving.clear()

    @contextmanager
    def leave(self, staying: Iterable[Tensor]) -> Iterator[None]:
        """Leave these tensors of the layer on the device inside.

        FSDP gathers a nested unit's parameters for that unit's forward pass and frees them behind
        it, so that only the unit can name them, and another tensor may get their address later.
        """
        there = {
            (tensor.to_local() if isinstance(tensor, DTensor) else tensor)
            .untyped_storage()
            .data_ptr()
            for tensor in staying
        }
        before, self._staying = self._staying, self._staying | there
        try:
            yield
        finally:
            self._staying = before

    def selective_contexts(self) -> tuple[TorchDispatchMode, TorchDispatchMode]:
        """Return the contexts of a layer's forward pass and of its recomputation under selective
        recompute.

        As torch's `create_selective_checkpoint_contexts`, whose cache no hook sees, but results are
        kept where everything goes that the layer saves.
        """
        kept = deque[tuple[torch._ops.OpOverload, Any]]()
        return _KeepingMode(kept, self._pack), _ReturningMode(kept, self._unpack)

    def _unpack(self, saved: Tensor | _Saved) -> Tensor:
        if isinstance(saved, Tensor):
            return saved
        layer, stream = saved.layer, torch.get_device_module(self._device).current_stream()
        self._fetch(layer)
        stream.wait_event(layer.fetched)
        # What has not left the device yet stays there, and is freed after its use
        layer.leaving.clear()
        if (previous := layer.previous()) is not None:
            self._fetch(previous)
        storage = cast("Tensor", saved.moved.device).untyped_storage()
        return torch.empty(0, dtype=saved.dtype, device=self._device).set_(storage, *saved.place)

    def _fetch(self, layer: _Layer) -> None:
        """Start to bring back what a layer has moved, if that has not been done."""
        if layer.is_fetched:
            return
        module = torch.get_device_module(self._device)
        # The memory is the computation's, which has waited for what has left: the copies wait for
        # what it used there.
        missing = [
            moved for one in layer.moved if (moved := one()) is not None and moved.device is None
        ]
        for moved in missing:
            moved.device = torch.empty_like(moved.host, device=self._device)
        self._back.wait_stream(module.current_stream())
        with module.stream(self._back):
            for moved in missing:
                _copy(cast("Tensor", moved.device), moved.host)
        layer.fetched, layer.is_fetched = self._back.record_event(), True


class _KeepingMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Forward pass that keeps what the costly operators return, as `pack` makes it."""

    def __init__(
        self,
        kept: deque[tuple[torch._ops.OpOverload, Any]],
        pack: Callable[[Tensor], Tensor | _Saved],
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._kept, self._pack = kept, pack

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in kept_operators():
            if func.namespace == "_c10d_functional":  # a copy does not wait for a collective
                result = torch.ops._c10d_functional.wait_tensor(result)
            self._kept.append((func, tree_map_only(Tensor, self._packed, result)))
        return result

    def _packed(self, tensor: Tensor) -> Tensor | _Saved:
        return self._pack(tensor.detach())


class _ReturningMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Recomputation that takes what the costly operators returned from `kept`, in their order."""

    def __init__(
        self,
        kept: deque[tuple[torch._ops.OpOverload, Any]],
        unpack: Callable[[Tensor | _Saved], Tensor],
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._kept, self._unpack = kept, unpack

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func not in kept_operators():
            return func(*args, **(kwargs or {}))
        then, result = self._kept.popleft()
        if then is not func:
            raise RuntimeError(f"the recomputation runs {func}, the forward pass {then}")
        return tree_map_only((Tensor, _Saved), self._unpack, result)
