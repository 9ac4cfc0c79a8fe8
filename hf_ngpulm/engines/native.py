"""Load the native core's library for this processor, and call its functions with typed arguments.

The library contains the declarations of its sources (`csrc/`) as text. The declarations give the members of structs and the
parameters of functions. Callers pass tensors or arrays as pointers. This module checks the dtype and layout of the tensors and
arrays, because the core can't.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from ..errors import NGramFormatError
from .locks import lock_across_forks

LIBRARY_VARIABLE = "HF_NGPULM_NATIVE"
LIBRARIES = Path(__file__).parent / "lib"
SOURCES = Path(__file__).parents[2] / "csrc"  # exists only in a source tree
REMEDY = "In a source tree run `make setup` (or `python csrc/build.py`); elsewhere install hf-ngpulm again."
FAILED_MEMORY, FAILED_INTERNALLY, FAILED_CHECK = -100, -101, -102

NUMBERS: dict[str, Any] = {
    "int64_t": ctypes.c_int64, "int32_t": ctypes.c_int32, "uint8_t": ctypes.c_uint8, "float": ctypes.c_float,
    "double": ctypes.c_double,
}  # fmt: skip
ELEMENTS: dict[str, str | None] = {  # None: any dtype
    "int64_t": "int64", "uint64_t": "uint64", "int32_t": "int32", "int16_t": "int16", "int8_t": "int8", "uint8_t": "uint8",
    "bool": "bool", "float": "float32", "double": "float64", "void": None,
}  # fmt: skip


DAMAGED = "the model's file is damaged (mmap=False names the fault)"


class NativeCoreError(ImportError):
    """The native core for this platform is missing, or doesn't belong to this version of the package."""


class _Names(dict[Any, str]):
    """A cache of the names of dtypes. Without the cache, reading a name takes longer than the smallest calls of the core."""

    def __missing__(self, dtype: Any) -> str:
        self[dtype] = dtype.name if isinstance(dtype, np.dtype) else str(dtype)[6:]
        return self[dtype]


_names = _Names()


def _address(value: Any, element: str | None, *names: str) -> int | None:
    """Return the address of the data in a tensor, array or struct. `element` is the required dtype or struct (None for any).

    `names` are for the error message: the names of a struct and its member, or the name of a parameter.
    """
    if value is None:
        return None
    if isinstance(value, np.ndarray):
        dtype, is_whole = _names[value.dtype], value.flags.c_contiguous
        # The first way is a microsecond faster, and a call may have dozens of arrays.
        is_plain = is_whole and value.flags.writeable and value.size > 0
        address = ctypes.addressof(ctypes.c_char.from_buffer(value)) if is_plain else value.ctypes.data  # type: ignore[arg-type]
    elif isinstance(value, Struct):
        dtype, is_whole, address = value.name, True, ctypes.addressof(value)
    else:  # a tensor; calls with arrays alone need no torch
        dtype, is_whole, address = _names[value.dtype], value.is_contiguous() and value.is_cpu, value.data_ptr()
    if not is_whole or (element is not None and dtype != element and not (element == "uint8" and dtype == "bool")):
        raise TypeError(f"{'.'.join(names)} must be contiguous, on the CPU and of type {element or 'any'}; got {dtype}")
    return address


_declaring = lock_across_forks()
_POINTERS: dict[tuple[str, str], type] = {}


def _pointer(element: str, name: str) -> type:
    """Return the ctypes type of the pointer parameter `name`. The type checks that arguments fit `element`, a C type."""
    if (element, name) not in _POINTERS:
        dtype = ELEMENTS[element]

        class Pointer(ctypes.c_void_p):
            @classmethod
            def from_param(cls, value: Any) -> Any:
                return ctypes.c_void_p(_address(value, dtype, name))

        _POINTERS[element, name] = Pointer
    return _POINTERS[element, name]


_KEPT = "_ngpulm_structs"  # the attribute of a tensor that holds its `_StructCache`


class _StructCache(dict[Any, Any]):
    """Cached structs, an attribute of a tensor. A copied or unpickled tensor starts with an empty cache."""

    def __reduce__(self) -> Any:
        return _StructCache, ()


class Struct(ctypes.Structure):
    """A struct of the core, with the members that the core declares. A subclass has the struct's name, with or without
    `Ngpulm`.

    The constructor takes all members as keyword arguments. A pointer takes a tensor, an array or a struct; any other member
    takes a number. The struct keeps the objects behind its pointers alive.
    """

    all: ClassVar[dict[str, type[Struct]]] = {}
    name: ClassVar[str]
    _elements: ClassVar[dict[str, str | None]]  # dtype of each member that is a pointer
    _names: ClassVar[set[str]]

    def __init_subclass__(cls) -> None:
        cls.name = "Ngpulm" + cls.__name__.lstrip("_").removeprefix("Ngpulm")
        Struct.all[cls.name] = cls

    def __new__(cls, **values: Any) -> Any:
        """Define the members when the first instance is made. Later instances use only ctypes, which is faster."""
        with _declaring:
            if "_fields_" not in cls.__dict__:
                members = _declared(cls.name)
                cls._elements = {name: ELEMENTS.get(element, element) for element, star, name in members if star}
                cls._names = {name for *_, name in members}
                cls._fields_ = [(name, ctypes.c_void_p if star else NUMBERS[element]) for element, star, name in members]
                cls.__new__ = ctypes.Structure.__new__  # type: ignore[assignment]
        return ctypes.Structure.__new__(cls)

    def __init__(self, **values: Any) -> None:
        if values.keys() != self._names:
            raise TypeError(f"{self.name}: missing or unknown members {sorted(self._names ^ values.keys())}")
        self._alive = values
        elements = self._elements
        for name, value in values.items():
            setattr(self, name, _address(value, elements[name], self.name, name) if name in elements else value)

    @classmethod
    def kept(cls, tensor: Any, key: tuple[Any, ...], make: Callable[[], Any]) -> Any:
        """Return the struct that `make()` returns. The struct is cached on a tensor, under a key. Pass the struct only to a
        call that follows immediately, because the cache keeps no tensor alive.

        Making a struct takes a quarter of the time of the smallest calls.
        """
        cache = tensor.__dict__.get(_KEPT)
        if cache is None:
            cache = tensor.__dict__.setdefault(_KEPT, _StructCache())
        struct = cache.get(key)
        if struct is None:
            struct = make()
            struct._alive = {}
            if len(cache) > 3:  # arrays have moved, so most keys are outdated
                cache.clear()
            cache[key] = struct
        return struct

    def put(self, name: str, value: Any) -> None:
        """Set a member that is a pointer, and keep the data behind the pointer alive."""
        self._alive[name] = value
        setattr(self, name, _address(value, self._elements[name], self.name, name))


class Function:
    """A function of the core, looked up by name at its first call.

    A call releases the GIL and returns the function's result, or raises an error if the result reports a failure.

    Raises:
        MemoryError, RuntimeError: the core ran out of memory, or failed internally.
        NGramFormatError: a file that is mapped into memory is damaged at a place that the call reached.
        TypeError: an argument's dtype or layout differs from the declaration.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._call: Callable[..., int] | None = None

    def __call__(self, *arguments: Any) -> int:
        call = self._call or self._load()
        result = call(*arguments)
        if result <= FAILED_MEMORY:
            if result == FAILED_MEMORY:
                raise MemoryError(f"{self.name}: not enough memory")
            if result == FAILED_CHECK:
                raise NGramFormatError(f"broken n-gram automaton: {self.name} reached a state that is invalid; {DAMAGED}")
            raise RuntimeError(f"{self.name} failed with {result}: an error in the native core")
        return result

    def _load(self) -> Callable[..., int]:
        call = getattr(library(), self.name)
        call.restype, call.argtypes = ctypes.c_int64, [self._type(*parameter) for parameter in _declared(self.name)]
        self._call = call
        return call

    def _type(self, element: str, star: str, name: str) -> Any:
        if element in Struct.all:
            return ctypes.POINTER(Struct.all[element])
        return _pointer(element, f"{self.name}: {name}") if star else NUMBERS[element]


@functools.cache
def declarations() -> dict[str, str]:
    """Return the declared members of each struct and the declared parameters of each function, by name.

    `csrc/build.py` writes the declarations.
    """
    lines = library().ngpulm_declarations().decode().splitlines()
    return {name: declared for name, _, declared in (line.partition(" ") for line in lines)}


def _declared(name: str) -> list[tuple[str, str, str]]:
    """Return the declared members of the struct `name`, or the parameters of the function `name`. Each member or parameter is a
    tuple of three strings: the type, `*` for a pointer (otherwise ""), and the name.
    """
    return re.findall(r"(\w+)(\*?) (\w+)", declarations()[name])


@functools.cache
def library() -> ctypes.CDLL:
    """Return the library for this processor, after checking that it was built from this package's sources.

    The environment variable HF_NGPULM_NATIVE selects another library, by its path or by an instruction set (such as
    `x86-64-v3`).

    Raises:
        NativeCoreError: the library is missing, can't be loaded, or was built from other sources.
    """
    chosen = os.environ.get(LIBRARY_VARIABLE)
    if chosen and os.sep in chosen:
        return _load(Path(chosen))
    machine = {"amd64": "x86-64", "x86_64": "x86-64"}.get(platform.machine().lower(), platform.machine().lower())
    core = _load(_path(chosen or machine))
    if chosen or machine != "x86-64":
        return core
    level = core.ngpulm_level()
    return core if level < 3 else _load(_path(f"{machine}-v{level}"))


def _path(name: str) -> Path:
    suffix = {"darwin": "dylib", "win32": "dll"}.get(sys.platform, "so")
    return LIBRARIES / f"ngpulm-{name}.{suffix}"


def _load(path: Path) -> ctypes.CDLL:
    if not path.exists():
        present = sorted(found.name for found in LIBRARIES.glob("ngpulm-*")) or "nothing"
        raise NativeCoreError(f"the native core for this platform is missing: {path} (there is {present}). {REMEDY}")
    try:
        core = ctypes.CDLL(str(path))
        core.ngpulm_sources.restype = core.ngpulm_declarations.restype = ctypes.c_char_p
        core.ngpulm_level.restype = ctypes.c_int64
    except (OSError, AttributeError) as error:
        raise NativeCoreError(f"{path} is no native core for this platform ({error}). {REMEDY}") from error
    built, expected = core.ngpulm_sources().decode(), _digest()
    if expected is not None and built != expected:
        raise NativeCoreError(
            f"{path} was built from other sources than those in {SOURCES} ({built}, not {expected}). {REMEDY}"
        )
    return core


def _digest() -> str | None:
    """Return the digest of the sources, computed as in `csrc/build.py`. Return None outside a source tree."""
    if not (SOURCES / "build.py").exists():
        return None
    digest = hashlib.sha256()
    for path in sorted(SOURCES.glob("*.[chp]*")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]
