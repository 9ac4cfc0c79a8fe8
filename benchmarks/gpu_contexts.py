"""What a context of phrases for each row costs on a GPU, for every family of models, with random weights and no audio.

    python benchmarks/gpu_contexts.py

Each row has 200 phrases of its own, beside the language model. Throughput is that of the whole model, encoder and decoder (for
decoders with attention: `generate` from the encoder's output), as a multiple of that with the language model alone. By turns,
medians.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import measure
import torch

sys.path.insert(0, str(measure.ROOT))

import aed_random
import gpu_ctc
import speech
import transducer_random

from hf_ngpulm import CTCDecoder, GraphDecoder, NGramLM, NGramLogitsProcessor, PhraseBooster, TransducerDecoder
from hf_ngpulm.engines.native import NativeCoreError

PHRASES, LONGEST = 200, 3  # of a row, and tokens of one
LM_WEIGHT, BEAM = 0.5, 6
STEPS = 20  # of `generate`


class Family(NamedTuple):
    """What is timed: a decoder's call for some contexts (None for none), and what the encoder takes before it."""

    name: str
    decode: Callable[[Any], Any]
    contexts: list[PhraseBooster]
    encoder_seconds: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--tiny", action="store_true", help="tiny models, to see that it runs")
    parser.add_argument("--name", default="contexts_gpu", help="name of the result file")
    parser.add_argument("--out", type=Path, help="folder for the JSON results (default: benchmarks/results)")
    args = parser.parse_args()
    torch.manual_seed(0)
    found: list[dict[str, Any]] = []
    with torch.inference_mode():
        for make in (of_ctc, of_transducers, of_attention):
            try:
                for family in make(args):
                    found.append(timed(family, args))
                    measure.save(args.name, {"phrases": PHRASES, "contexts": found}, args.out)
            except NativeCoreError as error:
                print(f"{make.__name__}: left out, it needs the native core: {error}", flush=True)
    if not found:
        sys.exit("nothing could be timed")
    print(
        measure.table(["family", "batch", "decoder ms", "with contexts", "encoder ms", "throughput"], list(map(cells, found)))
    )
    print("results in", measure.save(args.name, {"phrases": PHRASES, "contexts": found}, args.out))


def cells(row: dict[str, Any]) -> list[Any]:
    times = [1e3 * row[name] for name in ("seconds", "contexts_seconds", "encoder_seconds")]
    return [row["family"], row["batch_size"], *(f"{time:.2f}" for time in times), f"{row['throughput']:.3f}"]


def timed(family: Family, args: argparse.Namespace) -> dict[str, Any]:
    calls = {
        way: (lambda given=given: speech.seconds_of(lambda: family.decode(given), measure.GPU))
        for way, given in (("plain", None), ("contexts", family.contexts))
    }
    seconds = measure.by_turns(calls, args.repeats)
    before = family.encoder_seconds
    row: dict[str, Any] = {"family": family.name, "batch_size": args.batch_size, "seconds": seconds["plain"]}
    row |= {"contexts_seconds": seconds["contexts"], "encoder_seconds": before}
    row["throughput"] = (before + seconds["plain"]) / (before + seconds["contexts"])
    print(family.name, f"{row['throughput']:.3f}", flush=True)
    return row


def boosters(tokenizer: Any, vocab_size: int, rows: int) -> list[PhraseBooster]:
    """A context for each row, of phrases of a few random tokens."""
    drawn = random.Random(0)
    found = []
    for _ in range(rows):
        lengths = [drawn.randint(1, LONGEST) for _ in range(min(PHRASES, vocab_size))]
        texts = [" ".join(str(drawn.randrange(vocab_size)) for _ in range(length)) for length in lengths]
        found.append(PhraseBooster(texts, tokenizer))
    return found


def sizes_of(args: argparse.Namespace) -> transducer_random.Sizes:
    return transducer_random.TINY if args.tiny else transducer_random.REAL


def of_ctc(args: argparse.Namespace) -> list[Family]:
    sizes = sizes_of(args)
    frames = 10 if args.tiny else 125
    lm = transducer_random.random_lm(sizes).to(measure.GPU)
    tokenizer = transducer_random.plain_tokenizer(sizes.vocab_size)
    logits = gpu_ctc.peaked_logits(args.batch_size, frames, sizes.vocab_size)
    lengths = torch.full((args.batch_size,), frames, dtype=torch.int32, device=measure.GPU)
    contexts = boosters(tokenizer, sizes.vocab_size, args.batch_size)
    settings = gpu_ctc.TINY if args.tiny else gpu_ctc.ENCODERS["110 M"]
    of_encoder = argparse.Namespace(batch_sizes=[args.batch_size], frames=frames)
    encoder = gpu_ctc.timed_encoder("", settings, of_encoder)["seconds"][str(args.batch_size)]
    fused = {"lm": lm, "lm_weight": LM_WEIGHT, "blank_id": sizes.vocab_size}
    decoders: dict[str, Any] = {
        "CTC greedy": CTCDecoder(tokenizer, num_beams=1, **fused),
        f"CTC beam {BEAM}": CTCDecoder(tokenizer, num_beams=BEAM, **fused),
        "CTC graph": GraphDecoder(tokenizer, max_active=BEAM, **fused),
    }
    return [
        Family(name, lambda given, decoder=decoder: decoder(logits, lengths, given), contexts, encoder)
        for name, decoder in decoders.items()
    ]


def of_transducers(args: argparse.Namespace) -> list[Family]:
    sizes = sizes_of(args)
    lm = transducer_random.random_lm(sizes).to(measure.GPU)
    lengths = transducer_random.random_lengths(args.batch_size, sizes)
    found = []
    for kind in ("RNNT", "TDT"):
        clips = transducer_random.random_clips(kind, lengths, (args.batch_size,), 1, measure.GPU, sizes)
        ((_, frames, lengths_of_rows),) = clips.batches[args.batch_size]
        contexts = boosters(clips.processor, sizes.vocab_size, args.batch_size)
        encoder = measure.wall_seconds(lambda clips=clips: clips.encode(args.batch_size))
        for name, options in (("greedy", {"strategy": "greedy"}), (f"ALSD {BEAM}", {"strategy": "alsd", "num_beams": BEAM})):
            decoder = TransducerDecoder(clips.model, clips.processor, lm, LM_WEIGHT, **options, ilm_weight=0.0)

            def decode(given: Any, decoder: Any = decoder, frames: Any = frames, lengths: Any = lengths_of_rows) -> Any:
                return decoder.decode(frames, lengths, given)

            found.append(Family(f"{kind} {name}", decode, contexts, encoder))
    return found


def of_attention(args: argparse.Namespace) -> list[Family]:
    """`generate` with a processor; a row has a context of its own."""
    name = "whisper-none" if args.tiny else "whisper-tiny"
    subject = aed_random.subject_of(name, measure.GPU, torch.float32 if args.tiny else torch.float16)
    tokenizer = transducer_random.plain_tokenizer(subject.text_tokens)
    texts = aed_random.texts(subject.text_tokens)[: 2000 if args.tiny else None]
    lm = NGramLM.train(texts, vocab_size=subject.text_tokens, order=5).to(measure.GPU)
    contexts = boosters(tokenizer, subject.text_tokens, args.batch_size)
    steps = 3 if args.tiny else STEPS
    plain = NGramLogitsProcessor(lm, 0.2, model=subject.model)
    boosted = NGramLogitsProcessor(lm, 0.2, model=subject.model, phrases=contexts)

    def decode(given: Any) -> Any:
        return subject.model.generate(
            **subject.encoded(args.batch_size), do_sample=False, max_new_tokens=steps, min_new_tokens=steps,
            logits_processor=[plain if given is None else boosted],
        )  # fmt: skip

    return [Family(f"{name} processor", decode, contexts, 0.0)]


if __name__ == "__main__":
    main()
