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
from pathlib import Path
from typing import Any

from measure import save
from synthetic import write_tokens

HERE = Path(__file__).parent


def run(command: list[str], memory: int | None, stdin: Path | None = None, stdout: Path | None = None) -> dict[str, Any]:
    """Run a process to its end: seconds, and the most memory it held (bytes). It fails beyond `memory` bytes."""
    environment = os.environ | {"PYTHONPATH": str(HERE.parent), "HF_HUB_OFFLINE": "1"}
    with (
        open(stdin or os.devnull, "rb") as source,
        open(stdout or os.devnull, "wb") as target,
        tempfile.TemporaryFile() as errors,
    ):
        begin = time.perf_counter()
        process = subprocess.Popen(
            command,
            stdin=source,
            stdout=target,
            stderr=errors,
            env=environment,
            preexec_fn=None if memory is None else lambda: resource.setrlimit(resource.RLIMIT_DATA, (memory, memory)),
        )
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - begin
        process.returncode = os.waitstatus_to_exitcode(status)
        result: dict[str, Any] = {"seconds": seconds, "peak_bytes": usage.ru_maxrss * 1024}
        if process.returncode:
            errors.seek(0)
            result["failed"] = errors.read()[-300:].decode("utf-8", "replace").strip() or f"exit {process.returncode}"
        return result


def ours(text: Path, order: int, settings: argparse.Namespace, folder: Path, device: str) -> dict[str, Any]:
    target = folder / "ours"
    shutil.rmtree(target, ignore_errors=True)
    size = str(settings.vocab_size)
    options = ["--vocab-size", size, "--order", str(order), "--prune", settings.prune, "--device", device, "--json"]
    command = [sys.executable, "-m", "hf_ngpulm.cli", "train", str(text), "-o", str(target), *options]
    # The driver of a GPU reserves addresses far beyond the memory that it takes.
    result = run(command, settings.memory << 30 if device == "cpu" else None)
    if "failed" not in result:
        result["num_ngrams"] = json.loads((target / "config.json").read_text())["num_ngrams"]
    return result


def lmplz(text: Path, order: int, settings: argparse.Namespace, folder: Path) -> dict[str, Any]:
    arpa, target = folder / "lmplz.arpa", folder / "theirs"
    shutil.rmtree(target, ignore_errors=True)
    options = ["-o", str(order), "-S", "8G", "-T", str(folder), "--discount_fallback", "--prune", *settings.prune.split()]
    made = run([settings.lmplz, *options], settings.memory << 30, text, arpa)
    result = {"lmplz_seconds": made["seconds"], "lmplz_peak_bytes": made["peak_bytes"]}
    if "failed" in made:
        return result | {"failed": made["failed"]}
    result["arpa_bytes"] = arpa.stat().st_size
    size = ["--vocab-size", str(settings.vocab_size), "--units", "id"]
    read = run([sys.executable, "-m", "hf_ngpulm.cli", "convert", str(arpa), str(target), *size], settings.memory << 30)
    arpa.unlink()
    if "failed" in read:
        return result | {"reading_failed": read["failed"]}
    peak = max(made["peak_bytes"], read["peak_bytes"])
    return result | {"seconds": made["seconds"] + read["seconds"], "peak_bytes": peak}


def middle(results: list[dict[str, Any]]) -> dict[str, Any]:
    """The run of median time (the first failure, if one failed)."""
    failed = [result for result in results if "seconds" not in result or "failed" in result]
    return failed[0] if failed else sorted(results, key=lambda result: result["seconds"])[(len(results) - 1) // 2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1_000_000])
    parser.add_argument("--orders", type=int, nargs="+", default=[4, 6, 10])
    parser.add_argument("--prune", default="0")
    parser.add_argument("--vocab-size", type=int, default=1024)
    parser.add_argument("--lmplz", help="KenLM's lmplz")
    parser.add_argument("--device", nargs="+", default=["cpu"])
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--memory", type=int, default=20, help="GiB that a process may take")
    parser.add_argument("--text", type=Path, help="a stream of so many tokens, in place of one that is made now")
    parser.add_argument("--folder", type=Path, help="where streams and models go")
    parser.add_argument("--save", metavar="NAME", help="keep the results as NAME.json")
    parser.add_argument("--out", type=Path, help="folder for the JSON results (default: benchmarks/results)")
    settings = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(dir=settings.folder) as name:
        folder = Path(name)
        for tokens in settings.tokens:
            text = settings.text or folder / "tokens.txt"
            if settings.text is None:
                write_tokens(text, tokens, settings.vocab_size)
            for order in settings.orders:
                runs: dict[str, list[dict[str, Any]]] = {}
                for _ in range(settings.repeats):
                    for device in settings.device:
                        runs.setdefault(device, []).append(ours(text, order, settings, folder, device))
                    if settings.lmplz:
                        runs.setdefault("lmplz", []).append(lmplz(text, order, settings, folder))
                row = {"tokens": tokens, "order": order, "prune": settings.prune}
                row |= {who: middle(results) for who, results in runs.items()}
                row["all_seconds"] = {who: [result.get("seconds") for result in results] for who, results in runs.items()}
                rows.append(row)
                print(json.dumps(row), flush=True)
                if settings.save:
                    save(settings.save, {"training": rows}, settings.out)
    runs = [(who, found) for row in rows for who, found in row.items() if isinstance(found, dict)]
    failed = [f"{who}: {found['failed']}" for who, found in runs if "failed" in found]
    if failed:
        sys.exit("\n".join(failed))


if __name__ == "__main__":
    main()
