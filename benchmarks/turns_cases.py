"""The calls that turns.py compares: each case makes what it needs, and returns what is timed."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import corpora
import lm_queries
import recognisers
import torch
from transformers import WhisperConfig, WhisperForConditionalGeneration

from hf_ngpulm import NGramLM, NGramLogitsProcessor, PhraseBooster, StreamingDecoder
from hf_ngpulm.formats.arpa import write_arpa
from hf_ngpulm.language_model.training import train

WEIGHT, CHUNK = 0.9, 8
BEAM = {"num_beams": 8}
ALSD, AES = {"strategy": "alsd", "num_beams": 6}, {"strategy": "aes", "num_beams": 6}
TEXT = corpora.text_of("harbour")
Call = Callable[[], Any]


@cache
def heard(model: str) -> Any:
    """Return the bundled clips as a bundled model hears them."""
    return recognisers.Recogniser(model).hear(corpora.load("harbour"), 1)


@cache
def lm_of(model: str) -> Any:
    """Return the clips' LM in a model's tokens."""
    return NGramLM.train(TEXT, heard(model).recogniser.tokenizer, order=6)


@cache
def words_file() -> str:
    """Write an ARPA file of the words of the clips' text, and return its path."""
    path = Path(tempfile.mkdtemp(), "words.arpa")
    table, words = train(TEXT, heard("ctc").recogniser.tokenizer, order=3, unit="word").of_words
    write_arpa(table, path, "piece", words)
    return str(path)


def word_lm(model: str = "ctc", **settings: Any) -> Any:
    """Compose the words of the clips' text with a model's tokens."""
    return NGramLM.from_arpa(words_file(), heard(model).recogniser.tokenizer, units="word", **settings)


def decoder(model: str, lm: Any = None, **settings: Any) -> Any:
    fusion = {"lm": lm_of(model) if lm is None else lm, "lm_weight": WEIGHT}
    fusion |= {"ilm_weight": 0.0} if model != "ctc" else {}
    fusion |= {"num_beams": 1} if "max_active" not in settings else {}
    return heard(model).recogniser.decoder(**{**fusion, **settings})


def decoding(model: str, size: int, lm: Any = None, **settings: Any) -> Call:
    """All clips, in batches."""
    return partial(heard(model).decode, decoder(model, lm, **settings), size)


def forgotten(model: str, size: int, **settings: Any) -> Call:
    """With a model of words that is composed on the fly, and has forgotten what was composed before."""
    lm = word_lm(model, composition="on_the_fly")
    decode = decoding(model, size, lm, **settings)
    return lambda: (lm.forget(), decode())


def streams(model: str, count: int, **settings: Any) -> Call:
    """A hundred chunks of each of some streams."""
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
    words = sorted({word for line in TEXT for word in line.split() if len(word) > 4})
    return [f"{words[i % len(words)]} {words[(7 * i + 3) % len(words)]}" for i in range(count)]


built = cache(partial(lm_queries.build_model, order=6))


def queries(vocab_size: int, query: str, batch_size: int) -> Call:
    lm = built(vocab_size)
    states = lm_queries.states_of(lm, lm_queries.text_of(lm, lm_queries.NGRAMS), batch_size, 0)
    arguments = [states, torch.randint(0, vocab_size, (batch_size,))][: 1 + (query == "step")]
    return lambda: [getattr(lm, query)(*arguments) for _ in range(max(1, 20_000 // (batch_size * 20)))]


def token_ids(sentences: int, vocab_size: int) -> torch.Tensor:
    """Return random token ids `[sentences, 20]`, the first ones most often."""
    return (torch.rand(sentences, 20, generator=torch.Generator().manual_seed(0)) ** 3 * vocab_size).long()


def training(order: int) -> Call:
    return partial(NGramLM.train, token_ids(50_000, 1024).tolist(), vocab_size=1024, order=order)


def arpa() -> Call:
    path = Path(tempfile.mkdtemp(), "lm.arpa")
    built(1024).to_arpa(path, "id")
    return partial(NGramLM.from_arpa, path, vocab_size=1024, units="id")


def processor(batch_size: int) -> Call:
    """Fifty calls of the logits processor on a vocabulary of 51,865, each a token on."""
    ids = token_ids(20_000, 50_257)
    lm = NGramLM.train(ids.tolist(), vocab_size=50_257, order=5)
    layers = dict.fromkeys(("encoder_layers", "decoder_layers", "encoder_attention_heads", "decoder_attention_heads"), 1)
    config = WhisperConfig(vocab_size=51_865, d_model=16, encoder_ffn_dim=16, decoder_ffn_dim=16, **layers)
    fuse = NGramLogitsProcessor(lm, 0.3, model=WhisperForConditionalGeneration(config), start=1)
    scores = torch.randn(batch_size, 51_865)
    tokens = torch.cat([torch.full((batch_size, 1), 50_258), ids[: batch_size * 5].reshape(batch_size, 100)], 1)
    return lambda: [fuse(tokens[:, : 2 + step], scores.clone()) for step in range(50)]


def canary(num_beams: int) -> Call:
    some = heard("canary").of(list(range(16)))
    fusion = {"lm": lm_of("canary"), "lm_weight": 0.4, "num_beams": num_beams}
    return partial(some.decode, some.recogniser.decoder(**fusion), 16)


CTC_SEARCHES = (("ctc", "greedy", {}), ("ctc", "beam 8", BEAM))
CASES: dict[str, Callable[[], Call]] = {
    "lm queries, scores 1": partial(queries, 1024, "scores", 1),
    **{f"lm queries, {query} 32": partial(queries, 1024, query, 32) for query in ("scores", "advance", "step")},
    "lm queries, scores 32 of 51865": partial(queries, 51_865, "scores", 32),
    "arpa, 1100000 ngrams": arpa,
    **{f"train lm, order {order}": partial(training, order) for order in (4, 6)},
    **{f"ctc, greedy batch {size}": partial(decoding, "ctc", size) for size in (1, 16)},
    **{f"ctc beam, 8 batch {size}": partial(decoding, "ctc", size, **BEAM) for size in (1, 16)},
    "ctc beam, 32 batch 16": partial(decoding, "ctc", 16, num_beams=32),
    "words, compose": lambda: partial(word_lm, composition="static"),
    "words, beam 16 batch 16": lambda: decoding("ctc", 16, word_lm(), num_beams=16),
    **{
        f"on the fly, {model} {name} batch {size} forgotten": partial(forgotten, model, size, **settings)
        for model, name, settings in (*CTC_SEARCHES, ("rnnt", "greedy", {}), ("rnnt", "ALSD 6", ALSD))
        for size in (1, 16)
    },
    **{f"graph, tokens batch {size}": partial(decoding, "ctc", size, max_active=64) for size in (1, 16)},
    "graph, words batch 16": lambda: decoding("ctc", 16, word_lm(), max_active=64),
    "phrases, compile 1000": lambda: partial(PhraseBooster, names(1000), heard("ctc").recogniser.tokenizer),
    **{
        f"phrases, 200 {model} {name}": partial(decoding, model, 16, phrases=names(200), phrase_weight=1.0, **settings)
        for model, name, settings in CTC_SEARCHES
    },
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
