"""NGramLM: its files, what it refuses, and what it says of texts."""

from __future__ import annotations

import copy
import dataclasses
import errno
import gzip
import json
import math
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from arpa_models import BruteForce
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

from hf_ngpulm import NGramFormatError, NGramLM, TokenizerMismatchError
from hf_ngpulm.common.bundled import bundled
from hf_ngpulm.config.config import NGramLMConfig
from hf_ngpulm.config.tuned import ModelIdentity, TunedDecoding
from hf_ngpulm.formats.safetensors import TENSORS, tensors_of
from hf_ngpulm.language_model import hub
from hf_ngpulm.language_model.loading import load_language_model
from hf_ngpulm.text.vocabulary import Vocabulary

ROOT = Path(__file__).parents[1]
MODEL = bundled("examples/models/ctc")
ARPA = bundled("examples/speech/harbour/lm.arpa.gz")
NEMO = Path(__file__).parents[1] / "data" / "nemo" / "tiny.nemo"
LN10 = math.log(10.0)

# Ids 2 and 4 have no unigram; a 2-gram ends a sentence, the start of one is a context.
SMALL = """\\data\\
ngram 1=6
ngram 2=5
ngram 3=2

\\1-grams:
-99\t<s>\t-0.3
-0.9\t</s>
-1.5\t<unk>\t-0.05
-0.5\t0\t-0.2
-0.6\t1\t-0.1
-0.8\t3\t-0.4

\\2-grams:
-0.25\t<s> 0\t-0.15
-0.35\t0 1\t-0.5
-0.45\t1 3\t0
-0.55\t3 </s>
-0.65\t1 0\t-0.7

\\3-grams:
-0.12\t<s> 0 1
-0.22\t0 1 3

\\end\\
"""


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(MODEL)


@pytest.fixture(scope="module")
def lm(tokenizer):
    return NGramLM.from_arpa(ARPA, tokenizer)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    path = tmp_path_factory.mktemp("small") / "small.arpa"
    path.write_text(SMALL)
    return NGramLM.from_arpa(path, vocab_size=5)


@pytest.fixture
def folder(small, tmp_path):
    """A saved model to spoil."""
    small.save_pretrained(tmp_path / "lm")
    return tmp_path / "lm"


def assert_same(one, other):
    assert one.config == other.config
    assert one.pieces == other.pieces
    for (name, ours), theirs in zip(one.named_buffers(), other.buffers(), strict=True):
        assert ours.dtype == theirs.dtype and torch.equal(ours, theirs), name


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def rewrite(folder, metadata=None, drop=(), **changed):
    """Replace, add or drop tensors of a saved model."""
    path = folder / "model.safetensors"
    tensors = {name: tensor for name, tensor in {**load_file(path), **changed}.items() if name not in drop}
    save_file(tensors, path, metadata={"format": "pt", **(metadata or {})})


# -- made and kept


def test_save_and_load(lm, tmp_path):
    lm.save_pretrained(tmp_path / "saved")
    assert sorted(contents(tmp_path / "saved")) == ["README.md", "config.json", "model.safetensors"]
    again = NGramLM.from_pretrained(tmp_path / "saved")
    assert_same(again, lm)
    assert again.order == 6 and sum(again.num_ngrams) == 45054
    assert_same(NGramLM.from_pretrained(str(tmp_path), subfolder="saved", engine="reference", device="cpu"), lm)
    assert json.loads((tmp_path / "saved" / "config.json").read_text())["tokenizer_id"] == "ctc"  # the folder's own name


def test_saving_again_keeps_the_card_and_replaces_the_rest(lm, folder):
    (folder / "README.md").write_text("mine")
    lm.save_pretrained(folder)
    assert (folder / "README.md").read_text() == "mine"
    assert_same(NGramLM.from_pretrained(folder), lm)
    loaded = NGramLM.from_pretrained(folder)
    loaded.save_pretrained(folder)  # over the very files that it came from
    assert_same(NGramLM.from_pretrained(folder), lm)


@pytest.mark.parametrize("what", ["weights", "config", "card"])
def test_a_failing_write_leaves_the_old_files(lm, folder, what, monkeypatch):
    if what == "card":
        (folder / "README.md").unlink()
    before = contents(folder)

    def full_disk(*_, **__):
        raise OSError("no space left on device")

    def half_written(folder, *_):
        (folder / "model.safetensors").write_bytes(b"half")
        full_disk()

    if what == "weights":
        monkeypatch.setattr(hub, "save_tensors", half_written)
    elif what == "config":
        monkeypatch.setattr(NGramLMConfig, "to_dict", full_disk)
    else:
        monkeypatch.setattr(NGramLM, "model_card", full_disk)
    with pytest.raises(OSError, match="no space left"):
        lm.save_pretrained(folder)
    assert contents(folder) == before


def test_from_nemo(tokenizer, tmp_path):
    lm = NGramLM.from_nemo(NEMO)
    lm.save_pretrained(tmp_path / "lm")
    assert_same(NGramLM.from_pretrained(tmp_path / "lm"), lm)
    with gzip.open(NEMO.with_name("tiny.arpa.gz"), "rt", encoding="utf-8") as file:
        brute = BruteForce(file.read())
    known = [token for token in range(lm.vocab_size) if (chr(token + 100),) in brute.log_probs]
    for token in known:
        ours = float(lm.scores(lm.initial_states(1))[0, token])
        assert ours == pytest.approx(brute.score(("<s>",), chr(token + 100)) * LN10, abs=1e-4)
    # Fewer ids than the tokenizer has: these are taken for its first ones.
    named = NGramLM.from_nemo(NEMO, tokenizer)
    assert named.pieces == tuple(tokenizer.convert_ids_to_tokens(range(lm.vocab_size)))
    assert named.config.tokenizer_fingerprint and lm.config.tokenizer_fingerprint is None


@pytest.mark.parametrize(
    ("units", "name"), [("piece", "lm.arpa"), ("id", "lm.arpa.gz"), ("nemo", "lm.arpa"), (None, "lm.arpa.gz")]
)
def test_to_arpa_and_back(lm, tokenizer, tmp_path, units, name):
    lm.to_arpa(tmp_path / name, units)
    assert_same(NGramLM.from_arpa(tmp_path / name, tokenizer, units=units or "piece"), lm)
    assert_same(NGramLM.from_arpa(tmp_path / name, tokenizer), lm)  # units detected


def test_to_arpa_without_pieces(small, tmp_path):
    small.to_arpa(tmp_path / "out.arpa")
    text = (tmp_path / "out.arpa").read_text()
    assert "0 1 3" in text and "<unk>" in text
    assert_same(NGramLM.from_arpa(tmp_path / "out.arpa", vocab_size=5), small)
    with pytest.raises(ValueError, match="piece"):
        small.to_arpa(tmp_path / "pieces.arpa", "piece")
    assert not (tmp_path / "pieces.arpa").exists()


def test_model_card(lm, small, tmp_path):
    card = lm.model_card("alice/ships", asr_model="alice/parakeet")
    assert "$" not in card
    for figure in ('lm="alice/ships"', 'model="alice/parakeet"', "# ships", "6-gram", "45,054", f"{lm.num_arcs:,}"):
        assert figure in card
    assert lm.config.tokenizer_fingerprint in card
    bare = small.model_card()
    assert "$" not in bare and "2 (they share" in bare and "built from bare token ids" in bare
    for missing, said in (("unk", "each has the probability of"), (-7.5, "-7.5")):
        config = dataclasses.replace(small.config, missing_unigrams=missing)
        changed = copy.deepcopy(small)
        changed.config = config
        assert said in changed.model_card()
    small.save_pretrained(tmp_path / "named", model_card_kwargs={"asr_model": "org/asr", "repo_id": "org/other"})
    written = (tmp_path / "named" / "README.md").read_text()
    assert 'model="org/asr", lm="org/other"' in written and "$" not in written


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_changing_the_dtype_keeps_float32(small, dtype):
    changed = copy.deepcopy(small).to(dtype)
    assert_same(changed, small)
    assert_same(torch.nn.ModuleList([copy.deepcopy(small)]).to(dtype)[0], small)
    assert_same(copy.deepcopy(small).half().double(), small)


def test_deepcopy_shares_nothing(small):
    copied = copy.deepcopy(small)
    assert_same(copied, small)
    copied.tensors.arc_weights.zero_()
    assert float(small.tensors.arc_weights.abs().sum()) > 0
    assert "vocab_size=5" in repr(copied)


@pytest.mark.parametrize("missing", ["share", "unk", -6.5])
def test_missing_unigrams(tmp_path, missing):
    path = tmp_path / "small.arpa"
    path.write_text(SMALL)
    lm = NGramLM.from_arpa(path, vocab_size=5, missing_unigrams=missing)
    unk = -1.5 * LN10
    expected = {"share": unk - math.log(2), "unk": unk}.get(missing, missing)
    assert float(lm.scores(lm.roots)[0, 2]) == pytest.approx(expected, abs=1e-5)
    lm.save_pretrained(tmp_path / "lm")
    assert NGramLM.from_pretrained(tmp_path / "lm").config.missing_unigrams == missing


# -- asked


def brute_score(brute, tokens, missing_log10):
    """Natural log-probability of a sentence by the textbook recursion; `missing_log10` is added per unknown token."""
    words = ("<s>", *map(str, tokens), "</s>")
    total = 0.0
    for i in range(1, len(words)):
        total += brute.score(words[:i], words[i])
        if words[i] != "</s>" and (words[i],) not in brute.log_probs:
            total += missing_log10
    return total * LN10


def test_score_texts_and_perplexity_are_the_textbook_recursion(lm, tokenizer):
    with gzip.open(ARPA, "rt", encoding="utf-8") as file:
        brute = BruteForce(file.read())
    texts = ["set a course for the old lighthouse", "keep the green buoy", "", "zyx qqq jjj", "all hands on deck now"] * 2
    rows = tokenizer(texts, add_special_tokens=False)["input_ids"]
    missing = -math.log10(lm.unk_tokens.numel())
    expected = [brute_score(brute, row, missing) for row in rows]
    for batch_size in (1, 3, 1024):
        scored = lm.score_texts(texts, tokenizer, batch_size=batch_size)
        assert [row for _, row in scored] == rows
        assert [score for score, _ in scored] == pytest.approx(expected, rel=1e-5)
    assert lm.score_texts([], tokenizer) == []

    result = lm.perplexity(iter(texts), tokenizer)
    num_tokens, num_words = sum(map(len, rows)), sum(len(text.split()) for text in texts)
    assert (result.num_tokens, result.num_words, result.num_sentences) == (num_tokens, num_words, len(texts))
    assert result.num_missing == sum((str(token),) not in brute.log_probs for row in rows for token in row)
    assert result.log_prob == pytest.approx(math.fsum(expected), rel=1e-5)
    assert result.per_token == pytest.approx(math.exp(-math.fsum(expected) / (num_tokens + len(texts))), rel=1e-4)
    assert result.per_word == pytest.approx(math.exp(-math.fsum(expected) / (num_words + len(texts))), rel=1e-4)


def test_missing_tokens_are_counted_and_scored(small):
    brute = BruteForce(SMALL)
    rows = [[0, 1, 3], [2], [0, 1, 2, 3, 3, 4], [4, 4, 1, 0]]
    token_ids = torch.full((4, 6), -1)
    for i, row in enumerate(rows):
        token_ids[i, : len(row)] = torch.tensor(row)
    scores = small.score_sequences(token_ids, torch.tensor([len(row) for row in rows]))
    expected = [brute_score(brute, row, -math.log10(2)) for row in rows]
    assert scores.tolist() == pytest.approx(expected, abs=1e-4)


def test_perplexity_refuses(lm, tokenizer):
    with pytest.raises(ValueError, match="at least one text"):
        lm.perplexity([], tokenizer)
    other = AutoTokenizer.from_pretrained(MODEL)
    other.add_tokens(["▁lighthouse"])
    changed = NGramLM.from_table(lm.to_table(), Vocabulary.of(tokenizer, lm.vocab_size))
    changed.config = dataclasses.replace(changed.config, tokenizer_fingerprint="0" * 64)
    with pytest.raises(TokenizerMismatchError, match="made for the tokenizer of 'ctc'"):
        changed.perplexity(["a"], other)
    lm.check_tokenizer(other)  # only ids after the model's differ


# -- load_language_model


def test_load_language_model(lm, small, folder, tokenizer, tmp_path, monkeypatch):
    assert_same(load_language_model(ARPA, tokenizer), lm)
    assert_same(load_language_model(str(ARPA), tokenizer, device="cpu"), lm)
    assert_same(load_language_model(str(folder)), small)
    assert_same(load_language_model(folder), small)
    assert_same(load_language_model(NEMO), NGramLM.from_nemo(NEMO))
    odd_name = tmp_path / "model"  # an ARPA file by any name
    shutil.copy(ARPA, odd_name)
    assert_same(load_language_model(odd_name, tokenizer), lm)
    for missing in (tmp_path / "no.arpa", f"{tmp_path}/no such folder", "no/such/folder", "./nothing"):
        with pytest.raises(FileNotFoundError, match=r"neither a folder nor the id|no such file"):
            load_language_model(missing)
    with pytest.raises(NGramFormatError):
        load_language_model(folder / "config.json", tokenizer)
    with pytest.raises(ValueError, match="vocab_size"):
        load_language_model(ARPA)


# -- refused


@pytest.mark.parametrize("name", ["folder", "not there", "empty"])
def test_folders_that_are_no_language_model(name, tmp_path):
    where = {"folder": MODEL, "not there": tmp_path, "empty": tmp_path}[name]
    subfolder = "nothing" if name == "not there" else None
    with pytest.raises(NGramFormatError, match=r"not an n-gram language model.*'parakeet_ctc'|has no config\.json"):
        NGramLM.from_pretrained(where, subfolder=subfolder)


def test_a_missing_file_is_named(folder):
    (folder / "model.safetensors").unlink()
    with pytest.raises(NGramFormatError, match=r"has no model\.safetensors"):
        NGramLM.from_pretrained(folder)


WRONG_FIELDS = [
    ("model_type", "gpt2"),
    ("model_type", None),
    ("format_version", 2),
    ("format_version", "1"),
    ("vocab_size", 0),
    ("vocab_size", -5),
    ("vocab_size", 5.0),
    ("vocab_size", True),
    ("vocab_size", "5"),
    ("vocab_size", None),
    ("order", 0),
    ("order", [3]),
    ("num_ngrams", None),
    ("num_ngrams", [6, 5]),
    ("num_ngrams", [6, 5, -2]),
    ("num_ngrams", [6, 5, 2.0]),
    ("num_ngrams", "652"),
    ("states_per_depth", [1, 4]),
    ("states_per_depth", {"1": 4}),
    ("unk_log_prob", "low"),
    ("unk_log_prob", math.nan),
    ("unk_log_prob", 10**400),
    ("bos_log_prob", -math.inf),
    ("bos_log_prob", False),
    ("missing_unigrams", "drop"),
    ("missing_unigrams", None),
    ("missing_unigrams", ["share"]),
    ("missing_unigrams", math.inf),
    ("tokenizer_id", 7),
    ("tokenizer_fingerprint", ["ab"]),
]


@pytest.mark.parametrize(("field", "value"), WRONG_FIELDS, ids=lambda value: str(value)[:12])
def test_wrong_config_fields_are_named(folder, field, value):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), field: value}))
    with pytest.raises(NGramFormatError, match=rf"config\.json: .*{field}"):
        NGramLM.from_pretrained(folder)


@pytest.mark.parametrize("field", ["model_type", "format_version", "vocab_size", "order", "num_ngrams", "states_per_depth"])
def test_missing_config_fields_are_named(folder, field):
    path = folder / "config.json"
    values = json.loads(path.read_text())
    del values[field]
    path.write_text(json.dumps(values))
    with pytest.raises(NGramFormatError, match=rf"config\.json: .*{field}"):
        NGramLM.from_pretrained(folder)


@pytest.mark.parametrize("text", [b"", b"{", b"\xff\xfe{}", b"[" * 100_000, b'{"order": ' + b"9" * 5000 + b"}"], ids=len)
def test_config_that_is_not_json(folder, text):
    (folder / "config.json").write_bytes(text)
    with pytest.raises(NGramFormatError, match=r"config\.json isn't JSON"):
        NGramLM.from_pretrained(folder)


@pytest.mark.parametrize("text", [b"[]", b"null", b'"ngram_lm"', b"3"])
def test_config_that_is_no_mapping(folder, text):
    (folder / "config.json").write_bytes(text)
    with pytest.raises(NGramFormatError, match="not an n-gram language model"):
        NGramLM.from_pretrained(folder)


def test_unknown_config_fields_are_left_aside(folder, small):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "author": "somebody"}))
    assert_same(NGramLM.from_pretrained(folder), small)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"vocab_size": 4}, "arc_tokens"),
        ({"vocab_size": 6}, ""),  # its root then lacks an arc: a sparse automaton, still well defined
        ({"vocab_size": 2**31}, "vocabulary size"),
        ({"vocab_size": 10**30}, "vocabulary size"),
        ({"order": 1, "num_ngrams": [6], "states_per_depth": [1]}, "steps to reach a root"),
        ({"order": 1025, "num_ngrams": [1] * 1025, "states_per_depth": [1] * 1025}, "context length"),
        ({"states_per_depth": [1, 1, 1]}, "states_per_depth counts 3 states"),
    ],
)
def test_configs_that_do_not_fit_the_tensors(folder, changes, complaint):
    rewrite(folder)  # without a digest of the config
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    if complaint:
        with pytest.raises(NGramFormatError, match=complaint):
            NGramLM.from_pretrained(folder)
    else:
        assert NGramLM.from_pretrained(folder).scores(torch.tensor([0, 1])).isfinite().all()


OF_TENSORS = [
    ("num_ngrams", [7, 5, 2]),
    ("unk_log_prob", -1.0),
    ("bos_log_prob", None),
    ("missing_unigrams", "unk"),
    ("tokenizer_fingerprint", "0" * 64),
]


@pytest.mark.parametrize(("field", "value"), OF_TENSORS)
def test_a_config_that_was_not_saved_with_the_tensors(folder, field, value):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), field: value}))
    with pytest.raises(NGramFormatError, match=r"lm: config\.json and model\.safetensors are of two models.* saved together"):
        NGramLM.from_pretrained(folder)
    rewrite(folder)  # as files of earlier versions are
    assert NGramLM.from_pretrained(folder).scores(torch.tensor([0, 1])).isfinite().all()


def test_what_may_be_changed_in_a_config_by_hand(folder, small):
    path = folder / "config.json"
    values = {**json.loads(path.read_text()), "tokenizer_id": "org/asr", "defaults": {"lm_weight": 0.4}}
    path.write_text(json.dumps(dict(sorted(values.items()))))
    found = NGramLM.from_pretrained(folder)
    assert torch.equal(found.tensors.arc_weights, small.tensors.arc_weights)
    assert (found.config.tokenizer_id, found.config.defaults) == ("org/asr", {"lm_weight": 0.4})


SAVING = """
import os, random, shutil, signal, sys, time
from hf_ngpulm import NGramLM

new, old, folders, kills = NGramLM.from_pretrained(sys.argv[1]), *sys.argv[2:4], int(sys.argv[4])

def forked(save):
    process = os.fork()
    if not process:
        save()
        os._exit(0)
    return process

def copied(number):
    return shutil.copytree(old, os.path.join(folders, str(number)))
"""
NAMES = ["README.md", "config.json", "model.safetensors", "notes.txt"]
AFTER_EACH_OPERATION = (
    SAVING
    + """
left = -1

def killing(event, arguments):
    global left
    if left >= 0 and (event == "open" or event.startswith("os.")):  # before it happens
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(killing)

def save():
    global left
    left = operations
    new.save_pretrained(folder)

operations, killed = 0, True
while killed:
    folder = copied(operations)
    killed = os.WIFSIGNALED(os.waitpid(forked(save), 0)[1])
    operations += 1
"""
)
AT_RANDOM = (
    SAVING
    + """
took = []
for number in range(kills + 20):
    folder = copied(number)
    began = time.perf_counter()
    process = forked(lambda: new.save_pretrained(folder))
    if number >= 20:  # these told how long it takes
        time.sleep(random.uniform(0, 1.2) * sorted(took)[10])
        os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    took.append(time.perf_counter() - began)
"""
)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes that can't be forked")
@pytest.mark.parametrize(
    ("script", "kills"),
    [
        pytest.param(AFTER_EACH_OPERATION, 20, id="after each operation on files"),
        pytest.param(AT_RANDOM, 500, id="at random", marks=pytest.mark.slow),
    ],
)
def test_a_kill_while_saving_leaves_one_of_two_models(script, kills, small, tmp_path):
    (tmp_path / "other.arpa").write_text(SMALL.replace("-0.5\t0", "-0.6\t0"))  # its config.json would do for both
    other = NGramLM.from_arpa(tmp_path / "other.arpa", vocab_size=5)
    small = copy.deepcopy(small)
    small.remember(TunedDecoding(ModelIdentity("org/asr", "parakeet_ctc", "ab"), {"lm_weight": 0.5}))
    for lm, name in ((small, "old"), (other, "new")):
        lm.save_pretrained(tmp_path / name)
    (tmp_path / "old" / "README.md").unlink()
    (tmp_path / "old" / "notes.txt").write_text("mine")
    command = [sys.executable, "-c", script, tmp_path / "new", tmp_path / "old", tmp_path / "folders", str(kills)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=600)
    found = []
    for folder in (tmp_path / "folders").iterdir():
        loaded = NGramLM.from_pretrained(folder)
        assert_same(loaded, small if loaded.config.decoding else other)
        is_cut_short = sorted(path.name for path in folder.iterdir()) not in (NAMES[1:], NAMES)
        found.append((bool(loaded.config.decoding), is_cut_short))
        for lm in (small, other):
            lm.save_pretrained(folder)
            assert_same(NGramLM.from_pretrained(folder), lm)
        assert sorted(path.name for path in folder.iterdir()) == NAMES
        assert (folder / "notes.txt").read_text() == "mine"
    assert kills < len(found) < kills + 100  # saving imports nothing, which would be hundreds of operations
    assert {(True, False), (True, True), (False, False)} <= set(found)
    assert (False, True) in found or script is AT_RANDOM


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_full_disk_is_an_error_of_the_system(lm, folder, name):
    resource = pytest.importorskip("resource")
    before, limits = contents(folder), resource.getrlimit(resource.RLIMIT_FSIZE)
    most = {"model.safetensors": 20_000, "config.json": 100}[name]
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, limits[1]))  # Python ignores the signal: writing fails
    try:
        with pytest.raises(OSError) as error:
            lm.save_pretrained(folder)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert error.value.errno == errno.EFBIG
    assert name == "config.json" or error.value.filename == str(folder / name)
    assert contents(folder) == before


def test_truncated_weights(folder):
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    for end in [*range(0, 64), *range(64, len(whole), 37), len(whole) - 1]:
        path.write_bytes(whole[:end])
        with pytest.raises(NGramFormatError, match=r"model\.safetensors isn't a safetensors file or is cut short"):
            NGramLM.from_pretrained(folder)


def test_damaged_weights_never_crash(folder, small):
    """Any byte of the header and of the data set to something else: refused, or a model that answers."""
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    states = torch.arange(small.num_states)
    for at in range(0, len(whole), 5):
        damaged = bytearray(whole)
        damaged[at] ^= 0xA5
        path.write_bytes(damaged)
        try:
            lm = NGramLM.from_pretrained(folder)
        except NGramFormatError:
            continue
        assert lm.scores(states).shape == (small.num_states, 5)


@pytest.mark.parametrize("name", TENSORS)
def test_tensors_that_are_missing_or_unknown(folder, name):
    rewrite(folder, drop=[name])
    with pytest.raises(NGramFormatError, match=rf"missing or unknown: \['{name}'\]"):
        NGramLM.from_pretrained(folder)
    rewrite(folder, **{name: torch.zeros(1, dtype=torch.int32), "another": torch.zeros(1)})
    with pytest.raises(NGramFormatError, match=r"missing or unknown: \['another'\]"):
        NGramLM.from_pretrained(folder)


@pytest.mark.parametrize("name", TENSORS)
@pytest.mark.parametrize("dtype", [torch.int64, torch.float16, torch.bool, torch.float64, torch.float8_e4m3fn], ids=str)
def test_wrong_dtypes(folder, small, name, dtype):
    rewrite(folder, **{name: tensors_of(small.parts)[name].to(dtype)})
    with pytest.raises(NGramFormatError, match=rf"{name} should be torch\.\w+, is {dtype}"):
        NGramLM.from_pretrained(folder)


@pytest.mark.parametrize("name", TENSORS)
def test_wrong_shapes(folder, small, name):
    for wrong in (tensors_of(small.parts)[name][None], tensors_of(small.parts)[name][:1].reshape(())):
        rewrite(folder, **{name: wrong.clone()})
        with pytest.raises(NGramFormatError, match=f"{name} should have one dimension"):
            NGramLM.from_pretrained(folder)
    if name != "unk_tokens":
        rewrite(folder, **{name: tensors_of(small.parts)[name][:0].clone()})
        with pytest.raises(NGramFormatError, match="broken n-gram automaton"):
            NGramLM.from_pretrained(folder)


HOSTILE = [
    ("arc_targets", 0, -1, "arc_targets reach from -1"),
    ("arc_targets", -1, 99, "arc_targets reach from 1 to 99"),
    ("arc_targets", 0, 2**31 - 1, "arc_targets reach"),
    ("arc_tokens", 2, 6, "arc_tokens reach from 0 to 6"),
    ("arc_tokens", 0, -3, "arc_tokens reach from -3"),
    ("arc_tokens", 1, 0, "ascending order"),
    ("arc_offsets", 0, 1, "arc_offsets don't run from 0"),
    ("arc_offsets", -1, 10**6, "arc_offsets don't run from 0"),
    ("arc_offsets", 1, 10**6, "arc_offsets are out of order"),
    ("arc_offsets", 2, -1, "arc_offsets are out of order"),
    ("arc_weights", 3, math.nan, "arc_weights holds a value that isn't finite"),
    ("arc_weights", 3, -math.inf, "arc_weights holds a value that isn't finite"),
    ("backoff_weights", 1, math.inf, "backoff_weights holds a value that isn't finite"),
    ("backoff_weights", -1, math.nan, "backoff_weights holds a value that isn't finite"),
    ("backoff_states", 1, -1, "a backoff state is negative"),
    ("backoff_states", 1, 3, "doesn't lead to a shorter context"),
    ("backoff_states", 0, 2, "doesn't lead to a shorter context"),
    ("roots", 0, 3, "a root doesn't back off to itself"),
    ("roots", 0, 50, "roots points outside"),
    ("roots", 0, -1, "roots points outside"),
    ("starts", 0, 50, "starts points outside"),
    ("starts", 0, -(2**31), "starts points outside"),
    ("unk_tokens", 0, 5, "unk_tokens should ascend within 0..4"),
    ("unk_tokens", 1, 2, "unk_tokens should ascend"),
    ("unk_tokens", 1, -1, "unk_tokens should ascend within 0..4"),
]


@pytest.mark.parametrize(("name", "at", "value", "complaint"), HOSTILE)
def test_hostile_values(folder, small, name, at, value, complaint):
    tensor = tensors_of(small.parts)[name].clone()
    tensor[at] = value
    rewrite(folder, **{name: tensor})
    with pytest.raises(NGramFormatError, match=complaint) as error:
        NGramLM.from_pretrained(folder)
    assert str(folder) in str(error.value)


def test_hostile_backoff_chains(folder, small):
    """A cycle of two states, and a chain that is longer than the order allows."""
    states = torch.arange(small.num_states, dtype=torch.int32)
    cycle = small.tensors.backoff_states.clone()
    cycle[1], cycle[2] = 2, 1
    rewrite(folder, backoff_states=cycle)
    with pytest.raises(NGramFormatError, match="doesn't lead to a shorter context"):
        NGramLM.from_pretrained(folder)
    rewrite(folder, backoff_states=(states - 1).clamp(min=0))
    with pytest.raises(NGramFormatError, match="backing off takes more than 2 steps"):
        NGramLM.from_pretrained(folder)


def test_hostile_headers(folder):
    """Offsets beyond the file, overlapping ones, a header that claims to be huge, an unknown dtype."""
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    (length,) = struct.unpack("<Q", whole[:8])
    header, data = json.loads(whole[8 : 8 + length]), whole[8 + length :]

    def put(name, **changes):
        changed = json.dumps({**header, name: {**header[name], **changes}}).encode()
        path.write_bytes(struct.pack("<Q", len(changed)) + changed + data)

    attempts = [
        lambda: put("arc_weights", data_offsets=[0, 2**62]),
        lambda: put("arc_weights", data_offsets=[8, 0]),
        lambda: put("arc_weights", data_offsets=header["arc_targets"]["data_offsets"]),
        lambda: put("arc_weights", shape=[2**40]),
        lambda: put("arc_weights", shape=[-1]),
        lambda: put("arc_weights", dtype="F7"),
        lambda: path.write_bytes(struct.pack("<Q", 2**63) + whole[8:]),
        lambda: path.write_bytes(struct.pack("<Q", 0) + whole[8:]),
        lambda: path.write_bytes(b"\x80\x05pickle" * 100),
    ]
    for attempt in attempts:
        attempt()
        with pytest.raises(NGramFormatError, match=r"model\.safetensors"):
            NGramLM.from_pretrained(folder)


@pytest.mark.parametrize(
    "pieces",
    ["", "[", "null", '{"a": 1}', '["a"]', '["a", "b", "c", "d", 5]', "[" * 100_000, "[" + "9" * 5000 + "]"],
    ids=lambda pieces: pieces[:12],
)
def test_bad_pieces(folder, pieces):
    rewrite(folder, metadata={"pieces": pieces})
    with pytest.raises(NGramFormatError, match="should list 5 pieces"):
        NGramLM.from_pretrained(folder)


def test_good_pieces(folder):
    rewrite(folder, metadata={"pieces": '["a", "b", null, "\\u2581d", "e"]'})
    assert NGramLM.from_pretrained(folder).pieces == ("a", "b", None, "▁d", "e")
