"""The default of `ilm_weight`: error rates of transducers with LMs of several texts, by their weights, and by shares of these
with which the internal LM is subtracted.

    python benchmarks/internal_lm.py --models RNNT TDT --manifest dev.jsonl --texts domain.txt other.txt
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import measure

sys.path.insert(0, str(measure.ROOT))

import jiwer
import torch
from joined import Recogniser

from hf_ngpulm import NGramLM
from hf_ngpulm.audio.files import read_audio

BATCH = 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, nargs="+", required=True, help="folders of transducers")
    parser.add_argument("--manifest", type=Path, required=True, help="JSON lines with audio and text")
    parser.add_argument("--texts", type=Path, nargs="+", required=True, help="sentences of an LM each, one a line")
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 3, 8])
    parser.add_argument("--lm-weights", type=float, nargs="+", default=[0.1, 0.3, 0.5, 0.7, 0.9])
    parser.add_argument("--shares", type=float, nargs="+", default=[0.0, 0.35, 0.5, 0.7])
    parser.add_argument("--name", default="internal_lm_development_set")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    clips = [json.loads(line) for line in args.manifest.read_text().splitlines()]
    said = [clip["text"] for clip in clips]
    audio = [read_audio(args.manifest.parent / clip["audio"], 16_000) for clip in clips]
    rows = []
    for folder in args.models:
        recogniser = Recogniser(folder, audio)
        frames = recogniser.rows(1, of_audio=False)

        def rate(
            beams: int, of: Recogniser = recogniser, frames: list[torch.Tensor] = frames, **settings: Any
        ) -> dict[str, float]:
            batches = [frames[first : first + BATCH] for first in range(0, len(frames), BATCH)]
            heard = [text for batch in batches for text in of.transcripts(batch, beams, graph=False, **settings)]
            found = jiwer.process_words(said, heard)
            return {"wer": found.wer, "deletions": found.deletions / (found.hits + found.substitutions + found.deletions)}

        for beams in args.beams:
            none = rate(beams)
            rows.append({"model": folder.name, "text": None, "num_beams": beams, "lm_weight": 0.0, "share": 0.0, **none})
        for path in args.texts:
            lm = NGramLM.train(path.read_text().splitlines(), recogniser.processor.tokenizer, order=6)
            for beams in args.beams:
                for weight in args.lm_weights:
                    for share in args.shares:
                        found = rate(beams, lm=lm, lm_weight=weight, ilm_weight=share * weight)
                        facts = {"model": folder.name, "text": path.stem, "num_beams": beams, "lm_weight": weight}
                        rows.append({**facts, "share": share, **found})
                        print(json.dumps(rows[-1]), flush=True)
    table = []
    for path in args.texts:
        for weight in args.lm_weights:
            of_weight = [row for row in rows if row["text"] == path.stem and row["lm_weight"] == weight]
            by_share = [[row["wer"] for row in of_weight if row["share"] == share] for share in args.shares]
            table.append([path.stem, weight, *(f"{100 * sum(rates) / len(rates):.1f}" for rates in by_share)])
    print("word error rates, mean of all models and beams, by share")
    print(measure.table(["text", "lm_weight", *map(str, args.shares)], table))
    print("results in", measure.save(args.name, {"rows": rows}, args.out))


if __name__ == "__main__":
    main()
