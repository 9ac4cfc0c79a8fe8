"""KenLM binaries that are damaged, hostile, or of another kind: a clear error, or a model that is whole."""

import random
import struct

import kenlm_files
import pytest
import torch

from hf_ngpulm.errors import NGramFormatError
from hf_ngpulm.formats.kenlm import KenLMFile
from hf_ngpulm.ngrams import NGramTable

SANITY, COUNTS = 88, 108  # bytes before the parameters, and before the counts


def changed(name, at, value):
    content = bytearray(kenlm_files.content(name))
    content[at : at + len(value)] = value
    return bytes(content)


def read_all(content, tmp_path):
    """Read what there is, check it, and say which way it was."""
    path = tmp_path / "lm.bin"
    path.write_bytes(content)
    file = KenLMFile(path)
    if file.has_words:
        assert len(file.vocabulary) == file.num_words
    if file.model_type == "probing" and not file.has_words:
        file.name_words(word for sentence in kenlm_files.sentences() for word in sentence)
    if file.model_type != "probing" or file.has_words:
        table = file.table()
        rows = [(table.rows(n), order.log_probs, order.backoffs) for n, order in enumerate(table.orders, start=1)]
        again = NGramTable.from_rows(table.vocab_size, rows)
        assert all(torch.equal(a.prefixes, b.prefixes) for a, b in zip(again.orders, table.orders))


def complaint(content, tmp_path):
    with pytest.raises(NGramFormatError) as caught:
        read_all(content, tmp_path)
    assert str(caught.value).startswith(str(tmp_path / "lm.bin"))
    return str(caught.value)


@pytest.mark.parametrize(
    "name", ["o3_trie", "o4_array", "o4_quant", "o4_quant_array", "o2_quant", "o3_probing", "o2_probing", "o3_trie_no_words"]
)
def test_no_damage_goes_unnoticed_or_does_harm(name, tmp_path):
    whole, rng = kenlm_files.content(name), random.Random(0)
    read = {True: 0, False: 0}
    for _ in range(100):
        content = bytearray(whole)
        kind = rng.randrange(5)
        if kind == 0:
            del content[rng.randrange(len(content)) :]
        elif kind == 1:
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        elif kind == 2:
            content[rng.randrange(SANITY, COUNTS + 24)] = rng.choice([0, 1, 2, 127, 128, 255, rng.randrange(256)])
        elif kind == 3:
            at = rng.randrange(len(content))
            content[at : at + 40] = rng.randbytes(rng.randrange(40))
        else:
            at = rng.randrange(COUNTS, len(content) - 8)
            content[at : at + 8] = struct.pack("<Q", rng.choice([0, 2**63, 2**64 - 1, 2**32 - 1, 2**31, rng.getrandbits(40)]))
        try:
            read_all(bytes(content), tmp_path)
            read[True] += 1
        except NGramFormatError:
            read[False] += 1
    assert read[False] > 40  # flipped bits of a weight, or in padding, can't be noticed


@pytest.mark.parametrize("name", ["o3_trie", "o4_quant_array", "o3_probing", "o3_probing_no_words"])
def test_every_file_that_is_cut_short_is_refused(name, tmp_path):
    whole = kenlm_files.content(name)
    for size in [*range(0, 160, 3), *range(160, len(whole), 1 + len(whole) // 60), len(whole) - 1]:
        message = complaint(whole[:size], tmp_path)
        assert any(said in message for said in ("cut short", "empty", "not a KenLM", "version", "strings", "in a file of")), (
            message
        )


@pytest.mark.parametrize(
    "content, expected",
    [
        (changed("o3_trie", 49, b"4"), "format version '4'"),
        (b"mmap lm http://kheafield.com/code incomplete\n".ljust(200, b"\0"), "didn't finish"),
        (b"\\data\\\nngram 1=3\n" * 9, "not a KenLM binary"),
        (changed("o3_trie", 56, struct.pack(">fffIIIQ", 0, 1, -0.5, 1, 2**32 - 1, 0, 1)), "big-endian"),
        (changed("o3_trie", 56, struct.pack("<fffIIQI", 0, 1, -0.5, 1, 2**32 - 1, 1, 0)), "32-bit"),
        (changed("o3_trie", 60, b"\1"), "test values"),
        (changed("o3_trie", SANITY, b"\1"), "order should be from 2"),
        (changed("o3_trie", SANITY, b"\xff"), "order should be from 2 to 64, the header says 255"),
        (changed("o3_probing", SANITY + 4, struct.pack("<f", 0.5)), "multiplier should be from 1"),
        (changed("o3_probing", SANITY + 4, struct.pack("<f", float("nan"))), "multiplier should be from 1"),
        (changed("o3_probing", SANITY + 4, struct.pack("<f", 3e38)), "multiplier should be from 1"),
        (changed("o3_probing", SANITY + 4, struct.pack("<f", 1e6)), "cut short"),
        (changed("o3_probing", SANITY + 8, b"\1"), "rest_probing.*without -r"),
        (changed("o3_trie", SANITY + 8, b"\6"), "number 6"),
        (changed("o3_trie", SANITY + 8, b"\3"), "quantisation of version"),
        (changed("o3_trie", SANITY + 8, b"\4"), "version|cut short|strings|bytes"),
        (changed("o3_trie", SANITY + 12, b"\2"), "0 or 1"),
        (changed("o3_trie", SANITY + 12, b"\0"), "no word strings"),
        (changed("o3_trie_no_words", SANITY + 12, b"\1"), "word strings"),
        (changed("o3_trie", SANITY + 16, b"\7"), "trie has version 7"),
        (changed("o3_probing", SANITY + 16, b"\7"), "probing has version 7"),
        (changed("o3_trie", COUNTS + 8, struct.pack("<Q", 2**64 - 1)), "18446744073709551615 2-grams"),
        (changed("o3_trie", COUNTS, struct.pack("<Q", 0)), "0 1-grams"),
        (changed("o3_trie", COUNTS + 24 + 4, struct.pack("<Q", 5)), "vocabulary holds 5 words"),
        (changed("o3_trie", len(kenlm_files.content("o3_trie")) - 2, b"\x01"), "hash"),
    ],
)
def test_what_is_wrong_is_said(content, expected, tmp_path):
    path = tmp_path / "lm.bin"
    path.write_bytes(content)
    with pytest.raises(NGramFormatError, match=expected):
        read_all(content, tmp_path)


def test_paths_that_are_no_files(tmp_path):
    with pytest.raises(NGramFormatError, match="folder"):
        KenLMFile(tmp_path)
    with pytest.raises(FileNotFoundError):
        KenLMFile(tmp_path / "nothing.bin")
