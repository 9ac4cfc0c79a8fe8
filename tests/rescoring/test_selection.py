"""Sentences selected by a causal language model, and n-gram models of them."""

from __future__ import annotations

import json
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.causal_lms import causal_lm, letters_tokenizer

from hf_ngpulm import Rescorer
from hf_ngpulm.cli.app import run
from hf_ngpulm.common.bundled import bundled
from hf_ngpulm.rescoring import selected_sentences

PROMPTS = ["the anchor", "in the inner harbour"]
LM = Rescorer(causal_lm(), letters_tokenizer())
TEXTS = st.lists(st.text("aehnrt ", max_size=12), min_size=1, max_size=80)


@given(texts=TEXTS, share=st.floats(0.01, 1), seed=st.integers(0, 3))
def test_it_is_the_cross_entropy_difference(texts, share, seed):
    history = list(PROMPTS)
    random.Random(seed).shuffle(history)
    ours = selected_sentences(LM, texts, PROMPTS, share, seed=seed)
    gain = {text: (LM.score(text, history) - LM.score(text)) / len(LM.tokens(text)) for text in texts}
    assert len(ours) == math.ceil(share * len(texts))
    rest = list(texts)
    for text in ours:  # in the order of the texts
        del rest[: rest.index(text)]
        rest.pop(0)
    left = [gain[text] for text in texts]
    for text in ours:
        left.remove(gain[text])
    assert min(gain[text] for text in ours) >= max(left, default=-math.inf) - 1e-4


def test_bad_input_is_refused():
    for texts, prompts, share, message in (
        (["a"], [" "], 0.5, "no prompts"),
        ([], PROMPTS, 0.5, "no sentences to select from"),
        (["a"], PROMPTS, 0.0, "share should be"),
        (["a"], ["a" * 200], 0.5, "more than 128 tokens"),
        (["a\u4e16"], PROMPTS, 0.5, "has no token for"),
    ):
        with pytest.raises(ValueError, match=message):
            selected_sentences(LM, texts, prompts, share)


def test_train_on_selected_text(tmp_path, capsys):
    LM.model.save_pretrained(tmp_path / "causal")
    LM.tokenizer.save_pretrained(tmp_path / "causal")
    (tmp_path / "domain.txt").write_text("\n".join(PROMPTS))
    texts = [f"{one} the {other}" for one in ("hen", "a tar", "an eater") for other in ("ran", "heather", "harbour", "ear")]
    (tmp_path / "text.txt").write_text("\n".join(texts))
    tokenizer, text = str(bundled("examples/models/ctc")), str(tmp_path / "text.txt")
    arguments = ["train", "--tokenizer", tokenizer, "--output", str(tmp_path / "lm"), "--json", "--order", "2"]
    from_lm = ["--from-lm", str(tmp_path / "causal"), "--prompts", str(tmp_path / "domain.txt")]
    assert run([*arguments, text, *from_lm, "--select", "0.4"]) == 0
    out, err = capsys.readouterr()
    told = json.loads(out.strip().splitlines()[-1])
    assert told["num_sentences"] == 5
    assert "5 of 12 sentences selected; validation perplexity per token" in err
    assert f"{told['perplexity_per_token']:.3f}, with all sentences" in " ".join(err.split())
    for wrong, message in (
        ([text, "--select", "0.4"], "--select and --samples need --from-lm and --prompts"),
        ([*from_lm, "--select", "0.4"], "but there is none: name files"),
        ([text, *from_lm, "--select", "0.4", "--samples", "3"], "give one of them"),
        ([text, *from_lm, "--select", "1.5"], "--select should be a share above 0, at most 1; got 1.5"),
        ([text, *from_lm, "--select", "0.4", "--ray", "auto"], "leave --ray and other processes out"),
    ):
        assert run([*arguments, "--overwrite", *wrong]) != 0
        assert message in " ".join(capsys.readouterr().err.split())
