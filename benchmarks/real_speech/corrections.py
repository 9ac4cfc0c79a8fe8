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
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from families import Frames, Heard, Recogniser, Row, corpora, measure, sentences

from hf_ngpulm import CorrectionLog, NGramLM
from hf_ngpulm.evaluation import word_errors


def change(heard: Heard, before: list[str], after: list[str]) -> list[float]:
    """Return the change of the WER in points, and its 95% interval over speakers (bootstrap)."""
    said = [clip.text for clip in heard.clips]
    before_errors, errors = ([each.errors for each in word_errors(said, texts).utterances] for texts in (before, after))
    change, words = 100 * np.subtract(errors, before_errors), [len(text.split()) for text in said]
    return [float(change.sum() / sum(words)), *measure.interval(change, words, [clip.speaker for clip in heard.clips])]


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
            decoder = recogniser.decoder(**({} if learned is None else {"lm": learned}), num_beams=4)
            decoder = decoder.with_phrases(phrases) if phrases else decoder
            for name, heard in sets.items():
                found = heard.decode(decoder)
                row[name] = 100 * word_errors([clip.text for clip in heard.clips], found).rate
                row[f"{name}, change"] = change(heard, first.setdefault(name, found), found)
                row[f"{name}, step"] = change(heard, last.get(name, found), found)
                last[name] = found
            yield {**row, "adding ms": max(spent)}


def corrected(recogniser: Recogniser, heard: Heard) -> list[tuple[str, str]]:
    return [(found, clip.text) for found, clip in zip(heard.decode(recogniser.decoder(num_beams=1)), heard.clips)]


def parts_of(args: Any, recogniser: Recogniser) -> Iterator[tuple[str, list[tuple[str, str]], dict[str, Heard]]]:
    """Yield names of corpora, corrections, and what is tested, by name."""
    for name in args.bundled or ():
        clips = corpora.load(name)
        random.Random(0).shuffle(clips)
        half = len(clips) // 2
        yield name, corrected(recogniser, recogniser.hear(clips[:half])), {"same": recogniser.hear(clips[half:])}
    if args.data:
        clips, frames = corpora.load(args.data[0], split="train"), Frames(args.data[1::2])
        random.Random(0).shuffle(clips)
        pairs = corrected(recogniser, recogniser.hear(clips[: args.corrections], frames=frames))
        others = (recogniser.hear(corpora.load(manifest, split="test"), frames=frames) for manifest in args.data[2::2])
        yield args.data[0].stem, pairs, dict(zip(("same", "other"), others))


def main() -> None:
    about = {
        "model": {"required": True},
        "bundled": "bundled corpora, in place of manifests",
        "books": "text files, for a user with a language model",
    }
    options = {"model": str, "bundled": (str,), "books": (Path,), "corrections": 200, "step": 20}
    parser = measure.arguments(__doc__, "real_corrections", None, about, **options)
    parser.add_argument("data", type=Path, nargs="*", help="three manifests, each with the folder of its frames")
    args = parser.parse_args()
    if len(args.data) != (0 if args.bundled else 6):
        parser.error("give three manifests, each with the folder of its frames; or --bundled")
    recogniser, bases = Recogniser(args.model), dict[str, Any](none=None)
    if args.books:
        bases["books"] = NGramLM.from_texts([text for book in args.books for text in sentences(book)], recogniser.tokenizer)
    with torch.inference_mode():
        tried = itertools.product(parts_of(args, recogniser), bases.items())
        rows = (
            {"corpus": name, "base": base, **row}
            for (name, pairs, sets), (base, lm) in tried
            for row in rows_of(recogniser, pairs, sets, lm, args.step)
        )
        measure.report(rows, args)


if __name__ == "__main__":
    main()
