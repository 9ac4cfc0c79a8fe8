"""Word queries of KenLM's probing models: KenLM's own scores from every engine, on a GPU or in Triton's interpreter."""

import os

import kenlm_files
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hf_ngpulm.errors import NGramFormatError
from hf_ngpulm.kenlm import read_binary
from hf_ngpulm.kenlm.probing import ProbingModel, ProbingStates, listing
from hf_ngpulm.kenlm.probing.tables import ProbingTables

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ENGINES = ["reference", "cpu"]
if DEVICE == "cuda" or os.environ.get("TRITON_INTERPRET") == "1":
    pytest.importorskip("triton")
    ENGINES.append("gpu")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("probing")
    return {name: read_binary(kenlm_files.unpack(name, folder)).model() for name in kenlm_files.PROBING}


def by_engine(model, engine):
    return ProbingModel(model.tables, model.vocabulary, engine).to(DEVICE if engine == "gpu" else "cpu")


def assert_same_states(found, expected):
    for ours, theirs in zip(found, expected):
        assert ours.dtype == theirs.dtype and torch.equal(ours.cpu(), theirs.cpu())


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", kenlm_files.PROBING)
def test_scores_are_kenlms(name, engine, models):
    model = by_engine(models[name], engine)
    # The interpreter takes milliseconds for what a GPU does in nanoseconds.
    few = slice(0, 8 if engine == "gpu" else None)
    sentences, expected = kenlm_files.sentences()[few], kenlm_files.scores(name)[few]
    longest = max(map(len, sentences))
    words = torch.full((len(sentences), longest), -1, dtype=torch.int32, device=model.device)
    for row, sentence in enumerate(sentences):
        words[row, : len(sentence)] = model.word_ids(sentence)
    states = model.initial_states(len(sentences))
    for position in range(longest):
        scores, states = model.score(states, words[:, position])
        for row, sentence in enumerate(sentences):
            wanted = expected[row][position] if position < len(sentence) else 0
            assert float(scores[row]) == pytest.approx(wanted, abs=1e-5)


def assert_engines_agree(model, engine, rows, bos, first, seed, dtype, steps):
    """On walks of the sentences' own words mixed with any others, and ids outside the vocabulary."""
    ids = torch.tensor([word for sentence in kenlm_files.sentences() for word in model.word_ids(sentence).tolist()])
    generator = torch.Generator().manual_seed(seed)
    asked, reference = by_engine(model, engine), by_engine(model, "reference")
    states = expected = reference.initial_states(rows, bos)
    for step in range(first, first + steps):
        other = torch.randint(-2, model.num_words + 2, (rows,), generator=generator)
        words = torch.where(torch.rand(rows, generator=generator) < 0.8, ids[step : step + rows], other).to(dtype)
        scores, expected = reference.score(expected, words)
        states = ProbingStates(*(tensor.to(asked.device) for tensor in states))
        found, states = asked.score(states, words.to(asked.device))
        assert torch.equal(found.cpu(), scores)
        assert_same_states(states, expected)


@pytest.mark.parametrize("name", ["o2_probing", "o4_probing_tight", "o4_probing_gaps", "o6_probing"])
@given(
    st.integers(0, 70), st.booleans(), st.integers(0, 100), st.integers(0, 1000), st.sampled_from([torch.int32, torch.int64])
)
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_compiled_loops_agree_with_the_reference(name, models, rows, bos, first, seed, dtype):
    assert_engines_agree(models[name], "cpu", rows, bos, first, seed, dtype, steps=5)


@pytest.mark.skipif("gpu" not in ENGINES, reason="neither a GPU nor TRITON_INTERPRET=1")
@pytest.mark.parametrize(
    "name, dtype", [("o2_probing", torch.int32), ("o4_probing_gaps", torch.int64), ("o6_probing", torch.int32)]
)
def test_the_kernel_agrees_with_the_reference(name, dtype, models):
    assert_engines_agree(models[name], "gpu", 35, True, 40, 0, dtype, steps=3)
    assert_engines_agree(models[name], "gpu", 0, True, 0, 0, dtype, steps=1)


def test_states_are_the_words_that_can_matter(models):
    model = models["o3_probing"]
    assert model.order == 3 and model.num_words == len(model.vocabulary) and model.nbytes > 1000
    on, lamp, unheard = model.word_ids(["turn", "lamp", "unheard"]).tolist()
    _, states = model.score(model.initial_states(2), torch.tensor([on, unheard]))
    assert states.words.tolist() == [[on, model.bos], [0, 0]] and states.lengths.tolist() == [2, 0]
    assert (states.backoffs[0] < 0).all() and (states.backoffs[1] == 0).all()
    _, after = model.score(states, torch.tensor([-1, lamp]))
    assert after.words.tolist() == [[on, model.bos], [lamp, 0]] and after.lengths.tolist() == [2, 1]


@pytest.mark.parametrize("engine", ENGINES)
def test_ids_outside_the_vocabulary_leave_the_context_as_it_is(engine, models):
    model = by_engine(models["o3_probing"], engine)
    states = model.initial_states(3)
    scores, after = model.score(states, torch.tensor([-1, model.num_words, 2**31 - 1], device=model.device))
    assert scores.tolist() == [0, 0, 0]
    assert_same_states(after, states)


def test_hashes_alone_are_enough(models):
    model, named = models["o3_probing_no_words"], models["o3_probing"]
    words = ["turn", "on", "naïve", "straße", "unheard", "<unk>"]
    assert model.word_ids(words).tolist() == named.word_ids(words).tolist()
    assert model.word_ids(words).tolist()[-2:] == [0, 0] and 0 not in model.word_ids(words).tolist()[:-2]


@pytest.mark.parametrize("engine", ENGINES)
def test_searches_end_in_a_table_without_an_empty_bucket(engine, models):
    """Such a file is refused; should one get by, what is searched is bounded all the same."""
    whole = models["o3_probing"]
    entries = whole.tables.entries.clone()
    for begin, buckets, size in zip(whole.tables.begins.tolist(), whole.tables.buckets.tolist(), (4, 3)):
        keys = entries[begin : begin + buckets * size].view(buckets, size)[:, :2]
        keys[(keys == 0).all(1)] = 7
    model = by_engine(ProbingModel(ProbingTables(entries, *whole.tables[1:]), whole.vocabulary), engine)
    words = torch.arange(model.num_words, dtype=torch.int32, device=model.device)
    _, states = model.score(model.initial_states(model.num_words), words)
    scores, _ = model.score(states, words.flip(0))
    assert torch.isfinite(scores).all()


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
        (fill, "no empty bucket"),
        (flip, "no search finds it"),
        (drop, "by the header it should be"),
        (no_number, "log-probability nan"),
        (endless, "backoff inf"),
    ],
)
def test_damaged_tables_are_refused(change, expected, tmp_path):
    (tmp_path / "lm.bin").write_bytes(damaged(lambda table: None))
    read_binary(tmp_path / "lm.bin").model()
    (tmp_path / "lm.bin").write_bytes(damaged(change))
    with pytest.raises(NGramFormatError, match=f"lm.bin: .*{expected}"):
        read_binary(tmp_path / "lm.bin").model()


def test_what_a_file_can_not_do(tmp_path):
    with pytest.raises(NGramFormatError, match=r"not a probing model.*KenLMFile\.table"):
        read_binary(kenlm_files.unpack("o3_trie", tmp_path)).model()


@pytest.mark.parametrize("limit, work", [("MOST_BIGRAM_TRIALS", "words times"), ("MOST_PAIRS", "pairs of overlapping 2-grams")])
def test_models_too_large_to_be_listed(limit, work, tmp_path, monkeypatch):
    file = read_binary(kenlm_files.unpack("o3_probing", tmp_path))
    assert file.table().order == 3
    monkeypatch.setattr(listing, limit, 300)
    with pytest.raises(NGramFormatError, match=f"can't be listed.*{work}.*KenLMFile.model.*build_binary trie"):
        file.table()


def test_n_grams_that_are_not_made_of_words_are_refused(tmp_path):
    def swap(table):
        """A key becomes one that no words make, in the same bucket."""
        at = np.flatnonzero(table["key"])[3]
        table["key"][at] += np.uint64(len(table))

    (tmp_path / "lm.bin").write_bytes(damaged(swap))
    with pytest.raises(NGramFormatError, match="2-grams in the hash table, of which"):
        read_binary(tmp_path / "lm.bin").table()


def test_wrong_arguments(models):
    model = models["o3_probing"]
    with pytest.raises(ValueError, match=r"contexts \[B, 2\]"):
        model.score(model.initial_states(2), torch.zeros(3, dtype=torch.int32))
    with pytest.raises(ValueError, match=r"contexts \[B, 2\]"):
        model.score(models["o2_probing"].initial_states(2), torch.zeros(2, dtype=torch.int32))
    with pytest.raises(ValueError, match="engine"):
        ProbingModel(model.tables, model.vocabulary, "fast")


def test_torch_compile_passes_through(models):
    model = models["o3_probing"]
    words = model.word_ids(["turn", "the"])

    def two_words(words):
        first, states = model.score(model.initial_states(2), words)
        return first + model.score(states, words.flip(0))[0]

    compiled = torch.compile(two_words, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(words), two_words(words))
