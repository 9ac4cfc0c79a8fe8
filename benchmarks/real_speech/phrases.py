"""Measure phrases on real speech: the flat boost, and the second look (`hf_ngpulm.PhraseDecoder`).

    python benchmarks/real_speech/phrases.py speechocean.jsonl --models base-ctc base-tdt --frames frames --books *.txt

Phrases are the words of the test clips that no training text has, in one list with so many words of books that no clip has; and
those other words alone, which are then all false alarms. Thresholds are fitted on one half of the speakers, by the false alarms
of the other words alone, and measured on the other half, in turn. Whispers decode greedily; their texts are normalised.
"""

from __future__ import annotations

import json
import random
import re
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from families import Corpus, Recogniser, heard_once, measure, plain
from recognisers import BATCH, Heard

from hf_ngpulm import NGramLogitsProcessor, PhraseDecoder
from hf_ngpulm.decoding.hypotheses import Hypothesis
from hf_ngpulm.decoding.thresholds import THRESHOLDS, Thresholds
from hf_ngpulm.evaluation import word_errors
from hf_ngpulm.pipelines.looks import GeneratedLooks

WEIGHTS, LOOK_WEIGHT, RATES = (0.5, 1.0, 1.5, 2.0), 3.0, (1.0, 10.0, 30.0, 100.0)
ATTENTION_WEIGHTS, ATTENTION_LOOK_WEIGHT, ATTENTION_RATES = (0.5, 1.0), 1.5, (10.0,)  # they take minutes
EVERY = Thresholds(-float("inf"), 0.0, 0.0, 0.0)
Row = dict[str, Any]


@dataclass
class Attention:
    """Decode the states of an encoder with attention, greedily, with phrases or a second look at them."""

    recogniser: Any
    phrases: list[str] = field(default_factory=list)
    phrase_weight: float = 1.0
    rate: float | None = None
    thresholds: Thresholds | None = None

    def with_phrases(self, phrases: list[str], phrase_weight: float) -> Attention:
        return replace(self, phrases=phrases, phrase_weight=phrase_weight)

    def __post_init__(self) -> None:
        parts = {"model": self.recogniser.model, "tokenizer": self.recogniser.tokenizer}
        given = self.phrases, self.phrase_weight
        if self.thresholds is not None:
            processor = NGramLogitsProcessor(phrases=[], **parts)
            self.looks = GeneratedLooks(processor, *given, self.rate, False, *parts.values(), self.thresholds)
        self.processors = [NGramLogitsProcessor(phrases=given[0], phrase_weight=given[1], **parts)] if given[0] else []

    def decode(self, states: torch.Tensor, lengths: torch.Tensor) -> list[list[Hypothesis]]:
        model, encoder = self.recogniser.model, self.recogniser.model.get_encoder()

        def generate(processors: list[Any]) -> torch.Tensor:
            if "forward" not in vars(encoder):
                encoder.forward = lambda *_, **__: self.recogniser.outputs(states.clone())
            features = states.new_zeros((len(states), model.config.num_mel_bins, 2 * states.shape[1]))
            try:
                return model.generate(features, logits_processor=processors, num_beams=1, max_new_tokens=60, max_length=None)
            finally:
                vars(encoder).pop("forward", None)

        if self.thresholds is not None:
            found = self.looks.looked(generate, None)[1]
        else:
            texts = self.recogniser.tokenizer.batch_decode(generate(self.processors), skip_special_tokens=True)
            found = [Hypothesis(text, [], 0.0, 0.0, 0.0, []) for text in texts]
        return [[replace(each, text=plain(each.text), forms=None)] for each in found]


def looking(base: Any, phrases: list[str], rate: float, thresholds: Thresholds) -> Any:
    """Return a decoder that looks at phrases again."""
    if isinstance(base, Attention):
        return Attention(base.recogniser, phrases, ATTENTION_LOOK_WEIGHT, rate, thresholds)
    return PhraseDecoder(base, phrases, LOOK_WEIGHT, false_alarms_per_hour=rate, thresholds=thresholds)


def decoded(heard: Heard, decoder: Any) -> tuple[list[Hypothesis], float]:
    """Return the best hypothesis of each clip, and the seconds that it took."""
    found: dict[int, Hypothesis] = {}
    begin = time.process_time()
    for numbers, frames, lengths in heard.batches(BATCH):
        found |= {number: n_best[0] for number, n_best in zip(numbers, decoder.decode(frames, lengths))}
    return [found[number] for number in range(len(heard.rows))], time.process_time() - begin


def figures(corpus: Corpus, texts: list[str], phrases: set[str], seconds: float) -> Row:
    """Return error rates in %, precision, recall and F of phrases in %, and false insertions an hour."""
    said_of = [clip.text.split() for clip in corpus.clips]
    hits = heard = said = 0
    rest: list[list[str]] = [[], []]
    for reference, text in zip(said_of, texts):
        ours, theirs = Counter(w for w in text.split() if w in phrases), Counter(w for w in reference if w in phrases)
        hits, heard, said = hits + (ours & theirs).total(), heard + ours.total(), said + theirs.total()
        for kept, of in zip(rest, (reference, text.split())):
            kept.append(" ".join(word for word in of if word not in phrases))
    total, others = word_errors([clip.text for clip in corpus.clips], texts).rate, word_errors(*rest).rate
    found: Row = {"wer": 100 * total, "u_wer": 100 * others, "false an hour": (heard - hits) / (seconds / 3600)}
    if said:
        precision, recall = hits / max(heard, 1), hits / said
        f1 = 2 * precision * recall / max(precision + recall, 1e-9)
        found |= {"b_wer": 100 * (1 - recall), "precision": 100 * precision, "recall": 100 * recall, "f1": 100 * f1}
    return found


def false_alarms(corpus: Corpus, found: list[Hypothesis], half: list[int], size: int, tokenizer: Any) -> list[Any]:
    """Return the false alarms of a half of the clips in the form that `Thresholds.fitted` takes."""
    alarms = []
    for number in half:
        for report in found[number].phrases:
            if report.ratio is not None and report.ratio < float("inf"):
                alarms.append((report.ratio, size, len(tokenizer(report.text, add_special_tokens=False)["input_ids"])))
    return alarms


def rows_of(corpus: Corpus, heard: Heard, others: list[str], name: str, sizes: list[int]) -> Any:
    """Yield the rows of a model."""
    attention = heard.recogniser.family == "attention"
    if attention:
        corpus, base = corpus.normalised(), Attention(heard.recogniser)
    else:
        base = heard.recogniser.decoder(num_beams=4 if heard.recogniser.family == "CTC" else 3)
    rare = sorted({word for words in corpus.rare for word in words})
    family = heard.recogniser.family.lower()
    tokenizer = heard.recogniser.tokenizer
    without, before = decoded(heard, base)
    texts = [best.text for best in without]
    fits, parts = [], [heard.of(half) for half in corpus.halves]
    every = {size: decoded(heard, looking(base, others[:size], 1.0, EVERY))[0] for size in sizes}
    for half in corpus.halves:
        alarms, hours = [], 0.0
        for size in sizes:
            alarms += false_alarms(corpus, every[size], half, size, tokenizer)
            hours += sum(corpus.clips[n].seconds for n in half) / 3600
        fits.append(THRESHOLDS[family].fitted(alarms, hours))
        yield {"model": name, "way": "fitted", "false alarms": len(alarms), "hours": hours, **fits[-1]._asdict()}
    for size in (0, *sizes):
        for own in (True, False) if size else (True,):
            phrases = [*others[:size], *(rare if own else [])]
            about = {"model": name, "distractors": size, "own": own}
            numbers = figures(corpus, texts, set(phrases), heard.seconds)
            yield {**about, "way": "none", "seconds": before, **numbers}
            for weight in ATTENTION_WEIGHTS if attention else WEIGHTS:
                booster = base.with_phrases(phrases, weight)
                decoded(heard.of([0]), booster)
                flat, seconds = decoded(heard, booster)
                numbers = figures(corpus, [best.text for best in flat], set(phrases), heard.seconds)
                yield {**about, "way": "flat", "weight": weight, "seconds": seconds, **numbers}
            for rate in ATTENTION_RATES if attention else RATES:
                halves, seconds = [""] * len(corpus.clips), 0.0
                for fit, half, of_half in zip(fits, reversed(corpus.halves), reversed(parts)):
                    look = looking(base, phrases, rate, fit)
                    decoded(of_half.of([0]), look)  # compiles the phrases
                    found, took = decoded(of_half, look)
                    seconds += took
                    for number, best in zip(half, found):
                        halves[number] = best.text
                numbers = figures(corpus, halves, set(phrases), heard.seconds)
                yield {**about, "way": "look", "rate": rate, "seconds": seconds, **numbers}


def costs(heard: Heard, words: list[str], name: str) -> Any:
    """Yield the times of all clips with lists of phrases, of several ways by turns (the least of five), and of making them."""
    base = heard.recogniser.decoder(num_beams=4)
    words = [*words, *(f"{one} {other}" for one in words[:400] for other in words[:250])]
    ways: dict[tuple[Any, ...], Any] = {("none", 0, None): base}
    loading = {}
    for size in (100, 1000, 10_000, 100_000):
        for rate in (None, 1.0, 10.0):
            begin = time.perf_counter()
            way = base.with_phrases(words[:size], 1.5) if rate is None else PhraseDecoder(
                base, words[:size], LOOK_WEIGHT, false_alarms_per_hour=rate
            )  # fmt: skip
            decoded(heard.of([0]), way)
            key = "flat" if rate is None else "look", size, rate
            ways[key], loading[key] = way, time.perf_counter() - begin
    times: dict[tuple[Any, ...], list[float]] = {key: [] for key in ways}
    for _ in range(5):
        for key, way in ways.items():
            times[key].append(decoded(heard, way)[1])
    plain = min(times["none", 0, None])
    for key, found in times.items():
        told = dict(zip(("kind", "phrases", "rate"), key))
        yield {
            "model": name,
            "way": "cost",
            **told,
            "seconds": min(found),
            "ratio": min(found) / plain,
            "load": loading.get(key),
        }


def main() -> None:
    parser = measure.arguments(__doc__, "real_phrases")
    parser.add_argument("manifest", type=Path)
    parser.add_argument("--models", nargs="+", required=True)
    parser.add_argument("--books", type=Path, nargs="+", required=True, help="text files, for words that nobody says")
    parser.add_argument("--frames", type=Path, help="Whisper's frames of the clips (examples/train_on_whisper/features.py)")
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 1000, 10_000], help="other words in the lists")
    parser.add_argument("--costs", action="store_true", help="only measure times, of CTC models")
    parser.add_argument("--every", type=int, default=1, help="take every n-th clip only")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    corpus = Corpus(args.manifest, [], None, [], args.every)
    known = {word for text in corpus.texts["in-domain"] for word in text.split()}
    known |= {word for clip in corpus.clips for word in clip.text.split()}
    words = {w for book in args.books for w in re.findall("[a-z']{3,}", book.read_text(errors="ignore").lower())}
    others = sorted(words - known)
    random.Random(0).shuffle(others)
    lines = [json.loads(line) for line in args.manifest.read_text(encoding="utf-8").splitlines()]
    rows = []
    facts = {"clips": len(corpus.clips), "seconds": sum(clip.seconds for clip in corpus.clips)}
    for source in args.models:
        recogniser = Recogniser(source)
        recogniser.paths = [str(args.manifest.parent / line["audio"]) for line in lines if line["split"] == "test"]
        recogniser.paths = recogniser.paths[:: args.every]
        with torch.inference_mode():
            heard = heard_once(recogniser, corpus.clips, None if recogniser.family == "attention" else args.frames)
            name = recogniser.name
            for row in costs(heard, others, name) if args.costs else rows_of(corpus, heard, others, name, args.sizes):
                rows.append(row)
                print({key: round(value, 2) if isinstance(value, float) else value for key, value in row.items()}, flush=True)
                path = measure.save(args.name, {**facts, "rows": rows}, args.out)
    print("results in", path)


if __name__ == "__main__":
    main()
