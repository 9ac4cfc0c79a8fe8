"""Learn from simulated corrections, one by one, and measure the errors on other speakers and on other speech.

    python benchmarks/real_speech/corrections.py speechocean.jsonl frames so4.jsonl frames_so an4.jsonl frames_an4 \\
        --model run/ctc --books 113-0.txt 514.txt ...
    python benchmarks/real_speech/corrections.py --bundled callsigns contacts harbour --model examples/models/ctc --step 5

Manifests come with the folders of Whisper's frames of their clips (examples/train_on_whisper/features.py). Corrections are
clips of the first manifest's split "train" in random order: what the model hears (greedily), and the transcript. Errors are
those of the splits "test" of the other manifests, the second one's being other speech. Every `--step` corrections the decoder
gets `log.phrases()` and `log.language_model(lm)`, with default settings and 4 beams.
Of a bundled corpus, half of the clips are corrected, and the others tested.
"""

from __future__ import annotations

import itertools
import json
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from families import Clip, Heard, Recogniser, corpora, heard_once, measure, sentences

from hf_ngpulm import CorrectionLog, NGramLM
from hf_ngpulm.evaluation import word_errors

Row = dict[str, Any]


def heard_by(recogniser: Recogniser, manifest: Path, frames: Path, split: str, most: int | None = None) -> Heard:
    """Return the model's outputs for clips of a split; with `most`, for so many random ones."""
    lines = [line for line in map(json.loads, manifest.read_text(encoding="utf-8").splitlines()) if line["split"] == split]
    random.Random(0).shuffle(lines)
    lines = lines[:most]
    recogniser.paths = [str(manifest.parent / line["audio"]) for line in lines]
    silence = np.zeros(1, dtype=np.float32)  # the frames hold what is heard
    return heard_once(recogniser, [Clip(silence, line["text"], (), line["speaker"]) for line in lines], frames)


def interval(heard: Heard, before: list[str], after: list[str]) -> list[float]:
    """Return the change of the WER in points, and its 95% interval over speakers (bootstrap)."""
    said = [clip.text for clip in heard.clips]
    errors = [[each.errors for each in word_errors(said, texts).utterances] for texts in (before, after)]
    words = [len(text.split()) for text in said]
    speakers = sorted({clip.speaker for clip in heard.clips})
    of = np.array([speakers.index(clip.speaker) for clip in heard.clips])
    change, total = (np.bincount(of, weights=column) for column in (np.subtract(errors[1], errors[0]), words))
    drawn = np.random.default_rng(0).integers(0, len(speakers), (2000, len(speakers)))
    rates = 100 * change[drawn].sum(1) / total[drawn].sum(1)
    return [float(100 * change.sum() / total.sum()), *np.quantile(rates, (0.025, 0.975)).tolist()]


def rows_of(recogniser: Recogniser, pairs: list[tuple[str, str]], sets: dict[str, Heard], lm: Any, step: int) -> Iterator[Row]:
    """Yield the figures after so many corrections."""
    first: dict[str, list[str]] = {}
    last: dict[str, list[str]] = {}
    spent = [0.0]
    with tempfile.TemporaryDirectory() as folder:
        log = CorrectionLog(Path(folder) / "corrections.jsonl")
        for count in range(len(pairs) + 1):
            if count:
                begin = time.process_time()
                log.add(*pairs[count - 1])
                spent.append(1e3 * (time.process_time() - begin))
            if count % step and count != len(pairs):
                continue
            begin = time.process_time()
            phrases, learned = log.phrases(), log.language_model(lm, recogniser.tokenizer)
            row: Row = {"corrections": count, "phrases": len(phrases), "learning ms": 1e3 * (time.process_time() - begin)}
            settings = {} if learned is None else {"lm": learned}
            decoder = recogniser.decoder(**settings, num_beams=4)
            decoder = decoder.with_phrases(phrases) if phrases else decoder
            for name, heard in sets.items():
                found = heard.decode(decoder)
                row[name] = 100 * word_errors([clip.text for clip in heard.clips], found).rate
                row[f"{name}, change"] = interval(heard, first.setdefault(name, found), found)
                row[f"{name}, step"] = interval(heard, last.get(name, found), found)
                last[name] = found
            yield {**row, "adding ms": max(spent)}


def corrected(recogniser: Recogniser, heard: Heard) -> list[tuple[str, str]]:
    return [(found, clip.text) for found, clip in zip(heard.decode(recogniser.decoder(num_beams=1)), heard.clips)]


def main() -> None:
    parser = measure.arguments(__doc__, "real_corrections")
    parser.add_argument("data", type=Path, nargs="*", help="three manifests, each with the folder of its frames")
    parser.add_argument("--model", required=True)
    parser.add_argument("--bundled", nargs="+", default=[], help="bundled corpora, in place of manifests")
    parser.add_argument("--books", type=Path, nargs="*", default=[], help="text files, for a user with a language model")
    parser.add_argument("--corrections", type=int, default=200)
    parser.add_argument("--step", type=int, default=20)
    args = parser.parse_args()
    if len(args.data) != (0 if args.bundled else 6):
        parser.error("give three manifests, each with the folder of its frames; or --bundled")
    torch.set_num_threads(args.threads)
    recogniser = Recogniser(args.model)
    rows: list[Row] = []
    with torch.inference_mode():
        bases: dict[str, Any] = {"none": None}
        if args.books:
            texts = [sentence for book in args.books for sentence in sentences(book)]
            bases["books"] = NGramLM.from_texts(texts, recogniser.tokenizer)
        parts: list[tuple[str, list[tuple[str, str]], dict[str, Heard]]] = []
        for name in args.bundled:
            clips = corpora.load(name)
            random.Random(0).shuffle(clips)
            half = len(clips) // 2
            parts.append((name, corrected(recogniser, recogniser.hear(clips[:half])), {"same": recogniser.hear(clips[half:])}))
        if args.data:
            pairs = corrected(recogniser, heard_by(recogniser, *args.data[:2], "train", args.corrections))
            others = [heard_by(recogniser, *args.data[n : n + 2], "test") for n in (2, 4)]
            parts.append((args.data[0].stem, pairs, dict(zip(("same", "other"), others))))
        for (name, pairs, sets), (base, lm) in itertools.product(parts, bases.items()):
            for row in rows_of(recogniser, pairs, sets, lm, args.step):
                rows.append({"corpus": name, "base": base, **row})
                print({key: round(v, 2) if isinstance(v, float) else v for key, v in rows[-1].items()}, flush=True)
                path = measure.save(args.name, {"rows": rows}, args.out)
    print("results in", path)


if __name__ == "__main__":
    main()
