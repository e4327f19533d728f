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

from frontrunner.evaluators.trainer.optimizer import local
from frontrunner.evaluators.trainer.parts.recompute import kept_operators


class _MovedStorage:
    """A storage that a layer has saved, as tensors of bytes.

    `device` is None from the end of the copy to the host until the copy back begins.
    """

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self.device: Tensor | None = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(
            storage
        )
        is_pinned = storage.device.type != "cpu"
        self.host = torch.empty(storage.nbytes(), dtype=torch.uint8, pin_memory=is_pinned)


@dataclass(frozen=True)
class _SavedTensor:
    """What autograd keeps instead of a tensor: a view of a storage that its layer has moved."""

    layer: "_LayerCall"
    storage: _MovedStorage
    dtype: torch.dtype
    offset: int | torch.SymInt
    size: torch.Size
    stride: tuple[int, ...]


class _LayerCall:
    """One call of one layer, and the storages that it has saved.

    Autograd's nodes own the calls and the moved storages, so both are freed after their last use.
    References between them are weak.
    """

    def __init__(self, previous: "_LayerCall | None") -> None:
        self.previous: Callable[[], _LayerCall | None] = (
            (lambda: None) if previous is None else weakref.ref(previous)
        )
        # By address and version. These must not be freed on the device before they are copied.
        self.leaving: dict[tuple[int, int], _MovedStorage] = {}
        self.moved: list[weakref.ref[_MovedStorage]] = []
        # Events at the end of the copies to the host and back; None on a CPU.
        self.copied: Any = None
        self.fetched: Any = None
        self.is_fetched = False


def _copy(target: Tensor, source: Tensor) -> None:
    target.copy_(source, non_blocking=True)


class HostActivations:
    """Moves what layers save for the backward pass to the host's memory, and back before its use.

    Each storage is copied once, however many tensors are views of it. Copies run on two streams of
    their own beside the computation. Those of a layer run while the next layer computes and have
    ended when its forward pass ends, so that the device holds the activations of two layers at
    most. Tensors that are given to `layer` or `leave`, and views of them, stay on the device:
    parameters, and what outlives the layer.
    """

    def __init__(self) -> None:
        self._device = torch.device("cpu")
        self._out: Any = None  # stream of copies to the host, made at the first call of a layer
        self._back: Any = None  # stream of copies to the device
        self._last: _LayerCall | None = None
        self._staying: set[int] = set()  # addresses of the current layer's staying storages
        self._pack: Any = None  # the current layer's hook for tensors that autograd saves

    @contextmanager
    def layer(self, device: torch.device, staying: Iterable[Tensor]) -> Iterator[None]:
        """Run a layer's forward pass on `device` inside this context.

        Args:
            device: The device that the layer computes on.
            staying: Tensors that are not moved.
        """
        module = torch.get_device_module(device)
        if self._out is None:
            self._device = device
            self._out = module.Stream()
            self._back = module.Stream()
        previous = self._last
        layer = _LayerCall(previous)

        def pack(tensor: Tensor) -> Tensor | _SavedTensor:
            if (
                isinstance(tensor, DTensor)
                or tensor.device != device
                or tensor.untyped_storage().data_ptr() in self._staying
            ):
                return tensor
            storage = tensor.untyped_storage()
            key = storage.data_ptr(), tensor._version
            if key not in layer.leaving:
                moved = layer.leaving[key] = _MovedStorage(storage)
                layer.moved.append(weakref.ref(moved))
                self._out.wait_stream(module.current_stream())
                with module.stream(self._out):
                    _copy(moved.host, cast("Tensor", moved.device))
            return _SavedTensor(
                layer=layer,
                storage=layer.leaving[key],
                dtype=tensor.dtype,
                offset=tensor.storage_offset(),
                size=tensor.shape,
                stride=tensor.stride(),
            )

        self._pack = pack
        with self.leave(staying), saved_tensors_hooks(pack, self._unpack):
            yield
        layer.copied = self._out.record_event()
        self._last = layer
        if previous is not None and previous.leaving:
            module.current_stream().wait_event(previous.copied)
            for moved in previous.leaving.values():
                moved.device = None
            previous.leaving.clear()

    @contextmanager
    def leave(self, staying: Iterable[Tensor]) -> Iterator[None]:
        """Leave these tensors of the layer on the device inside this context.

        FSDP gathers a nested unit's parameters for the forward pass of that unit and frees them
        after it. So only the unit can name them, and another tensor may get their address later.
        """
        addresses = {local(tensor).untyped_storage().data_ptr() for tensor in staying}
        before = self._staying
        self._staying = before | addresses
        try:
            yield
        finally:
            self._staying = before

    def selective_contexts(self) -> tuple[TorchDispatchMode, TorchDispatchMode]:
        """Return the contexts of a layer's forward pass and recomputation in selective recompute.

        They do what torch's `create_selective_checkpoint_contexts` does. No hook sees the cache of
        torch's own contexts; these keep results in the same way as all that the layer saves.
        """
        kept_results = deque[tuple[torch._ops.OpOverload, Any]]()
        return _KeepingMode(kept_results, self._pack), _ReturningMode(kept_results, self._unpack)

    def _unpack(self, saved: Tensor | _SavedTensor) -> Tensor:
        if isinstance(saved, Tensor):
            return saved
        layer = saved.layer
        self._fetch(layer)
        torch.get_device_module(self._device).current_stream().wait_event(layer.fetched)
        # What has not left the device yet stays there, and is freed after its use.
        layer.leaving.clear()
        if (previous := layer.previous()) is not None:
            self._fetch(previous)
        storage = cast("Tensor", saved.storage.device).untyped_storage()
        tensor = torch.empty(0, dtype=saved.dtype, device=self._device)
        return tensor.set_(storage, saved.offset, saved.size, saved.stride)

    def _fetch(self, layer: _LayerCall) -> None:
        """Start the copies of a layer's storages to the device, unless they have been started."""
        if layer.is_fetched:
            return
        module = torch.get_device_module(self._device)
        missing = [
            moved
            for reference in layer.moved
            if (moved := reference()) is not None and moved.device is None
        ]
        # The computation's stream allocates the memory and may still use what lay there before:
        # the copies wait for it.
        for moved in missing:
            moved.device = torch.empty_like(moved.host, device=self._device)
        self._back.wait_stream(module.current_stream())
        with module.stream(self._back):
            for moved in missing:
                _copy(cast("Tensor", moved.device), moved.host)
        layer.fetched = self._back.record_event()
        layer.is_fetched = True


class _KeepingMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Forward pass that keeps the results of `kept_operators`, each as `pack` returns it."""

    def __init__(
        self,
        kept_results: deque[tuple[torch._ops.OpOverload, Any]],
        pack: Callable[[Tensor], Tensor | _SavedTensor],
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._kept_results = kept_results
        self._pack = pack

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in kept_operators():
            if func.namespace == "_c10d_functional":
                # A copy does not wait for a collective by itself.
                result = torch.ops._c10d_functional.wait_tensor(result)
            self._kept_results.append((func, tree_map_only(Tensor, self._packed, result)))
        return result

    def _packed(self, tensor: Tensor) -> Tensor | _SavedTensor:
        return self._pack(tensor.detach())


class _ReturningMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Recomputation that takes the results of `kept_operators` from `kept_results`, in order."""

    def __init__(
        self,
        kept_results: deque[tuple[torch._ops.OpOverload, Any]],
        unpack: Callable[[Tensor | _SavedTensor], Tensor],
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._kept_results = kept_results
        self._unpack = unpack

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func not in kept_operators():
            return func(*args, **(kwargs or {}))
        kept_operator, result = self._kept_results.popleft()
        if kept_operator is not func:
            raise RuntimeError(
                f"the recomputation runs {func}, but the forward pass ran {kept_operator} here"
            )
        return tree_map_only((Tensor, _SavedTensor), self._unpack, result)
