"""Encoding: ids as the tokenizer gives them, what it can't write, and what happens around errors."""

from __future__ import annotations

import json
import threading

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast, Wav2Vec2CTCTokenizer

from hf_ngpulm.common.bundled import bundled
from hf_ngpulm.text import TextReport, encode_texts, encoding


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
    report = TextReport()
    rows = []
    for ids, lengths in encode_texts(texts, tokenizer, vocab_size, report=report, **settings):
        ids = ids.tolist()
        for size in lengths.tolist():
            rows.append(ids[:size])
            ids = ids[size:]
        assert not ids
    return rows, report


def test_ids_are_the_tokenizers(demo):
    texts = ["switch on the kitchen light", "what is the weather like", "", "goodbye"]
    rows, report = encode(texts, demo, batch_size=2)
    assert rows == [demo(text, add_special_tokens=False)["input_ids"] if text else [] for text in texts]
    assert (report.num_sentences, report.num_empty, report.num_words) == (3, 1, 11)
    assert report.num_tokens == sum(map(len, rows))
    assert report.num_unknown == 0


def test_unknown_words(words):
    rows, report = encode(["turn on radio", "turn off", "radio tv"], words)
    assert rows == [[1, 2, -1], [1, 3], [-1, -1]]
    assert report.unknown == {"radio": 2, "tv": 1}
    assert report.num_unknown == 3


def test_ids_beyond_the_vocabulary(words):
    rows, report = encode(["turn off"], words, vocab_size=3)
    assert rows == [[1, -1]]
    assert report.unknown == {"off": 1}


def test_characters_that_letters_lack(letters):
    rows, report = encode(["AB C", "A1Ü"], letters)
    assert rows == [[5, 6, 4, 7], [5, -1, -1]]
    assert report.unknown == {"1": 1, "Ü": 1}


def test_characters_that_vanish(dropping):
    rows, report = encode(["ab xa", "x"], dropping)
    assert rows == [[2, 0], []]
    assert report.unknown == {"x": 2}
    assert report.num_empty == 1


def test_pieces_that_the_demo_lacks(demo):
    _, report = encode(["the number 9", "naïve"], demo)
    assert set(report.unknown) <= {"9", "ï"} and report.num_unknown >= 1


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
    assert not any(thread.name == "encoding" for thread in threading.enumerate())
    assert closed.wait(10)
