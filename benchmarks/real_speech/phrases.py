"""Measure phrases on real speech: the flat boost, and the second look (`hf_ngpulm.PhraseDecoder`).

    python benchmarks/real_speech/phrases.py speechocean.jsonl --models base-ctc --frames frames --books *.txt

Phrases are the words of the test clips that no training text has, in one list with so many words of books that no clip has; and
those other words alone, which are then all false alarms. Thresholds are fitted on one half of the speakers, by the false alarms
of the other words alone, and measured on the other half, in turn; those of Whispers are the defaults. Whispers are heard
through their pipeline, with 5 beams and at most 64 tokens; texts are compared after normalisation (`families.plain`).
"""

from __future__ import annotations

import random
import re
import time
import types
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from families import RATE, Corpus, Frames, Heard, Recogniser, Row, measure, plain
from recognisers import BATCH
from transformers import pipeline

from hf_ngpulm import PhraseDecoder
from hf_ngpulm.decoding.thresholds import THRESHOLDS, Thresholds
from hf_ngpulm.evaluation import word_errors

WEIGHTS, LOOK_WEIGHT, RATES = (0.5, 1.0, 1.5, 2.0), 3.0, (1.0, 10.0, 30.0, 100.0)
EVERY, MOST_TOKENS = Thresholds(-float("inf"), 0.0, 0.0, 0.0), 64  # of a Whisper: runaways would take most of the time


class Pipelined:
    """A pipeline of a decoder with attention with some settings, in the place of a decoder."""

    def __init__(self, asr: Any, **settings: Any) -> None:
        self.asr, self.settings = asr, settings

    def with_phrases(self, phrases: list[str], weight: float, **look: Any) -> Pipelined:
        look = look | {"explain": True} if look else {}
        return Pipelined(self.asr, **self.settings, phrases=phrases, phrase_weight=weight, **look)

    def decoded(self, heard: Heard) -> list[Any]:
        found = self.asr([{"raw": clip.audio, "sampling_rate": RATE} for clip in heard.clips], **self.settings)
        reports = ([types.SimpleNamespace(**{"ratio": None, **report}) for report in each.get("phrases", ())] for each in found)
        return [types.SimpleNamespace(text=plain(each["text"]), phrases=of) for each, of in zip(found, reports)]


def looking(base: Any, phrases: list[str], **look: Any) -> Any:
    """Return a decoder with phrases and a second look."""
    if isinstance(base, Pipelined):
        return base.with_phrases(phrases, LOOK_WEIGHT, **look)
    return PhraseDecoder(base, phrases, LOOK_WEIGHT, **look)


def decoded(heard: Heard, decoder: Any) -> tuple[list[Any], float]:
    """Return the best hypothesis of each clip, and the seconds that it took. What is compiled for phrases doesn't count."""
    if isinstance(decoder, Pipelined):
        begin = time.process_time()
        return decoder.decoded(heard), time.process_time() - begin
    batches = heard.batches(BATCH)
    decoder.decode(*(each[:1] for each in batches[0][1:]))
    found: dict[int, Any] = {}
    begin = time.process_time()
    for numbers, frames, lengths in batches:
        found |= {number: n_best[0] for number, n_best in zip(numbers, decoder.decode(frames, lengths))}
    return [found[number] for number in range(len(heard.rows))], time.process_time() - begin


def figures(corpus: Corpus, found: list[Any], phrases: set[str], seconds: float) -> Row:
    """Return error rates in %, precision, recall and F of phrases in %, and false insertions an hour."""
    said, texts = [clip.text for clip in corpus.clips], [best.text for best in found]
    hits = heard = wanted = 0
    for pair in zip(said, texts):
        theirs, ours = (Counter(word for word in text.split() if word in phrases) for text in pair)
        hits, heard, wanted = hits + (ours & theirs).total(), heard + ours.total(), wanted + theirs.total()
    rest = [[" ".join(word for word in text.split() if word not in phrases) for text in of] for of in (said, texts)]
    rates: Row = {"wer": 100 * word_errors(said, texts).rate, "u_wer": 100 * word_errors(*rest).rate}
    rates["false an hour"] = (heard - hits) / (seconds / 3600)
    if wanted:
        precision, recall = hits / max(heard, 1), hits / wanted
        f1 = 2 * precision * recall / max(precision + recall, 1e-9)
        rates |= {"b_wer": 100 * (1 - recall), "precision": 100 * precision, "recall": 100 * recall, "f1": 100 * f1}
    return rates


def alone(reports: list[Any]) -> Iterator[Any]:
    """Yield the reports of weighed phrases alone in their region, which has one ratio. Runaways repeat phrases in a region."""
    times = Counter(each.ratio for each in reports)
    return (each for each in reports if each.ratio is not None and each.ratio < float("inf") and times[each.ratio] == 1)


def rows_of(corpus: Corpus, heard: Heard, others: list[str], args: Any) -> Iterator[Row]:
    """Yield the rows of a model."""
    family, tokenizer, sizes = heard.recogniser.family.lower(), heard.recogniser.tokenizer, args.sizes
    if family == "attention":
        corpus = corpus.normalised()
        asr = pipeline("automatic-speech-recognition", model=str(heard.recogniser.source), num_beams=5, batch_size=8)
        base: Any = Pipelined(asr, generate_kwargs={"max_new_tokens": MOST_TOKENS})
    else:
        base = heard.recogniser.decoder(num_beams=4 if family == "ctc" else 3)
    rare, model = sorted({word for words in corpus.rare for word in words}), {"model": heard.recogniser.name}
    without, before = decoded(heard, base)
    look, parts = partial(looking, base), [heard.of(half) for half in corpus.halves]
    fits, to_fit = ([None] * 2, ()) if family == "attention" else ([], sizes)
    every = {size: decoded(heard, look(others[:size], false_alarms_per_hour=1.0, thresholds=EVERY))[0] for size in to_fit}
    for half in corpus.halves if to_fit else ():
        hours = len(sizes) * sum(corpus.clips[n].seconds for n in half) / 3600
        each = ((size, report) for size in sizes for n in half for report in alone(every[size][n].phrases))
        alarms = [(one.ratio, size, len(tokenizer(one.text, add_special_tokens=False)["input_ids"])) for size, one in each]
        fits.append(THRESHOLDS[family].fitted(alarms, hours))
        yield {**model, "way": "fitted", "false alarms": len(alarms), "hours": hours, **fits[-1]._asdict()}
    for size, own in [(0, True), *((size, own) for size in sizes for own in (True, False))]:
        phrases = [*others[:size], *(rare if own else [])]
        about = {**model, "distractors": size, "own": own}
        of = partial(figures, corpus, phrases=set(phrases), seconds=heard.seconds)
        yield {**about, "way": "none", "seconds": before, **of(without)}
        for weight in args.weights:
            found, seconds = decoded(heard, base.with_phrases(phrases, weight))
            yield {**about, "way": "flat", "weight": weight, "seconds": seconds, **of(found)}
        for rate in args.rates:
            merged, seconds = list(without), 0.0
            for fit, half, part in zip(fits, reversed(corpus.halves), reversed(parts)):
                found, took = decoded(part, look(phrases, false_alarms_per_hour=rate, thresholds=fit))
                seconds += took
                for number, best in zip(half, found):
                    merged[number] = best
            yield {**about, "way": "look", "rate": rate, "seconds": seconds, **of(merged)}


def costs(heard: Heard, words: list[str]) -> Iterator[Row]:
    """Yield the times of all clips with lists of phrases, of several ways by turns (medians), and of making them."""
    base = heard.recogniser.decoder(num_beams=4)
    words = [*words, *(f"{one} {other}" for one in words[:400] for other in words[:250])]
    ways, loading = {("none", 0, None): base}, {("none", 0, None): 0.0}
    for size in (100, 1000, 10_000, 100_000):
        for rate in (None, 1.0, 10.0):
            begin, key = time.perf_counter(), ("flat" if rate is None else "look", size, rate)
            if rate is None:
                ways[key] = base.with_phrases(words[:size], 1.5)
            else:
                ways[key] = PhraseDecoder(base, words[:size], LOOK_WEIGHT, false_alarms_per_hour=rate)
            decoded(heard.of([0]), ways[key])
            loading[key] = time.perf_counter() - begin
    medians = measure.by_turns({key: lambda way=way: decoded(heard, way)[1] for key, way in ways.items()}, 5)
    for key, seconds in medians.items():
        row = {"model": heard.recogniser.name, "way": "cost", **dict(zip(("kind", "phrases", "rate"), key))}
        yield {**row, "seconds": seconds, "ratio": seconds / medians["none", 0, None], "load": loading[key]}


def main() -> None:
    about = {
        "models": {"required": True},
        "books": {"required": True, "help": "text files, for words that nobody says"},
        "frames": "folder of Whisper's frames of the clips (examples/train_on_whisper/features.py)",
        "sizes": "other words in the lists",
        "costs": "only measure times, of CTC models",
        "every": "take every n-th clip only",
        "weights": "of the flat boost",
        "rates": "limits of false alarms an hour",
    }
    options = {"models": (str,), "books": (Path,), "frames": Path, "sizes": (100, 1000, 10_000), "costs": False, "every": 1}
    options |= {"weights": WEIGHTS, "rates": RATES}
    parser = measure.arguments(__doc__, "real_phrases", None, about, **options)
    parser.add_argument("manifest", type=Path)
    args = parser.parse_args()
    corpus = Corpus(args.manifest, [], None, [], args.every)
    known = {word for text in (*corpus.texts["in-domain"], *(clip.text for clip in corpus.clips)) for word in text.split()}
    words = {w for book in args.books for w in re.findall("[a-z']{3,}", book.read_text(errors="ignore").lower())}
    others = sorted(words - known)
    random.Random(0).shuffle(others)
    frames = Frames([args.frames]) if args.frames else None

    def heard(model: str) -> Heard:
        recogniser = Recogniser(model)
        if recogniser.family == "attention":
            return Heard(recogniser, corpus.clips, [None] * len(corpus.clips))  # its pipeline hears
        return recogniser.hear(corpus.clips, frames=frames)

    every = map(heard, args.models)
    rows = (row for each in every for row in (costs(each, others) if args.costs else rows_of(corpus, each, others, args)))
    with torch.inference_mode():
        measure.report(rows, args, {"clips": len(corpus.clips), "seconds": sum(clip.seconds for clip in corpus.clips)})


if __name__ == "__main__":
    main()
