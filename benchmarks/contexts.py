"""What phrases cost: throughput with a context for each row, by their number and size, and by how often they are switched.

    python benchmarks/contexts.py --models MODEL [MODEL ...] --manifest clips.jsonl     # CTC models and transducers
    python benchmarks/contexts.py                                                       # the bundled CTC model and clips

The encoder runs beforehand; the time is that of decoding, clips sorted by length, in batches, and beside it that of the whole
model (the encoder's time, in batches of the same size, comes on top). Phrases are made up of the words of the transcripts, so
that matches begin and fail all the time. "per row": each row has a context of its own. "256 by turns": so many contexts, which
rows take by turns, another one in each pass over the clips. "new": contexts that have never been seen, of which boosters are
made on the way. Throughput is given as a multiple of that without phrases, which comes twice, the second time for the noise. By
turns, medians.

Streams take chunks of 8 frames, each with its own context, which is switched never, with each utterance, or with each chunk.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import corpora
import measure
import torch
from recognisers import Heard, Recogniser

from hf_ngpulm import PhraseBooster, StreamingDecoder

SIZES = (10, 200, 1000, 10_000)  # phrases of a context
PER_ROW, BY_TURNS = 200, 256
STREAMS, CHUNK = 32, 8  # frames


def main() -> None:
    parser = measure.arguments(__doc__, "contexts")
    parser.add_argument("--models", nargs="+", default=["ctc"], help="CTC models and transducers")
    parser.add_argument("--manifest", default="harbour", help="of the clips, or the name of a bundled corpus")
    parser.add_argument("--lm", help="language model (default: the bundled one, for CTC models)")
    parser.add_argument("--batch-sizes", nargs="+", type=int, default=[32, 128])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    clips = corpora.load(args.manifest)
    words = sorted({word for clip in clips for word in clip.text.split()})
    results: list[dict[str, Any]] = []
    with torch.inference_mode():
        for name in args.models:
            recogniser = Recogniser(name, args.device)
            lists = {size: phrases(words, size, size) for size in SIZES}
            making = {size: measure.median_seconds(partial(PhraseBooster, lists[size], recogniser.tokenizer)) for size in SIZES}
            print("milliseconds to make a booster:", ", ".join(f"{size} phrases {1e3 * s:.1f}" for size, s in making.items()))
            heard = recogniser.hear(clips)
            fused = fusion(recogniser, args.lm)
            searches: dict[str, dict[str, Any]] = {"greedy": {"num_beams": 1}, "beam 6": {"num_beams": 6}}
            searches |= {"graph": {"max_active": 32}} if recogniser.family == "CTC" else {}
            for (search, settings), size in itertools.product(searches.items(), args.batch_sizes):
                decoder = recogniser.decoder(**fused, **settings)
                row = row_of(heard, decoder, size, words, args.repeats)
                if size == args.batch_sizes[0] and search != "graph":
                    row |= of_streams(heard, decoder, size, words, args.repeats)
                results.append({"model": recogniser.name, "decoder": search + " + LM" * bool(fused), **row})
                path = measure.save(args.name, {"decoders": results, "seconds_to_make": making}, args.out)
    for kind, title in (("throughput", "that without phrases, decoding alone"), ("whole_model", "that, whole model"),
                        ("switching", f"that of {STREAMS} streams that never switch, whole model")):  # fmt: skip
        rows = [row for row in results if kind in row]
        print(f"\nthroughput by {title}")
        header = ["model", "decoder", "batch", "ms a clip", *rows[0][kind]]
        facts = ("model", "decoder", "batch_size", "ms_per_clip")
        print(measure.table(header, [[*(row[fact] for fact in facts), *row[kind].values()] for row in rows]))
    print("results in", path)


def fusion(recogniser: Recogniser, lm: str | None) -> dict[str, Any]:
    if lm is None and recogniser.family != "CTC":
        return {}
    fused = {"lm": recogniser.lm(lm or str(corpora.SPEECH / "harbour" / "lm.arpa.gz")), "lm_weight": 0.9}
    return fused | ({} if recogniser.family == "CTC" else {"ilm_weight": 0.0})


def phrases(words: list[str], count: int, seed: int) -> list[str]:
    """So many different phrases of one to three words."""
    drawn = random.Random(seed)
    found: dict[str, None] = {}
    while len(found) < count:
        found[" ".join(drawn.choices(words, k=drawn.randint(1, 3)))] = None
    return list(found)


def row_of(heard: Heard, decoder: Any, size: int, words: list[str], repeats: int) -> dict[str, Any]:
    """Throughput in each way, by that without phrases: of decoding alone, and of the whole model."""
    calls: dict[str, Callable[[], float]] = {"encoder": partial(heard.encoder_seconds, size)}
    medians = measure.by_turns(calls | ways(heard, decoder, size, words), repeats)
    encoder, plain = medians.pop("encoder"), medians["none"]
    row: dict[str, Any] = {"batch_size": size, "ms_per_clip": 1e3 * plain / len(heard.clips)}
    row["throughput"] = {way: plain / seconds for way, seconds in medians.items()}
    row["whole_model"] = {way: (encoder + plain) / (encoder + seconds) for way, seconds in medians.items()}
    return row | {"seconds": medians, "encoder_seconds": encoder}


def ways(heard: Heard, decoder: Any, size: int, words: list[str]) -> dict[str, Callable[[], float]]:
    """What is timed: each gives the seconds that it took to decode all clips."""
    tokenizer, batches = heard.recogniser.tokenizer, heard.batches(size)
    own = [PhraseBooster(phrases(words, PER_ROW, row), tokenizer) for row in range(size)]
    many = [PhraseBooster(phrases(words, PER_ROW, 1000 + n), tokenizer) for n in range(BY_TURNS)]
    passes, unseen = itertools.count(), itertools.count(1)

    def run(contexts: Callable[[int, int, int], Any]) -> float:
        seconds, turn = 0.0, next(passes)
        for place, (numbers, frames, lengths) in enumerate(batches):
            given = contexts(turn, place, len(numbers))
            seconds += measure.seconds_of(lambda f=frames, n=lengths, g=given: decoder.decode(f, n, g), heard.recogniser.device)
        return seconds

    def by_turns(turn: int, place: int, rows: int) -> list[PhraseBooster]:
        return [many[(turn * 37 + place * size + row) % BY_TURNS] for row in range(rows)]

    def new(turn: int, place: int, rows: int) -> list[list[str]]:
        number = next(unseen)
        drawn = random.Random(number)
        return [[*drawn.sample(words, min(len(words), PER_ROW)), f"x{'abcdefghij'[number % 10]}"] for _ in range(rows)]

    kinds: dict[str, Callable[[int, int, int], Any]] = {"none": lambda *_: None}
    for count in SIZES:
        one = PhraseBooster(phrases(words, count, count), tokenizer)
        kinds[f"one of {count}"] = lambda *_, one=one: one
    kinds |= {f"per row, {PER_ROW}": lambda turn, place, rows: own[:rows], f"{BY_TURNS} by turns": by_turns, "new": new}
    kinds["none again"] = kinds["none"]
    return {name: partial(run, contexts) for name, contexts in kinds.items()}


def of_streams(heard: Heard, decoder: Any, size: int, words: list[str], repeats: int) -> dict[str, Any]:
    """Throughput of streams by that of those whose contexts are never switched, by how often they are; for the whole model."""
    own = [PhraseBooster(phrases(words, PER_ROW, 1000 + n), heard.recogniser.tokenizer) for n in range(BY_TURNS // 4)]
    streams = StreamingDecoder(decoder, max_streams=STREAMS)
    shares = [heard.rows[n::STREAMS] for n in range(min(STREAMS, len(heard.rows)))]
    passes = itertools.count(1)

    def run(how: str) -> None:
        turn = next(passes)
        sids = [streams.open(**({} if how == "none" else {"phrases": own[n]})) for n in range(len(shares))]
        at = [(0, 0)] * len(shares)  # clip, frame
        while live := [n for n, (clip, _) in enumerate(at) if clip < len(shares[n])]:
            switched = [n for n in live if how == "every chunk" or (how == "every utterance" and at[n][1] == 0)]
            streams.set_contexts({sids[n]: own[(n + turn) % len(own)] for n in switched})
            streams.step({sids[n]: shares[n][at[n][0]][at[n][1] : at[n][1] + CHUNK] for n in live})
            turn += 1
            for n in live:
                clip, frame = at[n]
                at[n] = (clip, frame + CHUNK)
                if frame + CHUNK >= len(shares[n][clip]):
                    streams.reset(sids[n])
                    at[n] = (clip + 1, 0)
        for sid in sids:
            streams.close(sid)

    kinds = ("none", "never", "every utterance", "every chunk", "never again")
    calls = {how: partial(measure.seconds_of, partial(run, how), heard.recogniser.device) for how in kinds}
    medians = measure.by_turns(calls | {"encoder": partial(heard.encoder_seconds, size)}, repeats)
    encoder = medians.pop("encoder")
    never = encoder + medians["never"]
    return {"switching": {how: never / (encoder + s) for how, s in medians.items()}, "switching_seconds": medians}


if __name__ == "__main__":
    main()
