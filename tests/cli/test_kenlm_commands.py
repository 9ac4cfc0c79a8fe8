"""KenLM binaries on the command line."""

import json
import re

import kenlm_files
import pytest
import torch

from hf_ngpulm import NGramLM
from hf_ngpulm.cli.app import run
from hf_ngpulm.formats.arpa import read_arpa
from hf_ngpulm.formats.kenlm import KenLMFile
from hf_ngpulm.text.vocabulary import Vocabulary


@pytest.mark.parametrize("name", ["o3_trie", "o4_quant_array", "o3_probing", "o3_trie_no_words"])
def test_info(name, tmp_path, capsys):
    path = kenlm_files.unpack(name, tmp_path)
    file = KenLMFile(path)
    assert run(["info", str(path), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["kenlm"], facts["order"], facts["num_ngrams"]) == (file.model_type, file.order, list(file.counts))
    assert (facts["num_words"], facts["has_words"]) == (file.num_words, file.has_words) and facts["nbytes"] > 1000
    assert facts["quantised_bits"] == ([2, 5] if "quant" in name else None)
    assert run(["info", str(path)]) == 0
    shown = capsys.readouterr().out
    assert file.model_type in shown and f"{file.num_words:,} words" in shown and f"{sum(file.counts):,}" in shown
    assert ("2 bits" in shown) == ("quant" in name)
    assert (file.words[0] in shown) if file.has_words else ("-v" in shown)


@pytest.mark.parametrize("name", ["o4_quant", "o4_probing_tight"])
def test_a_binary_becomes_an_arpa_file(name, tmp_path, capsys):
    path, arpa = kenlm_files.unpack(name, tmp_path), tmp_path / "words.arpa.gz"
    assert run(["convert", str(path), str(arpa)]) == 0
    assert "order 4" in capsys.readouterr().out
    words = KenLMFile(path).words
    table = read_arpa(arpa, Vocabulary(len(words), tuple(words)), "piece")
    model = kenlm_files.DictionaryModel(table, words)
    for sentence, expected in zip(kenlm_files.sentences(), kenlm_files.scores(name)):
        assert model.score(sentence) == pytest.approx(expected.tolist(), abs=1e-5)


def test_pruned_on_the_way(tmp_path):
    path, arpa = kenlm_files.unpack("o3_trie", tmp_path), tmp_path / "words.arpa"
    assert run(["convert", str(path), str(arpa), "--max-ngrams", "120"]) == 0
    words = KenLMFile(path).words
    assert sum(read_arpa(arpa, Vocabulary(len(words), tuple(words)), "piece").num_ngrams) == 120


def test_a_binary_over_token_ids_becomes_a_model(tmp_path, capsys):
    path, folder = kenlm_files.unpack("o3_trie_ids", tmp_path), tmp_path / "lm"
    assert run(["convert", str(path), str(folder), "--vocab-size", "50"]) == 0
    saved, expected = NGramLM.from_pretrained(folder), NGramLM.from_arpa(kenlm_files.arpa_of("o3_trie_ids"), vocab_size=50)
    for ours, theirs in zip(saved.buffers(), expected.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=0)
    assert run(["info", str(path), "--vocab-size", "50"]) == 0
    assert re.search(r"50; \d+ of them have no unigram", capsys.readouterr().out)


@pytest.mark.parametrize(
    "name, arguments, expected",
    [
        ("o3_trie_no_words", ["convert", "{}", "out.arpa"], "without build_binary's -v"),
        ("o3_trie", ["convert", "{}", "folder"], "becomes an ARPA file"),
        ("o3_trie", ["convert", "{}", "out.arpa", "--out-units", "id"], "--out-units id is for token ids"),
        ("o3_trie", ["convert", "{}", "folder", "--vocab-size", "30"], "found units such as"),
        ("o3_trie", ["info", "{}", "--units", "id"], "--units id needs token ids"),
        ("o3_trie", ["interpolate", "{}", "{}", "-o", "folder", "--weights", "0.5 0.5"], "doesn't contain the token ids"),
    ],
)
def test_mistakes(name, arguments, expected, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").write_text("open the door\n")
    path = kenlm_files.unpack(name, tmp_path)
    assert run([argument.replace("{}", str(path)) for argument in arguments]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and expected in error
    assert not (tmp_path / "out.arpa").exists() and not (tmp_path / "folder").exists()
