"""A GPU that is not there: tensors that say they are on "cuda", computed on the CPU under a GPU's rules.

An operation on tensors of both sides fails, as it would; whatever makes the host wait for the device is counted, and
fails where a graph is being recorded. Numbers are real, so that tokens can be compared.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch._ops import HigherOrderOperator
from torch.overrides import _get_current_function_mode_stack
from torch.utils import _device
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.weak import WeakTensorKeyDictionary

from tests.tape import Tape

DEVICE = torch.device("cuda", 0)
HOST = torch.device("cpu")
_aten = torch.ops.aten
_IN_PARTS = {_aten.to, _aten.pin_memory, _aten.type_as}
"""Operations taken apart, for what they copy depends on what they are given."""
_COPIES = {_aten._to_copy, _aten.copy_}
_WAITS = {_aten._local_scalar_dense, _aten.item, _aten.is_nonzero, _aten.equal, _aten.allclose, _aten.bincount}
_WAITS |= {_aten.nonzero, _aten.masked_select, _aten.unique_dim, _aten._unique2, _aten.unique_consecutive}
"""Operations whose shape or answer the host must know."""
_LANDING = "the end of a step"
_INDEXING = {_aten.index, _aten.index_put, _aten.index_put_}


class DeviceTensor(torch.Tensor):
    """What seems to be a CUDA tensor; `held` is where its numbers are."""

    held: torch.Tensor

    @staticmethod
    def __new__(cls: type[DeviceTensor], held: torch.Tensor) -> DeviceTensor:
        # What is made in inference mode could not be a view of what was made outside of it.
        with torch.inference_mode(False):
            made = torch.Tensor._make_wrapper_subclass(
                cls,
                held.shape,
                strides=held.stride(),
                storage_offset=held.storage_offset(),
                dtype=held.dtype,
                device=DEVICE,
            )
        made.held = held
        return made

    def __init__(self, held: torch.Tensor) -> None:
        pass

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    def __repr__(self, *, tensor_contents: object = None) -> str:
        return f"DeviceTensor({self.held})"

    def tolist(self) -> Any:
        """The numbers, brought to the host: torch's own refuses subclasses."""
        return self.cpu().tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{func} on a device's tensor where no device is pretended")


class PretendedGpu(TorchDispatchMode):
    """The rules. `waits` counts by name what made the host wait; while `tape` is there, a graph is being recorded."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.waits: Counter[str] = Counter()
        self.tape: Tape | None = None
        self.warns = False
        self._pinned: Any = WeakTensorKeyDictionary()

    def pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        """The host tensor, from now on one that the device can copy by itself."""
        self._pinned[tensor] = True
        return tensor

    def wait(self, what: str) -> None:
        """The host waits for the device."""
        if self.tape is not None:
            raise RuntimeError(f"{what}: operation not permitted when stream is capturing")
        self.waits[what] += 1
        if self.warns and what != _LANDING:
            warnings.warn(f"called a synchronizing CUDA operation: {what}", stacklevel=2)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if isinstance(func, HigherOrderOperator):
            return self._run_eagerly(func, args, kwargs)
        packet = func.overloadpacket
        if packet in _IN_PARTS:
            with self:
                return func.decompose(*args, **kwargs)
        if packet is _aten.is_pinned:
            return args[0] in self._pinned
        if packet is _aten._pin_memory:
            return self.pinned(args[0].clone())
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        is_ours = any(isinstance(tensor, DeviceTensor) for tensor in tensors)
        goes_to_device = _given_device(func, args, kwargs, is_ours)
        if packet in _COPIES:
            self._check_copy(str(packet), args, kwargs, goes_to_device)
        elif is_ours:
            self._check(packet, args, tensors)
        return self._run(func, args, kwargs, goes_to_device)

    def _run_eagerly(self, func: HigherOrderOperator, args: Any, kwargs: Any) -> Any:
        """What a GPU would have compiled: for the waits of this form nobody can be blamed."""
        waits, warns = self.waits.copy(), self.warns
        self.warns = False
        try:
            with self:
                return func.py_kernels[torch._C.DispatchKey.CompositeExplicitAutograd](*args, **kwargs)
        finally:
            self.waits, self.warns = waits, warns

    def _check(self, packet: Any, args: Any, tensors: list[torch.Tensor]) -> None:
        name = str(packet)
        if packet in _INDEXING:
            indices = [index for index in args[1] if index is not None]
            if not isinstance(args[0], DeviceTensor):
                raise RuntimeError(f"{name}: indices of a host tensor are on the device")
            if any(not isinstance(index, DeviceTensor) for index in indices):
                self.wait(f"{name} by the host's indices")
            if any(index.dtype in (torch.bool, torch.uint8) for index in indices):
                self.wait(f"{name} by a mask")
            tensors = [tensor for tensor in tensors if not any(tensor is index for index in indices)]
        elif packet in _WAITS or (packet is _aten.repeat_interleave and isinstance(args[-1], DeviceTensor)):
            self.wait(name)
        if any(tensor.dim() and not isinstance(tensor, DeviceTensor) for tensor in tensors):
            raise RuntimeError(f"{name}: expected all tensors to be on the same device")

    def _check_copy(self, name: str, args: Any, kwargs: Any, goes_to_device: bool) -> None:
        source, target = (args[1], args[0]) if len(args) > 1 else (args[0], None)
        to_device = isinstance(target, DeviceTensor) if target is not None else goes_to_device
        if isinstance(source, DeviceTensor) == to_device:
            return
        is_queued = kwargs.get("non_blocking") or (target is not None and len(args) > 2 and args[2])
        host = source if to_device else target
        if self.tape is not None:
            raise RuntimeError(f"{name} between host and device: operation not permitted when stream is capturing")
        if not (is_queued and host is not None and host in self._pinned):
            self.wait(f"{name} {'to' if to_device else 'from'} the device")

    def _run(self, func: Any, args: Any, kwargs: Any, goes_to_device: bool) -> Any:
        wrappers: dict[int, DeviceTensor] = {}

        def unwrapped(leaf: Any) -> Any:
            if not isinstance(leaf, DeviceTensor):
                return HOST if leaf == DEVICE or leaf == torch.device("cuda") else leaf
            wrappers[id(leaf.held)] = leaf
            return leaf.held

        def wrapped(leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor):
                return leaf
            # An operation in place gives what it was given.
            known = wrappers.get(id(leaf))
            return known if known is not None else DeviceTensor(leaf) if goes_to_device else leaf

        args, kwargs = tree_map(unwrapped, (args, kwargs))
        with self.tape or nullcontext():
            output = func(*args, **kwargs)
        return tree_map(wrapped, output)


def _given_device(func: Any, args: Any, kwargs: Any, default: bool) -> bool:
    """Whether what comes out of `func` is on the device: as its argument says, else where its inputs are."""
    for place, argument in enumerate(func._schema.arguments):
        if argument.name == "device":
            device = kwargs.get("device", args[place] if place < len(args) else None)
            return default if device is None else device.type == "cuda"
    return default


class _Stream:
    """One stream is as good as another: nothing runs by itself."""

    gpu: PretendedGpu

    def wait_stream(self, stream: _Stream) -> None:
        """Done already."""

    def synchronize(self) -> None:
        """Counted."""
        self.gpu.wait("synchronize")


class _Event:
    """What was recorded has happened."""

    gpu: PretendedGpu

    def record(self, stream: _Stream) -> None:
        """Done already."""

    def synchronize(self) -> None:
        """Counted; torch warns of no such wait."""
        self.gpu.wait(_LANDING)


class _Graph:
    """`torch.cuda.CUDAGraph` by a tape."""

    def __init__(self) -> None:
        self.tape = Tape()

    def pool(self) -> tuple[int, int]:
        """A name for its memory."""
        return (0, 1)

    def replay(self) -> None:
        """What was recorded, once more."""
        self.tape.play()


def _device_in_context() -> torch.device | None:
    """Where `with torch.device(…)` has new tensors made."""
    modes = _get_current_function_mode_stack()
    return next((mode.device for mode in reversed(modes) if isinstance(mode, _device.DeviceContext)), None)


@contextmanager
def pretended_gpu(memory_bytes: int = 1 << 30) -> Iterator[PretendedGpu]:
    """A GPU of so much memory, for as long as the context is open: torch finds it, and "cuda" is where it is."""
    gpu = PretendedGpu()
    tensor_of, empty_of = torch.tensor, torch.empty
    _device._device_constructors()  # remembered before any is replaced

    def made(*args: Any, pin_memory: bool = False, device: Any = None, **options: Any) -> torch.Tensor:
        device = _device_in_context() if device is None else device
        is_ours = device is not None and torch.device(device).type == "cuda"
        tensor = tensor_of(*args, device=HOST if is_ours else device, **options)
        tensor = tensor.to(DEVICE) if is_ours else tensor
        return gpu.pinned(tensor) if pin_memory else tensor

    def empty(*size: Any, pin_memory: bool = False, **options: Any) -> torch.Tensor:
        tensor = empty_of(*size, **options)
        return gpu.pinned(tensor) if pin_memory else tensor

    @contextmanager
    def recording(graph: _Graph, pool: tuple[int, int] | None = None, **_: Any) -> Iterator[None]:
        assert gpu.tape is None, "one graph at a time"
        gpu.tape = graph.tape
        try:
            yield
        finally:
            gpu.tape = None

    torch._C._ensureCUDADeviceGuardSet()  # none of its own code may look for the driver
    stream = type("Stream", (_Stream,), {"gpu": gpu})
    with (
        patch("torch.tensor", made),
        patch("torch.empty", empty),
        # A parameter cannot become one of another class; it is replaced.
        patch("torch.__future__.get_overwrite_module_params_on_conversion", lambda: True),
        patch.multiple(
            torch.cuda,
            _lazy_init=lambda: None,
            is_available=lambda: True,
            get_device_name=lambda *_: "pretended GPU",
            get_device_properties=lambda *_: SimpleNamespace(total_memory=memory_bytes, major=9, minor=0),
            empty_cache=lambda: None,
            mem_get_info=lambda *_: (memory_bytes, memory_bytes),
            synchronize=lambda *_: None,
            set_sync_debug_mode=lambda mode: setattr(gpu, "warns", mode == "warn"),
            current_stream=lambda *_: stream(),
            Stream=stream,
            Event=type("Event", (_Event,), {"gpu": gpu}),
            stream=lambda _: nullcontext(),
            CUDAGraph=_Graph,
            graph=recording,
        ),
        gpu,
    ):
        yield gpu
