"""`NGramLM.train`: from every kind of text to a model that can be saved, and what it says of bad text."""

from __future__ import annotations

import gzip
import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from speech_models import whisper_parts
from tokenizers import Tokenizer, models
from torch import nn
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from hf_ngpulm import NGramFormatError, NGramLM
from hf_ngpulm.common.bundled import bundled
from hf_ngpulm.language_model.training import train
from hf_ngpulm.text import begins_with_blank, read_ids, read_texts, with_blank

DATA = Path(__file__).parents[1] / "data" / "lmplz"
TEXTS = (bundled("examples/speech/harbour") / "text.txt").read_text().splitlines()[:1500]


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(bundled("examples/models/ctc"))


def same(first, second):
    return all(torch.equal(one, other) for one, other in zip(first.tensors, second.tensors))


def test_from_texts_equal_to_lmplz(tokenizer):
    lm = NGramLM.train(TEXTS, tokenizer=tokenizer, order=6)
    theirs = NGramLM.from_arpa(DATA / "demo_o6.arpa.gz", tokenizer, units="id")
    assert lm.num_ngrams == theirs.num_ngrams
    rows = tokenizer(TEXTS[:200], add_special_tokens=False)["input_ids"]
    ours, wanted = (torch.tensor([score for score, _ in model.score_texts(rows)]) for model in (lm, theirs))
    torch.testing.assert_close(ours, wanted, atol=1e-3, rtol=1e-5)


def test_the_tokenizer_may_be_named(tokenizer):
    named = NGramLM.train(TEXTS[:50], tokenizer=str(bundled("examples/models/ctc")), order=2)
    for ours, theirs in zip(named.buffers(), NGramLM.train(TEXTS[:50], tokenizer=tokenizer, order=2).buffers(), strict=True):
        assert torch.equal(ours, theirs)


def test_every_kind_of_input_gives_the_same(tokenizer, tmp_path):
    datasets = pytest.importorskip("datasets")
    texts = TEXTS[:400]
    wanted = NGramLM.train(texts, tokenizer=tokenizer, order=4)
    dataset = datasets.Dataset.from_dict({"text": texts, "sentence": ["x"] * len(texts)})
    ids = tokenizer(texts, add_special_tokens=False)["input_ids"]
    size = wanted.vocab_size
    (tmp_path / "text.ids").write_text("".join(" ".join(map(str, row)) + "\n" for row in ids))
    others = [
        NGramLM.train(iter(texts), tokenizer=tokenizer, order=4),
        NGramLM.train(dataset, tokenizer=tokenizer, order=4),
        NGramLM.train(dataset["text"], tokenizer=tokenizer, order=4),
        NGramLM.train([{"words": text} for text in texts], tokenizer=tokenizer, order=4, field="words"),
        NGramLM.train(ids, vocab_size=size, order=4),
        NGramLM.train(map(np.array, ids), vocab_size=size, order=4),
        NGramLM.train(map(torch.tensor, ids), tokenizer=tokenizer, order=4),
        NGramLM(train(read_ids([tmp_path / "text.ids"]), vocab_size=size, order=4).parts),
        NGramLM.train([text.upper() for text in texts], tokenizer=tokenizer, order=4, normalise="lower"),
        NGramLM.train(texts, tokenizer=tokenizer, order=4, memory=1, engine="reference"),
    ]
    for other in others:
        assert same(other, wanted)
    assert wanted.config.tokenizer_fingerprint == others[6].config.tokenizer_fingerprint


def test_texts_without_words_count_as_for_lmplz(tokenizer, tmp_path):
    """As for lmplz, which counts `<s> </s>` for a blank line; whatever the texts come from."""
    texts = [*TEXTS[:200], "", *TEXTS[200:300], " ", ""]
    (tmp_path / "a.txt").write_text("\n".join(texts) + "\n")
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts))
    ids = tokenizer([text.strip() for text in texts], add_special_tokens=False)["input_ids"]
    (tmp_path / "a.ids").write_text("".join(" ".join(map(str, row)) + "\n" for row in ids))
    wanted = NGramLM.train(ids, tokenizer=tokenizer, order=3)
    assert wanted.config.training.num_sentences == 303
    start = wanted.starts[:1]
    without = NGramLM.train([row for row in ids if row], tokenizer=tokenizer, order=3)
    assert wanted.num_ngrams == (without.num_ngrams[0], without.num_ngrams[1] + 1, without.num_ngrams[2])  # <s> </s>
    assert float(wanted.final_scores(start)) > float(without.final_scores(start)) + 0.5
    for found in (
        NGramLM.train(texts, tokenizer=tokenizer, order=3),
        NGramLM.train(read_texts([tmp_path / "a.txt"]), tokenizer=tokenizer, order=3),
        NGramLM.train(read_texts([tmp_path / "a.jsonl"]), tokenizer=tokenizer, order=3),
        NGramLM(train(read_ids([tmp_path / "a.ids"]), vocab_size=wanted.vocab_size, order=3).parts),
    ):
        assert same(found, wanted)


def test_texts_without_words_by_hand(tokenizer):
    """Three sentences, of which two are empty: three `</s>` among six unigrams, with the discounts' fallback."""
    lm = NGramLM.train(["", "call", ""], tokenizer=tokenizer, order=1)
    tokens = tokenizer("call", add_special_tokens=False)["input_ids"]
    assert lm.config.training.num_sentences == 3 and len(set(tokens)) == 3
    # (3 - D3+) / 6, and of the (D3+ + 3 * D1) / 6 that discounts leave a fifth: uniform over these four and <unk>.
    assert float(lm.final_scores(lm.roots).exp()) == pytest.approx((3 - 1.5) / 6 + (1.5 + 3 * 0.5) / 6 / 5)
    table, words = train(["a b", "", " ", "a"], tokenizer, unit="word", order=2).of_words
    assert words == ["a", "b"]
    bigrams = [tuple(row) for row in table.rows(2).tolist()]
    assert (2, 3) in bigrams  # <s> </s>, which only the empty sentences have


def test_saved_with_its_story(tokenizer, tmp_path):
    lm = NGramLM.train(TEXTS, tokenizer=tokenizer, order=3, prune=(0, 0, 1), valid=TEXTS[:50])
    lm.save_pretrained(tmp_path)
    again = NGramLM.from_pretrained(tmp_path)
    assert again.config == lm.config and same(again, lm)
    summary = again.config.training
    assert (summary.num_sentences, summary.prune, len(summary.discounts)) == (1500, (0, 0, 1), 3)
    assert summary.num_counted[2] > lm.num_ngrams[2]
    assert summary.perplexity_per_token == pytest.approx(lm.perplexity(TEXTS[:50], tokenizer).per_token)
    card = (tmp_path / "README.md").read_text()
    assert "| text | 1,500 sentences" in card and "| validation perplexity |" in card


@pytest.mark.parametrize(
    ("entry", "value"),
    [("num_sentences", -1), ("prune", "0 1"), ("discounts", [[1, 2]]), ("max_ngrams", "all"), ("num_tokens", True)],
)
def test_a_broken_story_is_refused(tmp_path, entry, value):
    NGramLM.train([[0]], vocab_size=3, order=2).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["training"][entry] = value
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(NGramFormatError, match=f"training.{entry} should be"):
        NGramLM.from_pretrained(tmp_path)
    config["training"] = "long"
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(NGramFormatError, match="training should be an object"):
        NGramLM.from_pretrained(tmp_path)


def test_train_is_another_name_of_from_texts():
    expected = NGramLM.from_texts([[0, 1]], vocab_size=2, order=2).to_table()
    for lm in (NGramLM.train([[0, 1]], vocab_size=2, order=2), NGramLM.train(texts=[[0, 1]], vocab_size=2, order=2)):
        assert all(torch.equal(ours.log_probs, theirs.log_probs) for ours, theirs in zip(lm.to_table().orders, expected.orders))


def test_modules_can_still_be_put_into_training_mode():
    lm = NGramLM.train([[0, 1]], vocab_size=2, order=2)
    assert not lm.eval().training
    assert lm.train().training and not lm.train(False).training
    network = nn.Sequential(lm)
    assert not network.eval()[0].training and network.train()[0].training


def test_what_the_tokenizer_cannot_write(tokenizer, caplog):
    training = train(["number 9 please", "number 9"], tokenizer=tokenizer, order=2)
    assert training.parts.config.training.num_unknown == 2
    assert "the tokenizer can't write 2 places of the text: '9' (2 times)" in caplog.text
    assert training.warnings and training.unknown == {"9": 2}


def full_width(text):
    return "".join(chr(ord(c) + 0xFEE0) if c.isalpha() else c for c in text)


@pytest.mark.parametrize(
    ("change", "given", "named", "remedy"),
    [
        (str.upper, None, "'SET' (2 times)", "pass normalise='lower' (--normalise lower), which leaves 0% unknown"),
        (str.upper, "nfc", "'SET'", "(--normalise nfc,lower), which leaves 0% unknown"),
        (str.upper, [str.strip], "'SET'", "normalise='lower' beside yours (--normalise lower), which leaves 0% unknown"),
        (full_width, None, "'ｓｅｔ'", "(--normalise nfkc), which leaves 0% unknown"),
        (lambda text: text.replace(" ", "!! ? "), None, "'!!'", "(--normalise no-punctuation), which leaves 0% unknown"),
        (lambda text: "".join("Ж" if c.isalpha() else c for c in text), None, "'ЖЖЖ'", "text of its language?"),
    ],
)  # fmt: skip
def test_text_most_of_which_the_tokenizer_cannot_write_is_refused(change, given, named, remedy, tokenizer):
    """Most of the n-grams would be left out; that is no language model, and what mends it is said."""
    texts = [change(text) for text in ("set an alarm", "set a course for the harbour")]
    with pytest.raises(ValueError, match=r"of the text's .* tokens are unknown") as error:
        NGramLM.train(texts, tokenizer=tokenizer, order=2, normalise=given)
    assert named in str(error.value) and "allow_unknown=True" in str(error.value) and str(error.value).endswith(remedy)
    assert NGramLM.train(texts, tokenizer=tokenizer, order=2, normalise=given, allow_unknown=True).config.training.num_unknown


def test_characters_that_a_tokenizer_drops_are_unknown_too():
    dropping = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE({"a": 0, "b": 1}, [])))
    assert NGramLM.train(["ab ab"], tokenizer=dropping, order=1).config.training.num_tokens
    for text in ("ab AB", "AB"):
        with pytest.raises(ValueError, match=r"are unknown .*--normalise lower\), which leaves 0% unknown$"):
            NGramLM.train([text], tokenizer=dropping, order=1)


def test_text_unlike_the_recognisers(tokenizer, caplog):
    NGramLM.train(["SET AN ALARM"], tokenizer=tokenizer, order=2, allow_unknown=True)
    assert "normalise the text with 'lower'" in caplog.text
    caplog.clear()
    NGramLM.train(TEXTS[:20], tokenizer=tokenizer, order=2, outputs=["Set an alarm.", "Play Jazz!"])
    assert "mixed case" in caplog.text


def test_fitting_text_is_not_complained_about(tokenizer, caplog):
    with caplog.at_level(logging.WARNING):
        NGramLM.train(TEXTS, tokenizer=tokenizer, order=3)
    assert not caplog.records


@pytest.mark.parametrize(
    ("texts", "settings", "message"),
    [
        ([], {"vocab_size": 3}, "no sentence was given"),
        (["a"], {"vocab_size": 3}, "texts need the ASR model's tokenizer"),
        ("just one text", {"vocab_size": 3}, "got the single text 'just one text'"),
        ([[0, 1], "a"], {"vocab_size": 3}, "strings, or lists of token ids"),
        ([[0.5]], {"vocab_size": 3}, "strings, or lists of token ids"),
        ([[3]], {"vocab_size": 3}, "token id 3 is outside the vocabulary 0..2"),
        ([{"txt": "a"}], {"vocab_size": 3}, "no field 'text', but 'txt'"),
        ([[0]], {}, "tokenizer=.*vocab_size="),
        ([[0]], {"vocab_size": 3, "order": 13}, "order should be a whole number from 1 to 12, got 13"),
        ([[0]], {"vocab_size": 3, "order": 0}, "order should be a whole number from 1 to 12, got 0"),
        ([[0]], {"vocab_size": 3, "order": "6"}, "order should be a whole number from 1 to 12, got .6."),
        ([[0]], {"vocab_size": 3, "prune": (0, 2, 1)}, "may not fall"),
        ([[0]], {"vocab_size": 3, "memory": "lots"}, "memory should be a size"),
        ([[0]], {"vocab_size": 3, "limit_vocabulary": [7]}, "token id 7, outside the vocabulary 0..2"),
        ([[0]], {"vocab_size": 3, "max_ngrams": 1}, "max_ngrams=1 is below"),
        ([[0]], {"vocab_size": 3, "discount_fallback": None}, "no discounts can be computed"),
        ([[0]], {"vocab_size": 3, "valid": []}, "perplexity needs at least one text"),
    ],
)
def test_bad_input(texts, settings, message):
    with pytest.raises(ValueError, match=message):
        NGramLM.train(texts, **settings)


def test_texts_without_a_token(tokenizer):
    with pytest.raises(ValueError, match="no sentence was given"):
        NGramLM.train(["", "   "], tokenizer=tokenizer)


def test_only_unknown_pieces(tokenizer):
    lm = NGramLM.train(["9", "99 9"], tokenizer=tokenizer, order=3, allow_unknown=True)
    assert lm.num_ngrams[0] >= 2
    assert lm.perplexity(["set"], tokenizer).per_token > 1


def test_a_limited_vocabulary():
    lm = NGramLM.train([[0, 1, 2], [2, 1]], vocab_size=3, order=2, limit_vocabulary=[0, 2])
    assert lm.unk_tokens.tolist() == [1]


def test_progress_bars(capsys):
    NGramLM.train([[0, 1]], vocab_size=2, order=2, max_ngrams=6, valid=[[0]], progress=True)
    shown = capsys.readouterr().err
    for stage in ("counting", "merging", "estimating", "pruning", "building", "validating"):
        assert f"{stage}: 100%" in shown
    NGramLM.train([[0, 1]], vocab_size=2, order=2)
    assert capsys.readouterr().err == ""


@pytest.mark.slow
def test_two_processes_count_what_one_does(tmp_path):
    path = tmp_path / "all.ids"
    with gzip.open(DATA / "demo.ids.gz", "rt") as file:
        path.write_text(file.read() * 3)
    rows = [list(map(int, line.split())) for line in path.read_text().splitlines()]
    script = tmp_path / "count.py"
    script.write_text(
        "import sys\n"
        "from accelerate import Accelerator\n"
        "from hf_ngpulm import NGramLM\n"
        "accelerator = Accelerator(cpu=True)\n"
        "assert accelerator.num_processes == 2\n"
        "rows = [list(map(int, line.split())) for line in open(sys.argv[1])]\n"
        "lm = NGramLM.train(rows, vocab_size=256, order=4, prune=(0, 0, 1), accelerator=accelerator, memory=1)\n"
        "lm.save_pretrained(f'{sys.argv[2]}/{accelerator.process_index}')\n"
    )
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "ACCELERATE_USE_CPU": "true",
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--standalone", str(script)]
    done = subprocess.run([*command, str(path), str(tmp_path)], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    wanted = NGramLM.train(rows, vocab_size=256, order=4, prune=(0, 0, 1))
    for rank in range(2):
        found = NGramLM.from_pretrained(tmp_path / str(rank))
        assert same(found, wanted)
        assert found.config == wanted.config


def test_sentences_begin_with_a_blank_as_whisper_writes(tmp_path):
    tokenizer = whisper_parts(tmp_path / "vocabulary.json")["tokenizer"]
    texts = ["can i get tea", "can i get a latte", " i can"] * 4
    ids = {
        blank: tokenizer([blank + text.strip() for text in texts], add_special_tokens=False).input_ids for blank in ("", " ")
    }
    assert ids[""] != ids[" "]
    for leading_blank, wanted in ((None, " "), (True, " "), (False, "")):
        lm = NGramLM.train(texts, tokenizer, order=3, leading_blank=leading_blank, valid=texts)
        of_ids = NGramLM.train(ids[wanted], vocab_size=lm.vocab_size, order=3)
        assert same(lm, of_ids) and lm.config.training.leading_blank == (wanted == " ")
        lm.save_pretrained(tmp_path / "lm")
        for model in (lm, NGramLM.from_pretrained(tmp_path / "lm")):
            assert model.score_texts([text.strip() for text in texts], tokenizer) == model.score_texts(ids[wanted])
        assert lm.config.training.perplexity_per_token == pytest.approx(lm.perplexity(ids[wanted]).per_token)
    lm = NGramLM.train(texts, tokenizer, order=3)
    assert NGramLM.interpolate([lm, lm], [0.5, 0.5]).score_texts(texts, tokenizer)[0][1] == ids[" "][0]


def test_no_blank_begins_what_is_written_without_blanks(tokenizer):
    assert [with_blank(text) for text in ("tea", " tea", "", "茶", "ชา", "차")] == [" tea", " tea", "", "茶", "ชา", " 차"]
    assert not begins_with_blank(tokenizer)


def test_a_leading_blank_of_token_ids_is_refused():
    with pytest.raises(ValueError, match="leading_blank is for texts"):
        NGramLM.train([[1, 2, 3]], vocab_size=8, order=2, leading_blank=True)


SPOKEN = ["Set a course, Jim.", "TURN to port!", "I am the well-known captain"] * 10
WRITTEN = ["set a course jim", "turn to port", "i am the well known captain"] * 10


@pytest.mark.parametrize("options", [{"order": 3}, {"order": 2, "unit": "word"}])
def test_texts_in_the_style_of_a_recogniser(tokenizer, options, caplog):
    caplog.set_level(logging.INFO)
    wanted = NGramLM.train(WRITTEN, tokenizer, valid=WRITTEN, **options)
    name = str(bundled("examples/models/ctc"))
    for style in ({"style_of": tokenizer}, {"style_of": name}, {"style_of": name, "outputs": iter(WRITTEN)}):
        caplog.clear()
        found = train(iter(SPOKEN), tokenizer, valid=SPOKEN, **style, **options)
        assert same(NGramLM(found.parts), wanted) and found.warnings == ()
        assert [line.split(",")[0] for line in found.adapted] == [
            "small letters: 30 of 30 texts",
            "no punctuation: 20 of 30 texts",
            "no hyphens: 10 of 30 texts",
        ][: len(found.adapted)]
        assert all(line in caplog.messages for line in found.adapted)
        assert found.parts.config.training.perplexity_per_token == wanted.config.training.perplexity_per_token
    assert train(WRITTEN, tokenizer, style_of=tokenizer, **options).adapted == ()
    of_transcripts = train(WRITTEN, tokenizer, style_of=["Set a course.", "Jim is"] * 3, **options)
    assert of_transcripts.adapted[0].startswith("capitals: 30 of 30 texts, such as 'set a course jim' -> 'Set a course jim'")


def test_a_style_that_can_not_be_had(tokenizer):
    with pytest.raises(ValueError, match="style_of is for texts; token ids were given"):
        NGramLM.train([[1, 2, 3]], vocab_size=8, order=2, style_of=tokenizer)
    with pytest.raises(ValueError, match="language says of what language numbers are; pass style_of too"):
        NGramLM.train(WRITTEN, tokenizer, language="en")
    with pytest.raises(ValueError, match="the list of the recogniser's transcripts is empty"):
        NGramLM.train(WRITTEN, tokenizer, style_of=tokenizer, outputs=[])


def test_numbers_in_the_style_of_a_recogniser(tokenizer):
    pytest.importorskip("num2words")
    texts = ["steer 21 degrees", "twelve hands"] * 10
    found = train(texts, tokenizer, order=2, style_of=tokenizer, language="en")
    assert same(NGramLM(found.parts), NGramLM.train(["steer twenty one degrees", "twelve hands"] * 10, tokenizer, order=2))
    found = train(texts, tokenizer, order=2, style_of=tokenizer)
    assert any("known in English only; if the text is English, say so" in line for line in found.warnings)
