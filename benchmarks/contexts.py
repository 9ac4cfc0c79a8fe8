"""What phrases cost: throughput with a context for each row, by their number and size, and by how often they are switched.

    python benchmarks/contexts.py --model MODEL [MODEL ...] --manifest clips.jsonl     # CTC models and transducers
    python benchmarks/contexts.py                                                      # the bundled CTC model and clips
    python benchmarks/contexts.py --random                                             # random outputs of a CTC model, no audio

A manifest has a line {"audio": path, "text": transcript} per clip. The encoder runs beforehand; the time is that of decoding,
clips sorted by length, in batches, and beside it that of the whole model (the encoder's time, in batches of the same size,
comes on top). Phrases are made up of the words of the transcripts, so that matches begin and fail all the time. "per row": each
row has a context of its own. "256 by turns": so many contexts, which rows take by turns, another one in each pass over the
clips. "new": contexts that have never been seen, of which boosters are made on the way. Throughput is given as a multiple of
that without phrases, which comes twice, the second time for the noise. By turns, medians.

Streams take chunks of 8 frames, each with its own context, which is switched never, with each utterance, or with each chunk.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import measure
import torch

sys.path.insert(0, str(measure.ROOT))

import encoded
import speech

from hf_ngpulm import CTCDecoder, PhraseBooster, StreamingDecoder, TransducerDecoder
from hf_ngpulm.language_model.loading import load_language_model
from hf_ngpulm.text.vocabulary import tokenizer_of

BATCH_SIZES = (32, 128)
BEAM = 6
SEARCHES: dict[str, dict[str, Any]] = {"greedy": {"num_beams": 1}, f"beam {BEAM}": {"num_beams": BEAM}}
FRAMES = 125  # of random logits: 10 s of audio at 80 ms a frame
SIZES = (10, 200, 1000, 10_000)  # phrases of a context
PER_ROW = 200
STREAMS, CHUNK = 32, 8  # frames
BY_TURNS = 256
LM_WEIGHT = 0.9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    speech.add_arguments(parser, "contexts")
    parser.set_defaults(model=None, lm=None)
    parser.add_argument("--models", nargs="+", default=[], help="several models, CTC or transducers")
    parser.add_argument("--random", action="store_true", help="random logits instead of a model's")
    parser.add_argument("--batch-sizes", nargs="+", type=int, default=list(BATCH_SIZES))
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    times = build_times(args)  # before there are models, among whose objects Python looks for garbage
    results: list[dict[str, Any]] = []
    with torch.inference_mode():
        if args.random:
            results += random_logits(args)
        for name in [] if args.random else args.models or [args.model or str(speech.MODEL)]:
            results += measured(name, args)
    names = list(results[0]["throughput"])
    for kind, title in (("throughput", "decoding alone"), ("whole_model", "whole model")):
        rows = [
            [r["model"], r["decoder"], r["batch_size"], f"{r['ms_per_clip']:.2f}", *(f"{r[kind][name]:.2f}" for name in names)]
            for r in results
            if kind in r
        ]
        if rows:
            print(f"\nthroughput by that without phrases, {title}")
            print(measure.table(["model", "decoder", "batch", "ms a clip", *names], rows))
    streamed = [r for r in results if "switching" in r]
    if streamed:
        print(f"\nthroughput of {STREAMS} streams by that with contexts that are never switched, whole model")
        names = list(streamed[0]["switching"])
        rows = [[r["model"], r["decoder"], *(f"{r['switching'][name]:.3f}" for name in names)] for r in streamed]
        print(measure.table(["model", "decoder", *names], rows))
    print("\nmilliseconds to make a booster:", ", ".join(f"{size} phrases {1e3 * s:.1f}" for size, s in times.items()))
    print("results in", measure.save(args.name, {"decoders": results, "seconds_to_make": times}, args.out))


def tokenizer_and_words(args: argparse.Namespace) -> tuple[Any, list[str]]:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained((args.models or [args.model or str(speech.MODEL)])[0])
    return tokenizer, words_of(args.manifest)


def words_of(manifest: Path) -> list[str]:
    import json

    texts = [json.loads(line)["text"] for line in manifest.read_text().splitlines() if line.strip()]
    return sorted({word for text in texts for word in text.split()})


def phrases(words: list[str], count: int, seed: int) -> list[str]:
    """So many different phrases of one to three words."""
    drawn = random.Random(seed)
    found: dict[str, None] = {}
    while len(found) < count:
        found[" ".join(drawn.choices(words, k=drawn.randint(1, 3)))] = None
    return list(found)


def build_times(args: argparse.Namespace) -> dict[int, float]:
    tokenizer, words = tokenizer_and_words(args)
    lists = {size: phrases(words, size, size) for size in SIZES}
    return {size: measure.median_seconds(lambda size=size: PhraseBooster(lists[size], tokenizer)) for size in SIZES}


def measured(name: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Rows of the table for one model."""
    from transformers import AutoConfig

    is_ctc = AutoConfig.from_pretrained(name).architectures[0].endswith("ForCTC")
    found = []
    for size in args.batch_sizes:
        if is_ctc:
            args.model, args.lm, args.batch_size = name, args.lm or str(speech.DEMO / "lm.arpa.gz"), size
            outputs = speech.load(args)
            batches, processor, lm, model = outputs.batches, outputs.processor, outputs.lm, outputs.model
            inputs, label = outputs.inputs, Path(name).name

            def encode(model: Any = model, inputs: Any = inputs) -> None:
                for batch in inputs:
                    model(**batch)
        else:
            clips = encoded.load(name, args.manifest, args.device, (size,))
            batches, processor, model = clips.batches[size], clips.processor, clips.model
            lm = load_language_model(args.lm, processor.tokenizer, args.device) if args.lm else None
            label = clips.name

            def encode(clips: Any = clips, size: int = size) -> None:
                clips.encode(size)

        words = words_of(args.manifest)
        encoder = measure.by_turns({"": lambda: speech.seconds_of(encode, args.device)}, 2)[""]
        clips_in_all = sum(len(numbers) for numbers, *_ in batches)
        for search, settings in SEARCHES.items():
            fusion = {} if lm is None else {"lm": lm, "lm_weight": LM_WEIGHT}
            decoder: Any
            if is_ctc:
                decoder = CTCDecoder(processor, **fusion, **settings)
                call = decoder
            else:
                decoder = TransducerDecoder(model, processor, **fusion, **settings, ilm_weight=0.0)
                call = decoder.decode
            medians = measure.by_turns(ways(call, batches, processor, words, args.device), args.repeats)
            name_of_search = search + (" + LM" if fusion else "")
            row = row_of(label, name_of_search, size, clips_in_all, medians, encoder)
            if size == args.batch_sizes[0]:
                contexts = [PhraseBooster(phrases(words, PER_ROW, 1000 + n), processor.tokenizer) for n in range(BY_TURNS // 4)]
                clips_of = [frames[i, : lengths[i]] for _, frames, lengths in batches for i in range(len(lengths))]
                switched = measure.by_turns(switching(clips_of, decoder, contexts, args.device), args.repeats)
                never = encoder + switched["never"]
                row["switching"] = {how: never / (encoder + seconds) for how, seconds in switched.items()}
                row["switching_seconds"] = switched
            found.append(row)
    return found


def switching(rows: list[torch.Tensor], decoder: Any, own: list[PhraseBooster], device: str) -> dict[str, Callable[[], float]]:
    """Seconds that streams take for all clips, `[T, ...]` each, by how often contexts are switched."""
    streams = StreamingDecoder(decoder, max_streams=STREAMS)
    shares = [rows[n::STREAMS] for n in range(min(STREAMS, len(rows)))]
    passes = [0]

    def run(how: str) -> float:
        begin = speech.now(device)
        passes[0] += 1
        sids = [streams.open(**({} if how.startswith("none") else {"phrases": own[n]})) for n in range(len(shares))]
        at = [(0, 0)] * len(shares)  # clip, frame
        turn = passes[0]
        while True:
            chunks, others = {}, {}
            for n, (clip, frame) in enumerate(at):
                if clip < len(shares[n]):
                    if how == "every chunk" or (how == "every utterance" and not frame):
                        others[sids[n]] = own[(n + turn) % len(own)]
                    chunks[sids[n]] = shares[n][clip][frame : frame + CHUNK]
            if not chunks:
                break
            turn += 1
            streams.set_contexts(others)
            streams.step(chunks)
            for n, (clip, frame) in enumerate(at):
                if clip < len(shares[n]):
                    at[n] = (clip, frame + CHUNK)
                    if frame + CHUNK >= len(shares[n][clip]):
                        streams.reset(sids[n])
                        at[n] = (clip + 1, 0)
        for sid in sids:
            streams.close(sid)
        return speech.now(device) - begin

    return {how: partial(run, how) for how in ("none", "never", "every utterance", "every chunk", "never again")}


def random_logits(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Rows of the table for logits of which one stands out at each frame, mostly the blank's; with the bundled LM."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(speech.MODEL)
    lm = load_language_model(str(speech.DEMO / "lm.arpa.gz"), tokenizer, args.device)
    words = words_of(speech.DEMO / "clips.jsonl")
    generator = torch.Generator().manual_seed(0)
    found = []
    for size in args.batch_sizes:
        logits = torch.randn(size, FRAMES, lm.vocab_size + 1, generator=generator)
        said = torch.randint(lm.vocab_size, (size, FRAMES, 1), generator=generator)
        said = torch.where(torch.rand(said.shape, generator=generator) < 0.75, tokenizer.pad_token_id, said)
        logits = logits.scatter_add_(2, said, torch.full(said.shape, 10.0)).to(args.device)
        batches = [(list(range(size)), logits, torch.full((size,), FRAMES, device=args.device))] * 2
        for search, settings in SEARCHES.items():
            decoder = CTCDecoder(tokenizer, lm, LM_WEIGHT, **settings)
            medians = measure.by_turns(ways(decoder, batches, tokenizer, words, args.device), args.repeats)
            found.append(row_of("random", search + " + LM", size, 2 * size, medians, None))
    return found


def row_of(
    model: str, decoder: str, batch_size: int, clips: int, medians: dict[str, float], encoder: float | None
) -> dict[str, Any]:
    plain = medians["none"]
    row: dict[str, Any] = {"model": model, "decoder": decoder, "batch_size": batch_size, "ms_per_clip": 1e3 * plain / clips}
    row["throughput"] = {way: plain / seconds for way, seconds in medians.items()}
    if encoder is not None:
        row["whole_model"] = {way: (encoder + plain) / (encoder + seconds) for way, seconds in medians.items()}
    row["seconds"], row["encoder_seconds"] = medians, encoder
    return row


def ways(call: Any, batches: Any, processor: Any, words: list[str], device: str) -> dict[str, Callable[[], float]]:
    """What is timed: each gives the seconds that it took to decode all clips."""
    tokenizer = tokenizer_of(processor)
    rows = max(len(numbers) for numbers, *_ in batches)
    own = [PhraseBooster(phrases(words, PER_ROW, row), tokenizer) for row in range(rows)]
    many = [PhraseBooster(phrases(words, PER_ROW, 1000 + n), tokenizer) for n in range(BY_TURNS)]
    passes = [0]
    unseen = [0]

    def timed(contexts: Callable[[int, int], Any]) -> Callable[[], float]:
        def run() -> float:
            seconds = 0.0
            for place, (numbers, frames, lengths) in enumerate(batches):
                given = contexts(place, len(numbers))
                begin = speech.now(device)
                call(frames, lengths, given)
                seconds += speech.now(device) - begin
            return seconds

        return run

    def by_turns(place: int, size: int) -> list[PhraseBooster]:
        passes[0] += place == 0
        first = passes[0] * 37 + place * rows
        return [many[(first + row) % BY_TURNS] for row in range(size)]

    def new(place: int, size: int) -> list[list[str]]:
        unseen[0] += 1
        drawn = random.Random(unseen[0])
        return [[*drawn.sample(words, min(len(words), PER_ROW)), f"x{'abcdefghij'[unseen[0] % 10]}"] for _ in range(size)]

    kinds: dict[str, Callable[[int, int], Any]] = {"none": lambda place, size: None}
    for count in SIZES:
        one = PhraseBooster(phrases(words, count, count), tokenizer)
        kinds[f"one of {count}"] = lambda place, size, one=one: one
    kinds[f"per row, {PER_ROW}"] = lambda place, size: own[:size]
    kinds[f"{BY_TURNS} by turns"] = by_turns
    kinds["new"] = new
    kinds["none again"] = kinds["none"]
    return {name: timed(contexts) for name, contexts in kinds.items()}


if __name__ == "__main__":
    main()
