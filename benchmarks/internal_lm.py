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
from hf_ngpulm.sound.files import read_audio

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

        batches = [frames[first : first + BATCH] for first in range(0, len(frames), BATCH)]

        def rates(beams: int, of: Recogniser = recogniser, batches: Any = batches, **settings: Any) -> dict[str, float]:
            heard = [text for batch in batches for text in of.transcripts(batch, beams, graph=False, **settings)]
            found = jiwer.process_words(said, heard)
            return {"wer": found.wer, "deletions": found.deletions / (found.hits + found.substitutions + found.deletions)}

        for beams in args.beams:
            facts = {"model": folder.name, "text": "no LM", "num_beams": beams, "lm_weight": 0.0, "share": 0.0}
            rows.append({**facts, **rates(beams)})
        for path in args.texts:
            lm = NGramLM.train(path.read_text().splitlines(), recogniser.processor.tokenizer, order=6)
            for beams in args.beams:
                for weight in args.lm_weights:
                    for share in args.shares:
                        found = rates(beams, lm=lm, lm_weight=weight, ilm_weight=share * weight)
                        facts = {"model": folder.name, "text": path.stem, "num_beams": beams, "lm_weight": weight}
                        rows.append({**facts, "share": share, **found})
                        print(json.dumps(rows[-1]), flush=True)

    def mean(text: str, weight: float, share: float) -> str:
        of = [row for row in rows if (row["text"], row["lm_weight"], row["share"]) == (text, weight, share)]
        return " ".join(f"{100 * sum(row[name] for row in of) / len(of):.2f}" for name in ("wer", "deletions"))

    table = [
        [path.stem, weight, *(mean(path.stem, weight, share) for share in args.shares)]
        for path in args.texts
        for weight in args.lm_weights
    ]
    print("word error rates and deletions, mean of all models and beams, by share; without an LM", mean("no LM", 0.0, 0.0))
    print(measure.table(["text", "lm_weight", *map(str, args.shares)], table))
    alone = [[row["model"], row["num_beams"], f"{100 * row['wer']:.1f}"] for row in rows if row["text"] == "no LM"]
    print(measure.table(["model", "num_beams", "no LM"], alone))
    print("results in", measure.save(args.name, {"rows": rows}, args.out))


if __name__ == "__main__":
    main()
