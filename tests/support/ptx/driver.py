"""Triton's driver for a GPU that isn't there: kernels are compiled as for one, and the PTX runs on CPU tensors."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import importlib.util
import math
import os
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .program import Code, PTXError, int64s
from .timing import Timed

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
CACHE = ROOT / "build" / "ptx"
FLAGS = "-std=c++17 -O2 -ftree-vectorize -march=native -ffp-contract=off -fno-math-errno -fno-strict-aliasing -fPIC -shared"
KINDS = (
    "a race: read after a write", "a race: written after a read", "a race: written twice",
    "a load out of bounds", "a store out of bounds", "an access that isn't aligned", "a load of what nobody has written",
    "a lane that takes no part", "threads that meet at different barriers", "a deadlock", "an endless loop",
)  # fmt: skip
POISON = 0xFB  # as in machine.hpp
SCALARS = {"i1": "?", "i8": "b", "i16": "h", "i32": "i", "i64": "q", "u32": "I", "u64": "Q", "fp32": "f", "fp64": "d"}
MOST_FINDINGS = 40


class _Tensor(ctypes.Structure):
    _fields_ = int64s("bytes", "size", "granule")


class _Finding(ctypes.Structure):
    _fields_ = (
        *int64s("kind", "count", "first_at", "second_at", "first_program", "first_thread", "program", "thread"),
        *int64s("tensor", "offset"),
    )


class _Launch(ctypes.Structure):
    _fields_ = (
        ("code", ctypes.c_void_p), *int64s("num_instructions"), ("constants", ctypes.c_void_p),
        *int64s("num_constants", "num_registers", "threads", "shared", "shared_granule"),
        ("parameters", ctypes.c_char_p), ("grid", ctypes.c_int64 * 3), ("tensors", ctypes.c_void_p),
        *int64s("num_tensors", "seed", "resident", "limit"),
        ("findings", ctypes.c_void_p), *int64s("room", "num_findings", "instructions"), ("timing", ctypes.c_void_p),
    )  # fmt: skip


@dataclass
class Settings:
    """How launches run.

    Args:
        schedules: seeds of the orders in which warps take turns; a launch runs once with each, from the same memory.
        limit: instructions of warps, beyond which a loop is thought endless.
        resident: programs that run at the same time.
        capability: the kind of GPU that kernels are compiled for.
        caches: if times are modelled: L2, which stays from launch to launch (see `timing.py`).
    """

    schedules: tuple[int, ...] = (0, 1)
    limit: int = 200_000_000
    resident: int = 3
    capability: int = 80
    caches: Any = None


@dataclass
class Ran:
    """A launch that went well: the kernel's name, its warps, and instructions of warps in each schedule; modelled times."""

    name: str
    warps: int
    instructions: list[int] = field(default_factory=list)
    timed: Timed | None = None


settings = Settings()
_observers: list[list[Ran]] = []


@functools.cache
def machine() -> tuple[Any, dict[str, list[tuple[int, str]]]]:
    """Build the machine, if it isn't there; return it, and the number and operands of each of its instructions."""
    spec = importlib.util.spec_from_file_location("core_build", ROOT / "csrc" / "build.py")
    build = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(build)
    sources = sorted(HERE.glob("*.[ch]pp"))
    compiler = build.find_compiler()
    if compiler is None:
        raise build.BuildError("no C++ compiler was found for tests/support/ptx: see csrc/build.py")
    digest = hashlib.sha256(repr((compiler, FLAGS, _processor())).encode())
    for source in sources:
        digest.update(source.read_bytes())
    library = CACHE / f"machine-{digest.hexdigest()[:16]}.so"
    if not library.exists():
        library.parent.mkdir(parents=True, exist_ok=True)
        part = library.with_suffix(f".{os.getpid()}.part")
        units = [str(source) for source in sources if source.suffix == ".cpp"]
        subprocess.run([*compiler, *FLAGS.split(), *units, "-o", str(part)], check=True)
        os.replace(part, library)
    loaded = ctypes.CDLL(str(library))
    loaded.ptx_operations.restype = ctypes.c_char_p
    loaded.ptx_run.argtypes, loaded.ptx_run.restype = [ctypes.POINTER(_Launch)], None
    operations: dict[str, list[tuple[int, str]]] = {}
    for number, line in enumerate(loaded.ptx_operations().decode().splitlines()):
        name, _, operands = line.partition(" ")
        operations.setdefault(name, []).append((number, operands))
    return loaded, operations


def _processor() -> list[str]:
    """What the compiler makes code for."""
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        return sorted({line for line in file if line.startswith(("flags", "Features"))})


class _Memory:
    """The tensors of a launch: what each covers, one for those that overlap."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        spans = []
        for name, tensor in tensors.items():
            last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
            end = tensor.data_ptr() + (last + 1) * tensor.element_size() if tensor.numel() else tensor.data_ptr()
            spans.append((tensor.data_ptr(), end, tensor.element_size(), name))
        self.names: list[str] = []
        self.ranges: list[tuple[int, int, int]] = []
        self.slots: dict[str, int] = {}
        for begin, end, width, name in sorted(spans):
            if self.ranges and begin < self.ranges[-1][1]:
                first, last, narrowest = self.ranges[-1]
                self.ranges[-1] = first, max(last, end), min(narrowest, width)
                self.names[-1] += f" = {name}"
            else:
                self.ranges.append((begin, end, width))
                self.names.append(name)
            self.slots[name] = len(self.ranges) - 1
        self.tensors = (_Tensor * len(self.ranges))(
            *(_Tensor(begin, end - begin, width.bit_length() - 1) for begin, end, width in self.ranges)
        )

    def address(self, name: str, tensor: Tensor) -> int:
        """Return what a kernel takes for a tensor's address. Ranges lie far from each other: none is hit for another."""
        slot = self.slots[name]
        begin = self.ranges[slot][0]
        return ((slot + 1) << 40) + (1 << 39) + begin % 256 + tensor.data_ptr() - begin

    def copy(self) -> list[bytes]:
        return [ctypes.string_at(begin, end - begin) for begin, end, _ in self.ranges]

    def restore(self, copied: list[bytes]) -> None:
        for (begin, end, _), content in zip(self.ranges, copied):
            ctypes.memmove(begin, content, end - begin)


class Launcher:
    """Stands where Triton's launcher of a compiled kernel does."""

    def __init__(self, source: Any, metadata: Any, text: str) -> None:
        self.name, self.signature = source.fn.fn.__name__, dict(source.signature)
        self.warps, self.shared = metadata.num_warps, metadata.shared
        try:
            self.code = Code(text, machine()[1])
        except PTXError as error:
            raise PTXError(f"{self.name}: {error}") from None

    def __call__(self, x: int, y: int, z: int, *rest: Any) -> None:
        arguments = zip(self.signature.items(), rest[-len(self.signature) :])
        given = [(name, kind, value) for (name, kind), value in arguments if kind != "constexpr"]
        memory = _Memory({name: value for name, kind, value in given if isinstance(value, Tensor)})
        parameters = self._packed(given, memory)
        before = memory.copy()
        ran = Ran(self.name, self.warps)
        after: list[bytes] = []
        for number, seed in enumerate(settings.schedules):
            if number:
                memory.restore(before)
            if settings.caches is not None:
                ran.timed = Timed(self.code, self.warps, self.shared, settings.caches)
            ran.instructions.append(self._run((x, y, z), parameters, memory, seed, ran.timed))
            found = memory.copy()
            for name, ours, first in zip(memory.names, found, after):
                if ours != first:
                    raise PTXError(f"{self.name}: schedules {settings.schedules[0]} and {seed} leave {name} different")
            after = after or found
        for observer in _observers:
            observer.append(ran)

    def _packed(self, given: list[tuple[str, str, Any]], memory: _Memory) -> bytes:
        packed = bytearray(sum(size + 8 for size, _ in self.code.parameters))
        for (name, kind, value), (_, place) in zip(given, self.code.parameters):
            if isinstance(value, Tensor):
                data = struct.pack("<Q", memory.address(name, value))
            elif kind.startswith("*"):
                data = struct.pack("<Q", value or 0)
            elif kind in SCALARS:
                data = struct.pack("<" + SCALARS[kind], value)
            else:
                raise PTXError(f"{self.name}: the argument {name} is of the type {kind}")
            packed[place : place + len(data)] = data
        return bytes(packed)

    def _run(self, grid: tuple[int, int, int], parameters: bytes, memory: _Memory, seed: int, timed: Timed | None) -> int:
        if not math.prod(grid):
            return 0
        findings = (_Finding * MOST_FINDINGS)()
        code = self.code
        launch = _Launch(
            code=ctypes.addressof(code.code), num_instructions=len(code.code), constants=ctypes.addressof(code.filled),
            num_constants=len(code.filled), num_registers=code.num_registers, threads=32 * self.warps, shared=self.shared,
            shared_granule=code.shared_granule, parameters=parameters, grid=grid, tensors=ctypes.addressof(memory.tensors),
            num_tensors=len(memory.ranges), seed=seed, resident=settings.resident, limit=settings.limit,
            findings=ctypes.addressof(findings), room=MOST_FINDINGS, timing=ctypes.addressof(timed.counts) if timed else None,
        )  # fmt: skip
        machine()[0].ptx_run(launch)
        if launch.num_findings:
            told = "\n".join(self._told(finding, memory) for finding in findings[: launch.num_findings])
            raise PTXError(f"{self.name}, schedule {seed}:\n{told}")
        return launch.instructions

    def _told(self, finding: Any, memory: _Memory) -> str:
        what = {-1: "shared memory", -2: "no tensor"}.get(finding.tensor) or memory.names[finding.tensor]
        size = "" if finding.tensor < 0 else f" of {memory.tensors[finding.tensor].size}"
        lines = [f"{KINDS[finding.kind]}, {finding.count} times: {what}, byte {finding.offset}{size}"]
        if KINDS[finding.kind].startswith("a race"):
            lines.append(self._place(finding.first_program, finding.first_thread, finding.first_at))
        return "\n".join([*lines, self._place(finding.program, finding.thread, finding.second_at)])

    def _place(self, program: int, thread: int, at: int) -> str:
        return f"    program {program} thread {thread}: {self.code.source(at)}  [{self.code.statements[at]}]"


class _Driver:
    """What Triton asks a driver for. Each kind of GPU is a device of its own."""

    def get_current_device(self) -> int:
        return settings.capability

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", settings.capability, 32)

    def is_active(self) -> bool:
        return True


def install() -> None:
    """From now on kernels run here. Those that were decorated before, for Triton's interpreter, don't.

    Tensors that `torch.empty` and its like make are filled with a byte of which a kernel is told when it loads it.
    """
    import triton
    from triton.backends.nvidia.compiler import CUDABackend
    from triton.compiler.compiler import CompiledKernel
    from triton.runtime import driver

    run = "_run" if isinstance(vars(CompiledKernel).get("run"), property) else "run"  # before Triton 3.5

    def handles(kernel: Any) -> None:
        if vars(kernel).get(run) is None:
            setattr(kernel, run, Launcher(kernel.src, kernel.metadata, kernel.asm["ptx"]))

    triton.knobs.runtime.interpret = False
    # Its own: there is no machine code in it. It has the paths of sources.
    triton.knobs.cache.dir = str(CACHE / f"compiled-{hashlib.sha256(str(ROOT).encode()).hexdigest()[:8]}")
    driver.set_active(_Driver())
    CUDABackend.make_cubin = lambda backend, *rest: b"none"  # nobody runs it, and assembling takes as long as all the rest
    CompiledKernel._init_handles = handles
    for owner, name in ((torch, "empty"), (torch, "empty_like"), (Tensor, "new_empty")):
        setattr(owner, name, _poisoned(getattr(owner, name)))


def _poisoned(make: Any) -> Any:
    @functools.wraps(make)
    def made(*args: Any, **kwargs: Any) -> Any:
        tensor = make(*args, **kwargs)
        if not torch.compiler.is_compiling() and type(tensor) is Tensor and (tensor.is_cpu and tensor.layout == torch.strided):
            storage = tensor.untyped_storage()
            ctypes.memset(storage.data_ptr(), POISON, storage.nbytes())  # unseen by those who count operators
        return tensor

    return made


@contextlib.contextmanager
def running(**changed: Any) -> Iterator[list[Ran]]:
    """Run launches with other settings; yields a list that takes in those that go well."""
    before, ran = dict(vars(settings)), []
    vars(settings).update(changed)
    _observers.append(ran)
    try:
        yield ran
    finally:
        _observers.remove(ran)
        vars(settings).update(before)
