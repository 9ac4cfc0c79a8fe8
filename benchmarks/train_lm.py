"""Training a language model: this trainer and KenLM's lmplz on the same token streams, whole processes, time and peak memory.

    python benchmarks/train_lm.py --tokens 1_000_000 10_000_000 --orders 4 6 10 --lmplz path/to/lmplz

lmplz is built from KenLM's source (`cmake -DKENLM_MAX_ORDER=12 .. && make lmplz`); without `--lmplz` it is left out. Both start
from the same text of decimal token ids and end with a saved model that loads in a moment: here `hf-ngpulm train`, there
`lmplz` and `hf-ngpulm convert`, which reads its ARPA file. With `--device cuda` the GPU is measured beside the CPU.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import measure
from synthetic import write_tokens

OURS = [sys.executable, "-m", "hf_ngpulm.cli"]


def run(command: list[str], memory: int | None, stdin: Any = os.devnull, stdout: Any = os.devnull) -> dict[str, Any]:
    """Run a process to its end: seconds, and the most memory it held (bytes). It fails beyond `memory` bytes."""
    environment = os.environ | {"PYTHONPATH": str(measure.ROOT), "HF_HUB_OFFLINE": "1"}
    limit = None if memory is None else lambda: resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    with open(stdin, "rb") as source, open(stdout, "wb") as target, tempfile.TemporaryFile() as errors:
        begin, files = time.perf_counter(), {"stdin": source, "stdout": target, "stderr": errors}
        process = subprocess.Popen(command, **files, env=environment, preexec_fn=limit)
        _, status, usage = os.wait4(process.pid, 0)
        result: dict[str, Any] = {"seconds": time.perf_counter() - begin, "peak_bytes": usage.ru_maxrss * 1024}
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            errors.seek(0)
            result["failed"] = errors.read()[-300:].decode("utf-8", "replace").strip() or f"exit {process.returncode}"
        return result


def ours(text: Path, order: int, args: argparse.Namespace, folder: Path, device: str) -> dict[str, Any]:
    target = folder / "ours"
    shutil.rmtree(target, ignore_errors=True)
    options = ["--vocab-size", str(args.vocab_size), "--order", str(order), "--prune", args.prune, "--device", device, "--json"]
    # The driver of a GPU reserves addresses far beyond the memory that it takes.
    result = run([*OURS, "train", str(text), "-o", str(target), *options], args.memory << 30 if device == "cpu" else None)
    if "failed" not in result:
        result["num_ngrams"] = json.loads((target / "config.json").read_text())["num_ngrams"]
    return result


def lmplz(text: Path, order: int, args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    arpa, target = folder / "lmplz.arpa", folder / "theirs"
    shutil.rmtree(target, ignore_errors=True)
    options = ["-o", str(order), "-S", "8G", "-T", str(folder), "--discount_fallback", "--prune", *args.prune.split()]
    made = run([args.lmplz, *options], args.memory << 30, text, arpa)
    result = {"lmplz_seconds": made["seconds"], "lmplz_peak_bytes": made["peak_bytes"]}
    if "failed" in made:
        return result | {"failed": made["failed"]}
    result["arpa_bytes"] = arpa.stat().st_size
    size = ["--vocab-size", str(args.vocab_size), "--units", "id"]
    read = run([*OURS, "convert", str(arpa), str(target), *size], args.memory << 30)
    arpa.unlink()
    if "failed" in read:
        return result | {"reading_failed": read["failed"]}
    peak = max(made["peak_bytes"], read["peak_bytes"])
    return result | {"seconds": made["seconds"] + read["seconds"], "peak_bytes": peak}


def middle(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the run of median time (the first failure, if one failed)."""
    failed = [result for result in results if "seconds" not in result or "failed" in result]
    return failed[0] if failed else sorted(results, key=lambda result: result["seconds"])[(len(results) - 1) // 2]


def rows_of(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the row of each text and order."""
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        folder = Path(name)
        for tokens in args.tokens:
            text = args.text or folder / "tokens.txt"
            if args.text is None:
                write_tokens(text, tokens, args.vocab_size)
            for order in args.orders:
                runs: dict[str, list[dict[str, Any]]] = {}
                for _ in range(args.repeats):
                    for device in args.device:
                        runs.setdefault(device, []).append(ours(text, order, args, folder, device))
                    if args.lmplz:
                        runs.setdefault("lmplz", []).append(lmplz(text, order, args, folder))
                row: dict[str, Any] = {"tokens": tokens, "order": order, "prune": args.prune}
                row |= {who: middle(results) for who, results in runs.items()}
                yield row | {"all_seconds": {who: [each.get("seconds") for each in results] for who, results in runs.items()}}


def main() -> None:
    about = {"lmplz": "KenLM's", "memory": "GiB that a process may take", "folder": "where streams and models go"}
    about["text"] = "a stream of so many tokens, in place of one that is made now"
    args = measure.arguments(
        __doc__, "train_lm_cpu", None, about, threads=None, tokens=(1_000_000,), orders=(4, 6, 10), prune="0", vocab_size=1024,
        lmplz=str, device=("cpu",), repeats=2, memory=20, text=Path, folder=Path,
    ).parse_args()  # fmt: skip
    rows = measure.report(rows_of(args), args, key="training")
    runs = [(who, found) for row in rows for who, found in row.items() if isinstance(found, dict)]
    failed = [f"{who}: {found['failed']}" for who, found in runs if "failed" in found]
    if failed:
        sys.exit("\n".join(failed))


if __name__ == "__main__":
    main()
