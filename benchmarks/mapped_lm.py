"""A language model of 10 GB, opened by memory map: time to open, to the first scores, resident memory, and searches when warm.

    python benchmarks/mapped_lm.py --folder /scratch/large

The model is generated (and left in the folder): 1,024 tokens, order 4. Each token has 64 followers. All pairs of tokens are
contexts, and so is each pair with one of the second token's followers; these have `--arcs` arcs each. The utterances follow the
model's arcs, frequent followers more often, by Zipf's law. They are decoded by a CTC beam search over made-up logits. Each
measurement is a process of its own, and begins with no page of the model in the system's cache.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import measure
import numpy as np
import torch

from hf_ngpulm import CTCDecoder, NGramLM
from hf_ngpulm.automaton import BackoffAutomaton, LMParts
from hf_ngpulm.automaton.tensors import AutomatonTensors
from hf_ngpulm.config.config import NGramLMConfig
from hf_ngpulm.ngrams.room import Room, give_back_pages

V, FOLLOWERS, FRAMES, BEAMS = 1024, 64, 60, 8


def followers(random: np.random.Generator) -> np.ndarray:
    return np.sort(np.argsort(random.random((V, V)), 1)[:, :FOLLOWERS], 1)


def generate(folder: Path, arcs: int) -> None:
    random = np.random.default_rng(0)
    after = followers(random)
    patterns = np.sort(np.argsort(random.random((256, FOLLOWERS)), 1)[:, :arcs], 1)
    pairs, threes = 1 + V, 1 + V + V * V  # the first states of two and of three tokens
    num_states, num_arcs = threes + V * V * FOLLOWERS, V + 1 + V * V + V * V * FOLLOWERS + V * V * FOLLOWERS * arcs
    folder.mkdir(parents=True, exist_ok=True)
    room = Room(0, folder)
    room.is_on_disk = True
    t = AutomatonTensors.zeros(num_states, num_arcs, V, "cpu", room.zeros)
    offsets, tokens, weights, targets, shorter, backoffs = (tensor.numpy() for tensor in t)
    ids, some = np.arange(V), -random.exponential(3.0, 1 << 20).astype(np.float32)  # weights, again and again

    def write(state: int, first: int, of_tokens: np.ndarray, to: np.ndarray, back: Any) -> None:
        """Write the arcs `[N, K]` of N states."""
        size, each = of_tokens.shape
        offsets[state : state + size + 1] = first + np.arange(size + 1) * each
        rows = slice(first, first + size * each)
        tokens[rows], targets[rows] = of_tokens.ravel(), to.ravel()
        weights[rows] = np.resize(some, size * each)
        shorter[state : state + size], backoffs[state : state + size] = back, np.resize(some, size)

    write(0, 0, np.arange(V + 1)[None], np.append(1 + ids, 0)[None], 0)
    write(1, V + 1, np.broadcast_to(ids, (V, V)), pairs + ids[:, None] * V + ids, 0)
    for first in range(V):
        three = threes + (first * V + ids[:, None]) * FOLLOWERS + np.arange(FOLLOWERS)  # [second, place of the third]
        write(pairs + first * V, V + 1 + V * V + first * V * FOLLOWERS, after, three, 1 + ids)
        third = after.ravel()
        places = patterns[random.integers(256, size=V * FOLLOWERS)]
        to = threes + ((ids.repeat(FOLLOWERS) * V + third) * FOLLOWERS)[:, None] + places
        start = V + 1 + V * V + V * V * FOLLOWERS + first * V * FOLLOWERS * arcs
        write(int(three[0, 0]), start, after[third[:, None], places], to, pairs + ids.repeat(FOLLOWERS) * V + third)
        give_back_pages()
    depths = (1, V, V * V, V * V * FOLLOWERS)
    zero = torch.zeros(1, dtype=torch.int32)
    automaton = BackoffAutomaton(t, V, 3, zero, zero)
    config = NGramLMConfig(
        vocab_size=V, order=4, num_ngrams=(*depths[1:], V * V * FOLLOWERS * arcs), states_per_depth=depths,
        unk_log_prob=None, bos_log_prob=None, missing_unigrams="share",
    )  # fmt: skip
    NGramLM(LMParts(config, automaton, zero[:0])).save_pretrained(folder)


def utterances(count: int, seed: int) -> np.ndarray:
    """Logits `[count, FRAMES, V + 1]` float16: a token every third frame, blank (V) between, and noise."""
    random = np.random.default_rng(seed)
    after = followers(np.random.default_rng(0))
    logits = np.empty((count, FRAMES, V + 1), np.float16)
    rank = np.minimum(random.zipf(1.5, (count, FRAMES)) - 1, FOLLOWERS - 1)
    token = random.integers(V, size=count)
    for row in range(count):
        logits[row] = random.standard_normal((FRAMES, V + 1), np.float32)
        for frame in range(FRAMES):
            if frame % 3 == 0:
                token[row] = after[token[row], rank[row, frame]]
            logits[row, frame, token[row] if frame % 3 == 0 else V] += 7.0
    return logits


def evict(folder: Path) -> None:
    """Drop the model from the system's cache. Else resident memory would count neighbours of each page that is touched."""
    for path in folder.glob("*.safetensors"):
        with open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def one(folder: Path, mmap: bool) -> dict[str, Any]:
    data = utterances(50, 1)
    evict(folder)
    before, anonymous = measure.resident(), measure.resident("RssAnon")
    begin = time.perf_counter()
    lm = NGramLM.from_pretrained(folder, mmap=mmap)
    opened = time.perf_counter()
    lm.score_texts([[1, 2, 3, 4, 5]])
    found = {"mmap": mmap, "open_seconds": opened - begin, "first_scores_seconds": time.perf_counter() - begin}
    found |= {"model_bytes": lm.nbytes}
    decoder = CTCDecoder(None, lm, 0.5, blank_id=V, num_beams=BEAMS, confidence=None)
    lengths = torch.full((50,), FRAMES)

    def decode(logits: np.ndarray) -> float:
        cpu = time.process_time()
        decoder(torch.from_numpy(logits).float(), lengths)
        return time.process_time() - cpu

    begin = time.perf_counter()
    for seed in range(2, 22):
        decode(utterances(50, seed))
    found |= {"seconds_of_1000_utterances": time.perf_counter() - begin}
    found |= {"resident_bytes_after_1000_utterances": measure.resident() - before}
    found |= {"anonymous_bytes": measure.resident("RssAnon") - anonymous}
    decode(data)
    found["warm_cpu_ms_per_utterance"] = sorted(decode(data) for _ in range(15))[7] / 50 * 1e3
    return found


def main() -> None:
    about = {"folder": {"required": True}, "arcs": "of a state of three tokens"}
    args = measure.arguments(__doc__, "mapped_lm", None, about, threads=None, folder=Path, arcs=13, turns=3).parse_args()
    if not (args.folder / "config.json").exists():
        generate(args.folder, args.arcs)
    measure.report((measure.apart(one, args.folder, mmap) for mmap in [True, False] * args.turns), args, key="runs")


if __name__ == "__main__":
    main()
