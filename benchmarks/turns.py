"""Two versions of the package side by side: the same calls by turns, so that a change of the machine's mood hits both.

    git worktree add ../before COMMIT
    python benchmarks/turns.py ../before --threads 1 --name turns_one_thread

Each version runs in a process of its own, whose `hf_ngpulm` is that of the given checkout; the cases are here, and use what
both have. One call of a case in one process, then one in the other, again and again: medians of the seconds of CPU that the
process has had with one thread, of wall time with more. The first call of each case in a process is told by itself ("first"),
less the median: what is compiled or loaded. With `--memory` each case has processes of its own, and what they take at most is
compared (resident memory, encoders and all). (asv takes turns, too, but of whole rounds of all cases, minutes apart, and
installs each commit anew for each of them.)
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
WEIGHT, CHUNK = 0.9, 8
ALSD, AES = {"strategy": "alsd", "num_beams": 6}, {"strategy": "aes", "num_beams": 6}
Call = Callable[[], Any]


@cache
def heard(model: str) -> Any:
    """Return the bundled clips as a bundled model hears them."""
    import corpora
    import recognisers

    return recognisers.Recogniser(model).hear(corpora.load("harbour"), 1)


@cache
def lm_of(model: str) -> Any:
    """Return the clips' LM in a model's tokens."""
    import corpora

    from hf_ngpulm import NGramLM

    return NGramLM.train(corpora.text_of("harbour"), heard(model).recogniser.tokenizer, order=6)


def word_lm(model: str = "ctc", **settings: Any) -> Any:
    """Compose the words of the clips' text with a model's tokens."""
    from hf_ngpulm import NGramLM

    return NGramLM.from_arpa(words_file(), heard(model).recogniser.tokenizer, units="word", **settings)


@cache
def words_file() -> str:
    """Write an ARPA file of the words of the clips' text, and return its path."""
    import corpora

    from hf_ngpulm import NGramLM

    lines = [line.split() for line in corpora.text_of("harbour")]
    words = sorted({word for line in lines for word in line})
    numbers = {word: number for number, word in enumerate(words)}
    path = Path(tempfile.mkdtemp(), "words.arpa")
    lm = NGramLM.train([[numbers[word] for word in line] for line in lines], vocab_size=len(words), order=3)
    lm.to_arpa(path, "id")
    named = []
    for line in path.read_text().splitlines():
        log_prob, *ngram = line.split("\t")
        if ngram:
            ngram[0] = " ".join(words[int(token)] if token.isdigit() else token for token in ngram[0].split(" "))
        named.append("\t".join([log_prob, *ngram]))
    path.write_text("\n".join(named) + "\n")
    return str(path)


def decoder(model: str, lm: Any = None, **settings: Any) -> Any:
    fusion = {"lm": lm_of(model) if lm is None else lm, "lm_weight": WEIGHT}
    fusion |= {"ilm_weight": 0.0} if model != "ctc" else {}
    fusion |= {"num_beams": 1} if "max_active" not in settings else {}
    return heard(model).recogniser.decoder(**{**fusion, **settings})


def decoding(model: str, size: int, lm: Any = None, **settings: Any) -> Call:
    """All clips, in batches."""
    return partial(heard(model).decode, decoder(model, lm, **settings), size)


def of_words(model: str, size: int, **settings: Any) -> Call:
    return decoding(model, size, word_lm(), **settings)


def with_phrases(model: str, size: int, **settings: Any) -> Call:
    return decoding(model, size, phrases=names(200), phrase_weight=1.0, **settings)


def forgotten(model: str, size: int, **settings: Any) -> Call:
    """With a model of words that is composed on the fly, and has forgotten what was composed before."""
    lm = word_lm(model, composition="on_the_fly")
    decode = decoding(model, size, lm, **settings)

    def call() -> Any:
        lm.forget()
        return decode()

    return call


def streams(model: str, count: int, **settings: Any) -> Call:
    """A hundred chunks of each of some streams."""
    import torch

    from hf_ngpulm import StreamingDecoder

    frame_seconds = {"frame_seconds": 0.08} if model == "ctc" else {}
    frames = torch.cat(sorted(heard(model).rows, key=len))
    stream = StreamingDecoder(decoder(model, **frame_seconds, **settings), max_streams=count)
    sids = [stream.open() for _ in range(count)]
    starts = torch.linspace(0, len(frames) - 100 * CHUNK - 1, count).long().tolist()

    def call() -> None:
        for at in range(0, 100 * CHUNK, CHUNK):
            stream.step({sid: frames[first + at : first + at + CHUNK] for sid, first in zip(sids, starts)})

    return call


def names(count: int) -> list[str]:
    """Return pairs of words of the clips' text."""
    import corpora

    words = sorted({word for line in corpora.text_of("harbour") for word in line.split() if len(word) > 4})
    return [f"{words[i % len(words)]} {words[(7 * i + 3) % len(words)]}" for i in range(count)]


def contexts() -> Call:
    from hf_ngpulm import PhraseBooster

    return partial(PhraseBooster, names(1000), heard("ctc").recogniser.tokenizer)


@cache
def built(vocab_size: int) -> Any:
    import lm_queries

    return lm_queries.build_model(vocab_size, 6)


def queries(vocab_size: int, query: str, batch_size: int) -> Call:
    import numpy as np
    import synthetic
    import torch

    lm = built(vocab_size)
    said, _ = synthetic.random_text(vocab_size, batch_size * 100, np.random.default_rng(1))
    states = lm.states_after(torch.from_numpy(said[said < vocab_size][: batch_size * 20].reshape(batch_size, 20)))
    arguments = [states, torch.randint(0, vocab_size, (batch_size,))][: 1 + (query == "step")]
    return lambda: [getattr(lm, query)(*arguments) for _ in range(max(1, 20_000 // (batch_size * 20)))]


def training(order: int) -> Call:
    import torch

    from hf_ngpulm import NGramLM

    ids = (torch.rand(50_000, 20, generator=torch.Generator().manual_seed(0)) ** 3 * 1024).long().tolist()
    return lambda: NGramLM.train(ids, vocab_size=1024, order=order)


def arpa() -> Call:
    from hf_ngpulm import NGramLM

    path = Path(tempfile.mkdtemp(), "lm.arpa")
    built(1024).to_arpa(path, "id")
    return lambda: NGramLM.from_arpa(path, vocab_size=1024, units="id")


def processor(batch_size: int) -> Call:
    """Fifty calls of the logits processor on a vocabulary of 51,865, each a token on."""
    import torch
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    from hf_ngpulm import NGramLM, NGramLogitsProcessor

    generator = torch.Generator().manual_seed(0)
    ids = (torch.rand(20_000, 20, generator=generator) ** 3 * 50_257).long()
    lm = NGramLM.train(ids.tolist(), vocab_size=50_257, order=5)
    layers = dict.fromkeys(("encoder_layers", "decoder_layers", "encoder_attention_heads", "decoder_attention_heads"), 1)
    config = WhisperConfig(vocab_size=51_865, d_model=16, encoder_ffn_dim=16, decoder_ffn_dim=16, **layers)
    fuse = NGramLogitsProcessor(lm, 0.3, model=WhisperForConditionalGeneration(config), start=1)
    scores = torch.randn(batch_size, 51_865, generator=generator)
    tokens = torch.cat([torch.full((batch_size, 1), 50_258), ids[: batch_size * 5].reshape(batch_size, 100)], 1)
    return lambda: [fuse(tokens[:, : 2 + step], scores.clone()) for step in range(50)]


def canary(num_beams: int) -> Call:
    some = heard("canary").of(list(range(16)))
    fusion = {"lm": lm_of("canary"), "lm_weight": 0.4, "num_beams": num_beams}
    return partial(some.decode, some.recogniser.decoder(**fusion), 16)


BEAM = {"num_beams": 8}
CASES: dict[str, Callable[[], Call]] = {
    "lm queries, scores 1": partial(queries, 1024, "scores", 1),
    "lm queries, scores 32": partial(queries, 1024, "scores", 32),
    "lm queries, advance 32": partial(queries, 1024, "advance", 32),
    "lm queries, step 32": partial(queries, 1024, "step", 32),
    "lm queries, scores 32 of 51865": partial(queries, 51_865, "scores", 32),
    "arpa, 1100000 ngrams": arpa,
    "train lm, order 4": partial(training, 4),
    "train lm, order 6": partial(training, 6),
    **{f"ctc, greedy batch {size}": partial(decoding, "ctc", size) for size in (1, 16)},
    **{f"ctc beam, 8 batch {size}": partial(decoding, "ctc", size, **BEAM) for size in (1, 16)},
    "ctc beam, 32 batch 16": partial(decoding, "ctc", 16, num_beams=32),
    "words, compose": lambda: partial(word_lm, composition="static"),
    "words, beam 16 batch 16": partial(of_words, "ctc", 16, num_beams=16),
    **{
        f"on the fly, {model} {name} batch {size} forgotten": partial(forgotten, model, size, **settings)
        for model, name, settings in (
            ("ctc", "greedy", {}), ("ctc", "beam 8", BEAM), ("rnnt", "greedy", {}), ("rnnt", "ALSD 6", ALSD)
        )
        for size in (1, 16)
    },
    **{f"graph, tokens batch {size}": partial(decoding, "ctc", size, max_active=64) for size in (1, 16)},
    "graph, words batch 16": partial(of_words, "ctc", 16, max_active=64),
    "phrases, compile 1000": contexts,
    "phrases, 200 ctc greedy": partial(with_phrases, "ctc", 16),
    "phrases, 200 ctc beam 8": partial(with_phrases, "ctc", 16, **BEAM),
    **{
        f"transducer, {model} {name} batch {size}": partial(decoding, model, size, **settings)
        for model in ("rnnt", "tdt")
        for name, settings in (("greedy", {}), ("ALSD 6", ALSD), ("AES 6", AES))
        for size in (1, 32)
        if (model, name) != ("tdt", "AES 6")
    },
    **{f"streaming, {model} greedy {count}": partial(streams, model, count) for model in ("ctc", "rnnt") for count in (1, 16)},
    "streaming, ctc beam 8 16": partial(streams, "ctc", 16, **BEAM),
    "streaming, rnnt ALSD 6 16": partial(streams, "rnnt", 16, **ALSD),
    "streaming, tdt greedy 16": partial(streams, "tdt", 16),
    **{f"aed, processor {size}": partial(processor, size) for size in (1, 40)},
    **{f"aed, canary {beams} beams": partial(canary, beams) for beams in (1, 5)},
}  # fmt: skip


def work(tree: str, threads: int) -> None:
    """Run the case that each line of the input names: JSON lines with seconds and the peak of memory."""
    sys.path[:0] = [tree]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    import hf_ngpulm

    assert Path(hf_ngpulm.__file__).is_relative_to(Path(tree)), hf_ngpulm.__file__
    import measure
    import torch

    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    calls: dict[str, Call] = {}
    for case in map(str.strip, sys.stdin):
        try:
            if case not in calls:
                calls[case] = CASES[case]()
            answer: dict[str, Any] = {"seconds": measure.seconds_of(calls[case])}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        answer["peak"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps(answer), file=answers, flush=True)


class Worker:
    """A process with one version."""

    def __init__(self, tree: Path, threads: int) -> None:
        script = f"import sys; sys.path.insert(0, {str(HERE)!r}); import turns; turns.work({str(tree.resolve())!r}, {threads})"
        command = [sys.executable, "-c", script]
        environment = os.environ | {"OMP_NUM_THREADS": str(threads), "TRANSFORMERS_VERBOSITY": "error"}
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen(command, **pipes, text=True, env=environment)

    def ask(self, case: str) -> dict[str, Any]:
        assert self.process.stdin is not None and self.process.stdout is not None
        print(case, file=self.process.stdin, flush=True)
        answer = json.loads(self.process.stdout.readline() or '{"error": "the process has died"}')
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer


def compare(case: str, workers: list[Worker], seconds: float) -> dict[str, Any]:
    """Return the figures of one case in two processes."""
    first = [worker.ask(case)["seconds"] for worker in workers]
    turns = max(5, min(40, round(seconds / sum(worker.ask(case)["seconds"] for worker in workers))))
    found: list[list[float]] = [[], []]
    for turn in range(turns):
        for which in (0, 1) if turn % 2 else (1, 0):
            answer = workers[which].ask(case)
            found[which].append(answer["seconds"])
    before, after = map(statistics.median, found)
    row = {"case": case, "before_ms": 1e3 * before, "after_ms": 1e3 * after, "ratio": after / before, "turns": turns}
    row["ratio_of_least"] = min(found[1]) / min(found[0])
    row |= {"first_before_s": first[0] - before, "first_after_s": first[1] - after}
    return row | dict(zip(("peak_before_mib", "peak_after_mib"), (worker.ask(case)["peak"] for worker in workers)))


def main() -> None:
    import measure

    parser = measure.arguments(__doc__, "turns")
    parser.add_argument("before", type=Path, help="a checkout of another version")
    parser.add_argument("--after", type=Path, default=measure.ROOT)
    parser.add_argument("--cases", nargs="*", default=[""], help="only those whose names contain one of these")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each case, about")
    parser.add_argument("--memory", action="store_true", help="processes of its own for each case")
    args = parser.parse_args()
    rows, workers = [], []
    for case in [case for case in CASES if any(part in case for part in args.cases)]:
        if args.memory or not workers:
            for worker in workers:
                worker.process.communicate()
            workers = [Worker(tree, args.threads) for tree in (args.before, args.after)]
        try:
            rows.append(compare(case, workers, args.seconds))
        except RuntimeError as error:
            rows.append({"case": case, "error": str(error)})
        print(json.dumps(rows[-1]), flush=True)
    for worker in workers:
        worker.process.communicate()
    header = ["case", "before_ms", "after_ms", "ratio", "ratio_of_least", "first_before_s", "first_after_s"]
    header += ["peak_before_mib", "peak_after_mib"] if args.memory else []
    print(measure.table(header, [[row.get(name, "") for name in header] for row in rows]))
    print("results in", measure.save(args.name, {"threads": args.threads, "rows": rows}, args.out))


if __name__ == "__main__":
    main()
