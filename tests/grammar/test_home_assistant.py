"""Home Assistant's sentences compiled to tokens."""

from __future__ import annotations

import json
import random
from itertools import islice
from pathlib import Path

import pytest
import torch
from grammar_sentences import sentences
from transformers import Wav2Vec2CTCTokenizer

from hf_ngpulm import Grammar
from hf_ngpulm.grammar.templates import read_templates

HOUSE = {"name": ["alpha", "beta gamma"], "area": ["delta"], "floor": ["epsilon"]}


@pytest.mark.slow
@pytest.mark.parametrize("language", ["kw", "gu", "lb"])
def test_sentences_are_in_the_compiled_grammar(language, tmp_path):
    home_assistant = pytest.importorskip("home_assistant_intents")
    path = Path(home_assistant.__file__).parent / "data" / f"{language}.json"
    rules = read_templates(json.loads(path.read_text(encoding="utf-8")), HOUSE)
    grammar = Grammar.of_rules(rules)
    texts = [each.text for each in islice(sentences(rules, random.Random(0), ("omega",)), 30)]
    network = grammar._network
    words = {text for symbol in network.symbols if symbol.__class__.__name__ != "Free" for text, _ in network.entries(symbol)}
    letters = sorted(set("".join(words).lower()) - set(" |"))
    (tmp_path / "vocab.json").write_text(json.dumps({each: n for n, each in enumerate(["<pad>", "<unk>", "|", *letters])}))
    tokenizer = Wav2Vec2CTCTokenizer(str(tmp_path / "vocab.json"), bos_token=None, eos_token=None)
    compiled = grammar.compiled(tokenizer, strict=True)
    rows = tokenizer([text.lower() for text in texts] + ["omega delta omega"], add_special_tokens=False).input_ids
    lengths = torch.tensor(list(map(len, rows)))
    ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
    scores = compiled.score_sequences(ids, lengths).tolist()
    assert min(scores[:-1]) > -1 and scores[-1] < -1_000
    assert all(compiled.reading(row) is not None for row in rows[:-1])
