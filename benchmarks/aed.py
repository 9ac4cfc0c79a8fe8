"""Attention decoders: what a step of `generate` takes, alone and with an n-gram LM.

    python benchmarks/aed.py                                         # random models: time a step
    python benchmarks/aed.py --models whisper-tiny --batch-sizes 32 --beams 5 --most-rows 160
    python benchmarks/aed.py --models canary --ways strategy internal

Random Whispers of several sizes, a Canary, and a decoder with Qwen's 151,936 tokens (see random_models.py), each with an LM
over all its text tokens. `generate` runs a fixed number of steps, greedily and with 5 beams, in each way of `ways_of` by turns.
A step lasts from one time that the output layer has run to the next, so that what comes before the first token doesn't count;
what is reported is the ratio of the median step to that of stock `generate`. Stock `generate` has two turns: their ratio is
the noise. What calls of the processor take is measured in these, too ("in processor"): a ratio of two noisy times says less.
"internal" subtracts the decoder's internal LM, too.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
import warnings
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import measure
import torch
import transformers
from random_models import ATTENTION, Subject, subject_of, texts

from hf_ngpulm import NGramLM, NGramLogitsProcessor
from hf_ngpulm.generation import seq2seq_generate

ORDER, WEIGHT = 5, 0.2
# Rows (batch x beams) above which a model takes many minutes on a CPU, nearly all of them before the first step; others take
# them in any case.
MOST_ROWS_ON_CPU = {"whisper-tiny": 40, "whisper-base": 8, "whisper-small": 8, "canary": 40, "qwen-head": 40}
LEAST_TURNS = 2


def main() -> None:
    parser = measure.arguments(__doc__, "aed")
    parser.add_argument("--models", nargs="+", choices=ATTENTION, help="default: all; on a CPU all but the largest two")
    parser.add_argument("--ways", nargs="+", default=["processor", "strategy"], help="beside stock")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 5])
    parser.add_argument("--most-rows", type=int, help="batch x beams at most; default: any, on a CPU by the model's size")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--turns", type=int, default=40, help="of each way, at most")
    parser.add_argument("--seconds", type=float, default=25, help=f"no more turns after so long, if there were {LEAST_TURNS}")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", help="default: float16, on a CPU float32")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    models = args.models or (MOST_ROWS_ON_CPU if args.device == "cpu" else [name for name in ATTENTION if name[-4:] != "none"])
    with torch.inference_mode():
        results: list[dict[str, Any]] = []
        for name in models:
            for row in step_times(name, args):
                results.append(row)
                measure.save(args.name, {"rows": results}, args.out)
    header = list(results[0])
    print(measure.table(header, [[row[name] for name in header] for row in results]))
    print("results in", measure.save(args.name, {"rows": results}, args.out))


def ways_of(subject: Subject, lm: NGramLM, names: list[str]) -> dict[str, dict[str, Any]]:
    """Ways to generate: what `generate` is given in each."""
    ways: dict[str, dict[str, Any]] = {"stock": {}, "stock again": {}}
    if "processor" in names:
        processor = Timed(NGramLogitsProcessor(lm, WEIGHT, model=subject.model, start=subject.start))
        ways["processor"] = {"logits_processor": [processor]}
    if "strategy" in names:
        settings = {"lm": lm, "lm_weight": WEIGHT} | ({} if subject.start is None else {"start": subject.start})
        ways["strategy"] = {"custom_generate": seq2seq_generate, **settings}
    if "internal" in names:
        ways["internal"] = {**ways["strategy"], "ilm_weight": WEIGHT / 2}
    return ways


def step_times(name: str, args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    dtype = getattr(torch, args.dtype or ("float32" if args.device == "cpu" else "float16"))
    subject = subject_of(name, args.device, dtype)
    lm = NGramLM.train(texts(subject.text_tokens), vocab_size=subject.text_tokens, order=ORDER).to(args.device)
    ways = ways_of(subject, lm, args.ways)
    steps = StepClock(subject.model, args.steps)
    most_rows = args.most_rows or (MOST_ROWS_ON_CPU.get(name) if args.device == "cpu" else None) or float("inf")
    compiles = True
    for num_beams in args.beams:
        for batch_size in args.batch_sizes:
            if num_beams * batch_size <= most_rows:
                row = {"model": name, **compared(subject, ways, steps, num_beams, batch_size, compiles, args)}
                compiles = False
                print(json.dumps(row), flush=True)
                yield row
    steps.stop()
    del subject, ways, steps
    gc.collect()


def compared(
    subject: Subject,
    ways: dict[str, dict[str, Any]],
    steps: StepClock,
    num_beams: int,
    batch_size: int,
    compiles: bool,
    args: argparse.Namespace,
) -> dict[str, Any]:
    """Medians of a step in each way; the first turn doesn't count if it `compiles`."""
    settings = {"num_beams": num_beams, "do_sample": False, "max_new_tokens": args.steps, "min_new_tokens": args.steps}
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    inside: dict[str, list[float]] = {way: [] for way in ways if "logits_processor" in ways[way]}
    begin, turn = time.perf_counter(), 0
    while turn < args.turns and (turn < LEAST_TURNS or time.perf_counter() - begin < args.seconds):
        for way in list(ways)[:: -1 if turn % 2 else 1]:
            subject.model.generate(**subject.encoded(batch_size), **settings, **ways[way])
            seconds[way] += steps.seconds()
            if way in inside:  # the first call isn't within a step
                inside[way] += ways[way]["logits_processor"][0].seconds()[1:]
        if compiles:
            compiles = False
            for times in (*seconds.values(), *inside.values()):
                times.clear()
        else:
            turn += 1
    medians = {way: statistics.median(times) for way, times in seconds.items()}
    stock = medians.pop("stock")
    row = {"beams": num_beams, "batch": batch_size, "turns": turn, "ms a step": round(1e3 * stock, 3)}
    row |= {f"{way} %": round(100 * (median / stock - 1), 2) for way, median in medians.items()}
    for way, times in inside.items():
        median = statistics.median(times)
        row |= {f"in {way}, ms": round(1e3 * median, 3), f"in {way}, %": round(100 * median / stock, 2)}
    return row


class StepClock:
    """Tells how long each step takes: from one time that a model's output layer has run to the next."""

    def __init__(self, model: Any, steps: int) -> None:
        self.steps = steps
        self._times: list[Any] = []
        self.stop = model.get_output_embeddings().register_forward_hook(self._called).remove

    def _called(self, layer: Any, inputs: Any, output: torch.Tensor) -> None:
        self._times.append(now(output))

    def seconds(self) -> list[float]:
        """Of the steps of the `generate` that has just ended."""
        times, self._times = self._times, []
        if len(times) not in (self.steps, 2 * self.steps):
            raise RuntimeError(f"generate should have taken {self.steps} steps, it took {len(times)}")
        times = times[:: len(times) // self.steps]  # an internal LM's pass comes after each
        return [between(begin, end) for begin, end in pairwise(times)]


class Timed(transformers.LogitsProcessor):
    """A processor that keeps how long its calls take."""

    def __init__(self, processor: Any) -> None:
        self.processor = processor
        self._calls: list[tuple[Any, Any]] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        begin = now(scores)
        scores = self.processor(input_ids, scores)
        self._calls.append((begin, now(scores)))
        return scores

    def seconds(self) -> list[float]:
        """Of the calls since it was asked last."""
        calls, self._calls = self._calls, []
        return [between(begin, end) for begin, end in calls]


def now(made: torch.Tensor) -> Any:
    """The time at which a tensor is there; on a GPU nothing waits for it.

    With one thread on a CPU it is the time that this process has had of it, not what others have had meanwhile.
    """
    if not made.is_cuda:
        return time.process_time() if torch.get_num_threads() == 1 else time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def between(begin: Any, end: Any) -> float:
    """Seconds."""
    if isinstance(begin, float):
        return end - begin
    end.synchronize()
    return begin.elapsed_time(end) / 1e3


if __name__ == "__main__":
    main()
