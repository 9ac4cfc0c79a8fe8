"""KenLM's tries, and probing models by way of their hashes, become tables with KenLM's own scores."""

import kenlm_files
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hf_ngpulm.errors import NGramFormatError
from hf_ngpulm.formats.arpa import read_arpa, write_arpa
from hf_ngpulm.formats.files import ARPA, KENLM, format_of
from hf_ngpulm.formats.kenlm import KenLMFile
from hf_ngpulm.formats.kenlm.trie import _cut_bits, _Packed
from hf_ngpulm.formats.kenlm.vocabulary import hash_words
from hf_ngpulm.ngrams import NGramTable
from hf_ngpulm.text.vocabulary import Vocabulary


def opened(name, tmp_path):
    return KenLMFile(kenlm_files.unpack(name, tmp_path))


def assert_same_ngrams(found: NGramTable, expected: NGramTable, atol=0.0):
    assert found.vocab_size == expected.vocab_size and found.num_ngrams == expected.num_ngrams
    for ours, theirs in zip(found.orders, expected.orders):
        assert torch.equal(ours.prefixes, theirs.prefixes) and torch.equal(ours.tokens, theirs.tokens)
        torch.testing.assert_close(ours.log_probs, theirs.log_probs, atol=atol, rtol=1e-7)
        torch.testing.assert_close(ours.backoffs, theirs.backoffs, atol=atol, rtol=1e-7)


@pytest.mark.parametrize("name", kenlm_files.WITH_TABLE)
def test_scores_are_kenlms(name, tmp_path):
    file = opened(name, tmp_path)
    model = kenlm_files.DictionaryModel(file.table(), file.words)
    for words, expected in zip(kenlm_files.sentences(), kenlm_files.scores(name)):
        np.testing.assert_allclose(model.score(words), expected, atol=1e-5)


@pytest.mark.parametrize("name", [name for name in kenlm_files.WITH_TABLE if "quant" not in name and "gaps" not in name])
def test_the_table_is_that_of_the_arpa_file(name, tmp_path):
    file = opened(name, tmp_path)
    table = file.table()
    expected = read_arpa(kenlm_files.arpa_of(name), Vocabulary(len(file.words), tuple(file.words)), "piece")
    if name.endswith("no_unk"):  # build_binary -u gives it a unigram
        assert table.orders[0].tokens[-1] == table.unk and len(table.orders[0]) == len(expected.orders[0]) + 1
        assert float(table.orders[0].log_probs[-1]) == pytest.approx(-7 * np.log(10)) and table.orders[0].backoffs[-1] == 0
    else:
        assert_same_ngrams(table, expected, atol=1e-6)
    assert file.counts[1:] == table.num_ngrams[1:] and file.num_words == len(table.orders[0]) == len(file.words) + 3


@pytest.mark.parametrize("name", ["o4_trie_gaps", "o4_quant_array_gaps", "o4_probing_gaps"])
def test_suffixes_that_pruning_left_out_are_there(name, tmp_path):
    file = opened(name, tmp_path)
    vocabulary = Vocabulary(len(file.words), tuple(file.words))
    own = {n: set(map(tuple, read_arpa(kenlm_files.arpa_of(name), vocabulary, "piece").rows(n).tolist())) for n in (2, 3, 4)}
    table = file.table()
    found = {n: set(map(tuple, table.rows(n).tolist())) for n in (2, 3, 4)}
    for n in (2, 3):
        assert found[n] == own[n] | {ngram[1:] for ngram in found[n + 1]} != own[n]
    assert found[4] == own[4]


def test_quantised_values_are_the_tables_own(tmp_path):
    file = opened("o4_quant", tmp_path)
    assert file.quantised_bits == (3, 2) and opened("o3_trie", tmp_path).quantised_bits is None
    for order in file.table().orders[1:]:
        assert 2 < len(order.log_probs.unique()) <= 8 and len(order.backoffs.unique()) <= 4
    backoffs = file.table().orders[1].backoffs
    assert (backoffs == 0).any() and not torch.signbit(backoffs[backoffs == 0]).any()  # the mark of minus zero is gone
    assert len(file.table().orders[0].log_probs.unique()) > 8  # unigrams are never quantised


@pytest.mark.parametrize("name", ["o3_trie", "o4_quant_array", "o3_probing"])
def test_there_and_back_through_an_arpa_file(name, tmp_path):
    file = opened(name, tmp_path)
    write_arpa(file.table(), tmp_path / "lm.arpa", "piece", file.words)
    again = read_arpa(tmp_path / "lm.arpa", Vocabulary(len(file.words), tuple(file.words)), "piece")
    assert_same_ngrams(again, file.table())


def test_words_that_are_tokens_of_a_vocabulary(tmp_path):
    file = opened("o4_array", tmp_path)
    pieces = (*reversed(sorted(file.words)), "another")
    table = file.table(Vocabulary(len(pieces), pieces), "piece")
    assert_same_ngrams(table, read_arpa(kenlm_files.arpa_of("o4_array"), Vocabulary(len(pieces), pieces), "piece"), atol=1e-6)
    with pytest.raises(NGramFormatError, match=r"o4_array\.bin.*piece"):
        file.table(Vocabulary(2, ("some", "thing")), "piece")


def test_a_file_without_word_strings(tmp_path):
    file = opened("o3_trie_no_words", tmp_path)
    assert not file.has_words and file.counts == opened("o3_trie", tmp_path).counts
    known = opened("o3_trie", tmp_path)
    assert file.word_ids(known.vocabulary).tolist() == list(range(known.num_words))
    assert file.word_ids(["unheard", ""]).tolist() == [0, 0]
    with pytest.raises(NGramFormatError, match="without build_binary's -v"):
        file.table()


def test_backoffs_in_one_bit_are_refused(tmp_path):
    with pytest.raises(NGramFormatError, match="1 bit"):
        opened("o3_quant_1_bit", tmp_path)


def test_the_words_of_the_vocabulary(tmp_path):
    file = opened("o3_trie", tmp_path)
    assert file.vocabulary[0] == "<unk>" and set(file.vocabulary) - set(file.words) == {"<unk>", "<s>", "</s>"}
    assert {"naïve", "straße", "turn"} < set(file.words)
    assert file.word_ids(["turn", "unheard"]).tolist() == [file.vocabulary.index("turn"), 0]


def test_which_files_are_kenlms(tmp_path):
    assert format_of(kenlm_files.unpack("o3_trie", tmp_path)) is KENLM and format_of(tmp_path / "nothing") is ARPA
    assert format_of(kenlm_files.arpa_of("o3_trie")) is ARPA


def murmur_hash_64a(word: bytes) -> int:
    """Appleby's MurmurHash2 for 64 bits, variant A, with seed 0: one word, one step after the other."""
    m, wrap = 0xC6A4A7935BD1E995, 2**64
    h = len(word) * m % wrap
    for at in range(0, len(word) - 7, 8):
        k = int.from_bytes(word[at : at + 8], "little") * m % wrap
        h = (h ^ (k ^ k >> 47) * m % wrap) * m % wrap
    if len(word) % 8:
        h = (h ^ int.from_bytes(word[len(word) // 8 * 8 :], "little")) * m % wrap
    h = (h ^ h >> 47) * m % wrap
    return h ^ h >> 47


@given(st.lists(st.binary(max_size=26), max_size=12))
def test_hashes_of_words(words):
    assert hash_words(words).tolist() == [murmur_hash_64a(word) for word in words]


@given(st.data())
def test_fields_of_packed_records(data):
    count, record = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 150))
    offset = data.draw(st.integers(0, record - 1))
    bits = data.draw(st.integers(0, min(57, record - offset)))
    number = data.draw(st.integers(0, 2 ** (record * count) - 1))
    packed = number.to_bytes(-(-record * count // 8) + 8, "little")
    found = _Packed(np.frombuffer(packed, dtype=np.uint8), record).field(offset, bits, count)
    assert found.tolist() == [(number >> (i * record + offset)) & ((1 << bits) - 1) for i in range(count)]


@given(st.integers(1, 2**40), st.integers(0, 2**40), st.integers(0, 25))
def test_pointers_are_cut_where_that_takes_the_least_bits(records, largest, most):
    cut, bits = _cut_bits(records, largest, most), largest.bit_length()

    def size(cut):
        return 64 * ((largest >> (bits - cut)) + 1) + records * (bits - cut)

    assert cut <= min(most, bits) and size(cut) == min(size(other) for other in range(min(most, bits) + 1))
