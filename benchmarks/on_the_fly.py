"""Word-level language models composed as a whole and as searches come to their states: memory, time, and the same transcripts.

    python benchmarks/on_the_fly.py --ngrams 5 --name on_the_fly_5m
    python benchmarks/on_the_fly.py --ngrams 40 --only on_the_fly --name on_the_fly_40m
    python benchmarks/on_the_fly.py --model MODEL --manifest clips.jsonl --lm words.arpa --name on_the_fly_development_set

Without files the language model is a synthetic 4-gram of 200,000 words, with as many millions of n-grams as are asked for, and
the recogniser's outputs are noisy ones for sentences of it, in a vocabulary of characters. Each way runs in a process of its
own, on one thread. `cold` is the first time that the clips are decoded, half of which come again and half of which are new in
`half warm`; when they come once more, all is `warm`.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import measure
import numpy as np
import torch

sys.path.insert(0, str(measure.ROOT))

from hf_ngpulm import CTCDecoder, NGramLM
from hf_ngpulm.lexicon import compose
from hf_ngpulm.ngrams.table import NGramOrder, NGramTable

LETTERS = "etaoinsrhldcumfpgwybvkxjqz'"
NUM_WORDS = 200_000
SHARES = (0.3, 0.4, 0.3)  # of the n-grams of orders 2, 3 and 4
WAYS = ("static", "on_the_fly")
BEAMS = (1, 16, 64)
BATCH_SIZE = 8


def letters_tokenizer() -> Any:
    """Of characters with a delimiter, as wav2vec2 has it."""
    from transformers import Wav2Vec2CTCTokenizer

    path = Path(tempfile.mkdtemp()) / "vocab.json"
    path.write_text(json.dumps({piece: i for i, piece in enumerate(["<pad>", "|", *LETTERS, "<unk>"])}))
    return Wav2Vec2CTCTokenizer(str(path))


def synthetic_words(rng: np.random.Generator) -> list[str]:
    """Different words of letters that are about as frequent as those of English."""
    found: dict[str, None] = {}
    chance = 1 / np.arange(1, len(LETTERS) + 1)
    while len(found) < NUM_WORDS:
        lengths = rng.integers(2, 12, NUM_WORDS)
        drawn = rng.choice(list(LETTERS), (NUM_WORDS, 12), p=chance / chance.sum())
        found |= dict.fromkeys("".join(row[:length]) for row, length in zip(drawn, lengths))
    return list(found)[:NUM_WORDS]


def synthetic_table(ngrams: int, rng: np.random.Generator) -> NGramTable:
    """A model in which every n-gram's prefix and suffix are there; its probabilities don't sum to one."""
    num_ids = NUM_WORDS + 3
    unigrams = np.append(np.arange(NUM_WORDS), [NUM_WORDS, NUM_WORDS + 1, NUM_WORDS + 2])
    frequency = 1 / np.arange(2.0, NUM_WORDS + 2)
    logs = np.append(np.log(frequency / frequency.sum()), [-99.0, -3.0, -12.0])
    orders = [_order(np.zeros(len(unigrams), dtype=np.int64), unigrams, logs, rng, True)]
    # Of each n-gram of the order below the rows of what may follow: what follows its suffix.
    first = np.zeros(num_ids + 1, dtype=np.int64)
    for n, share in enumerate(SHARES, start=2):
        count = int(share * ngrams)
        if n == 2:
            mass = np.cumsum(frequency / frequency.sum())
            prefixes = np.minimum(np.searchsorted(mass, rng.random(2 * count)), NUM_WORDS - 1)
            tokens = np.minimum(np.searchsorted(mass, rng.random(2 * count)), NUM_WORDS - 1)
        else:
            below = orders[-1]
            prefixes = rng.integers(0, len(below), 2 * count)
            last = below.tokens.numpy()[prefixes].astype(np.int64)
            of_last = orders[1].tokens.numpy()
            width = first[last + 1] - first[last]
            tokens = of_last[np.minimum(first[last] + (rng.random(2 * count) * width).astype(np.int64), len(of_last) - 1)]
            prefixes, tokens = prefixes[width > 0], tokens[width > 0].astype(np.int64)
        keys = np.unique(prefixes * num_ids + tokens)
        keys = keys[np.sort(rng.permutation(len(keys))[:count])]
        prefixes, tokens = keys // num_ids, keys % num_ids
        if n == 2:
            first[1:] = np.cumsum(np.bincount(prefixes, minlength=num_ids))
        orders.append(_order(prefixes, tokens, rng.uniform(-6.0, -0.5, len(keys)), rng, n < len(SHARES) + 1))
    return NGramTable(NUM_WORDS, tuple(orders))


def _order(
    prefixes: np.ndarray, tokens: np.ndarray, logs: np.ndarray, rng: np.random.Generator, has_backoffs: bool
) -> NGramOrder:
    backoffs = rng.uniform(-2.0, -0.1, len(tokens)) if has_backoffs else np.zeros(len(tokens))
    columns = (prefixes.astype(np.int64), tokens.astype(np.int32), logs.astype(np.float32), backoffs.astype(np.float32))
    return NGramOrder(*map(torch.from_numpy, columns))


def synthetic_outputs(table: NGramTable, words: list[str], clips: int, rng: np.random.Generator) -> list[torch.Tensor]:
    """Noisy outputs for sentences of about fifteen words, most of them bigrams of the model; two to four frames a character."""
    bigrams, tokenizer = table.orders[1], {piece: i for i, piece in enumerate(["<pad>", "|", *LETTERS, "<unk>"])}
    first = np.searchsorted(bigrams.prefixes.numpy(), np.arange(NUM_WORDS + 1))
    found = []
    for _ in range(clips):
        sentence = [int(rng.integers(0, 2000))]
        while len(sentence) < 15:
            begin, end = first[sentence[-1]], first[sentence[-1] + 1]
            known = end > begin and rng.random() < 0.9
            sentence.append(int(bigrams.tokens[rng.integers(begin, end)]) if known else int(rng.integers(0, NUM_WORDS)))
        labels: list[int] = []
        for char in "|".join(words[word] for word in sentence):
            labels += [tokenizer[char], *[0] * int(rng.integers(1, 4))]
        logits = rng.normal(0.0, 1.5, (len(labels), len(tokenizer)))
        logits[np.arange(len(labels)), labels] += 5.0
        found.append(torch.from_numpy(logits.astype(np.float32)))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ngrams", type=float, default=5.0, help="millions of n-grams of the synthetic model")
    parser.add_argument("--clips", type=int, default=32, help="sentences of synthetic outputs")
    parser.add_argument("--model", help="a CTC model, for real outputs")
    parser.add_argument("--manifest", type=Path, help="clips for it")
    parser.add_argument("--lm", help="an ARPA file of words for it")
    parser.add_argument("--lm-weight", type=float, default=0.9)
    parser.add_argument("--beta", type=float, default=2.0)
    parser.add_argument("--only", choices=WAYS)
    parser.add_argument("--name", default="on_the_fly")
    parser.add_argument("--out", type=Path, default=measure.RESULTS)
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.way:
        print(json.dumps(one_way(args)))
        return
    found = {}
    for way in WAYS:
        if args.only in (None, way):
            command = [sys.executable, __file__, *sys.argv[1:], "--way", way]
            run = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            found[way] = json.loads(run.stdout.splitlines()[-1])
            print(way, {name: value for name, value in found[way].items() if name != "transcripts"}, flush=True)
    transcripts = [of_way.pop("transcripts") for of_way in found.values()]
    facts: dict[str, Any] = dict(found)
    if len(transcripts) == 2:
        facts["same_transcripts_and_scores"] = transcripts[0] == transcripts[1]
    print("results in", measure.save(args.name, facts, args.out))


def one_way(args: argparse.Namespace) -> dict[str, Any]:
    """Figures of one way to compose, for this process alone."""
    torch.set_num_threads(1)
    begin = time.perf_counter()
    if args.model:
        import speech

        loading = {"threads": 1, "batch_size": BATCH_SIZE, "device": "cpu"}
        outputs = speech.load(argparse.Namespace(**vars(args) | loading))
        made: dict[str, Any] = {"peak_before": peak(), "clips": len(outputs.texts), "audio_seconds": outputs.seconds}
        begin = time.perf_counter()
        lm = NGramLM.from_arpa(args.lm, outputs.processor.tokenizer, units="word", composition=args.way)
        made |= {"compose_seconds": time.perf_counter() - begin, "num_ngrams": sum(lm.num_ngrams)}
        return made | decoded(args, lm, outputs.processor.tokenizer, outputs.rows())
    rng = np.random.default_rng(0)
    words, table = synthetic_words(rng), synthetic_table(int(args.ngrams * 1e6), rng)
    tokenizer = letters_tokenizer()
    logits = synthetic_outputs(table, words, args.clips, rng)
    made = {"table_seconds": time.perf_counter() - begin, "num_ngrams": sum(table.num_ngrams), "peak_before": peak()}
    begin = time.perf_counter()
    lm = compose(table, words, tokenizer, composition=args.way)
    made["compose_seconds"] = time.perf_counter() - begin
    del table
    return made | decoded(args, lm, tokenizer, logits)


def decoded(args: argparse.Namespace, lm: NGramLM, tokenizer: Any, logits: list[torch.Tensor]) -> dict[str, Any]:
    """Times, memory and transcripts of the same clips thrice."""
    found: dict[str, Any] = {"bytes": lm.nbytes, "peak": peak(), "decoding": [], "transcripts": []}
    frames = sum(map(len, logits))
    half = len(logits) // 2
    with torch.inference_mode():
        for num_beams in BEAMS:
            settings = {"num_beams": num_beams} | ({"beta": args.beta} if num_beams > 1 else {})
            decoder = CTCDecoder(tokenizer, lm, args.lm_weight, confidence=None, **settings)
            decoder(logits[0][None, :5])  # compiled code is loaded
            if lm.is_lazy:
                lm.forget()  # type: ignore[operator]
            row: dict[str, Any] = {"num_beams": num_beams}
            for name, clips in (("half", logits[:half]), ("half_warm", logits), ("warm", logits)):
                begin = time.perf_counter()
                for first in range(0, len(clips), BATCH_SIZE):
                    some = clips[first : first + BATCH_SIZE]
                    lengths = torch.tensor([len(clip) for clip in some])
                    hypotheses = decoder(torch.nn.utils.rnn.pad_sequence(some, batch_first=True), lengths)
                    if name == "warm":
                        found["transcripts"] += [(row[0].text, row[0].score) for row in hypotheses]
                row[f"{name}_microseconds_per_frame"] = 1e6 * (time.perf_counter() - begin) / sum(map(len, clips))
            row |= {"num_states": lm.num_states, "num_arcs": lm.num_arcs, "bytes": lm.nbytes}
            found["decoding"].append(row)
    return found | {"frames": frames, "peak": peak()}


def peak() -> int:
    """Bytes that the process has taken at most so far."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


if __name__ == "__main__":
    main()
