"""Sentences sampled from a causal language model, and n-gram models of them."""

from __future__ import annotations

import json

import pytest
from support.causal_lms import causal_lm, letters_tokenizer

from hf_ngpulm import NGramLM, Rescorer
from hf_ngpulm.cli.app import run
from hf_ngpulm.common.bundled import bundled
from hf_ngpulm.rescoring import sampled_sentences

PROMPTS = ["the anchor", "in the inner harbour", "an hour", ""]
LM = Rescorer(causal_lm(), letters_tokenizer())


def test_sentences_differ_and_are_new():
    found = sampled_sentences(LM, PROMPTS, 40, longest=60)
    assert 0 < len(found) <= 40 and len(set(found)) == len(found)
    assert not set(found) & set(PROMPTS)
    assert all(text == " ".join(text.split()) for text in found)
    assert found == sampled_sentences(LM, PROMPTS, 40, longest=60)
    assert found != sampled_sentences(LM, PROMPTS, 40, longest=60, seed=1)


def test_prompts_guide_the_samples(monkeypatch):
    read = []
    own = LM.model.generate
    monkeypatch.setattr(LM.model, "generate", lambda **kw: read.append(kw) or own(**kw))
    sampled_sentences(LM, PROMPTS, 1, shots=2)
    for row, mask in zip(read[0]["input_ids"], read[0]["attention_mask"]):
        first, *lines = LM.tokenizer.decode(row[mask.bool()]).replace("<s>", "<s>\n").splitlines()
        assert first == "<s>" and len(lines) == 2 and set(lines) <= set(PROMPTS)


def test_bad_input():
    with pytest.raises(ValueError, match="there are no prompts"):
        sampled_sentences(LM, [" "], 1)
    with pytest.raises(ValueError, match="doesn't say where a sentence ends"):
        sampled_sentences(Rescorer(LM.model, LM.tokenizer, end=""), PROMPTS, 1)
    with pytest.raises(ValueError, match="count should be"):
        sampled_sentences(LM, PROMPTS, 0)


def test_train_from_lm(tmp_path, capsys):
    LM.model.save_pretrained(tmp_path / "causal")
    LM.tokenizer.save_pretrained(tmp_path / "causal")
    (tmp_path / "domain.txt").write_text("\n".join(PROMPTS))
    tokenizer, output = str(bundled("examples/models/ctc")), str(tmp_path / "lm")
    arguments = ["train", "--tokenizer", tokenizer, "--output", output, "--json"]
    from_lm = ["--from-lm", str(tmp_path / "causal"), "--prompts", str(tmp_path / "domain.txt"), "--samples", "20"]
    assert run([*arguments, *from_lm, "--allow-unknown"]) == 0
    told = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    assert 0 < told["num_sentences"] <= 20
    assert told["perplexity_per_token"] > 1  # of the prompts
    assert NGramLM.from_pretrained(output).order == 6
    for wrong, message in (
        (from_lm[:2], "--from-lm and --prompts belong together"),
        ([], "there is no text: name files, or a causal language model"),
    ):
        assert run([*arguments, *wrong]) != 0
        assert message in capsys.readouterr().err
