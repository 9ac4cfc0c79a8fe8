import json
import logging
import math

import numpy as np
import pytest
import torch
from arpa_models import BruteForce
from safetensors.torch import load_file, save_file

from hf_ngpulm import NGramFormatError, NGramLM
from hf_ngpulm.formats.arpa import ArpaFile, write_arpa
from hf_ngpulm.language_model.loading import load_language_model
from hf_ngpulm.language_model.training import train
from hf_ngpulm.lexicon import compose
from hf_ngpulm.lexicon.spellings import make_lexicon

COMMANDS = ["play some music", "play the news", "stop the music", "what is the news", "play music"]


@pytest.fixture(params=["letters", "pieces"])
def case(request, texts):
    return request.getfixturevalue(request.param), texts if request.param == "letters" else COMMANDS


@pytest.fixture
def arpa(case, tmp_path):
    """A file of words, and their tokenizer."""
    tokenizer, texts = case
    table, words = train(texts, tokenizer, unit="word", order=2).of_words
    write_arpa(table, tmp_path / "words.arpa", "piece", words)
    return tmp_path / "words.arpa", tokenizer, texts


def by_words(path, text):
    lm, history, total = BruteForce(path.read_text()), ("<s>",), 0.0
    for word in [*text.split(), "</s>"]:
        total += lm.score(history, word) * math.log(10)
        history = (*history, word)
    return total


def test_texts_score_as_their_words_do(arpa):
    path, tokenizer, texts = arpa
    lm = NGramLM.from_arpa(path, tokenizer=tokenizer, units="word")
    found = [score for score, _ in lm.score_texts(texts, tokenizer)]
    expected = [by_words(path, text) for text in texts]
    assert found == pytest.approx(expected, abs=1e-4)
    perplexity = lm.perplexity(texts, tokenizer)
    num_words = sum(len(text.split()) for text in texts)
    assert perplexity.per_word == pytest.approx(math.exp(-sum(expected) / (num_words + len(texts))), rel=1e-5)


def test_units_are_detected(arpa, caplog):
    path, tokenizer, _ = arpa
    with caplog.at_level(logging.WARNING):
        detected = NGramLM.from_arpa(path, tokenizer=tokenizer)
    assert detected.config.unit == "word"
    assert [record for record in caplog.records if "word-level language model" in record.message]
    asked = load_language_model(path, tokenizer)
    assert torch.equal(asked.tensors.arc_weights, detected.tensors.arc_weights)


def test_training_is_counting_and_composing(case, tmp_path):
    tokenizer, texts = case
    training = train(texts, tokenizer, unit="word", order=2, valid=texts[:2])
    table, words = training.of_words
    assert sorted(words) == sorted({word for text in texts for word in text.split()})
    assert training.perplexity.per_word == pytest.approx(NGramLM(training.parts).perplexity(texts[:2], tokenizer).per_word)
    composed = NGramLM(compose(table, words, tokenizer))
    assert torch.equal(composed.tensors.arc_weights, NGramLM(training.parts).tensors.arc_weights)
    assert NGramLM(training.parts).order == 2 and NGramLM(training.parts).num_ngrams == table.num_ngrams
    assert NGramLM.train(texts, tokenizer=tokenizer, unit="word").order == 3


def test_saved_and_loaded(arpa, tmp_path):
    path, tokenizer, texts = arpa
    lm = NGramLM.from_arpa(path, tokenizer=tokenizer, units="word", closed_vocabulary=True, case="keep")
    lm.save_pretrained(tmp_path / "saved")
    config = json.loads((tmp_path / "saved" / "config.json").read_text())
    assert config["unit"] == "word" and config["words"]["closed_vocabulary"] is True
    assert config["words"]["num_words"] == len(ArpaFile(path).words)
    loaded = NGramLM.from_pretrained(tmp_path / "saved")
    assert loaded.config == lm.config and loaded.context_length == lm.context_length
    assert loaded.score_texts(texts, tokenizer) == lm.score_texts(texts, tokenizer)
    card = (tmp_path / "saved" / "README.md").read_text()
    assert "A word-level 2-gram language model" in card and "| unknown words | forbidden |" in card


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("num_words", -1, "words.num_words should be a whole number from 0 to 2147483647, is '-1'"),
        ("case", "title", "words.case should be one of .*, is 'title'"),
        ("unk_token_cost", "much", "words.unk_token_cost should be a number from 0 to 1e.30, is 'much'"),
        ("context_length", 2**20, "its context length is 1048576"),
        ("num_contexts", 2**30, "words.num_contexts is 1073741824, but there are"),
    ],
)
def test_a_config_that_was_tampered_with(arpa, tmp_path, key, value, message):
    path, tokenizer, _ = arpa
    NGramLM.from_arpa(path, tokenizer=tokenizer, units="word").save_pretrained(tmp_path / "saved")
    file, weights = tmp_path / "saved" / "config.json", tmp_path / "saved" / "model.safetensors"
    save_file({name: tensor.clone() for name, tensor in load_file(weights).items()}, weights)  # without a digest of the config
    config = json.loads(file.read_text())
    config["words"][key] = value
    file.write_text(json.dumps(config))
    with pytest.raises(NGramFormatError, match=message):
        NGramLM.from_pretrained(tmp_path / "saved")


def test_what_words_can_not_do(arpa, tmp_path):
    path, tokenizer, _ = arpa
    lm = NGramLM.from_arpa(path, tokenizer=tokenizer, units="word")
    for act in (lambda: lm.to_arpa(tmp_path / "out.arpa"), lambda: lm.prune(max_ngrams=5), lambda: lm.to_table()):
        with pytest.raises(ValueError, match="word-level one composed with a lexicon"):
            act()
    with pytest.raises(ValueError, match="word-level one composed with a lexicon"):
        NGramLM.interpolate([lm, lm], [0.5, 0.5])


def ways(word, ids):
    """All ways to cut a word into pieces."""
    return (
        [[]]
        if not word
        else [[ids[word[:n]], *way] for n in range(1, len(word) + 1) if word[:n] in ids for way in ways(word[n:], ids)]
    )


@pytest.mark.parametrize("cuttings", [1, 3, 64])
def test_words_that_are_cut_in_several_ways(pieces, tmp_path, cuttings):
    """The tokenizer's own and those with the fewest pieces; each scores what the word does."""
    path = tmp_path / "words.arpa"
    table, words = train(COMMANDS, pieces, unit="word", order=2).of_words
    write_arpa(table, path, "piece", words)
    lexicon = make_lexicon(words, pieces, cuttings=cuttings)
    ids = {piece: token for piece, token in pieces.get_vocab().items() if token not in pieces.all_special_ids}
    found = {word: [] for word in words}
    for n, spelling in zip(lexicon.words, np.split(lexicon.tokens, lexicon.offsets[1:-1]), strict=True):
        found[words[n]].append(spelling.tolist())
    lm = NGramLM.from_arpa(path, tokenizer=pieces, units="word", cuttings=cuttings)
    assert lm.config.words.num_spellings == sum(map(len, found.values()))
    expected = by_words(path, "play music")
    for word in words:
        every, own = ways("▁" + word, ids), pieces(word)["input_ids"]
        assert own in found[word] and len(found[word]) == min(cuttings, len(every))
        assert all(way in every for way in found[word])
        others = sorted(len(way) for way in every if way != own)
        assert sorted(len(way) for way in found[word] if way != own) == others[: len(found[word]) - 1]
    for first in found["play"]:
        for second in found["music"]:
            assert float(lm.score_sequences(torch.tensor([[*first, *second]]))[0]) == pytest.approx(expected, abs=1e-4)
    spelled_out = next((way for way in ways("▁music", ids) if way not in found["music"]), None)
    if spelled_out is not None:  # another way is an unknown word
        assert float(lm.score_sequences(torch.tensor([[*found["play"][0], *spelled_out]]))[0]) < expected - 5


def test_letters_are_cut_in_one_way(letters, texts):
    with pytest.raises(ValueError, match="cuttings=2 is for vocabularies of pieces"):
        NGramLM.train(texts, tokenizer=letters, unit="word", order=2, cuttings=2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"cuttings": 0}, "cuttings should be a whole number from 1 to 64, got 0"),
        ({"unk_score_offset": -math.inf}, "unk_score_offset should be a finite number, got -inf; closed_vocabulary=True"),
        ({"unk_token_cost": -1.0}, "unk_token_cost should be a finite number of at least 0, got -1.0"),
        ({"case": "title"}, "case should be one of"),
        ({"lexicon": {}}, "the lexicon is empty"),
        ({"lexicon": ["zzz"]}, r"no word of the lexicon \(such as 'zzz'\) is among the LM's"),
        ({"missing_unigrams": "unk"}, "missing_unigrams='unk' is for tokens"),
        ({"units": "id", "case": "lower"}, "case applies to word-level language models only; .* is token-level"),
    ],
)
def test_what_is_refused(arpa, arguments, message):
    path, tokenizer, _ = arpa
    with pytest.raises(ValueError, match=message):
        NGramLM.from_arpa(path, tokenizer=tokenizer, **{"units": "word", **arguments})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"unit": "piece"}, "unit must be 'token' or 'word', got 'piece'"),
        ({"unit": "word", "limit_vocabulary": [5]}, "limit_vocabulary have a meaning for models of tokens only"),
        ({"case": "lower"}, "case applies to word-level language models only; unit is 'token'; pass unit='word' too"),
        ({"unit": "word", "texts": ["a <unk> b"]}, "'<unk>' as a word"),
        ({"unit": "word", "texts": [[5, 6]]}, "trained on strings"),
        ({"unit": "word", "texts": ["", " "]}, "at least one word"),
        ({"unit": "word", "tokenizer": None, "vocab_size": 9}, "needs the ASR model's tokenizer"),
    ],
)
def test_what_training_refuses(letters, texts, arguments, message):
    with pytest.raises(ValueError, match=message):
        NGramLM.train(**{"texts": texts, "tokenizer": letters, **arguments})


def capitals(path):
    lines = path.read_text().splitlines()
    kept = [line if ("<" in line and " " not in line) or line.startswith("\\") else line.upper() for line in lines]
    text = "\n".join(line.replace("<S>", "<s>").replace("</S>", "</s>").replace("NGRAM", "ngram") for line in kept)
    path.write_text(text + "\n")


def test_capitals(arpa):
    """The case of a model that the tokenizer doesn't write is an error, which names the way out."""
    path, tokenizer, texts = arpa
    expected = NGramLM.from_arpa(path, tokenizer=tokenizer, units="word").score_texts(texts, tokenizer)
    capitals(path)
    for units in ("word", "auto"):
        with pytest.raises(NGramFormatError, match=r'in capitals .* it writes small letters\. Pass case="lower"'):
            NGramLM.from_arpa(path, tokenizer=tokenizer, units=units)
    lm = NGramLM.from_arpa(path, tokenizer=tokenizer, units="word", case="lower")
    assert [s for s, _ in lm.score_texts(texts, tokenizer)] == pytest.approx([s for s, _ in expected], abs=1e-4)


def test_words_of_one_spelling_share_it(arpa):
    """`A` and `a` come to be one word, as likely as both."""
    path, tokenizer, _ = arpa
    text = "\\data\\\nngram 1=5\n\n\\1-grams:\n-0.5\t</s>\n-2\t<unk>\n-0.6\tbad\n-0.7\tBAD\n-0.9\tdad\n\n\\end\\\n"
    path.write_text(text)
    lm = NGramLM.from_arpa(path, tokenizer=tokenizer, units="word", case="lower")
    ((score, _),) = lm.score_texts(["bad"], tokenizer)
    assert math.exp(score) == pytest.approx((10**-0.6 + 10**-0.7) * 10**-0.5, rel=1e-5)
    assert lm.config.words.num_words == 3 and lm.config.words.num_spellings == 2


def test_words_that_can_not_be_spelled(letters, tmp_path, caplog):
    path = tmp_path / "words.arpa"
    rows = ["-0.5\t</s>", "-2\t<unk>", "-0.6\tbad", "-0.7\tzoo", "-0.9\ta|b"]
    path.write_text("\n".join(["\\data\\", f"ngram 1={len(rows)}", "", "\\1-grams:", *rows, "", "\\end\\", ""]))
    with caplog.at_level(logging.WARNING):
        lm = NGramLM.from_arpa(path, tokenizer=letters, units="word")
    assert "2 words can't be written by the tokenizer as one word, such as 'zoo', 'a|b'" in caplog.text
    assert lm.config.words.num_spelled == 1
    path.write_text(path.read_text().replace("bad", "why"))
    with pytest.raises(NGramFormatError, match=r"can't write any of the LM's 3 words, such as 'why', 'zoo', 'a\|b'"):
        NGramLM.from_arpa(path, tokenizer=letters, units="word", case="keep")


class TestLexicons:
    def test_spellings_that_are_given(self, arpa):
        """Token ids, pieces, text, several ways; each scores as the word does."""
        path, tokenizer, _ = arpa
        words = ArpaFile(path).words
        first, second = words[:2]
        ids = tokenizer(second, add_special_tokens=False)["input_ids"]
        ways = {first: [tokenizer.tokenize(first), ids], second: second}
        lexicon = {**{word: [] for word in words}, first: [tokenizer.tokenize(first)], second: ids}
        same = NGramLM.from_arpa(path, tokenizer=tokenizer, units="word", lexicon=lexicon)
        plain = NGramLM.from_arpa(path, tokenizer=tokenizer, units="word")
        assert torch.equal(same.tensors.arc_weights, plain.tensors.arc_weights)
        both = NGramLM.from_arpa(path, tokenizer=tokenizer, units="word", lexicon=ways)
        assert both.config.words.num_spelled == 2 and both.config.words.num_spellings == 2

    def test_a_file(self, arpa, tmp_path):
        path, tokenizer, _ = arpa
        delimiter = " |" if getattr(tokenizer, "word_delimiter_token", None) else ""
        words = ArpaFile(path).words
        lines = [f"{word}\t{' '.join(tokenizer.tokenize(word))}{delimiter}" for word in words]
        (tmp_path / "lexicon.txt").write_text("\n".join(lines))
        found = NGramLM.from_arpa(path, tokenizer=tokenizer, units="word", lexicon=tmp_path / "lexicon.txt")
        plain = NGramLM.from_arpa(path, tokenizer=tokenizer, units="word")
        assert torch.equal(found.tensors.arc_weights, plain.tensors.arc_weights)

    def test_words_that_are_allowed(self, arpa, caplog):
        path, tokenizer, texts = arpa
        word = texts[0].split()[0]
        with caplog.at_level(logging.WARNING):
            lm = NGramLM.from_arpa(path, tokenizer=tokenizer, units="word", lexicon=[word, "qq"], unk_token_cost=2.0)
        assert lm.config.words.num_spelled == 1
        assert "1 words of the lexicon aren't in the language model, such as 'qq'" in caplog.text
        known, unknown = (lm.score_texts([text], tokenizer)[0][0] for text in (word, texts[0].split()[1]))
        assert known > unknown + 10

    @pytest.mark.parametrize(
        ("line", "message"),
        [
            ("bad b a d", "line 1: expected a word, a tab and its pieces, got 'bad b a d'"),
            ("bad\t", "line 1: expected a word, a tab"),
            ("bad\tb @@ d", r"the spelling \['b', '@@', 'd'\] of 'bad' in the lexicon has '@@', which is no piece"),
            (
                "bad\tb | d",
                "of 'bad' in the lexicon should have at least one token, and the delimiter of words at its end only",
            ),
            ("bad\t|", "should have at least one token"),
            ("", "the lexicon is empty"),
        ],
    )
    def test_bad_files(self, letters, texts, tmp_path, line, message):
        table, words = train(texts, letters, unit="word", order=2).of_words
        (tmp_path / "lexicon.txt").write_text(line)
        with pytest.raises(NGramFormatError, match=message):
            compose(table, words, letters, lexicon=tmp_path / "lexicon.txt")

    def test_bad_ids(self, letters, pieces, texts):
        table, words = train(texts, letters, unit="word", order=2).of_words
        with pytest.raises(NGramFormatError, match="has the id 99, which is outside the vocabulary"):
            compose(table, words, letters, lexicon={"bad": [99]})
        within = next(i for i, piece in enumerate(pieces.convert_ids_to_tokens(range(len(pieces)))) if piece == "a")
        with pytest.raises(NGramFormatError, match="should begin with a piece that has the mark"):
            compose(table, words, pieces, lexicon={"bad": [within]})


def test_a_tokenizer_without_words(texts, letters, tmp_path):
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    fast = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({"a": 0, "b": 1, "[UNK]": 2}, unk_token="[UNK]")), unk_token="[UNK]"
    )
    table, words = train(texts, letters, unit="word", order=2).of_words
    with pytest.raises(NGramFormatError, match="doesn't say where words end"):
        compose(table, words, fast)
