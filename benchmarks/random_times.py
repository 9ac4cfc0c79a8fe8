"""Times of models of real sizes with random weights (random_models.py), with an n-gram LM and without.

    python benchmarks/random_times.py ctc                        # on a GPU
    python benchmarks/random_times.py transducers --layers 2     # of the prediction network's LSTM
    python benchmarks/random_times.py attention --models whisper-tiny --batch-sizes 32 --beams 5 --most-rows 160
    python benchmarks/random_times.py attention --models canary --ways strategy internal
    python benchmarks/random_times.py contexts                   # on a GPU

ctc: Parakeet's encoders of 600 and 110 million parameters in bfloat16 for 20 s of noise per row, and searches of random logits
of as many frames. "search" is the GPU's own time for the search alone, in a CUDA graph; "whole" is a decoder's call from logits
to hypotheses with text, as the host sees it.

transducers: Parakeet RNN-T and TDT of 110 million parameters. The encoder hears noise of 5 to 15 s; random frames of the same
lengths are decoded. By turns, medians. On the CPU there are 32 clips, on a GPU 128, unless `--batch-sizes` says otherwise.

attention: random Whispers, a Canary, and a decoder with Qwen's 151,936 tokens, each with an LM over all its text tokens.
`generate` runs a fixed number of steps, in each way of `ways_of` by turns. A step lasts from one time that the output layer has
run to the next, so that what comes before the first token doesn't count; what is reported is the ratio of the median step to
that of stock `generate`. Stock `generate` has two turns: their ratio is the noise. What calls of the processor take is measured
in these, too ("in processor"): a ratio of two noisy times says less. "internal" subtracts the decoder's internal LM, too.

contexts: each row has 200 phrases of its own, beside the LM. Throughput is that of encoder and decoder (decoders with
attention: `generate` from the encoder's output), as a multiple of that with the LM alone. By turns, medians.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any

import lm_queries
import measure
import numpy as np
import random_models
import torch
import transformers
from random_models import BETA, LM_WEIGHT, beam_search, greedy_search
from ways import Row, Stock, Way, show, timed

from hf_ngpulm import CTCDecoder, GraphDecoder, NGramLM, NGramLogitsProcessor, PhraseBooster
from hf_ngpulm.engines.native import NativeCoreError
from hf_ngpulm.generation import seq2seq_generate


def main() -> None:
    parser = measure.Command(__doc__)
    commands = parser.add_subparsers(dest="what", required=True)
    for name, (call, result, options) in COMMANDS.items():
        measure.arguments(None, result, commands.add_parser(name), ABOUT, **options).set_defaults(call=call)
    args = parser.parse_args()
    torch.manual_seed(0)
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    with torch.inference_mode():
        args.call(args)


# CTC models

# What searches may take of an encoder's time at the largest batch, in percent.
PERCENT = {"600 M": {"greedy + LM": 1.0, "beam 8 + LM": 3.0, "beam 32 + LM": 10.0}, "110 M": {"greedy + LM": 4.0}}


def ctc(args: argparse.Namespace) -> None:
    results: dict[str, Any] = {"frames": args.frames, "percent": PERCENT, "encoders": []}
    for name in PERCENT:
        model = random_models.ctc_encoder("tiny" if args.tiny else name)
        seconds = {str(size): encoder_seconds(model, size, args.frames) for size in args.batch_sizes}
        parameters = sum(parameter.numel() for parameter in model.parameters())
        results["encoders"].append({"name": name, "parameters": parameters, "seconds": seconds})
    measure.report(timed_searches(args, results["encoders"]), args, results, "searches")


def encoder_seconds(model: Any, batch_size: int, frames: int) -> float:
    """Return how long an encoder takes for noise."""
    shape = (batch_size, random_models.SUBSAMPLING * frames, random_models.MELS)
    features = torch.randn(shape, device=measure.GPU, dtype=torch.bfloat16)
    mask = torch.ones(shape[:2], dtype=torch.int64, device=measure.GPU)
    return measure.wall_seconds(partial(model, input_features=features, attention_mask=mask))


def random_logits(batch_size: int, frames: int, vocab_size: int) -> tuple[torch.Tensor, torch.Tensor, Any]:
    """Return logits, their lengths, and a tokenizer."""
    lengths = torch.full((batch_size,), frames, dtype=torch.int32, device=measure.GPU)
    return random_models.peaked_logits(batch_size, frames, vocab_size), lengths, random_models.plain_tokenizer(vocab_size)


def timed_searches(args: argparse.Namespace, encoders: list[Row]) -> Iterator[Row]:
    """Yield rows of the table: each search's times, and their shares of the encoders'."""
    for vocab_size, batch_size in product(args.vocab_sizes, args.batch_sizes):
        lm = lm_queries.build_model(vocab_size, 6, args.ngrams).to(measure.GPU)
        logits, lengths, tokenizer = random_logits(batch_size, args.frames, vocab_size)
        greedy = {"lm": lm, "lm_weight": LM_WEIGHT, "num_beams": 1}
        kinds = {"argmax": ({}, partial(logits.argmax, -1)), "greedy + LM": (greedy, greedy_search(lm, logits, lengths))}
        for num_beams, (name, skip) in product(args.beams, (("", {}), (", blank_threshold", {"blank_threshold": 0.9}))):
            search = beam_search(lm, logits, lengths, num_beams, *(skip.values() or [float("inf")]))
            kinds[f"beam {num_beams} + LM{name}"] = {**greedy, "num_beams": num_beams, "beta": BETA, **skip}, search
        for name, (settings, search) in kinds.items():
            decoder = CTCDecoder(tokenizer, blank_id=vocab_size, **settings)
            row: Row = {"vocab_size": vocab_size, "batch_size": batch_size, "search": name}
            row["search_seconds"] = measure.graph_seconds([search], 3, count=3)
            try:
                row["whole_seconds"] = measure.wall_seconds(partial(decoder, logits, lengths))
            except NativeCoreError:  # which hypotheses need (python csrc/build.py)
                row["whole_seconds"] = None
            for encoder, kind in product(encoders, ("search", "whole")):
                if row[f"{kind}_seconds"] is not None:
                    share = 100 * row[f"{kind}_seconds"] / encoder["seconds"][str(batch_size)]
                    row[f"{kind}, % of {encoder['name']}"] = share
            yield row


# Transducers


def transducers(args: argparse.Namespace) -> None:
    sizes = tuple(args.batch_sizes or (1, 16, 32, *((128,) if args.device == "cuda" else ())))
    of_model = random_models.TINY if args.tiny else random_models.REAL
    lengths, lm = random_models.random_lengths(max(sizes), of_model), random_models.random_lm(of_model).to(args.device)
    rows: list[Row] = []
    for kind in ("RNNT", "TDT"):
        heard = random_models.random_clips(kind, lengths, args.layers, args.device, of_model)
        greedy, fused = {"strategy": "greedy"}, {"lm": lm, "lm_weight": LM_WEIGHT, "ilm_weight": 0.0}
        searches = {
            "greedy": greedy,
            "greedy + LM": greedy | fused,
            "ALSD 6 + LM": {"strategy": "alsd", "num_beams": 6, **fused},
        }
        ways = [Stock("stock generate", heard, sizes=sizes)]
        ways += [Way(name, heard, fixed=fixed, sizes=sizes) for name, fixed in searches.items()]
        rows += timed([(way, {"model": kind, "decoder": way.name}) for way in ways], args.repeats)
        path = measure.save(args.name, {"layers": args.layers, "decoders": rows}, args.out)
    print(show(rows))
    print("results in", path)


# Decoders with attention

WEIGHT = 0.2
# Rows (batch x beams) above which a model takes many minutes on a CPU, nearly all of them before the first step; others take
# them in any case.
MOST_ROWS_ON_CPU = {"whisper-tiny": 40, "whisper-base": 8, "whisper-small": 8, "canary": 40, "qwen-head": 40}
LEAST_TURNS = 2


def attention(args: argparse.Namespace) -> None:
    every = MOST_ROWS_ON_CPU if args.device == "cpu" else [name for name in random_models.ATTENTION if name[-4:] != "none"]
    measure.report((row for name in args.models or every for row in step_times(name, args)), args)


def step_times(name: str, args: argparse.Namespace) -> Iterator[Row]:
    dtype = getattr(torch, args.dtype or ("float32" if args.device == "cpu" else "float16"))
    subject = random_models.subject_of(name, args.device, dtype)
    lm = NGramLM.train(random_models.texts(subject.text_tokens), vocab_size=subject.text_tokens, order=5).to(args.device)
    ways, steps = ways_of(subject, lm, args.ways), StepClock(subject.model, args.steps)
    most_rows = args.most_rows or (MOST_ROWS_ON_CPU.get(name) if args.device == "cpu" else None) or float("inf")
    sizes = [(beams, size) for beams, size in product(args.beams, args.batch_sizes) if beams * size <= most_rows]
    for place, of_batch in enumerate(sizes):
        yield {"model": name, **compared(subject, ways, steps, *of_batch, place == 0, args)}
    steps.stop()


def ways_of(subject: random_models.Subject, lm: NGramLM, names: list[str]) -> dict[str, dict[str, Any]]:
    """Return ways to generate: what `generate` is given in each."""
    ways: dict[str, dict[str, Any]] = {"stock": {}, "stock again": {}}
    if "processor" in names:
        processor = Timed(NGramLogitsProcessor(lm, WEIGHT, model=subject.model, start=subject.start))
        ways["processor"] = {"logits_processor": [processor]}
    settings = {"lm": lm, "lm_weight": WEIGHT} | ({} if subject.start is None else {"start": subject.start})
    for name, more in (("strategy", {}), ("internal", {"ilm_weight": WEIGHT / 2})):
        ways |= {name: {"custom_generate": seq2seq_generate, **settings, **more}} if name in names else {}
    return ways


def compared(
    subject: random_models.Subject,
    ways: dict[str, Any],
    steps: StepClock,
    num_beams: int,
    batch_size: int,
    compiles: bool,
    args: Any,
) -> Row:
    """Return medians of a step in each way; the first turn doesn't count if it `compiles`."""
    settings = {"num_beams": num_beams, "do_sample": False, "max_new_tokens": args.steps, "min_new_tokens": args.steps}
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    inside: dict[str, list[float]] = {way: [] for way in ways if "logits_processor" in ways[way]}
    begin, turn = time.perf_counter(), 0
    while turn < args.turns and (turn < LEAST_TURNS or time.perf_counter() - begin < args.seconds):
        for way in list(ways)[:: -1 if turn % 2 else 1]:
            subject.model.generate(**subject.encoded(batch_size), **settings, **ways[way])
            seconds[way] += steps.of_steps()
            if way in inside:  # the first call isn't within a step
                inside[way] += np.diff(ways[way]["logits_processor"][0].marks.seconds())[2::2].tolist()
        if compiles:
            compiles = False
            for times in (*seconds.values(), *inside.values()):
                times.clear()
        else:
            turn += 1
    medians = {way: statistics.median(times) for way, times in seconds.items()}
    stock = medians.pop("stock")
    row = {"beams": num_beams, "batch": batch_size, "turns": turn, "ms a step": round(1e3 * stock, 3)}
    row |= {f"{way} %": round(100 * (median / stock - 1), 2) for way, median in medians.items()}
    for way, times in inside.items():
        median = statistics.median(times)
        row |= {f"in {way}, ms": round(1e3 * median, 3), f"in {way}, %": round(100 * median / stock, 2)}
    return row


class Marks:
    """Times at which tensors are there; on a GPU nothing waits for them."""

    def __init__(self) -> None:
        self._taken: list[Any] = []

    def add(self, made: torch.Tensor) -> None:
        self._taken.append(torch.cuda.Event(enable_timing=True) if made.is_cuda else measure.now())
        if made.is_cuda:
            self._taken[-1].record()

    def seconds(self) -> np.ndarray:
        """Return the times since it was asked last."""
        taken, self._taken = self._taken, []
        if taken and not isinstance(taken[0], float):
            torch.cuda.synchronize()
            taken = [taken[0].elapsed_time(event) / 1e3 for event in taken]
        return np.array(taken)


class StepClock(Marks):
    """Tells how long each step takes: from one time that a model's output layer has run to the next."""

    def __init__(self, model: Any, steps: int) -> None:
        super().__init__()
        self.steps = steps
        self.stop = model.get_output_embeddings().register_forward_hook(lambda *of_call: self.add(of_call[-1])).remove

    def of_steps(self) -> list[float]:
        """Return the seconds of each step of the `generate` that has just ended."""
        times = self.seconds()
        if len(times) not in (self.steps, 2 * self.steps):
            raise RuntimeError(f"generate should have taken {self.steps} steps, it took {len(times)}")
        return np.diff(times[:: len(times) // self.steps]).tolist()  # an internal LM's pass comes after each


class Timed(transformers.LogitsProcessor):
    """A processor whose calls are timed."""

    def __init__(self, processor: Any) -> None:
        self.processor, self.marks = processor, Marks()

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.marks.add(scores)
        scores = self.processor(input_ids, scores)
        self.marks.add(scores)
        return scores


# Contexts

PHRASES, LONGEST, BEAM = 200, 3, 6  # phrases of a row, tokens of one, beams
Family = tuple[str, Callable[[Any], Any], Any, Callable[[], float]]  # name, a call for some contexts, tokenizer, encoder's time


def contexts(args: argparse.Namespace) -> None:
    if not measure.report(throughputs(args), args, {"phrases": PHRASES}, "contexts"):
        sys.exit("nothing could be timed")


def throughputs(args: argparse.Namespace) -> Iterator[Row]:
    for make in (of_ctc, of_transducers, of_attention):
        try:
            for name, decode, own, encoder in make(args):
                ways = {"plain": None, "contexts": own}
                calls = {way: partial(measure.seconds_of, partial(decode, given), measure.GPU) for way, given in ways.items()}
                seconds = measure.by_turns({**calls, "encoder": encoder}, args.repeats)
                plain, boosted, before = (seconds[part] for part in ("plain", "contexts", "encoder"))
                row = {"family": name, "batch_size": args.batch_size, "seconds": plain, "contexts_seconds": boosted}
                yield {**row, "encoder_seconds": before, "throughput": (before + plain) / (before + boosted)}
        except NativeCoreError as error:
            print(f"{make.__name__}: left out, it needs the native core: {error}", flush=True)


def boosters(tokenizer: Any, vocab_size: int, rows: int) -> list[PhraseBooster]:
    """Return a context for each row, of phrases of a few random tokens."""
    drawn, found = random.Random(0), []
    for _ in range(rows):
        lengths = [drawn.randint(1, LONGEST) for _ in range(min(PHRASES, vocab_size))]
        phrases = [" ".join(str(drawn.randrange(vocab_size)) for _ in range(length)) for length in lengths]
        found.append(PhraseBooster(phrases, tokenizer))
    return found


def of_ctc(args: argparse.Namespace) -> Iterator[Family]:
    sizes, frames = (random_models.TINY, 10) if args.tiny else (random_models.REAL, 125)
    logits, lengths, tokenizer = random_logits(args.batch_size, frames, sizes.vocab_size)
    own = boosters(tokenizer, sizes.vocab_size, args.batch_size)
    seconds = encoder_seconds(random_models.ctc_encoder(sizes.encoder), args.batch_size, frames)
    fused = {"lm": random_models.random_lm(sizes).to(measure.GPU), "lm_weight": LM_WEIGHT, "blank_id": sizes.vocab_size}
    searches = {"greedy": {"num_beams": 1}, f"beam {BEAM}": {"num_beams": BEAM}, "graph": {"max_active": BEAM}}
    for name, options in searches.items():
        decoder = (GraphDecoder if name == "graph" else CTCDecoder)(tokenizer, **fused, **options)
        yield f"CTC {name}", partial(decoder, logits, lengths), own, lambda: seconds


def of_transducers(args: argparse.Namespace) -> Iterator[Family]:
    sizes = random_models.TINY if args.tiny else random_models.REAL
    fused = {"lm": random_models.random_lm(sizes).to(measure.GPU), "lm_weight": LM_WEIGHT, "ilm_weight": 0.0}
    lengths = random_models.random_lengths(args.batch_size, sizes)
    for kind in ("RNNT", "TDT"):
        heard = random_models.random_clips(kind, lengths, 1, measure.GPU, sizes)
        ((_, *frames),) = heard.batches(args.batch_size)
        own = boosters(heard.recogniser.tokenizer, sizes.vocab_size, args.batch_size)
        for name, options in (("greedy", {"strategy": "greedy"}), (f"ALSD {BEAM}", {"strategy": "alsd", "num_beams": BEAM})):
            decode = partial(heard.recogniser.decoder(**fused, **options).decode, *frames)
            yield f"{kind} {name}", decode, own, partial(heard.encoder_seconds, args.batch_size)


def of_attention(args: argparse.Namespace) -> Iterator[Family]:
    """`generate` with a processor; a row has a context of its own."""
    name, steps, dtype = ("whisper-none", 3, torch.float32) if args.tiny else ("whisper-tiny", 20, torch.float16)
    subject = random_models.subject_of(name, measure.GPU, dtype)
    sentences = random_models.texts(subject.text_tokens)[: 2000 if args.tiny else None]
    lm = NGramLM.train(sentences, vocab_size=subject.text_tokens, order=5).to(measure.GPU)
    own = boosters(random_models.plain_tokenizer(subject.text_tokens), subject.text_tokens, args.batch_size)
    settings = {"do_sample": False, "max_new_tokens": steps, "min_new_tokens": steps}
    processors = [NGramLogitsProcessor(lm, WEIGHT, model=subject.model, **more) for more in ({}, {"phrases": own})]

    def decode(given: Any) -> Any:
        processor = processors[given is not None]
        return subject.model.generate(**subject.encoded(args.batch_size), **settings, logits_processor=[processor])

    yield f"{name} processor", decode, own, lambda: 0.0


ABOUT = {"tiny": "tiny models, to see that it runs", "ngrams": "of the LM", "layers": "of the prediction network"}
ABOUT |= {
    "ways": "beside stock",
    "steps": "of `generate`",
    "turns": "of each way, at most",
    "dtype": "default: float16, on a CPU float32",
}
ABOUT["seconds"] = f"no more turns after so long, if there were {LEAST_TURNS}"
ABOUT["most_rows"] = "batch x beams at most; default: any, on a CPU by the model's size"
ABOUT["models"] = {"choices": random_models.ATTENTION, "help": "default: all; on a CPU all but the largest two"}
COMMANDS: dict[str, tuple[Callable[[argparse.Namespace], None], str, dict[str, Any]]] = {
    "ctc": (ctc, "ctc_search_gpu", {
        "vocab_sizes": (1024, 5000), "batch_sizes": (1, 32, 128), "beams": (8, 32), "frames": 250, "ngrams": lm_queries.NGRAMS,
        "tiny": False,
    }),
    "transducers": (transducers, "transducer_random", {
        "layers": 1, "batch_sizes": (int,), "repeats": 3 if measure.DEVICE == "cuda" else 1, "device": measure.DEVICE,
        "tiny": False,
    }),
    "attention": (attention, "aed", {
        "models": (str,), "ways": ("processor", "strategy"), "batch_sizes": (1, 8, 32), "beams": (1, 5), "most_rows": int,
        "steps": 20, "turns": 40, "seconds": 25.0, "dtype": str, "device": measure.DEVICE,
    }),
    "contexts": (contexts, "contexts_gpu", {"batch_size": 128, "repeats": 5, "tiny": False}),
}  # fmt: skip

if __name__ == "__main__":
    main()
