"""What the GPU kernels need of a processor, read off their machine code: registers, spills, shared memory (`make gpu-static`).

    python benchmarks/static_kernels.py [--only WORD] [--out FOLDER] [--triton .venv/tritons/3.6.0]

Needs Triton, which brings an assembler, but neither a GPU nor a network. Every kernel is compiled as it is launched, for sm_80
and sm_90 (`aot_signatures` of the modules that hold kernels). A kernel that misses a goal is named, and the command fails.
With another Triton than the environment's (tests/test_tritons.py unpacks them) results bear its version in their name.
"""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import measure

sys.path.insert(0, str(measure.ROOT))
sys.path.insert(0, str(measure.ROOT / "tests" / "support"))

from compile_ahead import compile_signature

CAPABILITIES = (80, 90)
REGISTERS = 65536  # of a processor, for all threads that it holds
MOST_PLACES = 16  # hypotheses that a search holds without spilling
MOST_REGISTERS = 128  # of a thread, where a kernel doesn't hold the state of a search
SEARCHES = ("_search_kernel", "_label_kernel")


def main() -> None:
    about = {"only": "kernels whose module or name contains it", "triton": "folder of another Triton than the environment's"}
    options = {"threads": None, "only": "", "capabilities": CAPABILITIES, "triton": str}
    given = measure.arguments(__doc__, "static_kernels", None, about, **options).parse_args()
    sys.path[:0] = [given.triton] if given.triton else []
    import triton

    assert not given.triton or Path(triton.__file__).is_relative_to(Path(given.triton).absolute()), triton.__file__

    rows = [resources(*found) for found in kernels(given.only, given.capabilities)]
    print(f"Triton {triton.__version__}; bytes; programs: that a processor's registers hold at a time")
    print(measure.table([{name: value for name, value in row.items() if name != "module"} for row in rows]))
    name = f"{given.name}_{triton.__version__}" if given.triton else given.name
    print("results in", measure.save(name, {"triton": triton.__version__, "kernels": rows}, given.out))
    missed = [f"{row['kernel']} ({row['as']}), {row['target']}: {goal}" for row in rows for goal in missed_goals(row)]
    print("\n".join(missed) if missed else "all goals met")
    sys.exit(bool(missed))


def kernels(only: str, capabilities: list[int]) -> Iterator[tuple[Any, dict[str, str], dict[str, Any], int]]:
    """Yield kernel, signature, constants and compute capability of all that there is to compile."""
    package = measure.ROOT / "hf_ngpulm"
    for path in sorted(package.rglob("gpu.py")):
        if "def aot_signatures" not in path.read_text(encoding="utf-8"):
            continue
        module = importlib.import_module(".".join(path.relative_to(measure.ROOT).with_suffix("").parts))
        for kernel, signature, constants in module.aot_signatures():
            if only in f"{module.__name__}.{kernel.fn.__name__}":
                for capability in capabilities:
                    yield kernel, signature, constants, capability


def resources(kernel: Any, signature: dict[str, str], constants: dict[str, Any], capability: int) -> dict[str, Any]:
    """Return what one kernel needs."""
    compiled = compile_signature(kernel, signature, constants, capability)
    warps = compiled.metadata.num_warps
    registers, stack, spills = read(compiled.asm["cubin"])
    given = {name: value for name, value in constants.items() if name not in ("num_warps", "maxnreg", "enable_fp_fusion")}
    kinds = [signature[name].lstrip("*") for name in ("arc_tokens", "logits") if name in signature]
    of_warp = -(-registers * 32 // 256) * 256  # registers are given out by 256
    return {
        "module": kernel.fn.__module__,
        "kernel": kernel.fn.__name__,
        "as": ", ".join([*kinds, *(f"{name}={value}" for name, value in given.items())]),
        "constants": given,
        "target": f"sm_{capability}",
        "warps": warps,
        "registers": registers,
        "stack": stack,
        "spills": spills,
        "shared": compiled.metadata.shared,
        "programs": REGISTERS // (of_warp * warps),
    }


def read(machine_code: bytes) -> tuple[int, int, int]:
    """Return registers of a thread, bytes of its stack, and the instructions that move registers to the stack and back."""
    import triton

    reader = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(machine_code)
        file.flush()
        command = [str(reader), "-res-usage", "-sass", file.name]
        printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    registers, stack = map(int, re.search(r"REG:(\d+) STACK:(\d+)", printed).groups())
    return registers, stack, len(re.findall(r"\b(?:STL|LDL)\b", printed))


def missed_goals(row: dict[str, Any]) -> list[str]:
    """Return what a kernel should do with, and doesn't."""
    missed = []
    if row["spills"] and row["constants"].get("PLACES", 0) <= MOST_PLACES:
        missed.append(f"{row['stack']} bytes of registers are spilled")
    if row["kernel"] not in SEARCHES and row["registers"] > MOST_REGISTERS:
        missed.append(f"{row['registers']} registers in place of at most {MOST_REGISTERS}")
    return missed


if __name__ == "__main__":
    main()
