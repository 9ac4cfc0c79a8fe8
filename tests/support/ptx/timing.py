"""A model of how long kernels take on an H100 (SXM): nobody has measured what it says.

A program is run as if it were alone on a processor (`timing.cpp`): its warps issue in order to four schedulers, an instruction
waits for its operands, its scheduler and its pipe, and a load for the sectors that it touches. A launch takes as long as its
programs do, as many at a time as a processor's registers and shared memory hold; or as long as all their instructions and
sectors take if nobody waits for anything, if that is longer. What is left out: CONTRIBUTING.md, "Kernels without a GPU".

Sources, by which the figures are marked:

    [H100]   NVIDIA, "H100 Tensor Core GPU Architecture": SXM5, 132 processors, 50 MB of L2, 3.35 TB/s
    [guide]  NVIDIA, CUDA C++ Programming Guide: results a clock and processor, compute capability 9.0; limits of a processor
    [Luo]    Luo et al., "Benchmarking and Dissecting the Nvidia Hopper GPU Architecture", arXiv 2402.13499
    [Jia]    Jia et al., "Dissecting the NVIDIA Volta GPU Architecture via Microbenchmarking", arXiv 1804.06826
    [Lam]    Lam, "Nvidia's H100: Funny L2, and Tons of Bandwidth", chipsandcheese.com, 2023
    [Khairy] Khairy et al., "Accel-Sim", ISCA 2020: stores fill sectors of L1 and go through to L2
    assumed  nobody's figure
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import math
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from typing import Any

CLOCK = 1.755e9  # [Luo], [Lam]: the highest of the PCIe card's, below the SXM's 1.98
PROCESSORS, SCHEDULERS = 132, 4  # [H100]
DRAM_BANDWIDTH, L2_BANDWIDTH = 3.35e12, 5.5e12  # bytes a second: [H100]; [Lam], about what it measures
MOST_WARPS, MOST_PROGRAMS, REGISTERS, SHARED = 64, 32, 65536, 227 << 10  # of a processor [guide]
RESERVED = 1 << 10  # bytes of shared memory that a program has besides [guide]
LAUNCH = 2.5e-6  # seconds; assumed
L1, SHARED_LATENCY, L2, DRAM = 41, 29, 263, 479  # cycles until a load is there [Luo]
L1_SECTORS = (192 << 10) // 32  # [H100], less some shared memory
L2_BITS = 22  # as if nearly all that was ever touched stayed in L2
SECTORS_A_CYCLE = 2  # from L2 to a processor: 64 bytes, assumed as on Volta [Jia]
SECTOR = 32
PIPES = ("issue", "integer", "float", "double", "special", "memory")
# Pipe, instructions of the machine, cycles of a scheduler's pipe for all of them, and until the result is there. Cycles of a
# pipe are 128 over the results a clock [guide]: 64 of integers and doubles, 16 of special functions, 128 of floats. Latencies:
# of simple ones 4, of doubles 8 [Jia], others assumed. What is moved, packed or unpacked is free: registers are renamed.
COSTS = (
    (r"(mov|pack|unpack)\b|ld\.param|cvt\.(u64\.u32|u32\.u64|u16\.u32|u16\.u64|u32\.u16)|not\.pred|ret", ("issue", 0, 0, 0)),
    (r"bra", ("issue", 1, 1, 8)),
    (r"bar\.sync", ("issue", 1, 1, 16)),
    (r"bar\.warp", ("issue", 1, 1, 1)),
    (r"ld\.global|st\.global", ("memory", 1, 0, L1)),
    (r"(ld|st)\.shared|(ld|st)matrix", ("memory", 1, 0, SHARED_LATENCY)),
    (r"shfl", ("memory", 1, 0, 23)),  # [Jia]: as long as shared memory or less
    (r"redux", ("special", 1, 8, 23)),
    (r"(and|or|xor)\.pred", ("integer", 1, 2, 4)),
    (r"mul\.lo\.[su]64|mad\.lo\.[su]64", ("integer", 4, 8, 14)),
    (r"(min|max)\.[su]64", ("integer", 4, 8, 12)),
    (r"div\.[su]32", ("integer", 20, 40, 100)),
    (r"(mul|mad)\.", ("float", 1, 2, 4)),  # of floats, see below, and of integers: half as many a clock
    (r"div\.rn\.f32", ("float", 10, 10, 50)),
    (r"div\.rn\.f64", ("double", 12, 24, 110)),
    (r"div\.|ex2\.|lg2\.|rcp\.|sqrt\.", ("special", 3, 8, 26)),
    (r"cvt\..*(f64|64\.f|f16\.f64)|popc", ("special", 1, 8, 14)),
    (r"cvt\..*f", ("special", 1, 2, 8)),
    (r"(min|max)\.f64", ("double", 3, 4, 16)),
    (r"(add|sub|fma\.rn|abs|neg|setp\.\w+)\.f64", ("double", 1, 2, 8)),
    (r"(add|sub|fma)\..*f32", ("float", 1, 1, 4)),
    (r".*[subf]64", ("integer", 2, 4, 6)),
    (r"", ("integer", 1, 2, 4)),
)


def cost(name: str) -> tuple[int, int, int, int]:
    """Return pipe, instructions, cycles of the pipe and latency of an instruction of PTX."""
    if re.match(r"mul\.(f32|f64)", name):
        name = name.replace("mul", "add")
    pipe, *rest = next(costs for pattern, costs in COSTS if re.match(pattern, name))
    return PIPES.index(pipe), *rest


class _Counts(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("l2_latency", "dram_latency", "sectors_a_cycle", "l1_sectors", "l2_bits")),
        ("l2", ctypes.c_void_p), ("spent", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("programs", "barriers", "sectors", "to_l2", "from_dram")),
        ("busy", ctypes.c_int64 * len(PIPES)), ("cycles", ctypes.c_double), ("longest", ctypes.c_double),
    )  # fmt: skip


class Timed:
    """What the model says of a launch."""

    def __init__(self, code: Any, warps: int, shared: int, caches: Any) -> None:
        self.code, self.warps, self.shared, self.caches = code, warps, shared, caches
        self.spent = (ctypes.c_double * len(code.code))()  # cycles of a warp at each instruction, in all programs
        self.counts = _Counts(
            L2, DRAM, SECTORS_A_CYCLE, L1_SECTORS, L2_BITS, ctypes.addressof(caches), ctypes.addressof(self.spent)
        )

    @property
    def resident(self) -> int:
        """Programs that a processor holds."""
        of_warp = -(-registers(self.code.text) * 32 // 256) * 256  # given out by 256
        room = REGISTERS // (of_warp * self.warps), MOST_WARPS // self.warps, SHARED // (self.shared + RESERVED), MOST_PROGRAMS
        return max(1, min(room))

    def cycles(self, programs: float | None = None) -> float:
        """Modelled cycles of the launch, or of one with so many programs that are like these."""
        counts = self.counts
        programs = counts.programs if programs is None else programs
        of_processor = math.ceil(programs / PROCESSORS)
        mean = counts.cycles / counts.programs
        waiting = counts.longest + (math.ceil(of_processor / self.resident) - 1) * mean
        issue, *pipes, port = (busy / counts.programs for busy in counts.busy)
        working = of_processor * max(port, max(issue, *pipes) / SCHEDULERS)
        share = CLOCK * SECTOR * programs / counts.programs
        return max(waiting, working, share * counts.to_l2 / L2_BANDWIDTH, share * counts.from_dram / DRAM_BANDWIDTH)

    def lines(self, most: int = 8) -> list[tuple[float, str]]:
        """Return lines of kernels at which warps spend most cycles, with their shares; Triton's count for what calls them."""
        found: dict[str, float] = {}
        for at, cycles in enumerate(self.spent):
            if cycles:
                places = self.code.source(at).split(" < ")
                place = " < ".join([place for place in places if not place.startswith("language/")] or places)
                found[place] = found.get(place, 0.0) + cycles
        total = sum(found.values())
        return sorted(((cycles / total, place) for place, cycles in found.items()), reverse=True)[:most]


def registers(text: str) -> int:
    """Registers of a thread, as `ptxas` gives them out for sm_90."""
    from .driver import CACHE

    kept = CACHE / f"registers-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    if not kept.exists():
        from triton.backends.nvidia.compiler import get_ptxas

        with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
            file.write(text)
            file.flush()
            command = [get_ptxas(90).path, "-v", "--gpu-name=sm_90a", "-o", os.devnull, file.name]
            printed = subprocess.run(command, capture_output=True, text=True, check=True).stderr
        kept.write_text(re.search(r"Used (\d+) registers", printed)[1])
    return int(kept.read_text())


@contextlib.contextmanager
def timed() -> Iterator[list[Any]]:
    """Model the times of launches, beginning with empty caches; yields a list that takes in launches, each with its `timed`."""
    from .driver import running

    caches = (ctypes.c_uint64 * (1 << L2_BITS))()
    with running(schedules=(0,), resident=1, capability=90, caches=caches) as ran:
        yield ran
