"""`Phrase`: what is written out is its text, whichever alias or case was heard."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoTokenizer

from hf_ngpulm import CTCDecoder, GraphDecoder, NGramLM, Phrase, PhraseBooster
from hf_ngpulm.common.bundled import bundled
from hf_ngpulm.phrases.phrase import Forms

BLANK = 256


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(bundled("examples/models/ctc"))


def logits_of(tokenizer, text):
    """Logits that say a text clearly, with a blank after each token."""
    ids = [step for token in tokenizer(text)["input_ids"] for step in (token, BLANK)]
    return 10 * torch.nn.functional.one_hot(torch.tensor([ids]), BLANK + 1).float()


@pytest.mark.parametrize(
    ("heard", "written"),
    [
        ("i use n eight n daily", "i use n8n daily"),
        ("Anna, ANNA KOWALSKA!", "Anna, Anna Kowalska!"),
        ("the  kovalska,\nanna kovalska", "the  kovalska,\nAnna Kowalska"),
        ("iphone's iphone", "iphone's iPhone"),
        ("cowalska anna", "cowalska anna"),
        ("", ""),
    ],
)
def test_text_of_the_list_is_written(heard, written):
    phrases = [
        Phrase("n8n", aliases=["n eight n"]),
        Phrase("Anna Kowalska", aliases=["anna kovalska"]),
        Phrase("iPhone"),
        "ANNA",
    ]
    assert Forms.of(phrases).written(heard) == written


def test_a_phrase_s_own_text_counts_before_aliases_and_long_phrases_before_short_ones():
    forms = Forms.of([Phrase("AC DC", aliases=["ac"]), Phrase("Ac"), Phrase("ac dc live")])
    assert forms.written("ac dc live ac") == "ac dc live Ac"
    assert [match.text for match in forms.found(["ac", "dc", "or", "ac"])] == ["AC DC", "Ac"]


@pytest.mark.parametrize("kind", ["greedy", "beam", "graph"])
def test_decoders_write_phrases_with_times_of_what_was_heard(tokenizer, kind):
    settings = {"frame_seconds": 0.1, "lm_guard": "off"}
    lm = NGramLM.from_arpa(bundled("examples/speech/harbour/lm.arpa.gz"), tokenizer, units="id")
    if kind == "graph":
        decoder = GraphDecoder(tokenizer, lm, lm_weight=0.01, frame_seconds=0.1)
    else:
        decoder = CTCDecoder(tokenizer, lm, 0.01, num_beams=1 if kind == "greedy" else 4, **settings)
    logits = logits_of(tokenizer, "call anna kovalska now")
    (plain,) = decoder(logits)[0]
    (found,) = decoder(logits, phrases=[Phrase("Anna Kowalska", aliases=["anna kovalska"])])[0]
    assert found.text == "call Anna Kowalska now"
    assert found.token_ids == plain.token_ids and found.token_frames == plain.token_frames
    assert [word.text for word in found.words] == ["call", "Anna", "Kowalska", "now"]
    assert [word[1:3] for word in found.words] == [word[1:3] for word in plain.words]
    (one,) = decoder(logits, phrases=[Phrase("AK", aliases=["anna kovalska"])])[0]
    assert [word.text for word in one.words] == ["call", "AK", "now"]
    assert one.words[1][1:3] == (plain.words[1].start, plain.words[2].end)


def test_rows_have_their_own_phrases_and_texts_are_written_as_heard(tokenizer):
    logits = logits_of(tokenizer, "call anna").expand(3, -1, -1)
    decoder = CTCDecoder(tokenizer)
    found = decoder(logits, phrases=[[Phrase("Anna")], ["Anna"], None])
    assert [of_row[0].text for of_row in found] == ["call Anna", "call anna", "call anna"]
    assert decoder(logits[:1], phrases=iter([Phrase("ANNA")]))[0][0].text == "call ANNA"


def test_aliases_earn_the_phrase_s_bonus(tokenizer):
    booster = PhraseBooster([Phrase("anna", 2.0, aliases=["hanna"]), ("bert", 1.0)], tokenizer)
    assert booster.phrases == {"anna": 2.0, "hanna": 2.0, "bert": 1.0}


def test_bad_phrases_are_refused(tokenizer):
    for wrong, error in (
        (lambda: Phrase("a", aliases="b"), "list of texts"), (lambda: Phrase("a", float("nan")), "weight of 'a'"),
        (lambda: Phrase("a", threshold=float("nan")), "threshold of 'a'"), (lambda: Phrase(7), "a phrase has a text"),
    ):  # fmt: skip
        with pytest.raises((TypeError, ValueError), match=error):
            wrong()
    with pytest.raises(ValueError, match="phrase 0 is empty"):
        PhraseBooster([Phrase("anna", aliases=[" "])], tokenizer)
