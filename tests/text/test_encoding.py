"""Encoding: ids as the tokenizer gives them, what it can't write, and what happens around errors."""

from __future__ import annotations

import json
import threading
from collections import Counter

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast, Wav2Vec2CTCTokenizer

from hf_ngpulm.common.bundled import bundled
from hf_ngpulm.text import encode_texts, encoding


@pytest.fixture(scope="module")
def demo():
    return AutoTokenizer.from_pretrained(bundled("examples/models/ctc"))


@pytest.fixture
def letters(tmp_path):
    """A tokenizer in Python, as wav2vec2 has them: capitals, words parted by `|`."""
    names = ["<pad>", "<s>", "</s>", "<unk>", "|", *"ABCDEFGHIJKLMNOPQRSTUVWXYZ'"]
    (tmp_path / "vocab.json").write_text(json.dumps({name: i for i, name in enumerate(names)}))
    return Wav2Vec2CTCTokenizer(str(tmp_path / "vocab.json"))


@pytest.fixture
def words():
    model = models.WordLevel({"[UNK]": 0, "turn": 1, "on": 2, "off": 3}, unk_token="[UNK]")
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]")


@pytest.fixture
def dropping():
    """Without an unknown token, what isn't in the vocabulary vanishes."""
    tokenizer = Tokenizer(models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")]))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def encode(texts, tokenizer, vocab_size=1000, **settings):
    unknown = Counter()
    rows = []
    for ids, lengths in encode_texts(texts, tokenizer, vocab_size, unknown=unknown, **settings):
        ids = ids.tolist()
        for size in lengths.tolist():
            rows.append(ids[:size])
            ids = ids[size:]
        assert not ids
    return rows, unknown


def test_ids_are_the_tokenizers(demo):
    texts = ["switch on the kitchen light", "what is the weather like", "", "goodbye"]
    rows, unknown = encode(texts, demo, batch_size=2)
    assert rows == [demo(text, add_special_tokens=False)["input_ids"] if text else [] for text in texts]
    assert not unknown


def test_unknown_words(words):
    rows, unknown = encode(["turn on radio", "turn off", "radio tv"], words)
    assert rows == [[1, 2, -1], [1, 3], [-1, -1]]
    assert unknown == {"radio": 2, "tv": 1}


def test_ids_beyond_the_vocabulary(words):
    rows, unknown = encode(["turn off"], words, vocab_size=3)
    assert rows == [[1, -1]]
    assert unknown == {"off": 1}


def test_characters_that_letters_lack(letters):
    rows, unknown = encode(["AB C", "A1Ü"], letters)
    assert rows == [[5, 6, 4, 7], [5, -1, -1]]
    assert unknown == {"1": 1, "Ü": 1}


def test_characters_that_vanish(dropping):
    rows, unknown = encode(["ab xa", "x"], dropping)
    assert rows == [[2, 0], []]
    assert unknown == {"x": 2}


def test_pieces_that_the_demo_lacks(demo):
    _, unknown = encode(["the number 9", "naïve"], demo)
    assert set(unknown) <= {"9", "ï"} and unknown


@pytest.mark.slow
def test_several_processes_give_the_same(letters, monkeypatch):
    monkeypatch.setattr(encoding, "BATCHES_WORTH_PROCESSES", 2)
    texts = [f"{'ABC'[i % 3] * (i % 5)} X" for i in range(40)]
    assert encode(texts, letters, batch_size=5, workers=2)[0] == encode(texts, letters, workers=1)[0]


def test_errors_reach_the_caller(words):
    def texts():
        yield "turn on"
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        list(encode_texts(texts(), words, 10, batch_size=1))


def test_whoever_leaves_stops_the_thread(words):
    closed = threading.Event()

    def texts():
        try:
            while True:
                yield "turn on"
        finally:
            closed.set()

    batches = encode_texts(texts(), words, 10, batch_size=1)
    next(batches)
    batches.close()
    assert not any(thread.name.startswith("encoding") for thread in threading.enumerate())
    assert closed.wait(10)
