"""The native core: its library for this processor, and typed calls of what it exports.

Functions and structs are declared by the C++ text that `csrc/` has for them, so that a test can hold one to the other. A call
takes tensors or arrays where the declaration has pointers; their type and layout are checked, since the core can't.
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

LIBRARY_VARIABLE = "HF_NGPULM_NATIVE"
LIBRARIES = Path(__file__).parent / "lib"
SOURCES = Path(__file__).parents[2] / "csrc"  # in a source tree
REMEDY = "In a source tree run `make setup` (or `python csrc/build.py`); elsewhere install hf-ngpulm again."
FAILED_MEMORY, FAILED_INTERNALLY = -100, -101

NUMBERS: dict[str, Any] = {
    "int64_t": ctypes.c_int64, "int32_t": ctypes.c_int32, "uint8_t": ctypes.c_uint8, "float": ctypes.c_float,
    "double": ctypes.c_double,
}  # fmt: skip
ELEMENTS = {
    "int64_t": "int64", "uint64_t": "uint64", "int32_t": "int32", "int16_t": "int16", "int8_t": "int8", "uint8_t": "uint8",
    "bool": "bool", "float": "float32", "double": "float64",
}  # fmt: skip


class NativeCoreError(ImportError):
    """There is no native core for this platform, or it doesn't belong to this version of the package."""


class _Names(dict[Any, str]):
    """Names of types of elements, torch's as numpy has them: asking a type takes longer than the smallest calls do."""

    def __missing__(self, dtype: Any) -> str:
        self[dtype] = dtype.name if isinstance(dtype, np.dtype) else str(dtype)[6:]
        return self[dtype]


_names = _Names()


def _address(value: Any, element: str | None, *names: str) -> int | None:
    """Return where the numbers of a tensor or array are, `element` their type (None for any)."""
    if value is None:
        return None
    if isinstance(value, np.ndarray):
        dtype, is_whole = _names[value.dtype], value.flags.c_contiguous
        # The first is the faster way by a microsecond, and there may be dozens of arrays in a call.
        is_plain = is_whole and value.flags.writeable and value.size > 0
        address = ctypes.addressof(ctypes.c_char.from_buffer(value)) if is_plain else value.ctypes.data  # type: ignore[arg-type]
    else:  # a tensor; torch needn't be there for arrays
        dtype, is_whole, address = _names[value.dtype], value.is_contiguous() and value.is_cpu, value.data_ptr()
    if not is_whole or (element is not None and dtype != element and not (element == "uint8" and dtype == "bool")):
        raise TypeError(f"{'.'.join(names)} must be contiguous, on the CPU and of type {element or 'any'}; got {dtype}")
    return address


_POINTERS: dict[tuple[str, str], type] = {}


def _pointer(element: str, name: str) -> type:
    """Return the ctypes type of a pointer parameter."""
    if (element, name) not in _POINTERS:
        dtype = None if element == "void" else ELEMENTS[element]

        class Pointer(ctypes.c_void_p):
            @classmethod
            def from_param(cls, value: Any) -> Any:
                return ctypes.c_void_p(_address(value, dtype, name))

        _POINTERS[element, name] = Pointer
    return _POINTERS[element, name]


_StructType: Any = type(ctypes.Structure)


class _DeclaredType(_StructType):
    """The type of structs whose fields come from the text that declares them."""

    def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> Any:
        found = re.findall(r"(?:const )?(\w+)(\*?) (\w+);", namespace.get("members", ""))
        namespace["_types"] = {name: None if element == "void" else ELEMENTS[element] for element, star, name in found if star}
        namespace["_names"] = {name for *_, name in found}
        if found:
            namespace["_fields_"] = [(name, ctypes.c_void_p if star else NUMBERS[element]) for element, star, name in found]
        return super().__new__(cls, name, bases, namespace)


class _Struct(ctypes.Structure):
    """A struct of the core: a subclass gives its members as `csrc/` declares them, and the name that it has there.

    Made with keyword arguments, tensors and arrays for pointers; it keeps those alive.
    """

    name: ClassVar[str]
    members: ClassVar[str]
    _types: ClassVar[dict[str, str | None]]
    _names: ClassVar[set[str]]

    def __init__(self, **values: Any) -> None:
        if values.keys() != self._names:
            raise TypeError(f"{self.name}: missing or unknown members {sorted(self._names ^ values.keys())}")
        self._alive = values
        types = self._types
        for name, value in values.items():
            setattr(self, name, _address(value, types[name], self.name, name) if name in types else value)

    def put(self, name: str, value: Any) -> None:
        """Set a member."""
        self._alive[name] = value
        setattr(self, name, _address(value, self._types[name], self.name, name) if name in self._types else value)


Struct: Any = _DeclaredType("Struct", (_Struct,), {"__doc__": _Struct.__doc__})  # (mypy doesn't know the type of structures)


class Function:
    """An exported function, by its declaration: `int64_t name(type parameter, ...)`. It is looked up when it is called first.

    It lets go of the GIL. What isn't a failure is the result.

    Raises:
        MemoryError, RuntimeError: the core ran out of memory, or met an error of its own.
        TypeError: an argument's type or layout isn't what the declaration has.
    """

    all: ClassVar[list[Function]] = []

    def __init__(self, declaration: str, *structs: type[_Struct]) -> None:
        self.declaration = " ".join(declaration.split())
        match = re.fullmatch(r"int64_t (\w+)\((.*)\)", self.declaration)
        assert match is not None, declaration
        self.name, self.structs = match[1], {struct.name: struct for struct in structs}
        self.parameters = re.findall(r"(?:const )?(\w+)(\*?) (\w+)(?:, |$)", match[2])
        self._call: Callable[..., int] | None = None
        Function.all.append(self)

    def __call__(self, *arguments: Any) -> int:
        call = self._call or self._load()
        result = call(*arguments)
        if result <= FAILED_MEMORY:
            if result == FAILED_MEMORY:
                raise MemoryError(f"{self.name}: not enough memory")
            raise RuntimeError(f"{self.name} failed with {result}: an error in the native core")
        return result

    def _load(self) -> Callable[..., int]:
        call = getattr(library(), self.name)
        call.restype = ctypes.c_int64
        call.argtypes = [self._type(*parameter) for parameter in self.parameters]
        self._call = call
        return call

    def _type(self, element: str, star: str, name: str) -> Any:
        if element in self.structs:
            return ctypes.POINTER(self.structs[element])
        return _pointer(element, f"{self.name}: {name}") if star else NUMBERS[element]


@functools.cache
def library() -> ctypes.CDLL:
    """Return the library for this processor, checked to belong to this package.

    The environment variable HF_NGPULM_NATIVE names another one: the path of a library, or an instruction set (such as
    `x86-64-v3`).

    Raises:
        NativeCoreError: there is none, or it was built from other sources.
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
        core.ngpulm_sources.restype, core.ngpulm_level.restype = ctypes.c_char_p, ctypes.c_int64
    except (OSError, AttributeError) as error:
        raise NativeCoreError(f"{path} is no native core for this platform ({error}). {REMEDY}") from error
    built, expected = core.ngpulm_sources().decode(), _digest()
    if expected is not None and built != expected:
        raise NativeCoreError(
            f"{path} was built from other sources than those in {SOURCES} ({built}, not {expected}). {REMEDY}"
        )
    return core


def _digest() -> str | None:
    """Return the digest of the sources as `csrc/build.py` makes it; None outside a source tree."""
    if not (SOURCES / "build.py").exists():
        return None
    found = hashlib.sha256()
    for path in sorted(SOURCES.glob("*.[ch]pp")):
        found.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()[:16]
