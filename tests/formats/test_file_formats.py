"""The table of file formats: told by bytes or suffix, and all go by it."""

from __future__ import annotations

from pathlib import Path

import pytest

from hf_ngpulm import NGramLM
from hf_ngpulm.formats.files import ARPA, KENLM, NEMO, format_of, is_named_like_a_file
from hf_ngpulm.formats.kenlm import MAGIC
from hf_ngpulm.language_model.loading import load_language_model

TINY = Path(__file__).parents[1] / "data" / "nemo" / "tiny.nemo"


def test_formats_are_told_by_bytes_then_by_suffix(tmp_path):
    for name, content, expected in (
        ("a.bin", b"text", ARPA), ("a.arpa", MAGIC, KENLM), ("a.nemo", MAGIC, KENLM), ("b.nemo", b"", NEMO), ("lm", b"", ARPA),
    ):  # fmt: skip
        (tmp_path / name).write_bytes(content)
        assert format_of(tmp_path / name) is expected
    assert format_of(tmp_path / "missing.nemo") is NEMO
    assert all(map(is_named_like_a_file, ("a.nemo", "a.bin", "a/b.arpa", "lm.arpa.gz")))
    assert not any(map(is_named_like_a_file, ("org/lm", "lm.gz", "arpa")))


def test_files_of_token_ids_need_no_tokenizer_and_take_no_units():
    expected = NGramLM.from_nemo(TINY).num_ngrams
    assert load_language_model(TINY).num_ngrams == NGramLM.from_arpa(TINY).num_ngrams == expected
    for options in ({"units": "id"}, {"vocab_size": 3}, {"case": "lower"}):
        with pytest.raises(ValueError, match="holds token ids; leave out"):
            NGramLM.from_arpa(TINY, **options)
