"""KenLM's probing models, whose n-grams are found out from their hashes: damaged ones, and those that are too large."""

import kenlm_files
import numpy as np
import pytest

from hf_ngpulm.errors import NGramFormatError
from hf_ngpulm.formats.kenlm import KenLMFile, probing


def damaged(change):
    """The keys and weights of the bigrams' table of a file, changed; where they lie is known from the file's own sizes."""
    content = bytearray(kenlm_files.content("o3_probing"))
    header = 136
    counts = np.frombuffer(content, "<u8", 3, 108)
    bigrams = header + 8 + 12 * int(np.float32(1.5) * np.float32(counts[0])) + 8 * (int(counts[0]) + 1)
    buckets = int(np.float32(1.5) * np.float32(counts[1]))
    table = np.frombuffer(content, np.dtype([("key", "<u8"), ("log_prob", "<f4"), ("backoff", "<f4")]), buckets, bigrams)
    change(table)
    return bytes(content)


def fill(table):
    table["key"][table["key"] == 0] = 5


def flip(table):
    table["key"][np.flatnonzero(table["key"])[3]] ^= np.uint64(1 << 40)


def drop(table):
    """The only key of its run goes, so that all others are still found."""
    used = table["key"] != 0
    alone = np.flatnonzero(used[1:-1] & ~used[:-2] & ~used[2:])[0] + 1
    table["key"][alone] = 0


def no_number(table):
    table["log_prob"][np.flatnonzero(table["key"])[3]] = np.nan


def endless(table):
    table["backoff"][np.flatnonzero(table["key"])[3]] = np.inf


@pytest.mark.parametrize(
    "change, expected",
    [
        (fill, "2-grams in the hash table, but"),
        (flip, "2-grams in the hash table, but"),
        (drop, "but the header implies"),
        (no_number, "log-probability nan"),
        (endless, "backoff inf"),
    ],
)
def test_damaged_tables_are_refused(change, expected, tmp_path):
    (tmp_path / "lm.bin").write_bytes(damaged(lambda table: None))
    KenLMFile(tmp_path / "lm.bin").table()
    (tmp_path / "lm.bin").write_bytes(damaged(change))
    with pytest.raises(NGramFormatError, match=f"lm.bin: .*{expected}"):
        KenLMFile(tmp_path / "lm.bin").table()


@pytest.mark.parametrize("limit, work", [("MOST_BIGRAM_TRIALS", "words times"), ("MOST_PAIRS", "pairs of overlapping 2-grams")])
def test_models_too_large_to_be_listed(limit, work, tmp_path, monkeypatch):
    file = KenLMFile(kenlm_files.unpack("o3_probing", tmp_path))
    assert file.table().order == 3
    monkeypatch.setattr(probing, limit, 300)
    with pytest.raises(NGramFormatError, match=f"can't be listed.*{work}.*the ARPA file.*build_binary trie"):
        file.table()


def test_n_grams_that_are_not_made_of_words_are_refused(tmp_path):
    def swap(table):
        """A key becomes one that no words make, in the same bucket."""
        at = np.flatnonzero(table["key"])[3]
        table["key"][at] += np.uint64(len(table))

    (tmp_path / "lm.bin").write_bytes(damaged(swap))
    with pytest.raises(NGramFormatError, match="2-grams in the hash table, but"):
        KenLMFile(tmp_path / "lm.bin").table()
