"""Two versions of the package side by side: the same calls by turns, so that a change of the machine's mood hits both.

    git worktree add ../before COMMIT
    python benchmarks/turns.py ../before --threads 1 --name turns_one_thread

Each version runs in a process of its own, whose `hf_ngpulm` is that of the given checkout; the cases are here, and use what
both have. One call of a case in one process, then one in the other, again and again: medians of the seconds of CPU that the
process has had with one thread, of wall time with more. The first call of each case in a process is told by itself ("first"),
less the median: what is compiled or loaded. With `--memory` each case has processes of its own, and what they take at most is
compared (resident memory, encoders and all).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
CLIPS = ROOT / "examples" / "speech" / "harbour"
MODELS = ROOT / "examples" / "models"
WEIGHT, STREAMS, CHUNK = 0.9, 16, 8
Call = Callable[[], Any]
CASES: dict[str, Callable[[], Call]] = {}


def cases(**named: Callable[[], Call]) -> None:
    CASES.update({name.replace("__", ", ").replace("_", " "): make for name, make in named.items()})


@cache
def lm_of(model: str) -> Any:
    """Return the clips' LM in a bundled model's tokens."""
    from hf_ngpulm import NGramLM

    text = (CLIPS / "text.txt").read_text().splitlines()
    return NGramLM.train(text, processor_of(model).tokenizer, order=6)


@cache
def processor_of(model: str) -> Any:
    from transformers import AutoProcessor

    return AutoProcessor.from_pretrained(MODELS / model)


@cache
def rows_of(model: str) -> tuple[Any, list[Any]]:
    """Return a bundled CTC model or transducer, and of each clip log-probabilities or frames, by length."""
    import soundfile
    import torch
    import transformers

    config = json.loads((MODELS / model / "config.json").read_text())
    loaded = getattr(transformers, config["architectures"][0]).from_pretrained(MODELS / model, dtype=torch.float32).eval()
    processor = processor_of(model)
    rows = []
    for line in (CLIPS / "clips.jsonl").read_text().splitlines():
        audio, rate = soundfile.read(CLIPS / json.loads(line)["audio"], dtype="float32")
        inputs = processor.feature_extractor(audio, sampling_rate=rate, return_tensors="pt", return_attention_mask=True)
        inputs = {name: inputs[name] for name in (loaded.main_input_name, "attention_mask")}
        if model == "ctc":
            rows.append(torch.log_softmax(loaded(**inputs).logits[0], -1))
        else:
            rows.append(loaded.get_audio_features(**inputs).pooler_output[0])
    return loaded, sorted(rows, key=len)


def batches_of(model: str, size: int) -> list[tuple[Any, Any]]:
    import torch

    rows = rows_of(model)[1]
    parts = [rows[first : first + size] for first in range(0, len(rows), size)]
    pad = torch.nn.utils.rnn.pad_sequence
    return [(pad(part, batch_first=True), torch.tensor(list(map(len, part)))) for part in parts]


def all_clips(decode: Callable[[Any, Any], Any], model: str, size: int) -> Call:
    batches = batches_of(model, size)
    return lambda: [[n_best[0].text for n_best in decode(frames, lengths)] for frames, lengths in batches]


def ctc(size: int, words: bool = False, phrases: int = 0, **settings: Any) -> Call:
    from hf_ngpulm import CTCDecoder

    settings = {"num_beams": 1, "lm": word_lm() if words else lm_of("ctc"), "lm_weight": WEIGHT, **settings}
    if phrases:
        settings |= {"phrases": names(phrases), "phrase_weight": 1.0}
    return all_clips(CTCDecoder(processor_of("ctc"), **settings), "ctc", size)


def graph(size: int, words: bool = False, **settings: Any) -> Call:
    from hf_ngpulm import GraphDecoder

    lm = word_lm() if words else lm_of("ctc")
    return all_clips(GraphDecoder(processor_of("ctc"), lm, WEIGHT, **settings), "ctc", size)


def transducer(model: str, size: int, **settings: Any) -> Call:
    from hf_ngpulm import TransducerDecoder

    fusion = {"lm": lm_of(model), "lm_weight": WEIGHT, "ilm_weight": 0.0, "num_beams": 1}
    decoder = TransducerDecoder(rows_of(model)[0], processor_of(model), **{**fusion, **settings})
    return all_clips(decoder.decode, model, size)


def streams(model: str, count: int, **settings: Any) -> Call:
    """A hundred chunks of each of some streams."""
    import torch

    from hf_ngpulm import CTCDecoder, StreamingDecoder, TransducerDecoder

    loaded, rows = rows_of(model)
    settings = {"num_beams": 1, "lm": lm_of(model), "lm_weight": WEIGHT, **settings}
    if model == "ctc":
        decoder: Any = CTCDecoder(processor_of(model), frame_seconds=0.08, **settings)
    else:
        decoder = TransducerDecoder(loaded, processor_of(model), **{"ilm_weight": 0.0, **settings})
    frames = torch.cat(rows)
    stream = StreamingDecoder(decoder, max_streams=count)
    sids = [stream.open() for _ in range(count)]
    starts = torch.linspace(0, len(frames) - 100 * CHUNK - 1, count).long().tolist()

    def call() -> None:
        for step in range(100):
            at = step * CHUNK
            stream.step({sid: frames[first + at : first + at + CHUNK] for sid, first in zip(sids, starts)})

    return call


@cache
def words_file() -> str:
    """Write an ARPA file of the words of the clips' text, and return its path."""
    from hf_ngpulm import NGramLM

    lines = [line.split() for line in (CLIPS / "text.txt").read_text().splitlines()]
    words = sorted({word for line in lines for word in line})
    numbers = {word: number for number, word in enumerate(words)}
    path = Path(tempfile.mkdtemp(), "words.arpa")
    lm = NGramLM.train([[numbers[word] for word in line] for line in lines], vocab_size=len(words), order=3)
    lm.to_arpa(path, "id")
    named = []
    for line in path.read_text().splitlines():
        log_prob, tab, rest = line.partition("\t")
        ngram, tab_again, backoff = rest.partition("\t")
        ngram = " ".join(words[int(token)] if token.isdigit() else token for token in ngram.split(" ")) if tab else ngram
        named.append(log_prob + tab + ngram + tab_again + backoff)
    path.write_text("\n".join(named) + "\n")
    return str(path)


@cache
def word_lm(composition: str | None = None) -> Any:
    from hf_ngpulm import NGramLM

    settings = {} if composition is None else {"composition": composition}
    return NGramLM.from_arpa(words_file(), processor_of("ctc").tokenizer, units="word", **settings)


def composed(composition: str) -> Call:
    def call() -> Any:
        word_lm.cache_clear()
        return word_lm(composition)

    return call


def on_the_fly(beams: int, warm: bool) -> Call:
    from hf_ngpulm import CTCDecoder

    settings: dict[str, Any] = {"num_beams": beams}

    def decoding() -> Call:
        word_lm.cache_clear()
        return all_clips(CTCDecoder(processor_of("ctc"), lm=word_lm("on_the_fly"), lm_weight=WEIGHT, **settings), "ctc", 16)

    if warm:
        return decoding()
    return lambda: decoding()()


def forgotten(model: str, size: int, **settings: Any) -> Call:
    """With a model of words that is composed on the fly, and has forgotten what was composed before."""
    from hf_ngpulm import CTCDecoder, NGramLM, TransducerDecoder

    lm = NGramLM.from_arpa(words_file(), processor_of(model).tokenizer, units="word", composition="on_the_fly")
    settings = {"num_beams": 1, "lm": lm, "lm_weight": WEIGHT, **settings}
    if model == "ctc":
        decode = all_clips(CTCDecoder(processor_of(model), **settings), model, size)
    else:
        decode = all_clips(
            TransducerDecoder(rows_of(model)[0], processor_of(model), ilm_weight=0.0, **settings).decode, model, size
        )

    def call() -> Any:
        lm.forget()
        return decode()

    return call


def names(count: int) -> list[str]:
    """Return pairs of words of the clips' text."""
    words = sorted({word for line in (CLIPS / "text.txt").read_text().splitlines() for word in line.split() if len(word) > 4})
    return [f"{words[i % len(words)]} {words[(7 * i + 3) % len(words)]}" for i in range(count)]


def contexts() -> Call:
    from hf_ngpulm import PhraseBooster

    phrases, tokenizer = names(1000), processor_of("ctc").tokenizer
    return lambda: PhraseBooster(phrases, tokenizer)


def queries(vocab_size: int, query: str, batch_size: int) -> Call:
    import make_arpa
    import numpy as np
    import torch

    lm = built(vocab_size)
    said, _ = make_arpa.random_text(vocab_size, batch_size * 100, np.random.default_rng(1))
    states = lm.states_after(torch.from_numpy(said[said < vocab_size][: batch_size * 20].reshape(batch_size, 20)))
    tokens = torch.randint(0, vocab_size, (batch_size,))
    times = max(1, 20_000 // (batch_size * 20))
    if query == "step":
        return lambda: [lm.step(states, tokens) for _ in range(times)]
    return lambda: [getattr(lm, query)(states) for _ in range(times)]


@cache
def built(vocab_size: int) -> Any:
    import lm_queries

    return lm_queries.build_model(vocab_size, 6)


def training(tokens: int, order: int) -> Call:
    import torch

    from hf_ngpulm import NGramLM

    generator = torch.Generator().manual_seed(0)
    ids = (torch.rand(tokens // 20, 20, generator=generator) ** 3 * 1024).long().tolist()
    return lambda: NGramLM.train(ids, vocab_size=1024, order=order)


def arpa() -> Call:
    from hf_ngpulm import NGramLM

    folder = tempfile.mkdtemp()
    path = Path(folder, "lm.arpa")
    built(1024).to_arpa(path, "id")
    return lambda: NGramLM.from_arpa(path, vocab_size=1024, units="id")


def processor(batch_size: int, steps: int = 50) -> Call:
    """Fifty calls of the logits processor on a vocabulary of 51,865, each a token on."""
    import torch
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    from hf_ngpulm import NGramLM, NGramLogitsProcessor

    generator = torch.Generator().manual_seed(0)
    ids = (torch.rand(20_000, 20, generator=generator) ** 3 * 50_257).long()
    lm = NGramLM.train(ids.tolist(), vocab_size=50_257, order=5)
    config = WhisperConfig(
        vocab_size=51_865, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=1, decoder_attention_heads=1,
        encoder_ffn_dim=16, decoder_ffn_dim=16,
    )  # fmt: skip
    fuse = NGramLogitsProcessor(lm, 0.3, model=WhisperForConditionalGeneration(config), start=1)
    scores = torch.randn(batch_size, 51_865, generator=generator)
    tokens = torch.cat([torch.full((batch_size, 1), 50_258), ids[: batch_size * 5].reshape(batch_size, 100)], 1)
    return lambda: [fuse(tokens[:, : 2 + step], scores.clone()) for step in range(steps)]


def canary(num_beams: int, **settings: Any) -> Call:
    import soundfile
    import torch
    from transformers import pipeline

    import hf_ngpulm  # noqa: F401

    clips = [json.loads(line)["audio"] for line in (CLIPS / "clips.jsonl").read_text().splitlines()[:16]]
    audio = [soundfile.read(CLIPS / clip, dtype="float32")[0] for clip in clips]
    recognise = pipeline(
        "automatic-speech-recognition", model=str(MODELS / "canary"), lm=lm_of("canary"), lm_weight=0.4, batch_size=16,
        torch_dtype=torch.float32, **settings,
    )  # fmt: skip
    return lambda: recognise([dict(raw=a, sampling_rate=16_000) for a in audio], generate_kwargs={"num_beams": num_beams})


ALSD = {"strategy": "alsd", "num_beams": 6}
AES = {"strategy": "aes", "num_beams": 6}
cases(
    lm_queries__scores_1=lambda: queries(1024, "scores", 1),
    lm_queries__scores_32=lambda: queries(1024, "scores", 32),
    lm_queries__advance_32=lambda: queries(1024, "advance", 32),
    lm_queries__step_32=lambda: queries(1024, "step", 32),
    lm_queries__scores_32_of_51865=lambda: queries(51_865, "scores", 32),
    arpa__1100000_ngrams=arpa,
    train_lm__order_4=lambda: training(1_000_000, 4),
    train_lm__order_6=lambda: training(1_000_000, 6),
    ctc__greedy_batch_1=lambda: ctc(1),
    ctc__greedy_batch_16=lambda: ctc(16),
    ctc_beam__8_batch_1=lambda: ctc(1, num_beams=8),
    ctc_beam__8_batch_16=lambda: ctc(16, num_beams=8),
    ctc_beam__32_batch_16=lambda: ctc(16, num_beams=32),
    words__compose=lambda: composed("static"),
    words__beam_16_batch_16=lambda: ctc(16, words=True, num_beams=16),
    on_the_fly__greedy_cold=lambda: on_the_fly(1, False),
    on_the_fly__beam_16_cold=lambda: on_the_fly(16, False),
    on_the_fly__beam_16_warm=lambda: on_the_fly(16, True),
    **{
        f"on_the_fly__{model}_{name}_batch_{size}_forgotten": lambda model=model, size=size, settings=settings: forgotten(
            model, size, **settings
        )
        for model, name, settings in (
            ("ctc", "greedy", {}),
            ("ctc", "beam_8", {"num_beams": 8}),
            ("rnnt", "greedy", {}),
            ("rnnt", "ALSD_6", ALSD),
        )
        for size in (1, 16)
    },
    graph__tokens_batch_1=lambda: graph(1),
    graph__tokens_batch_16=lambda: graph(16),
    graph__words_batch_16=lambda: graph(16, words=True),
    phrases__compile_1000=contexts,
    phrases__200_ctc_greedy=lambda: ctc(16, phrases=200),
    phrases__200_ctc_beam_8=lambda: ctc(16, phrases=200, num_beams=8),
    **{
        f"transducer__{model}_{name}_batch_{size}": lambda model=model, size=size, settings=settings: transducer(
            model, size, **settings
        )
        for model in ("rnnt", "tdt")
        for name, settings in (("greedy", {}), ("ALSD_6", ALSD), ("AES_6", AES))
        for size in (1, 32)
        if (model, name) != ("tdt", "AES_6")
    },
    streaming__ctc_greedy_1=lambda: streams("ctc", 1),
    streaming__ctc_greedy_16=lambda: streams("ctc", STREAMS),
    streaming__ctc_beam_8_16=lambda: streams("ctc", STREAMS, num_beams=8),
    streaming__rnnt_greedy_1=lambda: streams("rnnt", 1),
    streaming__rnnt_greedy_16=lambda: streams("rnnt", STREAMS),
    streaming__rnnt_ALSD_6_16=lambda: streams("rnnt", STREAMS, **ALSD),
    streaming__tdt_greedy_16=lambda: streams("tdt", STREAMS),
    aed__processor_1=lambda: processor(1),
    aed__processor_40=lambda: processor(40),
    aed__canary_greedy=lambda: canary(1),
    aed__canary_5_beams=lambda: canary(5),
)


def work(tree: str, threads: int) -> None:
    """Run the calls that lines of the input ask for: [case, number of calls]."""
    sys.path[:0] = [tree, str(HERE)]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    import torch

    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    import hf_ngpulm

    assert Path(hf_ngpulm.__file__).is_relative_to(Path(tree)), hf_ngpulm.__file__
    clock = time.process_time if threads == 1 else time.perf_counter
    calls: dict[str, Call] = {}
    for line in sys.stdin:
        case, times = json.loads(line)
        answer: dict[str, Any] = {"seconds": []}
        try:
            if case not in calls:
                calls[case] = CASES[case]()
            for _ in range(times):
                begin = clock()
                calls[case]()
                answer["seconds"].append(clock() - begin)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        answer["peak"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps(answer), file=answers, flush=True)


class Worker:
    def __init__(self, tree: Path, threads: int) -> None:
        command = [sys.executable, __file__, "--work", str(tree), "--threads", str(threads)]
        environment = os.environ | {"OMP_NUM_THREADS": str(threads), "TRANSFORMERS_VERBOSITY": "error"}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
        )

    def ask(self, case: str, times: int = 1) -> dict[str, Any]:
        assert self.process.stdin is not None and self.process.stdout is not None
        print(json.dumps([case, times]), file=self.process.stdin, flush=True)
        answer = json.loads(self.process.stdout.readline() or '{"error": "the process has died"}')
        if "error" in answer:
            raise RuntimeError(f"{case}: {answer['error']}")
        return answer

    def stop(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self.process.communicate()


def compare(case: str, workers: list[Worker], seconds: float) -> dict[str, Any]:
    """Return the figures of one case in two processes."""
    first = [worker.ask(case)["seconds"][0] for worker in workers]
    second = [worker.ask(case)["seconds"][0] for worker in workers]
    turns = max(5, min(40, round(seconds / sum(second))))
    found: list[list[float]] = [[], []]
    for turn in range(turns):
        for which in (0, 1) if turn % 2 else (1, 0):
            found[which] += workers[which].ask(case)["seconds"]
    before, after = map(statistics.median, found)
    row = {"case": case, "before_ms": 1e3 * before, "after_ms": 1e3 * after, "ratio": after / before, "turns": turns}
    row["ratio_of_least"] = min(found[1]) / min(found[0])
    row |= {"first_before_s": first[0] - before, "first_after_s": first[1] - after}
    return row | dict(zip(("peak_before_mib", "peak_after_mib"), (worker.ask(case)["peak"] for worker in workers)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, nargs="?", help="a checkout of another version")
    parser.add_argument("--after", type=Path, default=ROOT)
    parser.add_argument("--cases", nargs="*", default=[], help="only those whose names contain one of these")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=8.0, help="of each case, about")
    parser.add_argument("--memory", action="store_true", help="processes of its own for each case")
    parser.add_argument("--name", default="turns", help="name of the result file")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--work", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        work(args.work, args.threads)
        return
    import measure

    rows, workers = [], []
    for case in CASES:
        if args.cases and not any(part in case for part in args.cases):
            continue
        if args.memory or not workers:
            workers = [Worker(tree.resolve(), args.threads) for tree in (args.before, args.after)]
        try:
            rows.append(compare(case, workers, args.seconds))
            print(json.dumps(rows[-1]), flush=True)
        except RuntimeError as error:
            rows.append({"case": case, "error": str(error)})
            print(rows[-1], flush=True)
        if args.memory:
            for worker in workers:
                worker.stop()
    header = ["case", "before_ms", "after_ms", "ratio", "ratio_of_least", "first_before_s", "first_after_s"]
    header += ["peak_before_mib", "peak_after_mib"] if args.memory else []
    print(measure.table(header, [[row.get(name, "") for name in header] for row in rows]))
    print("results in", measure.save(args.name, {"threads": args.threads, "rows": rows}, args.out))


if __name__ == "__main__":
    main()
