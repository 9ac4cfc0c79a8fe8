"""What is composed as it is asked for is a part of the whole: the same scores, to the bit."""

from unittest import mock

import pytest
import torch
from arpa_models import arpa_models
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from lazy_models import both_ways, random_words
from two_level import spellings

from hf_ngpulm.automaton.pool import AutomatonPool
from hf_ngpulm.formats.arpa import ArpaFile
from hf_ngpulm.lexicon import lazy_search, lazy_states
from hf_ngpulm.lexicon.lazy_search import LazySearch
from hf_ngpulm.search import ctc_beam as beam
from hf_ngpulm.search.ctc_beam import cpu
from hf_ngpulm.search.ctc_rows import CtcRows, Frames

slow_to_draw = settings(
    deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("arpa") / "words.arpa"


@st.composite
def models(draw, path):
    """A random model of words with random spellings, also several of a word and of several words, both ways."""
    model = draw(arpa_models())
    unigrams = model.text.split("\\1-grams:")[1].split("\\2-grams:")[0].split("\\end\\")[0].split("\n")
    assume(any(line.split()[1] not in ("<s>", "</s>", "<unk>") for line in unigrams if line))
    path.write_text(model.text)
    file = ArpaFile(path)
    offset, cost = draw(st.sampled_from([-10.0, 0.0, None])), draw(st.sampled_from([0.0, 1.5]))
    return both_ways(file.word_table(), draw(spellings(file.words)), file.words, offset, cost)


def tokens_of(batch):
    rows = torch.full((len(batch), max(1, *map(len, batch))), -1)
    for row, tokens in zip(rows, batch):
        row[: len(tokens)] = torch.tensor(tokens, dtype=torch.int64)
    return rows, torch.tensor([len(tokens) for tokens in batch])


@given(st.data())
@slow_to_draw
def test_queries_equal_those_of_the_whole(path, data):
    static, lazy = data.draw(models(path))
    tokens = st.integers(-1, static.vocab_size)
    for _ in range(2):
        rows, lengths = tokens_of(data.draw(st.lists(st.lists(tokens, max_size=9), min_size=1, max_size=3)))
        bos = data.draw(st.booleans())
        expected, found = (lm.score_tokens(rows, lengths, bos) for lm in (static, lazy))
        assert torch.equal(expected[0], found[0])
        assert torch.equal(static.score_sequences(rows, lengths, bos), lazy.score_sequences(rows, lengths, bos))
        behind = [lm.states_after(rows, lengths, bos) for lm in (static, lazy)]
        for states in ((expected[1], found[1]), behind):
            assert torch.equal(static.scores(states[0]), lazy.scores(states[1]))
            assert torch.equal(static.final_scores(states[0]), lazy.final_scores(states[1]))
            next_tokens = torch.randint(0, static.vocab_size, states[0].shape)
            of_all = [lm.advance(these) for lm, these in zip((static, lazy), states)]
            of_one = [lm.step(these, next_tokens) for lm, these in zip((static, lazy), states)]
            assert torch.equal(of_all[0][0], of_all[1][0])
            assert torch.equal(of_one[0][0], of_one[1][0])
            at = [parts[1].gather(1, next_tokens[:, None])[:, 0] for parts in of_all]
            for there in (at, [parts[1] for parts in of_one]):
                assert torch.equal(static.scores(there[0]), lazy.scores(there[1]))
    lazy.validate()


@given(st.data())
@slow_to_draw
def test_what_is_composed_is_an_automaton(path, data):
    """Arcs in order, no chain without an end, nothing outside; and what counts as finished backs off to nothing else."""
    _, lazy = data.draw(models(path))
    for tokens in data.draw(st.lists(st.lists(st.integers(0, lazy.vocab_size - 1), max_size=9), max_size=3)):
        lazy.score_sequences(*tokens_of([tokens]))
    whole = lazy.automaton.states
    offsets, tokens, _, targets, backoffs, _ = whole.tensors.values()
    unfinished_states = whole.arrays["unfinished"]
    numbers = range(0, 2 * whole.num_states, 2)
    arcs = []
    for state in numbers:
        own = slice(offsets[state], offsets[state + 1])
        arcs += range(own.start, own.stop)
        assert (tokens[own][1:] > tokens[own][:-1]).all()
        assert not (targets[own] % 2).any()
        assert 0 <= targets[own].min(initial=0) <= targets[own].max(initial=0) < 2 * whole.num_states
        unfinished, steps = unfinished_states[state], 0
        while backoffs[state] != state:
            state, steps = backoffs[state], steps + 1
            assert steps <= whole.num_states
            assert unfinished or not unfinished_states[state]
        assert state == 0
    assert sorted(arcs) == list(range(whole.num_arcs))


def test_parts_in_a_pool_with_others(monkeypatch):
    """Parts come when there is more, wherever there is room, and go together."""
    monkeypatch.setattr(lazy_search, "LEAST_STATES", 16)
    monkeypatch.setattr(lazy_search, "LEAST_ARCS", 16)
    static, lazy = random_words(range(2, 14))
    others = [random_words(range(2, 14), seed=seed)[0] for seed in (1, 2)]
    pool = AutomatonPool(static.vocab_size, torch.device("cpu"))
    pool.add("first", others[0])
    lazy.automaton.join_pool(pool)
    search = LazySearch(pool, [lazy.automaton])
    pool.add("second", others[1])
    pooled = search.copies[0]
    generator = torch.Generator().manual_seed(0)
    for turn in range(4):
        rows = torch.randint(0, static.vocab_size, (5, 8), generator=generator)
        starts = torch.full((5,), pooled.place.start, dtype=torch.int32)
        labels = rows.to(torch.int32)[:, :, None].numpy()
        while search.replay(starts[:, None, None], None, labels):
            pass
        lengths = torch.full((5,), 8, dtype=torch.int32)
        scores, states = torch.ops.hf_ngpulm.walk(
            list(search.tensors), starts, rows.to(torch.int32), lengths, static.vocab_size, "cpu"
        )
        assert torch.equal(scores, static.score_tokens(rows)[0])
        own = torch.from_numpy(pooled.outside(states.numpy()))
        assert torch.equal(torch.from_numpy(pooled.in_pool(own.numpy())), states)
        assert torch.equal(lazy.scores(own), static.scores(static.score_tokens(rows)[1]))
        if turn == 1:
            pool.drop("first")
    assert len(pooled.own) > 1
    assert (pooled.outside(torch.arange(len(pool.tensors.backoff_states)).numpy()) >= 0).sum() == 2 * lazy.num_states
    place = pool.places["second"]
    batch = torch.randint(0, static.vocab_size, (4, 6), generator=generator).to(torch.int32)
    starts, lengths = torch.full((4,), place.start, dtype=torch.int32), torch.full((4,), 6, dtype=torch.int32)
    scores, _ = torch.ops.hf_ngpulm.walk(list(pool.tensors), starts, batch, lengths, static.vocab_size, "cpu")
    assert torch.equal(scores, others[1].score_tokens(batch)[0])
    pooled.leave()
    assert pool.add("third", others[0]).states[0] < place.states[0]


def test_engines_agree():
    static, lazy = random_words(range(2, 14), seed=4)
    rows = torch.randint(0, static.vocab_size, (6, 9), generator=torch.Generator().manual_seed(1))
    expected, states = static.score_tokens(rows)
    for engine in ("reference", "cpu"):
        lazy.engine = static.engine = engine
        found, own = lazy.score_tokens(rows)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(lazy.scores(own), static.scores(states))


@given(
    st.integers(0, 2**16), st.sampled_from([None, 13]), st.integers(2, 5), st.sampled_from([1, 3, 8]), st.integers(0, 9),
    st.sampled_from([1, 1 << 14]),
)  # fmt: skip
@settings(deadline=None, max_examples=25)
def test_a_beam_search_that_composes_goes_on_as_if_it_had_not(seed, delimiter, order, num_beams, cut, room):
    """In one block or two, rows of different lengths, with any room; everything it returns, to the bit."""
    with mock.patch.object(lazy_states, "SMALLEST", room):
        static, lazy = random_words(range(2, 13), order, seed, count=60, delimiter=delimiter, vocab_size=14)
    logits = 2 * torch.randn(3, 9, 15, generator=torch.Generator().manual_seed(seed))
    lengths = torch.tensor([9, 6, 0], dtype=torch.int32)
    rules = beam.BeamRules(torch.tensor([[0.8], [0.3], [0.5]]), torch.full((3,), 0.4), torch.full((3,), -2.0), 14, 14, 20.0)
    search = LazySearch(None, [lazy.automaton])
    found, expected = (beam.initial_state(num_beams, lm.starts.expand(3)[:, None]) for lm in (lazy, static))
    for frames, part in ((logits[:, :cut], lengths.clamp(max=cut)), (logits[:, cut:], (lengths - cut).clamp(min=0))):
        expected, theirs = beam.ctc_beam(list(static.tensors), expected, frames, part, rules, engine="cpu")
        beams, ours = cpu.packed(found), beam.BeamFrames.still(*frames.shape[:2], num_beams)
        of_core = cpu.NgpulmBeamRules.of(rules, num_beams)
        with search.lent(14) as automaton:
            rows = CtcRows.of(None, beams)
            cpu.search(automaton, Frames.of(frames, part, 14), of_core, rows, frames.shape[:2], None, False, None, ours)
        found = cpu.unpacked(beams)
        for name in set(found._fields) - {"lm_states"}:
            assert torch.equal(getattr(found, name), getattr(expected, name)), name
        assert torch.equal(ours.links, theirs.links)
        assert torch.equal(ours.labels, theirs.labels)
    alive = torch.maximum(found.blank_scores, found.token_scores) > -torch.inf
    assert torch.equal(lazy.scores(found.lm_states[alive][:, 0]), static.scores(expected.lm_states[alive][:, 0]))
