"""Word-level language models composed as a whole and as searches come to their states: memory, time, and the same transcripts.

    python benchmarks/on_the_fly.py --ngrams 5 --name on_the_fly_5m
    python benchmarks/on_the_fly.py --ngrams 40 --only on_the_fly --name on_the_fly_40m
    python benchmarks/on_the_fly.py --model MODEL --manifest clips.jsonl --lm words.arpa --name on_the_fly_development_set

Without a model the LM is a synthetic 4-gram of 200,000 words (see synthetic.py), with as many millions of n-grams as are asked
for, and the recogniser's outputs are noisy ones for sentences of it, in a vocabulary of characters. Each way runs in a process
of its own, on one thread. Decoded are first half of the clips, then these and those that are new ("half warm"), and all once
more ("warm").
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import corpora
import lm_queries
import measure
import numpy as np
import synthetic
import torch
from recognisers import Recogniser, batch_of
from transformers import Wav2Vec2CTCTokenizer

from hf_ngpulm import CTCDecoder, NGramLM
from hf_ngpulm.lexicon import compose

LETTERS = "etaoinsrhldcumfpgwybvkxjqz'"
CLASSES = {piece: i for i, piece in enumerate(["<pad>", "|", *LETTERS, "<unk>"])}  # as wav2vec2 has them
NUM_WORDS = 200_000
WAYS = ("static", "on_the_fly")
BEAMS, BATCH_SIZE = (1, 16, 64), 8


def synthetic_words(rng: np.random.Generator) -> list[str]:
    """Return different words of letters that are about as frequent as those of English."""
    found: dict[str, None] = {}
    chance = 1 / np.arange(1, len(LETTERS) + 1)
    while len(found) < NUM_WORDS:
        lengths = rng.integers(2, 12, NUM_WORDS)
        drawn = rng.choice(list(LETTERS), (NUM_WORDS, 12), p=chance / chance.sum())
        found |= dict.fromkeys("".join(row[:length]) for row, length in zip(drawn, lengths))
    return list(found)[:NUM_WORDS]


def synthetic_outputs(text: np.ndarray, words: list[str], clips: int, rng: np.random.Generator) -> list[torch.Tensor]:
    """Return noisy outputs for fifteen words each, most of them from the model's text; two to four frames a character."""
    found = []
    for first in rng.integers(0, len(text) - 15, clips):
        known = rng.random(15) < 0.9
        sentence = np.where(known, text[first : first + 15], rng.integers(0, NUM_WORDS, 15))
        labels: list[int] = []
        for char in "|".join(words[word] for word in sentence):
            labels += [CLASSES[char], *[0] * int(rng.integers(1, 4))]
        logits = rng.normal(0.0, 1.5, (len(labels), len(CLASSES)))
        logits[np.arange(len(labels)), labels] += 5.0
        found.append(torch.from_numpy(logits.astype(np.float32)))
    return found


def real(args: argparse.Namespace, way: str) -> tuple[Any, list[torch.Tensor], Callable[[], NGramLM]]:
    """Return a tokenizer, a recogniser's outputs, and what composes a model of words."""
    recogniser = Recogniser(args.model)
    compose_arpa = partial(NGramLM.from_arpa, args.lm, recogniser.tokenizer, units="word", composition=way)
    return recogniser.tokenizer, recogniser.hear(corpora.load(args.manifest)).rows, compose_arpa


def synthesised(args: argparse.Namespace, way: str) -> tuple[Any, list[torch.Tensor], Callable[[], NGramLM]]:
    """Return the same of a synthetic model."""
    path = Path(tempfile.mkdtemp()) / "vocab.json"
    path.write_text(json.dumps(CLASSES))
    rng, size, tokenizer = np.random.default_rng(0), int(args.ngrams * 1e6), Wav2Vec2CTCTokenizer(str(path))
    words, table = synthetic_words(rng), lm_queries.build_table(NUM_WORDS, 4, size)
    rows = synthetic_outputs(synthetic.text_with(size, NUM_WORDS, 4)[0], words, args.clips, rng)
    return tokenizer, rows, lambda: NGramLM(compose(table, words, tokenizer, composition=way))


def one_way(args: argparse.Namespace, way: str) -> dict[str, Any]:
    """Return the figures of one way to compose, for this process alone."""
    torch.set_num_threads(1)
    tokenizer, rows, make = (real if args.model else synthesised)(args, way)
    found: dict[str, Any] = {"peak_before": measure.resident("VmHWM")}
    begin = time.perf_counter()
    lm = make()
    found["compose_seconds"] = time.perf_counter() - begin
    found |= {"num_ngrams": sum(lm.num_ngrams), "bytes": lm.nbytes, "peak": measure.resident("VmHWM")}
    found |= {"decoding": [], "transcripts": [], "frames": sum(map(len, rows))}
    with torch.inference_mode():
        for num_beams in BEAMS:
            settings = {"num_beams": num_beams} | ({"beta": args.beta} if num_beams > 1 else {})
            decoder = CTCDecoder(tokenizer, lm, args.lm_weight, confidence=None, **settings)
            if lm.is_lazy:
                lm.forget()
            row: dict[str, Any] = {"num_beams": num_beams}
            for name, clips in (("half", rows[: len(rows) // 2]), ("half_warm", rows), ("warm", rows)):
                places = range(0, len(clips), BATCH_SIZE)
                batches = [batch_of(clips, list(range(len(clips)))[at : at + BATCH_SIZE])[1:] for at in places]
                begin = time.perf_counter()
                heard = [best for batch in batches for best, *_ in decoder(*batch)]
                row[f"{name}_microseconds_per_frame"] = 1e6 * (time.perf_counter() - begin) / sum(map(len, clips))
            found["transcripts"] += [(best.text, best.score) for best in heard]
            found["decoding"].append({**row, "num_states": lm.num_states, "num_arcs": lm.num_arcs, "bytes": lm.nbytes})
    return found | {"peak": measure.resident("VmHWM")}


def main() -> None:
    about = {"ngrams": "millions of n-grams of the synthetic model", "clips": "sentences of synthetic outputs"}
    about |= {"model": "a CTC model, for real outputs", "manifest": "clips for it", "lm": "an ARPA file of words for it"}
    about |= {"only": {"choices": WAYS}}
    args = measure.arguments(
        __doc__, "on_the_fly", None, about, threads=None, ngrams=5.0, clips=32, model=str, manifest="harbour", lm=str,
        lm_weight=0.9, beta=2.0, only=str,
    ).parse_args()  # fmt: skip
    facts: dict[str, Any] = {way: measure.apart(one_way, args, way) for way in WAYS if args.only in (None, way)}
    transcripts = [of_way.pop("transcripts") for of_way in facts.values()]
    print(json.dumps(facts))
    if len(transcripts) == 2:
        facts["same_transcripts"] = all(one[0] == other[0] for one, other in zip(*transcripts, strict=True))
        facts["largest_difference_of_scores"] = max(abs(one[1] - other[1]) for one, other in zip(*transcripts))
    print("results in", measure.save(args.name, facts, args.out))


if __name__ == "__main__":
    main()
