"""Time NeMo's NGPU-LM: loading, size, and `advance` (all scores and all next states for a batch of states).

Run it with the python of an environment that has NeMo (`pip install "nemo_toolkit[asr]==3.0.0"`), and nothing else:

    python benchmarks/make_arpa.py --units nemo --out big.arpa
    python benchmarks/peers_nemo.py big.arpa --vocab-size 1024 > nemo.json

The ARPA file is in NeMo's units (token id + 100 as a character). The states that are queried are reached by walking:
each row starts at `<s>` and takes `--steps` tokens drawn from the model's own distribution, so the contexts are as long
as those a decoder meets. On CUDA NeMo's Triton kernel is timed, on the CPU its PyTorch implementation.
"""

import argparse
import contextlib
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    """What the call returns, and the seconds it took."""
    start = time.perf_counter()
    result = call()
    return result, time.perf_counter() - start


def walk(lm: Any, batch_size: int, steps: int, device: str) -> Any:
    """States `[B]` after `steps` tokens drawn from the model, the same ones in every run."""
    import torch

    generator = torch.Generator().manual_seed(0)
    states = lm.get_init_states(batch_size=batch_size, bos=True)
    for _ in range(steps):
        scores, next_states = lm.advance(states)
        tokens = torch.multinomial(scores.cpu().softmax(dim=-1), 1, generator=generator).to(device)
        states = next_states.gather(1, tokens)[:, 0]
    return states


def time_advance(lm: Any, states: Any, device: str, seconds: float) -> dict[str, float]:
    """Median, best and worst milliseconds of a call, over as many calls as fit in `seconds` (at least 5)."""
    import torch

    def call() -> None:
        lm.advance(states)
        if device == "cuda":
            torch.cuda.synchronize()

    for _ in range(3):
        call()
    times: list[float] = []
    while len(times) < 5 or (sum(times) < seconds * 1000 and len(times) < 1000):
        times.append(timed(call)[1] * 1000)
    return {
        "median_ms": round(statistics.median(times), 4),
        "min_ms": round(min(times), 4),
        "max_ms": round(max(times), 4),
        "calls": len(times),
    }


def measure(args: argparse.Namespace) -> dict[str, Any]:
    import nemo
    import torch
    from nemo.collections.asr.parts.submodules.ngram_lm import NGramGPULanguageModel

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_num_threads(max(args.threads))
    lm, arpa_seconds = timed(lambda: NGramGPULanguageModel.from_file(args.arpa, vocab_size=args.vocab_size))
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Path(folder, "lm.nemo")
        lm.save_to(str(checkpoint))
        checkpoint_bytes = checkpoint.stat().st_size
        loads = [
            timed(lambda: NGramGPULanguageModel.from_file(checkpoint, vocab_size=args.vocab_size)) for _ in range(args.loads)
        ]
    lm = loads[-1][0].to(device).eval()
    tensors = list(lm.state_dict().values())
    num_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    runs = []
    for batch_size in args.batches:
        states = walk(lm, batch_size, args.steps, device)
        context = (lm.state_order[states] - 1).float().mean().item()
        for threads in args.threads if device == "cpu" else args.threads[:1]:
            torch.set_num_threads(threads)
            run = {"batch": batch_size, "mean_context_length": round(context, 2)}
            if device == "cpu":
                run["threads"] = threads
            runs.append({**run, **time_advance(lm, states, device, args.seconds)})
    return {
        "nemo": nemo.__version__,
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if device == "cuda" else cpu_name(),
        "cpus": os.cpu_count(),
        "arpa": args.arpa.name,
        "vocab_size": lm.vocab_size,
        "order": lm.max_order,
        "states": lm.num_states,
        "arcs": lm.num_arcs,
        "bytes": num_bytes,
        "bytes_per_arc": round(num_bytes / lm.num_arcs, 2),
        "checkpoint_bytes": checkpoint_bytes,
        "load_arpa_s": round(arpa_seconds, 3),
        "load_nemo_s": round(statistics.median(seconds for _, seconds in loads), 3),
        "load_nemo_first_s": round(loads[0][1], 3),
        "advance": runs,
    }


def cpu_name() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def integers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("arpa", type=Path, help="ARPA file, plain text, in NeMo's units")
    parser.add_argument("--vocab-size", type=int, required=True)
    parser.add_argument("--batches", type=integers, default=[1, 32, 256], help="batch sizes, comma-separated")
    parser.add_argument("--threads", type=integers, default=[1, 2], help="numbers of torch threads on the CPU")
    parser.add_argument("--steps", type=int, default=20, help="tokens that each row reads before its state is timed")
    parser.add_argument("--seconds", type=float, default=3.0, help="time to spend on each figure")
    parser.add_argument("--loads", type=int, default=5, help="times to load the .nemo checkpoint")
    args = parser.parse_args()

    with contextlib.redirect_stdout(sys.stderr):  # NeMo logs and draws progress bars
        import torch

        with torch.inference_mode():
            report = measure(args)
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
