"""Transducers: word error rates and times of our decoders, with and without a language model, beside stock `generate` and NeMo.

    python benchmarks/transducer.py --model MODEL [MODEL ...] --manifest clips.jsonl --lm lm.arpa
    ... --nemo-python NEMO_ENV/bin/python     # NeMo's decoders on the same weights and frames; --lm has decimal token ids
    ... --quick                               # a few clips and decoders

A manifest has a line {"audio": path, "text": transcript} per clip. The weight of the LM is chosen on the even clips (the first
one is even), each decoder's in the same way; word error rates are those of the odd ones, and of all. Times are those of
decoding alone: the encoder has run before (stock `generate` is handed what it gave), clips sorted by length, in batches. Ours
give texts and confidences, NeMo's token ids alone. RTFx is the length of the audio over the time of the decoder, or of the
whole model: the encoder, in batches of the same size, and the decoder, without features. By turns, medians. Beams other than 6
are timed in batches of 32 only, NeMo's beams in large ones. The internal LM is subtracted with half the weight of the LM.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from pathlib import Path
from typing import Any

import measure
import torch

sys.path.insert(0, str(measure.ROOT))

import encoded
from candidates import Candidate, NeMo, NeMoProcess, Ours, Stock, columns, timed

from hf_ngpulm.language_model.loading import load_language_model

WEIGHTS = (0.5, 0.7, 0.9, 1.1, 1.3)
ILM_SHARE = 0.5
GREEDY = {"strategy": "greedy"}
BEAM = 6
BEAMS = (1, 2, 4, BEAM, 8, 12)
BATCH_SIZE = 32
BATCH_SIZES = (1, 4, 16, BATCH_SIZE)
LARGEST_ON_GPU = 128
QUICK_CLIPS = 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", required=True)
    parser.add_argument("--manifest", type=Path, required=True)
    parser.add_argument("--lm", required=True)
    parser.add_argument("--nemo-python", help="Python of an environment with NeMo")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_CLIPS} clips, beam {BEAM}, one weight, two batch sizes")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--name", default="transducer", help="name of the result file")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    warnings.filterwarnings("ignore", message="Using the model-agnostic default")
    sizes = BATCH_SIZES + ((LARGEST_ON_GPU,) if args.device == "cuda" else ())
    if args.quick:
        sizes = (1, BATCH_SIZE)
    results: list[dict[str, Any]] = []
    with torch.inference_mode():
        for name in args.model:
            clips = encoded.load(name, args.manifest, args.device, sizes, QUICK_CLIPS if args.quick else None)
            results += measured(clips, args)
    header, cells = columns(results, sizes)
    rows = [
        [row["model"], row["decoder"], row["lm_weight"] or "", f"{row['odd']:.1f}", f"{row['all']:.1f}", *figures]
        for row, figures in zip(results, cells)
    ]
    print(measure.table(["model", "decoder", "weight", "WER, odd", "WER, all", *header], rows))
    print("results in", measure.save(args.name, {"decoders": results}, args.out))


def measured(clips: encoded.Clips, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Rows of the table for one model."""
    weights = (0.9,) if args.quick else WEIGHTS
    rows: list[dict[str, Any]] = []
    chosen: list[tuple[Candidate, float | None]] = []
    for candidate in candidates(clips, args):
        for suffix, grid in (("", (None,)), (" + LM", weights)):
            if isinstance(candidate, Stock) if suffix else getattr(candidate, "ilm_share", 0.0):
                continue  # what has no LM, or needs one
            found = {weight: clips.wer(candidate.transcripts(weight)) for weight in grid}
            best = min(grid, key=lambda weight: found[weight]["even"])
            facts = {"model": clips.name, "decoder": candidate.name + suffix, "lm_weight": best, "clips": len(clips.rows)}
            rows.append({**facts, "audio_seconds": clips.seconds, **found[best]})
            chosen.append((candidate, best))
            print(f"{clips.name}, {rows[-1]['decoder']}: WER {rows[-1]['all']:.1f} at the weight {best}", flush=True)
    return [row | times for row, times in zip(rows, timed(chosen, clips, args.repeats))]


def candidates(clips: encoded.Clips, args: argparse.Namespace) -> list[Candidate]:
    """The decoders that there are for a model."""
    lm = load_language_model(args.lm, clips.processor.tokenizer, args.device)
    sizes = tuple(clips.batches)
    of_model = ("alsd",) if hasattr(clips.model.config, "durations") else ("alsd", "aes")
    found: list[Candidate] = [Stock("stock generate", clips, sizes), Ours("greedy", clips, sizes, lm, GREEDY)]
    found.append(Ours("greedy - internal LM", clips, sizes, lm, GREEDY, ILM_SHARE))
    for strategy in of_model:
        for num_beams in (BEAM,) if args.quick else BEAMS:
            of_beam = sizes if num_beams == BEAM else (BATCH_SIZE,)
            settings = {"strategy": strategy, "num_beams": num_beams}
            name = f"{strategy.upper()} {num_beams}"
            found.append(Ours(name, clips, of_beam, lm, settings))
            if num_beams == BEAM:
                found.append(Ours(f"{name} - internal LM", clips, of_beam, lm, settings, ILM_SHARE))
    if args.nemo_python:
        process = NeMoProcess(args.nemo_python, clips, args.lm)
        found.append(NeMo("NeMo label looping", clips, sizes, process, {"decoder": "greedy"}))
        for strategy in of_model:
            settings = {"decoder": f"m{strategy}", "beams": BEAM}
            found.append(NeMo(f"NeMo m{strategy}_batch {BEAM}", clips, sizes[2:] or sizes, process, settings))
    return found


if __name__ == "__main__":
    main()
