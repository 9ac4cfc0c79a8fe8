"""Texts come out of every kind of file as they went in; what can't be read is one clear error."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_ngpulm.text import read_ids, read_texts, total_bytes

OPENERS = {"": open, ".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
SENTENCES = ["set an alarm", "what's the weather", "grüße aus köln", "one, two"]


def write(path, data):
    with OPENERS.get(path.suffix, open)(path, "wb") as file:
        file.write(data)
    return str(path)


sentences = st.lists(
    st.text(st.characters(exclude_categories=("Cs", "Cc", "Zl", "Zp", "Zs")), min_size=1, max_size=12), max_size=8
).map(lambda rows: [row for row in rows if row.strip()])


@settings(deadline=None, max_examples=60)
@given(rows=sentences, end=st.sampled_from(["\n", "\r\n"]), kind=st.sampled_from(sorted(OPENERS)), bom=st.booleans())
def test_lines_come_back(tmp_path_factory, rows, end, kind, bom):
    path = tmp_path_factory.mktemp("texts") / f"a.txt{kind}"
    text = ("\ufeff" if bom else "") + end + "".join(f" {row}{end}{end}" for row in rows)
    write(path, text.encode())
    assert list(read_texts([path])) == ["", *(line for row in rows for line in (row.strip(), ""))]


@pytest.mark.parametrize("kind", ["", ".gz", ".xz"])
@pytest.mark.parametrize("field", ["text", "sentence", "normalized_text", "other"])
def test_json_lines(tmp_path, kind, field):
    data = "\n".join(json.dumps({"audio": "a.wav", field: row, "duration": 1.5}) for row in SENTENCES)
    for name in ("a.jsonl", "a.json", "a.ndjson"):
        path = write(tmp_path / (name + kind), data.encode())
        assert list(read_texts([path], field=field)) == SENTENCES
        if field != "other":
            assert list(read_texts([path])) == SENTENCES


def test_texts_without_words(tmp_path):
    texts = ["a", "", " ", "b", ""]
    lines = {
        "a.txt": "a\n\n \nb\n\n",
        "a.jsonl": "\n\n".join(json.dumps({"text": text}) for text in texts),
        "a.json": json.dumps([{"text": text} for text in texts]),
        "a.csv": "id,text\n" + "".join(f"{i},{text}\n" for i, text in enumerate(texts)),
    }
    pq.write_table(pa.table({"text": texts}), tmp_path / "a.parquet")
    for path in [write(tmp_path / name, content.encode()) for name, content in lines.items()] + [tmp_path / "a.parquet"]:
        assert list(read_texts([path])) == ["a", "", "", "b", ""]


def test_a_json_array(tmp_path):
    path = write(tmp_path / "a.json", json.dumps([{"text": row} for row in SENTENCES], indent=1).encode())
    assert list(read_texts([path])) == SENTENCES


def test_parquet_without_pyarrow_names_the_extra(tmp_path, monkeypatch):
    (tmp_path / "a.parquet").touch()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r"a\.parquet: Parquet files need pyarrow: pip install 'hf-ngpulm\[eval\]'"):
        list(read_texts([tmp_path / "a.parquet"]))


def test_parquet(tmp_path):
    table = pa.table({"sentence": [*SENTENCES, None], "n": range(5)})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=2)
    assert list(read_texts([tmp_path / "a.parquet"])) == SENTENCES


@pytest.mark.parametrize(("name", "delimiter"), [("a.csv", ","), ("a.tsv", "\t"), ("a.csv.gz", ",")])
def test_tables(tmp_path, name, delimiter):
    rows = "\n".join(f'{i}{delimiter}"{row}"' for i, row in enumerate(SENTENCES))
    path = write(tmp_path / name, f"id{delimiter}transcript\n{rows}\n".encode())
    assert list(read_texts([path])) == SENTENCES


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_what_tables_may_have(tmp_path, end):
    lines = ["", "id,text", "1,a b", "", '2,"a, b"', '3,"a ""b"" c"', f'4,"a{end}b"', "5,", '6,a "b" c']
    path = write(tmp_path / "a.csv", ("\ufeff" + end.join(lines)).encode())
    assert list(read_texts([path])) == ["a b", "a, b", 'a "b" c', f"a{end}b", "", 'a "b" c']


def test_a_table_that_begins_with_numbers(tmp_path):
    rows = ["12", "2020-01-01", "true", "NA", "a b"] * 50_000  # more than the first block
    path = write(tmp_path / "a.csv", "text\n{}\n".format("\n".join(["7"] * 200_000 + rows)).encode())
    assert list(read_texts([path])) == ["7"] * 200_000 + rows


def test_a_saved_dataset(tmp_path):
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_dict({"text": SENTENCES, "id": [1, 2, 3, 4]}).save_to_disk(tmp_path / "data")
    assert list(read_texts([str(tmp_path / "data")])) == SENTENCES


def test_a_dataset_on_the_hub(monkeypatch):
    datasets = pytest.importorskip("datasets")
    asked = []

    def load(*arguments, **settings):
        asked.append((arguments, settings))
        return datasets.Dataset.from_dict({"sentence": SENTENCES, "audio": [0] * 4}).to_iterable_dataset()

    monkeypatch.setattr(datasets, "load_dataset", load)
    assert list(read_texts(["org/name:de"], split="validation")) == SENTENCES
    assert asked == [(("org/name", "de"), {"split": "validation", "streaming": True})]


def test_standard_input(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a b\nc\n")))
    assert list(read_texts(["-"])) == ["a b", "c"]


def test_several_inputs_and_progress(tmp_path):
    first = write(tmp_path / "a.txt", b"one\n" * 1000)
    second = write(tmp_path / "b.jsonl.gz", b'{"text": "two"}\n')
    read = []
    assert list(read_texts([first, second], progress=read.append)) == ["one"] * 1000 + ["two"]
    assert sum(read) == total_bytes([first, second])
    assert total_bytes([first, "org/name"]) is None


BAD = {
    "a.txt": [
        (b"good\nb\xffd\n", "a.txt, line 2: not UTF-8 text"),
        (b"good\nb\0d\n", "a.txt, line 2: a zero byte; this looks like a binary file"),
    ],
    "a.txt.gz": [
        (gzip.compress(b"some text\n" * 9000)[:-30], "cut short or damaged"),
        (b"plain text", "the compressed file is damaged"),
    ],
    "a.txt.xz": [(lzma.compress(b"some text\n" * 999)[:-30], "cut short or damaged")],
    "a.jsonl": [
        (b'{"text": "a"}\n{"txt": "b"}\n', "a.jsonl, line 2: none of the fields text, sentence.*there are 'txt'"),
        (b'{"text": "a"}\n{"text":\n', "a.jsonl, line 2: not a JSON object"),
        (b'{"text": 5}\n', "line 1: the field 'text' isn't text, but '5'"),
        (b'"a"\n', "line 1: expected an object"),
    ],
    "a.json": [(b'[{"text": "a"}, {"t": 1}]', "entry 2: none of the fields"), (b'[{"text": "a"}, ', "not JSON")],
    "a.parquet": [(b"not parquet", "not a Parquet file")],
    "a.csv": [
        (b"a,b\n1,2\n", "a.csv: none of the fields"),
        (b"", "a.csv: none of the fields"),
        (b"text,b\n1,2\n\n3\n", "a.csv, line 4: 1 fields, the header has 2"),
        (b"text,b\n1,2,3\n", "a.csv, line 2: 3 fields, the header has 2"),
        (b"text\na\nb\xff\n", "a.csv, line .: can't be read as a table: .*0xff"),
        (b"text\n" + b"a" * 200_000, "a.csv, line .: can't be read as a table: field larger than"),
    ],
}


@pytest.mark.parametrize(("name", "data", "message"), [(name, *case) for name, cases in BAD.items() for case in cases])
def test_bad_files(tmp_path, name, data, message):
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(ValueError, match=message):
        list(read_texts([path]))


def test_a_field_that_is_not_there(tmp_path):
    path = write(tmp_path / "a.jsonl", b'{"text": "a"}\n')
    with pytest.raises(ValueError, match="line 1: no field 'words'; there are 'text'"):
        list(read_texts([path], field="words"))


def test_a_column_that_is_not_text(tmp_path):
    pq.write_table(pa.table({"text": [1, 2]}), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match="the column 'text' isn't text, but int64"):
        list(read_texts([tmp_path / "a.parquet"]))


@pytest.mark.parametrize("name", ["missing.txt", "no/such/file.txt", "a b"])
def test_missing_files(name):
    with pytest.raises(FileNotFoundError, match="no such file"):
        list(read_texts([name]))


@settings(deadline=None, max_examples=60)
@given(st.lists(st.lists(st.integers(0, 2**31 - 1), max_size=6), max_size=20), st.sampled_from(["\n", "\r\n"]), st.booleans())
def test_ids(tmp_path_factory, rows, end, ended):
    path = tmp_path_factory.mktemp("ids") / "a.ids"
    text = end.join("  ".join(map(str, row)) for row in rows) + (end if ended and rows else "")
    path.write_bytes(text.encode())
    blocks = list(read_ids([path]))
    ids = np.concatenate([np.zeros(0, dtype=int), *(ids for ids, _ in blocks)]).tolist()
    assert ids == [token for row in rows for token in row]
    lengths = [size for _, block in blocks for size in block.tolist()]
    wanted = [len(row) for row in rows]
    if rows and not ended and not rows[-1]:
        wanted.pop()  # an empty line without an end isn't one
    assert lengths == wanted


def test_ids_across_blocks(tmp_path):
    path = tmp_path / "a.ids"
    path.write_text("12 345 6\n" * 700_000 + "7")
    blocks = list(read_ids([path]))
    assert len(blocks) > 1
    assert np.concatenate([ids for ids, _ in blocks]).tolist() == [12, 345, 6] * 700_000 + [7]
    assert sum(len(lengths) for _, lengths in blocks) == 700_001


def test_bad_ids(tmp_path):
    path = tmp_path / "a.ids"
    path.write_text("1 2\n3 four 5\n")
    with pytest.raises(ValueError, match="line 2: expected decimal token ids, got '3 four 5'"):
        list(read_ids([path]))
    path.write_text("1 22222222222\n")
    with pytest.raises(ValueError, match="more than ten digits"):
        list(read_ids([path]))
