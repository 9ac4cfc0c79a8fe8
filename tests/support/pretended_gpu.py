"""A GPU that is pretended: tensors that say they are on `cuda:0` while a CPU does the work.

As on a real one, what is on it and what is on the CPU can't be mixed, and looking at a value waits for the device: both are
noticed here. `ptx` runs Triton's kernels; graphs and streams are none.

    with pretended_gpu() as gpu:
        scores = lm.to("cuda").scores(states)
        assert not gpu.waits
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest
import torch
from torch._ops import OpOverload, OpOverloadPacket
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_map
from triton.runtime.jit import JITFunction

GPU = torch.device("cuda:0")
VIEWS = ("T", "mT", "H", "mH", "data", "real")  # attributes that are tensors
# Who looks at a value, or at how many there are of some kind, waits.
LOOKS = {"item", "tolist", "equal", "allclose", "nonzero", "unique", "masked_select", "is_nonzero", "unique_consecutive"}
LOOKS |= {"__bool__", "__int__", "__float__", "__index__", "__contains__", "bincount"}
_waits: list[str] = []
_kernels: list[str] = []


class MixedDevicesError(RuntimeError):
    """An operator was given tensors of several devices."""


class OnGPU(torch.Tensor):
    """A tensor that says it is on the GPU; `inner` has its numbers. All that is done with it goes through `_Device`."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> OnGPU:
        made = torch.Tensor._make_wrapper_subclass(
            cls, inner.size(), strides=inner.stride(), storage_offset=inner.storage_offset(), dtype=inner.dtype, device=GPU
        )
        made.inner = inner
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})

    def __array__(self, *given: Any) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy")


def _wait(what: str) -> None:
    frames = [frame for frame in traceback.extract_stack() if "/hf_ngpulm/" in frame.filename]
    _waits.append(
        f"{what} in " + "".join(f"{frame.filename.rpartition('/hf_ngpulm/')[2]}:{frame.lineno}" for frame in frames[-1:])
    )


def _is_gpu(device: Any) -> bool:
    return device is not None and torch.device(device).type == "cuda"


def _inner(value: Any) -> Any:
    return value.inner if isinstance(value, OnGPU) else value


def _leaves(*values: Any) -> list[Any]:
    return [leaf for leaf in tree_flatten(values)[0] if isinstance(leaf, torch.Tensor)]


def _check(what: str, *values: Any) -> bool:
    """Whether tensors are on the GPU, and none of them elsewhere; numbers may be anywhere."""
    tensors = _leaves(*values)
    there = [tensor for tensor in tensors if isinstance(tensor, OnGPU)]
    if there and any(not isinstance(tensor, OnGPU) and tensor.dim() for tensor in tensors):
        raise MixedDevicesError(f"{what}: " + ", ".join(f"{tensor.device.type} {tuple(tensor.shape)}" for tensor in tensors))
    return bool(there)


def _run(func: Any, args: Any, kwargs: Any) -> Any:
    """Call a function on what tensors hold; its results are where its arguments are."""
    name = getattr(func, "__name__", str(func))
    kwargs = dict(kwargs)
    device = kwargs.get("device")
    if (name == "__getitem__" and isinstance(args[0], OnGPU)) or name == "__setitem__":
        value = args[2] if len(args) > 2 else ()
        on_gpu = _check(name, args[0], *([value] if isinstance(value, torch.Tensor) and value.dim() else []))
        if not on_gpu and any(isinstance(leaf, OnGPU) for leaf in _leaves(args[1])):
            raise MixedDevicesError(f"{name}: a tensor on the CPU, indices on the GPU")
        if on_gpu and name == "__getitem__" and any(leaf.dtype == torch.bool and leaf.dim() for leaf in _leaves(args[1])):
            _wait("a mask as index")
        if (on_gpu and isinstance(args[1], list)) or any(
            isinstance(part, list) for part in args[1:2] if isinstance(part, list)
        ):
            _wait("a list as index")
    elif name in ("copy_", "_has_compatible_shallow_copy_type"):
        on_gpu = isinstance(args[0], OnGPU)
        if name == "copy_" and not on_gpu and isinstance(args[1], OnGPU):
            _wait(name)
    elif device is not None:
        on_gpu, kwargs["device"] = _is_gpu(device), "cpu"
        if on_gpu and name in ("tensor", "as_tensor"):
            _wait(name)  # from memory that isn't pinned
    else:
        on_gpu = _check(name, args, kwargs)
    if on_gpu and (name in LOOKS or (name == "repeat_interleave" and "output_size" not in kwargs and _leaves(args[1:]))):
        _wait(name)
    if on_gpu and name in ("numpy", "from_numpy"):
        raise TypeError("can't convert cuda:0 device type tensor to numpy")
    if on_gpu and isinstance(func, OpOverload | OpOverloadPacket):  # one of ours
        args = tuple("gpu" if isinstance(value, str) and value == "auto" else value for value in args)
        if "cpu" in [value for value in args if isinstance(value, str)]:
            raise MixedDevicesError(f"{name}: the engine 'cpu' with tensors on a GPU")
    own = {id(_inner(leaf)): leaf for leaf in _leaves(args, kwargs)}
    result = func(*tree_map(_inner, list(args)), **tree_map(_inner, kwargs))

    def outer(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or isinstance(value, OnGPU):
            return value
        return own[id(value)] if id(value) in own else OnGPU(value)  # the same tensor, if it was changed in place

    return tree_map(outer, result) if on_gpu else result


class _Device(TorchFunctionMode):
    """Stands between the program and torch."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "to" and isinstance(args[0], torch.Tensor):
            return _moved(*args, **kwargs)
        if name == "cuda":
            return _moved(args[0], "cuda")
        if name == "cpu" and isinstance(args[0], OnGPU):
            return _moved(args[0], "cpu")
        if name in ("__get__", "__set__", "__delete__"):
            attribute = func.__self__.__name__
            if name == "__get__" and isinstance(args[0], OnGPU) and attribute in VIEWS:
                return OnGPU(getattr(args[0].inner, attribute))
            return func(*args, **kwargs)
        if not _is_gpu(kwargs.get("device")) and not any(isinstance(leaf, OnGPU) for leaf in _leaves(args, kwargs)):
            return func(*args, **kwargs)
        return _run(func, args, kwargs)


def _moved(tensor: Any, *rest: Any, device: Any = None, **kwargs: Any) -> Any:
    """`Tensor.to`, with a device, a type, another tensor, or several of them."""
    others = []
    for value in rest:
        if isinstance(value, str | torch.device):
            device = value
        elif isinstance(value, torch.Tensor):
            device, others = value.device, [value.dtype]
        elif value is not None and not isinstance(value, bool):  # whether to wait, to copy: neither matters
            others.append(value)
    was = isinstance(tensor, OnGPU)
    goes = was if device is None else _is_gpu(device)
    if was and not goes:
        _wait("copy")
    inner = _inner(tensor)
    moved = inner.to(*others, **kwargs) if others or kwargs else inner
    if goes == was:
        return tensor if moved is inner else OnGPU(moved) if goes else moved
    moved = moved.clone() if moved is inner else moved
    return OnGPU(moved) if goes else moved


class Pretence:
    """What happened on it: `waits`, where the host waited for it, and `kernels`, Triton's, that were launched."""

    @property
    def waits(self) -> list[str]:
        return _waits

    @property
    def kernels(self) -> list[str]:
        return _kernels

    def forget(self) -> None:
        _waits.clear()
        _kernels.clear()


class _AtOnce:
    """Stands where a pool of threads does: the pretence is this thread's alone."""

    def __init__(self, *given: Any) -> None: ...

    def submit(self, work: Callable[..., Any], *args: Any) -> Future:
        done: Future = Future()
        done.set_result(work(*args))
        return done

    def shutdown(self, **given: Any) -> None: ...


@contextlib.contextmanager
def pretended_gpu() -> Iterator[Pretence]:
    launch: Callable[..., Any] = JITFunction.run

    def launched(kernel: Any, *args: Any, **kwargs: Any) -> Any:
        tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor) and value.numel()]
        if any(isinstance(tensor, OnGPU) for tensor in tensors):
            strays = [tuple(tensor.shape) for tensor in tensors if not isinstance(tensor, OnGPU)]
            if strays:
                raise MixedDevicesError(f"{kernel.__name__} was given tensors on the CPU: {strays}")
        _kernels.append(kernel.__name__)
        return launch(kernel, *map(_inner, args), **{name: _inner(value) for name, value in kwargs.items()})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JITFunction, "run", launched)
        patch.setattr(torch.cuda, "current_device", lambda: 0)
        patch.setattr(torch.cuda, "is_available", lambda: True)
        properties = type("Properties", (), {"multi_processor_count": 2})
        stream = type("Stream", (), {"wait_event": lambda self, event: None, "record_event": lambda self: None})()
        patch.setattr(torch.cuda, "current_stream", lambda device=None: stream)
        patch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
        patch.setattr("hf_ngpulm.search.networks.graphs._cuda_graph", lambda device, work: lambda: work())
        patch.setattr("hf_ngpulm.ngrams.counting.ThreadPoolExecutor", _AtOnce)
        Pretence().forget()
        with _Device():
            yield Pretence()
