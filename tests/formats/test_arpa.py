"""ARPA files: every dialect is read, what is written comes back, and a bad file is one clear error."""

import bz2
import gzip
import itertools
import logging
import lzma
import math
import os
import random
import re
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from arpa_models import BruteForce, arpa_models
from hypothesis import example, given, settings
from hypothesis import strategies as st
from property_examples import examples

from hf_ngpulm.automaton import automaton_from_table
from hf_ngpulm.errors import NGramFormatError
from hf_ngpulm.formats import arpa
from hf_ngpulm.formats.arpa import read_arpa, unit_words, write_arpa
from hf_ngpulm.ngrams.table import NGramTable
from hf_ngpulm.text.vocabulary import Vocabulary

DATA = Path(__file__).parents[1] / "data" / "lmplz"
LN10 = math.log(10.0)

SMALL = r"""
\data\
ngram 1=5
ngram 2=4
ngram 3=2

\1-grams:
-1.5	<unk>	0
0	<s>	-0.3
-1.2	</s>	0
-0.5	0	-0.4
-0.7	1	-0.2

\2-grams:
-0.3	<s> 1	-0.15
-0.8	0 0	-0.35
-0.6	1 0	-0.05
-0.45	1 </s>	0

\3-grams:
-0.2	<s> 1 0
-0.33	1 0 0

\end\
""".lstrip()
LINES = SMALL.splitlines()


def read(content: str | bytes, folder: Path, vocab_size: int = 2, units: str = "id") -> NGramTable:
    path = folder / "lm.arpa"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return read_arpa(path, Vocabulary(vocab_size), units)


def error_of(content: str | bytes, folder: Path, vocab_size: int = 2, units: str = "id") -> str:
    """The message that reading ends in, which names the file."""
    with pytest.raises(NGramFormatError) as caught:
        read(content, folder, vocab_size, units)
    message = str(caught.value)
    assert message.startswith(str(folder / "lm.arpa"))
    assert "\n" not in message
    return message.removeprefix(str(folder / "lm.arpa"))


def contents(table: NGramTable) -> list[dict[tuple[int, ...], tuple[float, float]]]:
    return [
        dict(zip(map(tuple, table.rows(n).tolist()), zip(order.log_probs.tolist(), order.backoffs.tolist())))
        for n, order in enumerate(table.orders, start=1)
    ]


def expected_contents(text: str, vocab_size: int = 2) -> list[dict[tuple[int, ...], tuple[float, float]]]:
    """What a text in decimal ids says, read in plain Python and rounded to float32."""
    model = BruteForce(text)
    special = {"<s>": vocab_size, "</s>": vocab_size + 1, "<unk>": vocab_size + 2, "<UNK>": vocab_size + 2}

    def natural(value: float) -> float:
        return float(torch.tensor(value * LN10, dtype=torch.float32))

    return [
        {
            tuple(special[word] if word in special else int(word) for word in words): (
                natural(model.log_probs[words]),
                natural(model.backoffs[words]) if n < model.order else 0.0,
            )
            for words in model.log_probs
            if len(words) == n
        }
        for n in range(1, model.order + 1)
    ]


class TestDialects:
    @pytest.mark.parametrize(
        "change",
        [
            lambda text: text,
            lambda text: text.replace("\t", " "),
            lambda text: text.replace(" ", "  ").replace("\t", "  ").replace("ngram  ", "ngram "),
            lambda text: text.replace("\n", "\r\n"),
            lambda text: text.replace("\n", " \t\n"),
            lambda text: text.replace("\n", " \r\n"),
            lambda text: text.replace("\n", "\n\n"),
            lambda text: text.replace("\n-", "\n \n-"),
            lambda text: text.replace("\n\n", "\n"),
            lambda text: text.rstrip("\n"),
            lambda text: text + "\n\n\n",
            lambda text: text + "whatever follows\n\\data\\\n",
            lambda text: "\n\n" + text,
            lambda text: "Made by hand\n\n\\a\\ title\n" + text,
            lambda text: "\ufeff" + text,
            lambda text: "\ufeffMade by hand\n" + text,
            lambda text: text.replace("=", " = "),
            lambda text: text.replace("<unk>", "<UNK>"),
            lambda text: text.replace("\n-0.", "\n-.").replace("\t-0.", "\t-."),
            lambda text: text.replace("-0.3\t", "-3.0E-1\t"),
        ],
    )
    def test_spelling(self, change, tmp_path):
        assert contents(read(change(SMALL), tmp_path)) == expected_contents(SMALL)

    def test_missing_backoffs(self, tmp_path):
        short = SMALL.replace("\t0\n", "\n").replace("0 0\t-0.35", "0 0")
        expected = expected_contents(SMALL)
        expected[1][(0, 0)] = (expected[1][(0, 0)][0], 0.0)
        assert contents(read(short, tmp_path)) == expected == expected_contents(short)

    def test_backoffs_in_the_highest_order(self, tmp_path):
        column = SMALL.replace("<s> 1 0", "<s> 1 0\t0").replace("1 0 0\n", "1 0 0\t-0.25\n")
        assert contents(read(column, tmp_path)) == expected_contents(SMALL)

    @pytest.mark.parametrize("zero", ["-99", "-inf", "-99.0"])
    def test_log_zero(self, zero, tmp_path):
        table = read(SMALL.replace("\n0	<s>", f"\n{zero}	<s>"), tmp_path)
        assert contents(table)[0][(2,)][0] == pytest.approx(-99 * LN10)

    def test_rounding_above_zero(self, tmp_path):
        assert contents(read(SMALL.replace("-0.33", "0.00001"), tmp_path))[2][(1, 0, 0)][0] == 0.0

    def test_highest_orders_without_ngrams(self, tmp_path):
        text = SMALL.split("\\2-grams:")[0].replace("ngram 2=4\nngram 3=2", "ngram 2=0\nngram 3=0")
        text += "\\2-grams:\n\n\\3-grams:\n\n\\end\\\n"
        # Backing off from the empty 2-grams costs something, from the empty 3-grams nothing.
        assert read(text, tmp_path).num_ngrams == (5, 0)
        assert read(text.replace("\t-0.4", "").replace("\t-0.2", "").replace("\t-0.3", ""), tmp_path).num_ngrams == (5,)

    def test_one_order(self, tmp_path):
        text = "\\data\\\nngram 1=3\n\n\\1-grams:\n-0.5 0\n-1 <unk>\n-1 </s>\n\n\\end\\"
        assert contents(read(text, tmp_path, 1)) == expected_contents(text, 1)

    def test_only_special_symbols(self, tmp_path):
        text = "\\data\\\nngram 1=2\n\n\\1-grams:\n-0.5 <unk>\n-1 </s>\n\n\\end\\"
        assert contents(read(text, tmp_path, 7, "auto")) == expected_contents(text, 7)

    def test_unk_inside_ngrams(self, tmp_path):
        text = SMALL.replace("1 </s>\t0", "1 <unk>\t0").replace("1 0 0", "1 <unk> 0")
        assert contents(read(text, tmp_path)) == expected_contents(text)

    def test_lines_in_any_order(self, tmp_path):
        shuffled = "\n".join([*LINES[:6], *LINES[10:5:-1], *LINES[11:13], *LINES[16:12:-1], *LINES[17:]])
        assert contents(read(shuffled, tmp_path)) == expected_contents(SMALL)

    def test_numbers_of_all_lengths(self, tmp_path, monkeypatch):
        """Some are read by the core, some left to Python, two at a time."""
        monkeypatch.setattr(arpa, "NUMBERS_LEFT", 2)
        rng = random.Random(0)
        texts = [
            "0", "-0", "-0.0", "-.5", "-5.", "-1e-5", "-1E+1", "-1e-30", "-00000000000000000000001", "-9007199254740993",
            "-1e23", "-4.9e-324", "-1e-400", "-0.0000000000000000000000000001", "-12345678901234567890",
            "-9999999999999999999e-19", "+0",
            *(f"{-rng.random() * 10 ** rng.randint(-3, 3):.{rng.randint(1, 20)}g}" for _ in range(500)),
            *(repr(-rng.random() * 10.0 ** rng.randint(-30, 30)) for _ in range(500)),
        ]  # fmt: skip
        lines = [f"{text}\t{word}\t{text.lstrip('-')}" for word, text in enumerate(texts)]
        highest = "\\2-grams:\n-1 0 0\n"
        table = read(
            f"\\data\\\nngram 1={len(texts)}\nngram 2=1\n\\1-grams:\n" + "\n".join(lines) + f"\n{highest}\\end\\\n",
            tmp_path,
            len(texts),
        )
        expected = np.array([float(text) for text in texts]) * LN10
        np.testing.assert_array_equal(table.orders[0].log_probs.numpy(), expected.astype(np.float32))
        np.testing.assert_array_equal(table.orders[0].backoffs.numpy(), np.abs(expected).astype(np.float32))

    def test_words_of_all_lengths(self, tmp_path):
        words = ["a" * n for n in range(1, 40)] + ["a" * n + "b" for n in range(1, 40)] + [chr(c) for c in range(0x3B1, 0x3C9)]
        rows = "".join(f"-1\t{word}\t-1\n" for word in words)
        pairs = "".join(f"-2\t{one} {other}\n" for one, other in zip(words, reversed(words)))
        text = f"\\data\\\nngram 1={len(words)}\nngram 2={len(words)}\n\\1-grams:\n{rows}\\2-grams:\n{pairs}\\end\\\n"
        vocabulary = Vocabulary(len(words), pieces=tuple(words))
        table = self.read_with(text, vocabulary, tmp_path)
        assert table.rows(2).tolist() == [[i, len(words) - 1 - i] for i in range(len(words))]

    def test_blank_lines(self, tmp_path):
        blanks = SMALL.replace("\n-0.8", "\n" * 250 + "-0.8")
        assert contents(read(blanks, tmp_path)) == expected_contents(SMALL)

    @pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, lzma.compress])
    def test_compressed_whatever_the_name(self, compress, tmp_path):
        assert contents(read(compress(SMALL.encode()), tmp_path)) == expected_contents(SMALL)

    @pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names here")
    def test_pipe(self, tmp_path):
        os.mkfifo(tmp_path / "pipe")
        writer = threading.Thread(target=(tmp_path / "pipe").write_bytes, args=(gzip.compress(SMALL.encode()),))
        writer.start()
        assert contents(read_arpa(tmp_path / "pipe", Vocabulary(2))) == expected_contents(SMALL)
        writer.join()

    def test_suffixes_may_be_missing(self, tmp_path):
        text = SMALL.replace("-0.8	0 0	-0.35\n", "").replace("ngram 2=4", "ngram 2=3")
        assert contents(read(text, tmp_path)) == expected_contents(text)

    def test_units(self, tmp_path):
        def spelt(*units: str) -> str:
            rows = [line.split("\t") for line in LINES]
            for row in rows:
                row[1:2] = [" ".join(dict(zip("01", units)).get(word, word) for word in "".join(row[1:2]).split(" "))]
            return "\n".join("\t".join(row).rstrip("\t") for row in rows)

        # U+0085 and U+3000 are blanks to Python, but not to KenLM and SRILM.
        pieces = ("▁a\u3000", "\x85é")
        for text, vocabulary in (
            (spelt("0000", "01"), Vocabulary(2)),
            (spelt("d", "e"), Vocabulary(2)),
            (spelt(*pieces), Vocabulary(2, pieces=pieces)),
            (spelt("|", "b"), Vocabulary(2, pieces=("▁", "B"))),
        ):
            assert contents(self.read_with(text, vocabulary, tmp_path)) == expected_contents(SMALL)
        table = read(spelt("\x85", "\xa0"), tmp_path, 61, "nemo")
        assert table.orders[0].tokens.tolist() == [33, 60, 61, 62, 63]

    def read_with(self, text: str, vocabulary: Vocabulary, folder: Path) -> NGramTable:
        (folder / "lm.arpa").write_text(text)
        return read_arpa(folder / "lm.arpa", vocabulary)

    @settings(deadline=None, max_examples=100)
    @given(arpa_models())
    def test_any_model(self, tmp_path_factory, model):
        table = read(model.text, tmp_path_factory.getbasetemp(), model.vocab_size)
        expected = expected_contents(model.text, model.vocab_size)
        while len(expected) > table.order:
            assert not expected.pop()
        assert contents(table) == expected


class TestWriting:
    @pytest.mark.parametrize("suffix", [".arpa", ".arpa.gz", ".arpa.bz2", ".arpa.xz"])
    @pytest.mark.parametrize("name", ["demo_o2", "demo_o10_prune0112", "dice_o5_fallback"])
    def test_lmplz_models_come_back(self, name, suffix, tmp_path):
        table = read_arpa(DATA / f"{name}.arpa.gz", Vocabulary(256))
        write_arpa(table, tmp_path / f"lm{suffix}")
        assert contents(read_arpa(tmp_path / f"lm{suffix}", Vocabulary(256))) == contents(table)

    @settings(deadline=None, max_examples=examples(100))
    @given(arpa_models(), st.sampled_from(["id", "nemo", "piece"]), st.sampled_from([".arpa", ".arpa.gz"]))
    def test_any_model_comes_back(self, tmp_path_factory, model, units, suffix):
        folder = tmp_path_factory.getbasetemp()
        vocabulary = Vocabulary(model.vocab_size, pieces=("▁the", "quick", "é", "0")[: model.vocab_size])
        table = read(model.text, folder, model.vocab_size)
        write_arpa(table, folder / f"back{suffix}", units, vocabulary.pieces)
        assert contents(read_arpa(folder / f"back{suffix}", vocabulary, units)) == contents(table)

    @settings(deadline=None, max_examples=examples(300))
    @given(st.floats(-(2.0**127), 0, width=32), st.floats(-(2.0**127), 2.0**127, width=32) | st.floats(-1, 1, width=32))
    @example(-0.0, 0.0)
    @example(-227.95591735839844, -1e-45)
    def test_every_float32_comes_back(self, tmp_path_factory, log_prob, backoff):
        path = tmp_path_factory.getbasetemp() / "value.arpa"
        table = NGramTable.from_rows(
            1,
            [
                (torch.tensor([[0]]), torch.tensor([log_prob]), torch.tensor([backoff])),
                (torch.tensor([[0, 0]]), torch.tensor([log_prob / 2]), torch.tensor([0.0])),
            ],
        )
        write_arpa(table, path)
        assert contents(read_arpa(path, Vocabulary(1), "id")) == contents(table)

    def test_text(self, tmp_path):
        write_arpa(read(SMALL, tmp_path), tmp_path / "out.arpa")
        text = (tmp_path / "out.arpa").read_text()
        expected = [line.split() for line in LINES]
        found = [line.split() for line in text.splitlines()]
        assert sorted(found) == sorted(
            [*line, "0"] if len(line) == 2 and line[1] in ("<unk>", "</s>") else line for line in expected
        )
        assert text.splitlines()[:5] == LINES[:5]

    def test_kenlm_reads_it(self, tmp_path):
        kenlm = pytest.importorskip("kenlm")
        table = read_arpa(DATA / "demo_o3.arpa.gz", Vocabulary(256))
        write_arpa(table, tmp_path / "lm.arpa")
        model = kenlm.Model(str(tmp_path / "lm.arpa"))
        assert model.order == 3
        tokens = table.rows(3)[500].tolist()
        assert model.score(" ".join(map(str, tokens)), bos=False, eos=False) < 0

    def test_the_same_table_gives_the_same_bytes(self, tmp_path):
        table = read(SMALL, tmp_path)
        for name in ("a.arpa.gz", "b.arpa.gz"):
            write_arpa(table, tmp_path / name)
        assert (tmp_path / "a.arpa.gz").read_bytes() == (tmp_path / "b.arpa.gz").read_bytes()

    @pytest.mark.parametrize("suffix", [".arpa", ".arpa.gz", ".arpa.xz"])
    def test_whole_or_not_at_all(self, suffix, tmp_path, monkeypatch):
        table = read(SMALL, tmp_path)
        path = tmp_path / "folder" / f"lm{suffix}"
        path.parent.mkdir()
        path.write_bytes(b"old")

        def cut_short(*args):
            yield b"\\data\\\n"
            raise OSError("no space left on device")

        monkeypatch.setattr(arpa, "_arpa_text", cut_short)
        with pytest.raises(OSError, match="no space"):
            write_arpa(table, path)
        assert path.read_bytes() == b"old"
        assert list(path.parent.iterdir()) == [path]

    def test_overwrites_the_file_it_was_read_from(self, tmp_path):
        table = read(SMALL, tmp_path)
        write_arpa(table, tmp_path / "lm.arpa")
        assert contents(read_arpa(tmp_path / "lm.arpa", Vocabulary(2))) == expected_contents(SMALL)

    @pytest.mark.parametrize("piece", [None, "", "a b", "\t", "a\n", "\0", "<s>", "</s>", "<unk>", "<UNK>"])
    def test_pieces_that_cannot_be_written(self, piece, tmp_path):
        table = read(SMALL, tmp_path)
        (tmp_path / "lm.arpa").unlink()
        with pytest.raises(ValueError, match=r"token id 1 can't be written in 'piece' units .*use units='id'"):
            write_arpa(table, tmp_path / "lm.arpa", "piece", ["a", piece])
        assert not list(tmp_path.iterdir())

    def test_pieces_that_are_not_used_do_not_matter(self, tmp_path):
        table = read(SMALL, tmp_path, vocab_size=3)
        write_arpa(table, tmp_path / "out.arpa", "piece", ["a", "b", None])
        vocabulary = Vocabulary(3, pieces=("a", "b", None))
        assert contents(read_arpa(tmp_path / "out.arpa", vocabulary)) == expected_contents(SMALL, 3)

    def test_too_few_pieces(self, tmp_path):
        with pytest.raises(ValueError, match="1 pieces for a vocabulary of 2"):
            write_arpa(read(SMALL, tmp_path), tmp_path / "out.arpa", "piece", ["a"])

    def test_units_that_need_more(self, tmp_path):
        table = read(SMALL, tmp_path)
        with pytest.raises(ValueError, match="need the tokenizer"):
            write_arpa(table, tmp_path / "out.arpa", "piece")
        with pytest.raises(ValueError, match="must be 'id', 'nemo' or 'piece', got 'char'"):
            write_arpa(table, tmp_path / "out.arpa", "char")

    def test_nemo_s_characters_leave_out_surrogates(self):
        words = unit_words(60000, "nemo")
        assert [words[0], words[55195], words[55196], words[57243], words[57244]] == [
            "d",
            "\ud7ff",
            None,
            None,
            "\ue000",
        ]
        assert len(words) == 60000

    def test_nemo_s_characters_around_the_surrogates(self, tmp_path):
        ids = [0, 33, 60, 55195, 57244, 59999]
        columns = (torch.tensor(ids)[:, None], torch.full((6,), -1.0), torch.zeros(6))
        write_arpa(NGramTable.from_rows(60000, [columns]), tmp_path / "out.arpa", "nemo")
        for units in ("nemo", "auto"):
            table = read_arpa(tmp_path / "out.arpa", Vocabulary(60000), units)
            assert table.orders[0].tokens.tolist() == ids
        beyond = (torch.tensor([[56000]]), torch.full((1,), -1.0), torch.zeros(1))
        with pytest.raises(ValueError, match="token id 56000 can't be written in 'nemo' units"):
            write_arpa(NGramTable.from_rows(60000, [beyond]), tmp_path / "other.arpa", "nemo")


class TestBadFiles:
    def test_cut_short_anywhere(self, tmp_path):
        whole = gzip.decompress((DATA / "dice_o5_fallback.arpa.gz").read_bytes())
        whole = whole.rstrip(b"\n")
        for length in itertools.chain(range(0, 500, 7), range(500, len(whole), 97 * 23), range(len(whole) - 9, len(whole))):
            error_of(whole[:length], tmp_path, 7)
        read(whole, tmp_path, 7)

    def test_small_file_cut_short_at_every_byte(self, tmp_path):
        end = len(SMALL.rstrip())
        for length in range(end):
            error_of(SMALL[:length], tmp_path)
        for length in range(end, len(SMALL) + 1):
            assert contents(read(SMALL[:length], tmp_path)) == expected_contents(SMALL)

    @pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, lzma.compress])
    def test_compressed_file_cut_short(self, compress, tmp_path):
        packed = compress(SMALL.encode())
        for length in range(1, len(packed)):
            error_of(packed[:length], tmp_path)
        damaged = bytearray(packed)
        damaged[len(packed) // 2] ^= 0xFF
        assert "cut short or damaged" in error_of(bytes(damaged), tmp_path)

    def test_empty(self, tmp_path):
        assert error_of(b"", tmp_path).startswith(": the file is empty")
        assert "empty" in error_of(gzip.compress(b""), tmp_path)
        for blank in (b"\n", b"\xef\xbb\xbf", b" \n\n", b"\0"):
            assert "no line \\data\\" in error_of(blank, tmp_path)

    def test_other_files(self, tmp_path):
        generator = torch.Generator().manual_seed(0)
        garbage = bytes(torch.randint(0, 256, (100_000,), generator=generator).tolist())
        for content in (garbage, gzip.compress(garbage), b"{}", b"PK\3\4" + garbage, SMALL.encode("utf-16")):
            assert "not an ARPA file" in error_of(content, tmp_path)
        assert "KenLM binary" in error_of(b"mmap lm http://kheafield.com/code format version 5\n\0" + garbage, tmp_path)

    def test_a_folder_and_no_file(self, tmp_path):
        with pytest.raises(NGramFormatError, match=r"a folder, not an ARPA file; .*from_pretrained"):
            read_arpa(tmp_path, Vocabulary(2))
        with pytest.raises(FileNotFoundError, match=r"nothing\.arpa"):
            read_arpa(tmp_path / "nothing.arpa", Vocabulary(2))

    @pytest.mark.parametrize(
        ("old", "new", "message"),
        [
            ("-0.5\t0\t-0.4", "-0.5\t\xe9\t-0.4", r", line 10: not UTF-8 text: .*0xe9"),
            ("-0.6\t1 0", "-0.6\t1 \xff", r", line 16: not UTF-8 text: .*0xff"),
            ("ngram 2=4", "ngram 2=5", r": the header says 5 2-grams, the file has 4"),
            ("ngram 2=4", "ngram 2=3", r": the header says 3 2-grams, the file has 4"),
            ("ngram 1=5", "ngram 1=0", r": the header says 0 1-grams, the file has 5"),
            ("ngram 3=2", "ngram 3=" + "9" * 18, r": the header says 9{18} 3-grams, the file has 2"),
            ("ngram 3=2", "ngram 3=" + "9" * 5000, r", line 4: expected 'ngram N=COUNT' in the header, got 'ngram 3=9"),
            ("ngram 3=2", "ngram 3=-2", r", line 4: expected 'ngram N=COUNT'"),
            ("ngram 3=2\n", "", r", line 18: expected \\end\\, got '\\\\3-grams:'"),
            ("ngram 2=4\n", "", r": the header should count the orders 1, 2, ..., but counts 1, 3"),
            ("ngram 3=2", "ngram 3=2\nngram 3=2", r", line 5: the header counts 3-grams twice"),
            ("ngram 3=2", "ngram 999999999=2", r": the header should count .* but counts 1, 2, 999999999"),
            ("ngram 3=2", "ngram 3=2\nngram 4=1", r", line 24: expected \\4-grams:, got '\\\\end"),
            ("ngram 1=5\nngram 2=4\nngram 3=2\n", "", r": the header should count .* but counts none"),
            ("ngram 1=5", "order 1=5", r", line 2: expected 'ngram N=COUNT' in the header, got 'order 1=5'"),
            ("\\data\\", "\\date\\", r": not an ARPA file: no line \\data\\ \(it begins with '\\\\date\\\\'\)"),
            ("\\1-grams:", "\\1-gram:", r", line 6: expected \\1-grams:, got '\\\\1-gram:'"),
            ("\\2-grams:", "", r", line 19: expected \\2-grams:, got '\\\\3-grams:'"),
            ("\\end\\", "", r": no line \\end\\; is the file cut short\?"),
            ("\n-0.5", "\nnan", r", line 10: the log-probability nan should be a finite number of at most 0"),
            ("\n-0.5", "\n0.5", r", line 10: the log-probability 0.5 should be"),
            ("\n-0.5", "\ninf", r", line 10: the log-probability inf should be"),
            ("\n-0.5", "\n-1e38", r", line 10: the log-probability -1e\+38 should be"),
            ("\n-0.5", "\n-0,5", r", line 10: '-0,5' isn't a number"),
            ("\n-0.8", "\nx", r", line 15: 'x' isn't a number"),
            ("\t-0.35", "\tnan", r", line 15: the backoff nan should be a finite number"),
            ("\t-0.35", "\t1e39", r", line 15: the backoff 1e\+39 should be a finite number"),
            ("\t-0.35", "\t<s>", r", line 15: '<s>' isn't a number"),
            (
                "1 0\t-0.05",
                "1",
                r", line 16: expected a log-probability, 2 word\(s\) and possibly a backoff, got '-0.6",
            ),
            ("-0.6\t1 0", "-0.6\t1 0 0 1", r", line 16: expected a log-probability, 2 word"),
            ("-0.6\t1 0\t-0.05", "\x01", r", line 16: expected a log-probability"),
            ("-0.6\t1 0", "-0.6\t1 7", r", line 16: the word '7' isn't among the 1-grams"),
            ("\t1\t-0.2", "\t7\t-0.2", r": 1 of 2 unigrams, such as '7', are outside the vocabulary when read as id"),
            ("\t1\t-0.2", "\t-1\t-0.2", r": 1 of 2 unigrams, such as '-1', are outside the vocabulary"),
            ("\t1\t-0.2", "\t0\t-0.2", r": '0' occurs more than once among the 1-grams"),
            ("\t1\t-0.2", "\t00\t-0.2", r": '0' and '00' are both token id 0 when read as id units"),
            ("-1.2\t</s>", "-1.5\t<UNK>", r", line 17: the word '</s>' isn't among the 1-grams"),
            ("-0.6\t1 0", "-0.6\t0 0", r": the 2-gram \(0 0\) occurs more than once"),
            ("-0.6\t1 0", "-0.6\t0 1", r": the 3-gram \(1 0 0\) has no prefix: \(1 0\) isn't among the 2-grams"),
        ],
    )
    def test_one_fault(self, old, new, message, tmp_path):
        assert SMALL.count(old) == 1
        assert re.match(message, error_of(SMALL.replace(old, new).encode("latin-1"), tmp_path))

    @pytest.mark.parametrize("zeros", [False, True], ids=["plain", "long"])
    def test_the_first_fault_of_several(self, zeros, tmp_path, monkeypatch):
        """Also where many numbers are left to Python."""
        monkeypatch.setattr(arpa, "NUMBERS_LEFT", 2)
        text = re.sub(r"-0\.(\d+)", r"-0.\g<1>00000000000000000000", SMALL) if zeros else SMALL
        for old, new, line in (
            ("\t1 0 0", "x\t1 0 0", 21),
            ("\t1 </s>", "nan\t1 </s>", 17),
            ("\t0 0\t", "\t0 0\ty", 15),
            ("\t0 0\t", "\t0 7\t", 15),
        ):
            assert old in text
            message = error_of(text.replace(old, new).replace("1 0 0\n", "1 0 0\nz\n"), tmp_path)
            assert message.startswith(f", line {line}: "), message

    def test_words_that_are_no_text(self, tmp_path):
        assert re.match(
            r", line 9: not UTF-8 text",
            error_of(SMALL.replace("\t</s>\t", "\t\udcff\t").encode("utf-8", "surrogateescape"), tmp_path),
        )

    def test_more_ngrams_than_promised(self, tmp_path):
        more = SMALL.replace("\\3-grams:", "".join(f"-1 0 {i}\n" for i in range(2)) * 50 + "\\3-grams:")
        assert error_of(more, tmp_path) == ": the header says 4 2-grams, the file has 104"
        assert "line 119: expected" in error_of(more.replace("\n\\3-grams:", "\n-1\n\\3-grams:"), tmp_path)

    def test_many_orders_promised(self, tmp_path):
        header = "\n".join(["\\data\\", *(f"ngram {n}=1" for n in range(1, 100_001))])
        assert "line 100002: expected" in error_of(f"{header}\n\\end\\\n", tmp_path)
        assert "no line \\1-grams:" in error_of(header, tmp_path)

    def test_more_orders_than_anyone_uses(self, tmp_path):
        def model(order):
            header = "".join(f"ngram {n}=1\n" for n in range(1, order + 1))
            return f"\\data\\\n{header}" + "".join(f"\\{n}-grams:\n-1{' 0' * n}\n" for n in range(1, order + 1)) + "\\end\\\n"

        assert read(model(64), tmp_path).order == 64
        assert error_of(model(65), tmp_path) == ": the file has n-grams of 65 orders; at most 64 are read"

    @pytest.mark.parametrize("number", ["1_0", "-1_0", "0x1", "1.5\0", "\uff11", "\x1c1", "--1", "1e", "infinit"])
    def test_what_other_languages_call_numbers(self, number, tmp_path):
        assert re.match(r", line 15: .* isn't a number", error_of(SMALL.replace("-0.35", number), tmp_path))

    @pytest.mark.parametrize("lines", ["\n", "\\\n", "\\data\\ x\n", "ngram 1=1\n", " \n"])
    @pytest.mark.parametrize("begin", ["", "\\data\\\n", "\\data\\\nngram 1=1\n"])
    def test_a_header_that_unpacks_to_millions_of_lines(self, begin, lines, tmp_path):
        content = gzip.compress((begin + lines * (15_000_000 // len(lines))).encode(), 1)
        began = time.process_time()
        message = error_of(content, tmp_path)
        assert time.process_time() - began < 5
        assert re.match(
            r": not an ARPA file: no line \\data\\ within its first 4,194,304 bytes \(it begins with"
            r"|: no line \\1-grams: within the first 4,194,304 bytes; a header has one line per order"
            r"|, line 2: expected|, line 3: expected|, line 3: the header counts 1-grams twice|: the header should count",
            message,
        )

    @pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, lzma.compress])
    @pytest.mark.parametrize("content", [b"\n", b"-1\t0\n", b"\0"])
    def test_a_small_file_that_unpacks_to_a_large_one(self, content, compress, tmp_path, monkeypatch):
        monkeypatch.setattr(arpa, "MIN_UNPACKED_LIMIT", 1 << 20)
        before, after = SMALL.split("\\2-grams")
        packed = compress(before.encode() + content * ((1 << 24) // len(content)) + after.encode())
        assert re.fullmatch(
            r": it unpacks to over \d+ bytes, out of proportion to its size; decompress it first", error_of(packed, tmp_path)
        )

    def test_no_unigrams(self, tmp_path):
        assert "at least one unigram" in error_of("\\data\\\nngram 1=0\n\\1-grams:\n\\end\\\n", tmp_path)

    def test_nothing_is_logged_for_a_good_file(self, tmp_path, caplog):
        with caplog.at_level(logging.DEBUG):
            automaton_from_table(read(SMALL, tmp_path, 3))
        assert not caplog.records

    def test_word_level_model_names_the_way_out(self, tmp_path):
        words = SMALL.replace("\t0\t", "\tplayed\t").replace("\t1\t", "\tmusic\t")
        vocabulary = Vocabulary(3, pieces=("▁pl", "ay", "ed"), tokenizer_id="org/asr")
        (tmp_path / "words.arpa").write_text(words)
        with pytest.raises(NGramFormatError, match=r"word-level language model \(units such as 'played', 'music'\)") as caught:
            read_arpa(tmp_path / "words.arpa", vocabulary)
        for part in ("words.arpa", "org/asr", "hf-ngpulm train", "NGramLM.from_texts"):
            assert part in str(caught.value)


@settings(deadline=None, max_examples=examples(400))
@given(
    st.lists(st.tuples(st.integers(0, len(SMALL) - 1), st.binary(min_size=0, max_size=3), st.integers(0, 4)), min_size=1),
    st.sampled_from(["id", "auto", "nemo"]),
)
def test_damaged_files_are_read_or_refused(tmp_path_factory, changes, units):
    content = SMALL.encode()
    for at, inserted, removed in changes:
        content = content[:at] + inserted + content[at + removed :]
    refused_or_read(content, tmp_path_factory.getbasetemp(), units)


PARTS = [
    *LINES,
    *SMALL.split(),
    "\t",
    " ",
    "\n",
    "\r",
    "\0",
    "-99",
    "1e400",
    "é",
    "\ud800",
    "\x85",
    "\\",
    "ngram ",
    "9" * 400,
]


@settings(deadline=None, max_examples=400)
@given(st.lists(st.tuples(st.integers(0, len(LINES)), st.sampled_from(PARTS), st.booleans()), min_size=1, max_size=6))
def test_lines_changed_are_read_or_refused(tmp_path_factory, changes):
    lines = list(LINES)
    for at, part, instead in changes:
        lines[at : at + instead] = [part]
    content = "\n".join(lines).encode("utf-8", "surrogatepass")
    refused_or_read(content, tmp_path_factory.getbasetemp(), "auto")


def refused_or_read(content: bytes, folder: Path, units: str) -> None:
    try:
        table = read(content, folder, 2, units)
    except NGramFormatError as error:
        assert "lm.arpa" in str(error)
        return
    automaton, _ = automaton_from_table(table)
    automaton.validate()
    assert torch.isfinite(automaton.scores(automaton.roots)).all()
