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
from functools import partial
from typing import Any, NamedTuple

import gpu_ctc
import measure
import random_models
import torch

from hf_ngpulm import CTCDecoder, GraphDecoder, NGramLM, NGramLogitsProcessor, PhraseBooster
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
    parser = measure.arguments(__doc__, "contexts_gpu")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--tiny", action="store_true", help="tiny models, to see that it runs")
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
    header = ["family", "batch", "decoder ms", "with contexts", "encoder ms", "throughput"]
    print(measure.table(header, list(map(cells, found))))
    print("results in", measure.save(args.name, {"phrases": PHRASES, "contexts": found}, args.out))


def cells(row: dict[str, Any]) -> list[Any]:
    times = [1e3 * row[name] for name in ("seconds", "contexts_seconds", "encoder_seconds")]
    return [row["family"], row["batch_size"], *(f"{time:.2f}" for time in times), f"{row['throughput']:.3f}"]


def timed(family: Family, args: argparse.Namespace) -> dict[str, Any]:
    ways = {"plain": None, "contexts": family.contexts}
    calls = {way: partial(measure.seconds_of, partial(family.decode, given), measure.GPU) for way, given in ways.items()}
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


def sizes_of(args: argparse.Namespace) -> random_models.Sizes:
    return random_models.TINY if args.tiny else random_models.REAL


def of_ctc(args: argparse.Namespace) -> list[Family]:
    sizes = sizes_of(args)
    frames = 10 if args.tiny else 125
    lm = random_models.random_lm(sizes).to(measure.GPU)
    tokenizer = random_models.plain_tokenizer(sizes.vocab_size)
    logits = random_models.peaked_logits(args.batch_size, frames, sizes.vocab_size)
    lengths = torch.full((args.batch_size,), frames, dtype=torch.int32, device=measure.GPU)
    contexts = boosters(tokenizer, sizes.vocab_size, args.batch_size)
    encoder = gpu_ctc.encoder_seconds(random_models.ctc_encoder(sizes.encoder), args.batch_size, frames)
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
    lm = random_models.random_lm(sizes).to(measure.GPU)
    lengths = random_models.random_lengths(args.batch_size, sizes)
    found = []
    for kind in ("RNNT", "TDT"):
        heard = random_models.random_clips(kind, lengths, 1, measure.GPU, sizes)
        ((_, frames, lengths_of_rows),) = heard.batches(args.batch_size)
        contexts = boosters(heard.recogniser.tokenizer, sizes.vocab_size, args.batch_size)
        encoder = measure.by_turns({"": partial(heard.encoder_seconds, args.batch_size)}, args.repeats)[""]
        for name, options in (("greedy", {"strategy": "greedy"}), (f"ALSD {BEAM}", {"strategy": "alsd", "num_beams": BEAM})):
            decoder = heard.recogniser.decoder(lm=lm, lm_weight=LM_WEIGHT, ilm_weight=0.0, **options)
            found.append(Family(f"{kind} {name}", partial(decoder.decode, frames, lengths_of_rows), contexts, encoder))
    return found


def of_attention(args: argparse.Namespace) -> list[Family]:
    """`generate` with a processor; a row has a context of its own."""
    name = "whisper-none" if args.tiny else "whisper-tiny"
    subject = random_models.subject_of(name, measure.GPU, torch.float32 if args.tiny else torch.float16)
    tokenizer = random_models.plain_tokenizer(subject.text_tokens)
    texts = random_models.texts(subject.text_tokens)[: 2000 if args.tiny else None]
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
