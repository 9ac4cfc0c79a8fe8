"""CTC decoding with a language model on a GPU, beside the encoder that it comes after.

    python benchmarks/gpu_ctc.py

Encoders are Parakeet's with random weights in bfloat16, of 600 and 110 million parameters, for 20 s of noise per row. What is
decoded are random logits of as many frames, of which one class stands out at each frame, mostly the blank, as trained models
have it. "search" is the GPU's own time for the search alone, in a CUDA graph; "whole" is a decoder's call from logits to
hypotheses with text, as the host sees it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import lm_queries
import measure
import torch
from random_models import MELS, SUBSAMPLING, ctc_encoder, peaked_logits, plain_tokenizer

from hf_ngpulm import CTCDecoder, NGramLM
from hf_ngpulm.engines.native import NativeCoreError
from hf_ngpulm.search import ctc_beam as beam
from hf_ngpulm.search import ctc_greedy as greedy

FRAMES = 250  # 20 s of audio
BEAMS = (8, 32)
LM_WEIGHT, BETA, BEAM_THRESHOLD, BLANK_THRESHOLD = 0.5, 1.5, 20.0, 0.9
# What searches may take of an encoder's time at the largest batch, in percent.
PERCENT = {
    "600 M": {"greedy + LM": 1.0, "beam 8 + LM": 3.0, "beam 32 + LM": 10.0},
    "110 M": {"greedy + LM": 4.0},
}
Search = Callable[[], Any]


def main() -> None:
    parser = measure.arguments(__doc__, "ctc_search_gpu")
    parser.add_argument("--vocab-sizes", type=int, nargs="+", default=[1024, 5000])
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 32, 128])
    parser.add_argument("--beams", type=int, nargs="+", default=list(BEAMS))
    parser.add_argument("--frames", type=int, default=FRAMES)
    parser.add_argument("--ngrams", type=int, default=lm_queries.NGRAMS, help="of the LM")
    parser.add_argument("--tiny", action="store_true", help="tiny encoders, to see that it runs")
    args = parser.parse_args()
    torch.manual_seed(0)
    results: dict[str, Any] = {"frames": args.frames, "percent": PERCENT, "encoders": [], "searches": []}
    with torch.inference_mode():
        for name in PERCENT:
            model = ctc_encoder("tiny" if args.tiny else name)
            seconds = {str(size): encoder_seconds(model, size, args.frames) for size in args.batch_sizes}
            parameters = sum(parameter.numel() for parameter in model.parameters())
            results["encoders"].append({"name": name, "parameters": parameters, "seconds": seconds})
        for vocab_size in args.vocab_sizes:
            lm = lm_queries.build_model(vocab_size, 6, args.ngrams).to(measure.GPU)
            for batch_size in args.batch_sizes:
                results["searches"] += timed_searches(lm, batch_size, args.frames, args.beams)
                measure.save(args.name, results, args.out)
    for encoder in results["encoders"]:
        print(f"encoder of {encoder['name']}:", ", ".join(f"B={b} {1e3 * s:.2f} ms" for b, s in encoder["seconds"].items()))
    print(measure.table(*cells(results)))
    if any(row["whole_seconds"] is None for row in results["searches"]):
        print("there is no native core here (python csrc/build.py), which hypotheses need: searches alone were timed")
    print("results in", measure.save(args.name, results, args.out))


def encoder_seconds(model: Any, batch_size: int, frames: int) -> float:
    """How long an encoder takes for noise."""
    shape = (batch_size, SUBSAMPLING * frames, MELS)
    features = torch.randn(shape, device=measure.GPU, dtype=torch.bfloat16)
    mask = torch.ones(shape[:2], dtype=torch.int64, device=measure.GPU)
    return measure.wall_seconds(partial(model, input_features=features, attention_mask=mask))


def timed_searches(lm: NGramLM, batch_size: int, frames: int, beams: list[int]) -> list[dict[str, Any]]:
    """Rows of the table for one batch."""
    logits = peaked_logits(batch_size, frames, lm.vocab_size)
    lengths = torch.full((batch_size,), frames, dtype=torch.int32, device=measure.GPU)
    tokenizer = plain_tokenizer(lm.vocab_size)
    kinds: dict[str, tuple[dict[str, Any], Search]] = {"argmax": ({}, partial(logits.argmax, -1))}
    with_lm = {"lm": lm, "lm_weight": LM_WEIGHT}
    kinds["greedy + LM"] = {**with_lm, "num_beams": 1}, greedy_search(lm, logits, lengths)
    for num_beams in beams:
        settings = {**with_lm, "num_beams": num_beams, "beta": BETA}
        name = f"beam {num_beams} + LM"
        kinds[name] = settings, beam_search(lm, logits, lengths, num_beams, float("inf"))
        skipping = {**settings, "blank_threshold": BLANK_THRESHOLD}
        kinds[f"{name}, blank_threshold"] = skipping, beam_search(lm, logits, lengths, num_beams, BLANK_THRESHOLD)
    found = []
    for name, (settings, search) in kinds.items():
        decoder = CTCDecoder(tokenizer, blank_id=lm.vocab_size, **settings)
        row: dict[str, Any] = {"vocab_size": lm.vocab_size, "batch_size": batch_size, "search": name}
        row["search_seconds"] = measure.graph_seconds([search], 3, count=3)
        try:
            row["whole_seconds"] = measure.wall_seconds(partial(decoder, logits, lengths))
        except NativeCoreError:
            row["whole_seconds"] = None
        found.append(row)
    return found


def greedy_search(lm: NGramLM, logits: torch.Tensor, lengths: torch.Tensor) -> Search:
    batch_size, blank = len(logits), lm.vocab_size
    weights = torch.full((batch_size, 1), LM_WEIGHT, device=measure.GPU)
    before = torch.full((batch_size, 2), blank, dtype=torch.int32, device=measure.GPU)
    states = lm.initial_states(batch_size)[:, None].contiguous()
    return partial(
        greedy.ctc_greedy, list(lm.tensors), logits, lengths, states, weights, 3 * weights[:, 0], before, blank, lm.vocab_size,
        "stay",
    )  # fmt: skip


def beam_search(lm: NGramLM, logits: torch.Tensor, lengths: torch.Tensor, num_beams: int, skip: float) -> Search:
    batch_size, blank = len(logits), lm.vocab_size
    weights = torch.full((batch_size, 1), LM_WEIGHT, device=measure.GPU)
    bonuses = torch.full((batch_size,), BETA, device=measure.GPU)
    state = beam.initial_state(num_beams, lm.initial_states(batch_size)[:, None].contiguous())
    return partial(
        beam.ctc_beam, list(lm.tensors), state, logits, lengths, weights, bonuses, -3 * weights[:, 0], blank, lm.vocab_size,
        BEAM_THRESHOLD, skip,
    )  # fmt: skip


def cells(results: dict[str, Any]) -> tuple[list[str], list[list[Any]]]:
    """Header and rows of the table."""
    encoders = results["encoders"]
    header = ["V", "batch", "search", "search us", "whole us"]
    header += [f"{kind}, % of {encoder['name']}" for encoder in encoders for kind in ("search", "whole")]
    rows = []
    for row in results["searches"]:
        times = [row["search_seconds"], row["whole_seconds"]]
        shares = [
            "" if seconds is None else f"{100 * seconds / encoder['seconds'][str(row['batch_size'])]:.2f}"
            for encoder in encoders
            for seconds in times
        ]
        micros = ["" if seconds is None else f"{1e6 * seconds:.0f}" for seconds in times]
        rows.append([row["vocab_size"], row["batch_size"], row["search"], *micros, *shares])
    return header, rows


if __name__ == "__main__":
    main()
