"""Build the native core. Run `python csrc/build.py`, or let the package's build hook run it.

All C++ files are compiled for each instruction set and linked to one library per instruction set. The package chooses a library
when it is loaded (`hf_ngpulm/engines/native.py`). Only the C++ runtime is linked, statically. So a library works with every
Python and every PyTorch of its platform. Files that are up to date aren't compiled again.

The compiler is `$CXX`, or the first of c++, g++ and clang++ that is found, or the compiler in PyPI's package `ziglang`.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).parent
LIBRARIES = HERE.parent / "hf_ngpulm" / "engines" / "lib"
OBJECTS, SANITIZED = HERE.parent / "build" / "native", HERE.parent / "build" / "sanitized"
SUFFIX = {"darwin": "dylib", "win32": "dll"}.get(sys.platform, "so")
FLAGS = [
    "-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-fno-math-errno", "-fno-trapping-math",
    "-ffp-contract=off",  # the same numbers with each instruction set; products ask for fused operations by name
    "-Wall", "-Wextra", "-Wno-psabi",  # vectors are passed between functions of one library only
]  # fmt: skip
SANITIZERS = ["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer"]


if sys.platform == "darwin":  # the oldest macOS that the libraries run on
    os.environ.setdefault("MACOSX_DEPLOYMENT_TARGET", "11.0")


class BuildError(RuntimeError):
    """Raised if there is no compiler, or if it failed."""


def instruction_sets(is_zig: bool = False, machine: str = platform.machine()) -> dict[str, list[str]]:
    """Return the libraries' names for a machine, and the compiler's flags for each. The first one runs everywhere."""
    if machine.lower() not in ("x86_64", "amd64"):
        return {machine.lower(): []}
    if is_zig:
        return {"x86-64": ["-march=x86_64"], "x86-64-v3": ["-march=x86_64_v3"], "x86-64-v4": ["-march=x86_64_v4"]}
    v3 = ["-mavx2", "-mfma", "-mbmi", "-mbmi2", "-mf16c", "-mlzcnt", "-mpopcnt"]  # older compilers don't know the level's name
    v4 = [*v3, "-mavx512f", "-mavx512bw", "-mavx512cd", "-mavx512dq", "-mavx512vl"]
    return {"x86-64": ["-march=x86-64"], "x86-64-v3": v3, "x86-64-v4": v4}


def find_compiler() -> list[str] | None:
    """Return the command that compiles C++17; None if there is none."""
    if os.environ.get("CXX"):
        return shlex.split(os.environ["CXX"])
    for name in ("c++", "g++", "clang++"):
        if shutil.which(name):
            return [name]
    try:
        import ziglang  # noqa: F401
    except ImportError:
        return None
    return [sys.executable, "-m", "ziglang", "c++"]


def digest() -> str:
    """Return a digest of all source files in this folder. In a source tree, `hf_ngpulm.engines.native` compares it."""
    found = hashlib.sha256()
    for path in sorted(HERE.glob("*.[chp]*")):
        found.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()[:16]


def declarations() -> str:
    """Return the declarations that the package needs to call the core, one line for each struct and each exported function.

    A line has a name, followed by the members or parameters, separated by commas: `int64_t first`, or `float* scores` for
    pointers.
    """
    text = "\n".join(path.read_text(encoding="utf-8") for path in sorted(HERE.glob("*.[ch]pp")))
    text = " ".join(re.sub(r"//[^\n]*|\bconst ", "", text).split())
    lines = []
    for name, members in re.findall(r"struct (Ngpulm\w+) \{ (.*?) \};", text):
        several = [member.strip().partition(" ") for member in members.split(";") if member]
        each = [
            f"{of}{'*' * pointer.count('*')} {pointer.strip(' *')}" for of, _, names in several for pointer in names.split(",")
        ]
        lines.append(f"{name} {', '.join(each)}\n")
    for name, parameters in re.findall(r"NGPULM_EXPORT int64_t (\w+)\((.*?)\) \{", text):
        lines.append(f"{name} {parameters}\n")
    return "".join(lines)


def build(
    folder: Path = LIBRARIES, sanitize: bool = False, only: str | None = None, jobs: int = os.cpu_count() or 1
) -> list[Path]:
    """Build the libraries that are out of date. Return the paths of all libraries, one for each instruction set.

    Raises:
        BuildError: there is no compiler, or it can't compile the sources.
    """
    version, variant = digest(), "-sanitized" if sanitize else ""
    libraries = {name: folder / f"ngpulm-{name}{variant}.{SUFFIX}" for name in instruction_sets() if only in (None, name)}
    stale = [name for name, path in libraries.items() if not is_built_from(path, version)]
    if not stale:
        return list(libraries.values())
    compiler = find_compiler()
    if compiler is None:
        raise BuildError(
            "no C++ compiler was found: set CXX to one, install g++ or clang (on Debian: apt install g++), or"
            " `pip install ziglang`"
        )
    is_zig = "ziglang" in compiler
    sets, extra = instruction_sets(is_zig), SANITIZERS if sanitize else []
    declared = "".join(f'"{line}\\n"\n' for line in declarations().splitlines())
    newest_header = max(path.stat().st_mtime for path in HERE.glob("*.hpp"))

    def compile_one(name: str, source: Path) -> Path:
        target = OBJECTS / (name + variant) / f"{source.stem}.o"
        target.parent.mkdir(parents=True, exist_ok=True)
        command = [*compiler, *FLAGS, *extra, *sets[name], "-c", str(source)]
        if source.name == "version.cpp":
            text = target.with_suffix(".inc")
            text.write_text(declared, encoding="utf-8")
            command += [f'-DNGPULM_SOURCES="{version}"', f'-DNGPULM_DECLARATIONS="{text.as_posix()}"']
        made_by = target.with_suffix(".command")
        is_current = target.exists() and target.stat().st_mtime > max(source.stat().st_mtime, newest_header)
        if not (is_current and made_by.exists() and made_by.read_text(encoding="utf-8") == repr(command)):
            run([*command, "-o", str(target)])
            made_by.write_text(repr(command), encoding="utf-8")
        return target

    jobs_of = [(name, source) for source in sorted(HERE.glob("*.cpp")) for name in stale]
    with ThreadPoolExecutor(jobs) as pool:
        objects = list(pool.map(lambda job: compile_one(*job), jobs_of))
    folder.mkdir(parents=True, exist_ok=True)
    static = [] if is_zig or sanitize or sys.platform == "darwin" else ["-static-libstdc++", "-static-libgcc"]
    if sys.platform == "win32" and not is_zig:
        static = ["-static"]
    for name in stale:
        part = libraries[name].with_suffix(f".{os.getpid()}.part")
        own = [str(path) for (of, _), path in zip(jobs_of, objects) if of == name]
        run([*compiler, "-shared", *extra, *sets[name], *own, *static, *([] if sanitize else ["-s"]), "-o", str(part)])
        os.replace(part, libraries[name])
    return list(libraries.values())


def is_built_from(library: Path, version: str) -> bool:
    return library.exists() and b"NGPULM_SOURCES=" + version.encode() in library.read_bytes()


def run(command: list[str]) -> None:
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        raise BuildError(f"the C++ compiler failed:\n{shlex.join(command)}\n{result.stderr[-4000:]}")
    if result.stderr.strip():
        print(result.stderr, file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, help="folder of the libraries")
    parser.add_argument(
        "--sanitize", action="store_true", help="with the address and undefined-behaviour sanitizers, in build/sanitized"
    )
    parser.add_argument("--only", help="one instruction set", choices=list(instruction_sets()))
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--find-compiler", action="store_true", help="only tell whether there is one")
    arguments = parser.parse_args()
    if arguments.find_compiler:
        sys.exit(find_compiler() is None)
    for path in build(
        arguments.out or (SANITIZED if arguments.sanitize else LIBRARIES), arguments.sanitize, arguments.only, arguments.jobs
    ):
        print(path)


if __name__ == "__main__":
    try:
        main()
    except BuildError as error:
        sys.exit(str(error))
