"""Language models that are composed on the fly, as users have them: made, saved, loaded, shown, and refused."""

import copy
import dataclasses
import itertools
import json
import logging
import math
import pickle
import tracemalloc

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from hf_ngpulm import CTCDecoder, NGramFormatError, NGramLM, StreamingDecoder
from hf_ngpulm.cli.app import app
from hf_ngpulm.config.word_summary import LARGEST_SCORE
from hf_ngpulm.decoding.graph import GraphDecoder
from hf_ngpulm.formats.arpa import write_arpa
from hf_ngpulm.language_model.training import train
from hf_ngpulm.lexicon import words as lexicon_words
from hf_ngpulm.lexicon.lazy_model import LazyAutomaton
from hf_ngpulm.lexicon.lazy_states import Bonuses
from hf_ngpulm.lexicon.weights import Grades
from hf_ngpulm.ngrams import NGramTable

SENTENCES = ["a bad cab", "abba had a cab", "dad fed a bad cab", "cab", "fff a", ""]


@pytest.fixture(scope="module")
def arpa(letters, texts, tmp_path_factory):
    path = tmp_path_factory.mktemp("words") / "words.arpa"
    table, words = train(texts, letters, unit="word", order=3).of_words
    write_arpa(table, path, "piece", words)
    return path


def both(arpa, tokenizer, **how):
    return (NGramLM.from_arpa(arpa, tokenizer, units="word", composition=c, **how) for c in ("static", "on_the_fly"))


def scores(lm, tokenizer):
    return lm.score_texts(SENTENCES, tokenizer)


@pytest.mark.parametrize("kind", ["letters", "pieces"])
@pytest.mark.parametrize("how", [{}, {"closed_vocabulary": True}, {"unk_score_offset": -3.0, "unk_token_cost": 0.5}])
def test_saved_and_loaded(arpa, request, kind, how, tmp_path):
    tokenizer = request.getfixturevalue(kind)
    static, lazy = both(arpa, tokenizer, **how)
    lazy.save_pretrained(tmp_path)
    loaded = NGramLM.from_pretrained(tmp_path)
    assert isinstance(loaded.automaton, LazyAutomaton)
    assert loaded.config == lazy.config
    assert loaded.pieces == static.pieces
    assert scores(loaded, tokenizer) == scores(lazy, tokenizer) == scores(static, tokenizer)
    assert torch.equal(loaded.unk_tokens, static.unk_tokens)
    assert loaded.perplexity(SENTENCES, tokenizer) == static.perplexity(SENTENCES, tokenizer)
    assert "on the fly" in (tmp_path / "README.md").read_text()


def test_bonuses_for_words(arpa, letters, texts, tmp_path):
    made = {}
    for composition in ("static", "on_the_fly"):
        table, words = train(texts, letters, unit="word", order=3).of_words
        made[composition] = NGramLM(lexicon_words.compose(table, words, letters, word_bonus=1.5, composition=composition))
    static, lazy = made.values()
    lazy.save_pretrained(tmp_path)
    for lm in (lazy, NGramLM.from_pretrained(tmp_path), pickle.loads(pickle.dumps(lazy)), copy.deepcopy(lazy)):
        rows = torch.tensor([letters(text)["input_ids"] for text in ("a bad cab", "fedcab ab")])
        assert torch.equal(lm.score_tokens(rows)[0], static.score_tokens(rows)[0])
        found, expected = ([score for score, _ in scores(each, letters)] for each in (lm, static))
        assert found == pytest.approx(expected, abs=1e-5)  # texts score without it


def test_large_models_are_composed_on_the_fly(arpa, letters, monkeypatch, caplog):
    assert not isinstance(NGramLM.from_arpa(arpa, letters, units="word"), LazyAutomaton)
    monkeypatch.setattr(lexicon_words, "MOST_STATIC_NGRAMS", 20)
    with caplog.at_level(logging.INFO, "hf_ngpulm"):
        lm = NGramLM.from_arpa(arpa, letters, units="word")
    assert isinstance(lm.automaton, LazyAutomaton)
    assert sum('composition="static"' in record.message for record in caplog.records) == 1
    with pytest.raises(ValueError, match="composition should be one of"):
        NGramLM.from_arpa(arpa, letters, units="word", composition="lazy")


def test_commands(arpa, letters, tmp_path):
    letters.save_pretrained(tmp_path / "tokenizer")
    run = CliRunner()
    converted = run.invoke(
        app,
        ["convert", str(arpa), str(tmp_path / "lm"), "--tokenizer", str(tmp_path / "tokenizer"), "--unit", "word",
         "--composition", "on_the_fly"],
    )  # fmt: skip
    assert converted.exit_code == 0, converted.output
    shown = run.invoke(app, ["info", str(tmp_path / "lm"), "--json"])
    facts = json.loads(shown.stdout)
    assert facts["words"]["composition"] == "on_the_fly"
    assert facts["nbytes"] > 0
    scored = run.invoke(app, ["info", str(tmp_path / "lm")])
    assert "composition" in scored.stdout


def test_what_needs_the_whole_says_so(arpa, letters):
    _, lazy = both(arpa, letters)
    with pytest.raises(ValueError, match='composition="static"'):
        GraphDecoder(letters, lazy)
    for call in (
        lambda: lazy.prune(3),
        lambda: lazy.to_arpa("x.arpa"),
        lambda: NGramLM.interpolate([lazy] * 2, [0.5, 0.5]),
    ):
        with pytest.raises(ValueError, match="word-level"):
            call()


def test_states_that_are_none(arpa, letters):
    _, lazy = both(arpa, letters)
    for state in (-1, 1, 2 * lazy.automaton.states.num_states):
        with pytest.raises(IndexError, match=f"state {state} in row 1"):
            lazy.scores(torch.tensor([0, state]))


def test_forgetting(arpa, letters):
    static, lazy = both(arpa, letters)
    expected = scores(static, letters)
    first = lazy.nbytes
    assert scores(lazy, letters) == expected
    assert lazy.nbytes > first
    lazy.forget()
    assert lazy.nbytes == first
    streams = StreamingDecoder(CTCDecoder(letters, lazy, 0.5))
    sid = streams.open()
    with pytest.raises(RuntimeError, match="a search uses this language model"):
        lazy.forget()
    streams.close(sid)
    del streams
    lazy.forget()
    assert scores(lazy, letters) == expected


def test_states_in_somebodys_hands_stay(arpa, letters, caplog):
    """Whoever asks the model itself may go on with the states; until it forgets them, searches don't start it anew."""
    static, lazy = both(arpa, letters)
    row = torch.tensor([letters("a bad c")["input_ids"]])
    states, whole = lazy.states_after(row), static.states_after(row)
    lazy.automaton.most_bytes = 0
    logits = 3 * torch.randn(2, 30, len(letters), generator=torch.Generator().manual_seed(0))
    for _ in range(3):
        CTCDecoder(letters, lazy, 0.5, num_beams=8)(logits)
    assert torch.equal(lazy.scores(states), static.scores(whole))
    assert sum("must stay" in record.message for record in caplog.records) == 1


def broken(tensors, name):
    """A saved model with one thing that is wrong."""
    value = tensors[name].clone()
    if value.dtype.is_floating_point:
        value[0] = float("nan")
    elif value.dtype == torch.bool:
        value = ~value
    else:
        value[len(value) // 2] = 2**14
    return tensors | {name: value}


@pytest.mark.parametrize("kind", ["letters", "pieces"])
def test_broken_files(arpa, request, kind, tmp_path):
    _, lazy = both(arpa, request.getfixturevalue(kind))
    lazy.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    # Copies: the tensors may lie in the file, which is written anew.
    good = {name: tensor.clone() for name, tensor in load_file(file).items()}
    harmless = {"unk_tokens", "piece_lengths", "grades"} | ({"begins_word"} if kind == "letters" else set())
    for name in [name for name in good if name not in harmless] + ["begins_word"]:
        save_file(broken(good, name), file)
        with pytest.raises(NGramFormatError):
            NGramLM.from_pretrained(tmp_path)
    swapped = good["spelling_tokens"].flip(0)
    for wrong in (
        {"spelling_tokens": swapped},
        {"word_of": good["word_of"][:-1]},
        {"form_of": good["form_of"].zero_()},
        {"grades": torch.ones(3, dtype=torch.float64)},
        {"bonuses": torch.ones(2, dtype=torch.float64)},
        {"words.arc_offsets": good["words.arc_offsets"].to(torch.int64)},
        {"unk_tokens": torch.tensor([3, 1], dtype=torch.int32)},
    ):
        save_file(good | wrong, file)
        with pytest.raises(NGramFormatError):
            NGramLM.from_pretrained(tmp_path)
    save_file({name: tensor for name, tensor in good.items() if name != "grades"}, file)
    with pytest.raises(NGramFormatError, match="missing or unknown"):
        NGramLM.from_pretrained(tmp_path)


@pytest.fixture(scope="module")
def kept(arpa, letters, tmp_path_factory):
    """A saved model of letters, with unknown words that are graded: its folder, config and tensors."""
    folder = tmp_path_factory.mktemp("kept")
    _, lazy = both(arpa, letters, unk_token_cost=0.0)
    grades = Grades((1,) * lazy.vocab_size, -5.0, (-1.0, -2.0, -5.0), -5.0)
    words = dataclasses.replace(lazy.config.words, context_length=1023)
    graded = NGramLM(
        dataclasses.replace(
            lazy.parts, config=dataclasses.replace(lazy.config, words=words),
            automaton=lazy.automaton.changed(Bonuses(grades=grades), words.context_length),
        )
    )  # fmt: skip
    graded.save_pretrained(folder)
    assert scores(NGramLM.from_pretrained(folder), letters) == scores(graded, letters)
    tensors = {name: tensor.clone() for name, tensor in load_file(folder / "model.safetensors").items()}
    return folder, json.loads((folder / "config.json").read_text()), tensors


def changed(tensor, at, value):
    tensor = tensor.clone()
    tensor[at] = value
    return tensor


HOSTILE = [
    ("word_of", -1, 2**40, "word_of should have each of 0..1099511627776"),
    ("word_of", -1, 2**63 - 1, "word_of should have each of 0..9223372036854775807"),
    ("word_of", 0, -1, "word_of should have each"),
    ("form_of", -1, 2**40, "form_of should have each"),
    *(
        ("bonuses", at, value, "bonuses holds a value .* more than 1e\\+30")
        for at in (0, 1, 2)
        for value in (1e300, -1e38, math.inf)
    ),
    *(
        ("grades", at, value, "grades holds a value .* more than 1e\\+30")
        for at in (0, 1, 2)
        for value in (1e300, 1e38, math.nan)
    ),
    ("words.arc_weights", 0, 1.0, "log-probabilities above 0"),
    ("words.arc_weights", 0, -1e38, "the score 1e\\+38 of an n-gram is more than 1e\\+30"),
    ("words.backoff_weights", -1, 3e38, "the score 3e\\+38 of an n-gram is more than 1e\\+30"),
]


@pytest.mark.parametrize(("name", "at", "value", "message"), HOSTILE)
def test_hostile_numbers(kept, name, at, value, message, tmp_path):
    _, config, tensors = kept
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file(tensors | {name: changed(tensors[name], at, value)}, tmp_path / "model.safetensors")
    with pytest.raises(NGramFormatError, match=message):
        NGramLM.from_pretrained(tmp_path)


def test_truth_values_of_other_bytes(kept, tmp_path):
    """To the core a token begins a word where this is 1, to numpy where it isn't 0."""
    _, config, tensors = kept
    (tmp_path / "config.json").write_text(json.dumps(config))
    odd = changed(tensors["begins_word"].view(torch.uint8), 0, 2).view(torch.bool)
    save_file(tensors | {"begins_word": odd}, tmp_path / "model.safetensors")
    with pytest.raises(NGramFormatError, match="begins_word holds a byte that is neither true nor false"):
        NGramLM.from_pretrained(tmp_path)


def test_hostile_lengths(kept, tmp_path):
    _, config, tensors = kept
    (tmp_path / "config.json").write_text(json.dumps(config))
    none = torch.zeros(0, dtype=torch.int64)
    for wrong, message in (
        ({"word_of": none, "form_of": none}, "should have each of"),
        ({"grades": torch.zeros(1_000_000, dtype=torch.float64)}, "grades of unknown words don't fit"),
    ):
        save_file(tensors | wrong, tmp_path / "model.safetensors")
        with pytest.raises(NGramFormatError, match=message):
            NGramLM.from_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("name", "value"),
    [("unk_score_offset", 1e300), ("unk_score_offset", -1e31), ("unk_token_cost", 1e31), ("word_bonus", 1e31),
     ("context_length", 0), ("context_length", 2**31 - 1)],
)  # fmt: skip
def test_hostile_words_of_a_config(kept, name, value, tmp_path):
    _, config, tensors = kept
    (tmp_path / "config.json").write_text(json.dumps({**config, "words": {**config["words"], name: value}}))
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(NGramFormatError, match=rf"words\.{name}"):
        NGramLM.from_pretrained(tmp_path)


@pytest.mark.parametrize("value", [LARGEST_SCORE, -LARGEST_SCORE])
@pytest.mark.parametrize("at", [0, 1])
def test_the_largest_bonuses_give_finite_scores(kept, letters, at, value, tmp_path):
    _, config, tensors = kept
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file(tensors | {"bonuses": changed(tensors["bonuses"], at, value)}, tmp_path / "model.safetensors")
    lm = NGramLM.from_pretrained(tmp_path)
    assert torch.isfinite(lm.score_sequences(torch.tensor([letters("a bad cab a cab")["input_ids"]]))).all()
    assert torch.isfinite(lm.scores(lm.initial_states(1))).all()


@pytest.mark.parametrize("composition", ["static", "on_the_fly"])
@pytest.mark.parametrize("option", ["unk_score_offset", "unk_token_cost", "word_bonus"])
def test_options_beyond_any_score(option, composition, letters):
    table = NGramTable.from_rows(1, [(torch.tensor([[0]]), torch.tensor([-1.0]), torch.tensor([0.0]))])
    with pytest.raises(ValueError, match=option):
        lexicon_words.compose(table, ["a"], letters, composition=composition, **{option: 2 * LARGEST_SCORE})


@pytest.mark.parametrize("composition", ["static", "on_the_fly"])
def test_words_with_more_spellings_than_a_search_could_cope_with(composition, letters):
    table = NGramTable.from_rows(1, [(torch.tensor([[0]]), torch.tensor([-1.0]), torch.tensor([0.0]))])
    ways = list(itertools.product(range(5, 11), repeat=4))
    made = NGramLM(lexicon_words.compose(table, ["a"], letters, lexicon={"a": ways[:1024]}, composition=composition))
    assert made.config.words.num_spellings == 1024
    with pytest.raises(NGramFormatError, match="a word has 1296 spellings; at most 1024"):
        lexicon_words.compose(table, ["a"], letters, lexicon={"a": ways}, composition=composition)


def test_a_long_spelling_among_many_short_ones(letters, tmp_path):
    """It takes no more room than its own: padding all to its length would take 120 MB."""
    ways = list(itertools.islice(itertools.product(range(5, 12), repeat=6), 30_000))
    rows = torch.arange(len(ways) + 1)[:, None], torch.full((len(ways) + 1,), -11.0), torch.zeros(len(ways) + 1)
    words = [str(n) for n in range(len(ways) + 1)]
    lexicon = dict(zip(words, [*([way] for way in ways), [(5,) * 1022]]))
    table = NGramTable.from_rows(len(words), [rows])
    made = NGramLM(lexicon_words.compose(table, words, letters, lexicon=lexicon, composition="on_the_fly"))
    made.save_pretrained(tmp_path)
    tracemalloc.start()
    try:
        again = NGramLM.from_pretrained(tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 60 << 20
    finally:
        tracemalloc.stop()
    row = torch.tensor([[5] * 1022 + [4], [5, 6, 7, 8, 9, 10, 4] + [0] * 1016])
    assert torch.equal(again.score_sequences(row, torch.tensor([1023, 7])), made.score_sequences(row, torch.tensor([1023, 7])))


def test_an_order_that_nothing_has_costs_nothing(kept, letters, tmp_path):
    """The order is what the config says; a search must not make room for states that the model can't have."""
    _, config, tensors = kept
    config = {**config, "order": 1024, "num_ngrams": [*config["num_ngrams"], *[0] * (1024 - len(config["num_ngrams"]))]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file(tensors, tmp_path / "model.safetensors")
    lm = NGramLM.from_pretrained(tmp_path)
    scores(lm, letters)
    assert len(lm.tensors.backoff_states) < 16_000
