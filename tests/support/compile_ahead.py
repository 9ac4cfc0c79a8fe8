"""Compiles Triton kernels to machine code without a GPU. A program of its own, so that it can take another Triton:

    python tests/support/compile_ahead.py hf_ngpulm.automaton.gpu --triton .venv/tritons/3.6.0

prints the kernels of the modules' `aot_signatures`, each with the type of the automaton's tokens. It compiles all signatures,
for sm_90 with what Triton knows of arguments where kernels are launched, for sm_80 without (of slices it knows less).
"""

import argparse
import importlib
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

# Where kernels are launched tensors begin at multiples of 16 bytes, and these arguments are such multiples, or 1 (contiguous).
MULTIPLES, ONES = ("tile",), ("class_stride",)


def compile_ahead(modules: Iterable[str], cache: Path, *options: str, seconds: int = 300) -> str:
    """Compile the kernels of modules in a process of its own, with an empty folder as Triton's cache; return what it prints."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(cache)
    command = [sys.executable, __file__, *modules, *options]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=seconds)
    assert result.returncode == 0, f"exit status {result.returncode}: {result.stdout[-3000:]}{result.stderr[-6000:]}"
    return result.stdout


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("modules", nargs="+")
    parser.add_argument("--triton", metavar="FOLDER", help="of another Triton than the environment's")
    given = parser.parse_args()
    sys.path[:0] = [given.triton] if given.triton else []
    import triton

    assert not given.triton or Path(triton.__file__).is_relative_to(given.triton), triton.__file__
    seen: list = []
    for module in given.modules:
        for kernel, signature, constants in importlib.import_module(module).aot_signatures():
            is_first = all(kernel is not other for other, _ in seen)
            # A launch makes a constant of every size that is 1 (one row, one state, bigrams).
            ones = {name: 1 for name, kind in signature.items() if kind == "i32"}
            for capability, extra in [(80, {}), (90, {}), *([(90, ones)] if is_first else [])]:
                compile_signature(kernel, signature, constants | extra, capability, as_launched=capability == 90)
            seen.append((kernel, signature.get("arc_tokens", "")))
    print("\n".join(sorted({kernel.fn.__name__ + " " + tokens for kernel, tokens in seen})))


def compile_signature(kernel, signature, constants, capability, as_launched=True):
    """Return what a kernel is compiled to. Constants that are none of its arguments are options of its launch (`num_warps`)."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    options = {name: value for name, value in constants.items() if name not in kernel.arg_names}
    if as_launched:
        constants = {name: 1 for name in ONES if name in signature} | constants
    constants = {name: value for name, value in constants.items() if name in kernel.arg_names}
    assert signature.keys() | constants.keys() == set(kernel.arg_names), kernel
    kinds = {name: "constexpr" if name in constants else signature[name] for name in kernel.arg_names}
    source = ASTSource(kernel, kinds, constants, multiples_of_16(kernel, kinds) if as_launched else None)
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    assert f".target sm_{capability}" in compiled.asm["ptx"] and len(compiled.asm["cubin"]) > 0
    return compiled


def multiples_of_16(kernel, kinds):
    """Return what Triton knows of the arguments of a launch, given their types."""
    told = {parameter.name for parameter in kernel.params if not parameter.do_not_specialize}.intersection(MULTIPLES)
    is_multiple = [kind.startswith("*") or (kind != "constexpr" and name in told) for name, kind in kinds.items()]
    return {(place,): [["tt.divisibility", 16]] for place, known in enumerate(is_multiple) if known}


if __name__ == "__main__":
    main()
