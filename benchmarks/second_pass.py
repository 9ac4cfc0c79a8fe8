"""Measure what a second pass with a causal language model gains over the first pass alone.

    python benchmarks/second_pass.py MODEL dev.jsonl RESCORER --lm my-lm --name second_pass_ctc

The n-best lists of one search with `--beams` beams are scored once. The rescorer's weight and the bonus per word are chosen on
the even recordings, errors reported on the odd ones: for the first pass, for its `--n-best` best hypotheses rescored, and for
the best choice that there is in a list (oracle). `--lists FILE` also writes the lists, for `rescoring.py`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hf_ngpulm import Hypothesis
from hf_ngpulm.evaluation import paired_significance, word_errors
from hf_ngpulm.evaluation.significance import bootstrap
from hf_ngpulm.pipelines.loading import load_pipeline
from hf_ngpulm.rescoring import load_rescorer
from hf_ngpulm.sound.files import read_audio

RESULTS = Path(__file__).parent / "results"
WEIGHTS, BONUSES = np.arange(0, 2.05, 0.1), np.arange(-2, 8.5, 0.5)


def ranked(
    lists: list[list[Hypothesis]], scores: list[list[float]], most: int, weight: float, bonus: float, divided: bool
) -> list[str]:
    """Return the best text of each list's first `most`."""
    texts = []
    for hypotheses, of_row in zip(lists, scores):
        totals = [h.score + weight * s + bonus * len(h.text.split()) for h, s in zip(hypotheses[:most], of_row)]
        if divided:
            totals = [total / (len(h.token_ids) + 1) for total, h in zip(totals, hypotheses)]
        texts.append(hypotheses[int(np.argmax(totals))].text)
    return texts


def told(references: list[str], texts: list[str], first: list[str]) -> dict[str, Any]:
    counts = word_errors(references, texts)
    interval = bootstrap(counts)
    found = {"wer": round(100 * counts.rate, 2), "interval": [round(100 * interval.low, 2), round(100 * interval.high, 2)]}
    if texts != first:
        found["p"] = round(paired_significance(counts, word_errors(references, first)).p_value, 4)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("manifest")
    parser.add_argument("rescorer")
    parser.add_argument("--lm")
    parser.add_argument("--lm-weight", type=float)
    parser.add_argument("--beams", type=int, default=32)
    parser.add_argument("--n-best", type=int, nargs="+", default=[8, 32])
    parser.add_argument("--limit", type=int)
    parser.add_argument("--end", default="\n")
    parser.add_argument("--split", help="only the manifest's lines of this split")
    parser.add_argument("--lists", type=Path)
    parser.add_argument("--name")
    args = parser.parse_args()
    lines = [json.loads(line) for line in Path(args.manifest).read_text().splitlines()]
    chosen = [number for number, line in enumerate(lines) if args.split is None or line.get("split") == args.split]
    recordings = [lines[number] for number in chosen[:: max(1, len(chosen) // (args.limit or len(chosen)))][: args.limit]]
    given = {"lm": args.lm, "lm_weight": args.lm_weight} if args.lm else {}
    asr = load_pipeline(args.model, num_beams=args.beams, num_return_sequences=args.beams, **given)
    decoder, rate = asr._forward_params["ngram_decoder"], asr.feature_extractor.sampling_rate
    samples = [read_audio(Path(args.manifest).parent / recording["audio"], rate) for recording in recordings]
    references = [recording["text"] for recording in recordings]
    begin = time.process_time()
    frames = [*asr.frames({"raw": audio, "sampling_rate": rate} for audio in samples)]
    encoded = time.process_time()
    lists = [decoder.decode(row[None])[0] for row in frames]
    searched = time.process_time()
    if args.lists:
        args.lists.write_text(json.dumps([[hypothesis.text for hypothesis in of_row] for of_row in lists]))
    audio = sum(map(len, samples)) / rate
    found: dict[str, Any] = {
        "command": " ".join(["python", "benchmarks/second_pass.py", *(Path(each).name for each in sys.argv[1:])]),
        "recordings": len(recordings), "audio_seconds": round(audio, 1), "threads": torch.get_num_threads(),
        "model_seconds_per_second": round((encoded - begin) / audio, 4),
        "search_seconds_per_second": round((searched - encoded) / audio, 4),
    }  # fmt: skip
    divided = bool(getattr(decoder.options, "length_normalization", False))
    even, odd = slice(0, None, 2), slice(1, None, 2)
    first = [of_row[0].text for of_row in lists[odd]]
    found["first pass"] = told(references[odd], first, first)
    for most in args.n_best:
        rescorer = load_rescorer(args.rescorer, end=args.end)
        rescorer.scores([["warm up"]])
        rescorer.read_tokens, begin, scores = 0, time.process_time(), []
        for at in range(0, len(lists), 8):
            scores += rescorer.scores([[hypothesis.text for hypothesis in of_row[:most]] for of_row in lists[at : at + 8]])
        spent = time.process_time() - begin
        grid = itertools.product(WEIGHTS.tolist(), BONUSES.tolist())
        rates = {
            way: word_errors(references[even], ranked(lists[even], scores[even], most, *way, divided)).errors for way in grid
        }
        weight, bonus = min(rates, key=lambda way: (rates[way], way[0], abs(way[1])))
        oracle = [
            min((h.text for h in of_row[:most]), key=lambda text: word_errors([reference], [text]).errors)
            for reference, of_row in zip(references[odd], lists[odd])
        ]
        found[f"{most}-best"] = {
            "weight": round(weight, 2), "word_bonus": bonus, "tokens_read": rescorer.read_tokens,
            "seconds_per_second": round(spent / audio, 4),
            "rescored": told(references[odd], ranked(lists[odd], scores[odd], most, weight, bonus, divided), first),
            "oracle": told(references[odd], oracle, first),
        }  # fmt: skip
        print(json.dumps(found, indent=2), flush=True)
    if args.name:
        (RESULTS / f"{args.name}.json").write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
